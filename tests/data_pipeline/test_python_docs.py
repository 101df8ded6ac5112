"""The corpus that Python carries: what is a document, what is prose, and what is refused."""

import json
import sysconfig
from pydoc_data.topics import topics

import pytest

from data_pipeline import python_docs
from data_pipeline.read.documents import read_documents
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sources import find_sources

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("docs") / "python_docs.jsonl"
    assert python_docs.main([str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def documents(written) -> dict[str, str]:
    records = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    return {record["title"]: record["text"] for record in records}


@pytest.mark.long
def test_every_topic_and_many_modules_are_documents(documents):
    assert {f"topic {name}" for name in topics} <= set(documents)
    assert {"json.decoder", "argparse", "asyncio.events", "email"} <= set(documents)
    assert not [t for t in documents if {"test", "tests", "pip", "jax"} & set(t.split("."))]
    assert 1.5e6 < sum(map(len, documents.values())) < 4e6


def test_the_build_reads_it(written, documents):
    (source,) = find_sources(str(written), TextOptions())
    assert len(list(read_documents(source, TextOptions()))) == len(documents)


def test_a_wrapped_paragraph_becomes_a_line_and_doctests_and_rules_are_left_out():
    text = "Title\n*****\n\nOne line\n   and its end.\n\n>>> f()\n'result'\n\n-----\n\nTwo."
    assert python_docs.extract_prose(text) == "Title\nOne line and its end.\nTwo."


def test_docstrings_come_in_the_order_of_the_file_and_old_escapes_are_no_warning(recwarn):
    source = b'"M."\nclass A:\n    "A."\n    async def f(self):\n        "f."\ndef g():\n    "g."\n'
    assert python_docs.find_docstrings(source + b'x = "\\d"\n') == ["M.", "A.", "f.", "g."]
    assert list(recwarn) == []


def test_a_python_without_its_sources_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert python_docs.main([str(tmp_path / "out" / "docs.jsonl")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "carries the source of 0 modules" in error
    assert not (tmp_path / "out").exists()
