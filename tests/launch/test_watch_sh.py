"""launch/watch.sh against a stand-in for Google Cloud that takes TPU VMs away and fails."""

import datetime
import re
import signal
import time
from collections import Counter

import pytest

from bert_jax.config import HostsConfig
from tests.launch.scripts import LAUNCH, run, run_lines, write_command

pytestmark = pytest.mark.slow


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
        "requested my-tpu (v5litepod-16)",
        "my-tpu: WAITING_FOR_RESOURCES",
        "my-tpu: PROVISIONING",
        "started training",
        "my-tpu is lost (SUSPENDING)",
        "started training",
        "training failed with exit code 134",
        "started training",
        "training has finished",
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
    said = pod.watch("--delete_at_end", "--tries=20", "--price=225", plan=plan)
    in_order(
        said,
        *["is lost (SUSPENDING)", "retrying in 0.1 s", "retrying in 0.2 s"],
        *["is lost (PREEMPTED)", "is lost (SUSPENDED)", "but its TPU VM is CREATING"],
        *["is lost (FAILED)", "is lost (FAILED)", "is lost (TERMINATED)", "is lost (SUSPENDING)"],
        *["is lost (SUSPENDING)", "retrying in 0.1 s", "is lost (PREEMPTED)"],
        *["is lost (SUSPENDING)", "no output from training for 72", "started training"],
        *["training failed with exit code 134", "started training"],
        *["training has finished", "deleted my-tpu"],
    )
    assert said.count("is lost") == 14
    check_the_books(pod, api, said, creations=15)
    (stacks,) = pod.state.glob("stacks-*.txt")
    assert {"worker-0: stacks of worker-0", "worker-1: stacks of worker-1"} <= set(
        stacks.read_text().splitlines()
    )


def test_the_doctor_examines_a_tpu_vm_once_and_again_where_it_was_wrong(pod):
    (pod.workers / "wrong").touch()
    events = pod.watch("--doctor", plan="1 exit 134 1\n1 exit 0\n")
    in_order(
        events,
        *["train.sh failed", "started training", "training failed with exit code 134"],
        *["started training", "training has finished"],
    )
    examined = (pod.plan.parent / "starts" / "examined").read_text().split()
    assert sorted(Counter(examined).values()) == [2, 2]  # not before the last start


