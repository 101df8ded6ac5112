"""Byte-level BPE against the tokenizers library on whole texts, and the files that are refused."""

import json
import pathlib

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.vocab import BYTE_LEVEL, Vocabulary, load_vocabulary
from data_pipeline.vocab.byte_level import BYTES, train_byte_level
from data_pipeline.vocab.offsets import PieceAligner
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json
from tests.data_pipeline.encoded import WORDS, id_lists

TRICKY = [
    "",
    " ",
    "a",
    "  two  spaces ",
    "tab\tand\nline\r\n",
    "It's 1,234.5 can't  we'll",
    "naïve cafe\u0301 \u212b",
    "中文 und 🙂👩‍👩‍👧",
    "\x00\x1f\x1c x\x85y\u2028z \u3000w",
    "a [SEP] <s> [MASK]b",
    "x" * 5000 + " " + "é" * 300,
    "a <b> c <pair>d",
]
PAIR = ("a cat sees it", "the dog")
TRAINED = json.loads(train_byte_level([*WORDS, "cafés über it's 中文 12 345"] * 3, 340, 2))


def make_file(kind: str) -> dict:
    """A file trained here, or one of the structure of RoBERTa's or ModernBERT's."""
    data = json.loads(json.dumps(TRAINED))
    if kind == "trained":
        return data
    data["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    if kind == "modernbert":
        data["normalizer"] = {"type": "NFC"}
        size = len(data["model"]["vocab"])
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "special": False}
        for i, content in enumerate(("  ", "    ", "<pair>")):
            token = {"id": size + i, "content": content, "normalized": i < 2}
            data["added_tokens"].append(plain | token)
        return data
    new = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>", "[MASK]": "<mask>"}
    vocab = data["model"]["vocab"]
    data["model"]["vocab"] = {new.get(piece, piece): i for piece, i in vocab.items()}
    for token in data["added_tokens"]:
        token["content"] = new.get(token["content"], token["content"])
    data["post_processor"] = {
        "type": "RobertaProcessing",
        "sep": ["</s>", 3],
        "cls": ["<s>", 2],
        "trim_offsets": True,
        "add_prefix_space": False,
    }
    return data


def write_two_files(folder: pathlib.Path) -> pathlib.Path:
    """The vocab.json and merges.txt of the file of RoBERTa's structure."""
    model = make_file("roberta")["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return folder / "vocab.json"


@pytest.fixture(scope="module", params=["trained", "roberta", "modernbert", "two files"])
def loaded(request, tmp_path_factory) -> tuple[Vocabulary, tokenizers.Tokenizer]:
    """A vocabulary, and the library's tokenizer of its file to which special tokens are text."""
    folder = tmp_path_factory.mktemp("bpe")
    data = make_file("roberta" if request.param == "two files" else request.param)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(data))
    if request.param == "two files":
        path = write_two_files(folder)
    library = tokenizers.Tokenizer.from_str(json.dumps(data))
    library.encode_special_tokens = True
    return load_vocabulary(path), library


def adds_space(library: tokenizers.Tokenizer) -> bool:
    return library.encode("a").ids == library.encode(" a").ids


def check(loaded, text: str) -> None:
    vocabulary, library = loaded
    expected = library.encode(text, add_special_tokens=False)
    (ids,) = id_lists(vocabulary, [text])
    assert ids == expected.ids, text
    aligned = PieceAligner(vocabulary).encode(text)
    assert aligned.ids_T.tolist() == ids
    assert np.all(aligned.starts_T <= aligned.ends_T)
    assert np.all(np.diff(aligned.starts_T) >= 0) and np.all(np.diff(aligned.ends_T) >= 0)


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts_have_the_librarys_ids(loaded, text):
    check(loaded, text)


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_random_texts_have_the_librarys_ids_and_come_back(loaded, text):
    check(loaded, text)
    vocabulary, library = loaded
    if library.normalizer is None:
        (ids,) = id_lists(vocabulary, [text])
        is_prefixed = adds_space(library)
        assert vocabulary.decode(ids) == (text.removeprefix(" ") if is_prefixed else text)


def test_two_files_are_the_file_that_transformers_makes_of_them(tmp_path):
    """Kept as a tokenizer.json, whose ids, special tokens and pairs are RoBERTa's."""
    vocabulary = load_vocabulary(write_two_files(tmp_path))
    assert (
        json.loads(vocabulary.file_bytes)["model"]["vocab"]
        == make_file("roberta")["model"]["vocab"]
    )
    library = tokenizers.Tokenizer.from_str(vocabulary.file_bytes.decode())
    other = tokenizers.Tokenizer.from_str(json.dumps(make_file("roberta")))
    for texts in (("a cat <mask> sees",), PAIR):
        assert library.encode(*texts).ids == other.encode(*texts).ids
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    spaced = load_vocabulary(tmp_path / "vocab.json")
    assert (
        id_lists(spaced, ["cat"]) == id_lists(vocabulary, [" cat"]) != id_lists(vocabulary, ["cat"])
    )
    (tmp_path / "vocab.json").write_text('{"<s>": "0"}')
    with pytest.raises(ValueError, match="id is not a whole number"):
        load_vocabulary(tmp_path / "vocab.json")
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"no merges\.txt next to it"):
        load_vocabulary(tmp_path / "vocab.json")


