"""Exchange short texts between the processes of a run, each time with a time limit.

The texts go through the coordination service that jax.distributed.initialize starts, which, unlike
collectives, answers while devices are busy or stuck. A single process exchanges nothing.

An idle connection between process 0 and each other one, kept from the start (runtime/startup.py),
closes when one of the two dies, long before jax misses a heartbeat.
"""

import collections
import contextlib
import itertools
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax

# The service has no public interface; multihost_utils has barriers and gathers without a limit.
from jax._src import distributed

from data_pipeline.cli.live_line import LINE
from data_pipeline.io import Refused

Result = TypeVar("Result")

_FAILING, _LEAVING = "failing", "leaving"  # topics of posts: "CODE REASON"
LEAVING_SECS = 8.0  # longest wait until the other processes have read why this one ends
_SLICE_SECS = 1.0  # a wait is cut into slices, between which Python handles signals

DIED = "has died: it was killed, or its host went down"  # the reason that others report
_GOODBYE = b"bye\n"  # sent by a process that exits on its own, not killed
_NAME_SECS = 3.0  # longest wait to learn which process died

_hosts: list[str] = []  # host of each process, once exchanged
_peers: dict[int, socket.socket] = {}  # connections by the process at the other end

_rounds: collections.defaultdict[str, "itertools.count[int]"] = collections.defaultdict(
    itertools.count
)


def number() -> int:
    """Return the number of this process, from 0; unlike jax.process_index it touches no device."""
    return int(distributed.global_state.process_id)


def count() -> int:
    """Return the number of processes of the run; touches no device either."""
    return int(distributed.global_state.num_processes)


def name_processes(numbers: list[int]) -> str:
    """Name processes in a sentence: "process 3", "processes 1 and 3"."""
    words = [str(number) for number in numbers]
    if len(words) == 1:
        return f"process {words[0]}"
    return f"processes {', '.join(words[:-1])} and {words[-1]}"


def name_process(number: int) -> str:
    """Name a process with its host, if that is known: "process 3 (worker-3)"."""
    return f"process {number}" + (f" ({_hosts[number]})" if number < len(_hosts) else "")


def keep_hosts(hosts: Sequence[str]) -> None:
    """Remember the host of each process, for errors."""
    _hosts[:] = hosts


def keep_connections(connections: Mapping[int, socket.socket]) -> None:
    """Keep the connections to other processes open until this process ends."""
    _peers.update(connections)
    for connection in connections.values():
        # Without a packet now and then, firewalls forget an idle connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setblocking(False)


def watch_connections(
    lose: Callable[[int], None], ended: threading.Event, tick_secs: float
) -> None:
    """Call `lose` with each process whose connection closes without a goodbye, until `ended`."""
    with selectors.DefaultSelector() as selector:
        for number, connection in _peers.items():
            selector.register(connection, selectors.EVENT_READ, number)
        while not ended.is_set():
            for key, _ in selector.select(tick_secs):
                selector.unregister(key.fileobj)
                try:
                    is_lost = _peers[key.data].recv(len(_GOODBYE)) != _GOODBYE
                except ConnectionResetError:
                    is_lost = True
                except OSError:  # the network may be gone: heartbeats decide
                    is_lost = False
                if is_lost and not ended.is_set():
                    lose(key.data)


def say_goodbye() -> None:
    """Tell the connected processes that this one exits on its own."""
    for connection in _peers.values():
        with contextlib.suppress(OSError):
            connection.send(_GOODBYE)


def agree(name: str, value: str, limit_secs: float) -> list[str]:
    """Exchange a value with all processes; return the list by process number, [value] if alone.

    All processes must call this with the same name and equally often. The name describes the value
    in errors, such as "the step to resume from".

    Raises:
      TimeoutError: names the processes that did not answer within limit_secs.
      ConnectionError: the coordination service cannot be asked.
    """
    state = distributed.global_state
    if state.client is None:
        return [value]
    turn = next(_rounds[name])
    if turn >= 2:  # all have set turn - 1, so all have read turn - 2
        state.client.key_value_delete(_key(name, turn - 2, state.process_id))
    state.client.key_value_set(_key(name, turn, state.process_id), value)
    end_secs = time.monotonic() + limit_secs
    answers = [
        _await(state.client, _key(name, turn, i), end_secs) for i in range(state.num_processes)
    ]
    missing = [i for i, answer in enumerate(answers) if answer is None]
    if missing:
        raise TimeoutError(
            f"{name}: {len(missing)} of {state.num_processes} processes did not answer within "
            f"{limit_secs:g} s, {name_processes(missing)}; look at their output and their hosts, "
            "and start the run again"
        )
    return [answer for answer in answers if answer is not None]


