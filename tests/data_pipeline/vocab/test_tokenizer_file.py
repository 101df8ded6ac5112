"""What is read from a tokenizer.json: special tokens as text or as tokens, roles, panics."""

import json
import pathlib
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from data_pipeline.corpus.lost_characters import LostCharacters
from data_pipeline.io import Refused
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import load_vocabulary, tokenizer_file
from data_pipeline.vocab.wordpiece import WordEncoder
from tests.data_pipeline.encoded import SPECIALS, id_lists
from tests.data_pipeline.vocab.test_byte_level import make_file
from tests.data_pipeline.vocab.test_documents import (
    BERT,
    SPLIT,
    TOKENIZERS,
    make_bpe_of_words,
    make_unigram,
    make_wordpiece,
)


def write(folder: pathlib.Path, tokenizer: tokenizers.Tokenizer) -> pathlib.Path:
    path = folder / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    return path


def write_parts(folder: pathlib.Path, **parts: object) -> pathlib.Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(TOKENIZERS["BERT"].to_str()) | parts))
    return path


ROLES = ("pad", "unk", "cls", "sep", "mask")
TEXT = "Bal [E1] word[SEP] [MASK]"


def test_special_tokens_are_text_in_training_and_tokens_in_rows(tmp_path):
    """Roles are text in training also where the file does not mark them as special."""
    path = write(tmp_path, TOKENIZERS["BERT"])
    library = tokenizers.Tokenizer.from_file(str(path))
    tokens = library.encode(TEXT, add_special_tokens=False).ids
    library.encode_special_tokens = True
    text = library.encode(TEXT, add_special_tokens=False).ids
    assert id_lists(load_vocabulary(path), [TEXT]) == [text]
    assert id_lists(load_vocabulary(path, reads_special_tokens=True), [TEXT]) == [tokens]
    assert not {2, 3, 4} & set(text) and {3, 4} < set(tokens)
    data = json.loads(TOKENIZERS["BERT"].to_str())
    for token in data["added_tokens"]:
        token["special"] = False
    path = write_parts(tmp_path, added_tokens=data["added_tokens"])
    (ids,) = id_lists(load_vocabulary(path), [TEXT])
    assert not {2, 3, 4} & set(ids) and load_vocabulary(path).pieces().index("[E1]") in ids


@pytest.mark.parametrize("name", ["Unigram", "WordPiece", "BPE"])
def test_roles_that_a_model_looks_for_in_words_are_text_in_training(tmp_path, name):
    """As in XLM-R's file, where </s> is a piece of Unigram; other added tokens keep their ids."""
    nothing = normalizers.Sequence([])
    tokenizer = make_wordpiece(nothing, pre_tokenizers.WhitespaceSplit(), AddedToken("<b>"))
    if name == "Unigram":
        tokenizer = make_unigram("always", split=True)
        tokenizer.normalizer = nothing
        tokenizer.add_tokens(["<b>"])
    if name == "BPE":
        pieces = {piece: i for i, piece in enumerate([*SPECIALS, *"abl"])}
        model = tokenizers.models.BPE(pieces, [], unk_token="[UNK]", ignore_merges=True)
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_tokens(["<b>"])
    path = write(tmp_path, tokenizer)
    loaded, text = load_vocabulary(path), "a [SEP] <b> [MASK] [CLS]"
    (ids,) = id_lists(loaded, [text])
    pieces = loaded.pieces()
    assert pieces[:5] == SPECIALS and pieces.index("<b>") in ids
    assert not {0, 2, 3, 4} & set(ids) and not any(" " in piece for piece in pieces)
    documents, _ = loaded.encode_documents([text], [1])
    assert documents.tolist() == ids
    (others,) = id_lists(loaded, ["a <b> bal"])
    assert others == tokenizer.encode("a <b> bal").ids
    (read,) = id_lists(load_vocabulary(path, reads_special_tokens=True), [text])
    assert read == tokenizer.encode(text).ids and {2, 3, 4} < set(read)


