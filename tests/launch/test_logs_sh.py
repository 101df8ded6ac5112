"""launch/logs.sh: the command it prints, and what that command shows on a worker."""

import subprocess
import time

import pytest

from tests.launch.scripts import commands, gcloud_accepts, needs_gcloud, refusal
from tests.launch.workers import run_on


def remote(*arguments: str) -> str:
    (command,) = commands("logs.sh", *arguments)
    return command[-1].removeprefix("--command=")


@pytest.fixture
def worker(tmp_path):
    """A worker's home folder with a log of five lines."""
    logs = tmp_path / "w-3" / "bert_jax" / "logs"
    logs.mkdir(parents=True)
    lines = [f"line {number} & more" for number in range(5)]
    (logs / "train.log").write_text("\n".join(lines) + "\n")
    return tmp_path / "w-3"


def test_dry_run_prints_one_command(cluster):
    (command,) = commands("logs.sh", cluster())
    assert command[:-1] == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu"),
        *("--zone=us-central2-b", "--project=my-project", "--worker=all"),
    ]
    assert "--worker=3" in commands("logs.sh", cluster(), "--worker=3")[0]


@needs_gcloud
def test_gcloud_knows_the_flags(cluster, tmp_path):
    (command,) = commands("logs.sh", cluster(), "--worker=3", "--follow")
    assert gcloud_accepts(command, tmp_path)


def test_the_last_lines_open_with_the_workers_name(cluster, worker):
    command = remote(cluster(), "--lines=2")
    ran = run_on(worker, command)
    assert ran.stdout.splitlines() == ["w-3: line 3 & more", "w-3: line 4 & more"]


def test_follow_goes_on_and_leaves_nothing_behind(cluster, worker):
    command = remote(cluster(), "--lines=1", "--follow")
    log = worker / "bert_jax" / "logs" / "train.log"
    with subprocess.Popen(
        ["bash", "-c", command], stdout=subprocess.PIPE, text=True, cwd=worker
    ) as shown:
        assert shown.stdout is not None
        assert shown.stdout.readline().endswith(": line 4 & more\n")
        with log.open("a") as more:
            more.write("line 5\n")
        assert shown.stdout.readline().endswith(": line 5\n")
        shown.stdout.close()
        deadline = time.monotonic() + 20
        while shown.poll() is None and time.monotonic() < deadline:
            with log.open("a") as more:
                more.write("nobody reads this\n")
            time.sleep(0.1)
        assert shown.poll() is not None


def test_no_log_is_a_failure_that_says_so(cluster, tmp_path):
    command = remote(cluster())
    ran = run_on(tmp_path, command)
    assert ran.returncode == 1
    assert "bert_jax/logs/train.log does not exist; launch/train.sh has not run" in ran.stderr


@pytest.mark.parametrize(
    "flag", ["--worker=-1", "--worker=", "--worker=all;id", "--lines=0", "--lines=ten", "--lines="]
)
def test_a_bad_number_is_named(cluster, flag):
    assert flag in refusal("logs.sh", "--dry-run", cluster(), flag)
