"""What takes too long ends the process with its stacks; what ends one process ends the others."""

import contextlib
import os
import signal
import socket
import threading
import time

import pytest

from bert_jax.config import HostsConfig
from bert_jax.logging.console import Screen
from bert_jax.parallel import processes
from bert_jax.runtime.goodput import Ledger
from bert_jax.runtime.watchdog import Watchdog, Work
from data_pipeline.cli.main import FAILED, STUCK
from tests.bert_jax import joined

WATCHED = """
import pathlib, sys, time
from bert_jax.runtime import watchdog
watchdog.TICK_SECS, watchdog.LISTEN_SECS, watchdog.GRACE_SECS = 0.05, 0.2, 0.5
dog = watchdog.Watchdog()
dog.begin(2, lambda line: print(line, file=sys.stderr, flush=True))
dog.keep_stacks_in(pathlib.Path(FOLDER))

def waiting_for_data():
    time.sleep(60)

def sitting_in_a_collective():
    time.sleep(60)
"""
ALONE = """
with dog.doing("an outer piece", 0.2):
    for _ in range(5):
        with dog.doing("a step", 0.3):
            time.sleep(0.1)
    print("outlived", flush=True)
    with dog.doing("step 7", 0.4):
        waiting_for_data()
"""
OUTER = """
with dog.doing("an outer piece", 1.5):
    for _ in range(4):
        time.sleep(0.5)
        with dog.doing("a step", 30):
            time.sleep(0.05)
    print("outlived", flush=True)
    waiting_for_data()
"""
BOTH = """
with dog.doing("step 7", 0.5 if number else 50):
    waiting_for_data() if number else sitting_in_a_collective()
"""
PRESENT = """
import os, signal, sys, time
from bert_jax.config import HostsConfig
from bert_jax.runtime import startup, watchdog
rank = startup.Rank(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
startup.join(rank, HostsConfig(), [], print)
began = []

def say(line):
    print(line, file=sys.stderr, flush=True)
    print(time.monotonic() - began[0], flush=True)

class Late(watchdog.Watchdog):
    def _lose(self, number):
        time.sleep(LATE)
        super()._lose(number)

watchdog.GRACE_SECS = 0.5
Late().begin(2, say)
time.sleep(1.0)
began.append(time.monotonic())
if rank.number == KILLED:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
CLEANS_UP = """
watchdog.CLEANUP_SECS = 2.0
with dog.doing("step 7", 50):
    if number == 0:
        sitting_in_a_collective()
    try:
        with dog.reporting():
            raise OSError("no room")
    finally:
        time.sleep(60)
"""
FAILS = """
from bert_jax.parallel import processes
if number == 1:
    processes.leave(3, "grad_norm is nan")
with dog.doing("step 7", 50):
    sitting_in_a_collective()
