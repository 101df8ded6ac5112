"""The command that is offered calls this Python, and is as short as it can be."""

import pathlib
import re
import sys

from data_pipeline.interpreter import how_to_install, python
from tests.faults.runs import ROOT


def test_an_active_environment_is_called_by_its_name(monkeypatch):
    monkeypatch.setenv("PATH", str(pathlib.Path(sys.executable).parent))
    monkeypatch.setattr(sys, "executable", str(pathlib.Path(sys.executable).with_name("python")))
    assert python() == "python"


def test_one_that_is_not_active_is_called_by_its_path(monkeypatch, tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    assert python() == ".venv/bin/python"
    for folder in (tmp_path / ".venv" / "bin", tmp_path / ".venv" / "other"):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        assert python() == str(tmp_path / ".venv" / "bin" / "python")


def test_nobody_is_sent_to_a_name_that_is_not_ours():
    """The package index has no bert_jax of ours; setup.py has the extras that are offered."""
    folders = ("bert_jax", "data_pipeline", "launch", "docs", "configs", "benchmarks")
    paths = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    texts = {path: path.read_bytes() for path in [*paths, ROOT / "README.md"]}
    assert [path for path, text in texts.items() if b"install 'bert_jax" in text] == []
    setup = (ROOT / "setup.py").read_text()
    extras = re.compile(rb"how_to_install\([\"'](\w+)")
    called = {extra for text in texts.values() for extra in extras.findall(text)}
    assert called
    assert all(f'"{extra.decode()}":' in setup for extra in called)
    assert "pip install '.[plan]'" in how_to_install("plan")
