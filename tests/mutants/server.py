"""Run tests in processes forked from one that has imported the libraries, in the current folder.

python -m tests.mutants.server reads lines of JSON, {"module": ..., "tests": [...], "report": FILE},
and answers each with the id of a process, then with its exit code. The process imports the module,
runs the tests and writes down how each ended, and by which exception.
"""

import gc
import importlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Generator, Sequence
from typing import Any

import pytest

# Libraries that most tests import, and nothing of the tree, which has the edit.
LIBRARIES = (
    *("jax", "jax.numpy", "flax.nnx", "optax", "orbax.checkpoint", "ml_collections"),
    *(
        "hypothesis",
        "fsspec",
        "pyarrow",
        "tokenizers",
        "tensorboardX",
        "safetensors",
        "scipy.stats",
    ),
)
PASSED, ASSERTED, BROKE, SKIPPED = "passed", "asserted", "broke", "skipped"


class Witness:
    """Note how each test ended, as a plugin of pytest."""

    def __init__(self) -> None:
        self.endings: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        ending = self.endings.setdefault(item.nodeid, {"how": PASSED, "secs": 0.0, "error": ""})
        ending["secs"] += report.duration
        if report.failed and call.excinfo is not None:
            error = call.excinfo.value
            # pytest.fail, and pytest.raises where nothing was raised, end with Failed.
            is_assertion = isinstance(error, AssertionError | pytest.fail.Exception)
            ending["how"] = ASSERTED if is_assertion and report.when == "call" else BROKE
            ending["error"] = f"{report.when}: {type(error).__name__}: {error}"[:300]
        elif report.skipped and ending["how"] == PASSED:
            ending["how"] = SKIPPED
        return report


def list_strangers(tree: pathlib.Path) -> list[str]:
    """List modules of ours that were not imported from this copy of the tree."""
    return [
        f"{name} was imported from {module.__file__}, not from the copy"
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in ("bert_jax", "data_pipeline", "configs", "tests")
        and getattr(module, "__file__", None)
        and tree not in pathlib.Path(module.__file__).parents
    ]


def run(module: str, tests: Sequence[str]) -> dict[str, Any]:
    """Import the module and run the tests; return what went wrong and how each test ended."""
    problems = []
    try:
        importlib.import_module(module or "bert_jax")
    except Exception as error:
        problems.append(f"{module} cannot be imported: {type(error).__name__}: {error}")
    witness = Witness()
    if not problems:
        flags = ["-q", "-p", "no:cacheprovider", "-m", "long or not long"]
        pytest.main([*flags, *tests], plugins=[witness])
        problems = list_strangers(pathlib.Path.cwd())
    return {"problems": problems, "tests": witness.endings}


def become(request: dict[str, Any]) -> None:
    """Lead a group of processes, whose output goes to a file beside the report."""
    os.setsid()
    log = os.open(f"{request['report']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
        os.dup2(file, number)


def serve() -> None:
    """Fork a process for each request."""
    for library in LIBRARIES:
        importlib.import_module(library)
    # A child has the one thread that forks: the others' locks would stay shut in it for ever.
    assert threading.active_count() == 1
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(request)
            found = run(request["module"], request["tests"])
            pathlib.Path(request["report"]).write_text(json.dumps(found))
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
