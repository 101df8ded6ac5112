"""Running the scripts of launch/ as a user does, and what every test of them needs."""

import os
import pathlib
import shlex
import shutil
import subprocess

import pytest

LAUNCH = pathlib.Path(__file__).resolve().parents[2] / "launch"
VALUES = {
    "PROJECT": "my-project",
    "ZONE": "us-central2-b",
    "TPU_NAME": "my-tpu",
    "ACCELERATOR_TYPE": "v5litepod-16",
    "RUNTIME_VERSION": "v2-alpha-tpuv5-lite",
    "SPOT": "false",
    "INTERNAL_IPS": "false",
    "LABEL": "bert_jax",
    "REMOTE_DIR": "bert_jax",
    "REMOTE_PYTHON": ".venv/bin/python",
}
# Each script with the flags without which it refuses, and the settings that it reads.
PLACE = ("PROJECT", "ZONE", "TPU_NAME")
TRAIN_FLAGS = ("--config=configs/base.py", "--workdir=/mnt/runs/base")
FLAGS = {
    "create.sh": (),
    "setup.sh": ("--revision=HEAD",),
    "train.sh": TRAIN_FLAGS,
    "logs.sh": (),
    "ssh.sh": ("uptime",),
    "delete.sh": ("--yes",),
}
READS = {
    "create.sh": (*PLACE, "ACCELERATOR_TYPE", "RUNTIME_VERSION", "SPOT", "INTERNAL_IPS", "LABEL"),
    "setup.sh": (*PLACE, "INTERNAL_IPS", "REMOTE_DIR", "REMOTE_PYTHON"),
    "train.sh": (*PLACE, "INTERNAL_IPS", "REMOTE_DIR", "REMOTE_PYTHON"),
    "logs.sh": (*PLACE, "INTERNAL_IPS", "REMOTE_DIR"),
    "ssh.sh": (*PLACE, "INTERNAL_IPS"),
    "delete.sh": (*PLACE, "LABEL"),
}
needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="needs gcloud")


def run(
    script: str | pathlib.Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of launch/, or one at a path of its own, away from any terminal."""
    return subprocess.run(
        ["bash", str(LAUNCH / script), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
        timeout=60,
    )


def refusal(script: str | pathlib.Path, *arguments: str, **environment: str) -> str:
    """What a script says that refuses: one sentence and nothing else."""
    ran = run(script, *arguments, **environment)
    assert ran.returncode == 2, ran
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1
    return ran.stderr


def commands(script: str | pathlib.Path, *arguments: str) -> list[list[str]]:
    """The words of each command that --dry-run prints."""
    ran = run(script, "--dry-run", *arguments)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return [shlex.split(line) for line in ran.stdout.splitlines()]


def write_command(path: pathlib.Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]))
    path.chmod(0o755)
