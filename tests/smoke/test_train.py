"""The entry as a person runs it: processes, exit codes, one sentence for each mistake."""

import pathlib
import signal
import subprocess
import sys

import pytest

from tests.faults.runs import ROOT, TINY, command, environment, saved_steps, training

TRAIN = "bert_jax.train"


def run(*flags, code=0, **changed):
    """The training entry as a process; `changed` are variables of its environment."""
    done = subprocess.run(
        command(*flags),
        cwd=ROOT,
        env=environment(**changed),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


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
@pytest.mark.fault(8, "Ctrl-C, then SIGTERM, to a run of one process")
def test_a_run_stopped_by_ctrl_c_and_then_by_sigterm_is_saved_each_time(tiny_store, tmp_path):
    """That it then ends as one never stopped: tests/bert_jax/test_loop.py."""
    flags = [*TINY, *LONG, f"--config.data.store={tiny_store}"]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        out = stopped_by(number, code, flags, tmp_path / "run")
        assert "stopped and saved at step" in out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("start", [["-m", "bert_jax.train"], ["-m", "bert_jax", "train"]])
def test_ctrl_c_while_libraries_are_imported_ends_at_once(start):
    process = subprocess.Popen(
        [sys.executable, *start, "--config=configs/large.py"],
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


def test_print_config_of_every_recipe(forked):
    for config in ("tiny.py", "base.py:recipe=tokens", "large.py:recipe=lamb64k"):
        out = forked(TRAIN, f"--config=configs/{config}", "--print_config").stdout
        assert "learning_rate" in out and "phases" in out


def test_print_config_copies_no_store_from_a_bucket(forked):
    out = forked(
        TRAIN, "--config=configs/tiny.py", "--config.data.store=gs://b/s", "--print_config"
    ).stdout
    assert "store: gs://b/s" in out and "vocab_size: 0" in out


def test_overrides_reach_the_config(forked):
    out = forked(
        TRAIN,
        "--config=configs/base.py",
        "--config.optim.learning_rate=5e-5",
        "--config.phases[0].steps=1234",
        "--print_config",
    ).stdout
    assert "learning_rate: 5.0e-05" in out
    assert "steps: 1234" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--config is missing"),
        (["--config=configs/huge.py"], "there is no such file; ours are configs/base.py"),
        (["--config=configs/large.py:recipe=x", "--print_config"], "recipe is 'x'; this config"),
        (["--config=configs/tiny.py"], "--workdir is missing"),
        (["--config=configs/tiny.py", "--workdir=w"], "config.data.store is empty; build a store"),
        (
            ["--config=configs/tiny.py", "--workdir=w", "--config.data.store=nowhere"],
            "nowhere",
        ),
        (["--config=configs/tiny.py", "--config.optim.learnin_rate=1"], "learning_rate"),
        (
            ["--config=configs/tiny.py", "--config.optim.learning_rate=x"],
            "it must be a finite number",
        ),
        (
            ["--config=configs/tiny.py", "--config.optim.learning_rate=nan", "--print_config"],
            "learning_rate=nan: it must be a finite number",
        ),
        (["--config.data.store=s"], "--config is missing; give --config=FILE"),
        (["--config=configs/tiny.py", "--learning_rate=1e-3"], "--config.optim.learning_rate?"),
        (["--config=configs/tiny.py", "--wrkdir=w"], "did you mean --workdir?"),
        (["--config=configs/tiny.py", "--num_processes=x"], "it must be a whole number"),
        (["--config=configs/tiny.py", "--multihost=maybe"], "it must be True or False"),
        (["--config=configs"], "that is a folder; ours are configs/base.py"),
        (["--config=configs/tiny.py", "stray"], "'stray' is not a flag"),
        (
            ["--config=configs/tiny.py", "--config.optm.learning_rate=1"],
            "did you mean --config.optim",
        ),
        (
            ["--config=configs/tiny.py", "--config.phases[7].steps=1"],
            "this config has 2 phases, counted from 0",
        ),
        (["--config=configs/tiny.py", "--config.phases=128"], "--config.phases[0].seq_len=VALUE"),
        (["--config=configs/tiny.py:x=1"], "sets 'x'; this config takes []"),
        (["--config=configs/base.py:tokens"], "'tokens' is not NAME=VALUE; this config takes"),
        (["--config=configs/tiny.py", "--workdir=README.md"], "README.md is a file; give a new"),
        (["--config=configs/tiny.py", "--workdir=s3://b/run"], "as gs://BUCKET/PATH; mount other"),
        (["--config=configs/tiny.py", "--workdir=gs://b"], "as gs://BUCKET/PATH; mount other"),
        (["--config=configs/tiny.py", "--workdir=w", "--process_id=1"], "add --multihost"),
        (
            ["--config=configs/tiny.py", "--workdir=w", "--profile_steps=9:7"],
            "--profile_steps=9:7 is not FIRST:LAST",
        ),
    ],
)
def test_mistakes_get_one_sentence(forked, flags, words):
    done = forked(TRAIN, *flags, code=2)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]
    assert "Traceback" not in done.stderr
    assert not (ROOT / "w").exists()


def test_help_names_the_flags_and_no_others():
    out = run("--help").stdout
    assert "--workdir: folder of the run" in out
    assert "--config: config file" in out
    assert "--config.data.store=STORE" in out
    assert "alsologtostderr" not in out
