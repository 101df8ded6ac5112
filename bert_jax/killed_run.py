"""A training run that is killed again and again: its processes, the moments, and what each cost."""

import dataclasses
import json
import math
import pathlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from bert_jax import wall_time
from bert_jax.exit_codes import DONE
from bert_jax.receipt import CHECKPOINTS

SHARE_IN_SAVES = 0.4  # of the kills, rounded up
SHARE_STARTING = 0.1  # of the others come before the first step of an attempt
MOST_APART_SECS = 0.3  # between the processes of a run, when one is killed after the other
_POLL_SECS = 0.002
_TAIL_BYTES = 4096


class Ended(Exception):
    """A run came to an end that was not asked for; one sentence."""


@dataclasses.dataclass(frozen=True)
class Kill:
    """All processes of an attempt were killed."""

    moment: str  # what the run was doing
    secs: float  # since the attempt was started
    step: int  # the last one that the attempt wrote down, or went on from
    attempts: int  # that had begun to train by then


class Processes:
    """The processes of one attempt, on this machine."""

    def __init__(self, command: Sequence[str], count: int, output: pathlib.Path) -> None:
        """What they write is added to a file."""
        self.began = time.time()
        self._output = output
        self._processes: list[subprocess.Popen[bytes]] = []
        joined = []
        if count > 1:
            address = f"--coordinator_address=127.0.0.1:{_free_port()}"
            joined = ["--multihost", address, f"--num_processes={count}"]
        with output.open("ab") as file:
            for number in range(count):
                own = [f"--process_id={number}"] if count > 1 else []
                self._processes.append(_started([*command, *joined, *own], file))

    def have_ended(self) -> bool:
        """Whether any has."""
        return any(process.poll() is not None for process in self._processes)

    def signal(self, number: int) -> None:
        """Send a signal to all."""
        for process in self._processes:
            process.send_signal(number)

    def kill(self, rng: random.Random) -> None:
        """Kill one after the other, in any order."""
        for process in rng.sample(self._processes, len(self._processes)):
            process.kill()
            if len(self._processes) > 1:
                time.sleep(rng.uniform(0.0, MOST_APART_SECS))
        for process in self._processes:
            process.wait()

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
          Ended: a process failed.
        """
        codes = [process.wait() for process in self._processes]
        if set(codes) != {DONE}:
            lines = self._output.read_text(errors="replace").strip().splitlines()
            last = next((line for line in reversed(lines) if line.startswith("error")), lines[-1])
            raise Ended(f"the run ended with exit code {max(codes, key=abs)}: {last}")

    def close(self) -> None:
        """Leave nothing running."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _started(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclasses.dataclass(frozen=True)
class Pace:
    """What the run that nobody kills took."""

    starting_secs: float  # until its first step
    interval_secs: float  # between two lines of metrics


def pace(workdir: pathlib.Path, log_every_steps: int) -> Pace:
    """Of the finished run in workdir."""
    ((*_, last),) = wall_time.read(workdir / wall_time.FILE)
    starting = last.secs.get(wall_time.STARTING, 0.0) + last.secs.get(wall_time.COMPILING, 0.0)
    return Pace(starting, log_every_steps * last.secs[wall_time.TRAINING] / last.step)


class KilledRun:
    """The attempts of a run, each but the last of them killed."""

    def __init__(
        self,
        start: Callable[[], Processes],
        workdir: pathlib.Path,
        steps: int,
        pace: Pace,
        rng: random.Random,
    ) -> None:
        """`start` begins an attempt; steps is how many the whole run has."""
        self.kills: list[Kill] = []
        self._start, self._workdir, self._steps = start, workdir, steps
        self._pace, self._rng = pace, rng

    def kill(self, number: int, of: int) -> Kill:
        """Start an attempt, wait for a random moment of the `number`th part of the run, kill it.

        Raises:
          Ended: the run ended before.
        """
        so_far = sum(kill.moment == "in a save" for kill in self.kills)
        left = math.ceil(of * SHARE_IN_SAVES) - so_far
        in_save = self._rng.random() < left / (of - number)
        until_step = int(self._steps * (number + self._rng.random()) / of)
        processes = self._start()
        try:
            moment = self._wait(processes, until_step, in_save)
            secs = time.time() - processes.began
            processes.kill(self._rng)
        finally:
            processes.close()
        attempts = wall_time.read(self._workdir / wall_time.FILE)
        step = attempts[-1][-1].step if attempts else 0
        self.kills.append(Kill(moment, secs, step, len(attempts)))
        return self.kills[-1]

    def _wait(self, processes: Processes, until_step: int, in_save: bool) -> str:
        """Wait for the moment to kill; what the run is doing then."""
        if not in_save and self._rng.random() < SHARE_STARTING:
            time.sleep(self._rng.uniform(0.0, self._pace.starting_secs))
            return "before its first step"
        self._until(processes, lambda: _last(self._workdir, processes.began) is not None)
        before = _half_saved(self._workdir)

        def is_there() -> bool:
            last = _last(self._workdir, processes.began)
            return last is not None and last["step"] >= until_step

        self._until(processes, is_there)
        if not in_save:
            time.sleep(self._rng.uniform(0.0, self._pace.interval_secs))
            return "in training"
        while True:
            self._until(processes, lambda: bool(_half_saved(self._workdir) - before))
            processes.signal(signal.SIGSTOP)  # or it could be over before the kill
            if _half_saved(self._workdir) - before:
                return "in a save"
            processes.signal(signal.SIGCONT)

    def _until(self, processes: Processes, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if processes.have_ended():
                processes.finish()
                raise Ended(
                    f"the run came to its end after {len(self.kills)} kills: give it more steps "
                    "(--config.phases[0].steps), or fewer --kills"
                )
            time.sleep(_POLL_SECS)

    def redone(self) -> list[tuple[int, int]]:
        """After the run: the step it went on from after each kill, and the steps done again."""
        attempts = wall_time.read(self._workdir / wall_time.FILE)
        on_from = [attempts[kill.attempts][0].step for kill in self.kills]
        return [
            (step, max(0, kill.step - step)) for kill, step in zip(self.kills, on_from, strict=True)
        ]


def _last(workdir: pathlib.Path, began: float) -> dict[str, Any] | None:
    """The newest line of an attempt that began since then, None before it has one."""
    path = workdir / wall_time.FILE
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    try:
        line = dict(json.loads(lines[-1]))
    except (ValueError, IndexError):  # of an attempt that was killed while it wrote
        return None
    return line if line["began"] >= began else None


def _half_saved(workdir: pathlib.Path) -> set[tuple[str, int]]:
    """The checkpoints that are not committed, or were left half written."""
    found = set()
    for path in (workdir / CHECKPOINTS).glob("*.orbax-checkpoint-tmp*"):
        try:
            found.add((path.name, path.stat().st_ino))
        except FileNotFoundError:  # committed meanwhile
            continue
    return found
