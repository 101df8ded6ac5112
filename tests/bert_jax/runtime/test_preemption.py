"""A stop is obeyed by all processes at one point, and a second signal is not swallowed."""

import os
import signal

import pytest

from bert_jax.runtime.preemption import STOP_SIGNALS, Stop
from tests.bert_jax import joined

STOP = """
import os, signal, time
from bert_jax.runtime.preemption import STOP_SIGNALS, Stop
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
stop = Stop()
with stop.noted():
    point = 0
    while not stop.is_asked():
        point += 1
        if point == 5 and number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01 * (number + 1))
        assert point < 12_000
assert stop.is_asked()
print(point, stop.signal_number)
"""
TWICE = """
import os, signal, time
from bert_jax.runtime.preemption import STOP_SIGNALS, Stop
with Stop().noted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
"""


@pytest.fixture
def heard():
    """The signals that reach the handlers from before."""
    numbers = []
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, _: numbers.append(number))
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_process_notes_a_signal_and_a_second_one_is_the_old_one(heard, number):
    stop = Stop()
    with stop.noted():
        assert not stop.is_asked()
        signal.raise_signal(number)
        assert stop.is_asked() and stop.signal_number == number and not heard
        signal.raise_signal(number)
        assert heard == [number]
    signal.raise_signal(number)
    assert heard == [number] * 2


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_is_sent_twice_or_behind_another_is_noted_once(heard, number):
    """A closing terminal sends SIGHUP twice, systemd behind SIGTERM, Slurm SIGUSR1 first."""
    for others in ([number, signal.SIGTERM], [signal.SIGTERM, number, number]):
        stop = Stop()
        with stop.noted():
            for each in others:
                signal.raise_signal(each)
            assert stop.is_asked() and stop.signal_number == others[0] and not heard
        assert not heard
    signal.raise_signal(number)
    assert heard == [number]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_ctrl_c_ends_a_run_that_any_signal_has_stopped(heard, number):
    with Stop().noted():
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_under_nohup_a_run_outlives_its_terminal(heard):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = Stop()
    with stop.noted():
        signal.raise_signal(signal.SIGHUP)
        assert not stop.is_asked()


def test_a_stop_is_noted_though_the_terminal_is_gone(heard):
    """stdout is a pipe without a reader: the handler must not raise where the run just is."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    stdout = os.dup(1)
    os.dup2(write_end, 1)
    stop = Stop()
    try:
        with stop.noted():
            signal.raise_signal(signal.SIGHUP)
            assert stop.is_asked()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(write_end)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGHUP, pytest.param(signal.SIGUSR2, marks=pytest.mark.long)]
)
def test_one_of_several_processes_sends_itself_sigterm_and_remembers_the_signal(number):
    """With a process of its own: jax.distributed takes SIGTERM for good."""
    (end,) = joined.run(STOP.replace("number == 1", "True").replace("SIGINT", number.name), count=1)
    assert end.code == 0 and int(end.out.split()[-1]) == number, end


@pytest.mark.slow
@pytest.mark.fault(8, "SIGINT to one of two processes that go at different paces")
def test_two_processes_stop_at_the_same_point():
    ends = joined.run(STOP)
    assert [one.code for one in ends] == [0, 0], ends
    (first, first_signal), (second, second_signal) = (one.out.split()[-2:] for one in ends)
    assert first == second
    assert (int(first_signal), int(second_signal)) == (signal.SIGTERM, signal.SIGINT)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_one_of_several_processes_at_once():
    (end,) = joined.run(TWICE, count=1)
    assert end.code == -signal.SIGINT, end
    assert "stopping after this step" in end.out
