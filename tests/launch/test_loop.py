"""The loop around `decide` and its locks, files and signals, with a cloud that grants all."""

import json
import os
import signal
import sys
from math import inf, nan
from types import SimpleNamespace

import pytest

from launch.cloud import commands, watch
from launch.cloud.decide import Action, Rules, State
from launch.cloud.run import Answer, Command, ask, ask_all, run_all
from tests.launch.scripts import LAUNCH, TRAIN_FLAGS, call, is_alive, make_job, wait_for
from tests.launch.simulated_cloud import HOUR

pytestmark = pytest.mark.slow

IMAGE = {"GKE_IMAGE": "us-docker.pkg.dev/my-project/images/bert:1"}
# Road -> a slice, and commands in their order.
QUEUED = "resources create, tpu-vm scp, on_worker_train.sh .venv, resources delete"
GROUP = "managed create, managed resize, managed list-instances, managed delete"
LIFE = {
    "queued": ("v5e:2x4", QUEUED),
    "compute_engine": ("v6e:2x4", GROUP),
    "gke": ("tpu7x:2x2x2", "kubectl get, kubectl create, kubectl delete"),
}


@pytest.fixture
def pod(call, cluster, cloud, tmp_path):
    """A function that runs launch/pod.sh on a road."""

    def run(road, *flags, state="state"):
        cloud.road = road
        option = cluster(TOPOLOGY=LIFE[road][0], ROAD=road, BUCKET="gs://my-bucket", **IMAGE)
        own = ["--revision=HEAD"] * (road != "gke") + [f"--state_dir={tmp_path / state}"]
        return call("pod", "configs/base.py", option, *own, *flags)

    return run


@pytest.mark.parametrize("road", LIFE)
def test_a_run_from_creation_to_deletion(pod, cloud, tmp_path, road):
    code, out, error = pod(road, "--max_usd=50", "--price=1")
    assert code == 0, out + error
    wanted = LIFE[road][1].split(", ")
    places = [next(i for i, line in enumerate(cloud.calls) if w in line) for w in wanted]
    assert places == sorted(places)
    to_gke = [line for line in cloud.calls if line.startswith("kubectl ")][1:]
    assert all(line.endswith(" --context=my-cluster") for line in to_gke)
    assert not cloud.exists and not cloud.lock_generation
    for words in ("requested the slice", "training has finished", "; spent: $"):
        assert words in out
    assert "may still cost money" not in error
    logged = (tmp_path / "state" / "events.log").read_text()
    assert logged == "".join(f"{line}\n" for line in out.splitlines() if "; spent: " in line)


def test_a_setting_that_is_missing_is_refused_before_a_lock_is_taken(refused, cluster, cloud):
    option = cluster(BUCKET="gs://my-bucket", TOPOLOGY="v6e:2x4")
    assert "GKE_IMAGE is empty" in refused("pod", "configs/base.py", option, "--road=gke")


def test_a_second_supervisor_refuses_and_a_killed_one_resumes(pod, cloud):
    """Here by a lock of the file system, elsewhere by an object in the bucket."""

    class Killed(BaseException):
        pass

    others, on_sleep = [], cloud.on_sleep

    def meet_others(secs):
        others.extend([pod("queued"), pod("queued", state="elsewhere")])
        raise Killed

    cloud.on_sleep = meet_others
    with pytest.raises(Killed):
        pod("queued")
    (code, _, error), (other_code, out, _) = others
    assert (code, f"process {os.getpid()} already supervises" in error) == (2, True)
    assert (other_code, "another supervisor has gs://my-bucket" in out) == (2, True)
    cloud.on_sleep = on_sleep
    code, out, _ = pod("queued")
    assert (code, "requested the slice" in out) == (0, False), out


def test_a_signal_leaves_training_alone_and_says_what_it_costs(
    cluster, cloud, call, tmp_path, monkeypatch
):
    cloud.on_sleep = lambda secs: os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code, out, error = call("watch", cluster(), *TRAIN_FLAGS, "--revision=HEAD")
    folder = tmp_path / "home/.local/state/bert_jax/my-project.us-central2-b.my-tpu.queued"
    assert (folder / "state.json").exists()
    assert code == 130 and cloud.exists
    assert "stopped by a signal; training continues" in out
    assert "my-tpu may still cost money ($9.60 per hour), until: launch/delete.sh" in error