@pytest.mark.parametrize("join", [list, " ".join])
def test_merges_make_no_special_token_of_a_text_in_training(tmp_path, join):
    pieces = [*SPECIALS, *"[SEP]", "[S", "[SE", "[SEP"]
    merges = [(f"[{'SEP'[:i]}", "SEP]"[i]) for i in range(4)]
    model = tokenizers.models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = [*map(join, merges)]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(data))
    read = load_vocabulary(path, reads_special_tokens=True)
    assert id_lists(read, ["S [SEP]"]) == [[pieces.index("S"), 3]]
    expected = [pieces.index(piece) for piece in ("S", "[SEP", "]")]
    assert id_lists(load_vocabulary(path), ["S [SEP]"]) == [expected]


def test_truncation_and_padding_of_the_file_are_left_to_rows(tmp_path):
    tokenizer = tokenizers.Tokenizer.from_str(TOKENIZERS["BERT"].to_str())
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    path = write(tmp_path, tokenizer)
    ids, lengths = load_vocabulary(path).encode(["bal word bal word bal", "bal"])
    assert lengths.tolist() == [5, 1] and len(ids) == 6


def test_the_files_longest_word_counts(tmp_path):
    word = "bal" * 40
    (short,) = id_lists(load_vocabulary(write(tmp_path, TOKENIZERS["BERT"])), [word])
    assert short == [1]
    data = json.loads(TOKENIZERS["BERT"].to_str())["model"] | {"max_input_chars_per_word": 120}
    (whole,) = id_lists(load_vocabulary(write_parts(tmp_path, model=data)), [word])
    assert len(whole) > 1


def make_template(*parts: str) -> dict:
    def describe(part: str, second: bool) -> dict:
        if part in "AB":
            return {"Sequence": {"id": part, "type_id": int(second)}}
        return {"SpecialToken": {"id": part, "type_id": 0}}

    return {
        "type": "TemplateProcessing",
        "single": [describe(part, False) for part in parts if part != "B"],
        "pair": [describe(part, part == "B") for part in parts],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for i, name in enumerate(SPECIALS)
        },
    }


@pytest.mark.parametrize(
    "template, cls, sep",
    [
        (None, 2, 3),
        (make_template("[SEP]", "A", "B", "[CLS]"), 3, 2),
        (make_template("A", "B", "[CLS]", "[SEP]"), 3, 2),  # XLNet's order
        ({"type": "BertProcessing", "sep": ["[CLS]", 2], "cls": ["[SEP]", 3]}, 3, 2),
        ({"type": "Sequence", "processors": [make_template("[SEP]", "A", "B", "[CLS]")]}, 3, 2),
    ],
)
def test_the_template_names_cls_and_sep(tmp_path, template, cls, sep):
    loaded = load_vocabulary(write_parts(tmp_path, post_processor=template))
    assert (loaded.special_ids["cls"], loaded.special_ids["sep"]) == (cls, sep)
    assert loaded.template.cls_id == cls


def test_of_two_spellings_the_one_that_the_file_marks_is_right(tmp_path):
    """As in MPNet's file, which has <s>, <pad>, </s> and <mask> and all of BERT's pieces."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *SPECIALS, "a", "##a", "<mask>"]
    id_of = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(id_of, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"])
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    for _ in range(2):  # the second time without a template
        special_ids = load_vocabulary(write(tmp_path, tokenizer)).special_ids
        assert special_ids == {"pad": 1, "unk": 5, "cls": 0, "sep": 2, "mask": len(pieces) - 1}
        tokenizer.post_processor = None


def make_model(name: str, **changes: object) -> dict:
    """The parts of a tokenizer of TOKENIZERS, its model changed."""
    parts = json.loads(TOKENIZERS[name].to_str())
    return parts | {"model": parts["model"] | changes}


UNIGRAM = "unigram, always, split True"
METASPACE = {
    "type": "Metaspace",
    "replacement": "\u2581",
    "prepend_scheme": "always",
    "split": True,
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def cut_first(splitter: dict) -> dict:
    """A splitter that gets words without the spaces between them, as T5's does."""
    steps = [{"type": "WhitespaceSplit"}, splitter]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}


