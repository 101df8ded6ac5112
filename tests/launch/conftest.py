"""Fixtures: cluster.env, a clone, commands run in this process, a stand-in for gcloud."""

import json
import os
import pathlib
import shutil
import sys
import time

import pytest

from launch.cloud import commands, job, wheelhouse
from tests.launch import stand_in_path
from tests.launch.scripts import make_clone, write_cluster, write_command
from tests.launch.tpu_api import TpuApi

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def quick_python(monkeypatch):
    """Stand in for the Python that resolves the config, which takes seconds; it accepts all."""
    monkeypatch.setenv("BERT_JAX_PYTHON", "true")


@pytest.fixture
def cluster(tmp_path):
    """A function that writes a cluster.env, complete but for what it is given."""
    return lambda **changed: write_cluster(tmp_path / "cluster.env", **changed)


@pytest.fixture(scope="session")
def one_clone(tmp_path_factory):
    return make_clone(tmp_path_factory.mktemp("clone") / "clone")


@pytest.fixture
def clone(one_clone, tmp_path, monkeypatch):
    """A small clone of bert_jax, whose commits the commands send."""
    folder = shutil.copytree(one_clone, tmp_path / "clone")
    for module in (job, wheelhouse):
        monkeypatch.setattr(module, "ROOT", folder)
    return folder


@pytest.fixture
def call(capsys, clone):
    """A function that runs a command of launch/ here; gives its exit code, stdout and stderr."""

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = commands.COMMANDS[name](arguments)
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def refused(call):
    """A function that runs a command which must refuse, in one sentence and nothing else."""

    def run(name: str, *arguments: str) -> str:
        code, out, error = call(name, *arguments)
        assert (code, out, error[:7], error.count("\n")) == (2, "", "error: ", 1), error
        assert not set(error) & set("\x1b\u202e\r\x9b\x07")
        return error

    return run


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A folder that is Google Cloud to the gcloud and kubectl on PATH."""
    folder, tools = tmp_path / "cloud", tmp_path / "tools"
    folder.mkdir()
    for name in ("gcloud", "kubectl"):
        write_command(tools / name, f'exec {sys.executable} -I -S {stand_in_path} {name} "$@"')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CLOUD", str(folder))
    monkeypatch.setenv("NOW", str(int(time.time())))
    monkeypatch.setenv("FLAGS", str(GOLDEN / "launch_flags.json"))
    return folder


@pytest.fixture
def calls(cloud):
    """A function that gives the calls of gcloud and kubectl so far, as lists of words."""
    return lambda: [json.loads(line) for line in (cloud / "calls").read_text().splitlines()]


@pytest.fixture
def api():
    """Google Cloud's API, with TPU VMs of two workers."""
    return TpuApi(workers=2)
