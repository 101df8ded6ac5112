"""Two processes, of which one gets a row that makes its loss NaN: what both do, and record."""

import json
import math
import signal

import pytest

from data_pipeline.cli.main import BAD_NUMBERS
from tests.faults.runs import HOOKS, TINY, lines_of, saved_steps, training

pytestmark = pytest.mark.long


@pytest.fixture
def flags(tiny_store):
    return [
        *TINY,
        f"--config.data.store={tiny_store}",
        "--config.phases[0].steps=30",
        "--config.optim.warmup_steps=5",
        "--config.log_every_steps=5",
        "--config.checkpoint.every_steps=10",
    ]


def poisoned(workdir, *flags, steps):
    """A run of two processes, of whose process 1 these steps have a bad row."""
    path = {"PYTHONPATH": HOOKS, "POISONED": ",".join(map(str, steps))}
    return training(*flags, workdir=workdir, processes=2, **path)


def bad_steps(workdir):
    return [json.loads(line) for line in (workdir / "bad_steps.jsonl").read_text().splitlines()]


def all_finite(workdir):
    return all(
        math.isfinite(value)
        for line in lines_of(workdir)
        for value in line.values()
        if isinstance(value, float)
    )


@pytest.mark.fault(13, "a NaN in a row of one process of two, at three of forty steps")
def test_a_bad_step_of_one_process_is_left_out_by_both(flags, tmp_path):
    workdir = tmp_path / "run"
    with poisoned(workdir, *flags, steps=[7, 8, 33]) as run:
        out = run.finish()
    assert [line["step"] for line in bad_steps(workdir)] == [7, 8, 33]
    assert out.count("changes nothing: ") == 3 and "changes nothing" not in run.output(1)
    assert json.loads((workdir / "summary.json").read_text())["skipped_steps"] == 3
    trained = {line["step"]: line for line in lines_of(workdir) if line["split"] == "train"}
    assert [trained[step]["skipped_steps"] for step in (5, 10, 15, 35)] == [0, 2, 0, 1]
    assert all_finite(workdir)


@pytest.mark.fault(13, "a NaN in a row of one process of two, at every step from the 22nd on")
def test_too_many_bad_steps_end_both_processes(flags, tmp_path):
    workdir = tmp_path / "run"
    with poisoned(workdir, *flags, steps=range(22, 41)) as run:
        assert run.codes() == [BAD_NUMBERS, BAD_NUMBERS], run.written()
    assert "error: steps 22 to 31 were bad" in run.output(0)
    assert f"-m bert_jax.replay --workdir={workdir} --step=31" in run.output(0)
    assert max(saved_steps(workdir)) == 30


@pytest.mark.fault(13, "both of two processes are killed just after a roll back was written down")
def test_a_run_killed_after_a_roll_back_ends_as_one_that_was_not(flags, tmp_path):
    rolling = [*flags, "--config.guard.action=roll_back", "--config.log_every_steps=1"]
    steps = [17, 36]
    with poisoned(tmp_path / "whole", *rolling, steps=steps) as run:
        run.finish()
    with poisoned(tmp_path / "killed", *rolling, steps=steps) as run:
        run.wait_for_file("left_out.json")
        run.signal(signal.SIGKILL)
        run.codes()
    with poisoned(tmp_path / "killed", *rolling, steps=steps) as run:
        run.finish()
    left_out = json.loads((tmp_path / "whole" / "left_out.json").read_text())
    assert [(one["after_step"], one["through_step"]) for one in left_out] == [(10, 17), (30, 36)]
    for name in ("left_out.json", "bad_steps.jsonl"):
        whole, killed = ((tmp_path / run / name).read_text() for run in ("whole", "killed"))
        assert whole == killed
    assert lines_of(tmp_path / "whole") == lines_of(tmp_path / "killed")
    assert all_finite(tmp_path / "whole")
