"""Run a few lines of Python in several processes, joined by jax.distributed."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

from tests.faults.runs import ROOT, free_port

JOIN = """
import sys, jax
jax.distributed.initialize(
    sys.argv[1], int(sys.argv[2]), int(sys.argv[3]),
    initialization_timeout=60, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=10)
number = int(sys.argv[3])
"""


@dataclasses.dataclass
class Ended:
    code: int
    out: str
    err: str


def start(code: str, *arguments: object, cwd: pathlib.Path = ROOT) -> subprocess.Popen[str]:
    """Start a process that runs these lines; sys.argv[1:] are the arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: subprocess.Popen[str], limit_secs: float = 150) -> Ended:
    try:
        out, err = process.communicate(timeout=limit_secs)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"still there after {limit_secs} s: {out}{err}") from None
    return Ended(process.returncode, out, err)


def run(code: str, count: int = 2) -> list[Ended]:
    """Run the lines in `count` joined processes; the lines can read their `number`."""
    return run_apart(JOIN + code, count)


def run_apart(code: str, count: int = 2) -> list[Ended]:
    """Run lines that join the processes themselves; sys.argv has address, count and number."""
    address = f"127.0.0.1:{free_port()}"
    processes = [start(code, address, count, number) for number in range(count)]
    return [end_of(process) for process in processes]
