"""Child processes: their log, their exit code, and that they end before whoever started them."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from data_pipeline.cli import child_process
from data_pipeline.cli.main import Stopped


def run(code, log):
    return child_process.run([sys.executable, "-c", code], log, {"PLACE": "here"})


def test_output_is_appended_to_the_log(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("before\n")
    assert run("import os; print(os.environ['PLACE'])", log) == 0
    assert log.read_text() == "before\nhere\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "error"),
    [
        ("print('error: no such task'); print('see the log'); sys.exit(2)", 2, "error: no such"),
        ("raise KeyError('x')", 1, "KeyError: 'x'"),
        ("sys.exit(3)", 3, "nothing was written to {}"),
    ],
)
def test_a_failure_is_known_by_its_exit_code_and_its_last_error(tmp_path, code, exit_code, error):
    log = tmp_path / "run.log"
    assert run(f"import sys; {code}", log) == exit_code
    assert child_process.last_error(log).startswith(error.format(log))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_child_once_and_waits_for_it(tmp_path, stops_raise, number):
    marks = tmp_path / "marks"
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (open({str(marks)!r}, 'a').write('saved '),"
        " sys.exit(143)))\n"
        "print('ready', flush=True)\n"
        # A signal between the line above and signal.pause() would be waited for after it.
        "while True: time.sleep(0.05)\n"
    )
    log = tmp_path / "run.log"

    def ask_once_ready() -> None:
        while not log.is_file() or "ready" not in log.read_text():
            pass
        signal.pthread_kill(threading.main_thread().ident, number)

    asking = threading.Thread(target=ask_once_ready)
    with pytest.raises(Stopped) as ended:
        asking.start()
        run(code, log)
    asking.join()
    assert ended.value.signal_number == number and marks.read_text() == "saved "


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_a_child_is_stopped_when_its_parent_is_killed(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('ready', os.getpid(), flush=True)\n"
        # A signal between the line above and signal.pause() would be waited for after it.
        "while True: time.sleep(0.05)\n"
    )
    log = tmp_path / "run.log"
    parent = (
        "import pathlib, sys\n"
        "from data_pipeline.cli import child_process\n"
        f"child_process.run([sys.executable, '-c', {code!r}], pathlib.Path({str(log)!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    wait_for(log, "ready")
    process.kill()
    process.wait()
    wait_for(log, "saved")


def wait_for(log, word):
    for _ in range(2000):
        if log.is_file() and word in log.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(f"{log} has no {word}")
