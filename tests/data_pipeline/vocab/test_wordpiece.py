"""Ids against plain Python, Google's own and the library's, on whole lines."""

import numpy as np
import pytest
import tokenizers

from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources
from data_pipeline.vocab import load_vocabulary, wordpiece
from data_pipeline.vocab.tokenizer_json import make_tokenizer_json
from tests.data_pipeline import wordpiece_oracle
from tests.data_pipeline.encoded import id_lists, write_list

TRICKY = [
    "Hello, World!  It's naïve caf\u00e9 Ünïcode",
    "a [SEP] b [MASK] [CLS]",
    "力加勝北区 mixed力with",
    "zero\u200bwidth \ufeff soft\u00adhyphen tab\there nb\u00a0space \x07bell",
    "x" * 150 + " " + "y" * 200 + " " + "z" * 201,
    "e\u0301 \u0301alone İstanbul Σίγμα σίγας ǅ ß ﬁ",
    "",
    "   ",
    "$5+3=8 ~`^ §¶ “quotes” – — …",
]


@pytest.mark.parametrize("lowercase", [True, False])
def test_encoding_follows_googles_rules(uncased, tmp_path, lowercase):
    path = uncased
    if not lowercase:
        letters = list("abcehinortuwyHWUIé,!'.")
        pieces = [*letters, *("##" + c for c in letters), "Hello"]
        path = write_list(tmp_path / "vocab.txt", pieces)
    loaded = load_vocabulary(path, lowercase)
    id_of = {piece: i for i, piece in enumerate(loaded.pieces())}
    for line, ids in zip(TRICKY, id_lists(loaded, TRICKY), strict=True):
        assert ids == wordpiece_oracle.encode(line, id_of, lowercase), line


def test_a_final_capital_sigma_is_where_we_differ_from_google(uncased):
    # Python's lower() looks at the word around a sigma, the tokenizers library at the letter alone.
    loaded = load_vocabulary(uncased)
    id_of = {piece: i for i, piece in enumerate(loaded.pieces())}
    assert id_lists(loaded, ["ΑΣ ας"]) == [[id_of[p] for p in ("α", "##σ", "α", "##ς")]]
    assert wordpiece_oracle.encode("ΑΣ", id_of, lowercase=True) == [id_of["α"], id_of["##ς"]]


@pytest.mark.parametrize("name", ["robustness/blns.txt", "pretrain/gutenberg/Alice*.gz"])
def test_the_cache_of_words_changes_nothing_on_real_text(shared_data, uncased, monkeypatch, name):
    monkeypatch.setattr(wordpiece, "_CACHED_WORDS", 500)  # so that it overflows many times
    loaded = load_vocabulary(uncased)
    plain = wordpiece.make_wordpiece_tokenizer(loaded.pieces(), "[UNK]", lowercase=True)
    options = TextOptions(sentences="lines")
    (source,) = find_sources(str(shared_data / name), options)
    for document in read_documents(source, options):
        expected = [plain.encode(line, add_special_tokens=False).ids for line in document]
        assert id_lists(loaded, document) == expected
        assert id_lists(loaded, document) == expected  # again, from the cache


def test_googles_golden_ids_are_stretches_of_ours(shared_data, uncased):
    golden = shared_data / "golden" / "google_bert_instances"
    loaded = load_vocabulary(uncased)
    sep, pad = loaded.special_ids["sep"], loaded.special_ids["pad"]
    options = TextOptions(sentences="lines")
    (source,) = find_sources(str(golden / "sample_text.txt"), options)
    documents = read_documents(source, options)
    ours = [
        b"".join(np.array(ids, ">i4").tobytes() for ids in id_lists(loaded, d)) for d in documents
    ]
    rows = np.load(golden / "sample_text.s128.p20.dupe5.seed12345.npz")
    unmasked = rows["input_ids"].copy()
    for row, positions, ids, weights in zip(
        unmasked,
        rows["masked_lm_positions"],
        rows["masked_lm_ids"],
        rows["masked_lm_weights"],
        strict=True,
    ):
        row[positions[weights > 0]] = ids[weights > 0]
        ends = np.flatnonzero(row == sep)
        for segment in (row[1 : ends[0]], row[ends[0] + 1 : ends[1]]):
            assert any(segment.astype(">i4").tobytes() in document for document in ours)
        assert (row[ends[1] + 1 :] == pad).all()


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_no_character_of_unicode_is_cut_off_where_the_library_keeps_a_word(tmp_path, lowercase):
    pieces = ["a", "##b", "b", *([] if lowercase else ["B"])]
    loaded = load_vocabulary(write_list(tmp_path / "vocab.txt", pieces), lowercase)
    plain = wordpiece.make_wordpiece_tokenizer(loaded.pieces(), "[UNK]", lowercase)
    lines = [f"ab{chr(c)}b\u0301" for c in range(0x11000) if not 0xD800 <= c < 0xE000]
    expected = plain.encode_batch_fast(lines, add_special_tokens=False)
    ours = id_lists(loaded, lines)
    for line, ids, encoding in zip(lines, ours, expected, strict=True):
        assert ids == encoding.ids, hex(ord(line[2]))


def test_large_vocabularies_have_wider_ids(tmp_path):
    path = write_list(tmp_path / "vocab.txt", (f"w{i}" for i in range(1 << 16)))
    ids, lengths = load_vocabulary(path).encode(["w0 w65535", "", "w7"])
    assert (ids.dtype, ids.tolist()) == (np.uint32, [5, 65540, 12])
    assert (lengths.dtype, lengths.tolist()) == (np.int64, [2, 0, 1])


@pytest.mark.parametrize("char", ["\ue000", "\U000f0000", "\U0010fffd"])
def test_private_use_characters_are_dropped_as_hugging_face_drops_them(tmp_path, char):
    vocabulary = load_vocabulary(write_list(tmp_path / "vocab.txt", ["ab", "##c"]))
    theirs = tokenizers.Tokenizer.from_str(make_tokenizer_json(vocabulary))
    for text in (f"a{char}b", char, f"ab {char} abc"):
        ids, _ = vocabulary.encode([text])
        assert vocabulary.special_ids["unk"] not in ids
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
