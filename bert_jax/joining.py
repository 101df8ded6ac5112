"""How a process joins the others of its run: where they are, the roll-call, then jax."""

import dataclasses
import socket
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax import roll_call
from bert_jax.code_version import code_version
from bert_jax.config import HostsConfig

# For which the others wait at the end of a run: process 0 draws the curves and fills the bucket.
SHUTDOWN_SECS = 600
# What may differ from process to process, or is told apart.
_OF_A_PROCESS = ("process_id", "num_processes", "coordinator_address")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process stands among those of its run."""

    address: str  # host:port of process 0
    count: int
    number: int  # from 0


def place(
    address: str | None, count: int | None, number: int | None, limit_secs: float
) -> Place | None:
    """What the flags say, and the platform where they do not; None where only jax can tell.

    Raises:
      ValueError: neither tells.
    """
    if address is None or count is None or number is None:
        try:
            # jax finds the pod's hosts this way inside initialize, and shows it to nobody.
            from jax._src import clusters

            address, count, number, _ = clusters.ClusterEnv.auto_detect_unset_distributed_params(
                address, count, number, None, None, round(limit_secs)
            )
        except (ImportError, AttributeError, TypeError, ValueError):
            return None  # a jax that keeps it elsewhere still finds it itself
    told = {"coordinator_address": address, "num_processes": count, "process_id": number}
    missing = [f"--{name}" for name, value in told.items() if value is None]
    if missing or address is None or count is None or number is None:
        raise ValueError(
            f"--multihost without {' and '.join(missing)}, and this is no platform that tells (a "
            "TPU VM, GKE, Slurm or Open MPI); give "
            "--coordinator_address=HOST_OF_PROCESS_0:8482 --num_processes=N --process_id=0..N-1"
        )
    return Place(address, count, number)


def arguments_of_all(arguments: Sequence[str]) -> list[str]:
    """The arguments that all processes must have alike."""
    kept, skip = [], False
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        is_own = argument.startswith("-") and name in _OF_A_PROCESS
        if not (is_own or skip):
            kept.append(argument)
        skip = is_own and not equals
    return kept


def join(
    at: Place | None, hosts: HostsConfig, arguments: Sequence[str], say: Callable[[str], None]
) -> None:
    """Answer the roll-call, and let jax join the processes that are all there.

    Raises:
      ValueError: they were not started alike.
      TimeoutError: not all are there within hosts.start_secs.
    """
    told: dict[str, Any] = {}
    if at is not None:
        hello = roll_call.Hello(
            at.number, at.count, socket.gethostname(), code_version(), arguments_of_all(arguments)
        )
        roll_call.call(at.address, hello, hosts.start_secs, say)
        told = {
            "coordinator_address": at.address,
            "num_processes": at.count,
            "process_id": at.number,
        }
    jax.distributed.initialize(
        **told,
        initialization_timeout=hosts.start_secs,
        heartbeat_timeout_seconds=hosts.heartbeat_secs,
        shutdown_timeout_seconds=SHUTDOWN_SECS,
    )
