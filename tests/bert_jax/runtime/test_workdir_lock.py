"""One run in a workdir: who is refused, who may come after whom."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import fsspec
import pytest

from bert_jax.runtime import workdir_lock
from bert_jax.runtime.workdir_lock import Lease, is_locked, lock_folder
from data_pipeline.io.bucket import Bucket
from data_pipeline.io.small_files import DamagedFile
from tests.faults.runs import ROOT

HOLDER = """
import pathlib, sys, time
from bert_jax.runtime.workdir_lock import lock_folder
lock_folder(pathlib.Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_folder_in_use_is_refused_until_its_process_is_killed(other, tmp_path):
    who = f"process {other.pid} on {socket.gethostname()}"
    with pytest.raises(ValueError, match=f"in use by the run of {who}; wait until it ends"):
        lock_folder(tmp_path)
    assert is_locked(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not is_locked(tmp_path)
    lock_folder(tmp_path)
    assert not is_locked(tmp_path)  # by another process
    lock_folder(tmp_path)  # this process may come back to its own
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


@pytest.mark.fault(23, "the lock is a link, a pipe or a folder, or holds something else")
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_has_the_lock_s_name_is_never_followed(tmp_path, kind):
    outside, run = tmp_path / "outside", tmp_path / "run"
    run.mkdir()
    lock = run / "lock"
    if kind == "link":
        outside.write_text("mine")
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(outside)
    with pytest.raises(DamagedFile, match=r"run/lock is a link, a folder or a device"):
        lock_folder(run)
    assert outside.exists() == (kind == "link")
    assert kind != "link" or outside.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 10**5, "process unknown on an unknown host"),
        (b"\xff\x00" * 99, "process unknown on an unknown host"),
        (b'{"pid": [], "host": {}}', "process unknown on an unknown host"),
        (b'{"pid": 7, "host": "\\u001b[2J"}', "process 7 on an unknown host"),
        (b'{"pid": 7, "host": "%s"}' % (b"a" * 999), "process 7 on an unknown host"),
    ],
)
def test_a_lock_that_holds_something_else_is_still_a_lock(other, tmp_path, content, words):
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        lock_folder(tmp_path)


@pytest.fixture
def bucket(monkeypatch):
    for name, secs in (("RENEW_SECS", 0.05), ("DEAD_SECS", 0.4), ("_LOOK_SECS", 0.02)):
        monkeypatch.setattr(workdir_lock, name, secs)
    yield Bucket("memory://runs/mine")
    fsspec.filesystem("memory").rm("/runs", recursive=True)


def on_another_host(monkeypatch):
    """From now on this is a process of another host."""
    monkeypatch.setattr(socket, "gethostname", lambda: "other-host")


def test_a_bucket_in_use_is_refused_as_soon_as_its_run_renews_the_lock(bucket, monkeypatch):
    lease = Lease(bucket, home="one")
    here = socket.gethostname()
    on_another_host(monkeypatch)
    begun = time.monotonic()
    with pytest.raises(ValueError, match=f"process {os.getpid()} on {here}; wait until it ends"):
        Lease(bucket)
    assert time.monotonic() - begun < workdir_lock.DEAD_SECS
    lease.close()
    after = Lease(bucket)  # given back: no waiting
    assert after.before["home"] == "one"
    after.close()


def test_a_dead_run_of_another_host_is_waited_for_and_followed(bucket, monkeypatch):
    monkeypatch.setattr(workdir_lock, "RENEW_SECS", 600)  # never heard of again
    dead = Lease(bucket, home="one")
    on_another_host(monkeypatch)
    begun = time.monotonic()
    lease = Lease(bucket)
    assert time.monotonic() - begun >= workdir_lock.DEAD_SECS
    with pytest.raises(OSError, match=r"was taken by the run of process .* on other-host while"):
        dead.check()
    dead.close()  # must not give back what is no longer its own
    lease.check()
    lease.close()


@pytest.fixture
def gone_pid():
    """The number of a process that has ended."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    return gone.pid


def test_a_dead_process_of_this_host_is_followed_at_once(bucket, gone_pid):
    for pid in (gone_pid, os.getpid()):  # or the number was given again
        lock = workdir_lock._make_holder(run="x", renewed=3, home="h") | {"pid": pid}
        bucket.write("lock", json.dumps(lock).encode())
        begun = time.monotonic()
        lease = Lease(bucket)
        assert time.monotonic() - begun < workdir_lock.DEAD_SECS
        assert lease.before["home"] == "h"
        lease.close()


def test_a_half_written_lock_is_nobodys(bucket):
    bucket.write("lock", b'{"host": "so')
    Lease(bucket).close()


@pytest.mark.parametrize("other", [{"pids": "pid:[7]"}, {"boot": "another"}, {"pids": None}])
def test_a_pid_that_means_nothing_here_tells_of_no_death(bucket, gone_pid, other):
    """Two containers of one host name: the other's pid is no process here, and it lives."""
    lock = {**workdir_lock._make_holder(run="x"), **other, "pid": gone_pid}
    bucket.write("lock", json.dumps(lock | {"renewed": 3}).encode())
    renewal = threading.Timer(
        0.1, lambda: bucket.write("lock", json.dumps(lock | {"renewed": 4}).encode())
    )
    renewal.start()
    with pytest.raises(ValueError, match=f"in use by the run of process {gone_pid}"):
        Lease(bucket)
    renewal.join()


@pytest.mark.parametrize("error", [PermissionError("403"), RuntimeError("of a driver")])
def test_the_lock_is_renewed_again_after_any_error_but_a_taken_lock(bucket, monkeypatch, error):
    lease = Lease(bucket)
    left = [2]
    write = Bucket.write

    def failing(self, name, data):
        if left[0] > 0:
            left[0] -= 1
            raise error
        write(self, name, data)

    monkeypatch.setattr(Bucket, "write", failing)
    end = time.monotonic() + 20
    while left[0] and time.monotonic() < end:
        time.sleep(0.01)
    text = bucket.read("lock")
    while bucket.read("lock") == text and time.monotonic() < end:
        time.sleep(0.01)
    assert left[0] == 0 and bucket.read("lock") != text
    lease.close()
