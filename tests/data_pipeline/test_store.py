"""A store is opened whole or not at all; what is wrong is named."""

import itertools
import json
import pathlib
import shutil

import numpy as np
import pytest

from data_pipeline import store, store_writing
from data_pipeline.store import open_store

VOCAB_SIZE = 11
DOCUMENTS = [[[5, 6], [7]], [[8, 9, 10]], [[5], [5], [1, 6]]]


def write_split(directory: pathlib.Path, documents: list[list[list[int]]]) -> dict[str, int]:
    writer = store_writing.SplitWriter(directory, np.dtype(np.uint16), VOCAB_SIZE, unknown_id=1)
    for document in documents:  # one at a time: offsets must go on from call to call
        writer.append(
            np.array([token for sentence in document for token in sentence]),
            np.array([len(sentence) for sentence in document]),
            np.array([len(document)]),
        )
    return writer.close()


@pytest.fixture
def built(tmp_path) -> pathlib.Path:
    directory = tmp_path / "store"
    splits = {
        "train": write_split(directory / "train", DOCUMENTS),
        "heldout": write_split(directory / "heldout", DOCUMENTS[:1]),
    }
    vocabulary = "".join(f"piece{i}\n" for i in range(VOCAB_SIZE)).encode()
    (directory / "vocab.txt").write_bytes(vocabulary)
    digest = store_writing.sha256(directory / "vocab.txt")
    arrays = store_writing.describe_arrays(directory)
    manifest = {
        "format": store.FORMAT,
        "format_version": store.FORMAT_VERSION,
        "digest": store_writing.store_digest(arrays, digest),
        "vocabulary": {
            "file": "vocab.txt",
            "size": VOCAB_SIZE,
            "lowercase": True,
            "sha256": digest,
            "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        },
        "token_dtype": "uint16",
        "splits": splits,
    }
    store_writing.write_manifest(directory, manifest)
    return directory


def change_manifest(directory: pathlib.Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_what_was_written_is_what_is_read(built):
    opened = open_store(built)
    for split, documents in ((opened.train, DOCUMENTS), (opened.heldout, DOCUMENTS[:1])):
        sentences = np.split(split.token_ids, split.sentence_offsets[1:-1])
        ends = split.document_offsets
        read = [
            [sentence.tolist() for sentence in sentences[first:last]]
            for first, last in itertools.pairwise(ends)
        ]
        assert read == documents
        tokens = [token for document in documents for sentence in document for token in sentence]
        assert split.token_counts.tolist() == [tokens.count(i) for i in range(VOCAB_SIZE)]
        assert isinstance(split.token_ids, np.memmap)
        assert not split.token_ids.flags.writeable
    assert opened.vocab_size == VOCAB_SIZE
    assert opened.vocab_path.read_text().startswith("piece0\n")
    assert opened.special_ids["mask"] == 4
    assert opened.manifest["splits"]["train"] == {
        "documents": 3,
        "sentences": 6,
        "tokens": 10,
        "unknown_tokens": 1,
        "one_sentence_documents": 1,
        "longest_sentence_tokens": 3,
    }


def test_the_digest_follows_every_array_and_the_vocabulary(built):
    arrays = store_writing.describe_arrays(built)
    digests = {store_writing.store_digest(arrays, "v"), store_writing.store_digest(arrays, "w")}
    for name in arrays:
        changed = arrays | {name: arrays[name] | {"sha256": "other"}}
        digests.add(store_writing.store_digest(changed, "v"))
    assert len(digests) == 2 + 8
    assert open_store(built).digest == open_store(built).digest


def test_array_files_grow_and_are_plain_npy(tmp_path):
    file = store_writing.ArrayFile(tmp_path / "a.npy", np.dtype(np.int64))
    expected = np.zeros(0, np.int64)
    for size in (0, 3, 1000, 7):
        file.append(np.arange(size))
        expected = np.concatenate([expected, np.arange(size)])
    file.close()
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="made the id 11, beyond the vocabulary's 11 pieces"):
        write_split(tmp_path / "train", [[[1, 11]]])


@pytest.mark.parametrize("address", ["gs://b/store", pathlib.Path("gs://b/store"), "s3://b"])
def test_an_address_is_refused_as_one(address):
    with pytest.raises(ValueError, match=r"the store is (gs|s3):/.*, but .* local or mounted fold"):
        open_store(address)


def test_a_colon_in_a_path_is_no_address(built):
    assert open_store(built.rename(built.with_name("a:b"))).vocab_size == VOCAB_SIZE


def test_a_folder_without_a_manifest_is_not_a_store(built):
    assert store.is_store(built)
    (built / "manifest.json").unlink()
    assert not store.is_store(built)
    with pytest.raises(
        ValueError, match=r"is not a store: .*python -m data_pipeline\.build --input"
    ):
        open_store(built)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"format": "other"}, r"manifest\.json is not the manifest of a bert_jax store"),
        ({"format_version": "2" * 5000}, r"has format version '2{79}, this code reads"),
        ({"format_version": 2}, r"has format version 2, this code reads version 1; build"),
        (
            {"token_dtype": "uint32"},
            r"train/token_ids\.npy is uint16\[10\], the manifest says uint32",
        ),
        ({"splits": {}}, r"manifest\.json has no key 'train'; .*build the store again"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(built, changes, sentence):
    change_manifest(built, **changes)
    with pytest.raises(ValueError, match=sentence):
        open_store(built)


def test_a_manifest_that_was_cut_off_is_refused(built):
    path = built / "manifest.json"
    path.write_text(path.read_text()[:99])
    with pytest.raises(ValueError, match=r"manifest\.json is not JSON .*build it again"):
        open_store(built)


@pytest.mark.fault(19, "a file of a store is cut off, then gone")
@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize("name", store.ARRAYS)
def test_missing_and_cut_off_arrays_are_named(built, split, name):
    path = built / split / f"{name}.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(ValueError, match=rf"{split}/{name}\.npy is damaged or cut off"):
        open_store(built)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{split}/{name}\.npy is missing from the store"):
        open_store(built)


def test_arrays_of_another_build_are_named(built):
    shutil.copy(built / "heldout/token_ids.npy", built / "train/token_ids.npy")
    with pytest.raises(
        ValueError, match=r"token_ids\.npy is uint16\[3\], the manifest says uint16\["
    ):
        open_store(built)


def test_offsets_must_end_where_the_tokens_do(built):
    path = built / "train" / "sentence_offsets.npy"
    np.save(path, np.load(path) + 1)
    with pytest.raises(
        ValueError, match=r"offsets\.npy runs from 1 to 11, it should run from 0 to 10"
    ):
        open_store(built)


@pytest.mark.parametrize("checked_tokens", [1 << 26, 4])
def test_ids_beyond_the_vocabulary_are_found(built, monkeypatch, checked_tokens):
    # The second case looks at blocks only; the first and the last tokens are always among them.
    monkeypatch.setattr(store, "_CHECKED_TOKENS", checked_tokens)
    monkeypatch.setattr(store, "_CHECKED_BLOCKS", 2)
    path = built / "train" / "token_ids.npy"
    ids = np.load(path)
    ids[-1] = VOCAB_SIZE
    np.save(path, ids)
    with pytest.raises(ValueError, match=r"token_ids\.npy has the id 11, beyond the 11 pieces"):
        open_store(built)


def test_another_vocabulary_is_refused(built):
    (built / "vocab.txt").write_text("other\n")
    with pytest.raises(ValueError, match=r"vocab\.txt is not the vocabulary that made the ids"):
        open_store(built)
    (built / "vocab.txt").unlink()
    with pytest.raises(ValueError, match=r"vocab\.txt is missing from the store"):
        open_store(built)
