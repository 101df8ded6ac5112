"""What each script would do, as --dry-run prints it; what is no slice or setting is refused."""

import dataclasses
import itertools
import os
import tarfile

import pytest

from bert_jax.planning.slices import SHAPES
from launch.cloud import job
from launch.cloud.cluster import FORMS
from launch.cloud.run import Answer, ask, ask_all
from launch.cloud.topologies import GENERATIONS, ROADS, find_slice
from tests.launch.scripts import LAUNCH, TRAIN_FLAGS, VALUES, git, make_job

pytestmark = pytest.mark.slow

# Every setting that adds a flag to a command.
SETTINGS = {
    "PROVISIONING": "spot",
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
LEAST = {"BUCKET": "gs://my-bucket/", "GKE_IMAGE": "us-docker.pkg.dev/my-project/images/bert:1"}
ODD_FLAG = "--x=a 'b' \"c\\d\": $(id)"
# The doctor gets the flags that it knows.
DOCTOR_FLAGS = ("--doctor", "--config.a[0]=/mnt/my stores/a", "--scratch=/tmp/a")
GKE_POD = ("configs/large.py", "--road=gke")
POD = ("configs/large.py", "--revision=HEAD")
# A command, its flags, and whether cluster.env has SETTINGS; else the least that it can have.
CALLS = [
    ("pod", (*POD, "--topology=v5e:8x8"), False),
    ("pod", (*POD, "--topology=v6e:8x8"), False),
    ("pod", (*POD, "--topology=tpu7x:4x4x4", ODD_FLAG), True),
    ("pod", (*GKE_POD, "--topology=v6e:8x8"), False),
    ("pod", (*GKE_POD, "--topology=tpu7x:4x4x4", ODD_FLAG), True),
    ("create", ("--wait=6h",), True),
    ("setup", ("--revision=HEAD", "--wheelhouse"), True),
    ("wheelhouse", ("--revision=HEAD",), True),
    ("train", (*TRAIN_FLAGS, *DOCTOR_FLAGS), True),
    ("train", ("--stop",), False),
    ("logs", ("--worker=3", "--lines=5", "--follow"), True),
    ("logs", ("--bucket",), True),
    ("logs", ("--road=gke", "--follow"), False),
    ("logs", ("--road=gke", "--worker=3"), False),
    ("ssh", ("--worker=all", "df -h | tail -1"), True),
    ("check", ("--config.data.store=gs://b/s",), True),
    ("check", ("--topology=v6e:8x8",), True),
    ("check", ("--road=gke",), True),
    ("delete", (), False),
    ("delete", ("--topology=v6e:8x8",), False),
]


def test_the_commands_of_every_script(call, cluster, clone, tmp_path, golden):
    transcript = ""
    for name, flags, is_full in CALLS:
        option = cluster(**(LEAST | SETTINGS if is_full else LEAST))
        code, out, error = call(name, "--dry-run", option, *flags)
        assert (code, error) == (0, ""), (name, flags, error)
        title = f"launch/{name}.sh {' '.join(flags)}{' # all settings' * is_full}"
        transcript += f"$ {title}\n{out}\n"
    head, *files = (
        git(clone, "rev-parse", f"HEAD{path}")
        for path in ("", ":requirements/tpu.txt", ":requirements/uv.txt")
    )
    digest = "-".join(file[:12] for file in files)
    names = {str(clone): "CLONE", str(LAUNCH): "LAUNCH", head: "COMMIT", digest: "DIGEST"}
    for text, name in names.items():
        transcript = transcript.replace(text, name)
    golden("launch_dry_runs.txt", transcript)
    assert git(clone, "status", "--porcelain") == "" and not (clone / "build").exists()


def test_each_pair_of_a_slice_and_a_road_has_a_plan_or_is_refused(call, refused, cluster):
    option = cluster(**LEAST)
    for name, generation in GENERATIONS.items():
        shape = "4x4" if not generation.max_chips else "2x2x4"
        for road in ROADS:
            flags = (POD[0], option, "--dry-run", f"--topology={name}:{shape}", f"--road={road}")
            flags += POD[1:] * (road != "gke")
            if road in generation.roads:
                code, _, error = call("pod", *flags)
                assert (code, error) == (0, "")
            else:
                assert f"not offered on ROAD={road}" in refused("pod", *flags)


# Topology -> road, accelerator type, machine, value of GKE's label, chips, dollars per chip-hour.
# Source: cloud.google.com/tpu/docs, cloud.google.com/kubernetes-engine/docs/concepts/tpus.
SLICES = {
    "v5e:8x8": ("queued", "v5litepod-64", "", "tpu-v5-lite-podslice", 64, 1.2),
    "v4:4x4x4": ("queued", "v4-128", "", "tpu-v4-podslice", 64, 3.22),
    "v5p:2x2x4": ("compute_engine", "v5p-32", "ct5p-hightpu-4t", "tpu-v5p-slice", 16, 4.2),
    "v6e:4x4": ("compute_engine", "v6e-16", "ct6e-standard-4t", "tpu-v6e-slice", 16, 2.7),
    "tpu7x:4x4x4": ("compute_engine", "-0", "tpu7x-standard-4t", "tpu7x", 64, None),
}


@pytest.mark.parametrize("name", GENERATIONS)
def test_plan_and_the_scripts_know_the_same_slices(name):
    """Among all boxes; 1x1 is not created by the scripts."""
    edges = "1", "2", "4", "8", "12", "16", "20", "24", "28"
    for shape in map("x".join, itertools.product(edges, repeat=SHAPES[name][0].count("x") + 1)):
        topology = f"{name}:{shape}"
        if shape in SHAPES[name] and shape != "1x1":
            assert find_slice(topology, "gke", "file").topology == shape
        else:
            with pytest.raises(SystemExit):
                find_slice(topology, "gke", "file")


def test_a_box_that_an_accelerator_type_does_not_name_is_refused_on_queued(capsys):
    """v4-512 is a slice of 4x8x8 at Google, whatever was meant by it."""
    assert find_slice("v4:4x4x12", "", "file").accelerator_type == "v4-384"
    assert find_slice("v4:4x4x16", "gke", "file").topology == "4x4x16"
    for topology, road in (("v4:4x4x16", ""), ("v5p:4x4x16", "queued")):
        with pytest.raises(SystemExit):
            find_slice(topology, road, "file")
        assert "256 chips are a slice of 4x8x8; take" in capsys.readouterr().err


@pytest.mark.parametrize("topology", SLICES)
def test_a_slice_has_googles_names_and_its_chips(topology):
    found = find_slice(topology, "", "file")
    kinds = (found.generation.machine, found.generation.gke)
    facts = (found.road, found.accelerator_type, *kinds, found.chips, found.price())
    assert facts == SLICES[topology] and found.hosts == found.chips / 4


GKE = ("pod", "a.py", "--workdir=gs://b/a", "--topology=v6e:4x4", "--road=gke")
# A script, its flags, and what the refusal names.
FLAGS_REFUSED = [
    ("create", ("--wait=6 h",), "--wait: '6 h'"),
    ("create", ("--dryrun",), "'--dryrun'"),
    # Only bert_jax would refuse it as a flag of training, which this machine may not have.
    ("pod", ("a.py", "--dry_run"), "'--dry_run'"),
    ("pod", ("a.py", "--max-usd=5"), "'--max-usd=5'"),
    ("pod", ("a.py", "--", "--x=1"), "'--'"),
    ("check", ("--topology=v6e:4x4",), "BUCKET is empty"),
    ("check", ("--topology=v6e:4x4", "--road=gke"), "GKE_IMAGE is empty"),
    ("create", ("--topology=v6e:4x4",), "--config="),
    ("ssh", ("--topology=v6e:4x4", "id"), "ROAD=queued"),
    ("pod", ("a.py", "--topology=v6e:4x4", "--doctor"), "--doctor is for ROAD=queued"),
    ("train", TRAIN_FLAGS[:1], "--workdir="),
    ("train", TRAIN_FLAGS[1:], "--config="),
    ("train", ("--stop", "--config=a"), "'--config=a'"),
    # Ends with 0, which a supervisor takes for the end of the training.
    ("train", (*TRAIN_FLAGS, "--print_config"), "--print_config trains nothing"),
    ("train", (*TRAIN_FLAGS, "--multihost=false"), "--multihost=false would replace"),
    # Each host would be the first.
    ("pod", (*GKE[1:], "--multihost", "--process_id=0"), "--process_id=0 would replace"),
    ("logs", ("--worker=-1",), "--worker: '-1'"),
    ("logs", ("--bucket",), "BUCKET is empty"),
    ("ssh", ("--worker=all",), "a shell opens on one worker"),
    ("ssh", ("--worker=1", "df", "a'b"), """--worker=1 'df a'"'"'b'"""),
    ("setup", ("--revision=HEAD", "--wheelhouse"), "BUCKET is empty"),
    ("setup", ("--revision=HEAD:launch",), "--revision=HEAD:launch"),
    ("watch", (*TRAIN_FLAGS, "--poll_secs=often"), "--poll_secs: 'often'"),
    ("watch", (*TRAIN_FLAGS, "--hung_secs=0"), "--hung_secs: '0'"),
    ("watch", (*TRAIN_FLAGS, "--price=$1"), "--price: '$1'"),
    ("watch", (TRAIN_FLAGS[0], "--workdir=runs/a"), "--workdir=runs/a"),
    ("pod", (), "configs/base.py, not []"),
    ("pod", ("a.py", "b.py"), "not ['a.py', 'b.py']"),
    ("pod", ("--config=a.py",), "not ['--config=a.py']"),
    ("pod", ("a.py",), "BUCKET is empty"),
    ("pod", ("a.py", "--workdir=/mnt/a", "--workdir"), "--workdir="),
    ("pod", ("a.py", "--workdir="), "BUCKET is empty"),
    ("create", (*TRAIN_FLAGS, "--topology=v6e:4x4", "--revision=HEAD"), "--workdir=/mnt/runs/base"),
    ("pod", (*GKE[1:3], "--topology=tpu7x:2x2x2", "--road=gke", "--max_usd=5"), "--price="),
    ("pod", (*GKE[1:], "--revision=HEAD"), "GKE_IMAGE; remove"),
    ("pod", (*GKE[1:], "--wheelhouse"), "GKE_IMAGE; remove"),
    # Training writes into gs://b/a, where nobody would look for checkpoints.
    ("watch", (TRAIN_FLAGS[0], "--workdir=gs://b//a/"), "is gs://b/a to"),
    ("watch", (TRAIN_FLAGS[0], "--workdir=gs://b/./a"), "is gs://b/a to"),
    # gcloud takes it for a pattern, and finds none of its checkpoints.
    ("watch", (TRAIN_FLAGS[0], "--workdir=gs://b/lr[1]"), "lr[1] has one of *?["),
    # On a new machine there is no such file, however long the slice was waited for.
    ("pod", ("../a.py", *GKE[2:]), "--config=../a.py is no path from the clone's root"),
    ("pod", ("/a.py", GKE[2], "--topology=v6e:4x4"), "--config=/a.py is no path"),
    ("pod", (*GKE[1:], "--config.data.store=stores/a"), "store=stores/a is on none"),
    ("watch", (*TRAIN_FLAGS, "--config.data.store=stores/a"), "store=stores/a is on none"),
    (
        "create",
        (TRAIN_FLAGS[0], *GKE[2:4], "--revision=HEAD", "--config.data.store=gs://b/s, /mnt/s"),
        "store=/mnt/s is on none",
    ),
    ("logs", ("--topology=v6e:4x4", "--worker=3"), "--worker=3 is no machine of a group"),
    # What a terminal or a manifest would obey.
    ("pod", ("a.py", "--x=a\nkind: Pod"), "has a line break"),
    ("watch", ("--config=a.py", "--workdir=/mnt/\u202ea"), "has a control character"),
    ("ssh", ("echo \x1b]0;x\x07",), "has a control character"),
]


@pytest.mark.parametrize(("script", "flags", "words"), FLAGS_REFUSED)
def test_flags(refused, cluster, script, flags, words):
    own = ["--revision=HEAD"] * (script in ("watch", "pod") and "--road=gke" not in flags)
    assert words in refused(script, "--dry-run", cluster(), *own, *flags)


# Every setting -> values that are not of its form, asked for by a script that reads it.
ODD = ("../a", "a b", "$(touch canary)", "a;b", "-a", "a'b", "")
WRONG = """v5e 8x8 v5e:8x8x8 v5e:1x1 v6e:1x4 v5e:2x32 v5e:32x32 v4:2x2x8 v4:99x99x99
    v4:16x16x20 tpu7x:24x24x24 v5p:8x4x4 v3:4x4 v5litepod-16 v9:2x2"""
PYTHONS = (*ODD, "/", "python3", "bin/python3", "/bin/python")
CREATE, LOGS = ("create",), ("logs",)
VALUES_REFUSED = {
    "PROJECT": (LOGS, (*ODD, "My Project", "\u202emy-project")),
    "ZONE": (LOGS, (*ODD, "us-central2", "--zone")),
    "TPU_NAME": (LOGS, (*ODD, "a" * 64)),
    "TOPOLOGY": (CREATE, (*WRONG.split(), "")),
    "ROAD": (CREATE, ("tpu-vm",)),
    "PROVISIONING": (CREATE, ("reserved", "flex_start", "")),
    "BUCKET": (("logs", "--bucket"), ("my-bucket", "gs://my b", "gs://bkt/../a", "gs://bkt//a")),
    "REMOTE_DIR": (LOGS, (*ODD, "/", "~", "..", "./", "//", "a/../b", "a\x1b[2Jb")),
    "REMOTE_PYTHON": (("setup", "--revision=HEAD"), PYTHONS),
    "VALID_UNTIL": (CREATE, ("6 hours", "1\u0663h")),
    "SERVICE_ACCOUNT": (CREATE, ("me@example.com",)),
    "NETWORK": (CREATE, ("my network", "../default", "projects/a/regions/b/subnetworks/c")),
    "SUBNETWORK": (CREATE, ("../default", "projects/a/../subnetworks/c")),
    "INTERNAL_IPS": (CREATE, ("1", "")),
    "LABEL": (CREATE, ("a,b=c", "")),
    "COORDINATOR_PORT": (("train", *TRAIN_FLAGS), ("80", "65536")),
    "GKE_IMAGE": (GKE, ("my image", "images/bert:1/a", "")),
    "GKE_SERVICE_ACCOUNT": (GKE, ("Trainer",)),
}


@pytest.mark.fault(20, "blanks, .. and shell in the names and paths of cluster.env")
@pytest.mark.parametrize("name", VALUES_REFUSED)
def test_values_of_a_setting(refused, cluster, tmp_path, monkeypatch, name):
    """Named with its file; neither run nor obeyed by a terminal."""
    monkeypatch.chdir(tmp_path)
    (script, *flags), values = VALUES_REFUSED[name]
    for value in values:
        words = refused(script, "--dry-run", cluster(**LEAST | {name: value}), *flags)
        assert str(tmp_path / "cluster.env") in words and name in words
    assert not (tmp_path / "canary").exists()


def test_flex_start_is_refused_where_google_has_none(call, refused, cluster):
    name, *flags = GKE[:3]
    flags += ["--dry-run", cluster(**LEAST, PROVISIONING="flex_start")]
    for kind, shape, road in (("v6e", "4x4", "queued"), ("v4", "2x2x4", "gke")):
        error = refused(name, *flags, f"--topology={kind}:{shape}", f"--road={road}")
        assert f"not for {kind} on {road}; take spot" in error
    assert "/gke-flex-start" in call(name, *flags, *GKE[3:])[1]


@pytest.mark.parametrize(
    ("name", "value", "places"),
    [
        ("COORDINATOR_PORT", "65535", [GKE[3:]]),
        ("GKE_IMAGE", "registry.example.org:5000/my_team/bert:1", [GKE[3:]]),
        ("GKE_IMAGE", f"a.pkg.dev/b/bert:1@sha256:{'0' * 64}", [GKE[3:]]),
        ("NETWORK", "projects/my-host/global/networks/n", [(), GKE[3:4]]),
        ("SUBNETWORK", "projects/my-host/regions/us-east5/subnetworks/s", [(), GKE[3:4]]),
    ],
)
def test_values_as_they_may_be(call, cluster, name, value, places):
    for place in places:
        own = (*GKE[:1], "--dry-run", cluster(**LEAST | {name: value}), *GKE[1:3], *place)
        code, out, error = call(*own, *["--revision=HEAD"] * ("--road=gke" not in place))
        assert (code, error, f"={value}" in out or f'"{value}"' in out) == (0, "", True)


def test_every_setting_is_checked_shipped_and_has_the_same_default():
    lines = (LAUNCH / "cluster.env").read_text().splitlines()
    shipped = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert set(FORMS) == set(shipped) == set(VALUES_REFUSED)
    defaults = {name: default for name, (_, _, default) in FORMS.items() if default}
    assert {name: shipped[name] for name in defaults} == defaults


NO_SETTING = ("PROJECT ZONE=foo", " ZONE=a", "=a", "ZONE", "PATH=/tmp", "ZONE+=a", "a\x1b[2J=b")


def test_lines_that_are_no_setting(refused, cluster, tmp_path):
    for line in (*NO_SETTING, "touch x", "ZONE=us-east1-d"):
        option = cluster()
        with (tmp_path / "cluster.env").open("a") as file:
            file.write(line)
        assert f", line {len(VALUES) + 1}: " in refused("delete", "--yes", "--dry-run", option)


def test_a_cluster_file_of_windows_in_the_home_folder_and_one_that_is_not_there(
    refused, call, cluster, tmp_path, monkeypatch
):
    assert "No such file" in refused("create", f"--cluster={tmp_path / 'absent.env'}")
    assert "Is a directory" in refused("create", f"--cluster={tmp_path}")
    cluster()
    text = "# a comment\n\n" + (tmp_path / "cluster.env").read_text()
    (tmp_path / "cluster.env").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))
    monkeypatch.setenv("HOME", str(tmp_path))  # a shell leaves the ~ behind = to us
    assert "create my-tpu " in call("create", "--dry-run", "--cluster=~/cluster.env")[1]


