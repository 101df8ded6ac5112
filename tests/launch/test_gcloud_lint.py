"""Every command that scripts print, and that pages and scripts write, by gcloud's own check.

The check is offline: it knows commands and flags, and no zones, machines or systems. What is newer
than the installed SDK stands in NEWER.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from itertools import groupby

import pytest

from launch.cloud import compute_engine, watch
from launch.cloud.check import list_checks
from launch.cloud.run import Answer
from launch.cloud.topologies import ROADS
from tests.launch.conftest import list_commands, split_flags
from tests.launch.scripts import LAUNCH, make_job, needs_gcloud
from tests.launch.scripts import call as call_command
from tests.launch.tpu_api import log_in, serving

ROOT = LAUNCH.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
GROUPS = "auth|compute|config|container|iam|meta|projects|services|storage"
START = re.compile(rf"gcloud (?:alpha |beta )?(?:{GROUPS}) ")
# Quoted words and others, up to what ends a command: |, 2> and the like.
WORDS = re.compile(r"""(?:(?! *\d>)(?:'[^']*'|"[^"]*"|[^'"()<>|;&`]))+""")
# Flag, or value of one, that SDK 528 (2025-06) lacks -> reference page, read on 2026-11-26.
NEWER = {
    "--target-size-policy-mode=bulk": "compute/docs/instance-groups/about-bulk-mode",
    "--provisioning-model=FLEX_START": "sdk/gcloud/reference/compute/instance-templates/create",
}

LOCK = "gcloud storage objects describe --format=json gs://b/lock"
IMAGE = "gcloud artifacts docker images describe us-docker.pkg.dev/my-project/images/bert:1"

# Written as people write commands.
WRONG = """Run `gcloud storage rsnc a b` and
    gcloud compute tpus tpu-vm delete my-tpu \\
        --force | tail
said=$(timeout 9 gcloud compute tpus tpu-vm ssh "$NAME" 'b c' --wrker=all 2>&1)
gcloud has no command of that name
"""


def written(text: str) -> Iterator[str]:
    """The commands in a page or a script, up to where the shell would end them.

    A variable's value is a word without blanks.
    """
    text = text.replace("\\\n", " ")
    text = re.sub(r"\$(\{[^}]*\}|\((?![^()]*gcloud )[^()]*\)|\w+)", "my-name", text)
    for found in START.finditer(text):
        before, line = text[: found.start()], text[found.start() :].partition("\n")[0]
        if before.endswith(("`", "'", '"')):
            line = line.partition(before[-1])[0]
        yield WORDS.match(line)[0]


def flags_last(line: str) -> str:
    """The same command as the check needs it: to it a word behind `--recursive` is its value."""
    words = [word for word in shlex.split(line) if word not in NEWER]
    return shlex.join(sorted(words, key=lambda word: word.startswith("--")))


def find_kind(line: str) -> tuple[str, frozenset[str], int]:
    """Name a command, its flags, and how many words it takes; values are not checked."""
    words = shlex.split(line)
    name, flags = split_flags(words)
    return name, frozenset(flags), len(words)


def run_gcloud(words: list[str], folder: pathlib.Path, **addresses: str):
    return call_command(["gcloud", *words], env=os.environ | log_in(folder, **addresses))


def refused(lines: list[str], folder: pathlib.Path) -> dict[str, str]:
    """Command -> what gcloud's check says against it, for those that do not pass."""
    asked = folder / "commands.json"
    asked.write_text(json.dumps([{"command_string": line} for line in lines]))
    ran = run_gcloud(["meta", "lint-gcloud-commands", f"--commands-file={asked}"], folder)
    answers = json.loads(ran.stdout)
    assert len(answers) == len(lines), ran.stderr
    return {a["command_string"]: a["error_message"] for a in answers if not a["success"]}


@needs_gcloud
@pytest.mark.long
@pytest.mark.fault(17, "three wrong commands among all that are printed or written")
def test_gcloud_knows_every_command_and_flag(tmp_path):
    lines = [shlex.join(words) for words in list_commands() if words[0] == "gcloud"]
    for road in ROADS:
        checks = list_checks(make_job(tmp_path, road, "--config.data.store=gs://b/s"))
        remedies = [line for check in checks for line in (check.remedy, check.relocation)]
        lines += [line for line in remedies if line.startswith("gcloud ")]
    for path in (*PAGES, *LAUNCH.rglob("*.sh"), LAUNCH / "cluster.env"):
        lines += written(path.read_text())
    lines += written(WRONG)
    # One of those that differ in values alone: the check takes a tenth of a second for each.
    lines = list({find_kind(line): flags_last(line) for line in lines}.values())
    assert len(lines) > 20
    found = refused(lines, tmp_path)
    assert set(found) == {
        "gcloud storage rsnc a b",
        "gcloud compute tpus tpu-vm delete my-tpu --force",
        "gcloud compute tpus tpu-vm ssh my-name 'b c' --wrker=all",
    }, found