def test_a_signal_that_hides_the_answer_to_a_request_says_what_may_cost(pod, cloud, monkeypatch):
    create = cloud.create

    def interrupt(*names):
        create(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(cloud, "create", interrupt)
    code, _, error = pod("queued")
    assert (code, cloud.exists, "my-tpu may still cost money" in error) == (130, True, True)


def test_a_supervisor_under_nohup_outlives_its_terminal(pod, cloud):
    def hang_up(secs):
        os.kill(os.getpid(), signal.SIGHUP)
        cloud.sleep(HOUR)

    cloud.on_sleep = hang_up
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, out, _ = pod("queued")
    finally:
        signal.signal(signal.SIGHUP, former)
    assert (code, "training has finished" in out) == (0, True), out


def test_a_disk_that_keeps_no_state_is_one_sentence(pod, monkeypatch, tmp_path):
    def fill(path, state):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(watch, "write_state", fill)
        code, out, _ = pod("queued")
    assert code == 1 and "make room, and the same command resumes" in out
    with monkeypatch.context() as patch:  # as Lustre without locks
        patch.setattr(watch.fcntl, "flock", lambda *_: fill("lock", None))
        assert "give another --state_dir" in pod("queued", state="other")[2]
    (tmp_path / "file").touch()
    (tmp_path / "theirs" / "state.json").mkdir(parents=True)  # as of another user
    for name in ("file", "theirs"):
        code, _, error = pod("queued", state=name)
        assert code == 2 and "give another --state_dir" in error
    code, _, error = pod("queued", "--state_dir=~not-a-user/x")
    assert code == 2 and "names a user who is not known here" in error


def test_two_folders_of_one_name_are_two_owners(tmp_path):
    job, owners = make_job(tmp_path, "queued"), []
    for _ in range(2):  # as in two containers, and after a restart
        for _ in range(2):
            supervisor = watch.Supervisor(None, job, Rules("/mnt/a"), tmp_path / "a", None)
            supervisor.lock.close()
            owners.append(supervisor.bucket_lock.owner)
        (tmp_path / "a").rename(tmp_path / f"b{len(owners)}")
    assert owners[0] == owners[1] != owners[2] == owners[3]


def test_each_collection_of_stacks_is_kept(tmp_path):
    job, road = make_job(tmp_path, "queued"), SimpleNamespace(plan=lambda kind, job: [])
    supervisor = watch.Supervisor(road, job, Rules("/mnt/a"), tmp_path / "state", None)
    supervisor.act([Action("stacks")])
    assert len(list((tmp_path / "state").glob("stacks-*.txt"))) == 1


def test_the_lock_in_the_bucket_is_renewed_and_taken_over_after_an_hour(cloud):
    read = lambda: cloud.now  # noqa: E731
    ours, theirs, again = (watch.BucketLock("gs://b/lock", name, cloud.ask, read) for name in "abb")
    assert ours.take() == "" and cloud.lock == "a\n"
    cloud.now += 3000
    assert theirs.take().startswith("a, 50 min")
    assert ours.take() == "" and cloud.lock_generation == 2
    cloud.now += 3000
    assert theirs.take().startswith("a, 50 min")
    cloud.now += 1200
    assert theirs.take() == "" and cloud.lock == "b\n"
    cloud.now -= 9000  # a clock that was set back
    assert theirs.take() == "" and cloud.lock_generation == 4
    assert ours.take().startswith("b, ") and not ours.renewed
    assert again.take() == ""  # a supervisor that was killed here
    # A lock that nobody can read is nobody's: a supervisor would end, and leave its slice alone.
    cat_fails = lambda command: Answer(1) if "cat" in command.words else cloud.ask(command)  # noqa: E731
    assert watch.BucketLock("gs://b/lock", "c", cat_fails, read).take() == ""
    denied = lambda command: Answer(1, "", "NOT_FOUND: HTTPError 403")  # noqa: E731
    why = watch.BucketLock("gs://b/lock", "d", denied, read).take()
    assert "could not be written (NOT_FOUND: HTTPError 403)" in why


def test_a_lock_of_a_folder_with_a_long_name_that_is_not_utf8_is_ours(cloud):
    owner = "host:/" + "caf\udce9" * 50
    lock = watch.BucketLock("gs://b/lock", owner, cloud.ask, lambda: cloud.now)
    assert lock.take() == ""
    cloud.now += 700
    assert (lock.take(), cloud.lock_generation) == ("", 2)
    assert ask(Command(["cat"], given=owner)).out == owner


KINDS = ({"tries": "x"}, {"tries": nan}, {"is_there": 1}, {"seen": inf}, {"workdir": None})


@pytest.mark.parametrize("wrong", ["", "[]", '{"a": 1}', '{"tries": 3}', *KINDS], ids=str)
def test_a_state_that_was_not_written_here_is_refused(tmp_path, capsys, wrong):
    rules, path = Rules("gs://b/a"), tmp_path / "state.json"
    watch.write_state(path, State(rules))
    whole = json.loads(path.read_text())
    path.write_text(wrong if isinstance(wrong, str) else json.dumps(whole | wrong))
    with pytest.raises(SystemExit, match="2"):
        watch.read_state(path, rules)
    words = "another state" if isinstance(wrong, str) else f"{next(iter(wrong))}="
    assert f"{path} holds {words}" in capsys.readouterr().err


def test_a_state_goes_on_for_its_run_and_leaves_the_money_of_another(tmp_path):
    rules = Rules("gs://b/a", usd_per_hour=1.0)
    path = tmp_path / "state.json"
    known = {"tries": 3, "spent_secs": 7200.0, "created": 5.0, "has_trained": True}
    row = {"outage_secs": 1.0, "failed": 2.0, "missing": 2, "partial": 1, "unreached": 4}
    watch.write_state(path, State(rules, **known, **row, not_ready_since=1.0, is_expected=True))
    assert watch.read_state(path, rules) == State(rules, **known)
    other = Rules("gs://b/other", usd_per_hour=1.0)
    assert watch.read_state(path, other) == State(other, created=5.0)


def test_a_command_ends_with_all_that_it_started(tmp_path):
    script = "(sleep 60; echo late >late) & echo $! >pid; echo begun; wait"
    said = ask(Command(["bash", "-c", f"cd {tmp_path}; {script}"], secs=1))
    assert (said.code, said.out) == (124, "begun\n") and "no answer within 1 s" in said.words
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not is_alive(pid))  # killed, it is there for a moment
    assert ask(Command(["no-such-tool"])).is_permanent
    with pytest.raises(SystemExit, match="127"):
        run_all([Command(["no-such-tool"])])


