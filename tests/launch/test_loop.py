"""The real loop lives a run through on each road, with tools that check every flag."""

import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from launch.cloud import commands, watch
from launch.cloud.cluster import Cluster
from launch.cloud.decide import Action, Rules, State
from launch.cloud.job import Job
from launch.cloud.run import Answer, Command, ask, ask_all
from tests.launch.scripts import LAUNCH, TRAIN_FLAGS
from tests.launch.scripts import call as run

pytestmark = pytest.mark.slow

IMAGE = {"GKE_IMAGE": "us-docker.pkg.dev/my-project/images/bert:1"}
# Road -> a slice, and commands in their order.
QUEUED = "queued-resources create, tpu-vm scp, on_worker_train.sh .venv, queued-resources delete"
GROUP = "managed create, managed resize, managed list-instances, managed delete"
LIFE = {
    "queued": ("v5e:2x4", QUEUED),
    "compute_engine": ("v6e:2x4", GROUP),
    "gke": ("tpu7x:2x2x2", "kubectl get, kubectl create, kubectl delete"),
}


@pytest.fixture
def pod(call, cluster, cloud, tmp_path):
    """A function that runs launch/pod.sh on a road, with pauses of a twentieth of a second."""

    def run(road, *flags):
        topology = LIFE[road][0]
        option = cluster(TOPOLOGY=topology, ROAD=road, BUCKET="gs://my-bucket", **IMAGE)
        own = ["--revision=HEAD", "--poll_secs=0.05", f"--state_dir={tmp_path / 'state'}"]
        return call("pod", "configs/base.py", option, *own, *flags)

    return run


@pytest.mark.parametrize("road", LIFE)
def test_a_run_from_creation_to_deletion(pod, calls, cloud, tmp_path, road):
    code, out, error = pod(road, "--config.seed=3", "--max_usd=50", "--price=1")
    assert code == 0, out + error
    lines = [" ".join(words) for words in calls()]
    wanted = LIFE[road][1].split(", ")
    places = [next(i for i, line in enumerate(lines) if words in line) for words in wanted]
    assert places == sorted(places)
    assert not (cloud / "slice.json").exists()
    assert not (cloud / "my-bucket/launch/my-tpu/lock").exists()
    for words in ("requested the slice", "training has finished", "; spent: $"):
        assert words in out
    assert "may still cost money" not in error
    logged = (tmp_path / "state" / "events.log").read_text()
    assert logged == "".join(f"{line}\n" for line in out.splitlines() if "; spent: " in line)
    sent = cloud / ("my-bucket/launch/my-tpu/job.txt" if road == "compute_engine" else "calls")
    assert "--config.seed=3" in sent.read_text() + (cloud / "gone.json").read_text()


def wait_for(process, words):
    """Read lines up to one with these words."""
    said = []
    for line in process.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def test_a_second_supervisor_refuses_and_a_killed_one_resumes(cluster, cloud, clone, tmp_path):
    """Here by a lock of the file system, elsewhere by an object in the bucket."""
    option, state = cluster(BUCKET="gs://my-bucket"), tmp_path / "state"
    # The clone's own scripts, as a shell starts them.
    pod = ["bash", str(clone / "launch" / "pod.sh"), "configs/base.py", option, "--revision=HEAD"]
    (clone / "configs").mkdir()
    here = [*pod, f"--state_dir={state}", "--poll_secs=0.05"]
    elsewhere = [*pod, f"--state_dir={tmp_path / 'elsewhere'}", "--poll_secs=0.05"]
    with subprocess.Popen(
        [*here[:-1], "--poll_secs=30"], stdout=subprocess.PIPE, text=True
    ) as first:
        wait_for(first, "trains into gs://my-bucket/runs/my-tpu and is deleted at the end")
        wait_for(first, "requested the slice")
        second, third = run(here), run(elsewhere)
        first.kill()
    assert (second.returncode, f"process {first.pid} supervises" in second.stderr) == (2, True)
    words = "another supervisor has gs://my-bucket"
    assert (third.returncode, words in third.stdout) == (2, True)
    assert json.loads((state / "state.json").read_text())["is_there"]
    ran = run(here)
    assert (ran.returncode, "requested the slice" in ran.stdout) == (0, False), ran


