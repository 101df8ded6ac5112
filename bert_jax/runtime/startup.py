"""Join the processes of a multi-host run: wait for all, start jax.distributed, compare code.

If a process is absent, jax.distributed aborts in C++ without naming it; nor does it notice that
processes were started for different counts. So process 0 first counts the others on the
coordinator's port, which jax takes over once all are present. Code and command are then compared
over jax's coordination service. The first connections stay open: if one closes, the process at its
other end has died.
"""

import contextlib
import dataclasses
import json
import re
import selectors
import shlex
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bert_jax.config import HostsConfig
from bert_jax.parallel import processes
from bert_jax.runtime.code_version import code_version
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile

READ_SECS = 2.0  # time limit for a line between two processes
RETRY_SECS = 0.5  # delay between two attempts to reach process 0, or to bind the port
LINGER_SECS = 5.0  # time for which process 0 still answers after a refusal
REPORT_AFTER_SECS = 15.0  # waiting time after which missing processes are logged
SHUTDOWN_SECS = 600  # limit for others to wait for process 0, which plots and uploads at the end
MAX_LINE_BYTES = 65536  # an answer may name a thousand hosts
MAX_STRANGERS = 256  # most connections without an introduction; beyond it, the oldest are dropped
MAX_PROCESSES = 1 << 20
MAX_PORT = 65535

_KEY = "bert_jax process"
# Flags that may differ between processes.
_FLAGS_OF_A_PROCESS = ("process_id", "num_processes", "coordinator_address")


