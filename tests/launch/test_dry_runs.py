"""What each command of launch/ would do, as its --dry-run prints it, and that it is sound bash."""

import os
import re

import pytest

from tests.launch.scripts import IMAGE, LAUNCH, TRAIN_FLAGS, git, run

# Every setting that adds a flag to a command.
SETTINGS = {
    "SPOT": "true",
    "VALID_UNTIL": "6h",
    "BUCKET": "gs://my-bucket/bert/",
    "SERVICE_ACCOUNT": "trainer@my-project.iam.gserviceaccount.com",
    "NETWORK": "my-network",
    "SUBNETWORK": "my-subnetwork",
    "INTERNAL_IPS": "true",
    "COORDINATOR_PORT": "8476",
    "LABEL": "anna",
    "GKE_SERVICE_ACCOUNT": "trainer",
}
TO_BUCKET = ("--config=configs/base.py", "--workdir=gs://my-bucket/base")
ODD_FLAG = "--x=a 'b' \"c\\d\": $(id)"
# A command, its flags, and whether cluster.env has SETTINGS; else the least that it can have.
CALLS = [
    ("create.sh", (), False),
    ("create.sh", ("--wait=6h",), True),
    ("setup.sh", (), False),
    ("setup.sh", ("--revision=HEAD", "--wheelhouse"), True),
    ("wheelhouse.sh", (), True),
    ("train.sh", TRAIN_FLAGS, False),
    ("train.sh", (*TRAIN_FLAGS, "--follow", "--config.data.store=/mnt/my stores/a"), True),
    ("train.sh", ("--stop",), False),
    ("logs.sh", (), False),
    ("logs.sh", ("--worker=3", "--lines=5", "--follow"), True),
    ("logs.sh", ("--bucket",), True),
    ("ssh.sh", (), False),
    ("ssh.sh", ("--worker=all", "df -h | tail -1"), True),
    ("delete.sh", (), False),
    ("watch.sh", (*TRAIN_FLAGS, "--revision=HEAD", "--delete_at_end"), False),
    ("pod.sh", ("configs/base.py", "--config.seed=3"), True),
    ("gke/jobset.sh", (*TO_BUCKET, ODD_FLAG), True),
    ("gke/xpk.sh", (*TO_BUCKET, "--x=it's a"), True),
]


def test_the_commands_of_every_script(cluster, clone, tmp_path, golden):
    head = git(clone, "rev-parse", "HEAD")
    digest = "-".join(
        git(clone, "rev-parse", f"HEAD:requirements/{name}.txt")[:12] for name in ("tpu", "uv")
    )
    transcript = ""
    for script, flags, is_full in CALLS:
        option = cluster(**(SETTINGS | IMAGE if is_full else IMAGE))
        ran = run(clone / "launch" / script, "--dry-run", option, *flags)
        assert (ran.returncode, ran.stderr) == (0, ""), script
        words = " ".join((script, *flags, *["# all settings"] * is_full))
        transcript += f"$ launch/{words}\n{ran.stdout}\n"
    for text, name in (
        (str(clone), "CLONE"),
        (str(tmp_path), "TMP"),
        (head, "COMMIT"),
        (digest, "DIGEST"),
    ):
        transcript = transcript.replace(text, name)
    golden("launch_dry_runs.txt", transcript)
    assert git(clone, "status", "--porcelain") == "" and not (clone / "build").exists()


# What bash 3.2, which macOS has, does not know.
NEWER = re.compile(
    r"\b(declare|local) -[a-z]*[An]|\b(mapfile|readarray|coproc)\b|\$\{\w+(\^|,|@)|&>>|\|&|wait -n"
    r"|%\([^)]*\)T|\[-\d\]\}|EPOCHSECONDS|\[\[ -v "
)


def test_what_runs_on_a_laptop_is_written_for_bash_of_macos():
    scripts = [path for path in LAUNCH.rglob("*.sh") if path.parent.name != "worker"]
    lines = [line for path in scripts for line in path.read_text().splitlines()]
    assert [line for line in lines if NEWER.search(line)] == []
    planted = ("local -A b", "echo ${a^^}", "echo ${a[-1]}", "printf '%(%s)T'", "mapfile -t a <b")
    assert all(NEWER.search(line) for line in planted)


COMMANDS = sorted(
    str(path.relative_to(LAUNCH))
    for path in LAUNCH.rglob("*.sh")
    if path.parent.name not in ("lib", "worker")
)


@pytest.mark.parametrize("script", COMMANDS)
def test_help_needs_no_cluster_and_says_what_was_not_tried(script, tmp_path):
    ran = run(script, "--help", f"--cluster={tmp_path / 'absent'}")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"usage: launch/{script}")
    assert "Not yet run" in ran.stdout


def test_commands_can_be_run_and_sourced_files_cannot():
    for path in LAUNCH.rglob("*.sh"):
        is_sourced = path.parent.name == "lib"
        assert path.read_text().startswith("#!") is not is_sourced, path
        assert os.access(path, os.X_OK) is not is_sourced, path
