"""Folding against Python's own words for it; copies of a document share a hash."""

import re
import unicodedata

import pytest

from data_pipeline.folding import document_hash, folded


def plain(paragraphs: list[str]) -> bytes:
    return re.sub(r"\d", "0", " ".join(" ".join(paragraphs).casefold().split())).encode()


EVERY_CHARACTER = [
    chr(code) for code in range(0x3100) if unicodedata.category(chr(code)) not in ("Cs", "Cn")
]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\x1c\n ",
        "One  TWO\n\x0b\x1fthree 1984 ",
        "Straße  NO. 17 – “Ünïcode”",
        "no-break\u00a0space, ideographic\u3000space, next\u0085line",
        "Arabic-Indic ١٢٣, superscript ², fraction ½, full width １２",
        "İstanbul ΟΔΥΣΣΕΥΣ ﬁ",
    ],
)
def test_folding_is_casefold_split_and_digits(text):
    assert folded([text]) == plain([text])
    assert folded([text, "", text]) == plain([text, "", text])


def test_folding_any_character_alone_or_beside_others():
    for character in EVERY_CHARACTER:
        text = f"A{character}  {character}9"
        assert folded([text]) == plain([text]), hex(ord(character))


def test_the_hash_is_blind_to_case_space_and_digits_only():
    def hash_of(*paragraphs: str) -> int:
        return document_hash(folded(paragraphs))

    original = hash_of("Visit no. 17", "on  Straße 4")
    assert original == hash_of("VISIT NO. 99 ON\tstrasse 5")
    assert original != hash_of("visit no. 1 on strasse 5")
    assert original != hash_of("visit no. 17 on strasse 4.")
    assert 0 <= original < 2**64