@pytest.mark.parametrize(
    "parts, message",
    [
        (make_model("byte fallback", unk_token=None, byte_fallback=False), "<0xFF>, .* be lost"),
        (make_model(UNIGRAM, unk_id=None), "would be lost"),
        (make_model("BERT", unk_token="[NONE]"), "would be lost"),
        (
            make_model(UNIGRAM) | {"pre_tokenizer": {"type": "Whitespace"}},
            "writes it: .* .Metaspace.",
        ),
        (make_model(UNIGRAM) | cut_first(METASPACE | {"prepend_scheme": "never"}), "writes it: .*"),
        (make_file("roberta") | cut_first(BYTE_LEVEL), "writes it: .* .ByteLevel."),
    ],
)
def test_a_file_that_loses_characters_or_spaces_is_refused(tmp_path, parts, message):
    """The library drops what has no piece, or raises in the middle of a text."""
    with pytest.raises(ValueError, match=message):
        load_vocabulary(write_parts(tmp_path, **parts))


@pytest.mark.parametrize(
    "parts",
    [
        make_model(UNIGRAM) | cut_first(METASPACE),
        make_file("roberta") | cut_first(BYTE_LEVEL | {"add_prefix_space": True}),
        make_model("bytes of unigram"),
    ],
)
def test_a_mark_that_each_word_gets_shows_where_it_begins(tmp_path, parts):
    loaded = load_vocabulary(write_parts(tmp_path, **parts))
    ids, _ = loaded.encode(["bal bal"])
    assert np.count_nonzero(~loaded.is_continuation[ids]) == 2
    assert loaded.decode(ids) == "bal bal"


@pytest.mark.parametrize(
    ("parts", "lstrip"),
    [
        (make_model(UNIGRAM) | cut_first(METASPACE), False),  # XLM-RoBERTa's, ALBERT's
        (make_model(UNIGRAM), False),
        (make_model(UNIGRAM), True),
        (make_file("roberta"), True),
        (make_file("roberta"), False),
    ],
)
def test_a_new_word_begins_a_word_whether_or_not_the_space_before_it_is_a_token(
    tmp_path, parts, lstrip
):
    path = write_parts(tmp_path, **parts)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.add_tokens([AddedToken("new", lstrip=lstrip), AddedToken("one", single_word=True)])
    loaded = load_vocabulary(write(tmp_path, tokenizer))
    ids, _ = loaded.encode(["bal new bal one bal"])
    assert {loaded.pieces().index(word) for word in ("new", "one")} < set(ids.tolist())
    assert np.count_nonzero(~loaded.is_continuation[ids]) == 5 - ("\u0120" in loaded.pieces())


def test_the_models_own_unknown_token_counts_and_bytes_without_the_fallback_lose_characters(
    tmp_path,
):
    """Whatever its name: a piece that is spelled [UNK] may be another."""
    loaded = load_vocabulary(write_parts(tmp_path, **make_model("BERT", unk_token="bal")))
    (ids,) = id_lists(loaded, ["\u0416"])
    assert ids == [loaded.special_ids["unk"]] == [loaded.pieces().index("bal")]
    parts = make_model("byte fallback", byte_fallback=False)
    loaded = load_vocabulary(write_parts(tmp_path, **parts))
    assert loaded.special_ids["unk"] in id_lists(loaded, ["\u0416"])[0]
    assert LostCharacters(loaded).count(["a \u0416"]) == {0x416: 1}


ODD_NAMES = (
    ("<PAD|LLM-jp>", "<unk|LLM-jp>", "<CLS|LLM-jp>", "<SEP|LLM-jp>", "<MASK|LLM-jp>"),
    ("<|pad|>", "<|unk|>", "<bos>", "<eos>", "[mask]"),
)


