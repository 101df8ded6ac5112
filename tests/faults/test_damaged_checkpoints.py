"""A run whose newest checkpoint is damaged, as it is started: with one process and with two."""

import shutil

import pytest

from tests.faults.runs import TINY, lines_of, saved_steps, training

SHORT = [
    *TINY,
    "--config.phases[0].steps=30",
    "--config.optim.warmup_steps=5",
    "--config.checkpoint.every_steps=10",
    "--config.log_every_steps=10",
]


def damage(workdir):
    """Zero a page in the largest file of the newest checkpoint, which holds arrays."""
    newest = workdir / "checkpoints" / str(saved_steps(workdir)[-1])
    path = max(newest.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def finished(request, tiny_store, tmp_path_factory):
    """A run of 40 steps that came to its end: processes, flags, workdir."""
    flags = [*SHORT, f"--config.data.store={tiny_store}"]
    workdir = tmp_path_factory.mktemp("finished") / "run"
    with training(*flags, workdir=workdir, processes=request.param) as run:
        run.finish()
    assert saved_steps(workdir) == [20, 30, 40]
    return request.param, flags, workdir


@pytest.mark.long
@pytest.mark.fault(4, "the newest checkpoint of a run of one process, and of two")
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(finished, tmp_path):
    processes, flags, before = finished
    workdir = shutil.copytree(before, tmp_path / "run")
    damage(workdir)
    with training(*flags, workdir=workdir, processes=processes) as run:
        said = run.finish()
        assert all("Traceback" not in run.output(number) for number in range(processes))
    aside = workdir / "checkpoints_damaged" / "40"
    assert said.count(f"moved to {aside}") == 1
    assert aside.is_dir()
    assert saved_steps(workdir) == [20, 30, 40]
    assert lines_of(workdir) == lines_of(before)


@pytest.mark.long
@pytest.mark.fault(5, "an empty folder named as a later step, for one process and for two")
def test_a_run_goes_on_beside_a_stray_folder(finished, tmp_path):
    processes, flags, before = finished
    workdir = shutil.copytree(before, tmp_path / "run")
    (workdir / "checkpoints" / "99" / "default").mkdir(parents=True)
    with training(*flags, workdir=workdir, processes=processes) as run:
        said = run.finish()
    assert "99 holds no file" in said
    assert saved_steps(workdir) == [20, 30, 40]
    assert lines_of(workdir) == lines_of(before)


@pytest.mark.long
@pytest.mark.fault(4, "every checkpoint of a run of one process, and of two")
def test_a_run_without_a_whole_checkpoint_is_refused(finished, tmp_path):
    processes, flags, before = finished
    workdir = shutil.copytree(before, tmp_path / "run")
    for step in saved_steps(workdir):
        (workdir / "checkpoints" / str(step) / "state" / "manifest.ocdbt").write_bytes(b"")
    with training(*flags, workdir=workdir, processes=processes) as run:
        said = run.finish(code=2)
    assert "holds 3 checkpoints and none is whole" in said
    assert saved_steps(workdir) == [20, 30, 40]
