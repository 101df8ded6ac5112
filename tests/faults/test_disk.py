"""A disk that is full or read-only: before the run, under its records, under its checkpoints."""

import os

import pytest

from bert_jax.log import Records, read_lines
from bert_jax.workdir import local
from tests.faults import disks
from tests.faults.disks import disk


@pytest.mark.fault(6, "the disk is full before the run")
def test_a_full_disk_is_found_before_the_run(tmp_path):
    folder = tmp_path / "disk"
    with disk(folder, 1 << 20):
        disks.fill(folder)
        with pytest.raises(OSError, match=r"/disk/run: .* no space is left on the disk \(0\.00 GB"):
            local(folder / "run").claim(is_writer=True)


@pytest.mark.fault(6, "the disk is read-only before the run")
def test_a_read_only_disk_is_found_before_the_run(tmp_path):
    folder = tmp_path / "disk"
    with disk(folder, 1 << 20):
        disks.make_read_only(folder)
        words = r"/disk/run: making the folder failed, the file system is read-only; mount it for"
        with pytest.raises(OSError, match=words):
            local(folder / "run").claim(is_writer=True)


@pytest.mark.fault(6, "the workdir, or the checkpoints in it, belong to another user")
@pytest.mark.parametrize("refused", ["run", "run/checkpoints"])
def test_a_folder_of_another_user_is_found_before_the_run(tmp_path, refused):
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for path in [tmp_path, *tmp_path.parents][:3]:
        path.chmod(0o755)
    for name in ("run", "run/checkpoints"):
        (tmp_path / name).chmod(0o755 if name == refused else 0o777)
    os.seteuid(65534)
    try:
        words = f"^{tmp_path / refused}: writing a file as a test failed, this user may not write"
        with pytest.raises(OSError, match=words):
            local(tmp_path / "run").claim(is_writer=True)
    finally:
        os.seteuid(0)


@pytest.mark.fault(6, "the disk of the records fills up during the run")
def test_records_that_do_not_fit_are_an_error_at_once(tmp_path):
    folder = tmp_path / "disk"
    with disk(folder, 1 << 20):
        records = Records(folder, 0, is_writer=True)
        records.write(1, "train", {"loss": 1.0})
        disks.fill(folder)
        words = (
            r"/disk: writing the records of the run failed, no space is left on the disk \(0\.00"
        )
        with pytest.raises(OSError, match=words):
            for step in range(2, 1000):
                records.write(step, "train", {"loss": 1.0})
        (folder / "filler").unlink()
        assert read_lines(folder / "metrics.jsonl")[0] == {"step": 1, "split": "train", "loss": 1.0}
        records.close(None)
