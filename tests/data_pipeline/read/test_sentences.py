"""Sentences are found without losing text."""

import random
import re
from unittest import mock

import pytest
import sentencex

from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sentences import split_sentences
from data_pipeline.read.sources import find_sources


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_sentences_and_lines():
    paragraphs = ["Dr. Smith came at 4 p.m. on Monday. He left.", "And so on"]
    assert split_sentences(paragraphs, TextOptions()) == [
        "Dr. Smith came at 4 p.m. on Monday.",
        "He left.",
        "And so on",
    ]
    assert split_sentences(paragraphs, TextOptions(sentences="lines")) == paragraphs
    chinese = split_sentences(["第一句。第二句。"], TextOptions(language="zh"))
    assert chinese == ["第一句。", "第二句。"]


def test_long_speech_is_cut_inside_its_quotation_marks():
    speech = (
        "“I am tired. ‘Go!’ they said. (It was late.) "
        + "And I went on and on. " * 12
        + "So?” A pause."
    )
    found = split_sentences([speech], TextOptions())
    assert found[:4] == ["“I am tired.", "‘Go!’", "they said.", "(It was late.)"]
    assert found[-2:] == ["So?”", "A pause."]
    assert split_sentences(["“No. Never.” He left."], TextOptions()) == ["“No. Never.”", "He left."]


@pytest.mark.parametrize("name", ["gutenberg/Alice*.gz", "enwiki_wikiextractor/mlperf_wiki_00.gz"])
def test_no_text_is_lost_on_real_files(shared_data, name):
    options = TextOptions("gutenberg" if "gutenberg" in name else "blank_line")
    (source,) = find_sources(str(shared_data / "pretrain" / name), options)
    for paragraphs in read_documents(source, options):
        found = split_sentences(paragraphs, TextOptions())
        assert squeezed("".join(found)) == squeezed("".join(paragraphs))


def test_acronyms_of_hebrew_open_no_quotation():
    sentences = ['צה"ל בא.', "הוא אמר.", 'גם ח"כ לוי.', 'ב"הארץ" נכתב.', 'הוא אמר "כן".', "סוף."]
    assert split_sentences([" ".join(sentences)], TextOptions(language="he")) == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("bo", ["\u0f04\u0f05\u0f0d \u0f0d", "ང་ཅ།", "ང།  །", "ཀ་ཁ་ག༎", "ང"]),
        ("km", ["ខ្ញុំទៅផ្សារ។", "គាត់ទៅសាលា។", "បាទ៕", "ខ"]),
        ("en", ["បាទ។", "“Go.”", "He left."]),
        ("am", ["ሰላም።", "ደህና።"]),
        ("hi", ["यह है।", "वह है॥"]),
    ],
)
@pytest.mark.parametrize("between", ["", " "])
def test_a_full_stop_of_another_script_ends_a_sentence(language, sentences, between):
    if language == "en":
        between = " "
    assert split_sentences([between.join(sentences)], TextOptions(language=language)) == sentences


WIDE_SPACES = "\u0085\u00a0\u1680\u2003\u2009\u2028\u202f\u205f\u3000"


def test_wide_spaces_neither_stop_sentencex_nor_get_lost():
    assert split_sentences(["Plan B\u00a0. He\u00a0left.\u3000So."], TextOptions()) == [
        "Plan B\u00a0.",
        "He\u00a0left.",
        "So.",
    ]
    draw = random.Random(7)
    parts = [*WIDE_SPACES, *' .!?Bé猫。"“”()', "Dr", "cat"]
    for language in ("en", "de", "fr", "ja", "kk"):
        for _ in range(400):
            paragraph = "".join(draw.choices(parts, k=draw.randint(1, 60)))
            found = split_sentences([paragraph], TextOptions(language=language))
            assert squeezed("".join(found)) == squeezed(paragraph), repr(paragraph)


class PanicException(BaseException):
    """Has the name that Rust's bindings use."""


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (PanicException("byte index 2"), ValueError, r"starts with 'It rained.'.*byte index 2"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_a_panic_of_sentencex_is_a_sentence_about_the_text(monkeypatch, error, raised, words):
    monkeypatch.setattr(sentencex, "segment", mock.Mock(side_effect=error))
    with pytest.raises(raised, match=words):
        split_sentences(["It rained."], TextOptions())


LONG_PARAGRAPHS = {
    "English": ("en", "The cat sat. It was late, Dr. Smith said. "),
    "no spaces": ("zh", "第一句很长，没有空格。"),
    "unclosed marks": ("ja", "「猫。"),
    "no sentence's end": ("en", "word and "),
    "no sentence's end, no spaces": ("ja", "猫"),
    "speech": ("en", "“" + "I went. " * 700 + "” He went. "),
    "longer speech": ("en", "“" + "I went. " * 1900 + "” He went. "),
}


@pytest.mark.parametrize("kind", LONG_PARAGRAPHS)
def test_work_is_linear_in_the_length_of_a_paragraph(monkeypatch, kind):
    handed: list[int] = []
    segment = sentencex.segment

    def counted(language: str, text: str) -> list[str]:
        handed.append(len(text))
        return list(segment(language, text))

    monkeypatch.setattr(sentencex, "segment", counted)
    language, unit = LONG_PARAGRAPHS[kind]
    paragraph = (unit * (30_000 // len(unit) + 1))[:30_000]
    found = split_sentences([paragraph], TextOptions(language=language))
    assert squeezed("".join(found)) == squeezed(paragraph)
    assert max(handed) <= 10_000
    assert sum(handed) <= 4 * len(paragraph)  # twice at most, and again without marks


def test_windows_cut_where_the_whole_paragraph_is_cut():
    sentences = [f"Sentence {i} has {'many ' * (i % 7)}words, Mr. Smith said." for i in range(600)]
    assert split_sentences([" ".join(sentences)], TextOptions()) == sentences
    speech = ["“I went."] + [f"Then number {i} went." for i in range(2000)] + ["So?”", "He left."]
    assert split_sentences([" ".join(speech)], TextOptions()) == speech
