"""A store is opened whole or not at all; what is wrong is named."""

import itertools
import pathlib
import shutil

import numpy as np
import pytest

from data_pipeline.store import open_store, reader, writer
from tests.data_pipeline.stores import UNK, write_store

DOCUMENTS = [[[5, 6], [7]], [[8, 9, 10]], [[5], [5], [UNK, 6]]]
PIECES = [f"piece{i}" for i in range(6)]
VOCAB_SIZE = 11  # five of them are special pieces


@pytest.fixture
def built(tmp_path) -> pathlib.Path:
    return write_store(tmp_path / "store", DOCUMENTS, DOCUMENTS[:1], PIECES)


def refused(folder: pathlib.Path, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_store(folder)


def test_what_was_written_is_what_is_read(built):
    opened = open_store(built)
    for split, documents in ((opened.train, DOCUMENTS), (opened.heldout, DOCUMENTS[:1])):
        sentences = np.split(split.token_ids, split.sentence_offsets[1:-1])
        read = [
            [sentence.tolist() for sentence in sentences[first:last]]
            for first, last in itertools.pairwise(split.document_offsets)
        ]
        assert read == documents
        tokens = [token for document in documents for sentence in document for token in sentence]
        assert split.token_counts.tolist() == [tokens.count(i) for i in range(VOCAB_SIZE)]
        assert isinstance(split.token_ids.base, np.memmap) and not split.token_ids.flags.writeable
    assert opened.vocab_path.read_text().startswith("[PAD]\n")
    assert (opened.vocab_size, opened.special_ids["mask"]) == (VOCAB_SIZE, 4)
    assert opened.manifest["splits"]["train"] == {
        "documents": 3,
        "sentences": 6,
        "tokens": 10,
        "unknown_tokens": 1,
        "one_sentence_documents": 1,
        "longest_sentence_tokens": 3,
    }


def test_offsets_go_on_from_call_to_call(built, tmp_path):
    one_by_one = writer.SplitWriter(tmp_path / "train", np.dtype(np.uint16), VOCAB_SIZE, UNK)
    for document in DOCUMENTS:
        tokens = np.concatenate(document)
        one_by_one.append(tokens, np.array([*map(len, document)]), np.array([len(document)]))
    one_by_one.close()
    for path in (tmp_path / "train").iterdir():
        assert path.read_bytes() == (built / "train" / path.name).read_bytes()


def test_the_digest_follows_every_array_and_the_vocabulary(built):
    arrays = writer.describe_arrays(built)
    digests = {reader.compute_digest(arrays, "v"), writer.compute_digest(arrays, "w")}
    for name in arrays:
        changed = arrays | {name: arrays[name] | {"sha256": "other"}}
        digests.add(reader.compute_digest(changed, "v"))
    assert len(digests) == 2 + 8


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="made the id 11, beyond the vocabulary's 11 pieces"):
        write_store(tmp_path / "store", [[[1, 11]]], DOCUMENTS, PIECES)


def test_an_address_is_refused_as_one_and_a_colon_in_a_path_makes_none(built):
    for address in ("gs://b/store", pathlib.Path("gs://b/store"), "s3://b"):
        refused(address, r"the store is (gs|s3):/.*, but .* local or mounted fold")
    assert open_store(built.rename(built.with_name("a:b"))).vocab_size == VOCAB_SIZE


def test_a_file_of_text_in_place_of_a_store_is_the_input_of_a_build(tmp_path):
    text = tmp_path / "news.jsonl"
    text.write_text('{"text": "A line."}\n')
    refused(text, f"news.jsonl is a file, not a store; .* --input={text} --output=stores/news ")
    absent, gone = tmp_path / "my store", "my store is not a store: there is no such folder"
    refused(absent, f"{gone}; make one with: .* --output='.*/my store' --train_vocab=")
    refused("my store", f"{gone} in the current one, {pathlib.Path.cwd()}; make one with: ")
    absent.mkdir()
    refused(absent, "my store is not a store: it has no manifest.json .* --output='.*/my store' ")


@pytest.mark.fault(19, "a file of a store is cut off, then gone")
@pytest.mark.parametrize("split", ["train", "heldout"])
@pytest.mark.parametrize(
    "name", ["token_ids", "sentence_offsets", "document_offsets", "token_counts"]
)
def test_missing_and_cut_off_arrays_are_named(built, split, name):
    path = built / split / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-2])
    refused(built, rf"{split}/{name}\.npy is damaged or cut off")
    path.unlink()
    refused(built, rf"{split}/{name}\.npy is missing from the store")


def test_arrays_of_another_build_are_named(built):
    offsets = built / "train" / "sentence_offsets.npy"
    np.save(offsets, np.load(offsets) + 1)
    refused(built, r"offsets\.npy runs from 1 to 11, but should run from 0 to 10")
    shutil.copy(built / "heldout/token_ids.npy", built / "train/token_ids.npy")
    refused(built, r"token_ids\.npy is uint16\[3\], but the manifest says uint16\[")


@pytest.mark.parametrize("checked_tokens", [1 << 26, 4])
def test_ids_beyond_the_vocabulary_are_found(built, monkeypatch, checked_tokens):
    # The second case looks at blocks only; the first and the last tokens are always among them.
    monkeypatch.setattr(reader, "_CHECKED_TOKENS", checked_tokens)
    monkeypatch.setattr(reader, "_CHECKED_BLOCKS", 2)
    path = built / "train" / "token_ids.npy"
    ids = np.load(path)
    ids[-1] = VOCAB_SIZE
    np.save(path, ids)
    refused(built, r"token_ids\.npy has the id 11, beyond the 11 pieces")


def test_another_vocabulary_is_refused(built):
    (built / "vocab.txt").write_text("other\n")
    refused(built, r"vocab\.txt is not the vocabulary that encoded this")
    (built / "vocab.txt").unlink()
    refused(built, r"vocab\.txt is missing from the store")
