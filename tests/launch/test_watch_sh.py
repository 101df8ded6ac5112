"""launch/watch.sh against a stand-in for Google Cloud that takes TPU VMs away and fails."""

import re
import signal
import subprocess
import time

import pytest

from bert_jax.config import HostsConfig
from tests.launch.pods import quick_pod
from tests.launch.scripts import LAUNCH, commands, refusal, run, write_command
from tests.launch.tpu_api import TpuApi

WORKERS = 2
FLAGS = ("--config=configs/tiny.py", "--workdir=/mnt/runs/a")


@pytest.fixture
def api():
    return TpuApi(WORKERS)


@pytest.fixture
def pod(tmp_path, api):
    with quick_pod(tmp_path, api) as pod:
        yield pod


def in_order(said: str, *words: str) -> None:
    """Each of these stands in what was said, behind the one before."""
    at = 0
    for word in words:
        assert word in said[at:], f"{word!r} is missing, or comes too early:\n{said}"
        at = said.index(word, at) + len(word)


def dollars(said: str) -> float:
    return float(re.findall(r"\$([0-9.]+)", said)[-1])


PREEMPTED = [
    [
        ("WAITING_FOR_RESOURCES", None, 2),
        ("PROVISIONING", None, 1),
        ("ACTIVE", "READY", 3),
        ("SUSPENDING", "PREEMPTED", 1),
        ("SUSPENDED", None, 0),
    ],
    [
        ("ACTIVE", "READY", 2),
        ("503", "READY", 2),
        ("ACTIVE", "READY", 1),
        ("ACTIVE", "PREEMPTED", 0),
    ],
    [("CREATING", None, 1), ("ACTIVE", "READY", 4), ("SUSPENDED", None, 0)],
    [("ACCEPTED", None, 1), ("ACTIVE", "CREATING", 1), ("ACTIVE", "READY", 2), ("FAILED", None, 0)],
    [("WAITING_FOR_RESOURCES", None, 1), ("FAILED", None, 0)],
    [("ACTIVE", "READY", 3), ("ACTIVE", "TERMINATED", 0)],
    [("ACTIVE", "READY", 1), ("SUSPENDING", "PREEMPTED", 0)],
]


def check_the_books(pod, api, said, creations):
    """As many were deleted as made, and what they cost is what the stand-in counts."""
    assert api.count("POST", "queuedResources") == creations
    assert api.count("DELETE", "queuedResources") == creations
    assert api.names == {}
    # Seconds are rounded down, and a loss is seen up to a look after it.
    assert dollars(said) == pytest.approx(api.existed_secs, abs=1.5 * creations)
    assert [line[20:] for line in said.splitlines()] == [
        line[20:] for line in (pod.state / "events.log").read_text().splitlines()
    ]


@pytest.mark.fault(18, "taken away by Google Cloud, then a worker that fails")
def test_a_preemption_and_a_worker_that_fails(pod, api):
    api.lives = PREEMPTED[:1]
    # A dollar a second, for 16 chips.
    said = pod.watch("--delete_at_end", "--price=225", plan="1 wait\n1 exit 134 1\n1 exit 0\n")
    in_order(
        said,
        "asked for my-tpu (v5litepod-16)",
        "my-tpu: WAITING_FOR_RESOURCES",
        "my-tpu: PROVISIONING",
        "training was started",
        "my-tpu is lost (SUSPENDING)",
        "training was started",
        "training failed with exit code 134",
        "training was started",
        "training has come to its end",
        "deleted my-tpu",
    )
    check_the_books(pod, api, said, creations=2)


@pytest.mark.long
@pytest.mark.fault(
    18, "a week: 14 TPU VMs taken away, two outages, a hung run, a worker that fails"
)
def test_a_week(pod, api):
    api.lives = [*PREEMPTED, *PREEMPTED]
    plan = "1 wait\n" * 12 + "1 hang\n1 exit 134 1\n1 exit 0\n"
    said = pod.watch("--delete_at_end", "--tries=20", "--price=225", plan=plan, timeout=500)
    in_order(
        said,
        *["is lost (SUSPENDING)", "asked again in 0.1 s", "asked again in 0.2 s"],
        *["is lost (PREEMPTED)", "is lost (SUSPENDED)", "but its TPU VM is CREATING"],
        *["is lost (FAILED)", "is lost (FAILED)", "is lost (TERMINATED)", "is lost (SUSPENDING)"],
        *["is lost (SUSPENDING)", "asked again in 0.1 s", "is lost (PREEMPTED)"],
        *["is lost (SUSPENDING)", "nothing was heard of training for 72", "training was started"],
        *["training failed with exit code 134", "training was started"],
        *["training has come to its end", "deleted my-tpu"],
    )
    assert said.count("is lost") == 14
    check_the_books(pod, api, said, creations=15)
    (stacks,) = pod.state.glob("stacks-*.txt")
    assert {"worker-0: stacks of worker-0", "worker-1: stacks of worker-1"} <= set(
        stacks.read_text().splitlines()
    )