@needs_gcloud
@pytest.mark.slow
def test_gcloud_asks_for_no_region_of_a_subnetwork(tmp_path, monkeypatch):
    """Its check does not resolve names; creation does, before it asks for the image.

    Nor is it confused by the path of a clone.
    """
    folder = shutil.copytree(LAUNCH / "worker", tmp_path / "my, clone=1" / "worker").parent
    monkeypatch.setattr(compute_engine, "LAUNCH", folder)
    job = make_job(tmp_path, "compute_engine", NETWORK="my-network", SUBNETWORK="my-subnetwork")
    words = [command.words for command in compute_engine.plan("create", job)]
    (template,) = (own for own in words if own[2:4] == ["instance-templates", "create"])
    asked = []
    with serving(lambda verb, path, body: asked.append(path) or (403, {})) as address:
        ran = run_gcloud(template[1:], tmp_path, COMPUTE=f"{address}/compute/v1/")
    assert "/images/family/" in asked[0] and "Underspecified" not in ran.stderr


@needs_gcloud
@pytest.mark.slow
@pytest.mark.parametrize("line", [LOCK, IMAGE])
def test_a_lock_or_an_image_that_is_not_there_is_absent(tmp_path, line):
    """Else no supervisor takes the lock, and pods wait for an image for ever."""

    def answer(verb, path, body):
        if path.endswith("/images?alt=json"):  # the repository
            return 200, {"format": "DOCKER"}
        return 404, {"error": {"code": 404, "message": "no"}}

    with serving(answer) as address:
        there = {"STORAGE": f"{address}/storage/v1/", "ARTIFACTREGISTRY": f"{address}/"}
        ran = run_gcloud(shlex.split(line)[1:], tmp_path, **there)
    assert line != IMAGE or "Image not found" in ran.stderr
    assert Answer(ran.returncode, ran.stdout, ran.stderr).is_absent, ran.stderr


def test_no_flag_stands_between_two_arguments():
    """gcloud knows no second argument then; its own check does not see it."""
    for words in list_commands():
        rest = [w for w in words[len(split_flags(words)[0].split()) :] if w != "<<END"]
        kinds = [is_flag for is_flag, _ in groupby(rest, key=lambda word: word.startswith("--"))]
        assert words[0] != "gcloud" or kinds.count(False) <= 1, words


@needs_gcloud
@pytest.mark.slow
def test_a_lock_is_written_on_condition_that_nobody_has_it(tmp_path):
    asked = []

    def answer(verb, path, body):
        asked.append(path)
        if "/o?" in path and verb == "GET":  # a list of what is there
            return 200, {}
        code = 404 if verb == "GET" else 412
        return code, {"error": {"code": code, "message": "another was quicker"}}

    def ask(command):
        ran = run_gcloud(command.words[1:], tmp_path, STORAGE=f"{address}/storage/v1/")
        return Answer(ran.returncode, ran.stdout, ran.stderr)

    with serving(answer) as address:
        why = watch.BucketLock("gs://b/lock", "me", ask, time.time).take()
    assert "another was quicker" in why and "ifGenerationMatch=0" in asked[-1]


@needs_gcloud
@pytest.mark.slow
def test_compute_engine_tells_its_newest_error_and_a_missing_right(tmp_path):
    """Its API promises no order of errors; gcloud names no code where a request is refused."""
    job = make_job(tmp_path, "compute_engine")
    errors = [{"timestamp": f"2026-11-0{day}", "error": {"code": f"E{day}"}} for day in (1, 3, 2)]
    refused = {"error": {"code": 403, "message": "Required 'compute.b.create' permission for 'a'"}}
    answers = {"GET": (200, {"items": errors})}
    policy = next(c for c in compute_engine.plan("create", job) if "workload-policy" in c.words)
    with serving(lambda verb, *_: answers.get(verb, (403, refused))) as address:
        there, asked = f"{address}/compute/v1/", (compute_engine.plan("look", job)[2], policy)
        newest, denied = (run_gcloud(c.words[1:], tmp_path, COMPUTE=there) for c in asked)
    assert json.loads(newest.stdout) == [{"error": {"code": "E3"}}], newest.stderr
    assert Answer(denied.returncode, denied.stdout, denied.stderr).is_permanent, denied.stderr
