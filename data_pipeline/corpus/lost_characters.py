"""Count the text that a vocabulary loses: characters without a piece, and words too long for it.

A word with such a character, or with too many characters, becomes one unknown token.
"""

import collections
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import MANIFEST
from data_pipeline.vocab import WORD_START, Vocabulary
from data_pipeline.vocab.template import UNUSED

_RECORDED = 100  # most frequent lost characters that a manifest lists
_SHOWN = 6
_NO_LIMIT_CHARS = 1 << 20  # a larger limit counts as none; re repeats at most 2**32 - 2 times


class LostCharacters:
    """Count the characters that a vocabulary lacks."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._normalize = vocabulary.normalize
        if vocabulary.has_all_bytes:
            self._normalize = lambda text: ""
        longest = vocabulary.max_word_chars
        self._max_word_chars = longest if longest < _NO_LIMIT_CHARS else 0
        self._find_long_runs = re.compile(rf"(?<!\S)\S{{{self._max_word_chars + 1},}}").findall
        special = set(vocabulary.special_ids.values())
        self._known = set(WORD_START if vocabulary.has_spaces else "")
        for number, piece in enumerate(vocabulary.pieces()):
            if number not in special and not UNUSED.fullmatch(piece):
                self._known.update(vocabulary.strip_marks(piece))

    def count(self, sentences: Sequence[str]) -> dict[int, int]:
        """Count, by code point, the lost characters of sentences as the vocabulary reads them."""
        text = self._normalize(" ".join(sentences))
        lost = {char for char in set(text) - self._known if not char.isspace()}
        if not lost:
            return {}
        counts = collections.Counter(filter(lost.__contains__, text))
        return {ord(char): count for char, count in counts.items()}

    def count_long_words(self, sentences: Sequence[str]) -> int:
        """Count the characters in words that are too long for WordPiece.

        The count of each run is rounded, so that the sum does not depend on the chunks of a corpus.
        """
        if not self._max_word_chars:
            return 0
        lost_chars = 0
        for run in self._find_long_runs(" ".join(sentences)):
            normalized = self._normalize(run)  # accents and tone marks may be dropped
            words = (len(word) for word, _ in _split_words(normalized))
            long_chars = sum(chars for chars in words if chars > self._max_word_chars)
            lost_chars += round(len(run) * long_chars / max(1, len(normalized)))
        return lost_chars


_split_words = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str


def record_lost_characters(counts: Mapping[int, int]) -> dict[str, Any]:
    """Describe counted characters for a manifest, the most frequent by their code points."""
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "characters": len(counts),
        "occurrences": sum(counts.values()),
        "most_frequent": {f"U+{code:04X}": count for code, count in by_count[:_RECORDED]},
    }


def describe_lost_characters(manifest: Mapping[str, Any]) -> str:
    """Describe the lost characters of a store and their counts; "" if there are none.

    Raises DamagedFile for a key that is not a code point.
    """
    lost = manifest["lost_characters"]
    if not lost["characters"]:
        return ""
    frequent = list(lost["most_frequent"].items())[:_SHOWN]
    try:
        named = ", ".join(f"{_show_character(code)} {count:,}" for code, count in frequent)
    except (ValueError, OverflowError) as error:
        raise DamagedFile(f"{MANIFEST}: 'lost_characters' is not a record of a build") from error
    more = ", ..." if lost["characters"] > len(frequent) else ""
    return f"{lost['characters']:,} unknown, {lost['occurrences']:,} times: {named}{more}"


def _show_character(code: str) -> str:
    """Name a character; show it too if it cannot control a terminal or join its neighbors."""
    char = chr(int(code.removeprefix("U+"), 16))
    is_safe = char.isprintable() and not unicodedata.category(char).startswith("M")
    if is_safe and unicodedata.bidirectional(char) not in ("R", "AL", "AN"):
        return f"{char} ({code})"
    return f"({code})"