@pytest.mark.parametrize("code", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_code_after_which_no_start_helps_ends_the_watch(pod, api, code):
    said = pod.watch(plan=f"1 exit {code} 1\n", code=code)
    in_order(
        said,
        "training was started",
        f"worker-1: {time.strftime('%Y-', time.gmtime())}",
        f"ended with exit code {code}\n",
        f"training ended with exit code {code} on a worker, and would again",
        "my-tpu may still cost money ($19.20 an hour), until: launch/delete.sh",
    )
    assert "worker-0: " not in said
    assert api.count("DELETE", "queuedResources") == 0
    assert (pod.workers / "worker-0/bert_jax/logs/train.exit_code").read_text() == "143\n"


@pytest.mark.long
def test_it_gives_up_after_tries_that_come_to_no_newer_checkpoint(pod, api):
    """The checkpoints are in a bucket: the TPU VM holds nothing of the run, and can go."""
    plan = "0 exit 1\n2 exit 1\n0 exit 86\n0 exit 1\n0 exit 0\n"
    flags = ("--tries=2", "--delete_at_end", "--workdir=gs://b/runs/a")
    said = pod.watch(*flags, plan=plan, code=1)
    in_order(said, "try 1 of 2", "try 2 of 2", "checkpoint 2, try 1 of 2", "2, try 2 of 2")
    in_order(
        said, "given up: 2 tries in a row came to no newer checkpoint than 2", "deleted my-tpu"
    )
    assert "still cost money" not in said
    assert api.names == {}


def test_no_permission_ends_it_with_googles_words(pod, api):
    api.refusals = [("POST", 503, "busy"), ("POST", 403, "no tpu.nodes.create for me")]
    said = pod.watch(code=1)
    in_order(said, "UNAVAILABLE: busy; asked again", "given up: my-tpu could not be asked for:")
    assert "PERMISSION_DENIED: no tpu.nodes.create for me" in said


@pytest.mark.long
def test_what_somebody_else_deletes_is_not_made_again(pod, api):
    api.lives = [[("ACTIVE", "READY", 2), ("404", None, 0)]]
    said = pod.watch(plan="1 wait\n", code=1)
    assert "my-tpu is gone and this script did not delete it" in said
    assert api.count("POST", "queuedResources") == 1


def test_a_tpu_vm_without_our_mark_is_left_alone(pod, api):
    body = {"tpu": {"nodeSpec": [{"nodeId": "my-tpu", "node": {"labels": {"launched_by": "her"}}}]}}
    path = "/v2/projects/p/locations/z/queuedResources?queuedResourceId=my-tpu"
    assert api.answer("POST", path, body)[0] == 200
    assert "launched_by='her', not 'bert_jax'" in pod.watch("--delete_at_end", code=2)
    assert "my-tpu" in api.names
    assert list(pod.workers.iterdir()) == []


@pytest.mark.long
def test_a_worker_that_does_not_answer_has_the_tpu_vm_made_again(pod, api):
    def ready():
        pod.is_ready()
        if api.count("POST", "queuedResources") == 1:
            (pod.workers / "worker-1.unreachable").touch()

    api.on_ready = ready
    api.on_loss = lambda: (pod.is_lost(), (pod.workers / "worker-1.unreachable").unlink())
    said = pod.watch(plan="1 exit 0\n")
    in_order(said, "1 of 2 workers answer, look 1 of 5", "1 of 2 workers answer, look 5 of 5")
    in_order(said, "my-tpu is lost (its workers cannot be reached)", "training has come to its end")
    assert api.count("DELETE", "queuedResources") == 1


@pytest.mark.long
def test_ended_by_hand_it_leaves_training_alone_and_is_taken_up_again(pod, api):
    pod.plan.write_text("1 wait\n")
    watch = subprocess.Popen(
        pod.arguments("--price=225"), stdout=subprocess.PIPE, text=True, env=pod.environment
    )
    for line in watch.stdout:
        if "training runs on 2 of 2" in line:
            break
    assert "process" in pod.watch(code=2)  # one watches already
    watch.send_signal(signal.SIGTERM)
    said = watch.stdout.read()
    assert watch.wait(timeout=20) == 130
    assert "training goes on" in said
    before = dollars(said)
    (exit_code,) = pod.workers.glob("worker-1/bert_jax/logs/train.pid")
    assert exit_code.read_text()
    api.become([("ACTIVE", "READY", 1), ("ACTIVE", "PREEMPTED", 0)])
    said = pod.watch("--price=225", "--delete_at_end", plan="1 wait\n1 exit 0\n")
    in_order(said, "training runs on 2 of 2", "lost (PREEMPTED)", "training has come to its end")
    assert said.count("training was started") == 1
    assert dollars(said) > before
    assert dollars(said) == pytest.approx(api.existed_secs, abs=3)


def test_another_run_on_the_tpu_vm_is_left_alone(pod, api):
    """Its chips are somebody's: --delete_at_end is for the end of our own run."""
    pod.plan.write_text("1 wait\n")
    watch = subprocess.Popen(
        pod.arguments(), stdout=subprocess.PIPE, text=True, env=pod.environment
    )
    next(line for line in watch.stdout if "training was started" in line)
    watch.send_signal(signal.SIGTERM)
    watch.communicate(timeout=20)
    said = pod.watch("--delete_at_end", "--workdir=gs://b/runs/b", plan="1 wait\n", code=2)
    assert "another run than gs://b/runs/b trains on my-tpu" in said
    assert api.count("DELETE", "queuedResources") == 0
    # The same folder in another spelling is the same run.
    watch = subprocess.Popen(
        pod.arguments(f"--workdir={pod.workdir}/"),
        stdout=subprocess.PIPE,
        text=True,
        env=pod.environment,
    )
    said = next(line for line in watch.stdout if "training runs on" in line or "given up" in line)
    watch.send_signal(signal.SIGTERM)
    watch.communicate(timeout=20)
    assert "training runs on 2 of 2 workers" in said


def test_what_gcloud_refuses_deletes_nothing(pod, api):
    api.lives = [[("CREATING", None, 1), ("ACTIVE", "READY", 0)]]
    api.on_ready = lambda: (pod.is_ready(), api.refusals.append(("GET", 403, "not for you")))
    said = pod.watch("--delete_at_end", "--workdir=gs://b/runs/a", code=1)
    assert "PERMISSION_DENIED: not for you" in said
    assert api.count("DELETE", "queuedResources") == 0


def test_a_deletion_of_its_own_that_takes_its_time_is_not_taken_for_somebody_elses(pod, api):
    """delete.sh fails, or loses its answer, and the TPU VM goes a look later."""
    goes = [("SUSPENDED", None, 3), ("DELETING", None, 1), ("404", None, 0)]
    api.lives = [[("ACTIVE", "READY", 2), *goes]]
    api.refusals = [("DELETE", 503, "busy")]
    said = pod.watch(plan="1 wait\n1 exit 0\n")
    in_order(said, "could not be deleted: ", "asked for my-tpu", "training has come to its end")
    assert "this script did not delete it" not in said


def test_a_deletion_that_a_watch_has_asked_for_is_known_to_the_next(pod, api):
    api.lives = [[("DELETING", None, 2), ("404", None, 0)]]
    body = {"tpu": {"nodeSpec": [{"node": {"labels": {"launched_by": "bert_jax"}}}]}}
    path = "/v2/projects/p/locations/z/queuedResources?queuedResourceId=my-tpu"
    assert api.answer("POST", path, body)[0] == 200
    pod.state.mkdir()
    (pod.state / "state").write_text(f"RUN={pod.workdir}\nDELETION_ASKED=1\n")
    said = pod.watch(plan="1 exit 0\n")
    in_order(said, "my-tpu: DELETING", "asked for my-tpu", "training has come to its end")


def test_workers_out_of_reach_that_save_are_alive(pod, api):
    """Their own bucket says so; what gcloud says is in the event."""
    checkpoints = pod.workdir.parents[1] / "buckets" / "b" / "runs" / "a" / "checkpoints"
    said = []
    pod.plan.write_text("1 wait\n")
    watch = subprocess.Popen(
        pod.arguments("--workdir=gs://b/runs/a"),
        stdout=subprocess.PIPE,
        text=True,
        env=pod.environment,
    )
    for line in watch.stdout:
        said.append(line)
        if "training runs on 2 of 2" in line:
            (pod.workers / "unreachable").touch()
        if "look 3 of 5" in line:
            for name in ("7", "9"):
                (checkpoints / name).mkdir()
            (checkpoints / "7" / "commit_success.txt").touch()
        if "training goes on nonetheless" in line:
            break
    watch.send_signal(signal.SIGTERM)
    watch.communicate(timeout=20)
    assert "there is checkpoint 7, where 1 was the newest" in said[-1]
    assert "0 of 2 workers answer, look 5 of 5: " in said[-2]
    assert api.count("DELETE", "queuedResources") == 0


def test_a_worker_that_answers_code_is_not_obeyed_and_the_watch_goes_on(pod, api):
    """Its answers count as none, are shown escaped, and the line about cost comes at the end."""
    said = []
    pod.plan.write_text("1 wait\n")
    status = pod.workers / "worker-1" / "bert_jax" / "launch" / "on_worker_train.sh"
    watch = subprocess.Popen(
        pod.arguments(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=pod.environment,
        cwd=pod.state.parent,
    )
    for line in watch.stdout:
        said.append(line)
        if "training runs on 2 of 2" in line:
            if any("look 2 of 5" in earlier for earlier in said):
                break
            right = status.read_text()
            status.write_text("printf 'running 12 HUNG_SECS[$(touch${IFS}canary)] 40\\033[2J\\n'\n")
        if "look 2 of 5" in line:
            status.write_text(right)
    watch.send_signal(signal.SIGTERM)
    said.append(watch.communicate(timeout=20)[0])
    junk = next(line for line in said if "gives no answer" in line)
    assert "worker worker-1 gives no answer of on_worker_train.sh but 'worker worker-1 run" in junk
    assert r"canary)] 40\x1b[2J'" in junk
    assert any("1 of 2 workers answer, look 1 of 5" in line for line in said)
    assert "my-tpu may still cost money" in said[-1]
    assert not list(pod.state.parent.rglob("canary"))
    assert "\x1b" not in "".join(said)


def test_a_question_that_is_not_answered_has_an_end(tmp_path):
    script = f"""STATE_DIR={tmp_path}; source {LAUNCH}/watch_events.sh
slow() {{ echo begun; (sleep 60; echo late >{tmp_path}/late) & echo $! >{tmp_path}/pid; wait; }}
quick() {{ echo done; echo words >&2; return 7; }}
within 1 {tmp_path}/slow slow || echo $?
tail -n 1 {tmp_path}/gcloud_said
within 5 {tmp_path}/quick quick || echo $?
cat {tmp_path}/slow {tmp_path}/quick {tmp_path}/gcloud_said
! kill -0 "$(<{tmp_path}/pid)"
"""
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=20)
    assert ran.stdout.splitlines() == [
        *("124", "no answer within the limit of time", "7", "begun", "done", "words")
    ]


def test_the_newest_checkpoint_is_one_that_is_there_and_whole(tmp_path):
    """One moved away as damaged counts no longer, and one half written not yet."""
    write_command(
        tmp_path / "gcloud",
        '[[ "$*" == "storage ls gs://b/a/checkpoints/*/commit_success.txt" ]] || exit 3',
        f"cat {tmp_path}/names && exit",
        'echo "${ERROR-ERROR: One or more URLs matched no objects.}" >&2',
        "exit 1",
    )
    script = f"""PATH={tmp_path}:$PATH LAUNCH={LAUNCH} STATE_DIR={tmp_path} WORK_DIR=gs://b/a
source {LAUNCH}/cluster.sh
for part in gcloud_errors watch_events watch_workers; do source {LAUNCH}/$part.sh; done
at() {{
    rm -f {tmp_path}/names
    for step in "$@"; do echo gs://b/a/checkpoints/$step/commit_success.txt >>{tmp_path}/names; done
    see_bucket
    echo "$SEEN"
}}
at 8 20 0100 300.orbax-checkpoint-tmp; at 8 20; ERROR='ERROR: 503' at; at
WORK_DIR=/mnt/a
count_answers $'worker a running 1 2 9\nworker b running 1 2 20'; echo "$SEEN"
count_answers $'worker a running 1 2 9\nworker b running 1 2 -'; echo "$SEEN"
count_answers $'worker a never started'; echo "$SEEN"
"""
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=20)
    assert ran.stdout.split() == ["100", "20", "20", "-", "20", "9", "9"], ran.stderr


