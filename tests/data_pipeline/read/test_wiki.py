"""WikiExtractor's <doc> files in all of their variants."""

import time

import pytest

from data_pipeline.io import Refused
from data_pipeline.read.wiki import read_articles


def read(text: str) -> list[list[str]]:
    return list(read_articles("a", text.split("\n")))


@pytest.mark.parametrize(
    ("tag", "title"),
    [
        ('<doc id="1" url="https://x/?curid=1" title="Town">', "Town"),
        ('<doc id="1" url="u" title="Town" language="en" revision="70">', "Town"),  # cirrus
        ('<doc id="1" revid="9" url="u?a>b" title="a > b">', "a > b"),
        ('<doc id="1" url="u" title=""Heroes"">', '"Heroes"'),
        ('<doc id="1" title=""Heroes" (album)" language="en">', '"Heroes" (album)'),
        ('<doc id="1" title="AT&amp;T">', "AT&T"),
        ("<doc id='1' title='Town'>", "Town"),
        ('<doc id="1">', "none"),
    ],
)
def test_the_title_in_any_tag_is_dropped_from_the_text(tag, title):
    repeated = title.replace("&", "&amp;")
    assert read(f"{tag}\n{repeated}\n\nText.\n{repeated}\n</doc>") == [
        [title] * (title == "none") + ["Text.", title]
    ]


def test_the_escapes_of_version_3_are_undone_once():
    escaped = 'He wrote "R&amp;D", 1 &lt; 2, &amp;lt; and &copy;, or &lt;/doc&gt;.'
    assert read(f'<doc id="1" title="T">\nT\n\n{escaped}\n</doc>') == [
        ['He wrote "R&D", 1 < 2, &lt; and &copy;, or </doc>.']
    ]


def test_glued_tags_are_documents_of_their_own():
    glued = "".join(
        f'<doc id="{i}" title="T{i}">\nT{i}\n\nText {i}. A > B.\n</doc>' for i in range(3)
    )
    assert read(glued) == [[f"Text {i}. A > B."] for i in range(3)]
    assert read('<doc id="1" title="T">T\nText.</doc> <doc id="2" title="U">U</doc>') == [
        ["Text."],
        [],
    ]
    assert read('<doc id="1" title="T">\nA </doc> in a text.\n</doc>') == [["A </doc> in a text."]]


def test_an_article_that_does_not_end_and_text_outside_of_articles_are_refused_by_line():
    for start in ("T\n\nText.\n", "", "T\n"):
        with pytest.raises(Refused, match="has a <doc> within another at line"):
            read(f'<doc id="1" title="T">\n{start}<doc id="2" title="U">\nU\n\nMore.\n</doc>')
    for text in ('<doc id="1">\nA\n</doc>\nB', "<doc none>\nA\n</doc>", "<doc "):
        with pytest.raises(Refused, match=r"a has text outside .* line \d.*--format=text"):
            read(text)


@pytest.mark.parametrize(
    "line",
    [
        "<doc " + ' title="a"' * 100_000,
        "<doc " + " " * 1_000_000,
        "<doc " + 'title="' * 100_000 + '">',
        '<doc title="' + '" ' * 500_000 + '">',
        '<doc id="1">' + "</doc> " * 100_000,
        "<doc " * 200_000,
        "<doc a=" + "b" * 1_000_000,
        '<doc title="' + "&amp" * 200_000 + '">',
    ],
)
def test_a_line_of_a_megabyte_takes_linear_time(line):
    started = time.process_time()
    with pytest.raises(Refused):
        read(line + "\n" + line)
    assert time.process_time() - started < 5  # the square of a megabyte takes minutes
