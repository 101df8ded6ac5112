"""Processes that are told to stop, die, fail or hang: what becomes of the others."""

import re
import resource
import shutil
import signal
import time

import pytest

from data_pipeline.cli.main import BY_SIGNAL, FAILED, REFUSED, STUCK
from tests.faults.runs import HOOKS, TINY, last_step, lines_of, saved_steps, training

HEARTBEAT_SECS = 10
STOPPED = BY_SIGNAL + signal.SIGTERM
RESTARTABLE = {FAILED, -signal.SIGABRT}

pytestmark = pytest.mark.long


@pytest.fixture
def flags(tiny_store):
    """Of a run whose processes take each other for dead soon."""
    return [
        *TINY,
        f"--config.data.store={tiny_store}",
        f"--config.hosts.heartbeat_secs={HEARTBEAT_SECS}",
        "--config.log_every_steps=5",
    ]


def ends_soon(run, *numbers, secs=HEARTBEAT_SECS + 5.0):
    """The exit codes of these processes, and how long they took to end."""
    began_secs = time.monotonic()
    codes = [run.processes[number].wait(secs + 60.0) for number in numbers]
    took_secs = time.monotonic() - began_secs
    assert took_secs < secs, run.written()
    return codes


@pytest.mark.fault(
    8, "SIGTERM to one of two processes in an evaluation, of which every step has one"
)
def test_a_stop_in_an_evaluation_leaves_out_what_is_made_up_for(flags, tmp_path):
    workdir = tmp_path / "run"
    few = ["--config.phases[0].steps=30", "--config.optim.warmup_steps=5"]
    every = [*flags, *few, "--config.eval.every_steps=1"]
    with training(*every, workdir=workdir, processes=2) as run:
        run.wait_for_step(6)
        run.signal(signal.SIGTERM, 1)
        assert ends_soon(run, 0, 1, secs=30.0) == [STOPPED] * 2, run.written()
    assert max(saved_steps(workdir)) in (last_step(workdir), last_step(workdir) + 1)
    with training(*every, workdir=workdir, processes=2) as run:
        run.finish()
    heldout = [line["step"] for line in lines_of(workdir) if line["split"] == "heldout"]
    assert heldout == list(range(1, 41))


