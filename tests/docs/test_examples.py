"""The scripts of examples/ run from start to end, on small sizes."""

import subprocess
import sys

import pytest

from tests.conftest import _small_text
from tests.docs import pages
from tests.docs.test_commands import LAYERS, PHASES
from tests.faults.runs import environment

pytestmark = pytest.mark.slow


def run(script, *arguments):
    """Run an example; what it printed."""
    done = subprocess.run(
        [sys.executable, f"examples/{script}.py", *map(str, arguments)],
        cwd=pages.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """The run that the first example leaves."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "a.txt").write_text(_small_text(300))
    given = [folder / "*.txt", folder / "run", "--vocab_size=200"]
    out = run("pretrain_on_your_text", *given, *LAYERS, *PHASES)
    assert "held-out MLM loss" in out and "[MASK]" in out
    return folder / "run"


def test_a_checkpoint_is_exported_and_loaded_where_the_libraries_are(workdir, tmp_path):
    out = run("checkpoint_to_transformers", f"orbax:{workdir}", tmp_path / "export")
    exported = {path.name for path in (tmp_path / "export").iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} <= exported
    for library in ("transformers", "sentence-transformers"):
        assert f"{library}: " in out


def test_a_run_on_a_slice_is_planned():
    pytest.importorskip("libtpu", reason="needs the extra [plan]: libtpu")
    flags = [*LAYERS, "--config.model.vocab_size=200", "--seq_len=128", "--per_chip_batch=8"]
    out = run("plan_a_tpu_run", "configs/tiny.py", "v5e:1x1", *flags)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("v5e:1x1")]
    assert row[1:3] == ["1", "yes"]
