"""The train command as a process: signals and exit codes, and the config that it resolves."""

import pathlib
import signal
import subprocess
import sys

import pytest

from tests.faults.runs import ROOT, TINY, environment, saved_steps, training

pytestmark = pytest.mark.slow

TRAIN = "bert_jax.train"


LONG = ["--config.phases[0].steps=600", "--config.checkpoint.every_steps=50"]
LONG += ["--config.log_every_steps=70"]


def stopped_by(number, code, flags, workdir):
    """Start or go on with a run, stop it once it has saved something; what it wrote to stdout."""
    before = max(saved_steps(workdir), default=0)
    with training(*flags, workdir=workdir) as running:
        running.wait_until(lambda: max(saved_steps(workdir), default=0) > before, "checkpoint")
        running.signal(number)
        out = running.finish(code)
    assert ("resuming at step" in out) == (before > 0)
    assert "Traceback" not in out
    assert not (workdir / "summary.json").exists()
    return out


@pytest.mark.long
@pytest.mark.fault(8, "Ctrl-C, then SIGTERM, then SIGHUP, to a run of one process")
def test_a_run_stopped_by_one_signal_after_the_other_is_saved_each_time(tiny_store, tmp_path):
    """That it then ends as one never stopped: tests/bert_jax/trainer/test_loop.py."""
    flags = [*TINY, *LONG, f"--config.data.store={tiny_store}"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        out = stopped_by(number, code, flags, tmp_path / "run")
        assert "stopped and saved at step" in out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("start", [["-m", "bert_jax.train"], ["-m", "bert_jax", "train"]])
def test_ctrl_c_while_libraries_are_imported_ends_at_once(start, tmp_path):
    process = subprocess.Popen(
        [sys.executable, *start, "--config=configs/large.py", f"--workdir={tmp_path}"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    maps = pathlib.Path(f"/proc/{process.pid}/maps")
    while "jaxlib" not in maps.read_text():
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config=configs/base.py:recipe=tokens"], ("learning_rate", "phases")),
        (["--config=configs/large.py:recipe=lamb64k"], ("learning_rate", "phases")),
        (["--config.recipe=lamb64k", "--config=configs/large.py"], ("name: lamb",)),
        # No store is copied from a bucket.
        (["--config=configs/tiny.py", "--config.data.store=gs://b/s"], ("store: gs://b/s",)),
        (["--config=configs/base.py", "--config.optim.learning_rate=5e-5"], ("_rate: 5.0e-05",)),
        (["--config=configs/base.py", "--config.phases[0].steps=1234"], ("steps: 1234",)),
    ],
)
def test_print_config_resolves_recipes_and_overrides(forked, flags, words):
    out = forked(TRAIN, *flags, "--print_config").stdout
    assert all(word in out for word in words) and "vocab_size: 0" in out


def test_verify_resume_gives_the_training_the_config_and_its_fields_alone(forked, tmp_path):
    """A mistake that only the training finds is said in its words."""
    flags = [f"--workdir={tmp_path}/new", "--kills=2", "--config.seed=7"]
    done = forked("bert_jax.verify_resume", "--config=configs/tiny.py", *flags, code=1)
    assert "nothing is proved: the run ended with exit code 2: error: config.data" in done.stdout