@dataclasses.dataclass(frozen=True)
class Rank:
    """Hold the place of a process in its run: coordinator, process count and process number."""

    coordinator: str  # host:port of process 0
    count: int
    number: int  # the first is 0

    def __post_init__(self) -> None:
        host, _, port = self.coordinator.rpartition(":")
        if not host or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= MAX_PORT:
            raise Refused(
                f"--coordinator_address is {self.coordinator!r}; give host:port of process 0, "
                f"such as 10.0.0.2:8482, with a port from 1 to {MAX_PORT}"
            )
        if not 0 <= self.number < self.count:
            raise Refused(
                f"--process_id is {self.number} and --num_processes {self.count}; the "
                "first process is 0, so give a number below --num_processes"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port of process 0."""
        host, _, port = self.coordinator.rpartition(":")
        return host.strip("[]"), int(port)


def find_rank(
    coordinator: str | None, count: int | None, number: int | None, limit_secs: float
) -> Rank | None:
    """Return the rank from the flags, else from the platform.

    None if this jax has another detection API: jax.distributed must then find the rank itself.

    Raises Refused if neither provides it, TimeoutError if the platform does not within limit_secs.
    """
    if coordinator is None or count is None or number is None:
        try:
            # jax.distributed.initialize finds the pod's hosts this way; there is no public API.
            from jax._src import clusters

            detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
            coordinator, count, number, _ = detect(
                coordinator, count, number, None, None, round(limit_secs)
            )
        except RuntimeError as error:  # GKE gives process 0 no address before it runs
            raise TimeoutError(
                f"process 0 cannot be found: {' '.join(str(error).split())}; look at its host"
            ) from error
        except (ImportError, AttributeError, TypeError, ValueError):
            return None  # this version of jax has another API, but detects the rank itself
    values = {"coordinator_address": coordinator, "num_processes": count, "process_id": number}
    missing = [f"--{name}" for name, value in values.items() if value is None]
    if coordinator is None or count is None or number is None:
        raise Refused(
            f"--multihost is given without {' and '.join(missing)}, and this platform does not "
            "set them (a TPU VM, GKE, Slurm or Open MPI does); give "
            "--coordinator_address=HOST_OF_PROCESS_0:8482 --num_processes=N --process_id=0..N-1"
        )
    return Rank(coordinator, count, number)


def join(
    rank: Rank | None, hosts: HostsConfig, arguments: Sequence[str], log: Callable[[str], None]
) -> None:
    """Join the processes of a run once all are present, and compare their code and command.

    Raises:
      Refused: counts, numbers, code or command conflict; the same message on every process.
      TimeoutError: not all are present within hosts.start_secs.
    """
    if rank is not None:
        wait_for_all(rank, hosts.start_secs, log)
    jax.distributed.initialize(
        coordinator_address=rank.coordinator if rank else None,
        num_processes=rank.count if rank else None,
        process_id=rank.number if rank else None,
        initialization_timeout=hosts.start_secs,
        heartbeat_timeout_seconds=hosts.heartbeat_secs,
        shutdown_timeout_seconds=SHUTDOWN_SECS,
    )
    start = ProcessStart(socket.gethostname(), code_version(), shared_arguments(arguments))
    text = json.dumps(dataclasses.astuple(start))
    texts = processes.agree("how it was started", text, hosts.start_secs)
    starts = [ProcessStart(*json.loads(text)) for text in texts]
    processes.keep_hosts([start.host for start in starts])
    check_alike(starts)


@dataclasses.dataclass(frozen=True)
class ProcessStart:
    """Describe how a process was started."""

    host: str
    code: str  # digest of its code, and versions of its libraries
    arguments: list[str]  # command-line arguments that must be equal on all processes


def check_alike(starts: Sequence[ProcessStart]) -> None:
    """Raise Refused if the code or command of a process differs from process 0's.

    The error names the first process that differs.
    """
    first = starts[0]
    for number, start in enumerate(starts):
        if start.code != first.code:
            raise Refused(
                f"process {number} ({start.host}) runs other code than process 0 ({first.host}): "
                f"{start.code} and {first.code}; install the same bert_jax and the same packages "
                "on all hosts"
            )
        if sorted(start.arguments) != sorted(first.arguments):
            only = [_describe_extra(start, first, number), _describe_extra(first, start, 0)]
            raise Refused(
                f"process {number} ({start.host}) was started with other flags than process 0 "
                f"({first.host}): {' and '.join(filter(None, only))}; start the same command on "
                "all hosts"
            )


def _describe_extra(start: ProcessStart, other: ProcessStart, number: int) -> str:
    more = [argument for argument in start.arguments if argument not in other.arguments]
    return f"{shlex.join(more)} only on {start.host}, process {number}" if more else ""


def shared_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command that must be the same for all processes."""
    kept, skips_next = [], False
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        is_own = argument.startswith("-") and name in _FLAGS_OF_A_PROCESS
        if not (is_own or skips_next):
            kept.append(argument)
        skips_next = is_own and not equals
    return kept


def wait_for_all(rank: Rank, limit_secs: float, log: Callable[[str], None]) -> None:
    """Wait until all processes of the run are present; log missing ones if it takes long.

    Raises:
      Refused: two have the same number, or counts differ; the same message on every process.
      TimeoutError: names the missing processes, or reports that process 0 does not answer.
    """
    end_secs = time.monotonic() + limit_secs
    if rank.number == 0:
        _count_others(rank, limit_secs, end_secs, log)
        return
    reason = ""
    while time.monotonic() < end_secs:
        answer, reason = _ask(
            rank, max(READ_SECS, end_secs + READ_SECS - time.monotonic()), keeps_open=True
        )
        if _is_all_present(answer):
            return
        time.sleep(RETRY_SECS)
    raise TimeoutError(
        f"process 0 does not answer at {rank.coordinator} within {limit_secs:g} s ({reason}); "
        f"{_advice(rank)}"
    )


@dataclasses.dataclass
class _Caller:
    """Hold a connection to process 0."""

    connection: socket.socket
    line: bytes = b""  # what has arrived of its introduction
    number: int = -1  # the process, once it has introduced itself


class _Presence:
    """Track, in process 0, which processes are present and how the wait ended."""

    def __init__(self, rank: Rank, listener: socket.socket) -> None:
        self.rank = rank
        self.hosts = {0: socket.gethostname()}  # host names by process number
        self.outcome: dict[str, Any] | None = None  # answer to all processes
        self.dropped = 0  # connections from outside this run
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    @property
    def missing(self) -> list[int]:
        return [number for number in range(self.rank.count) if number not in self.hosts]

    def refuse(self, reason: str, is_late: bool = False) -> None:
        """End the wait with an error, unless it has already ended."""
        self.outcome = self.outcome or {"wrong": reason, "is_late": is_late}

    def describe(self, within: str) -> str:
        present = ", ".join(f"{number} ({self.hosts[number]})" for number in sorted(self.hosts))
        return (
            f"{len(self.hosts)} of {self.rank.count} processes reported to "
            f"{self.rank.coordinator} {within}: {present}; missing: "
            f"{', '.join(map(str, self.missing))}"
        )

    def serve(self) -> None:
        """Accept and read connections that are ready; drop the oldest if too many are silent."""
        for key, _ in self._selector.select(RETRY_SECS):
            if key.data is not None:
                self._read(key.data)
                continue
            with contextlib.suppress(OSError):  # the other side has closed it
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, _Caller(connection))
        for caller in self._list_callers(is_named=False)[:-MAX_STRANGERS]:
            self._drop(caller)
        if not self.missing:  # checked after reading: a process may have ended meanwhile
            self.outcome = self.outcome or {"all_present": True}

    def hang_up(self) -> dict[int, socket.socket]:
        """Answer all processes, and drop connections without an introduction.

        After a refusal, processes that come within LINGER_SECS are answered too. If all processes
        are present their connections stay open, and are returned by process number.
        """
        answer = self.outcome or {}
        is_refused = "wrong" in answer and not answer["is_late"]
        end_secs = time.monotonic() + (LINGER_SECS if is_refused and self.missing else 0.0)
        kept = {}
        while True:
            for caller in self._list_callers(is_named=True):
                self._selector.unregister(caller.connection)
                with contextlib.suppress(OSError):
                    caller.connection.settimeout(READ_SECS)
                    caller.connection.sendall(json.dumps({_KEY: answer}).encode() + b"\n")
                    if "wrong" not in answer:
                        kept[caller.number] = caller.connection
                        continue
                caller.connection.close()
            if time.monotonic() >= end_secs:
                break
            self.serve()
        for caller in self._list_callers(is_named=False):
            self._drop(caller)
        self._selector.close()
        return kept

    def _list_callers(self, is_named: bool) -> list[_Caller]:
        """List the open connections that have introduced themselves or not, the oldest first."""
        callers = [key.data for key in self._selector.get_map().values() if key.data is not None]
        return [caller for caller in callers if is_named == (caller.number >= 0)]

    def _read(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if caller.number >= 0:
            if not data:  # the process has ended, and may come again
                self.hosts.pop(caller.number, None)
                self._close(caller)
            return
        caller.line += data
        if b"\n" in caller.line:
            self._admit(caller)
        elif not data or len(caller.line) > MAX_LINE_BYTES:
            self._drop(caller)

    def _admit(self, caller: _Caller) -> None:
        """Register a process that connected; a conflicting process ends the wait for all."""
        try:
            content = _parse(caller.line.partition(b"\n")[0])
            number = small_files.field(content, "number", int, _KEY)
            count = small_files.field(content, "count", int, _KEY)
            host = small_files.field(content, "host", str, _KEY)
        except DamagedFile:
            number = count = -1
        if not 0 <= number < count <= MAX_PROCESSES:
            self._drop(caller)
            return
        caller.number = number
        if count != self.rank.count:
            self.refuse(
                f"process {number} ({host}) was started for --num_processes={count}, process "
                f"0 ({self.hosts[0]}) for {self.rank.count}; start all of them with the same "
                "number"
            )
        elif number in self.hosts:
            self.refuse(
                f"two processes have --process_id={number}, on {self.hosts[number]} and "
                f"{host}; give each its own, from 0 to {self.rank.count - 1}"
            )
        else:
            self.hosts[number] = host

    def _drop(self, caller: _Caller) -> None:
        self.dropped += 1
        self._close(caller)

    def _close(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        caller.connection.close()


def _count_others(
    rank: Rank, limit_secs: float, end_secs: float, log: Callable[[str], None]
) -> None:
    """Act as process 0: wait for the others, and answer them when the wait has ended."""
    if rank.count == 1:
        return
    report_secs = time.monotonic() + REPORT_AFTER_SECS
    with _listen(rank, end_secs) as listener:
        presence = _Presence(rank, listener)
        try:
            while presence.outcome is None:
                presence.serve()
                now_secs = time.monotonic()
                if now_secs >= end_secs:
                    late = presence.describe(f"within {limit_secs:g} s")
                    presence.refuse(f"{late}; {_advice(rank)}", is_late=True)
                elif presence.outcome is None and now_secs >= report_secs:
                    log(f"{presence.describe('so far')}; waiting")
                    report_secs = end_secs
        finally:
            presence.refuse("process 0 was stopped", is_late=True)
            kept = presence.hang_up()
    if presence.dropped:
        log(
            f"{presence.dropped:,} connections to port {rank.address[1]} came from outside this "
            "run, and were dropped"
        )
    if _is_all_present(presence.outcome):
        processes.keep_connections(kept)


def _listen(rank: Rank, end_secs: float) -> socket.socket:
    """Listen on the coordinator's port, on all addresses of this host; wait until it is free."""
    is_dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual else socket.AF_INET
    place = "", rank.address[1]
    while True:
        try:
            return socket.create_server(place, family=family, backlog=1024, dualstack_ipv6=is_dual)
        except OSError as error:
            # If another process 0 holds the port, it answers with a refusal.
            answer, _ = _ask(dataclasses.replace(rank, coordinator=f"localhost:{rank.address[1]}"))
            _is_all_present(answer)
            if time.monotonic() >= end_secs:
                raise TimeoutError(
                    f"port {rank.address[1]} of this host, of --coordinator_address, cannot be "
                    f"used ({error.strerror}); an earlier run may still have it: end it, or give "
                    "another port"
                ) from error
            time.sleep(RETRY_SECS)


def _advice(rank: Rank) -> str:
    return (
        "start the same command on every host, look at the output of those that are missing, and "
        f"let TCP port {rank.address[1]} through between them"
    )


def _is_all_present(answer: dict[str, Any] | None) -> bool:
    """Return whether process 0 answered that all are present; raise the error it answered with."""
    if answer is not None and "wrong" in answer:
        raise TimeoutError(answer["wrong"]) if answer["is_late"] else Refused(answer["wrong"])
    return answer is not None


def _ask(
    rank: Rank, limit_secs: float = READ_SECS, keeps_open: bool = False
) -> tuple[dict[str, Any] | None, str]:
    """Introduce this process to process 0; return (answer, "") or (None, reason).

    With `keeps_open`, the connection stays open if the answer is that all are present.
    """
    introduction = {"number": rank.number, "count": rank.count, "host": socket.gethostname()}
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection(rank.address, 2 * READ_SECS))
            connection.sendall(json.dumps({_KEY: introduction}).encode() + b"\n")
            answer = _parse(_read_line(connection, limit_secs))
            if "wrong" in answer:
                small_files.field(answer, "wrong", str, _KEY)
                small_files.field(answer, "is_late", bool, _KEY)
            elif not small_files.field(answer, "all_present", bool, _KEY):
                return None, "it is not ready"
            elif keeps_open:
                processes.keep_connections({0: connection})
                stack.pop_all()
        return answer, ""
    except DamagedFile:
        return None, "what answers there is no process of bert_jax"
    except OSError as error:
        return None, error.strerror or str(error)


def _read_line(connection: socket.socket, limit_secs: float) -> bytes:
    end_secs, data = time.monotonic() + limit_secs, b""
    while b"\n" not in data:
        connection.settimeout(max(end_secs - time.monotonic(), 0.001))
        more = connection.recv(MAX_LINE_BYTES)
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
        if len(data) > MAX_LINE_BYTES:
            raise DamagedFile("the line is too long")
    return data.partition(b"\n")[0]


def _parse(line: bytes) -> dict[str, Any]:
    return small_files.field(small_files.parse_object(line, _KEY), _KEY, dict, _KEY)