def test_a_command_that_ends_as_it_is_killed_on_macos_is_late_all_the_same(monkeypatch):
    def killpg(group, number):  # macOS does not permit signals to a group of ended processes
        os.kill(group, number)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", killpg)
    assert ask(Command(["sleep", "30"], secs=0.1)).code == 124


def test_what_may_be_absent_does_not_end_a_row_of_commands():
    answers = iter([Answer(1, "", "NOT_FOUND"), Answer(1, "", "other"), Answer(0, "never")])
    rows = [Command(["a"], may_be_absent=True)] * 2 + [Command(["c"])]
    assert ask_all(rows, lambda command: next(answers)).err == "other"


def test_only_a_complete_checkpoint_in_the_bucket_counts():
    steps = ("8", "0100", "300.orbax", "20")
    names = "\n".join(f"gs://b/a/checkpoints/{step}/commit_success.txt" for step in steps)
    said = {100: Answer(0, names), -1: Answer(1, "", "matched no objects"), None: Answer(1, "503")}
    for step, answer in said.items():
        assert watch.find_checkpoint("gs://b/a", lambda command, said=answer: said) == step
    assert watch.find_checkpoint("/mnt/a", None) is None


BARE = {"PATH": "/usr/bin:/bin", "LAUNCH_PYTHON": sys.executable, "CDPATH": ".", "COLUMNS": "80"}
BARE |= {"PYTHONSAFEPATH": "1"}


def test_the_entry_itself_is_no_script():
    ran = call(["bash", "launch/python.sh"], env=BARE, cwd=LAUNCH.parent)
    assert (ran.returncode, ran.stderr[:41]) == (2, "error: ['python'] is no script of launch/")


@pytest.mark.parametrize("name", [*commands.COMMANDS, "hosts", "slurm"])
def test_the_help_of_a_script_fits_a_screen_and_has_one_rule_of_exit_codes(name):
    said = call(["bash", f"launch/{name}.sh", "--help"], env=BARE, cwd=LAUNCH.parent).stdout
    assert said.startswith("usage: ") and f" launch/{name}.sh " in said
    assert [line for line in said.splitlines() if len(line) > 80] == []
    is_ours = name in commands.COMMANDS
    assert said.count("Exit code:") == said.count("Not yet run") == is_ours
