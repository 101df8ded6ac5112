"""launch/logs.sh: what its command shows on a worker, and the copies in the bucket."""

import os
import subprocess
import time

import pytest

from tests.launch.pods import run_on
from tests.launch.scripts import commands, run, write_command

pytestmark = pytest.mark.slow


def remote(*arguments: str) -> str:
    (command,) = commands("logs.sh", *arguments)
    return command[-1].removeprefix("--command=")


@pytest.fixture
def log(tmp_path):
    """A worker's log of five lines."""
    logs = tmp_path / "w-3" / "bert_jax" / "logs"
    logs.mkdir(parents=True)
    (logs / "train.log").write_text("".join(f"line {number} & more\n" for number in range(5)))
    return logs / "train.log"


def test_the_last_lines_open_with_the_workers_name(cluster, log, tmp_path):
    ran = run_on(tmp_path / "w-3", remote(cluster(), "--lines=2"))
    assert ran.stdout.splitlines() == ["w-3: line 3 & more", "w-3: line 4 & more"]
    ran = run_on(tmp_path, remote(cluster()))
    assert ran.returncode == 1
    assert "bert_jax/logs/train.log does not exist; launch/train.sh has not run" in ran.stderr


def test_follow_goes_on_and_leaves_nothing_behind(cluster, log, tmp_path):
    command = ["bash", "-c", remote(cluster(), "--lines=1", "--follow")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path / "w-3") as tail:
        assert tail.stdout.readline().endswith(": line 4 & more\n")
        with log.open("a") as more:
            more.write("line 5\n")
        assert tail.stdout.readline().endswith(": line 5\n")
        tail.stdout.close()
        deadline = time.monotonic() + 20
        while tail.poll() is None and time.monotonic() < deadline:
            with log.open("a") as more:
                more.write("nobody reads this\n")
            time.sleep(0.1)
        assert tail.poll() is not None


FOLDER = "gs://my-bucket/logs/my-tpu"
LIST = f"""\
      20  2026-11-22T03:04:05Z  {FOLDER}/t1v-n-1-w-0-20261122T020000Z.log
      30  2026-11-22T03:05:05Z  {FOLDER}/t1v-n-1-w-1-20261122T020000Z.log
      10  2026-11-20T03:04:05Z  {FOLDER}/t1v-n-0-w-1-20261120T020000Z.log
TOTAL: 3 objects, 60 bytes (60B)
"""


@pytest.mark.parametrize(
    ("worker", "newest"), [("all", "1-w-1"), ("0", "1-w-0"), ("1", "1-w-1"), ("2", "")]
)
def test_the_bucket_shows_the_newest_copy(cluster, tmp_path, worker, newest):
    (tmp_path / "list").write_text(LIST)
    write_command(
        tmp_path / "bin" / "gcloud",
        '[[ "$1 $2" != "auth list" ]] || echo me',
        f'[[ "$1 $2" != "storage ls" ]] || cat {tmp_path / "list"}',
        '[[ "$1 $2" != "storage cat" ]] || printf "%s\\n" "a $3" "b $3" "c $3"',
    )
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    flags = ("--bucket", "--lines=2", f"--worker={worker}")
    ran = run("logs.sh", cluster(BUCKET="gs://my-bucket"), *flags, **path)
    if not newest:
        assert ran.returncode == 1
        assert f"{FOLDER} has no log of worker 2" in ran.stderr
        return
    assert ran.returncode == 0, ran.stderr
    listed, _, end = ran.stdout.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == ["10", "20", "30"]
    address = f"{FOLDER}/t1v-n-{newest}-20261122T020000Z.log"
    assert end.splitlines() == [address, f"b {address}", f"c {address}"]
