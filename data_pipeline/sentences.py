"""Paragraphs to sentences."""

import re
from collections.abc import Iterable, Iterator

import sentencex  # type: ignore[import-untyped]

from data_pipeline.text_options import TextOptions

# sentencex takes what stands between quotation marks or brackets for one sentence, be it a page.
# Longer ones than this (about 60 tokens) are cut again as if the marks were not there.
_LONG_SENTENCE_CHARS = 250
_MARKS = "\"'“”‘’«»„‚‹›()[]「」『』（）"
_MARK = re.compile(f"[{re.escape(_MARKS)}]")
_CLOSING = re.compile(rf"[{re.escape(_MARKS)}]+(?:\s+|$)")


def sentences_of(paragraphs: Iterable[str], options: TextOptions) -> list[str]:
    """The sentences of a document; none reaches over a paragraph's end.

    With --sentences=lines the paragraphs are lines and each is a sentence. Otherwise sentencex
    finds them, lossless up to the white space around sentences; a language that it has no rules
    for falls back to a related one's or to English.

    Source: sentencex (Wikimedia), see docs/decisions/0002-text-libraries.md.
    """
    if options.sentences == "lines":
        return list(paragraphs)
    return [
        stripped
        for paragraph in paragraphs
        for sentence in _split(paragraph, options.language)
        if (stripped := sentence.strip())
    ]


def _split(paragraph: str, language: str) -> Iterator[str]:
    """Yield the pieces of a paragraph; joined they are the paragraph."""
    for sentence in sentencex.segment(language, paragraph):
        if len(sentence) <= _LONG_SENTENCE_CHARS:
            yield sentence
        else:
            yield from _split_speech(sentence, language)


def _split_speech(speech: str, language: str) -> Iterator[str]:
    """Cut inside quotation marks; a closing mark stays with the sentence that it closes."""
    start, end = 0, 0
    for piece in sentencex.segment(language, _MARK.sub("_", speech)):
        end += len(piece)
        if closing := _CLOSING.match(speech, end):
            yield speech[start : closing.end()]
            start = closing.end()
        elif end > start:
            yield speech[start:end]
            start = end
    if start < len(speech):
        yield speech[start:]
