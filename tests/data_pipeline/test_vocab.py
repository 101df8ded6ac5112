"""Encoding against plain Python and Google's own ids; vocabularies that must be refused."""

import pathlib

import numpy as np
import pytest

from data_pipeline import vocab
from data_pipeline.sources import find_sources
from data_pipeline.text import read_documents
from data_pipeline.text_options import TextOptions
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab_training import train_sentencepiece
from tests.data_pipeline import wordpiece_oracle

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
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


@pytest.fixture(scope="module")
def uncased() -> pathlib.Path:
    path = pathlib.Path(__file__).parents[3] / "shared/data/vocab/bert-base-uncased/vocab.txt"
    if not path.is_file():
        pytest.skip("needs ../shared/data/vocab/bert-base-uncased/vocab.txt")
    return path


@pytest.fixture(scope="module")
def sentencepiece_path(tmp_path_factory) -> pathlib.Path:
    words = [f"{a}{b}{c} Word {a}{c}." for a in "bcdf" for b in "aeiou" for c in "lmnr"]
    path = tmp_path_factory.mktemp("model") / "small.model"
    path.write_bytes(train_sentencepiece(lambda: words, 99, lowercase=True))
    return path


def write(directory: pathlib.Path, pieces: list[str]) -> pathlib.Path:
    path = directory / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


def test_encoding_follows_googles_rules(uncased):
    loaded = load_vocabulary(uncased)
    id_of = {piece: i for i, piece in enumerate(loaded.pieces())}
    for line, ids in zip(TRICKY, loaded.encode(TRICKY), strict=True):
        assert ids == wordpiece_oracle.encode(line, id_of, lowercase=True), line


def test_a_final_capital_sigma_is_where_we_differ_from_google(uncased):
    # Python's lower() looks at the word around a sigma, the tokenizers library at the letter alone.
    loaded = load_vocabulary(uncased)
    id_of = {piece: i for i, piece in enumerate(loaded.pieces())}
    assert loaded.encode(["ΑΣ ας"]) == [[id_of[p] for p in ("α", "##σ", "α", "##ς")]]
    assert wordpiece_oracle.encode("ΑΣ", id_of, lowercase=True) == [id_of["α"], id_of["##ς"]]


def test_encoding_of_a_cased_list_keeps_case_and_accents(tmp_path):
    letters = list("abcehinortuwyHWUIé,!'.")
    path = write(tmp_path, [*SPECIALS, *letters, *("##" + c for c in letters), "Hello"])
    loaded = load_vocabulary(path, lowercase=False)
    id_of = {piece: i for i, piece in enumerate(loaded.pieces())}
    for line, ids in zip(TRICKY, loaded.encode(TRICKY), strict=True):
        assert ids == wordpiece_oracle.encode(line, id_of, lowercase=False), line


@pytest.mark.parametrize("name", ["robustness/blns.txt", "pretrain/gutenberg/Alice*.gz"])
def test_the_cache_of_chunks_changes_nothing_on_real_text(shared_data, uncased, monkeypatch, name):
    monkeypatch.setattr(vocab, "_CACHED_CHUNKS", 500)  # so that it overflows many times
    loaded = load_vocabulary(uncased)
    plain = vocab.wordpiece_tokenizer(loaded.pieces(), "[UNK]", lowercase=True)
    options = TextOptions(sentences="lines")
    (source,) = find_sources(str(shared_data / name), options)
    for document in read_documents(source, options):
        expected = [plain.encode(line, add_special_tokens=False).ids for line in document]
        assert loaded.encode(document) == expected
        assert loaded.encode(document) == expected  # again, from the cache


def test_googles_golden_ids_are_stretches_of_ours(shared_data, uncased):
    golden = shared_data / "golden" / "google_bert_instances"
    loaded = load_vocabulary(uncased)
    sep, pad = loaded.special_ids["sep"], loaded.special_ids["pad"]
    options = TextOptions(sentences="lines")
    (source,) = find_sources(str(golden / "sample_text.txt"), options)
    documents = read_documents(source, options)
    ours = [b"".join(np.array(ids, ">i4").tobytes() for ids in loaded.encode(d)) for d in documents]
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


def test_what_a_wordpiece_list_says_of_itself(uncased):
    loaded = load_vocabulary(uncased)
    assert (loaded.kind, loaded.size, loaded.lowercase) == ("wordpiece", 30522, True)
    assert loaded.special_ids == {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
    assert loaded.pieces()[1996] == "the"
    assert loaded.is_continuation.dtype == bool
    assert loaded.is_continuation.sum() == sum(p.startswith("##") for p in loaded.pieces())
    assert loaded.decode(loaded.encode(["Unaffable words"])[0]) == "unaffable words"
    assert loaded.decode(np.array([101, 1996], np.uint16)) == "[CLS] the"


def test_what_a_sentencepiece_model_says_of_itself(sentencepiece_path):
    loaded = load_vocabulary(sentencepiece_path, lowercase=False)  # the model knows better
    assert (loaded.kind, loaded.size, loaded.lowercase) == ("sentencepiece", 99, True)
    assert loaded.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    (ids, empty, literal) = loaded.encode(["BAL word dem", " ", "[MASK]"])
    assert loaded.decode(ids) == "bal word dem"
    assert empty == []
    assert 4 not in literal
    assert loaded.decode(np.array(ids, np.uint16)) == "bal word dem"
    starts = [i for i in ids if not loaded.is_continuation[i]]
    assert len(starts) == 3
    assert not loaded.is_continuation[:5].any()


@pytest.mark.parametrize(
    "pieces, sentence",
    [
        (
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"],
            r"vocab\.txt has no piece \[MASK\] among its 5",
        ),
        ([*SPECIALS, "a", "b", "a"], r"the piece 'a' twice, in lines 6 and 8"),
        ([*SPECIALS, "", "b", "", "c"], r"the piece '' twice, in lines 6 and 8"),
        (
            [*SPECIALS, "The", "House", "a"],
            r"--lowercase is true, but 2 of the 8 .*lowercase=false",
        ),
    ],
)
def test_lists_that_do_not_work_are_refused(tmp_path, pieces, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_vocabulary(write(tmp_path, pieces))


def test_an_uncased_list_is_refused_where_case_is_kept(uncased):
    with pytest.raises(ValueError, match=r"--lowercase is false, but .* no piece with a capital"):
        load_vocabulary(uncased, lowercase=False)


def test_files_that_are_no_vocabulary_are_refused(tmp_path, sentencepiece_path):
    with pytest.raises(ValueError, match=r"--vocab is .*none\.txt, which is not a file"):
        load_vocabulary(tmp_path / "none.txt")
    bad = tmp_path / "bad.model"
    bad.write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"bad\.model ends in \.model but is not a SentencePiece"):
        load_vocabulary(bad)
    renamed = tmp_path / "vocab.txt"
    renamed.write_bytes(sentencepiece_path.read_bytes())
    with pytest.raises(ValueError, match=r"not a UTF-8 list of pieces .*ends in \.model"):
        load_vocabulary(renamed)
