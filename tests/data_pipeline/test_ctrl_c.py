"""Who has SIGINT before, during and after the imports of an entry."""

import signal
import subprocess
import sys
import time

import pytest

from data_pipeline import ctrl_c


@pytest.fixture(autouse=True)
def restored():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_ends_the_process_for_a_while_and_raises_again():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctrl_c.ends_the_process()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    ctrl_c.raises_again()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_background_job_and_another_program_keep_theirs(handler):
    signal.signal(signal.SIGINT, handler)
    ctrl_c.ends_the_process()
    ctrl_c.raises_again()
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("delay_secs", [0.1, 0.2, 0.4])
def test_ctrl_c_while_an_entry_imports_shows_no_traceback(delay_secs):
    entry = [sys.executable, "-m", "data_pipeline.build", "--help"]
    process = subprocess.Popen(entry, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(delay_secs)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert "Traceback" not in error