def test_uncommitted_changes_are_named_and_older_commits_sent(
    refused, call, cluster, clone, monkeypatch
):
    """Settings in launch/cluster.env are no change: no machine reads them."""
    first = git(clone, "rev-parse", "HEAD")
    (clone / "launch" / "cluster.env").write_text("PROJECT=mine")
    monkeypatch.setenv("GIT_TRACE", "1")  # git says something of a clone without changes too
    assert first in call("setup", "--dry-run", cluster())[1]
    (clone / "old module.py").write_text("x = 1\n")
    assert "old module.py" in refused("setup", "--dry-run", cluster())
    git(clone, "commit", "--all", "--message=b")
    assert first in call("setup", "--dry-run", cluster(), "--revision=HEAD~1")[1]


def test_what_is_packed_has_no_line_ends_of_windows(clone, tmp_path):
    git(clone, "config", "core.autocrlf", "true")
    head = git(clone, "rev-parse", "HEAD")
    packed = dataclasses.replace(make_job(tmp_path, "queued"), commit=head)
    assert ask_all(packed.pack(), ask) == Answer(0)
    with tarfile.open(packed.archive) as archive:
        assert b"\r" not in archive.extractfile("launch/worker/on_boot.sh").read()


def test_a_clone_is_one_in_every_spelling_of_its_folder(clone, tmp_path, monkeypatch):
    """A name in Latin-1; another case, or another form of an accent, as macOS has them."""
    head = git(clone, "rev-parse", "HEAD")
    odd, other = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / "other spelling"
    monkeypatch.setattr(job, "ROOT", clone.rename(odd))
    assert job.find_commit("") == head
    other.symlink_to(odd)
    run_git = job._git
    say = lambda *words: (0, str(other)) if words[-1] == "--show-toplevel" else run_git(*words)  # noqa: E731
    monkeypatch.setattr(job, "_git", say)
    assert job.find_commit("") == head


def test_gcloud_must_be_there_and_logged_in(refused, cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/sbin")
    (tmp_path / "git").symlink_to("/usr/bin/git")
    # Of packages in a bucket that nobody can read as well.
    for words in ("check", "delete --yes", "train --stop", "setup --revision=HEAD --wheelhouse"):
        said = refused(*words.split(), cluster(BUCKET="gs://my-bucket"))
        assert "gcloud is not on PATH" in said
    (tmp_path / "gcloud").symlink_to("/bin/true")
    assert "run 'gcloud auth login'" in refused("create", cluster())
