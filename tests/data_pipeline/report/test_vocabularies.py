"""The comparison of vocabularies against counts by tokenizers and sentencepiece alone."""

import pathlib
import re
import types
from collections.abc import Callable

import numpy as np
import pytest
import sentencepiece
import tokenizers

from data_pipeline import build
from data_pipeline.report import vocabularies
from tests.data_pipeline.encoded import train_model, write_list
from tests.data_pipeline.vocab.test_byte_level import write_two_files
from tests.data_pipeline.vocab.test_documents import TOKENIZERS, make_whole

# Capitals, a ligature, an accent in two spellings, a rare letter, punctuation, Chinese.
DOCUMENTS = [
    "bal word Dem. its captain's",
    "word word balword \ufb01ne e\u0301t \u00e9t",
    "q q \u03b2al (bal) 12 \u4e2d\u6587",
    "wo",
]
WORDS = re.findall("[\u4e2d\u6587]|[^ .'()\n\u4e2d\u6587]+", "\n".join(DOCUMENTS))
LETTERS = "abcdefghijklmnoprstuvwxyz\u00e9\u0301.'()12"  # no q


Ids = Callable[[str], list[int]]


@pytest.fixture
def libraries(tmp_path) -> dict[str, tuple[pathlib.Path, Ids, str]]:
    """Each file with the encoder of its library, and the mark before a word behind a space."""
    kinds = {}
    for name, letters in (("uncased", LETTERS), ("cased", LETTERS + "DXYZ")):
        pieces = [*letters, *(f"##{char}" for char in letters), "bal", "word", "wo", "##rd"]
        path = write_list(tmp_path / f"{name}.txt", pieces)
        library = tokenizers.BertWordPieceTokenizer(
            str(path), lowercase=name == "uncased", strip_accents=name == "uncased"
        )
        kinds[name] = path, make_plain(library), ""
    for name in ("byte fallback", "BERT", "unigram, always, split True"):
        path = tmp_path / f"{name.split(',')[0]}.json"
        path.write_text(TOKENIZERS[name].to_str())
        kinds[name] = path, make_whole(path), " " * (name == "byte fallback")
    path = write_two_files(tmp_path)
    merges = path.with_name("merges.txt")
    library = tokenizers.ByteLevelBPETokenizer(str(path), str(merges), add_prefix_space=False)
    kinds["vocab.json"] = path, make_plain(library), " "
    names = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    model = train_model([*DOCUMENTS[:2]] * 9, control_symbols="[MASK]", **names, **ids)
    path = tmp_path / "a.model"
    path.write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    kinds["model"] = path, processor.Encode, ""
    return kinds


def make_plain(library) -> Ids:
    return lambda text: library.encode(text, add_special_tokens=False).ids


@pytest.fixture
def compare(tmp_path, capsys, monkeypatch):
    """The command on the documents: the rows of its table by their labels."""
    monkeypatch.setenv("COLUMNS", "200")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(DOCUMENTS))

    def compare(paths):
        before = sorted(tmp_path.iterdir())
        flags = ["--documents=line", "--sentences=lines", f"--compare_vocabs={', '.join(paths)}"]
        assert build.main([f"--input={text}", *flags]) == 0
        assert sorted(tmp_path.iterdir()) == before
        printed = capsys.readouterr()
        assert printed.err == "" and "4 documents, 20 words, " in printed.out
        lines = (line.split("  ") for line in printed.out.split("\n"))
        cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        return {row[0]: row[1:] for row in cells if len(row) > 2}

    return compare


def test_columns_are_the_counts_of_the_libraries(compare, libraries):
    rows = compare(str(path) for path, _, _ in libraries.values())
    lengths = [[len(ids(document)) for document in DOCUMENTS] for _, ids, _ in libraries.values()]
    assert rows["tokens per word"] == [f"{sum(L) / len(WORDS):.3f}" for L in lengths]
    cut = [
        np.mean([len(ids(mark + word)) > 1 for word in WORDS])
        for _, ids, mark in libraries.values()
    ]
    assert rows["words cut into pieces"] == [f"{share:.1%}" for share in cut]
    filled = [sum(L) + 2 * len(L) for L in lengths]  # [CLS] and [SEP]
    assert rows["rows of 128 tokens filled"] == [
        f"{n / (len(DOCUMENTS) * 128):.1%}" for n in filled
    ]
    assert rows["with 8 packed in a row"] == [f"{n / 128:.1%}" for n in filled]


def test_characters_are_lost_to_the_unknown_token_or_by_normalization(compare, libraries):
    """Counted by hand, of 62 characters that are no white space.

    The lists have no q, \u03b2al, \ufb01ne and Chinese: 10 characters of unknown words; the uncased
    one drops a capital and two accents. The model lacks 9 characters and writes \ufb01 as fi.
    """
    chosen = ("uncased", "cased", "byte fallback", "vocab.json", "model")
    rows = compare(str(libraries[name][0]) for name in chosen)
    unknown, changed = (10, 10, 0, 0, 9), (3, 0, 0, 0, 1)
    for label, counts in (("unknown", unknown), ("changed", changed)):
        shares = [f"{count / 62:.3%}" if count else "0" for count in counts]
        assert rows[f"characters {label}"] == shares


class CountedText(str):
    """A text that counts how often its length is taken."""

    taken = 0

    def __len__(self):
        CountedText.taken += 1
        return super().__len__()


def test_the_seconds_do_not_grow_with_the_square_of_short_documents():
    def encode_documents(sentences, counts):
        return np.zeros(len(sentences), int), np.ones(len(sentences), int)

    vocabulary = types.SimpleNamespace(size=9, encode_documents=encode_documents)
    documents = [[CountedText("a")] for _ in range(100)]
    assert vocabularies._encode(vocabulary, documents, lambda chars: None).documents == 100
    assert CountedText.taken == 100


def test_a_tokenizer_that_cannot_be_run_is_named_before_the_text_is_read(tmp_path, capsys):
    words = tokenizers.Tokenizer(tokenizers.models.BPE(dropout=0.5))
    words.save(str(tmp_path / "words.json"))
    flags = [f"--compare_vocabs={tmp_path}/words.json", f"--input={tmp_path}/absent.txt"]
    assert build.main(flags) == 2
    error = capsys.readouterr().err
    assert f"--compare_vocabs has {tmp_path}/words.json, whose rules cannot be followed" in error