@pytest.mark.fault(8, "SIGTERM to one of two processes while both compile")
def test_a_stop_while_compiling_loses_nothing(flags, tmp_path):
    with training(*flags, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_words("compiling the step")
        run.signal(signal.SIGTERM, 1)
        assert ends_soon(run, 0, 1, secs=60.0) == [STOPPED] * 2, run.written()
    with training(*flags, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(10)


@pytest.mark.fault(8, "SIGTERM to one of two processes during a save, and again")
def test_a_stop_during_a_save_finishes_it(flags, tmp_path):
    often = [*flags, "--config.checkpoint.every_steps=1"]
    with training(*often, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(5)
        run.wait_for_file("checkpoints/*tmp*")
        run.signal(signal.SIGTERM, 1)
        run.signal(signal.SIGTERM, 1)
        assert ends_soon(run, 0, 1, secs=30.0) == [STOPPED] * 2, run.written()
    step = max(saved_steps(tmp_path / "run"))
    assert f"stopped and saved at step {step}" in run.output(0)
    assert not list((tmp_path / "run" / "checkpoints").glob("*tmp*"))


@pytest.mark.fault(8, "SIGINT to one of two processes, and once more")
def test_a_second_ctrl_c_ends_a_process_at_once_and_the_others_with_it(flags, tmp_path):
    with training(*flags, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(5)
        run.signal(signal.SIGINT, 1)
        run.wait_until(lambda: "stopping after this step" in run.output(1), "a word of it")
        run.signal(signal.SIGINT, 1)
        codes = ends_soon(run, 1, 0)
    # It may come too late: then the run was saved.
    assert codes[0] in (-signal.SIGINT, BY_SIGNAL + signal.SIGINT), run.written()
    assert codes[1] in {STOPPED, *RESTARTABLE}, run.written()


def flip_a_bit(store):
    content = bytearray((store / "train" / "token_ids.npy").read_bytes())
    content[-2] ^= 1
    (store / "train" / "token_ids.npy").write_bytes(content)


def another_lowercase(store):
    text = (store / "manifest.json").read_text()
    assert '"lowercase": true' in text
    (store / "manifest.json").write_text(text.replace('"lowercase": true', '"lowercase": false'))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip_a_bit, ["are damaged: process 1 (", "token_ids.npy has the SHA-256"]),
        (another_lowercase, ["process 1 (", ": vocabulary.lowercase = True"]),
    ],
)
@pytest.mark.fault(22, "process 1 has a copy of the store of its own, which differs")
def test_a_store_that_differs_on_one_host_is_refused_on_both(
    flags, tiny_store, tmp_path, change, words
):
    folders = [tmp_path / "host0", tmp_path / "host1"]
    for folder in folders:
        shutil.copytree(tiny_store, folder / "store")
    change(folders[1] / "store")
    shared = [*flags, "--config.data.store=store"]
    with training(*shared, workdir=tmp_path / "run", processes=2, folders=folders) as run:
        run.finish(REFUSED, 120)
        for number in (0, 1):
            assert all(word in run.output(number) for word in words), run.written()
    assert not (tmp_path / "run" / "data_verified.json").exists()


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.fault(9, "SIGKILL to one of two processes, the first or the other")
def test_the_others_end_soon_after_one_that_died(flags, tmp_path, killed):
    with training(*flags, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(5)
        run.signal(signal.SIGKILL, killed)
        assert set(ends_soon(run, 1 - killed)) <= RESTARTABLE, run.written()
    assert re.search(rf"process {killed} \(.*\) has died", run.output(1 - killed)), run.written()


@pytest.mark.fault(9, "no more room in process 0's files, which raises in it alone")
def test_an_error_in_one_process_ends_the_other_and_is_said_there(flags, tmp_path):
    often = [*flags, "--config.log_every_steps=1"]
    with training(*often, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(20)
        most_bytes = (tmp_path / "run" / "metrics.jsonl").stat().st_size + 3000
        resource.prlimit(run.processes[0].pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        assert ends_soon(run, 0, 1) == [FAILED] * 2, run.written()
    assert "error: " in run.output(0)
    cause = r"process 1: process 0 \(.*\) has ended with exit code 1: error: "
    assert re.search(cause, run.output(1)), run.written()


@pytest.mark.fault(6, "no room for the part of a checkpoint that one of two processes writes")
def test_a_save_that_fails_in_one_process_ends_both_with_its_cause(flags, tmp_path):
    """Orbax waits, in both, for process 1 to say that its part is written."""
    often = [*flags, "--config.checkpoint.every_steps=20", "--config.phases[0].steps=5000"]
    with training(*often, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_words("compiling the step")
        resource.prlimit(run.processes[1].pid, resource.RLIMIT_FSIZE, (8000, 8000))
        run.wait_for_step(20)
        assert ends_soon(run, 0, 1, secs=60.0) == [FAILED] * 2, run.written()
    cause = "error: .*checkpoints: saving the checkpoint of step 20 failed.*step 0 is safe"
    assert re.search(rf"process 1 \(.*\) has ended with exit code 1: {cause}", run.output(0))
    assert re.search(f"process 1: {cause}", run.output(1))


@pytest.mark.fault(10, "the batches of one of two processes stop coming")
def test_a_process_without_data_ends_both_with_stacks(flags, tmp_path):
    no_data, workdir = tmp_path / "no_data", tmp_path / "run"
    slow = [*flags, "--config.hosts.stuck_step_secs=5"]
    hook = {"PYTHONPATH": HOOKS, "NO_DATA": str(no_data)}
    with training(*slow, workdir=workdir, processes=2, **hook) as run:
        run.wait_for_step(5)
        no_data.touch()
        assert ends_soon(run, 0, 1, secs=5.0 + 10.0) == [STUCK] * 2, run.written()
    assert "harmed_batches" in (workdir / "stacks-1.txt").read_text()
    assert "trainer/prefetch.py" in (workdir / "stacks-0.txt").read_text()
    assert "config.hosts allows 5 s" in run.output(0) + run.output(1)


@pytest.mark.fault(10, "SIGSTOP to one of two processes")
def test_a_process_that_is_stopped_from_outside_ends_the_other(flags, tmp_path):
    with training(*flags, workdir=tmp_path / "run", processes=2) as run:
        run.wait_for_step(5)
        run.signal(signal.SIGSTOP, 1)
        assert set(ends_soon(run, 0)) <= RESTARTABLE, run.written()
