"""Kills at random moments and inside saves: the run ends as one that nobody killed."""

import re
import signal
import time

import numpy as np
import pytest

from bert_jax import verify_resume
from bert_jax.checkpoint import reader
from bert_jax.runtime import goodput
from tests.faults.runs import ONE_PHASE, TINY, lines_of, saved_steps, training

pytestmark = pytest.mark.long

OFTEN = ["--config.checkpoint.every_steps=10", "--config.log_every_steps=10"]


def verified(forked, store, workdir, *flags):
    """What verify_resume says, which must be that nothing was lost."""
    flags = [*flags, *OFTEN, f"--config.data.store={store}", f"--workdir={workdir}"]
    said = " ".join(forked("bert_jax.verify_resume", *flags).stdout.split())
    words = r"the same bit for bit after (\d+) kills, (\d+) of them inside a save: (\d+) arrays"
    return tuple(int(number) for number in re.search(words, said).groups())


@pytest.mark.fault(1, "a SIGKILL inside a save")
def test_a_kill_loses_nothing_and_a_changed_number_is_found(
    forked, tiny_store, tmp_path, monkeypatch
):
    kills, in_saves, arrays = verified(forked, tiny_store, tmp_path / "v", *ONE_PHASE, "--kills=1")
    assert (kills, in_saves) == (1, 1) and arrays > 60
    whole, killed = tmp_path / "v" / "whole", tmp_path / "v" / "killed"
    assert len(goodput.read_attempts(killed / goodput.FILE)) == 2
    read = reader.read_arrays

    def with_one_bit_changed(directory, step):
        found = read(directory, step)
        if directory.parent == killed:
            name = next(name for name in found if name.startswith("params/"))
            bits = found[name].copy()
            bits.reshape(-1).view(np.uint32)[-1] ^= 1
            found[name] = bits
        return found

    monkeypatch.setattr(reader, "read_arrays", with_one_bit_changed)
    (said,) = verify_resume.compare_runs(whole, killed).differences
    assert re.fullmatch(r"params/\S+: 1 of [\d,]+ numbers differ", said)


@pytest.mark.fault(1, "20 SIGKILLs at random moments, 8 of them inside a save")
def test_twenty_kills_lose_nothing(forked, tiny_store, tmp_path):
    longer = [*TINY, "--config.phases[0].steps=790", "--kills=20"]
    kills, in_saves, _ = verified(forked, tiny_store, tmp_path / "v", *longer)
    assert (kills, in_saves) == (20, 8)


@pytest.mark.fault(1, "6 SIGKILLs to both of two processes, 3 of them inside a save")
def test_kills_of_two_processes_lose_nothing(forked, tiny_store, tmp_path):
    longer = [*TINY, "--config.phases[0].steps=290", "--kills=6", "--processes=2"]
    kills, in_saves, _ = verified(forked, tiny_store, tmp_path / "v", *longer)
    assert (kills, in_saves) == (6, 3)


@pytest.fixture(scope="module")
def whole_run(tiny_store, tmp_path_factory):
    """Two processes that nobody killed: their flags, their lines."""
    workdir = tmp_path_factory.mktemp("two") / "run"
    flags = [*TINY, *OFTEN, f"--config.data.store={tiny_store}", "--config.phases[0].steps=90"]
    flags += ["--config.hosts.heartbeat_secs=10"]
    with training(*flags, workdir=workdir, processes=2) as run:
        run.finish()
    return flags, workdir


@pytest.mark.parametrize("delay_secs", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.fault(2, "SIGKILL to process 0 or 1 of two while a save is half written")
def test_a_process_killed_inside_a_save_of_two(whole_run, tmp_path, number, delay_secs):
    flags, whole = whole_run
    workdir = tmp_path / "run"
    with training(*flags, workdir=workdir, processes=2) as run:
        run.wait_for_step(20)
        run.wait_for_file("checkpoints/*.orbax-checkpoint-tmp*")
        time.sleep(delay_secs)  # later in the save, which takes about a tenth of a second
        run.signal(signal.SIGKILL, number)
        codes = run.codes(secs=60)
    assert codes[number] == -signal.SIGKILL and codes[1 - number] != 0
    left = saved_steps(workdir)
    assert left and all(step % 10 == 0 for step in left)
    with training(*flags, workdir=workdir, processes=2) as run:
        said = run.finish()
    resumed = int(re.search(r"resuming at step (\d+) of 100", said).group(1))
    assert resumed == max(left)
    assert not list((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*"))
    assert verify_resume.compare_runs(whole, workdir).differences == ()


def losses_of(workdir):
    return {
        (line["step"], line["split"]): line["mlm_loss"]
        for line in lines_of(workdir)
        if "mlm_loss" in line
    }


@pytest.mark.fault(3, "two processes of two devices, then four of one, then one of one")
def test_two_then_four_then_one_process_continue_one_run(tiny_store, tmp_path):
    flags = [*TINY, *OFTEN, f"--config.data.store={tiny_store}", "--config.phases[0].steps=90"]
    moved, whole = tmp_path / "moved", tmp_path / "whole"
    for step, processes, devices in ((30, 2, 2), (60, 4, 1)):
        with training(*flags, workdir=moved, processes=processes, devices=devices) as run:
            run.wait_for_step(step)
            run.signal(signal.SIGTERM, 0)
            run.finish(128 + signal.SIGTERM)
    with training(*flags, workdir=moved) as run:
        assert "resuming at step" in run.finish()
    with training(*flags, workdir=whole, processes=2, devices=2) as run:
        run.finish()
    assert losses_of(moved) == pytest.approx(losses_of(whole), rel=1e-5)
