"""launch/train.sh: the command it prints, what it hands to gcloud, and what it refuses."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
SCRIPT = LAUNCH / "train.sh"
VALUES = {
    "PROJECT": "my-project",
    "ZONE": "us-central2-b",
    "TPU_NAME": "my-tpu",
    "REMOTE_DIR": "bert_jax",
    "REMOTE_PYTHON": ".venv/bin/python",
}
TRAIN_FLAGS = ("--config=configs/base.py", "--workdir=/mnt/runs/base")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


@pytest.fixture
def cluster(tmp_path):
    """A function that writes a cluster.env, complete but for what it is given."""

    def write(extra: str = "", **changed: str) -> str:
        path = tmp_path / "cluster.env"
        lines = [f"{name}={value}" for name, value in (VALUES | changed).items()]
        path.write_text("# a comment\n\n" + "\n".join([*lines, extra]))
        return f"--cluster={path}"

    return write


def refusal(*arguments: str, **environment: str) -> str:
    ran = run(*arguments, **environment)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


def folder_with_only(tmp_path: pathlib.Path, *names: str) -> str:
    """A PATH on which there is nothing but these commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


def test_shellcheck_finds_nothing():
    ours = [*LAUNCH.glob("*.sh"), *(LAUNCH.parent / ".ci").iterdir()]
    shellcheck = pathlib.Path(sys.executable).with_name("shellcheck")
    ran = subprocess.run([str(shellcheck), *map(str, ours)], capture_output=True, text=True)
    assert ran.stdout == ""
    assert ran.returncode == 0


def test_help_needs_no_cluster():
    ran = run("--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: launch/train.sh")


def test_dry_run_prints_one_command_for_all_workers(cluster):
    ran = run("--dry-run", cluster(), *TRAIN_FLAGS)
    assert ran.returncode == 0
    assert shlex.split(ran.stdout) == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "my-tpu"),
        *("--zone=us-central2-b", "--project=my-project", "--worker=all"),
        "--command=cd bert_jax && .venv/bin/python -m bert_jax.train --multihost "
        "--config=configs/base.py --workdir=/mnt/runs/base",
    ]


@pytest.mark.parametrize(
    "flag",
    ["--config.phases[0].steps=5", "--config.data.store=/mnt/my stores/a", "--x=$(id);`id`'\"&|"],
)
def test_a_flag_reaches_the_worker_as_it_was_given(cluster, flag):
    ran = run("--dry-run", cluster(), *TRAIN_FLAGS, flag)
    remote = shlex.split(ran.stdout)[-1].removeprefix("--command=")
    arguments = remote.partition(" -m ")[2]
    seen = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {arguments}"], capture_output=True, text=True, check=True
    )
    assert seen.stdout.splitlines()[-1] == flag


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")
@pytest.mark.parametrize(("broken", "accepted"), [("", True), (" --wrker=all", False)])
def test_gcloud_knows_the_flags(cluster, tmp_path, broken, accepted):
    command = run("--dry-run", cluster(), *TRAIN_FLAGS).stdout.strip() + broken
    ran = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--command-string={command}"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
    )
    assert [found["success"] for found in json.loads(ran.stdout)] == [accepted]


def test_gcloud_gets_the_command_and_its_exit_code_comes_back(cluster, tmp_path):
    path = folder_with_only(tmp_path, "bash", "dirname")
    shim = tmp_path / "bin" / "gcloud"
    shim.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\nexit 7\n')
    shim.chmod(0o755)
    given = run(cluster(), *TRAIN_FLAGS, PATH=f"{path}:{os.environ['PATH']}")
    assert given.returncode == 7
    printed = shlex.split(run("--dry-run", cluster(), *TRAIN_FLAGS).stdout)
    assert given.stdout.splitlines() == printed[1:]


def test_gcloud_absent(cluster, tmp_path):
    path = folder_with_only(tmp_path, "bash", "dirname")
    assert "gcloud is not on PATH" in refusal(cluster(), *TRAIN_FLAGS, PATH=path)


def test_the_example_that_is_shipped_names_what_to_fill_in():
    assert "PROJECT is empty" in refusal("--dry-run", *TRAIN_FLAGS)


def test_no_cluster_file(tmp_path):
    path = tmp_path / "absent.env"
    assert f"{path}: there is no such file" in refusal(f"--cluster={path}", *TRAIN_FLAGS)


@pytest.mark.parametrize("name", VALUES)
def test_an_empty_value_is_named(cluster, name):
    assert f"{name} is empty" in refusal("--dry-run", cluster(**{name: ""}), *TRAIN_FLAGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROJECT", "My Project"),
        ("PROJECT", "p; rm -rf ~"),
        ("ZONE", "us-central2"),
        ("ZONE", "--zone"),
        ("TPU_NAME", "my tpu"),
        ("TPU_NAME", "-f"),
        ("TPU_NAME", "a" * 64),
        ("TPU_NAME", "$(id)"),
        ("REMOTE_DIR", "my folder"),
        ("REMOTE_DIR", "-"),
        ("REMOTE_PYTHON", "python && id"),
    ],
)
def test_a_bad_value_is_named(cluster, name, value):
    said = refusal("--dry-run", cluster(**{name: value}), *TRAIN_FLAGS)
    assert f"{name} is '{value}'" in said


def test_a_line_that_is_no_setting_is_refused_and_not_run(cluster, tmp_path):
    planted = tmp_path / "planted"
    assert "is not NAME=VALUE" in refusal("--dry-run", cluster(f"touch {planted}"), *TRAIN_FLAGS)
    assert not planted.exists()


@pytest.mark.parametrize("missing", [0, 1])
def test_config_and_workdir_are_asked_for(cluster, missing):
    flags = [flag for i, flag in enumerate(TRAIN_FLAGS) if i != missing]
    name = TRAIN_FLAGS[missing].partition("=")[0]
    assert f"{name}=" in refusal("--dry-run", cluster(), *flags)