@pytest.mark.parametrize("names", ODD_NAMES)
def test_roles_are_found_by_the_words_of_tokens_that_are_marked_as_special(tmp_path, names):
    tokenizer = make_bpe_of_words(names=names)
    path = write(tmp_path, tokenizer)
    ids = {role: tokenizer.token_to_id(name) for role, name in zip(ROLES, names, strict=True)}
    assert load_vocabulary(path).special_ids == ids
    parts = json.loads(path.read_text())
    parts["added_tokens"][4]["special"] = False
    with pytest.raises(Refused, match=r"has no piece \[MASK\] or <mask>"):
        load_vocabulary(write_parts(tmp_path, **parts))
    tokenizer.add_special_tokens(["<another mask>"])
    with pytest.raises(Refused, match=r"has no piece \[MASK\] or <mask>"):
        load_vocabulary(write(tmp_path, tokenizer))


@pytest.mark.parametrize(
    ("marks", "decoder"),
    [
        ({}, None),
        ({"prefix": "##"}, tokenizers.decoders.WordPiece(cleanup=False)),
        ({"suffix": "</w>"}, tokenizers.decoders.BPEDecoder()),
    ],
)
def test_pieces_without_spaces_are_joined_as_the_library_joins_them(tmp_path, marks, decoder):
    tokenizer = make_bpe_of_words(**marks)
    loaded = load_vocabulary(write(tmp_path, tokenizer))
    if decoder is not None:
        tokenizer.decoder = decoder
    ids, _ = loaded.encode(["bal vord dem"])
    assert loaded.decode(ids) == tokenizer.decode(ids.tolist())
    assert loaded.kind == "BPE of words"
    assert loaded.marks_words == ("prefix" in marks)
    words = np.count_nonzero(~loaded.is_continuation[ids])
    assert words == (3 if loaded.marks_words else len(ids))
    assert loaded.encode_words(["vord"])[0].tolist() == loaded.encode([" vord"])[0].tolist()
    lost = LostCharacters(loaded).count(["a / w"])  # the text to train on has no w
    assert lost == {ord("/"): 1, ord("w"): 1}


