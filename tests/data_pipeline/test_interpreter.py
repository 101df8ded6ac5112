"""The command that is offered calls this Python, and is as short as it can be."""

import pathlib
import sys

from data_pipeline.interpreter import python


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
