"""launch/logs.sh: the command it prints, and what that command shows on a worker."""

import os
import subprocess
import time

import pytest

from tests.launch.scripts import commands, refusal, run, write_command
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


LIST = """\
      20  2026-11-22T03:04:05Z  gs://my-bucket/logs/my-tpu/t1v-n-1-w-0-20261122T020000Z.log
      30  2026-11-22T03:05:05Z  gs://my-bucket/logs/my-tpu/t1v-n-1-w-1-20261122T020000Z.log
      10  2026-11-20T03:04:05Z  gs://my-bucket/logs/my-tpu/t1v-n-0-w-1-20261120T020000Z.log
TOTAL: 3 objects, 60 bytes (60B)
"""


@pytest.fixture
def path_with_storage(tmp_path):
    """A PATH whose gcloud lists three copies and says of each its address, three times."""
    (tmp_path / "list").write_text(LIST)
    write_command(
        tmp_path / "bin" / "gcloud",
        '[[ "$1 $2" != "auth list" ]] || echo me',
        f'[[ "$1 $2" != "storage ls" ]] || cat {tmp_path / "list"}',
        '[[ "$1 $2" != "storage cat" ]] || printf "%s\\n" "a $3" "b $3" "c $3"',
    )
    return f"{tmp_path / 'bin'}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("worker", "shown"),
    [
        ("all", "t1v-n-1-w-1-20261122T020000Z"),
        ("0", "t1v-n-1-w-0-20261122T020000Z"),
        ("1", "t1v-n-1-w-1-20261122T020000Z"),
    ],
)
def test_the_bucket_shows_the_newest_copy(cluster, path_with_storage, worker, shown):
    flags = ("--bucket", "--lines=2", f"--worker={worker}")
    ran = run("logs.sh", cluster(BUCKET="gs://my-bucket"), *flags, PATH=path_with_storage)
    assert ran.returncode == 0, ran.stderr
    listed, _, end = ran.stdout.partition("\n\n")
    assert [line.split()[0] for line in listed.splitlines()] == ["10", "20", "30"]
    address = f"gs://my-bucket/logs/my-tpu/{shown}.log"
    assert end.splitlines() == [address, f"b {address}", f"c {address}"]


def test_a_bucket_without_a_copy_says_so(cluster, path_with_storage):
    flags = ("--bucket", "--worker=2")
    ran = run("logs.sh", cluster(BUCKET="gs://my-bucket"), *flags, PATH=path_with_storage)
    assert ran.returncode == 1
    assert "gs://my-bucket/logs/my-tpu has no log of worker 2" in ran.stderr


def test_no_bucket_has_no_copies(cluster):
    assert "BUCKET is empty" in refusal("logs.sh", "--dry-run", cluster(), "--bucket")
    both = ("--bucket", "--follow")
    assert "exclude each other" in refusal("logs.sh", cluster(BUCKET="gs://my-bucket"), *both)
