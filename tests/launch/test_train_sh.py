"""launch/train.sh: the command it prints, and what that command does on a worker."""

import pytest

from tests.launch.scripts import (
    TRAIN_FLAGS,
    commands,
    gcloud_accepts,
    needs_gcloud,
    refusal,
    run,
    write_command,
)
from tests.launch.workers import run_on


def remote(*arguments: str) -> str:
    (command,) = commands("train.sh", *arguments)
    return command[-1].removeprefix("--command=")


@pytest.fixture
def worker(tmp_path):
    """A function that makes a worker's home folder, whose Python says its arguments and ends."""

    def make(exit_code: int = 0):
        write_command(
            tmp_path / "bert_jax" / ".venv" / "bin" / "python",
            'printf "%s\\n" "$@"',
            "echo a warning >&2",
            f"exit {exit_code}",
        )
        return tmp_path

    return make


def test_dry_run_prints_one_command_for_all_workers(cluster):
    (command,) = commands("train.sh", cluster(), *TRAIN_FLAGS)
    assert command == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu"),
        *("--zone=us-central2-b", "--project=my-project", "--worker=all"),
        '--command=cd bert_jax && mkdir -p logs && date -u "+%FT%TZ train.sh" >>logs/train.log'
        " && set -o pipefail && .venv/bin/python -u -m bert_jax.train --multihost"
        " --config=configs/base.py --workdir=/mnt/runs/base 2>&1 | tee -a logs/train.log",
    ]


def test_a_dry_run_asked_for_after_the_flags_is_a_dry_run(cluster, path_with_gcloud):
    ran = run("train.sh", cluster(), *TRAIN_FLAGS, "--dry-run", PATH=path_with_gcloud())
    assert ran.stdout.startswith("gcloud compute")
    assert "--dry-run" not in ran.stdout


@pytest.mark.parametrize(
    "flag",
    [
        "--config.phases[0].steps=5",
        "--config.data.store=/mnt/my stores/a",
        "--x=$(id);`id`'\"&|\\",
        "--x=",
    ],
)
def test_a_flag_reaches_the_worker_as_it_was_given(cluster, worker, flag):
    ran = run_on(worker(), remote(cluster(), *TRAIN_FLAGS, flag))
    said = ["-u", "-m", "bert_jax.train", "--multihost", *TRAIN_FLAGS, flag, "a warning"]
    assert ran.stdout.splitlines() == said
    log = (worker() / "bert_jax" / "logs" / "train.log").read_text().splitlines()
    assert log[0].endswith("Z train.sh")
    assert log[1:] == said


def test_the_exit_code_outlives_the_log_and_the_log_is_added_to(cluster, worker):
    command = remote(cluster(), *TRAIN_FLAGS)
    assert run_on(worker(exit_code=86), command).returncode == 86
    assert run_on(worker(), command).returncode == 0
    log = (worker() / "bert_jax" / "logs" / "train.log").read_text()
    assert log.count("Z train.sh\n") == log.count("a warning\n") == 2


def test_no_bert_jax_on_the_worker_is_a_failure(cluster, tmp_path):
    ran = run_on(tmp_path, remote(cluster(), *TRAIN_FLAGS))
    assert ran.returncode == 1
    assert "bert_jax: No such file or directory" in ran.stderr


@needs_gcloud
@pytest.mark.parametrize(("broken", "accepted"), [((), True), (("--wrker=all",), False)])
def test_gcloud_knows_the_flags(cluster, tmp_path, broken, accepted):
    (command,) = commands("train.sh", cluster(), *TRAIN_FLAGS)
    assert gcloud_accepts([*command, *broken], tmp_path) is accepted


@pytest.mark.parametrize("missing", [0, 1])
def test_config_and_workdir_are_asked_for(cluster, missing):
    flags = [flag for i, flag in enumerate(TRAIN_FLAGS) if i != missing]
    name = TRAIN_FLAGS[missing].partition("=")[0]
    assert f"{name}=" in refusal("train.sh", "--dry-run", cluster(), *flags)
