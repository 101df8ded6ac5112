"""launch/setup.sh and train.sh: what they send and start, and what they do not."""

import shutil

import pytest

from tests.launch.pods import run_on
from tests.launch.scripts import (
    LAUNCH,
    TRAIN_FLAGS,
    commands,
    commit,
    git,
    refusal,
    run,
    write_command,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def setup(clone):
    return clone / "launch" / "setup.sh"


def fail_at(pod, words: str) -> None:
    """Replace gcloud by one that prints its arguments, and exits 7 where they hold these words."""
    write_command(
        pod.commands / "gcloud",
        '[[ $1 != auth ]] || { echo me; exit; }\nprintf "%s\\n" "$*"',
        f'[[ "$*" != *"{words}"* ]] || exit 7',
    )


@pytest.mark.parametrize("name", ["new.py", "old module.py"])
def test_uncommitted_changes_are_named(cluster, clone, setup, name):
    (clone / name).write_text("x = 1\n")
    said = refusal(setup, "--dry-run", cluster())
    assert name in said
    assert "commit them, or leave them out with --revision=HEAD" in said
    assert commands(setup, cluster(), "--revision=HEAD")


def test_an_older_commit_can_be_sent(cluster, clone, setup):
    first = git(clone, "rev-parse", "HEAD")
    (clone / "new.py").touch()
    commit(clone)
    assert first in commands(setup, cluster(), "--revision=HEAD~1")[1]


def test_a_commit_that_cannot_be_sent_is_refused(cluster, clone, setup):
    for revision in ("absent", "--all", "HEAD:launch"):
        said = refusal(setup, "--dry-run", cluster(), f"--revision={revision}")
        assert f"--revision={revision} is no commit" in said
    (clone / "launch" / "worker" / "on_worker_setup.sh").unlink()
    commit(clone)
    assert "launch/worker/on_worker_setup.sh" in refusal(setup, "--dry-run", cluster())
    # As from a wheel, whose environment often lies inside a clone of something.
    installed = clone / ".venv" / "bert_jax" / "launch"
    shutil.copytree(LAUNCH, installed)
    said = refusal(installed / "setup.sh", "--dry-run", cluster())
    assert "is not the launch folder of a clone of bert_jax" in said


def test_other_packages_have_another_wheelhouse(cluster, clone, setup):
    option = cluster(BUCKET="gs://my-bucket/bert")
    before = commands(setup, option, "--wheelhouse")[0]
    (clone / "old module.py").write_text("x = 1\n")
    commit(clone)
    assert commands(setup, option, "--wheelhouse")[0] == before
    (clone / "requirements" / "tpu.txt").write_text("# none\n")
    commit(clone)
    assert commands(setup, option, "--wheelhouse")[0] != before


def test_workers_without_external_addresses_install_from_the_bucket(cluster, setup):
    inside = {"INTERNAL_IPS": "true", "BUCKET": "gs://my-bucket"}
    from_bucket = commands(setup, cluster(**inside), "--wheelhouse")
    assert commands(setup, cluster(**inside)) == from_bucket
    assert "BUCKET is empty" in refusal(setup, "--dry-run", cluster(INTERNAL_IPS="true"))


def test_nothing_is_sent_if_the_wheelhouse_is_incomplete(pod):
    pod.set(BUCKET="gs://my-bucket")
    fail_at(pod, "storage ls")
    said = pod.run("setup.sh", "--wheelhouse", code=2)
    assert "/complete was not found" in said.stderr and "launch/wheelhouse.sh" in said.stderr
    assert "scp" not in said.stdout


# A script, its flags, the command that fails -> what is run after that, what is said.
STOPS = [
    ("setup.sh", (), " scp ", " ssh ", ""),
    ("train.sh", TRAIN_FLAGS, "on_worker_clear.sh", "on_worker_train.sh", ""),
    (
        *("train.sh", TRAIN_FLAGS, "on_worker_train.sh", "trains. Show its output"),
        "may train on some workers only; stop it: launch/train.sh {} --stop",
    ),
    (
        *("train.sh", ("--doctor", *TRAIN_FLAGS), "bert_jax.doctor", "on_worker_train.sh"),
        "training was not started on my-tpu: the doctor found something wrong",
    ),
]


@pytest.mark.parametrize(("script", "flags", "failing", "after", "said"), STOPS)
def test_nothing_follows_a_step_that_fails(pod, script, flags, failing, after, said):
    fail_at(pod, failing)
    ran = pod.run(script, *flags, code=7)
    assert failing in ran.stdout and after not in ran.stdout
    assert said.format(pod.cluster) in ran.stderr


def test_the_doctor_gets_the_flags_that_it_knows_and_comes_before_training(cluster):
    flags = (*TRAIN_FLAGS, "--config.phases[0].steps=7", "--print_config")
    clear, doctor, train = commands(
        "train.sh", cluster(COORDINATOR_PORT="8476"), "--doctor", *flags
    )
    assert "on_worker_clear.sh" in clear[-1] and "on_worker_train.sh" in train[-1]
    assert "--doctor" not in train[-1]
    words = doctor[-1].partition("&& ")[2].split()
    assert words[:2] == ["JAX_COORDINATOR_PORT=8476", "timeout"]
    assert words[4:] == [
        *("-m", "bert_jax.doctor", "--multihost", *TRAIN_FLAGS),
        *("'--config.phases[0].steps=7'", "--json_out=logs/doctor.json"),
    ]


def test_dry_run_after_the_flags_of_training_is_a_dry_run(cluster):
    ran = run("train.sh", cluster(), *TRAIN_FLAGS, "--dry-run")
    assert ran.stdout.startswith("gcloud compute")
    assert "--dry-run" not in ran.stdout


@pytest.mark.parametrize(
    "flag", ["--config.data.store=/mnt/my stores/a[0]", "--x=$(id);`id`'\"&|\\", "--x="]
)
def test_a_flag_reaches_the_training_as_it_was_given(cluster, tmp_path, monkeypatch, flag):
    monkeypatch.setenv("LIBTPU_LOCK", str(tmp_path / "libtpu_lockfile"))
    home = tmp_path / "w-1"
    shutil.copytree(LAUNCH / "worker", home / "bert_jax" / "launch" / "worker")
    python = home / "bert_jax" / ".venv" / "bin" / "python"
    write_command(python, 'printf "%s\\n" "$@" "port ${JAX_COORDINATOR_PORT-none}"', "touch end")
    for command in commands("train.sh", cluster(COORDINATOR_PORT="8476"), *TRAIN_FLAGS, flag):
        ran = run_on(home, command[-1].removeprefix("--command="))
        assert ran.returncode == 0, ran
    assert "w-1: training runs as process" in ran.stdout
    words = ["-u", "-m", "bert_jax.train", "--multihost", *TRAIN_FLAGS, flag, "port 8476"]
    stopped = commands("train.sh", cluster(), "--stop")[0][-1].removeprefix("--command=")
    assert (
        run_on(home, f"until [ -e bert_jax/end ]; do sleep 0.05; done; {stopped}").returncode == 0
    )
    first, *lines = (home / "bert_jax" / "logs" / "train.log").read_text().splitlines()
    assert first.endswith("Z train.sh")
    assert lines[: len(words)] == words