@pytest.mark.parametrize("code", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_code_after_which_no_start_helps_ends_the_watch(pod, api, code):
    said = pod.watch(plan=f"1 exit {code} 1\n", code=code)
    in_order(
        said,
        "started training",
        f"worker-1: {time.strftime('%Y-', time.gmtime())}",
        f"ended with exit code {code}\n",
        f"training ended with exit code {code} on a worker; a restart would end the same way",
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
    in_order(said, "gave up: 2 tries in a row reached no newer checkpoint than 2", "deleted my-tpu")
    assert "still cost money" not in said
    assert api.names == {}


def test_no_permission_ends_it_with_googles_words(pod, api):
    api.refusals = [("POST", 503, "busy"), ("POST", 403, "no tpu.nodes.create for me")]
    said = pod.watch(code=1)
    in_order(said, "UNAVAILABLE: busy; retrying", "gave up: my-tpu could not be requested:")
    assert "PERMISSION_DENIED: no tpu.nodes.create for me" in said


@pytest.mark.long
def test_what_somebody_else_deletes_is_not_made_again(pod, api):
    api.lives = [[("ACTIVE", "READY", 2), ("404", None, 0)]]
    said = pod.watch(plan="1 wait\n", code=1)
    assert "my-tpu is gone and this script did not delete it" in said
    assert api.count("POST", "queuedResources") == 1


def test_a_tpu_vm_without_our_label_is_left_alone(pod, api):
    api.create("her")
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
    in_order(said, "my-tpu is lost (its workers cannot be reached)", "training has finished")
    assert api.count("DELETE", "queuedResources") == 1


@pytest.mark.long
def test_ended_by_hand_it_leaves_training_alone_and_is_resumed(pod, api):
    with pod.watching("--price=225") as watch:
        next(line for line in watch.stdout if "training runs on 2 of 2" in line)
        assert "process" in pod.watch(plan="1 wait\n", code=2)  # one watches already
        watch.send_signal(signal.SIGTERM)
        said = watch.stdout.read()
        assert watch.wait(timeout=20) == 130
    assert "training continues" in said
    events = said.partition("my-tpu may still cost money")[0]
    before = dollars(events)
    (pids,) = pod.workers.glob("worker-1/bert_jax/logs/train.pid")
    assert pids.read_text()
    api.become([("ACTIVE", "READY", 1), ("ACTIVE", "PREEMPTED", 0)])
    said = pod.watch("--price=225", "--delete_at_end", plan="1 wait\n1 exit 0\n")
    in_order(said, "training runs on 2 of 2", "lost (PREEMPTED)", "training has finished")
    assert said.count("started training") == 1
    assert dollars(said) > before
    assert dollars(said) == pytest.approx(api.existed_secs, abs=3)


def test_another_run_on_the_tpu_vm_is_left_alone(pod, api):
    """Its chips are somebody's: --delete_at_end is for the end of our own run."""
    with pod.watching() as watch:
        next(line for line in watch.stdout if "started training" in line)
    said = pod.watch("--delete_at_end", "--workdir=gs://b/runs/b", plan="1 wait\n", code=2)
    assert "another run than gs://b/runs/b trains on my-tpu" in said
    assert api.count("DELETE", "queuedResources") == 0
    # The same folder in another spelling is the same run.
    with pod.watching(f"--workdir={pod.workdir}/") as watch:
        words = ("training runs on", "gave up")
        said = next(line for line in watch.stdout if any(word in line for word in words))
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
    in_order(said, "could not be deleted: ", "requested my-tpu", "training has finished")
    assert "this script did not delete it" not in said


def test_a_deletion_that_a_watch_has_requested_is_known_to_the_next(pod, api):
    api.lives = [[("DELETING", None, 2), ("404", None, 0)]]
    api.create("bert_jax")
    pod.state.mkdir()
    (pod.state / "state").write_text(f"RUN={pod.workdir}\nDELETION_ASKED=1\n")
    said = pod.watch(plan="1 exit 0\n")
    in_order(said, "my-tpu: DELETING", "requested my-tpu", "training has finished")


def test_workers_out_of_reach_that_save_are_alive(pod, api):
    """Their own bucket says so; what gcloud says is in the event."""
    checkpoints = pod.workdir.parents[1] / "buckets" / "b" / "runs" / "a" / "checkpoints"
    said = []
    with pod.watching("--workdir=gs://b/runs/a") as watch:
        for line in watch.stdout:
            said.append(line)
            if "training runs on 2 of 2" in line:
                (pod.workers / "unreachable").touch()
            if "look 3 of 5" in line:
                for name in ("7", "9"):
                    (checkpoints / name).mkdir()
                (checkpoints / "7" / "commit_success.txt").touch()
            if "training continues nonetheless" in line:
                break
    assert "checkpoint 7 is newer than 1" in said[-1]
    assert "0 of 2 workers answer, look 5 of 5: " in said[-2]
    assert api.count("DELETE", "queuedResources") == 0


def test_a_worker_that_answers_code_is_not_obeyed_and_the_watch_goes_on(pod):
    """Its answers count as none, are shown escaped, and the line about cost comes at the end."""
    said = []
    status = pod.workers / "worker-1" / "bert_jax" / "launch" / "worker" / "on_worker_train.sh"
    with pod.watching() as watch:
        for line in watch.stdout:
            said.append(line)
            if "training runs on 2 of 2" in line:
                if any("look 2 of 5" in earlier for earlier in said):
                    break
                right = status.read_text()
                junk = "running 12 HUNG_SECS[$(touch${IFS}canary)] 40\\033[2J\\n"
                status.write_text(f"printf '{junk}'\n")
            if "look 2 of 5" in line:
                status.write_text(right)
        watch.send_signal(signal.SIGTERM)
        said.append(watch.stdout.read())
    junk = next(line for line in said if "gave no answer" in line)
    assert "worker worker-1 gave no answer of on_worker_train.sh but 'worker worker-1 run" in junk
    assert r"canary)] 40\x1b[2J'" in junk
    assert any("1 of 2 workers answer, look 1 of 5" in line for line in said)
    assert "my-tpu may still cost money" in said[-1]
    assert not list(pod.state.parent.rglob("canary"))
    assert "\x1b" not in "".join(said)


def test_a_question_that_is_not_answered_has_an_end(tmp_path):
    ran = run_lines(
        """STATE_DIR=.; source $LAUNCH/lib/watch_events.sh
slow() { echo begun; (sleep 60; echo late >late) & echo $! >pid; wait; }
quick() { echo done; echo words >&2; return 7; }
within 1 slow slow || echo $?
tail -n 1 gcloud_said
within 5 quick quick || echo $?
cat slow quick gcloud_said
! kill -0 "$(<pid)"
""",
        cwd=tmp_path,
    )
    assert ran.stdout.splitlines() == [
        *("124", "no answer within the time limit", "7", "begun", "done", "words")
    ]


PARTS = """source $LAUNCH/lib/cluster.sh
TPU_NAME=my-tpu STATE_DIR=. PATH=.:$PATH
for part in gcloud_errors spending watch_events watch_workers; do
    source $LAUNCH/lib/$part.sh
done
"""


def test_the_newest_checkpoint_exists_and_is_complete(tmp_path):
    """One moved away as damaged counts no longer, and one half written not yet."""
    write_command(
        tmp_path / "gcloud",
        '[[ "$*" == "storage ls gs://b/a/checkpoints/*/commit_success.txt" ]] || exit 3',
        "cat names && exit",
        'echo "${ERROR-ERROR: One or more URLs matched no objects.}" >&2',
        "exit 1",
    )
    ran = run_lines(
        PARTS
        + """WORK_DIR=gs://b/a
at() {
    rm -f names
    for step in "$@"; do echo gs://b/a/checkpoints/$step/commit_success.txt >>names; done
    see_bucket
    echo "$SEEN"
}
at 8 20 0100 300.orbax-checkpoint-tmp; at 8 20; ERROR='ERROR: 503' at; at
WORK_DIR=/mnt/a
count_answers $'worker a running 1 2 9\\nworker b running 1 2 20'; echo "$SEEN"
count_answers $'worker a running 1 2 9\\nworker b running 1 2 -'; echo "$SEEN"
count_answers $'worker a never started'; echo "$SEEN"
""",
        cwd=tmp_path,
    )
    assert ran.stdout.split() == ["100", "20", "20", "-", "20", "9", "9"], ran.stderr


def test_what_is_known_of_a_tpu_vm_ends_with_it(tmp_path):
    ran = run_lines(
        PARTS
        + """WORK_DIR=/mnt/a
node() { eval "describe_node() { echo 'READY $1 2'; }"; ask_node; }
told() { echo "$IS_READY $HAS_TRAINED $IS_WRITTEN_OFF $UNREACHED '$NOT_READY_SINCE' '$BORN'"; }
node 1970-01-01T00:01:00Z
IS_READY=true HAS_TRAINED=true IS_WRITTEN_OFF=true UNREACHED=4 NOT_READY_SINCE=5
write_off 70
node 1970-01-01T00:01:00Z; told
node 1970-01-01T00:02:00Z; told
echo $SPENT_SECS
""",
        cwd=tmp_path,
    )
    assert ran.stdout.splitlines() == [
        "true true true 4 '5' ''",  # and what it cost is not counted twice
        "false false false 0 '' '120'",
        "10",
    ], ran.stderr


def test_the_watchdog_of_a_run_names_a_hang_before_the_watch_ends_it():
    script = (LAUNCH / "watch.sh").read_text()
    (default,) = re.findall(r"^POLL_SECS=60 HUNG_SECS=(\d+) ", script, re.M)
    assert int(default) > HostsConfig().stuck_secs
    assert f"(default: {default}, more than" in run("watch.sh", "--help").stdout


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
    settings = f"ACCELERATOR_TYPE={kind} SPOT={spot} PRICE={price}"
    ran = run_lines(f"source $LAUNCH/lib/spending.sh; {settings}; money 7200")
    assert (ran.stdout, ran.stderr) == (f"{words}\n", "")


@pytest.mark.parametrize(
    "time",
    [
        *("1970-01-01T00:00:00Z", "2024-02-29T23:59:59Z", "2024-03-01T00:00:00.5Z"),
        *("2026-11-22T03:00:00.123456789Z", "2026-12-31T08:09:09Z"),
    ],
)
def test_googles_times_in_seconds(time):
    ran = run_lines(f"source $LAUNCH/lib/spending.sh; epoch_of {time}")
    assert int(ran.stdout) == int(datetime.datetime.fromisoformat(time).timestamp())