def test_what_is_known_of_a_tpu_vm_ends_with_it(tmp_path):
    script = f"""LAUNCH={LAUNCH} STATE_DIR={tmp_path} TPU_NAME=my-tpu WORK_DIR=/mnt/a
source {LAUNCH}/cluster.sh
for part in gcloud_errors spending watch_events watch_workers; do source {LAUNCH}/$part.sh; done
node() {{ eval "describe_node() {{ echo 'READY $1 2'; }}"; ask_node; }}
told() {{ echo "$IS_READY $HAS_TRAINED $IS_WRITTEN_OFF $UNREACHED '$NOT_READY_SINCE' '$BORN'"; }}
node 1970-01-01T00:01:00Z
IS_READY=true HAS_TRAINED=true IS_WRITTEN_OFF=true UNREACHED=4 NOT_READY_SINCE=5
write_off 70
node 1970-01-01T00:01:00Z; told
node 1970-01-01T00:02:00Z; told
echo $SPENT_SECS
"""
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=20)
    assert ran.stdout.splitlines() == [
        "true true true 4 '5' ''",  # and what it cost is not counted twice
        "false false false 0 '' '120'",
        "10",
    ], ran.stderr


def test_the_watchdog_of_a_run_names_a_hang_before_the_watch_ends_it():
    (default,) = re.findall(
        r"^POLL_SECS=60 HUNG_SECS=(\d+) ", (LAUNCH / "watch.sh").read_text(), re.M
    )
    assert int(default) > HostsConfig().stuck_secs
    assert f"(default: {default}, more than" in run("watch.sh", "--help").stdout


