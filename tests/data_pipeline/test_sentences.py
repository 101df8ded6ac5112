"""Sentences are found without losing text."""

import re

import pytest

from data_pipeline.sentences import sentences_of
from data_pipeline.sources import find_sources
from data_pipeline.text import read_documents
from data_pipeline.text_options import TextOptions


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


def test_sentences_and_lines():
    paragraphs = ["Dr. Smith came at 4 p.m. on Monday. He left.", "And so on"]
    assert sentences_of(paragraphs, TextOptions()) == [
        "Dr. Smith came at 4 p.m. on Monday.",
        "He left.",
        "And so on",
    ]
    assert sentences_of(paragraphs, TextOptions(sentences="lines")) == paragraphs


def test_long_speech_is_cut_inside_its_quotation_marks():
    speech = (
        "“I am tired. ‘Go!’ they said. (It was late.) "
        + "And I went on and on. " * 12
        + "So?” A pause."
    )
    found = sentences_of([speech], TextOptions())
    assert found[:4] == ["“I am tired.", "‘Go!’", "they said.", "(It was late.)"]
    assert found[-2:] == ["So?”", "A pause."]
    assert sentences_of(["“No. Never.” He left."], TextOptions()) == ["“No. Never.”", "He left."]


def test_other_languages_have_other_rules():
    assert sentences_of(["第一句。第二句。"], TextOptions(language="zh")) == [
        "第一句。",
        "第二句。",
    ]


@pytest.mark.parametrize("name", ["gutenberg/Alice*.gz", "enwiki_wikiextractor/mlperf_wiki_00.gz"])
def test_no_text_is_lost_on_real_files(shared_data, name):
    options = TextOptions("gutenberg")
    (source,) = find_sources(str(shared_data / "pretrain" / name), options)
    for paragraphs in read_documents(source, options):
        found = sentences_of(paragraphs, TextOptions())
        assert squeezed("".join(found)) == squeezed("".join(paragraphs))
