"""The ids of documents against the tokenizers library and SentencePiece on their whole text."""

import gzip
import json
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from data_pipeline.corpus.lost_characters import LostCharacters
from data_pipeline.vocab import Vocabulary, load_vocabulary, split_ids
from data_pipeline.vocab.byte_level import BYTES
from tests.data_pipeline.encoded import SPECIALS, train_model
from tests.data_pipeline.vocab.test_byte_level import make_file

SENTENCES = [
    "Bal word dem.",
    "Its captain ca\u0301n't.",
    "'s Word",
    "\u0301bal",
    "\u4e2d\u6587\u3002",
    "[SEP] <b>bal [E1] word",
    "a  b <b> c",
    "<pair>",
    "dem word\u00a0bal",
    "12 345!",
]
# Ends and beginnings of all kinds meet.
DOCUMENTS = [
    SENTENCES,
    SENTENCES[::-1],
    SENTENCES[:1],
    *([first, second] for first in SENTENCES for second in SENTENCES),
]

Ids = list[int]
Whole = Callable[[str], Ids]


def check(vocabulary: Vocabulary, whole: Whole, documents: list[list[str]] = DOCUMENTS) -> None:
    flat = [sentence for document in documents for sentence in document]
    ids, lengths = vocabulary.encode_documents(flat, [len(document) for document in documents])
    assert len(lengths) == len(flat) and lengths.sum() == len(ids)
    ends = np.cumsum([0, *map(len, documents)])
    tokens = np.cumsum([0, *lengths])
    for document, first, last in zip(documents, ends[:-1], ends[1:], strict=True):
        assert ids[tokens[first] : tokens[last]].tolist() == whole(" ".join(document)), document


def make_whole(path: pathlib.Path) -> Whole:
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    return lambda text: library.encode(text, add_special_tokens=False).ids


def make_wordpiece(normalizer, splitter, *added: AddedToken) -> tokenizers.Tokenizer:
    letters = sorted(set("".join(SENTENCES).replace(" ", "").lower()))
    pieces = [*SPECIALS, *letters, *(f"##{char}" for char in letters), "bal", "word", "##rd", "wo"]
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.add_special_tokens([*SPECIALS, "[E1]"])
    tokenizer.add_tokens(list(added))
    return tokenizer


def make_unigram(scheme: str, split: bool) -> tokenizers.Tokenizer:
    letters = sorted(set("".join(SENTENCES).replace(" ", "\u2581")))
    scored = [*((piece, 0.0) for piece in SPECIALS), *((char, -9.0) for char in letters)]
    scored += [
        ("\u2581bal", -4.0),
        ("word", -4.5),
        ("\u2581word\u2581dem", -5.0),
        (".\u2581I", -5.0),
    ]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scored, unk_id=1))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("\u2581", prepend_scheme=scheme, split=split)
    tokenizer.add_special_tokens([*SPECIALS, "[E1]"])
    return tokenizer


def make_fallback(prepends: bool) -> tokenizers.Tokenizer:
    """Return BPE as Gemma's (mmBERT's) or, with a mark before each text, Llama's."""
    letters = sorted(set("".join(SENTENCES).replace(" ", "\u2581")) - {"w"})
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*SPECIALS, *bytes_of, *letters, "\u2581b", "al", "\u2581bal", "d\u2581"]
    merges = [("\u2581", "b"), ("a", "l"), ("\u2581b", "al"), ("d", "\u2581")]
    id_of = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(id_of, merges, unk_token="[UNK]", fuse_unk=True, byte_fallback=True)
    )
    marks = [normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581")] * prepends + marks)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.add_special_tokens([*SPECIALS, "[E1]"])
    return tokenizer


BERT = normalizers.BertNormalizer
SPLIT = pre_tokenizers.BertPreTokenizer


def make_bpe_of_words(prefix: str = "", suffix: str = "", names=SPECIALS) -> tokenizers.Tokenizer:
    """Return BPE that is trained on words alone, as the quickstart of tokenizers does."""
    marks = {"continuing_subword_prefix": prefix, "end_of_word_suffix": suffix}
    marks = {name: mark for name, mark in marks.items() if mark}
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=names[1], **marks))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Whitespace()
    given = {"vocab_size": 60, "special_tokens": list(names), "show_progress": False}
    trainer = tokenizers.trainers.BpeTrainer(**given, **marks)
    tokenizer.train_from_iterator([sentence.replace("w", "v") for sentence in SENTENCES], trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in names[2:4]]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{names[2]} $A {names[3]}", special_tokens=ends
    )
    return tokenizer


