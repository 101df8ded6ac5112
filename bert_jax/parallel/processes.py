"""Exchange short texts between the processes of a run, each time with a time limit.

They go through the coordination service that jax.distributed.initialize starts: it answers while
devices are busy or stuck, unlike collectives on devices. A single process exchanges nothing.
"""

import collections
import contextlib
import itertools
import os
import sys
import threading
import time
from typing import Any, NoReturn

import jax

# The service has no public interface; multihost_utils has barriers and gathers without a limit.
from jax._src import distributed

_FAILED = "failed"
LEAVING_SECS = 8.0  # at most, so that the others can read why this process ends
_SLICE_SECS = 1.0  # of a wait; in between Python handles its signals

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
    if turn >= 2:  # whoever came to the last turn has read the one before it
        state.client.key_value_delete(_key(name, turn - 2, state.process_id))
    state.client.key_value_set(_key(name, turn, state.process_id), value)
    end_secs = time.monotonic() + limit_secs
    answers = [
        _answer(state.client, _key(name, turn, i), end_secs) for i in range(state.num_processes)
    ]
    missing = [i for i, answer in enumerate(answers) if answer is None]
    if missing:
        raise TimeoutError(
            f"{name}: {len(missing)} of {state.num_processes} processes did not answer within "
            f"{limit_secs:g} s, {name_processes(missing)}; look at their output and their hosts, "
            "and start the run again"
        )
    return [answer for answer in answers if answer is not None]


def _key(name: str, turn: int, process: int) -> str:
    return f"bert_jax/agree/{name}/{turn}/{process}"


def _answer(client: Any, key: str, end_secs: float) -> str | None:
    """Wait for the value of a key; None if it is not set by then."""
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


def post(topic: str, text: str) -> None:
    """Leave a text for all processes to read, in place of the one that this process left before."""
    client = distributed.global_state.client
    if client is not None:
        client.key_value_set(f"bert_jax/{topic}/{number()}", text, allow_overwrite=True)


def read_posts(topic: str) -> dict[int, str]:
    """Return the texts that processes have left so far, by process number; waits for none."""
    client = distributed.global_state.client
    if client is None:
        return {}
    entries = client.key_value_dir_get(f"bert_jax/{topic}/")
    return {int(key.rpartition("/")[2]): text for key, text in entries}


def failures() -> dict[int, tuple[int, str]]:
    """Return exit code and reason of each process that ended early and could report them."""
    split = {number: text.partition(" ") for number, text in read_posts(_FAILED).items()}
    return {process: (int(code), reason) for process, (code, _, reason) in split.items()}


def is_loss_of_another(error: Exception) -> bool:
    """Return whether an error of jax says that another process of the run was lost."""
    words = ("Gloo", "UNAVAILABLE", "Connection reset", "Connection closed", "heartbeat")
    is_of_jax = isinstance(error, jax.errors.JaxRuntimeError)
    return is_of_jax and count() > 1 and any(word in str(error) for word in words)


def leave(code: int, reason: str) -> NoReturn:
    """End this process with an exit code, whatever its threads do, and report why to the others.

    A normal exit runs jax's shutdown, which waits for all processes. This waits only until all have
    read the reason and are leaving too: the service ends with process 0, and steps of the others
    would fail without this process.
    """
    if are_joined():
        # In a thread: where the service is stuck as well, asking it would not end either.
        telling = threading.Thread(target=_tell, args=(code, reason), daemon=True)
        telling.start()
        telling.join(LEAVING_SECS)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _tell(code: int, reason: str) -> None:
    post(_FAILED, f"{code} {reason}")
    while len(failures()) < count():
        time.sleep(0.1)
    if number() == 0:  # the service ends with this one, so it goes last
        time.sleep(1.0)
