"""launch/train.sh: the commands it prints, and what they do on a worker."""

import pathlib
import shutil
import time

import pytest

from tests.launch.scripts import LAUNCH, TRAIN_FLAGS, commands, refusal, run, write_command
from tests.launch.workers import run_on

SSH = [
    *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu"),
    *("--zone=us-central2-b", "--project=my-project", "--worker=all"),
]


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker's home folder; its Python says its arguments and ends when there is a file `end`."""
    folder = tmp_path / "w-1" / "bert_jax"
    (folder / "launch").mkdir(parents=True)
    for script in LAUNCH.glob("on_worker_*.sh"):
        shutil.copy(script, folder / "launch")
    write_command(
        folder / ".venv" / "bin" / "python",
        'printf "%s\\n" "$@" "port ${JAX_COORDINATOR_PORT-none}"',
        "while [[ ! -e end ]]; do sleep 0.05; done",
    )
    monkeypatch.setenv("LIBTPU_LOCK", str(tmp_path / "libtpu_lockfile"))
    yield folder.parent
    (folder / "end").touch()


def train(cluster: str, worker, *flags: str, code: int = 0) -> str:
    """Run what train.sh would on a worker until one fails; gives what it says."""
    said = ""
    for command in commands("train.sh", cluster, *flags):
        ran = run_on(worker, command[-1].removeprefix("--command="))
        said += ran.stdout + ran.stderr
        if ran.returncode:
            break
    assert ran.returncode == code, said
    return said


def log_lines(worker, at_least: int) -> list[str]:
    log = worker / "bert_jax" / "logs" / "train.log"
    deadline = time.monotonic() + 20
    while len(lines := log.read_text().splitlines()) < at_least:
        assert time.monotonic() < deadline, lines
        time.sleep(0.02)
    return lines


def test_dry_run_prints_the_check_and_the_start_for_all_workers(cluster):
    assert commands("train.sh", cluster(), *TRAIN_FLAGS) == [
        [*SSH, "--command=cd bert_jax && bash launch/on_worker_clear.sh logs/train.log"],
        [
            *SSH,
            "--command=cd bert_jax && bash launch/on_worker_train.sh .venv/bin/python"
            " logs/train.log '' --multihost --config=configs/base.py --workdir=/mnt/runs/base",
        ],
    ]


def test_bucket_and_port_reach_the_worker(cluster):
    option = cluster(BUCKET="gs://my-bucket/bert/", COORDINATOR_PORT="8476")
    start = commands("train.sh", option, *TRAIN_FLAGS)[-1][-1]
    assert " && JAX_COORDINATOR_PORT=8476 bash launch/on_worker_train.sh " in start
    assert " logs/train.log gs://my-bucket/bert/logs/my-tpu --multihost " in start


def test_following_ends_in_the_command_of_logs_sh(cluster):
    printed = commands("train.sh", cluster(), "--follow", *TRAIN_FLAGS)
    assert printed[:-1] == commands("train.sh", cluster(), *TRAIN_FLAGS)
    assert printed[-1:] == commands("logs.sh", cluster(), "--follow")


def test_a_dry_run_asked_for_after_the_flags_is_a_dry_run(cluster, path_with_gcloud):
    ran = run("train.sh", cluster(), *TRAIN_FLAGS, "--dry-run", PATH=path_with_gcloud())
    assert ran.stdout.startswith("gcloud compute")
    assert "--dry-run" not in ran.stdout


@pytest.mark.parametrize(
    "flag", ["--config.data.store=/mnt/my stores/a[0]", "--x=$(id);`id`'\"&|\\", "--x="]
)
def test_a_flag_reaches_the_training_as_it_was_given(cluster, worker, flag):
    option = cluster(COORDINATOR_PORT="8476")
    said = train(option, worker, *TRAIN_FLAGS, flag)
    assert "w-1: training runs as process" in said
    words = ["-u", "-m", "bert_jax.train", "--multihost", *TRAIN_FLAGS, flag, "port 8476"]
    lines = log_lines(worker, 1 + len(words))
    assert lines[0].endswith("Z train.sh")
    assert lines[1:] == words


def test_one_that_trains_is_left_alone_until_it_is_stopped(cluster, worker):
    train(cluster(), worker, *TRAIN_FLAGS)
    log_lines(worker, 7)
    said = train(cluster(), worker, *TRAIN_FLAGS, code=2)
    assert "w-1: error: training runs here already (running " in said
    assert "launch/train.sh --stop ends it" in said
    assert "training has stopped, exit code" in train(cluster(), worker, "--stop")
    train(cluster(), worker, *TRAIN_FLAGS)


def test_no_bert_jax_on_the_worker_is_a_failure(cluster, tmp_path):
    assert "bert_jax: No such file or directory" in train(cluster(), tmp_path, *TRAIN_FLAGS, code=1)


def test_nothing_is_started_where_a_worker_is_not_ready(cluster, path_with_gcloud):
    ran = run("train.sh", cluster(), *TRAIN_FLAGS, PATH=path_with_gcloud(exit_code=7))
    assert ran.returncode == 7
    assert "on_worker_clear.sh" in ran.stdout
    assert "on_worker_train.sh" not in ran.stdout


def test_a_start_that_fails_on_a_worker_says_how_to_end_the_others(cluster, path_with_gcloud):
    path = path_with_gcloud()
    gcloud = pathlib.Path(path.partition(":")[0]) / "gcloud"
    answers = gcloud.read_text().splitlines()[1:]
    write_command(gcloud, '[[ "$*" != *on_worker_train.sh* ]] || exit 7', *answers)
    option = cluster()
    ran = run("train.sh", option, *TRAIN_FLAGS, PATH=path)
    assert ran.returncode == 7
    assert (
        f"may train on some workers only; end that: launch/train.sh {option} --stop" in ran.stderr
    )
    assert "trains. Its output" not in ran.stdout


def test_it_says_how_to_look_at_it_and_how_to_stop_it(cluster, path_with_gcloud):
    option = cluster()
    said = run("train.sh", option, *TRAIN_FLAGS, PATH=path_with_gcloud()).stdout
    assert f"launch/logs.sh {option} --follow" in said
    assert f"launch/train.sh {option} --stop" in said


def test_stopping_is_one_command(cluster):
    stop = "cd bert_jax && bash launch/on_worker_train.sh --stop logs/train.log"
    assert commands("train.sh", cluster(), "--stop") == [[*SSH, f"--command={stop}"]]
    said = refusal("train.sh", "--dry-run", cluster(), "--stop", "--config=a")
    assert "takes no flags of training, but there is '--config=a'" in said


@pytest.mark.parametrize("missing", [0, 1])
def test_config_and_workdir_are_asked_for(cluster, missing):
    flags = [flag for i, flag in enumerate(TRAIN_FLAGS) if i != missing]
    name = TRAIN_FLAGS[missing].partition("=")[0]
    assert f"{name}=" in refusal("train.sh", "--dry-run", cluster(), *flags)