"""


def in_folder(folder, code):
    return WATCHED.replace("FOLDER", repr(str(folder))) + code


@pytest.mark.slow
def test_what_takes_too_long_ends_the_process_with_its_stacks(tmp_path):
    ended = joined.end_of(joined.start(in_folder(tmp_path, ALONE)))
    assert (ended.code, ended.out.strip()) == (STUCK, "outlived")
    stacks = (tmp_path / "stacks-0.txt").read_text()
    assert "waiting_for_data" in stacks and "doing: step 7, for 0" in stacks
    assert "stuck: step 7 has taken 0 s, and config.hosts allows 0.4 s" in ended.err
    assert f"the stacks of all threads are in {tmp_path / 'stacks-0.txt'}" in ended.err
    assert "waiting_for_data" in ended.err


@pytest.mark.slow
def test_an_outer_piece_of_work_has_its_own_limit_again_behind_an_inner_one(tmp_path):
    ended = joined.end_of(joined.start(in_folder(tmp_path, OUTER)))
    assert (ended.code, ended.out.strip()) == (STUCK, "outlived"), ended
    assert "stuck: an outer piece has taken 2 s, and config.hosts allows 1.5 s" in ended.err
    assert "waiting_for_data" in (tmp_path / "stacks-0.txt").read_text()


@pytest.mark.slow
@pytest.mark.fault(10, "one of two processes sleeps where it should bring data")
def test_a_stuck_process_ends_the_others_each_with_its_own_stacks(tmp_path):
    began_secs = time.monotonic()
    ended = joined.run(in_folder(tmp_path, BOTH))
    assert [one.code for one in ended] == [STUCK] * 2, ended
    assert "waiting_for_data" in (tmp_path / "stacks-1.txt").read_text()
    assert "sitting_in_a_collective" in (tmp_path / "stacks-0.txt").read_text()
    assert "process 1 has ended with exit code 86: step 7 has taken" in ended[0].err
    assert time.monotonic() - began_secs < 40


@pytest.mark.long
@pytest.mark.fault(9, "one of two processes fails by itself")
def test_why_one_process_failed_is_said_by_the_others_which_end_alike(tmp_path):
    ended = joined.run(in_folder(tmp_path, FAILS))
    assert [one.code for one in ended] == [3, 3], ended
    assert "process 1 has ended with exit code 3: grad_norm is nan" in ended[0].err
    assert not (tmp_path / "stacks-0.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "late_secs"), [(0, 0.0), (0, 1.0), pytest.param(1, 0.0, marks=pytest.mark.long)]
)
@pytest.mark.fault(9, "SIGKILL to one of two processes that wait for each other")
def test_a_survivor_says_which_process_has_died(killed, late_secs):
    """Long before a heartbeat is missed, and also where jax notices the death first."""
    ends = joined.run_apart(PRESENT.replace("KILLED", str(killed)).replace("LATE", str(late_secs)))
    survivor = ends[1 - killed]
    assert ends[killed].code == -signal.SIGKILL and survivor.code == FAILED, survivor
    assert f"process {killed} ({socket.gethostname()}) has died" in survivor.err
    assert float(survivor.out.split()[-1]) < 5.0


@pytest.mark.slow
def test_an_abort_still_ends_the_process():
    code = "from bert_jax.runtime import watchdog\nimport os\nwatchdog._delay_aborts()\nos.abort()"
    assert joined.end_of(joined.start(code)).code == -signal.SIGABRT


def test_only_a_connection_that_closes_without_a_goodbye_is_of_a_dead_process(monkeypatch):
    pairs = {number: socket.socketpair() for number in (1, 2, 3)}
    monkeypatch.setattr(processes, "_peers", {})
    processes.keep_connections({number: ours for number, (ours, _) in pairs.items()})
    lost, ended = [], threading.Event()
    watching = threading.Thread(target=processes.watch_connections, args=(lost.append, ended, 0.02))
    watching.start()
    with contextlib.ExitStack() as sockets:
        for ours, theirs in pairs.values():
            sockets.enter_context(ours)
            sockets.enter_context(theirs)
        pairs[1][1].send(b"bye\n")
        pairs[1][1].close()
        pairs[3][1].close()
        while not lost:
            time.sleep(0.01)
        ended.set()
        watching.join()
    assert lost == [3]


@pytest.mark.slow
def test_a_reported_failure_ends_a_cleanup_that_hangs_and_the_other_process():
    ends = joined.run(WATCHED.replace("FOLDER", "'/tmp'") + CLEANS_UP)
    assert [end.code for end in ends] == [FAILED, FAILED], ends
    assert "error: no room" in ends[1].err and "process 1 has ended" not in ends[1].err
    assert "process 1 has ended with exit code 1: error: no room" in ends[0].err


@pytest.mark.slow
def test_stacks_are_shown_when_asked_for_nothing_ends_and_no_empty_file_is_left(tmp_path):
    """Where the output of the process goes, also once those of stuck work have a file."""
    dog = Watchdog()
    with (tmp_path / "screen").open("wb") as screen:
        dog.begin(screen.fileno(), print)
        dog.keep_stacks_in(tmp_path)
        with dog.doing("something", 0.0):
            os.kill(os.getpid(), signal.SIGQUIT)
        dog.close()
    assert "test_stacks_are_shown" in (tmp_path / "screen").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["screen"]


@pytest.mark.slow
def test_a_process_that_was_stopped_and_goes_on_is_not_stuck(tmp_path):
    code = in_folder(
        tmp_path,
        """
with dog.doing("step 7", 1.0):
    print("there", flush=True)
    time.sleep(0.3)
    time.sleep(0.3)
print("done")
""",
    )
    process = joined.start(code)
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    assert joined.end_of(process).code == 0


class Heard:
    """A watchdog that only remembers what it was told."""

    def __init__(self):
        self.limits = {}

    @contextlib.contextmanager
    def doing(self, work, limit_secs):
        self.limits[work] = limit_secs
        yield


def test_a_piece_of_work_has_its_limit_and_its_kind(tmp_path):
    heard, ledger = Heard(), Ledger(tmp_path, 0.0, True)
    work = Work(heard, ledger, HostsConfig(stuck_step_secs=7, stuck_secs=70), Screen(False))
    before = ledger.summary()["wall_secs"]
    with work.doing("saving", "the save of step 5"):
        pass
    with work.step(6):
        pass
    after = ledger.summary()["wall_secs"]
    assert list(heard.limits.values()) == [70, 7]
    of_the_save, of_the_step = heard.limits
    assert "save" in of_the_save and "step 6" in of_the_step
    grown = {kind for kind in after if after[kind] > before[kind]}
    assert {"saving", "training"} <= grown <= {"saving", "training", "starting"}
