"""The roll-call: who is missing is named, and whoever was started otherwise is refused."""

import contextlib
import dataclasses
import json
import socket
import threading
import time

import pytest

from bert_jax import roll_call
from bert_jax.roll_call import Hello
from tests.bert_jax.joined import free_port

HELLO = Hello(
    number=0, count=2, host="host-0", code="c0de", arguments=["--config=a.py", "--multihost"]
)


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(roll_call, "SLICE_SECS", 0.05)
    monkeypatch.setattr(roll_call, "REFUSING_SECS", 0.5)
    monkeypatch.setattr(roll_call, "READ_SECS", 0.2)
    return f"127.0.0.1:{free_port()}"


def numbered(number, **changed):
    return dataclasses.replace(HELLO, number=number, host=f"host-{number}", **changed)


def call_all(address, hellos, limit_secs=20.0, between_secs=0.0):
    """Each hello's error, None where its roll-call came to a good end."""
    errors = [None] * len(hellos)
    threads = []

    def call(index):
        try:
            roll_call.call(address, hellos[index], limit_secs, lambda text: None)
        except (ValueError, OSError) as error:
            errors[index] = error

    for index in range(len(hellos)):
        threads.append(threading.Thread(target=call, args=(index,)))
        threads[-1].start()
        time.sleep(between_secs)
    for thread in threads:
        thread.join()
    return errors


def test_all_are_there_in_any_order_and_the_port_is_free_again(address):
    hellos = [numbered(number, count=4) for number in (3, 1, 0, 2)]
    assert call_all(address, hellos, between_secs=0.1) == [None] * 4
    socket.create_server(("", int(address.rpartition(":")[2]))).close()


def test_one_process_needs_no_other(address):
    assert call_all(address, [numbered(0, count=1)]) == [None]


@pytest.mark.fault(11, "a process with another count, number, code or command")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"count": 3},
            r"process 1 \(host-1\) was started for --num_processes=3, process 0 \(host-0\) for 2;",
        ),
        ({"number": 0}, "two processes have --process_id=0, on host-0 and host-1; .* from 0 to 1"),
        ({"code": "0dd"}, r"process 1 \(host-1\) runs other code than process 0 .*0dd and c0de"),
        (
            {"arguments": ["--multihost", "--config=b.py"]},
            "started otherwise than .*: --config=b.py only on host-1, process 1 and --config=a.py",
        ),
    ],
)
def test_whoever_was_started_otherwise_is_refused_on_all(address, changed, words):
    odd = dataclasses.replace(numbered(1), **changed)
    hellos = [HELLO, odd]
    errors = call_all(address, hellos, between_secs=0.2)
    assert [type(error) for error in errors] == [ValueError] * 2
    assert str(errors[0]) == str(errors[1])
    with pytest.raises(ValueError, match=words):
        raise errors[0]


@pytest.mark.fault(11, "two of four processes are never started")
def test_who_is_missing_is_named_on_all_that_came(address):
    hellos = [numbered(number, count=4) for number in (0, 2)]
    errors = call_all(address, hellos, limit_secs=1.0)
    assert [type(error) for error in errors] == [TimeoutError] * 2
    port = address.rpartition(":")[2]
    came = f"2 of 4 processes came to the roll-call at {address} within 1 s: 0 (host-0), 2 (host-2)"
    assert str(errors[0]).startswith(f"{came}; missing: 1, 3; start the same command on every host")
    assert f"TCP port {port}" in str(errors[0])
    assert "missing: 1, 3" in str(errors[1])


@pytest.mark.fault(11, "process 0 is never started")
def test_a_process_that_waits_in_vain_says_where(address):
    (error,) = call_all(address, [numbered(1)], limit_secs=0.5)
    assert isinstance(error, TimeoutError)
    assert f"process 0 does not answer at {address} within 0.5 s (Connection refused)" in str(error)


def test_a_port_that_another_program_has_is_said(address):
    port = int(address.rpartition(":")[2])
    with socket.create_server(("", port)):
        errors = call_all(address, [HELLO], limit_secs=0.3)
    assert f"port {port} of this host, of --coordinator_address, cannot be used" in str(errors[0])


def test_strangers_and_a_process_that_was_started_again_do_no_harm(address):
    """Whatever else connects is left alone; a process that died while it waited may come again."""
    port = int(address.rpartition(":")[2])
    main = threading.Thread(target=call_all, args=(address, [numbered(0, count=3)]))
    main.start()
    time.sleep(0.2)
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"bert_jax roll-call": {"x": 1}}\n', b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(words)
    died = socket.create_connection(("127.0.0.1", port))
    said = {"bert_jax roll-call": dataclasses.asdict(numbered(1, count=3))}
    died.sendall(json.dumps(said).encode() + b"\n")
    assert b'"missing": [2]' in died.recv(4096) + died.recv(4096)
    died.close()
    assert call_all(address, [numbered(n, count=3) for n in (1, 2)], between_secs=0.3) == [None] * 2
    main.join()


