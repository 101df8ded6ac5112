"""Fixtures of the smokes: entries that start without importing everything anew."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.faults.runs import ROOT, environment

# (module, its arguments, the exit code it must have) -> what it wrote.
Forked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """A function that runs an entry in a process forked from one that has imported its libraries.

    For what ends before any work: a start of Python takes two seconds of imports.
    """
    folder = tmp_path_factory.mktemp("forked")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.smoke.forked_entries"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(module: str, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        written = [folder / "out", folder / "err"]
        for path in written:
            path.write_text("")
        request = {"module": module, "arguments": [str(argument) for argument in arguments]}
        request |= {"out": str(written[0]), "err": str(written[1])}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        got = int(server.stdout.readline())
        out, err = map(pathlib.Path.read_text, written)
        assert got == code, out + err
        return subprocess.CompletedProcess([module, *request["arguments"]], got, out, err)

    yield run
    server.stdin.close()
    assert server.wait(timeout=30) == 0
