"""The start of several processes: the missing are named, those started otherwise refused."""

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time

import pytest
from jax._src import clusters

from bert_jax.runtime import startup
from bert_jax.runtime.code_version import code_version, git_commit, source_digest
from bert_jax.runtime.startup import ProcessStart, Rank
from data_pipeline.io import Refused
from tests.bert_jax import joined
from tests.launch.scripts import git


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(startup, "RETRY_SECS", 0.05)
    monkeypatch.setattr(startup, "LINGER_SECS", 0.5)
    monkeypatch.setattr(startup, "READ_SECS", 0.3)
    kept = []
    monkeypatch.setattr(
        startup.processes, "keep_connections", lambda kinds: kept.extend(kinds.values())
    )
    yield f"127.0.0.1:{joined.free_port()}"
    for connection in kept:
        connection.close()


def wait_all(ranks, limit_secs=20.0, between_secs=0.0, log=print):
    """Return each rank's error, None where its wait came to a good end."""
    errors = [None] * len(ranks)
    threads = []

    def wait(index):
        try:
            startup.wait_for_all(ranks[index], limit_secs, log)
        except (ValueError, OSError) as error:
            errors[index] = error

    for index in range(len(ranks)):
        threads.append(threading.Thread(target=wait, args=(index,)))
        threads[-1].start()
        time.sleep(between_secs)
    for thread in threads:
        thread.join()
    return errors


def test_all_are_present_in_any_order_and_the_port_is_free_again(address):
    ranks = [Rank(address, 4, number) for number in (3, 1, 0, 2)]
    assert wait_all(ranks, between_secs=0.1) == [None] * 4
    socket.create_server(("", ranks[0].address[1])).close()
    assert wait_all([Rank(address, 1, 0)]) == [None]  # one process needs no other


@pytest.mark.slow
@pytest.mark.fault(11, "a process with another count or number")
@pytest.mark.parametrize(
    ("odd", "key"),
    [((3, 1), "--num_processes=3"), ((2, 0), "--process_id=0")],
)
def test_a_process_that_does_not_fit_is_refused_on_all(address, odd, key):
    errors = wait_all([Rank(address, 2, 0), Rank(address, *odd)], between_secs=0.3)
    assert [type(error) for error in errors] == [Refused] * 2
    assert str(errors[0]) == str(errors[1]) and key in str(errors[0])


@pytest.mark.slow
@pytest.mark.fault(11, "two of four processes are never started")
def test_the_missing_are_named_on_all_that_are_present(address):
    errors = wait_all([Rank(address, 4, number) for number in (0, 2)], limit_secs=1.0)
    assert [type(error) for error in errors] == [TimeoutError] * 2
    port = address.rpartition(":")[2]
    for error in errors:
        assert "2 of 4 processes" in str(error) and "missing: 1, 3;" in str(error)
        assert f"TCP port {port}" in str(error)


@pytest.mark.fault(11, "process 0 is never started")
def test_a_process_that_waits_in_vain_says_for_whom(address):
    (error,) = wait_all([Rank(address, 2, 1)], limit_secs=0.5)
    assert isinstance(error, TimeoutError)
    assert f"process 0 does not answer at {address} within 0.5 s (Connection refused)" in str(error)


@pytest.mark.slow
def test_a_port_that_another_program_has_is_named(address):
    port = int(address.rpartition(":")[2])
    with socket.create_server(("", port)):
        (error,) = wait_all([Rank(address, 2, 0)], limit_secs=0.3)
    assert f"port {port} of this host, of --coordinator_address, cannot be used" in str(error)


def introduce(**changed):
    """Return the line of process 1 of 2 with some of it changed; "absent" removes a key."""
    content = {"number": 1, "count": 2, "host": "h"} | changed
    content = {key: value for key, value in content.items() if value != "absent"}
    return json.dumps({"bert_jax process": content}).encode() + b"\n"


