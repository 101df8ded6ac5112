"""Whether all processes of a run see the same folder, found before anything is written there.

A checkpoint is written by all of them, and each waits for the others' parts: on folders that only
have the same name they would wait for ever, without a word.
"""

import pathlib
import secrets
import socket
import time

from etils import epath

from bert_jax import processes

SEEN_SECS = 10.0  # for which a network disk may keep the old list of a folder's files


def check(folder: pathlib.Path | epath.Path, limit_secs: float) -> None:
    """Raise if a process does not find there what process 0 has just written; alone, do nothing.

    Raises:
      ValueError: names the processes that see another folder; the same sentence on all of them.
      OSError: process 0 cannot write there, or a process does not answer within limit_secs.
    """
    if processes.count() == 1:
        return
    nonce = secrets.token_hex(8) if processes.number() == 0 else ""
    was_there = folder.exists()
    if nonce:
        folder.mkdir(parents=True, exist_ok=True)
        _file(folder, nonce).write_text("whether all processes see this folder\n")
    try:
        nonce_of_all = processes.agree("what to look for in the workdir", nonce, limit_secs)[0]
        is_seen = _is_there(_file(folder, nonce_of_all))
        answer = "" if is_seen else socket.gethostname()
        hosts = processes.agree("whether all see the workdir", answer, limit_secs)
    except OSError:
        _remove(folder, nonce, was_there)
        raise
    # The others go on, and write there at once: a folder that all see stays.
    _remove(folder, nonce, was_there or not any(hosts))
    blind = {number: host for number, host in enumerate(hosts) if host}
    if blind:
        raise ValueError(
            f"--workdir={folder} is not the same folder on all hosts: "
            f"{processes.listed(list(blind))} ({', '.join(sorted(set(blind.values())))}) cannot "
            "see what process 0 wrote there; give a disk that all hosts have mounted, or gs://"
        )


def _file(folder: pathlib.Path | epath.Path, nonce: str) -> pathlib.Path | epath.Path:
    return folder / f".seen-by-all-{nonce}"


def _remove(folder: pathlib.Path | epath.Path, nonce: str, keeps_folder: bool) -> None:
    if nonce:
        _file(folder, nonce).unlink()
        if not keeps_folder:
            folder.rmdir()


def _is_there(path: pathlib.Path | epath.Path) -> bool:
    end_secs = time.monotonic() + SEEN_SECS
    while not path.exists():
        if time.monotonic() >= end_secs:
            return False
        time.sleep(0.5)
    return True