def test_the_dry_run_prints_the_commands_of_a_round(cluster, tmp_path):
    printed = commands("watch.sh", cluster(), "--revision=HEAD", *FLAGS)
    said = [" ".join(command[3:5]) for command in printed if command[0] == "gcloud"]
    assert said[:3] == [
        "queued-resources describe",
        "queued-resources create",
        "tpu-vm describe",
    ]
    assert said[3] == "tpu-vm scp"
    assert said[-2:] == ["queued-resources describe", "queued-resources delete"]
    for option in ("--status", "--stacks", "--stop"):
        assert any(f"on_worker_train.sh {option} logs/train.log" in c[-1] for c in printed)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--poll_secs=often",), "--poll_secs=often is not a number of seconds"),
        (("--hung_secs=0",), "--hung_secs=0"),
        (("--tries=0",), "--tries=0"),
        (("--price=$1",), "--price=$1"),
        (("--workdir=runs/a",), "lies in REMOTE_DIR on a disk of the TPU VM, which goes with it"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_costs_money(cluster, flags, words):
    assert words in refusal("watch.sh", cluster(), *FLAGS, *flags)


def test_what_train_sh_refuses_is_refused_before_anything_costs_money(cluster):
    said = refusal("watch.sh", cluster(), "--revision=HEAD", FLAGS[1])
    assert "--config=FILE is missing" in said


def test_help():
    ran = run("watch.sh", "--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: launch/watch.sh")
    assert "Not yet run against Google Cloud" in ran.stdout


@pytest.mark.parametrize(
    ("kind", "spot", "price", "words"),
    [
        ("v5litepod-16", "false", "", "$38.40"),
        ("v4-32", "false", "", "$103.04"),
        ("v5p-128", "true", "", "at most $537.60"),
        ("v6e-64", "true", "0.5", "$64.00"),
        ("tpu7x-16", "false", "", "price unknown"),
        ("tpu7x-16", "false", "3", "price unknown"),
    ],
)
def test_what_two_hours_cost(kind, spot, price, words):
    script = f"LAUNCH={LAUNCH}; source {LAUNCH}/spending.sh"
    script += f"; ACCELERATOR_TYPE={kind} SPOT={spot} PRICE={price}; money 7200"
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (f"{words}\n", "")


@pytest.mark.parametrize(
    ("written", "secs"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-02-29T23:59:59Z", 1709251199),
        ("2024-03-01T00:00:00.5Z", 1709251200),
        ("2026-11-22T03:00:00.123456789Z", 1795316400),
        ("2026-12-31T08:09:09Z", 1798704549),
    ],
)
def test_googles_times_in_seconds(written, secs):
    script = f"LAUNCH=x; source {LAUNCH}/spending.sh; epoch_of {written}"
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True)
    assert ran.stdout == f"{secs}\n"