@pytest.mark.slow
@pytest.mark.fault(11, "a thousand processes are never started")
def test_an_answer_that_names_a_thousand_hosts_reaches_all(address, monkeypatch):
    monkeypatch.setattr(startup.socket, "gethostname", lambda: "h" * 60)
    ranks = [Rank(address, 1100, number) for number in (0, 7)]
    errors = wait_all(ranks, limit_secs=1.0)
    assert [type(error) for error in errors] == [TimeoutError] * 2
    assert str(errors[0]) == str(errors[1]) and "1098, 1099;" in str(errors[1])


JUNK = [
    *(introduce(number=value) for value in (None, "1", 1.5, True, -1, 2, 10**30, "absent")),
    *(introduce(count=value) for value in (None, "2", 2.5, 0, 1, 10**30)),
    *(introduce(host=value) for value in (None, 3, ["a"])),
    b'{"bert_jax process": null}\n',
    b"null\n",
    b"[" * 60000 + b"\n",
    b'{"bert_jax process": {"number": ' + b"9" * 60000 + b"}}\n",
    b"\xff\xfe\x00\x80\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"x" * 300_000,
    b"\n",
    b"",
]


@contextlib.contextmanager
def process_0(address, count):
    """Run process 0 in a thread; yield what it logs, its error last if it ends with one."""
    logged = []

    def wait():
        try:
            startup.wait_for_all(Rank(address, count, 0), 20.0, logged.append)
        except Exception as error:
            logged.append(error)

    main = threading.Thread(target=wait)
    main.start()
    time.sleep(0.1)
    yield logged
    main.join(20)
    assert not main.is_alive()


def send(address, data):
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as stranger,
    ):
        stranger.sendall(data)


def test_junk_is_dropped_and_counted_in_one_line(address):
    with process_0(address, 2) as logged:
        for junk in JUNK:
            send(address, junk)
        time.sleep(0.5)
        assert logged == []
        assert wait_all([Rank(address, 2, 1)]) == [None]
    (line,) = logged
    assert line.startswith(f"{len(JUNK)} connections to port {address.rpartition(':')[2]}")


@pytest.mark.slow
def test_a_process_that_died_while_it_waited_may_come_again(address):
    with process_0(address, 3) as logged:
        died = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        died.sendall(introduce(count=3))
        time.sleep(0.2)
        died.close()
        time.sleep(0.3)
        assert wait_all([Rank(address, 3, n) for n in (1, 2)], between_secs=0.2) == [None] * 2
    assert logged == []


def test_a_process_that_dies_as_the_last_one_comes_is_missing(address):
    port = int(address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)) as listener, contextlib.ExitStack() as stack:
        presence = startup._Presence(Rank(address, 3, 0), listener)
        others = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in "12"]
        others[0].sendall(introduce(count=3))
        while presence.missing != [2]:
            presence.serve()
        others[1].sendall(introduce(count=3, number=2))
        others[0].close()
        presence.serve()
        assert presence.outcome is None and presence.missing == [1]
        presence.hang_up()


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.long)])
def test_silent_connections_and_a_flood_keep_nobody_waiting(address, count):
    port = ("127.0.0.1", int(address.rpartition(":")[2]))
    with process_0(address, 2) as logged, contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(socket.create_connection(port)) for _ in range(50)]
        for stranger in silent[::2]:
            stranger.sendall(b"{")
        for _ in range(count):
            send(address, b"GET / HTTP/1.1\r\n\r\n")
        began = time.monotonic()
        assert wait_all([Rank(address, 2, 1)]) == [None]
        assert time.monotonic() - began < 5
    assert logged[0].startswith(f"{count + 50:,} connections")


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        b'{"bert_jax process": {"wrong": null, "is_late": false}}\n',
        b'{"bert_jax process": {"wrong": "a"}}\n',
        b'{"bert_jax process": {"all_present": 1}}\n',
        b'{"bert_jax process": []}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\n",
    ],
)
def test_another_program_in_the_place_of_process_0_does_no_harm(address, answer):
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        (error,) = wait_all([Rank(address, 2, 1)], limit_secs=0.25)
        listener.shutdown(socket.SHUT_RDWR)
    assert isinstance(error, TimeoutError)
    assert "process 0 does not answer" in str(error)


