"""Start training processes on this machine's CPU, wait for them, signal them, end them.

Nothing in the product knows of these tests: a fault comes from outside, as a signal or as a file
on the disk.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
# 350 steps of one small layer; a run that is to take longer is given more.
TINY = [
    "--config=configs/tiny.py",
    "--config.model.hidden_size=32",
    "--config.model.intermediate_size=64",
    "--config.model.num_hidden_layers=1",
    "--config.phases[0].seq_len=16",
    "--config.phases[0].batch_size=8",
    "--config.phases[0].max_predictions_per_seq=3",
    "--config.phases[1].seq_len=24",
    "--config.phases[1].batch_size=8",
    "--config.phases[1].max_predictions_per_seq=4",
    "--config.phases[1].steps=10",
    "--config.eval.examples=16",
]
# 40 steps of it in one phase: what is traced and compiled once.
ONE_PHASE = ["--config=tests/faults/one_phase.py"]
# On PYTHONPATH they harm what process 1 reads.
HOOKS = str(ROOT / "tests" / "faults" / "hooks")
POLL_SECS = 0.02


def environment(**changed: str) -> dict[str, str]:
    """Return the environment of the tests, with the flags that make compiling quick.

    Every compiled program is kept in the workdir for the next start.
    """
    settings = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    settings["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return os.environ | settings | changed


def command(*flags: object, module: str = "bert_jax.train") -> list[str]:
    return [sys.executable, "-m", module, *map(str, flags)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclasses.dataclass(frozen=True)
class Training:
    """Hold the processes of one training run; the output of each goes to a file."""

    workdir: pathlib.Path
    processes: list[subprocess.Popen]
    outputs: list[pathlib.Path]

    def output(self, number: int = 0) -> str:
        """Return the output of process `number` so far, stdout and stderr."""
        return self.outputs[number].read_text(errors="replace")

    def written(self) -> str:
        """Return the output of all processes, for a message."""
        return "\n".join(
            f"--- process {number}, exit code {process.poll()}\n{self.output(number)}"
            for number, process in enumerate(self.processes)
        )

    def signal(self, number: int, *to: int) -> None:
        """Send signal `number` to these processes, to all of them where none is named."""
        for process in [self.processes[one] for one in to] if to else self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def codes(self, secs: float = 300) -> list[int]:
        """Wait for every process to end by itself; return their exit codes, -9 if killed."""
        end = time.monotonic() + secs
        for process in self.processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not ended after {secs} s\n{self.written()}") from None
        return [process.returncode for process in self.processes]

    def finish(self, code: int = 0, secs: float = 300) -> str:
        """Wait until every process has ended with this exit code; return process 0's output."""
        codes = self.codes(secs)
        assert codes == [code] * len(codes), self.written()
        return self.output()

    def wait_until(self, is_so: Callable[[], bool], what: str, secs: float = 180) -> None:
        """Wait until is_so(); all processes must be running until then."""
        end = time.monotonic() + secs
        while not is_so():
            ended = [process for process in self.processes if process.poll() is not None]
            assert not ended, f"ended before {what}\n{self.written()}"
            assert time.monotonic() < end, f"no {what} in {secs} s\n{self.written()}"
            time.sleep(POLL_SECS)

    def wait_for_step(self, step: int, secs: float = 180) -> None:
        """Wait for a line of metrics of this step or a later one."""
        self.wait_until(lambda: last_step(self.workdir) >= step, f"line of step {step}", secs)

    def wait_for_file(self, pattern: str, secs: float = 180) -> None:
        """Wait until something in the workdir has a name of this pattern."""
        self.wait_until(lambda: any(self.workdir.glob(pattern)), pattern, secs)

    def wait_for_words(self, words: str, number: int = 0, secs: float = 180) -> None:
        """Wait until process `number` has written these words."""
        self.wait_until(lambda: words in self.output(number), repr(words), secs)

    def end(self, grace_secs: float = 5.0) -> None:
        """End what still runs: SIGTERM, time to save, SIGKILL."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        end = time.monotonic() + grace_secs
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def training(
    *flags: object,
    workdir: pathlib.Path,
    address: str = "",
    processes: int = 1,
    devices: int = 1,
    folders: Sequence[pathlib.Path] = (),
    module: str = "bert_jax.train",
    **changed: str,
) -> Iterator[Training]:
    """Start a run of so many processes with so many CPU devices each; nothing of it is left over.

    `folders` are those that the processes start in, where they are not all the project's.
    `address` is the --workdir where it is not `workdir`, as of a run on gs:// that has its files
    there. `changed` are variables of the environment. What process N writes is
    WORKDIR.processN.out, the newest start only.
    """
    joined: list[str] = []
    if processes > 1:
        joined = [f"--coordinator_address=127.0.0.1:{free_port()}", "--multihost"]
        joined.append(f"--num_processes={processes}")
    settings = environment(JAX_NUM_CPU_DEVICES=str(devices), **changed)
    running = Training(workdir, [], [])
    try:
        for number in range(processes):
            own = [f"--process_id={number}"] if processes > 1 else []
            output = workdir.with_name(f"{workdir.name}.process{number}.out")
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("wb") as file:
                process = subprocess.Popen(
                    command(
                        *flags, *joined, *own, f"--workdir={address or workdir}", module=module
                    ),
                    cwd=folders[number] if folders else ROOT,
                    env=settings,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            running.processes.append(process)
            running.outputs.append(output)
        yield running
    finally:
        running.end()


def lines_of(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Read the complete lines of metrics, keeping the values that every run must repeat."""
    from bert_jax.train_step.metrics import TIMINGS

    path = workdir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in lines]


def last_step(workdir: pathlib.Path) -> int:
    """Return the step of the last line of metrics, 0 before there is one."""
    return max((line["step"] for line in lines_of(workdir)), default=0)


def saved_steps(workdir: pathlib.Path) -> list[int]:
    """List the steps of the finished checkpoints."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdigit())
