"""Chapters of Project Gutenberg books: a made-up book, and real ones with known chapters."""

import gzip

import pytest

from data_pipeline.read.gutenberg import read_chapters

PATH = "book.txt"
PROSE = (
    "It was a long and _very_ quiet day,\nas the days were in that year. " + "Nothing moved. " * 12
)

PARAGRAPH = " ".join(PROSE.replace("_", "").split())

BOOK = f"""The Project Gutenberg EBook of Days
*** START OF THIS PROJECT GUTENBERG EBOOK
DAYS, BY NOBODY ***

Produced by Nobody


DAYS

CONTENTS

 I. MORNING.
 II. NOON.


PART ONE

THE DAY


CHAPTER I

MORNING

{PROSE}

       *   *   *   *

{PROSE}


CHAPTER II

{PROSE}


EPILOGUE

{PROSE}


FOOTNOTES

   1 Said in jest. {PROSE}


   2 Said in earnest. {PROSE}

End of the Project Gutenberg EBook of Days

*** END OF THIS PROJECT GUTENBERG EBOOK DAYS ***
Licence text.
"""


CHAPTERS_OF_BOOK = [["MORNING", PARAGRAPH, PARAGRAPH], [PARAGRAPH], [PARAGRAPH]]


def test_chapters_of_a_book_without_what_surrounds_them():
    assert list(read_chapters(PATH, BOOK.split("\n"))) == CHAPTERS_OF_BOOK


@pytest.mark.parametrize("needs_license", [True, False])
def test_books_that_were_joined_to_one_file_are_all_read(needs_license):
    """The old small print is a header, too, with its start or without."""
    end = "*END*THE SMALL PRINT! FOR ETEXTS*Ver.04*\n\n"
    book = f"Title\n\n***START**THE SMALL PRINT!**\n\n{end}CHAPTER I\n\n{PROSE}\n"
    assert list(read_chapters(PATH, book.split("\n"))) == [[PARAGRAPH]]
    old = f"Title\n\n{end}CHAPTER I\n\n{PROSE}\n\nEnd of Project Gutenberg's Days\n\nLicense.\n"
    chapters = list(read_chapters(PATH, (old + BOOK + old).split("\n"), needs_license))
    assert chapters == [[PARAGRAPH], *CHAPTERS_OF_BOOK, [PARAGRAPH]]


def test_a_book_with_the_small_print_behind_it_keeps_its_text():
    book = f"{PROSE}\n\nEnd of Project Gutenberg's Days\n\n*END THE SMALL PRINT! FOR ETEXTS*\n"
    assert list(read_chapters(PATH, book.split("\n"))) == [[PARAGRAPH]]
    with pytest.raises(ValueError, match=r"book\.txt is not a book as Project Gutenberg sends"):
        list(read_chapters(PATH, book.split("\n"), needs_license=True))


@pytest.mark.parametrize("lines", [["a wrapped", "line"], ["prose"] * 2000, ["x" * 999] * 1100])
def test_a_book_without_its_license_is_refused_where_it_is_needed(lines):
    with pytest.raises(ValueError, match=r"but book\.txt is not a book as Project Gutenberg sends"):
        list(read_chapters(PATH, lines, needs_license=True))
    assert list(read_chapters(PATH, BOOK.split("\n"), needs_license=True)) == CHAPTERS_OF_BOOK


def test_a_text_without_headings_or_markers_is_one_document():
    assert list(read_chapters(PATH, ["a wrapped", "line", "", "another"])) == [
        ["a wrapped line", "another"]
    ]


LONG = "\n\n".join([PROSE] * 20)


@pytest.mark.parametrize("first", ["", "CONTENTS\n\nErstes Kapitel", "Transcriber's Note\n\nNone."])
@pytest.mark.parametrize("last", ["", "Transcriber's Notes", "INDEX", "FOOTNOTES", "CONCLUSION"])
def test_chapters_without_headings_that_are_known_are_kept(first, last):
    sections = ["EIN BUCH", first, "Erstes Kapitel", LONG, "Zweites Kapitel", LONG, last, PROSE]
    chapters = list(read_chapters(PATH, "\n\n\n\n".join(sections).split("\n")))
    text = [paragraph for chapter in chapters for paragraph in chapter]
    kept = 41 if last in ("", "CONCLUSION") else 40
    assert text.count(PARAGRAPH) == kept
    assert {"Erstes Kapitel", "Zweites Kapitel"} <= {*text}


