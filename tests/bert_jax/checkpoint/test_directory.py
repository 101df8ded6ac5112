"""Reading a checkpoint's files: which errors are damage, and which may pass on the next try."""

import contextlib
import errno
import os
import re
import threading
import time

import pytest
from etils import epath

from bert_jax.checkpoint import directory, manager
from bert_jax.parallel import processes

FOLDER = epath.Path("gs://runs/mine/checkpoints")
OF_TENSORSTORE = (
    'Error reading "params/.zarray" in OCDBT database at local file "/w/8/d/500": Failed to read '
    "from file [OS error {number}: {words}]"
)


class HttpError(Exception):
    """Like gcsfs's, which has no base but Exception."""

    code = 503


def of_tensorstore(number: int) -> ValueError:
    return ValueError(OF_TENSORSTORE.format(number=number, words=os.strerror(number)))


@pytest.mark.parametrize("place", ["/w/checkpoints/8", "/w/run-404/500", "gs://runs/r-404/c/500"])
@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        ValueError('NOT_FOUND: Error reading object "{place}/d/503abc"'),
        ValueError("DATA_LOSS: Digest mismatch at {place}/d/403"),
        KeyError("params"),
    ],
)
def test_what_is_missing_or_otherwise_is_damage(error, place):
    if isinstance(error, ValueError):
        error = ValueError(str(error).format(place=place))
    assert directory.is_damage(error, epath.Path(place))


def test_what_a_disk_cannot_read_is_damage_and_what_it_refuses_is_not():
    path = epath.Path("/w/checkpoints/8")
    for number in (errno.EIO, errno.ESTALE, errno.EACCES):
        is_damage = number == errno.EIO
        for error in (OSError(number, os.strerror(number)), of_tensorstore(number)):
            assert directory.is_damage(error, path) == is_damage


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (ConnectionResetError("reset"), "gs://runs/mine/checkpoints/8"),
        (ValueError("UNAVAILABLE: HTTP response code: 503"), "gs://runs/mine/checkpoints/8"),
        (ValueError("PERMISSION_DENIED: HTTP response code: 403"), "gs://runs/mine/checkpoints/8"),
        (OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)), "/w/checkpoints/8"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "/w/checkpoints/8"),
        (MemoryError(), "/w/checkpoints/8"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), "/w/checkpoints/8"),
    ],
)
def test_what_a_disk_a_bucket_or_this_process_may_do_later_is_no_damage(error, place):
    assert not directory.is_damage(error, epath.Path(place))


def test_a_bucket_that_is_late_while_checkpoints_are_listed_may_be_asked_again(monkeypatch):
    def late(path):
        raise HttpError("Service Unavailable")

    monkeypatch.setattr(directory.ocp.path.step, "checkpoint_steps_paths", late)
    monkeypatch.setattr(type(epath.Path("gs://b/checkpoints")), "is_dir", lambda path: True)
    with pytest.raises(ConnectionError, match="gs://b/checkpoints: listing failed"):
        directory.find_steps(epath.Path("gs://b/checkpoints"))


def test_a_receipt_that_a_bucket_does_not_give_now_is_no_damage():
    class Late(type(FOLDER)):
        def stat(self):
            raise HttpError("Service Unavailable, 503")

    with pytest.raises(ConnectionError):
        directory.read_json(Late(FOLDER / "8" / "a.json"))


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (
            HttpError("Service Unavailable, 503"),
            OSError,
            f"{FOLDER}: reading failed, the bucket does not answer as it should.*",
        ),
        (RuntimeError("a bug"), RuntimeError, "a bug"),
    ],
)
def test_what_process_0_meets_in_a_folder_is_raised_once_the_others_know(
    monkeypatch, error, kind, told
):
    answers = []

    def agree(what, answer, within_secs):
        answers.append(answer)
        return [answer, " "]

    def find_steps(folder):
        raise error

    monkeypatch.setattr(processes, "agree", agree)
    monkeypatch.setattr(directory, "find_steps", find_steps)
    with pytest.raises(kind, match=told):
        manager.list_on_process_0(FOLDER)
    (answer,) = answers
    assert re.fullmatch(f"failed {told}", answer)


def test_a_failed_save_is_removed_while_a_thread_still_writes_it(tmp_path):
    folder = tmp_path / "2.orbax-checkpoint-tmp"
    (tmp_path / "1").mkdir()
    began = threading.Event()

    def write():
        for number in range(40):
            with contextlib.suppress(FileNotFoundError):  # removed in between
                folder.mkdir(exist_ok=True)
                (folder / str(number)).touch()
            began.set()
            time.sleep(0.005)

    thread = threading.Thread(target=write)
    thread.start()
    began.wait()
    while thread.is_alive():  # the last file may come after the folder went
        directory.remove_uncommitted(epath.Path(tmp_path))
    directory.remove_uncommitted(epath.Path(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    directory.remove_uncommitted(epath.Path("gs://b/checkpoints"))
