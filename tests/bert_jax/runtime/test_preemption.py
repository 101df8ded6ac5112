"""A stop is obeyed by all processes at one point, and a second signal is not swallowed."""

import signal

import pytest

from bert_jax.runtime.preemption import Stop
from tests.bert_jax import joined

STOP = """
import os, signal, time
from bert_jax.runtime.preemption import Stop
stop = Stop()
with stop.noted():
    point = 0
    while not stop.is_asked():
        point += 1
        if point == 5 and number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01 * (number + 1))
        assert point < 2000
assert stop.is_asked()
print(point, stop.signal_number)
"""
TWICE = """
import os, signal, time
from bert_jax.runtime.preemption import Stop
with Stop().noted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_process_notes_a_signal_and_a_second_one_is_the_old_one(number):
    before = signal.getsignal(number)
    heard = []
    signal.signal(number, lambda *_: heard.append(number))
    stop = Stop()
    with stop.noted():
        assert not stop.is_asked()
        signal.raise_signal(number)
        assert stop.is_asked() and stop.signal_number == number and not heard
        signal.raise_signal(number)
        assert heard == [number]
    signal.raise_signal(number)
    assert heard == [number] * 2
    signal.signal(number, before)


@pytest.mark.slow
@pytest.mark.fault(8, "SIGINT to one of two processes that go at different paces")
def test_two_processes_stop_at_the_same_point():
    ends = joined.run(STOP)
    assert [one.code for one in ends] == [0, 0], ends
    (first, first_signal), (second, second_signal) = (one.out.split()[-2:] for one in ends)
    assert first == second
    assert (int(first_signal), int(second_signal)) == (signal.SIGTERM, signal.SIGINT)


def test_a_second_ctrl_c_ends_one_of_several_processes_at_once():
    (end,) = joined.run(TWICE, count=1)
    assert end.code == -signal.SIGINT, end
    assert "stopping after this step" in end.out