def test_words_that_are_never_cut_are_read_and_none_is_a_special_token(tmp_path):
    pieces = {piece: i for i, piece in enumerate([*SPECIALS, "bal", "dem."])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([*SPECIALS])
    loaded = load_vocabulary(write(tmp_path, tokenizer))
    assert id_lists(loaded, ["bal word dem.", "bal [SEP] [MASK]"]) == [[5, 1, 6], [5, 1, 1]]
    assert (loaded.kind, loaded.decode([5, 6])) == ("WordLevel of words", "bal dem.")


def test_whole_word_masks_need_pieces_that_show_words(tmp_path):
    loaded = load_vocabulary(write(tmp_path, make_bpe_of_words()))
    store = SimpleNamespace(kind="text", load_vocabulary=lambda: loaded)
    options = PretrainOptions(masking="whole_word")
    with pytest.raises(Refused, match=r"'whole_word', and the pieces of .* set it to token"):
        open_examples(store, None, options, 64, 10)


def make_panic() -> dict:
    """A Unigram whose map of characters is none: the library panics as it reads the file."""
    vocab = [[piece, 0.0] for piece in SPECIALS]
    normalizer = {"type": "Precompiled", "precompiled_charsmap": ""}
    model = {"type": "Unigram", "unk_id": 1, "vocab": vocab}
    return {"normalizer": normalizer, "model": model, "pre_tokenizer": None}


def test_a_panic_while_a_file_is_read_is_a_refusal_without_its_text(tmp_path, capfd):
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_vocabulary(write_parts(tmp_path, **make_panic()))
    assert "panicked" not in capfd.readouterr().err


def test_a_panic_while_a_text_is_encoded_is_a_refusal(tmp_path):
    class Panic(BaseException):
        pass

    Panic.__module__ = "pyo3_runtime"

    panic = Panic("index out of bounds"), ValueError, r"a\.json.*'some text'.*index out of bounds"
    for error, raised, words in (
        *(
            panic,
            (KeyboardInterrupt(), KeyboardInterrupt, None),
            (MemoryError(), MemoryError, None),
        ),
    ):
        encode = mock.Mock(side_effect=error)
        with pytest.raises(raised, match=words):
            tokenizer_file.guard(encode, pathlib.Path("a.json"))("some text")


def test_one_sentence_in_a_thousand_is_encoded_as_a_whole_too(tmp_path, monkeypatch):
    """The word cache of a wrong cut ends with the first sentence that differs."""
    monkeypatch.setattr(tokenizer_file, "find_words", lambda text: list(text))
    vocabulary = load_vocabulary(write(tmp_path, TOKENIZERS["BERT"]))
    vocabulary.encode(["a", *["bal word"] * 999])
    with pytest.raises(ValueError, match="bal word"):
        vocabulary.encode(["bal word"])


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
@pytest.mark.parametrize("clean_text", [True, False])
@settings(max_examples=20, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_words_of_all_of_berts_normalizers_have_the_librarys_ids(
    lowercase, strip_accents, clean_text, text
):
    tokenizer = make_wordpiece(BERT(clean_text, True, strip_accents, lowercase), SPLIT())
    tokenizer.encode_special_tokens = True
    for sample in (text, text.replace("0", " ").replace("1", "[E1]"), f"bal{text}word {text}"):
        words = [tokenizer.encode(word).ids for word in tokenizer_file.find_words(sample)]
        assert [i for word in words for i in word] == tokenizer.encode(sample).ids


def encodes_by_word(path: pathlib.Path, data: bytes) -> bool:
    encode = tokenizer_file.load_tokenizer_file(path, data, False).encode
    return isinstance(encode.__self__, WordEncoder)


def test_the_cache_is_for_the_rules_that_are_proven(tmp_path):
    """Not for Chinese words kept together, tokens that are looked for, other normalizers."""
    cached = {"BERT", "cased, accents stripped", "not cleaned"}
    for name, tokenizer in TOKENIZERS.items():
        data = tokenizer.to_str().encode()
        assert encodes_by_word(write(tmp_path, tokenizer), data) == (name in cached), name
    extra = {"id": 340, "content": "bal word", "special": False, "normalized": False}
    ends = {"single_word": False, "lstrip": False, "rstrip": False}
    for changes, is_cached in (
        ({}, True),
        ({"normalizer": {"type": "NFC"}}, True),
        ({"normalizer": {"type": "NFKC"}}, False),
        ({"added_tokens": [extra | ends]}, False),
        ({"added_tokens": [extra | ends | {"content": "bal"}]}, True),
        ({"added_tokens": [extra | ends | {"content": "bal", "lstrip": True}]}, False),
    ):
        data = make_file("roberta")
        data |= changes | {"added_tokens": data["added_tokens"] + changes.get("added_tokens", [])}
        assert encodes_by_word(tmp_path, json.dumps(data).encode()) == is_cached, changes


def test_added_tokens_with_accents_are_decoded_as_themselves(tmp_path):
    """Their letters stand for bytes in other pieces of ByteLevel."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(make_file("roberta")))
    tokenizer.add_tokens(["caf\u00e9", "\u010daj"])
    vocabulary, text = (
        load_vocabulary(write(tmp_path, tokenizer)),
        "\u00e9t\u00e9 caf\u00e9 \u010daj",
    )
    (ids,) = id_lists(vocabulary, [text])
    assert vocabulary.pieces()[ids[-1]] == "\u010daj" and vocabulary.decode(ids) == text


def test_a_token_that_has_no_name_of_its_own_is_an_added_one(tmp_path):
    tokenizer = make_wordpiece(BERT(), SPLIT(), AddedToken("##bal"))
    vocabulary = load_vocabulary(write(tmp_path, tokenizer))
    assert vocabulary.is_continuation[vocabulary.pieces().index("##rd")]