def test_a_signal_leaves_training_alone_and_says_what_it_costs(cluster, cloud, clone, tmp_path):
    pod = ["bash", str(clone / "launch" / "watch.sh"), cluster(), *TRAIN_FLAGS, "--revision=HEAD"]
    own = ["--poll_secs=30", f"--state_dir={tmp_path / 'state'}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*pod, *own], text=True, **pipes) as watched:
        wait_for(watched, "requested the slice")
        watched.send_signal(signal.SIGTERM)
        out, error = watched.communicate(timeout=200)
    assert watched.returncode == 130
    assert "stopped by a signal; training continues" in out
    assert "my-tpu may still cost money ($9.60 an hour), until: launch/delete.sh" in error


def test_each_collection_of_stacks_is_kept(cluster, tmp_path):
    here = Cluster(pathlib.Path(cluster().partition("=")[2]), {})
    road = SimpleNamespace(plan=lambda kind, job: [])
    supervisor = watch.Supervisor(road, Job(here), Rules("/mnt/a"), tmp_path / "state", None)
    supervisor.act([Action("stacks")])
    assert len(list((tmp_path / "state").glob("stacks-*.txt"))) == 1


class Bucket:
    """An object with a generation and an age, asked as gcloud is."""

    content, generation, at, now = "", 0, 0.0, 10_000.0

    def ask(self, command: Command) -> Answer:
        verb = command.words[2]
        if verb == "objects":
            time = datetime.datetime.fromtimestamp(self.at, datetime.UTC).isoformat()
            body = json.dumps({"generation": str(self.generation), "update_time": time})
            return Answer(0, body) if self.generation else Answer(1, "", "NOT_FOUND")
        if verb == "cp":
            if f"--if-generation-match={self.generation}" not in command.words:
                return Answer(1, "", "HTTPError 412")
            self.content, self.generation, self.at = command.given, self.generation + 1, self.now
        return Answer(0, self.content)


def test_the_lock_in_the_bucket_is_renewed_and_taken_over_after_an_hour():
    bucket = Bucket()
    ours, theirs, again = (
        watch.BucketLock("gs://b/lock", name, bucket.ask, lambda: bucket.now) for name in "abb"
    )
    assert ours.take() == "" and bucket.content == "a\n"
    bucket.now += 3000
    assert theirs.take().startswith("a, 50 min")
    assert ours.take() == "" and bucket.generation == 2
    bucket.now += 3000
    assert theirs.take().startswith("a, 50 min")
    bucket.now += 1200
    assert theirs.take() == "" and bucket.content == "b\n"
    assert ours.take().startswith("b, ") and not ours.renewed
    assert again.take() == ""  # a supervisor that was killed here


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"tries": 3}'])
def test_a_state_that_was_not_written_here_is_refused(tmp_path, capsys, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        watch.read_state(path, Rules("gs://b/a"))
    assert str(path) in capsys.readouterr().err


def test_a_state_goes_on_for_its_run_and_leaves_the_money_of_another(tmp_path):
    rules = Rules("gs://b/a", usd_per_hour=1.0)
    path = tmp_path / "state.json"
    known = {"tries": 3, "spent_secs": 7200.0, "created": 5.0, "has_trained": True}
    watch.write_state(path, State(rules, **known, is_expected=True))
    assert watch.read_state(path, rules) == State(rules, **known)
    other = Rules("gs://b/other", usd_per_hour=1.0)
    assert watch.read_state(path, other) == State(other, created=5.0)


def test_a_command_ends_with_all_that_it_started(tmp_path):
    script = "(sleep 60; echo late >late) & echo $! >pid; echo begun; wait"
    said = ask(Command(["bash", "-c", f"cd {tmp_path}; {script}"], secs=0.5))
    assert (said.code, said.out) == (124, "begun\n") and "no answer within 0.5 s" in said.words
    pid = (tmp_path / "pid").read_text().strip()
    words = pathlib.Path(f"/proc/{pid}/cmdline")  # empty of one that nobody waited for
    assert not words.exists() or words.read_text() == ""
    assert ask(Command(["no-such-tool"])).is_permanent


def test_a_failure_that_does_not_matter_does_not_end_a_row_of_commands():
    answers = iter([Answer(1, "", "ALREADY_EXISTS"), Answer(1, "", "other"), Answer(0, "never")])
    rows = [Command(["a"], passes="exists"), Command(["b"], passes="absent"), Command(["c"])]
    assert ask_all(rows, lambda command: next(answers)).err == "other"


def test_only_a_complete_checkpoint_in_the_bucket_counts():
    steps = ("8", "0100", "300.orbax", "20")
    names = "\n".join(f"gs://b/a/checkpoints/{step}/commit_success.txt" for step in steps)
    said = {100: Answer(0, names), -1: Answer(1, "", "matched no objects"), None: Answer(1, "503")}
    for step, answer in said.items():
        assert watch.find_checkpoint("gs://b/a", lambda command, said=answer: said) == step
    assert watch.find_checkpoint("/mnt/a", None) is None


def test_each_script_has_an_entry_that_runs_it_and_bash_of_macos_reads_it():
    for name in commands.COMMANDS:
        entry = LAUNCH / f"{name}.sh"
        assert os.access(entry, os.X_OK)
        assert entry.read_text().endswith(f'/python.sh" {name} "$@"\n')
    bare = {"PATH": "/usr/bin:/bin", "LAUNCH_PYTHON": sys.executable}
    help_of = ["bash", str(LAUNCH / "pod.sh"), "--help"]
    said = subprocess.run(help_of, env=bare, capture_output=True, text=True).stdout
    assert said.startswith("usage: launch/pod.sh [OPTION ...] CONFIG") and "Not yet run" in said