def parts(numbers: list[list[str]], before: str) -> str:
    """Parts of chapters that are headed by bare numbers, each followed by a title."""
    text = "*** START OF THE PROJECT GUTENBERG EBOOK PARTS ***\n\n\nPARTS\n"
    for part, chapters in zip(("ONE", "TWO", "THREE"), numbers, strict=False):
        text += f"\n\n\nPART {part}--The Title"
        for place, number in enumerate(chapters):
            text += (before if place == 0 else "\n\n\n\n\n") + number + "\n\nA Quiet Day\n\n\n"
            text += PROSE + "\n\n" + PROSE
    return text + "\n\n*** END OF THE PROJECT GUTENBERG EBOOK PARTS ***\n"


@pytest.mark.parametrize(
    "numbers",
    [
        [["1", "2", "3"], ["4", "5"], ["6"]],  # Treasure Island has such headings
        [["1.", "2.", "3."], ["1.", "2."], ["1."]],
        [["1", "2", "4"], ["5", "7"], ["1"]],  # two that a scan lost
        [["  1", "  2", "  3"], ["  4", "  5"], ["  6"]],
        [["I", "II", "III"], ["I", "II"], ["I"]],
    ],
)
@pytest.mark.parametrize("before", ["\n\n\n\n\n", "\n\n"])
def test_chapters_headed_by_bare_numbers_are_not_taken_for_their_part(numbers, before):
    chapters = list(read_chapters(PATH, parts(numbers, before).split("\n")))
    assert chapters == [["A Quiet Day", PARAGRAPH, PARAGRAPH]] * 6


@pytest.mark.parametrize("end", ["。", "。」", "।", "؟", "።", ".»"])
def test_prose_of_any_script_is_a_chapter(end):
    prose = "字" * 300 + end
    book = f"1\n\n{prose}\n\n\n\n2\n\n{prose}"
    assert list(read_chapters(PATH, book.split("\n"))) == [[prose], [prose]]


def test_the_numbers_of_pages_do_not_end_a_chapter():
    page = PROSE + "\n\n\n\n{}\n\n\n" + PROSE
    book = f"PART ONE\n\n\n\n1\n\n{page.format(57)}\n\n\n\n2\n\n{page.format(58)}\n\n2\n\n{PROSE}"
    assert len(list(read_chapters(PATH, book.split("\n")))) == 2


# Chapters as published, and what a book has beside them.
CHAPTERS = {
    "A-Tale-of-Two-Cities_98": 6 + 24 + 15,
    "Adventures-of-Huckleberry-Finn_76": 43,
    "Alice-s-Adventures-in-Wonderland_11": 12,
    "Anna-Karenina_1399": 239,
    "Crime-and-Punishment_2554": 39 + 2 + 1,  # epilogue of two chapters; translator's preface
    "David-Copperfield_766": 64 + 2,  # two prefaces
    "Moby-Dick--Or-The-Whale_2701": 135 + 4,  # note, etymology, extracts, epilogue
    "Pride-and-Prejudice_1342": 61,
    "Sense-and-Sensibility_161": 50,
    "The-Adventures-of-Sherlock-Holmes_1661": 12 + 2,  # the first story has three numbered parts
    "The-Adventures-of-Tom-Sawyer_74": 35 + 1,  # preface
    "The-Brothers-Karamazov_28054": 93 + 3,  # epilogue of three chapters
    "The-Three-Musketeers_1257": 67 + 2,  # preface, epilogue
    "The-Time-Machine_35": 16 + 1,  # epilogue
    "The-War-of-the-Worlds_36": 27,
    "Vanity-Fair_599": 67,
    "War-and-Peace_2600": 365,
    "Wuthering-Heights_768": 34,
}


# Parts that count their chapters anew, prefaces, parts of a chapter with numbers.
QUICK = {
    "A-Tale-of-Two-Cities_98",
    "David-Copperfield_766",
    "The-Adventures-of-Sherlock-Holmes_1661",
}


@pytest.mark.parametrize(
    "book",
    [pytest.param(book, marks=[pytest.mark.slow] * (book not in QUICK)) for book in CHAPTERS],
)
def test_real_books_have_the_chapters_they_are_known_for(shared_data, book):
    path = shared_data / "pretrain" / "gutenberg" / f"{book}.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8-sig").split("\n")
    chapters = list(read_chapters(str(path), lines))
    assert len(chapters) == CHAPTERS[book]
    assert not any(
        "gutenberg" in paragraph.lower() for chapter in chapters[1:] for paragraph in chapter
    )
    text_chars = sum(len(paragraph) for chapter in chapters for paragraph in chapter)
    assert text_chars > 0.85 * sum(map(len, lines))  # what is left out is not the book