def make_unigram_of_bytes() -> tokenizers.Tokenizer:
    """Return a Unigram as the documentation of tokenizers trains one, after ByteLevel."""
    scored = [*((piece, 0.0) for piece in SPECIALS), *((char, -9.0) for char in BYTES)]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*scored, ("\u0120bal", -4.0)]))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.add_special_tokens([*SPECIALS, "[E1]"])
    return tokenizer


TOKENIZERS = {
    "BPE of words": make_bpe_of_words(),
    "BPE with ##": make_bpe_of_words(prefix="##"),
    "BPE with </w>": make_bpe_of_words(suffix="</w>"),
    "BERT": make_wordpiece(BERT(), SPLIT()),
    "cased, accents stripped": make_wordpiece(BERT(lowercase=False, strip_accents=True), SPLIT()),
    "not cleaned": make_wordpiece(BERT(clean_text=False, strip_accents=False), SPLIT()),
    "Chinese words": make_wordpiece(BERT(handle_chinese_chars=False), SPLIT()),
    "an added token": make_wordpiece(BERT(), SPLIT(), AddedToken("<b>")),
    "one that takes spaces": make_wordpiece(
        BERT(), SPLIT(), AddedToken("<pair>", lstrip=True, rstrip=True)
    ),
    "one across a space": make_wordpiece(BERT(), SPLIT(), AddedToken("word dem")),
    "one across sentences": make_wordpiece(BERT(), SPLIT(), AddedToken(". Its", normalized=False)),
    "NFKC": make_wordpiece(
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), SPLIT()
    ),
    "white space": make_wordpiece(normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()),
    **{
        f"unigram, {scheme}, split {split}": make_unigram(scheme, split)
        for scheme in ("always", "first", "never")
        for split in (True, False)
    },
    "bytes of unigram": make_unigram_of_bytes(),
    "byte fallback": make_fallback(prepends=False),
    "byte fallback, a mark before each text": make_fallback(prepends=True),
}
BYTE_LEVEL = ["trained", "roberta", "modernbert"]


@pytest.mark.parametrize("name", [*TOKENIZERS, *BYTE_LEVEL])
def test_documents_have_the_librarys_ids(tmp_path, name):
    path = tmp_path / "tokenizer.json"
    text = TOKENIZERS[name].to_str() if name in TOKENIZERS else json.dumps(make_file(name))
    path.write_text(text)
    vocabulary, whole = load_vocabulary(path), make_whole(path)
    check(vocabulary, whole)
    ids, lengths = vocabulary.encode(SENTENCES)
    alone = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert alone == [whole(sentence) for sentence in SENTENCES]