def said_as(**changed):
    """The line of process 1 of 2, with some of it changed; None takes a key away."""
    content = dataclasses.asdict(numbered(1)) | changed
    content = {key: value for key, value in content.items() if value != "absent"}
    return json.dumps({"bert_jax roll-call": content}).encode() + b"\n"


JUNK = [
    *(said_as(arguments=value) for value in (None, "a", 1, [1], [None], {"a": 1}, "absent")),
    *(said_as(number=value) for value in (None, "1", 1.0, True, -1, 2, 10**30, "absent")),
    *(said_as(count=value) for value in (None, "2", 2.5, 0, 1, 10**30)),
    *(said_as(host=value) for value in (None, 3, ["a"])),
    *(said_as(code=value) for value in (None, 3, {})),
    said_as(more=1),
    b'{"bert_jax roll-call": null}\n',
    b'{"bert_jax roll-call": [1]}\n',
    b'{"bert_jax roll-call": {}}\n',
    b"null\n",
    b"[" * 60000 + b"\n",
    b'{"a":' * 10000 + b"\n",
    b'{"bert_jax roll-call": {"number": ' + b"9" * 60000 + b"}}\n",
    b"\xff\xfe\x00\x80\n",
    bytes(range(256)) * 100,
    b"x" * 300_000,
    b"\n",
    b"",
]


@contextlib.contextmanager
def caller(address, count):
    """Process 0 in a thread; gives what it says, its error last if it ends with one."""
    said = []

    def call():
        try:
            roll_call.call(address, numbered(0, count=count), 20.0, said.append)
        except Exception as error:
            said.append(error)

    main = threading.Thread(target=call)
    main.start()
    time.sleep(0.1)
    yield said
    main.join(20)
    assert not main.is_alive()


def send(address, data):
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as stranger,
    ):
        stranger.sendall(data)


def test_junk_is_dropped_and_counted_in_one_line(address):
    with caller(address, 2) as said:
        for junk in JUNK:
            send(address, junk)
        time.sleep(0.5)
        assert said == []
        assert call_all(address, [numbered(1)]) == [None]
    (line,) = said
    assert line.startswith(f"{len(JUNK)} connections to port {address.rpartition(':')[2]}")


def test_the_hello_that_is_changed_above_is_one():
    assert roll_call.read_hello(said_as()) == numbered(1)


def test_those_that_are_slow_or_silent_keep_nobody_waiting(address, monkeypatch):
    monkeypatch.setattr(roll_call, "READ_SECS", 20.0)
    where = ("127.0.0.1", int(address.rpartition(":")[2]))
    with caller(address, 2) as said, contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(socket.create_connection(where)) for _ in range(50)]
        for stranger in silent[::2]:
            stranger.sendall(b"{")
        began = time.monotonic()
        assert call_all(address, [numbered(1)]) == [None]
        assert time.monotonic() - began < 5
    assert said[0].startswith("50 connections")


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_flood_of_connections_keeps_nobody_out(address, count):
    with caller(address, 2) as said:
        for _ in range(count):
            send(address, b"GET / HTTP/1.1\r\n\r\n")
        assert call_all(address, [numbered(1)]) == [None]
    (line,) = said
    assert line.startswith(f"{count:,} connections")


@pytest.mark.parametrize(
    "answer",
    [
        b'{"bert_jax roll-call": {"wrong": null, "is_late": false}}\n',
        b'{"bert_jax roll-call": {"wrong": "a"}}\n',
        b'{"bert_jax roll-call": {"missing": {"a": 1}}}\n',
        b'{"bert_jax roll-call": {"missing": [[]]}}\n',
        b'{"bert_jax roll-call": []}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 200_000,
        b"\xff\n",
    ],
)
def test_what_answers_in_the_place_of_process_0_does_no_harm(address, answer):
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        (error,) = call_all(address, [numbered(1)], limit_secs=0.5)
        listener.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, TimeoutError)
    assert "process 0 does not answer" in str(error)


@pytest.mark.parametrize(
    ("where", "number", "words"),
    [
        ("127.0.0.1:1", 2, "--process_id is 2 and --num_processes 2; .* it must be less"),
        ("somewhere", 1, "--coordinator_address is 'somewhere'; it is host:port of process 0"),
        (":8482", 1, "--coordinator_address is ':8482'"),
    ],
)
def test_what_cannot_be_is_refused_at_once(where, number, words):
    with pytest.raises(ValueError, match=words):
        roll_call.call(where, numbered(number), 60.0, print)
