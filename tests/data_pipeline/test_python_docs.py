"""The corpus that Python carries: what is a document, what is prose, and what is refused."""

import json
import sysconfig
import textwrap
from pydoc_data.topics import topics

import pytest

from data_pipeline import python_docs
from data_pipeline.sources import find_sources
from data_pipeline.text import read_documents
from data_pipeline.text_options import TextOptions


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "python_docs.jsonl"
    assert python_docs.main([str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def documents(written) -> dict[str, str]:
    records = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    return {record["title"]: record["text"] for record in records}


def test_every_topic_and_many_modules_are_documents(documents):
    assert {f"topic {name}" for name in topics} <= set(documents)
    assert {"json.decoder", "argparse", "asyncio.events", "email"} <= set(documents)
    assert 1.5e6 < sum(map(len, documents.values())) < 4e6


def test_no_tests_and_no_installed_packages_are_among_them(documents):
    assert not [t for t in documents if {"test", "tests", "pip", "jax"} & set(t.split("."))]


def test_the_docstrings_of_a_module_come_in_the_order_of_the_file(documents):
    said = " ".join(documents["textwrap"].split())
    order = [getattr(textwrap, name).__doc__ for name in ("TextWrapper", "wrap", "dedent")]
    places = [said.index(" ".join(text.split("\n\n")[0].split())) for text in order]
    assert places == sorted(places)


def test_the_build_reads_it(written, documents):
    (source,) = find_sources(str(written), TextOptions())
    assert len(list(read_documents(source, TextOptions()))) == len(documents)


def test_a_wrapped_paragraph_becomes_a_line_and_doctests_and_rules_are_left_out():
    text = "Title\n*****\n\nOne line\n   and its end.\n\n>>> f()\n'result'\n\n-----\n\nTwo."
    assert python_docs.prose(text) == "Title\nOne line and its end.\nTwo."


def test_docstrings_of_nested_functions_follow_their_class():
    source = b'"M."\nclass A:\n    "A."\n    async def f(self):\n        "f."\ndef g():\n    "g."\n'
    assert python_docs.docstrings(source) == ["M.", "A.", "f.", "g."]


def test_an_invalid_escape_in_old_code_is_not_worth_a_warning(recwarn):
    assert python_docs.docstrings(b'"D."\nx = "\\d"\n') == ["D."]
    assert list(recwarn) == []


def test_a_python_without_its_sources_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert python_docs.main([str(tmp_path / "out" / "docs.jsonl")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and "carries the source of 0 modules" in said
    assert not (tmp_path / "out").exists()


def test_what_was_interrupted_leaves_nothing(tmp_path, monkeypatch, capsys):
    def interrupted(source):
        raise KeyboardInterrupt

    monkeypatch.setattr(python_docs, "docstrings", interrupted)
    assert python_docs.main([str(tmp_path / "docs.jsonl")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert python_docs.main([str(tmp_path / "file" / "docs.jsonl")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
