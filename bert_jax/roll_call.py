"""The roll-call before jax joins the processes of a run: all are there, and were started alike.

jax alone waits for who is missing and then ends in C++ without a name; a process that was told
another number of processes it does not notice at all. Process 0 listens on the coordinator's own
port, so that no other has to be open; jax takes it when all have answered. Lines of JSON.
"""

import contextlib
import dataclasses
import json
import selectors
import shlex
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

SLICE_SECS = 0.5  # between two looks at who came, and who is still waited for
READ_SECS = 2.0  # for a hello; whoever says nothing in it is not one of ours
REFUSING_SECS = 5.0  # for which the others are told why the run cannot begin
TELL_AFTER_SECS = 15.0  # of waiting, the person is told who is missing
MOST_BYTES = 65536  # of a line
MOST_UNKNOWN = (
    256  # connections that have not yet said who they are; more, and the oldest is dropped
)
MOST_PROCESSES = 1 << 20
# Closes a connection at once, with nothing of it left on the port.
_RESET = struct.pack("ii", 1, 0)

_NAME = "bert_jax roll-call"


@dataclasses.dataclass(frozen=True)
class Hello:
    """What a process says of itself."""

    number: int  # from 0
    count: int  # of processes, as it was told
    host: str
    code: str  # digest of the code that it runs, and its libraries
    arguments: list[str]  # of its command, without those that may differ

    def __str__(self) -> str:
        return f"{self.number} ({self.host})"


def read_hello(line: bytes) -> Hello:
    """Parse what a process says of itself.

    Raises:
      DamagedFile: it is no hello, or one of another version.
    """
    name = "a hello"
    content = small_files.field(small_files.parse_object(line, name), _NAME, dict, name)
    kinds = {"number": int, "count": int, "host": str, "code": str, "arguments": list}
    if content.keys() != kinds.keys():
        raise DamagedFile(f"{name} has the keys {sorted(content)}")
    hello = Hello(
        **{key: small_files.field(content, key, kind, name) for key, kind in kinds.items()}
    )
    if not 0 <= hello.number < hello.count <= MOST_PROCESSES:
        raise DamagedFile(f"{name} is of process {hello.number} of {hello.count}")
    if not all(isinstance(argument, str) for argument in hello.arguments):
        raise DamagedFile(f"{name} has arguments that are no text")
    return hello


def call(address: str, hello: Hello, limit_secs: float, say: Callable[[str], None]) -> None:
    """Return once all processes are there; say is told who is missing when that takes long.

    Raises:
      ValueError: they were not started alike; the same sentence on all of them.
      TimeoutError: names who is missing, or says that process 0 does not answer.
    """
    if not 0 <= hello.number < hello.count:
        raise ValueError(
            f"--process_id is {hello.number} and --num_processes {hello.count}; processes count "
            "from 0, so it must be less"
        )
    end_secs = time.monotonic() + limit_secs
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(
            f"--coordinator_address is {address!r}; it is host:port of process 0, as 10.0.0.2:8482"
        )
    if hello.number == 0:
        listener = _listener(int(port), hello, end_secs)
        with listener:
            _Caller(listener, address, hello, limit_secs, say).call(end_secs)
    else:
        _answer(host.strip("[]"), int(port), hello, limit_secs, end_secs)


def advice(port: int | str) -> str:
    """What is to be done where a process is missing."""
    return (
        "start the same command on every host, look at the output of those that are missing, and "
        f"let TCP port {port} through between them"
    )


def difference(here: dict[int, Hello], came: Hello) -> str:
    """What forbids that a process joins those that came before, "" where nothing does."""
    first = here[0]
    if came.count != first.count:
        return (
            f"process {came} was started for --num_processes={came.count}, process {first} for "
            f"{first.count}; start all of them with the same number"
        )
    if came.number in here:
        return (
            f"two processes have --process_id={came.number}, on {here[came.number].host} and "
            f"{came.host}; give each its own, from 0 to {first.count - 1}"
        )
    if came.code != first.code:
        return (
            f"process {came} runs other code than process {first}: {came.code} and {first.code}; "
            "install the same bert_jax and the same packages on all hosts"
        )
    if sorted(came.arguments) != sorted(first.arguments):
        only = [_only(came, first), _only(first, came)]
        return (
            f"process {came} was started otherwise than process {first}: "
            f"{' and '.join(filter(None, only))}; start the same command on all hosts"
        )
    return ""


def _only(one: Hello, other: Hello) -> str:
    more = [argument for argument in one.arguments if argument not in other.arguments]
    return f"{shlex.join(more)} only on {one.host}, process {one.number}" if more else ""


@dataclasses.dataclass
class _Unknown:
    """A connection that has not yet said who it is: until when it may, and what it has said."""

    end_secs: float
    line: bytearray = dataclasses.field(default_factory=bytearray)


