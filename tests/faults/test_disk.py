"""A disk that is full or read-only: before the run, under its records, under its checkpoints."""

import contextlib
import functools
import os
import re

import jax
import numpy as np
import pytest

from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig
from bert_jax.logging.metrics_writer import MetricsFile
from bert_jax.runtime.workdir import open_local_workdir
from bert_jax.train_step import state
from data_pipeline.io.jsonl import read_records
from tests.bert_jax import tiny_models
from tests.faults import disks
from tests.faults.disks import disk

pytestmark = pytest.mark.slow


FULL = r"/disk/run: .* no space is left on the disk \(0\.00 GB"
READ_ONLY = r"/disk/run: making the folder failed, the file system is read-only; mount it for"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        pytest.param(
            disks.fill, FULL, marks=pytest.mark.fault(6, "the disk is full before the run")
        ),
        pytest.param(
            *(disks.make_read_only, READ_ONLY),
            marks=pytest.mark.fault(6, "the disk is read-only before the run"),
        ),
    ],
)
def test_a_disk_that_cannot_be_written_is_found_before_the_run(tmp_path, harm, words):
    folder = tmp_path / "disk"
    with disk(folder, 1 << 20):
        harm(folder)
        with pytest.raises(OSError, match=words):
            open_local_workdir(folder / "run").claim(is_writer=True)


@pytest.mark.fault(6, "the workdir, or the checkpoints in it, belong to another user")
@pytest.mark.parametrize("refused", ["run", "run/checkpoints"])
def test_a_folder_of_another_user_is_found_before_the_run(tmp_path, refused):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for path in (tmp_path, *tmp_path.parents):  # to the others, pytest's folders are shut
        if path.stat().st_mode & 0o005 != 0o005:
            path.chmod(0o755)
    for name in ("run", "run/checkpoints"):
        (tmp_path / name).chmod(0o755 if name == refused else 0o777)
    os.seteuid(65534)
    try:
        action = "writing a file as a test"
        words = f"^{tmp_path / refused}: {action} failed, this user lacks the permission"
        with pytest.raises(OSError, match=words):
            open_local_workdir(tmp_path / "run").claim(is_writer=True)
    finally:
        os.seteuid(0)


@pytest.mark.fault(6, "the disk of the records fills up during the run")
def test_records_that_do_not_fit_are_an_error_at_once(tmp_path):
    folder = tmp_path / "disk"
    with disk(folder, 1 << 20):
        records = MetricsFile(folder)
        records.on_start(0)
        records.on_record(1, "train", {"loss": 1.0})
        disks.fill(folder)
        words = r"/disk: writing the records of the run failed, no space is left on the disk"
        words += r" \(0\.00"
        with pytest.raises(OSError, match=words):
            for step in range(2, 1000):
                records.on_record(step, "train", {"loss": 1.0})
        (folder / "filler").unlink()
        first = {"step": 1, "split": "train", "loss": 1.0}
        assert read_records(folder / "metrics.jsonl")[0] == first
        records.on_close(None)


@pytest.fixture(scope="module")
def of():
    """A tiny model, and a state of it to be saved."""
    setting = tiny_models.setting(tiny_models.CONFIG, 1)
    return setting, state.init_state(setting.model, setting.tx, setting.where, seed=0)


@pytest.fixture
def saved(of, tmp_path):
    """Checkpoints on a disk of their own, step 1 among them."""
    setting, fresh = of
    folder = tmp_path / "checkpoints"
    with disk(folder, 8 << 20):
        checkpoints = Checkpoints(folder, CheckpointConfig(), setting.model)
        checkpoints.save(1, fresh, {"of": 1})
        checkpoints.wait()
        yield folder, checkpoints, functools.partial(saved_again, setting, fresh, folder)
        with contextlib.suppress(OSError):
            checkpoints.close()


def saved_again(setting, fresh, folder):
    """The number saved with the newest checkpoint, which holds the same arrays."""
    again = Checkpoints(folder, CheckpointConfig(), setting.model)
    found, numbers = again.restore(
        lambda step: state.make_abstract_state(setting.model, setting.tx, setting.where)
    )
    again.close()
    jax.tree.map(np.testing.assert_array_equal, found, fresh)
    return numbers["of"]


@pytest.mark.fault(6, "the disk of the checkpoints fills up during the run")
def test_a_save_on_a_full_disk_is_tried_again_and_then_ends_the_run(of, saved):
    folder, checkpoints, newest = saved
    disks.fill(folder)
    checkpoints.save(2, of[1], {"of": 2})
    said: list[str] = []
    words = (
        r"/checkpoints: saving the checkpoint of step {} failed, no space is left on the disk "
        r"\(0\.0\d GB free\); "
    )
    with pytest.raises(OSError, match=words.format(3)) as failed:
        checkpoints.save(3, of[1], {"of": 3}, said.append)
    assert str(failed.value).endswith("; step 1 is safe")
    (line,) = said
    assert re.search(words.format(2) + ".*; step 1 is safe; trying again with step 3$", line)
    (folder / "filler").unlink()
    assert newest() == 1


@pytest.mark.fault(6, "the disk of the checkpoints is full for one save")
def test_a_save_after_one_that_failed_cleans_up_and_is_kept(of, saved):
    folder, checkpoints, newest = saved
    disks.fill(folder)
    checkpoints.save(2, of[1], {"of": 2})
    checkpoints.save(3, of[1], {"of": 3}, say=lambda line: (folder / "filler").unlink())
    assert newest() == 3
    assert sorted(path.name for path in folder.iterdir()) == ["1", "3"]


@pytest.mark.long  # Orbax's threads keep the process of the tests for five minutes more
@pytest.mark.fault(6, "the disk of the checkpoints becomes read-only during the run")
def test_a_save_on_a_read_only_disk_ends_the_run(of, saved):
    folder, checkpoints, newest = saved
    disks.make_read_only(folder)
    words = (
        r"/checkpoints: saving the checkpoint of step 2 failed, the file system is read-only; .*; "
        r"step 1 is safe$"
    )
    with pytest.raises(OSError, match=words):
        checkpoints.save(2, of[1], {"of": 2})
        checkpoints.wait()
    disks.make_writable(folder)
    assert newest() == 1