@pytest.mark.parametrize(
    ("coordinator", "number", "key"),
    [
        ("127.0.0.1:1", 2, "--process_id is 2 and --num_processes 2"),
        ("somewhere", 1, "--coordinator_address is 'somewhere'"),
        (":8482", 1, "--coordinator_address is ':8482'"),
        ("10.0.0.2:84820", 1, "with a port from 1 to 65535"),
        ("10.0.0.2:0", 1, "with a port from 1 to 65535"),
    ],
)
def test_an_impossible_rank_is_refused(coordinator, number, key):
    with pytest.raises(ValueError, match=key):
        Rank(coordinator, 2, number)


def test_flags_give_the_rank_and_missing_ones_are_named():
    assert startup.find_rank("h:1", 3, 2, 1.0) == Rank("h:1", 3, 2)
    with pytest.raises(ValueError, match="without --num_processes and --process_id"):
        startup.find_rank("h:1", None, None, 1.0)


def test_a_platform_that_does_not_find_process_0_is_asked_again_by_a_restart(monkeypatch):
    def detect(*given):
        raise RuntimeError("Failed to recognize coordinator address w-0:8476")

    monkeypatch.setattr(clusters.ClusterEnv, "auto_detect_unset_distributed_params", detect)
    with pytest.raises(TimeoutError, match="address w-0:8476; look at its host"):
        startup.find_rank(None, None, None, 1.0)


@pytest.mark.fault(11, "a process with other code or another command")
def test_other_code_or_another_command_is_refused():
    start = ProcessStart("h0", "c0de", ["--config=a.py", "--multihost"])
    other = dataclasses.replace(start, host="h1")
    startup.check_alike([start, other])
    with pytest.raises(Refused, match=r"process 1 \(h1\) runs other code .* 0dd and c0de"):
        startup.check_alike([start, dataclasses.replace(other, code="0dd")])
    odd = dataclasses.replace(other, arguments=["--multihost", "--config=b.py"])
    words = r"--config=b.py only on h1, process 1 and --config=a.py only on h0"
    with pytest.raises(ValueError, match=words):
        startup.check_alike([start, odd])


def test_flags_of_one_process_are_not_compared():
    arguments = ["--process_id=3", "--a=1", "--process_id", "3", "-num_processes=4", "rest"]
    arguments += ["--coordinator_address=h:1", "--multihost"]
    assert startup.shared_arguments(arguments) == ["--a=1", "rest", "--multihost"]


def test_the_version_of_the_code_follows_its_files(tmp_path, monkeypatch):
    import bert_jax

    assert re.fullmatch(
        r"bert_jax \S+ \([0-9a-f]{12}\), jax \S+, jaxlib .*numpy \S+", code_version()
    )
    (tmp_path / "module.py").write_text("x = 1")
    monkeypatch.setattr(bert_jax, "__path__", [str(tmp_path)])
    before = source_digest()
    (tmp_path / "module.py").write_text("x = 2")
    assert source_digest() != before


def test_the_commit_is_named_by_its_digits_though_it_has_a_tag(tmp_path, monkeypatch):
    import bert_jax

    monkeypatch.setattr(bert_jax, "__path__", [str(tmp_path / "bert_jax")])
    assert git_commit() is None
    git(tmp_path, "init")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--message=one")
    git(tmp_path, "tag", "--annotate", "v0.1.0", "--message=one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit() == head
    (tmp_path / "file").write_text("2")
    assert git_commit() == f"{head}-dirty"


JOIN = """
import sys
from bert_jax.config import HostsConfig
from bert_jax.parallel import processes
from bert_jax.runtime import startup
rank = startup.find_rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 30)
flags = ["--multihost", *["--odd"] * ("odd" in MODE and rank.number)]
try:
    startup.join(rank, HostsConfig(start_secs=30, heartbeat_secs=10), flags, print)
    print(processes.agree("who is present", str(processes.number()), 20))
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_processes_join_over_one_port_and_compare_their_commands():
    alike = joined.run_apart(JOIN.replace("MODE", "''"))
    assert [process.code for process in alike] == [0, 0], alike
    assert all("['0', '1']" in process.out for process in alike)
    odd = joined.run_apart(JOIN.replace("MODE", "'odd'"))
    assert all("--odd only on" in process.out for process in odd), odd