class _Caller:
    """Process 0: who came, and the connections of those that wait for the answer."""

    def __init__(
        self,
        listener: socket.socket,
        address: str,
        hello: Hello,
        limit_secs: float,
        say: Callable[[str], None],
    ) -> None:
        self._listener, self._address = listener, address
        self._limit_secs, self._say = limit_secs, say
        self._here = {hello.number: hello}
        self._waiting: dict[int, socket.socket] = {}
        self._count = hello.count
        self._unknown: dict[socket.socket, _Unknown] = {}
        self._dropped = 0
        listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def call(self, end_secs: float) -> None:
        tell_secs = time.monotonic() + TELL_AFTER_SECS
        try:
            while self._missing():
                self._tell({"missing": self._missing()})
                if time.monotonic() >= end_secs:
                    late = self._who_is_missing()
                    self._tell({"wrong": late, "is_late": True})
                    raise TimeoutError(late)
                if time.monotonic() >= tell_secs:
                    self._say(f"{self._who_is_missing(so_far=True)}; waiting")
                    tell_secs = end_secs
                self._take_one()
            self._tell({"all_here": True})
        finally:
            for connection in self._waiting.values():
                _close_after_them(connection)
            self._close_unknown()

    def _missing(self) -> list[int]:
        return [i for i in range(self._count) if i not in self._here]

    def _take_one(self) -> None:
        """Take the next process that comes, if one does; forget those that have gone."""
        connection, came = self._next()
        for number in [n for n, waiting in self._waiting.items() if _is_gone(waiting)]:
            self._waiting.pop(number).close()
            del self._here[number]
        if connection is None or came is None:
            return
        wrong = difference(self._here, came)
        if wrong:
            self._here.setdefault(came.number, came)
            self._refuse(ValueError(wrong), connection)
        self._here[came.number] = came
        self._waiting[came.number] = connection

    def _next(self) -> tuple[socket.socket | None, Hello | None]:
        """Wait for SLICE_SECS at most for the next process; whatever else connects is dropped."""
        end_secs = time.monotonic() + SLICE_SECS
        while (left_secs := end_secs - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_secs):
                if key.fileobj is self._listener:
                    self._accept()
                elif (came := self._known(key.fileobj)) is not None:
                    return came
            for connection, unknown in list(self._unknown.items()):
                if time.monotonic() >= unknown.end_secs:
                    self._drop(connection)
        return None, None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has gone, or there are too many open files
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._unknown[connection] = _Unknown(time.monotonic() + READ_SECS)
            self._selector.register(connection, selectors.EVENT_READ)
        if len(self._unknown) > MOST_UNKNOWN:
            self._drop(next(iter(self._unknown)))

    def _known(self, connection: Any) -> tuple[socket.socket, Hello] | None:
        """Read on from a connection; its hello, once that is whole."""
        unknown = self._unknown.get(connection)
        if unknown is None:  # dropped since it was selected
            return None
        try:
            data = connection.recv(MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        unknown.line += data
        if data and b"\n" not in data and len(unknown.line) < MOST_BYTES:
            return None
        try:
            hello = read_hello(bytes(unknown.line[:MOST_BYTES].partition(b"\n")[0]))
        except DamagedFile:
            self._drop(connection)
            return None
        del self._unknown[connection]
        self._selector.unregister(connection)
        connection.settimeout(READ_SECS)
        return connection, hello

    def _drop(self, connection: socket.socket) -> None:
        """Close what is no process of this run, and count it."""
        self._dropped += 1
        del self._unknown[connection]
        self._selector.unregister(connection)
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _close_unknown(self) -> None:
        for connection in list(self._unknown):
            self._drop(connection)
        self._selector.close()
        if self._dropped:
            port = self._address.rpartition(":")[2]
            self._say(
                f"{self._dropped:,} connections to port {port} were not of processes of this run, "
                "and were dropped"
            )

    def _refuse(self, error: ValueError, connection: socket.socket) -> None:
        """Tell the one that came, all before it and those that come in the next seconds; raise."""
        told = {"wrong": str(error), "is_late": False}
        self._tell(told)
        end_secs = time.monotonic() + REFUSING_SECS
        come: socket.socket | None = connection
        while True:
            if come is not None:
                _send(come, told)
                _close_after_them(come)
            if not self._missing() or time.monotonic() >= end_secs:
                raise error
            come, came = self._next()
            if came is not None:
                self._here.setdefault(came.number, came)

    def _tell(self, what: dict[str, Any]) -> None:
        for connection in self._waiting.values():
            _send(connection, what)

    def _who_is_missing(self, so_far: bool = False) -> str:
        missing = ", ".join(map(str, self._missing()))
        came = ", ".join(str(self._here[i]) for i in sorted(self._here))
        within = "so far" if so_far else f"within {self._limit_secs:g} s"
        sentence = (
            f"{len(self._here)} of {self._count} processes came to the roll-call at "
            f"{self._address} {within}: {came}; missing: {missing}"
        )
        return sentence if so_far else f"{sentence}; {advice(self._address.rpartition(':')[2])}"


def _listener(port: int, hello: Hello, end_secs: float) -> socket.socket:
    """A socket that listens on all addresses of this host, once its port is free.

    Raises:
      ValueError: another process 0 of this run has it.
      TimeoutError: some other program has it.
    """
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    while True:
        try:
            return socket.create_server(
                ("", port), family=family, backlog=1024, dualstack_ipv6=dual
            )
        except OSError as error:
            _is_all_here(_last_said("localhost", port, hello, end_secs)[0])
            if time.monotonic() >= end_secs:
                raise TimeoutError(
                    f"port {port} of this host, of --coordinator_address, cannot be used "
                    f"({error.strerror}); an earlier run may still be there: end it, or give "
                    "another port"
                ) from error
            time.sleep(SLICE_SECS)


def _answer(host: str, port: int, hello: Hello, limit_secs: float, end_secs: float) -> None:
    """Answer the roll-call of process 0 and wait until it says that all are there."""
    said, why = dict[str, Any](), ""
    while time.monotonic() < end_secs:
        said, why = _last_said(host, port, hello, end_secs)
        if _is_all_here(said):
            return
        time.sleep(SLICE_SECS)
    missing = [str(number) for number in said.get("missing", []) if number != hello.number]
    if missing:
        raise TimeoutError(
            f"process 0 at {host}:{port} still waits after {limit_secs:g} s for others, missing: "
            f"{', '.join(missing)}; {advice(port)}"
        )
    raise TimeoutError(
        f"process 0 does not answer at {host}:{port} within {limit_secs:g} s ({why}); "
        f"{advice(port)}"
    )


def _is_all_here(said: dict[str, Any]) -> bool:
    if "wrong" in said:
        raise TimeoutError(said["wrong"]) if said["is_late"] else ValueError(said["wrong"])
    return bool(said.get("all_here"))


def _last_said(host: str, port: int, hello: Hello, end_secs: float) -> tuple[dict[str, Any], str]:
    """Go to a roll-call and stay to its end: what it said last, or nothing and why."""
    last: dict[str, Any] = {}
    left_secs = end_secs - time.monotonic()
    try:
        with socket.create_connection((host, port), max(1.0, min(5.0, left_secs))) as there:
            _send(there, dataclasses.asdict(hello))
            lines = _Lines(there)
            while (said := lines.next_said(3 * READ_SECS)) is not None:
                last = said
                if not said.get("missing") or time.monotonic() >= end_secs:
                    break
            return last, "what answers there is no roll-call of bert_jax"
    except OSError as error:
        return last, error.strerror or str(error)


class _Lines:
    """What process 0 says, a line at a time: bounded in length and in time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""

    def next_said(self, limit_secs: float) -> dict[str, Any] | None:
        """The next line's words; None where the other side is gone, late, or speaks otherwise."""
        end_secs = time.monotonic() + limit_secs
        while b"\n" not in self._data:
            left_secs = end_secs - time.monotonic()
            if left_secs <= 0 or len(self._data) > MOST_BYTES:
                return None
            self._connection.settimeout(left_secs)
            try:
                data = self._connection.recv(MOST_BYTES)
            except OSError:
                return None
            if not data:
                return None
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        try:
            return _read_words(line)
        except DamagedFile:
            return None


def _read_words(line: bytes) -> dict[str, Any]:
    """Parse what process 0 says: who is missing, that all are there, or what is wrong.

    Raises:
      DamagedFile: it is nothing that process 0 says.
    """
    name = "an answer"
    said = small_files.field(small_files.parse_object(line, name), _NAME, dict, name)
    if "wrong" in said:
        small_files.field(said, "wrong", str, name)
        small_files.field(said, "is_late", bool, name)
    missing = small_files.field(said, "missing", list, name, default=[])
    if not all(isinstance(number, int) for number in missing):
        raise DamagedFile(f"{name} has numbers of processes that are none")
    return said


def _send(connection: socket.socket, what: dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps({_NAME: what}).encode() + b"\n")
    except OSError:
        return  # it has gone, which _is_gone finds


def _is_gone(connection: socket.socket) -> bool:
    """Whether the process at the other end, which has nothing more to say, has closed it."""
    connection.settimeout(0.0)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(READ_SECS)


def _close_after_them(connection: socket.socket) -> None:
    """Close a connection after the other side did, which keeps the port free for jax."""
    with connection:
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        except OSError:
            return
