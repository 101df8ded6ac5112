"""Split paragraphs into sentences by sentencex (Wikimedia), in time linear in their length."""

import re
from collections.abc import Iterable, Iterator

import sentencex  # type: ignore[import-untyped]

from data_pipeline.io import Refused
from data_pipeline.read.options import TextOptions

# sentencex treats text between quotation marks or brackets as one sentence, however long it is.
# Sentences longer than this (about 60 tokens) are split again as if the marks were not there.
_LONG_SENTENCE_CHARS = 250
_MARKS = "\"'“”‘’«»„‚‹›()[]「」『』（）"
_MARK = re.compile(f"[{re.escape(_MARKS)}]")
_CLOSING = re.compile(rf"[{re.escape(_MARKS)}]+(?:\s+|$)")
# sentencex is quadratic in a text without spaces or with an unclosed mark: it is run on windows.
_WINDOW_CHARS = 10_000
# The mark before the last letter of a Hebrew acronym is no quotation mark.
_GERSHAYIM = re.compile('"(?<=[\u05d0-\u05ea]")(?=[\u05d0-\u05ea](?![\u05d0-\u05ea"]))')
# sentencex panics on some of these: it cuts "B\u00a0." in the middle of the space's two bytes.
_WIDE_SPACES = "".join(c for c in map(chr, range(0x80, 0x3001)) if c.isspace())
# Tibetan and Khmer full stops, which sentencex takes for letters; the last of a row of shads ends.
_SHAD = re.compile("\u0f0d(?!\\s*\u0f0d)")
_FULL_STOPS, _DANDA = "\u0f0e\u17d4\u17d5", "\u0964"


def split_sentences(paragraphs: Iterable[str], options: TextOptions) -> list[str]:
    """Return the sentences of a document; no sentence crosses the end of a paragraph.

    With --sentences=lines the paragraphs are lines and each is a sentence. Otherwise sentencex
    finds them, and only the white space around sentences is lost; a language that it has no rules
    for falls back to a related language or to English. Work is linear in a paragraph's length.
    Raises Refused if sentencex fails on a paragraph.

    Source: sentencex (Wikimedia), see decision 2.
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
    for sentence in _pieces(paragraph, language):
        if len(sentence) <= _LONG_SENTENCE_CHARS:
            yield sentence
        else:
            yield from _split_speech(sentence, language)


def _split_speech(speech: str, language: str) -> Iterator[str]:
    """Cut inside quotation marks; a closing mark stays with the sentence that it closes."""
    start, end = 0, 0
    for piece in _pieces(_MARK.sub("_", speech), language):
        end += len(piece)
        if closing := _CLOSING.match(speech, end):
            yield speech[start : closing.end()]
            start = closing.end()
        elif end > start:
            yield speech[start:end]
            start = end
    if start < len(speech):
        yield speech[start:]


def _pieces(text: str, language: str) -> Iterable[str]:
    """Return the sentences of a text that sentencex finds; joined they are the text."""
    plain = text
    if not text.isascii():
        plain = _GERSHAYIM.sub("\u05f4", plain)
        for space in _WIDE_SPACES:  # each is looked for, and seldom there
            plain = plain.replace(space, " ")
        for stop in _FULL_STOPS:
            plain = plain.replace(stop, _DANDA)
        plain = _SHAD.sub(_DANDA, plain)
    if len(plain) > _WINDOW_CHARS:
        return _cut(text, _lengths(plain, language))
    pieces = _segments(plain, language)
    return pieces if plain == text else _cut(text, map(len, pieces))


def _cut(text: str, lengths: Iterable[int]) -> Iterator[str]:
    start = 0
    for length in lengths:
        yield text[start : start + length]
        start += length


def _lengths(text: str, language: str) -> Iterator[int]:
    """Yield the characters of each sentence of a long text; their sum is the text's length.

    The last sentence of a window may be incomplete, so the next window starts with it. If it fills
    half a window, it is instead joined to the first sentence of the next window.
    """
    start, carried = 0, 0
    while start < len(text):
        window = text[start : start + _WINDOW_CHARS]
        lengths = list(map(len, _segments(window, language)))
        start += len(window)
        unfinished = 0
        if start < len(text):
            unfinished = lengths.pop()
            if unfinished <= _WINDOW_CHARS // 2:
                start -= unfinished
                unfinished = 0
        for length in lengths:
            yield carried + length
            carried = 0
        carried += unfinished
    if carried:
        yield carried


def _segments(text: str, language: str) -> list[str]:
    try:
        return list(sentencex.segment(language, text))
    except BaseException as error:  # a Rust panic is not an Exception; its class has no module
        if type(error).__name__ != "PanicException":
            raise
        raise Refused(
            f"sentencex cannot find the sentences of a text that starts with {text[:60]!r} "
            f"({error}); change that text, or give one sentence per line with --sentences=lines"
        ) from error