@pytest.mark.parametrize("prepends", [False, True])
def test_a_vocabulary_that_falls_back_to_bytes_marks_words_and_loses_nothing(tmp_path, prepends):
    path = tmp_path / "tokenizer.json"
    path.write_text(make_fallback(prepends).to_str())
    vocabulary = load_vocabulary(path)
    ids, _ = vocabulary.encode(["a balw \u00e9"])
    starts = ["\u2581"] * prepends
    pieces = [*starts, "a", "\u2581bal", "<0x77>", "\u2581", "<0xC3>", "<0xA9>"]
    assert [vocabulary.pieces()[i] for i in ids] == pieces
    assert vocabulary.decode(ids) == "a balw \u00e9"
    continues = {"a", "<0x77>", "<0xC3>", "<0xA9>"}
    assert vocabulary.is_continuation[ids].tolist() == [piece in continues for piece in pieces]
    word, _ = vocabulary.encode_words(["bal"])
    assert [vocabulary.pieces()[i] for i in word] == ["\u2581bal"]
    again, _ = vocabulary.encode(vocabulary.spell(word))
    assert again.tolist() == word.tolist()
    assert LostCharacters(vocabulary).count(["a balw \u00e9"]) == {}


def test_a_token_belongs_to_the_sentence_that_it_begins_in(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZERS["one across sentences"].to_str())
    vocabulary = load_vocabulary(path)
    _, lengths = vocabulary.encode_documents(["bal. ".strip(), "Its", "word"], [3])
    assert lengths.tolist() == [2, 0, 1]  # bal, ". Its"; word


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": ["d\u2581"]},
        {"model_type": "word"},
    ],
)
def test_documents_have_the_ids_of_a_sentencepiece_model(tmp_path, settings):
    specials = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "pad_piece": "[PAD]"}
    names = {"unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    lines = ["bal word dem. its captain"] * 9
    model = train_model(lines, **specials, **names, control_symbols="[MASK]", **settings)
    (tmp_path / "a.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    check(load_vocabulary(tmp_path / "a.model"), processor.Encode)


def write_gpt_neox(folder: pathlib.Path, shared_data: pathlib.Path) -> pathlib.Path:
    """Write GPT-NeoX's tokenizer with ModernBERT's special tokens."""
    file = shared_data / "vocab" / "gpt_neox" / "20B_tokenizer.json.gz"
    library = tokenizers.Tokenizer.from_str(gzip.decompress(file.read_bytes()).decode())
    library.add_special_tokens([AddedToken(name, lstrip=name == "[MASK]") for name in SPECIALS])
    path = folder / "tokenizer.json"
    path.write_text(library.to_str())
    return path


@pytest.mark.slow
def test_gpt_neox_with_modernberts_tokens_has_the_librarys_ids(tmp_path, shared_data):
    """Lines and whole documents; the vocabulary lacks the bytes that UTF-8 never has."""
    path = write_gpt_neox(tmp_path, shared_data)
    lines = (shared_data / "robustness" / "blns.txt").read_text().split("\n")[:300]
    for name in sorted((shared_data / "multilingual").glob("*.gz")):
        with gzip.open(name, "rt", encoding="utf-8") as text:
            lines += [line[9:].strip() for line in text if line.startswith("# text =")][:150]
    vocabulary, whole = load_vocabulary(path), make_whole(path)
    ids, lengths = vocabulary.encode(lines)
    encoded = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    assert encoded == list(map(whole, lines))
    documents = [[s.strip() for s in lines[i : i + 7] if s.strip()] for i in range(0, 600, 7)]
    check(vocabulary, whole, documents)


def test_an_added_token_that_begins_a_sentence_has_the_space_before_it(tmp_path):
    """The space that the file puts before a text joins `a`, and no added token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, "\u0120a"]
    library = tokenizers.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("\u0120", "a")])
    )
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.add_special_tokens(pieces[:5])
    library.add_tokens([AddedToken("<X>", normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    check(
        load_vocabulary(tmp_path / "tokenizer.json"),
        make_whole(tmp_path / "tokenizer.json"),
        [["a b.", "<X>b c.", "a"], ["<X> a", "a<X>", "<X>"]],
    )


def test_ids_are_split_into_those_of_each_text():
    flat, lengths = np.arange(5), np.array([2, 0, 3])
    assert [ids.tolist() for ids in split_ids(flat, lengths)] == [[0, 1], [], [2, 3, 4]]
    assert split_ids(flat[:0], lengths[:0]) == []
