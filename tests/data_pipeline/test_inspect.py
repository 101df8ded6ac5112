"""The entry: the report on the screen, as a page and as numbers, and all that is refused."""

import html.parser
import json
import os
import re

import pytest

from data_pipeline import inspect
from data_pipeline.report import rows
from tests.data_pipeline.stores import healthy_store, random_documents, write_store

pytestmark = pytest.mark.usefixtures("few_trial_walks")
VOID = {"meta", "br"}
HOSTILE = ["<script>alert(1)</script>", "&amp;", '"><img', "</style>", "[/bold]"]


class Page(html.parser.HTMLParser):
    """Checks that what is opened is closed, and collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def small(tmp_path):
    """A store of three documents, too few for rows."""
    documents = random_documents(3, seed=1)
    return write_store(tmp_path / "store", documents[:2], documents[2:])


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(rows, "SAMPLED_ROWS", 2048)


def run(store: object, *flags: str) -> int:
    return inspect.main([f"--store={store}", *flags, "--seq_len=32"])


@pytest.mark.slow
def test_a_healthy_store_on_the_screen_on_the_page_and_in_numbers(tmp_path, capsys):
    store = healthy_store(tmp_path / "store")
    out, json_out = tmp_path / "page.html", tmp_path / "numbers.json"
    assert run(store, "--verify", f"--html={out}", f"--json_out={json_out}", "--examples=3") == 0
    shown, error = capsys.readouterr()
    assert error == ""
    assert re.match(r"OK: the 9 files, [\d,]+ bytes, are those that were built\n", shown)
    assert re.search(r"documents +250 +250 *\n", shown)
    assert re.search(r"tokens per sentence +\S+ +5 +5 +5 +5 +5\.0", shown)
    assert "nothing looks wrong" in shown and "dropped     0 sentences" in shown
    assert shown.count("tokens\n    [CLS]") == 3
    assert "\u2026" not in shown  # a file of it is whole
    page = Page(out.read_text(encoding="utf-8"))
    assert sum(tag == "svg" for tag, _ in page.tags) == 6
    classes = [one.get("class") for _, one in page.tags]
    assert classes.count("example") == 3
    assert {"token hidden", "token kept", "token replaced"} <= set(classes)
    assert "Nothing." in page.text
    numbers = json.loads(json_out.read_text(encoding="utf-8"))
    assert numbers["findings"] == [] and len(numbers["digest"]) == 64
    assert numbers["splits"]["train"]["sentences"] == 250 * 40
    assert numbers["copies"]["leaked_documents"]["copies"] == 0
    assert numbers["rows"]["seq_len"] == 32 and len(numbers["examples"]) == 3
    assert "manifest" not in numbers


@pytest.mark.slow
def test_the_page_stands_alone_and_escapes_what_a_corpus_holds(tmp_path):
    """Pieces and sources with HTML and the screen's own markup, others written to the left."""
    documents = random_documents(20, seed=1, vocab_size=15)
    pieces = [*HOSTILE, *(f"\u0627{letter}" for letter in "\u0628\u062a\u062b\u062c\u062d")]
    store, out = tmp_path / "a<b>store", tmp_path / "page.html"
    write_store(store, documents[:12], documents[12:], pieces)
    assert run(store, f"--html={out}", "--examples=1") == 0
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "base"}
    assert {"svg", "table", "style"} <= names
    attributes = {name for _, one in page.tags for name in one}
    assert not attributes & {"src", "href", "action", "xlink:href"}
    assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"https?:|//|url\(|@import", text)
    seen = "".join(page.text)
    assert all(piece in seen for piece in HOSTILE) and "a<b>store" in seen
    # A special token comes first in a row, and does not decide the direction of its text.
    assert ("p", {"dir": "auto"}) in page.tags and ("bdi", {"class": "special"}) in page.tags


def test_ready_made_examples_are_verified_and_no_more(tmp_path, capsys):
    documents = random_documents(4, seed=1)
    store = write_store(
        tmp_path / "store", documents[:2], documents[2:], kind="examples", examples={}
    )
    assert run(store, "--verify") == 0
    assert capsys.readouterr().out.startswith("OK: ")
    assert run(store) == 2
    shown, error = capsys.readouterr()
    assert shown == "" and error.startswith(f"error: {store} holds ready-made examples")
    assert error.count("\n") == 1


def test_a_store_with_a_split_of_one_document_and_a_name_that_is_not_utf_8(small, tmp_path, capsys):
    """Its report has no rows."""
    try:
        store = small.rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    except OSError:
        pytest.skip("needs a file system whose names are bytes")
    out, json_out = tmp_path / "page.html", tmp_path / "numbers.json"
    assert run(store, f"--html={out}", f"--json_out={json_out}") == 0
    screen, page = capsys.readouterr().out, out.read_text(encoding="utf-8")
    assert "held out and 2 are needed" in screen and "/caf\ufffd" in screen
    assert "--config.data.segments=nsp refuses" in " ".join(screen.split())
    assert sum(tag == "svg" for tag, _ in Page(page).tags) == 4 and r"/caf\udce9" in page
    numbers = json.loads(json_out.read_text(encoding="utf-8"))
    assert numbers["store"] == str(store)
    findings = " ".join(f"! {text}" for text in numbers["findings"])
    words = " ".join(screen.split()).rpartition(" wrote ")[0]
    assert findings and words.startswith(findings) and words.endswith(findings)


@pytest.mark.parametrize("key", ["dropped", "changed", "counted", "near_duplicates", "build"])
def test_a_count_that_a_manifest_lacks_is_not_reported(small, capsys, key):
    """Another version may not have counted it."""
    manifest = json.loads((small / "manifest.json").read_text())
    manifest |= {"counted": {"long_word_characters": 3}, "dropped": {"files_without_text": 1}}
    (small / "manifest.json").write_text(json.dumps(manifest | {key: {}}))
    assert run(small, "--examples=0") == 0 and not capsys.readouterr().err


def test_a_file_that_cannot_be_written_leaves_the_page_before_it(small, tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("before")
    (tmp_path / "page.html.partial").mkdir()
    assert run(small, f"--html={out}") == 2
    assert capsys.readouterr().err.count("\n") == 1 and out.read_text() == "before"