def ask_first(name: str, ask: Callable[[], str], limit_secs: float) -> str:
    """Run `ask` on process 0, and return its answer on every process.

    An error of `ask` is raised unchanged on process 0, and on the others as Refused or an OSError.
    """
    answer, failure = " ", None
    if number() == 0:
        try:
            answer = f"found {ask()}"
        except Exception as error:
            kind = "refused" if isinstance(error, Refused) else "failed"
            answer = f"{kind} {' '.join(str(error).split()) or type(error).__name__}"
            failure = error
    kind, _, text = agree(name, answer, limit_secs)[0].partition(" ")
    if failure is not None:
        raise failure
    if kind == "found":
        return text
    raise Refused(text) if kind == "refused" else OSError(text)


def run_first(name: str, work: Callable[[], Result], limit_secs: float) -> Result:
    """Run `work` on process 0, then on the others; return each process's own result.

    An error on process 0 is raised on all, as ask_first does.
    """
    results: list[Result] = []

    def work_first() -> str:
        results.append(work())
        return ""

    ask_first(name, work_first, limit_secs)
    return results[0] if results else work()


def _key(name: str, turn: int, process: int) -> str:
    return f"bert_jax/agree/{name}/{turn}/{process}"


def _await(client: Any, key: str, end_secs: float) -> str | None:
    """Wait for the value of a key until end_secs (time.monotonic); None if it is not set."""
    while True:
        left_secs = max(end_secs - time.monotonic(), 0.001)
        slice_ms = max(1, round(1000 * min(left_secs, _SLICE_SECS)))
        try:
            return str(client.blocking_key_value_get(key, slice_ms))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise ConnectionError(f"the other processes cannot be asked: {error}") from error
            if time.monotonic() >= end_secs:
                return None


def are_joined() -> bool:
    """Return whether jax.distributed.initialize was called, even for one process."""
    return distributed.global_state.client is not None


def post(topic: str, text: str, process: int | None = None) -> None:
    """Leave a text for all processes to read, replacing the previous text of this process.

    `process` is a dead process on whose behalf the text is left.
    """
    client = distributed.global_state.client
    if client is not None:
        process = number() if process is None else process
        client.key_value_set(f"bert_jax/{topic}/{process}", text, allow_overwrite=True)


def read_posts(topic: str) -> dict[int, str]:
    """Return the texts that processes have left so far, by process number; do not wait."""
    client = distributed.global_state.client
    if client is None:
        return {}
    entries = client.key_value_dir_get(f"bert_jax/{topic}/")
    return {int(key.rpartition("/")[2]): text for key, text in entries}


def report_failure(code: int, reason: str, process: int | None = None) -> None:
    """Tell all processes that this one, or `process`, is ending, with its exit code and reason."""
    post(_FAILING, f"{code} {reason}", process)


def read_failures() -> dict[int, tuple[int, str]]:
    """Return the exit code and reason of each process known to be ending or ended early."""
    posts = read_posts(_FAILING) | read_posts(_LEAVING)
    split = {number: text.partition(" ") for number, text in posts.items()}
    return {process: (int(code), reason) for process, (code, _, reason) in split.items()}


def is_loss_of_another(error: jax.errors.JaxRuntimeError) -> bool:
    """Return whether an error of jax says that another process of the run was lost."""
    words = ("Gloo", "UNAVAILABLE", "Connection reset", "Connection closed", "heartbeat")
    return count() > 1 and any(word in str(error) for word in words)


def find_dead() -> int | None:
    """Return the number of a dead process, waiting up to _NAME_SECS for it; None if unknown."""
    end_secs = time.monotonic() + _NAME_SECS
    while time.monotonic() < end_secs:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if dead := _list_dead():
                return min(dead)
        time.sleep(0.1)
    return None


def leave(code: int, reason: str) -> NoReturn:
    """End this process with an exit code, whatever its threads do, and report why to the others.

    A normal exit runs jax's shutdown, which waits for all processes. `leave` waits only until all
    have read the reason and are leaving too: the service ends with process 0, and steps of the
    other processes would fail without this one.
    """
    if are_joined():
        # A thread has a time limit; a stuck service would never answer.
        telling = threading.Thread(target=_tell, args=(code, reason), daemon=True)
        telling.start()
        telling.join(LEAVING_SECS)
    say_goodbye()
    LINE.close()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _tell(code: int, reason: str) -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the service may have ended
        post(_LEAVING, f"{code} {reason}")
        while len(read_posts(_LEAVING).keys() | _list_dead()) < count():
            time.sleep(0.1)
        if number() == 0:  # the service ends with this one, so it goes last
            time.sleep(1.0)


def _list_dead() -> set[int]:
    return {process for process, (_, reason) in read_failures().items() if reason == DIED}