def test_the_files_beside_each_other_may_be_links_as_in_the_hubs_cache(tmp_path):
    snapshot, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    snapshot.mkdir()
    blobs.mkdir()
    path = write_two_files(snapshot)
    (snapshot / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    expected = load_vocabulary(path).file_bytes
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(number))
        file.symlink_to(f"../blobs/{number}")
    assert load_vocabulary(path).file_bytes == expected


def test_words_start_at_spaces_and_characters_have_their_pieces(loaded):
    vocabulary, library = loaded
    assert vocabulary.kind == BYTE_LEVEL and not vocabulary.lowercase
    (ids,) = id_lists(vocabulary, ["x bal, über"])
    starts = [not vocabulary.is_continuation[i] for i in ids]
    readable = vocabulary.readable_pieces()
    text = "".join(readable[i] for i in ids)
    assert text.removeprefix("▁").startswith("x▁bal,▁")
    assert not {*"\n\r\t\x1b"} & {*"".join(readable)} and "\u010a" in readable  # a line feed
    begins = [i for i, start in enumerate(starts) if start]
    assert len(begins) == 2 + adds_space(library)
    aligned = PieceAligner(vocabulary).encode("x bal, über")
    covered = {
        "x bal, über"[start:end]
        for start, end in zip(aligned.starts_T, aligned.ends_T, strict=True)
    }
    assert "," in covered and not any(" " in part for part in covered)


def test_words_have_the_ids_of_the_library_that_adds_a_space(loaded):
    """As transformers has them with is_split_into_words and add_prefix_space."""
    vocabulary, library = loaded
    words = [
        "bal",
        "'s",
        "U.S.-based",
        "3,000",
        "cafe\u0301",
        "中文",
        "🙂",
        "\xa0x",
        "it's",
        "\u0301a",
    ]
    spaced = json.loads(library.to_str())
    if not adds_space(library):
        spaced["pre_tokenizer"]["add_prefix_space"] = True
    spaced = tokenizers.Tokenizer.from_str(json.dumps(spaced))
    encoding = spaced.encode(words, is_pretokenized=True, add_special_tokens=False)
    flat, lengths = vocabulary.encode_words(words)
    assert flat.tolist() == encoding.ids
    assert np.repeat(np.arange(len(words)), lengths).tolist() == encoding.word_ids
    first = np.cumsum([0, *lengths[:-1]])
    assert not vocabulary.is_continuation[flat[first]].any()


def test_training_twice_gives_the_same_file():
    first, second = (train_byte_level(WORDS, 300, 0) for _ in range(2))
    assert first == second
    pieces = json.loads(first)["model"]["vocab"]
    assert [pieces[name] for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [*range(5)]
    assert set(BYTES) < set(pieces) and len(pieces) == 300
    with pytest.raises(ValueError, match="--vocab_size is 260, too small"):
        train_byte_level(WORDS, 260, 0)


def damaged(**changes: object) -> dict:
    return make_file("roberta") | changes


def damaged_model(**changes: object) -> dict:
    data = make_file("roberta")
    return data | {"model": data["model"] | changes}


def without(piece: str) -> dict:
    data = make_file("roberta")
    names = [name for name in data["model"]["vocab"] if name != piece]
    merges = [pair for pair in data["model"]["merges"] if piece not in pair]
    vocab = {name: i for i, name in enumerate(names)}
    added = [t | {"id": vocab[t["content"]]} for t in data["added_tokens"] if t["content"] in vocab]
    model = data["model"] | {"vocab": vocab, "merges": merges}
    return data | {"model": model, "added_tokens": added}


@pytest.mark.parametrize(
    "data, message",
    [
        (damaged(pre_tokenizer={"type": "Whitespace"}), "writes it: .* .ByteLevel."),
        (damaged(pre_tokenizer=None), "writes it: .* .ByteLevel."),
        (damaged_model(dropout=0.1), "dropped at random"),
        (damaged_model(vocab=5), "this version of tokenizers"),
        (damaged_model(merges=[["zz", "qq"]]), "this version of tokenizers"),
        (without("<mask>"), "no piece \\[MASK\\] or <mask>"),
        (without("\u0120"), "no piece for 1 of the 256 bytes"),
        (damaged_model(vocab=TRAINED["model"]["vocab"] | {"x9": 999}), "with few gaps"),
        (damaged_model(vocab=TRAINED["model"]["vocab"] | {"x9": 9}), "each needs its own"),
    ],
)
def test_other_rules_and_damage_are_refused_by_a_sentence(tmp_path, data, message):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message) as error:
        load_vocabulary(path)
    assert str(path) in str(error.value)


def test_text_behind_a_special_token_keeps_its_pieces_where_the_file_is_exported(tmp_path):
    """[MASK]. is [MASK] and a full stop."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(TRAINED))
    text = "The word [MASK]. The [MASK]s [MASK] dem"
    exported = tokenizers.Tokenizer.from_str(make_tokenizer_json(load_vocabulary(path)))
    encoding = exported.encode(text, add_special_tokens=False)
    assert id_lists(load_vocabulary(path, reads_special_tokens=True), [text]) == [encoding.ids]
    assert "[MASK]|." in "|".join(encoding.tokens)


def test_a_file_of_others_that_adds_a_space_is_exported_as_it_is(tmp_path):
    data = make_file("roberta")
    data["pre_tokenizer"]["add_prefix_space"] = True
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    assert make_tokenizer_json(load_vocabulary(path)) == path.read_text()
