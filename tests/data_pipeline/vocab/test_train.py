"""Trained vocabularies: BERT's layout, the size asked for, the same bytes in every run."""

import collections
import hashlib
import pathlib
import re
import subprocess
import sys

import pytest

from data_pipeline.read.cleaning import CleaningOptions
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources
from data_pipeline.vocab import load_vocabulary, train
from data_pipeline.vocab.train import read_training_documents, train_vocabulary
from tests.data_pipeline.multilingual import sentences

# Many pairs of characters are equally frequent: what ties are broken by shows in the result.
TEXT = [f"{a}{b}{c}{d} Été {a}{c}!" for a in "bcdf" for b in "aeiou" for c in "lmnr" for d in "xyz"]
SIZES = {"wordpiece": 180, "unigram": 110, "bpe": 150}
TRAIN = "from tests.data_pipeline.vocab import test_train; print(*test_train.hash_trained())"


def wordpieces(read_text, size, lowercase, coverage=None) -> list[str]:
    trained = train_vocabulary("wordpiece", read_text, size, lowercase, 0, coverage)
    return trained.file_bytes.decode().split("\n")[:-1]


def test_wordpiece_has_berts_layout_and_the_size_asked_for():
    pieces = wordpieces(lambda: TEXT, 180, lowercase=True)
    assert len(pieces) == len(set(pieces)) == 180
    assert pieces[0] == "[PAD]"
    assert pieces[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert pieces[1:100] == [f"[unused{i}]" for i in range(99)]
    alphabet = sorted({c for c in "!tebcdfaeioulmnrxyz"})
    assert pieces[104 : 104 + len(alphabet)] == alphabet
    assert "##!" not in pieces  # punctuation never continues a word


def test_ascii_is_kept_however_rare_and_other_rare_characters_are_not():
    text = ["word " * 4000, "7 (x) \u0411"]
    pieces = wordpieces(lambda: text, 121, lowercase=True)
    assert {"7", "(", "x"} <= set(pieces)
    assert "\u0431" not in pieces


# Ten curly quotes in 68,000 characters: as in a novel, fewer than one in 2,000. U+2581 is a
# character to WordPiece, and SentencePiece's space.
RARE = "\u2019 \u0434 \u2581"
NOVEL = TEXT * 20 + [RARE] * 10


@pytest.mark.parametrize(
    "kind, asked, small, taken",
    [
        *(("wordpiece", None, 1.0, 1), ("wordpiece", None, 0.01, 0.9995), ("unigram", 1, 0.01, 1)),
        *(("unigram", None, 0.01, 0.9995), ("bpe", None, 1.0, 1), ("bpe", 0.99, 1.0, 0.99)),
    ],
)
def test_rare_characters_have_pieces_where_the_alphabet_is_small(
    tmp_path, monkeypatch, kind, asked, small, taken
):
    monkeypatch.setattr(train, "_SMALL_ALPHABET", small)  # share of the vocabulary
    trained = train_vocabulary(kind, lambda: NOVEL, SIZES[kind], True, 0, asked)
    assert trained.character_coverage == taken
    vocabulary = read_trained(tmp_path, kind, trained.file_bytes)
    ids, _ = vocabulary.encode([RARE])
    assert (vocabulary.special_ids["unk"] in ids) == (taken < 1)


def hash_trained() -> list[str]:
    return [
        hashlib.sha256(train_vocabulary(kind, lambda: TEXT, size, True).file_bytes).hexdigest()
        for kind, size in SIZES.items()
    ]


@pytest.mark.slow
def test_another_process_trains_the_same_bytes():
    root = pathlib.Path(__file__).parents[3]
    there = subprocess.check_output([sys.executable, "-c", TRAIN], cwd=root, text=True)
    assert there.split() == hash_trained()


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_reserved_pieces_follow_the_special_ones_and_no_text_holds_them(tmp_path, kind):
    plain, more = (
        read_trained(tmp_path, kind, trained(kind, TEXT, size, True, reserved))
        for size, reserved in ((150, 0), (153, 3))
    )
    first = 99 if kind == "wordpiece" else 0
    after = more.special_ids["mask"] + 1
    names = [f"[unused{first + i}]" for i in range(3)]
    assert more.pieces()[after : after + 3] == names
    assert more.pieces()[after + 3 :] == plain.pieces()[after:]
    ids, _ = more.encode([*names, " ".join(names)])
    assert not set(range(after, after + 3)) & set(ids.tolist())


def trained(kind: str, texts: list[str], *settings) -> bytes:
    return train_vocabulary(kind, lambda: texts, *settings).file_bytes


def read_trained(folder: pathlib.Path, kind: str, file_bytes: bytes, lowercase: bool = True):
    path = folder / ("vocab.txt" if kind == "wordpiece" else "vocab.model")
    path.write_bytes(file_bytes)
    return load_vocabulary(path, lowercase)


def test_each_chinese_character_is_a_piece_and_sentencepiece_joins_them(shared_data, tmp_path):
    text = sentences(shared_data, "zh")
    pieces = wordpieces(lambda: text, 2200, lowercase=True)
    chinese = [p for p in pieces if any("\u4e00" <= c <= "\u9fff" for c in p)]
    assert len(chinese) > 1000
    assert {len(p) for p in chinese} == {1}
    model = read_trained(tmp_path, "unigram", trained("unigram", text, 2500, True))
    joined = [p for p in model.pieces() if re.fullmatch("[\u4e00-\u9fff]{2,}", p)]
    assert len(joined) > 300
    ids, _ = model.encode(text)
    words = ~model.is_continuation[ids]
    assert words.sum() > 0.8 * len(ids)  # no sentence is one word to whole-word masks


def test_a_text_without_sentences_or_spaces_is_read_to_its_end(tmp_path):
    """SentencePiece alone skips a text of more than 65,536 bytes, or with a block of U+2585."""
    long = "".join(TEXT).replace(" ", "") * 24 + "\u2585" + "\u0e01\u0e02\u0e03" * 400
    model = read_trained(tmp_path, "bpe", trained("bpe", ["ab", long], 100, True))
    assert "\u0e03" in "".join(model.pieces())


@pytest.mark.parametrize(
    "kind, size, sentence",
    [
        ("wordpiece", 120, r"--vocab_size is 120, too small: .* takes 104 .* give 139 or more"),
        *(
            (kind, size, rf"--vocab_size is {size}, too small: .* take \d+; give more")
            for kind, size in (("bpe", 20), ("bpe", 4), ("unigram", 1))
        ),
        *(
            (kind, 5000, r"--vocab_size is 5000, but the text yields no more than \d+ pieces")
            for kind in SIZES
        ),
    ],
)
def test_sizes_that_the_text_cannot_fill_or_fit_are_refused(kind, size, sentence):
    with pytest.raises(ValueError, match=sentence):
        train_vocabulary(kind, lambda: TEXT, size, lowercase=True)


@pytest.mark.parametrize("kind", SIZES)
def test_the_size_that_a_refusal_names_can_be_trained(kind):
    """A small vocabulary leaves out rare characters by default, and then has fewer pieces."""
    text = [*TEXT, "\u03b1\u03b2\u03b3\u03b4\u03b5\u03b6\u03b7\u03b8"]
    with pytest.raises(ValueError, match="no more than") as error:
        train_vocabulary(kind, lambda: text, 5000, lowercase=True)
    size, coverage = re.findall(r"(?:--vocab_size|_coverage)=([\d.]+\d)", str(error.value))
    train_vocabulary(kind, lambda: text, int(size), True, 0, float(coverage))


def test_every_file_gives_an_equal_share_of_the_text(tmp_path):
    for name, lines in (("a", 1000), ("b", 1000), ("c", 3)):
        (tmp_path / name).write_text("".join(f"{name} {i:07d}\n\n" for i in range(lines)))
    sources = find_sources(f"{tmp_path}/*", TextOptions())
    read = read_training_documents(sources, TextOptions(), CleaningOptions(), limit_chars=300)
    assert collections.Counter(line[0] for lines in read for line in lines) == {
        "a": 12,
        "b": 12,
        "c": 3,
    }
