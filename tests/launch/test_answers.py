"""What services and workers say is data: read by its form, bounded, never run, shown escaped.

A JobSet is also read from a record with its source, date and command. None was found published for
queued resources and instance groups: Google's pages show excerpts without a time of creation.
"""

import dataclasses
import json
import pathlib
import re
import shutil

import pytest

from launch.cloud import compute_engine, decide, gke, queued
from launch.cloud.run import Answer, ask_all
from launch.cloud.text import MAX_TEXT, dig, escape, read_json, read_time
from tests.launch.conftest import GOLDEN
from tests.launch.scripts import make_job, needs_gcloud
from tests.launch.simulated_cloud import HOSTILE


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        (b"\x1b]0;x\x07 a\r\x7f\x01", r"\x1b]0;x\x07 a\x0d\x7f\x01"),
        ("é 漢 😀 \t~".encode(), "é 漢 😀 \t~"),
        ("\u0085\u009b".encode(), r"\xc2\x85\xc2\x9b"),
        ("\u202ea\u2066\u061c\u2028".encode(), r"\xe2\x80\xaea\xe2\x81\xa6\xd8\x9c\xe2\x80\xa8"),
        (b"\x9b31m \xff\xc3 \xed\xa0\x80 \xc0\x80", r"\x9b31m \xff\xc3 \xed\xa0\x80 \xc0\x80"),
        (b"a\\x1b [*] %s $(id) `id`", r"a\x1b [*] %s $(id) `id`"),
    ],
)  # fmt: skip
def test_what_a_terminal_would_obey_is_shown(raw, escaped):
    assert escape(raw.decode("utf-8", "surrogateescape")) == escaped


CODE = ("HUNG_SECS[$(touch${IFS}canary)]", "$(touch${IFS}canary)")
GOOD = ("running 12 3 40", "running - -1 -", "ended 1 08", "never started", "busy 9", "not set up")
BAD = (
    *(f"running 12 {junk} 40" for junk in (*CODE, "²", "0x10", "1.5", "")),
    *(f"ended {junk} 4" for junk in (CODE[0], "", "1000", "-1")),
    *("zzz", "", "running", "running 12 3 40 5", "never", "running 12 3 " + "9" * 16),
    *("running 1 \x1b[2J 4", "ended 2 \u202e3", "ended 0 4 starts x time 3"),
)


def test_an_answer_of_a_worker_counts_once_and_junk_is_named():
    lines = [f"worker w-{number} {answer}" for number, answer in enumerate(GOOD)]
    workers, junk, step = queued.read_workers("\n".join(["Welcome!", *lines, lines[0]]))
    statuses = [worker.status for worker in workers]
    assert statuses == ["running", "running", "ended", "never", "busy", "not"]
    silent_secs = [worker.silent_secs for worker in workers[:2]]
    assert (silent_secs, workers[2].code, step) == ([3, 0], 1, 40)
    assert len(junk) == 1
    for answer in BAD:
        workers, junk, _ = queued.read_workers(f"worker w-1 {answer}")
        assert (workers, len(junk)) == ((), 1), answer
    workers, junk, _ = queued.read_workers("\n".join(f"worker w-{n} x" * 99 for n in range(50)))
    assert len(junk) == 1 and junk[0].startswith("50 answers are none") and len(junk[0]) < 300


@pytest.mark.fault(24, "code, escapes and junk in what Google Cloud says")
@pytest.mark.parametrize("junk", HOSTILE, ids=range(len(HOSTILE)))
def test_junk_says_nothing_of_a_slice(junk):
    seen = decide.SliceSeen(decide.READY)
    assert queued.read_queued(junk) is None
    assert compute_engine.read_group(junk, junk, 2, False) is None
    assert gke.read_jobset(junk) is None
    assert queued.read_node(seen, junk).kind != decide.READY


def test_junk_is_no_json_time_or_text():
    assert [read_json(text) for text in ("[" * 100_000, "9" * 5000, "{")] == [None] * 3
    for text in ("2026-11-22T03:00:00.123456789Z", "2026-11-21T19:00:00-08:00"):
        assert read_time(text) == 1795316400
    assert read_time("2026-11-22T03:00:00") is None and read_time("x" * 999) is None
    assert len(dig({"a": "b" * 10**6}, "a")) == 200 and dig({"a": ["b"]}, "a") == ""


@pytest.mark.parametrize(
    ("words", "is_permanent"),
    [
        ("ERROR: (gcloud) PERMISSION_DENIED: no tpu.nodes.create", True),
        # BioMedBERT/biomedbert nohup.out, a run of 2020 against Google Cloud.
        ("Quota limit 'TPUV2sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0", True),
        ("Quota exceeded for quota metric 'Requests' and limit 'requests per minute'", False),
        ("HTTPError 403: Rate Limit Exceeded", False),
        ("HTTPError 503: UNAVAILABLE", False),
        ("HTTPError 403: no", True),
        # Compute Engine, where a request is refused that is no question: no code is named.
        ("resource:\n - Required 'compute.resourcePolicies.create' permission for 'a'", True),
        ("resource:\n - Request had insufficient authentication scopes.", True),
        ("resource:\n - The user does not have access to service account 'a'.", True),
        # kubectl without a login, and without a cluster.
        ("error: You must be logged in to the server (Unauthorized)", True),
        ("getting credentials: exec: executable gke-gcloud-auth-plugin not found", True),
        ("getting credentials: exec: executable plugin failed with exit code 1", False),
        ("The connection to the server localhost:8080 was refused - did you", True),
        ("The connection to the server 203.0.113.1 was refused - did you", False),
        # kubectl 1.32 without JobSet, and with one that refuses the manifest.
        ('error: the server doesn\'t have a resource type "jobset"', True),
        ('error: resource mapping not found: no matches for kind "JobSet"\nensure CRDs', True),
        ('The JobSet "a" is invalid: spec.replicatedJobs: Forbidden: no', True),
        ('Error from server (BadRequest): error when creating "STDIN": strict decoding', True),
        ("Error from server (TooManyRequests): the server has received too many", False),
    ],
)
def test_a_failure_is_permanent_or_passes(words, is_permanent):
    assert Answer(1, "", f"WARNING: x\n{words}\n").is_permanent is is_permanent


def test_an_error_is_told_with_the_lines_below_it():
    error = "ERROR: (gcloud.compute) Could not fetch resource:\n - Quota 'A' exceeded.\n\n"
    said = Answer(1, "", f"Updates are available.\n{error}")
    assert said.words == "(gcloud.compute) Could not fetch resource: - Quota 'A' exceeded."
    error = "Unable to connect to the server: executable a not found\n\nInstall:\nhttps://b\n"
    said = Answer(1, "", f'E1129 "Unhandled Error" err=<\n a\n >\n{error}')
    assert said.words == " ".join(error.split())
    error = 'error: no matches for kind "JobSet" in version\nensure CRDs are installed first'
    assert Answer(1, "", f"W1 a\n{error}\n").words == " ".join(error.split())
    assert Answer(1, "", "a\n b  c\n").words == "b c" and Answer(1).words == "no message"


def test_a_failed_request_says_why_and_a_node_since_when_it_costs():
    """googlecloudsdk/generated_clients/apis/tpu/v2: FailedData has an error, a Status."""
    failed = {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "no room"}}}
    seen = queued.read_queued({"state": failed, "createTime": "2026-11-22T03:00:00Z"})
    assert (seen.kind, seen.words) == (decide.LOST, "FAILED no room")
    said = {"state": "READY", "networkEndpoints": [{}], "createTime": "2026-11-22T03:00:00Z"}
    seen = queued.read_node(decide.SliceSeen(decide.READY, created=7), said)
    assert (seen.created, seen.started, seen.workers) == (7, 1795316400, 1)


def test_a_group_has_the_state_of_its_machines(tmp_path):
    def kind(*machines, model="standard", **changed):
        return look_at_group(tmp_path, machines, [], group=changed, PROVISIONING=model).slice.kind

    fine = ("RUNNING", "NONE")
    assert kind(fine, fine) == decide.READY
    assert kind(fine) == kind(("RUNNING", "VERIFYING"), fine) == decide.STARTING
    assert kind(("REPAIRING", "RECREATING"), fine) == decide.STARTING
    assert kind(("STOPPED", "NONE"), fine, model="spot") == decide.LOST  # preempted
    assert kind(("STOPPED", "NONE"), fine) == decide.STARTING
    assert kind(("STOPPING", "NONE"), ("TERMINATED", "NONE")) == decide.STARTING  # maintenance
    assert kind() == kind(("", "CREATING"), ("PENDING", "CREATING")) == decide.QUEUED
    assert kind(fine, targetSize=0) == decide.LOST  # flex-start after its days
    assert kind(("STOPPING", "DELETING"), ("RUNNING", "DELETING")) == decide.DELETING


def test_the_record_of_a_jobset_that_waits_for_its_pods(tmp_path):
    record = json.loads((GOLDEN / "launch_answer_jobset.json").read_text())
    assert set(record) == {"source", "date", "command", "answer"}
    said = Answer(0, json.dumps(record["answer"]))
    answers = gke.look(make_job(tmp_path, "gke"), lambda command: said, 0)
    seen, kind = answers.slice, (decide.QUEUED, "its pods wait for nodes, or for their image")
    assert seen == decide.SliceSeen(*kind, created=1763054726, workers=1)
    assert answers.workers == (decide.Worker("jobset", "never"),)


# kubernetes-sigs/jobset v0.12.0: pkg/controllers/failure_policy.go, pkg/constants/constants.go; the
# Job's message: keps/262-ConfigurableFailurePolicy.
FINAL = ("FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action")
RESTARTED = ("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
THREE = "Container train for pod a/b failed with exit code 3 matching FailJob rule at index 0"


@pytest.mark.parametrize(
    ("jobset", "jobs", "kind", "codes"),
    [
        (FINAL, [("PodFailurePolicy", THREE)], decide.READY, [3]),
        (FINAL, [], decide.READY, [2]),  # final even if nobody knows which
        (FINAL, None, decide.UNKNOWN, []),
        (RESTARTED, [("PodFailurePolicy", THREE)], decide.LOST, [0]),
    ],
)
def test_a_failed_jobset_has_the_exit_code_of_its_job(tmp_path, jobset, jobs, kind, codes):
    def fail(reason, message):
        return {"conditions": [{"type": "Failed", "reason": reason, "message": message}]}

    metadata = {"creationTimestamp": "2026-11-22T03:00:00Z"}
    body = {"metadata": metadata, "status": fail(*jobset) | {"terminalState": "Failed"}}
    listed = None if jobs is None else {"items": [{"status": fail(*job)} for job in jobs]}

    def ask(command):
        said = body if "jobset" in command.words else listed
        return Answer(0, json.dumps(said)) if said else Answer(1, "", "HTTPError 503")

    answers = gke.look(make_job(tmp_path, "gke"), ask, 0)
    assert answers.slice.kind == kind
    assert [worker.code for worker in answers.workers] == codes


def test_a_slice_that_starts_training_names_its_workdir(tmp_path):
    metadata = gke.make_manifest(make_job(tmp_path, "gke"))["metadata"]
    body = {"metadata": metadata | {"creationTimestamp": "2026-11-22T03:00:00Z"}}
    assert gke.read_jobset(body)[0].workdir == "gs://b/a"
    job = make_job(tmp_path, "compute_engine")
    job = dataclasses.replace(job, flags=(f"--workdir=gs://b/my, a={'c' * 300}",))
    words = [w for command in compute_engine.plan("create", job) for w in command.words]
    text = [w.partition("=")[2] for w in words if w.startswith("--description=")][-1]
    group = {"description": text, "creationTimestamp": "2026-11-22T03:00:00Z"}
    seen = compute_engine.read_group(group, [], 2, False)
    assert (seen.label, seen.workdir) == ("bert_jax", job.workdir[:MAX_TEXT])
    assert compute_engine.read_group(group | {"description": "other=a"}, [], 2, False).label == ""


@pytest.mark.parametrize(
    ("description", "is_permanent"),
    [("launched_by=bert_jax\n", False), ("launched_by=bert_jax2", True), ("", True)],
)
def test_a_template_that_is_used_or_not_ours_is_kept(tmp_path, description, is_permanent):
    """Templates belong to a region: a second group would train what the first one trains."""
    in_use, lines = "The instance_template resource is already being used by my-tpu", []

    def ask(command):
        lines.append(" ".join(command.words))
        is_refused = "templates delete" in lines[-1]
        return Answer(int(is_refused), description, in_use * is_refused)

    said = ask_all(compute_engine.plan("create", make_job(tmp_path, "compute_engine")), ask)
    assert (said.code, said.is_absent, said.is_permanent) == (1, False, is_permanent)
    kept = ("storage", " create ", " delete "[: 8 * is_permanent] or "policies delete")
    assert not any(words in line for line in lines for words in kept)


def look_at_group(tmp_path, machines, *said, group=(), **settings):
    """What a look sees of a group with these machines; said: the bodies that follow."""
    made = {"creationTimestamp": "2026-11-22T03:00:00-08:00", "description": "launched_by=a"}
    rows = [{"instanceStatus": status, "currentAction": action} for status, action in machines]
    bodies = (made | dict(group), rows, *said)
    texts = [body if isinstance(body, str | Answer) else json.dumps(body) for body in bodies]
    answers = iter([t if isinstance(t, Answer) else Answer(0, t) for t in texts])
    job = make_job(tmp_path, "compute_engine", **settings)
    return compute_engine.look(job, lambda command: next(answers), 10_000.0)


def test_the_last_record_of_a_machine_counts_however_old_it_is(tmp_path):
    """A supervisor that comes back hours after the end of a run must see it."""
    ends = ("ended 0 40", "ended 2 -", "ended 1 40", "running 9 5 40", "not set up")
    lines = [f"worker w-{number} {end} starts 1 time 7\n" for number, end in enumerate(ends)]
    machines = [("RUNNING", "NONE")] * 2
    # One that finished alone leaves the other without a partner: the slice is lost.
    answers = look_at_group(tmp_path, machines, "".join(lines))
    assert [worker.name for worker in answers.workers] == ["w-1"]
    answers = look_at_group(tmp_path, machines, lines[0] + lines[0].replace("w-0", "w-1"))
    assert [worker.code for worker in answers.workers] == [0, 0]


def test_a_bucket_that_cannot_be_read_says_nothing_of_the_machines(tmp_path):
    """Else a slice that trains would be deleted, as its machines seem to be silent."""
    machines = [("RUNNING", "NONE")] * 2
    answers = look_at_group(tmp_path, machines, Answer(1, "", "HTTPError 403: no access"))
    assert (answers.slice.kind, answers.is_permanent) == (decide.UNKNOWN, True)
    answers = look_at_group(tmp_path, machines, Answer(1, "", "matched no objects or files"))
    assert (answers.slice.kind, answers.workers) == (decide.READY, ())
    assert answers.error == "matched no objects or files"


def test_a_group_without_quota_is_deleted_instead_of_trying_for_ever(tmp_path):
    error = [{"error": {"code": "QUOTA_EXCEEDED", "message": "Quota 'A' exceeded. Limit: 0"}}]
    seen = look_at_group(tmp_path, [("", "CREATING")] * 2, error).slice
    assert (seen.kind, seen.words) == (decide.LOST, "QUOTA_EXCEEDED: Quota 'A' exceeded. Limit: 0")
    # An error of long ago says nothing of a repair, nor does a stockout.
    seen = look_at_group(tmp_path, [("REPAIRING", "RECREATING")] * 2, error).slice
    assert seen.kind == decide.STARTING
    error = [{"error": {"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}}]
    assert look_at_group(tmp_path, [("", "CREATING")] * 2, error).slice.kind == decide.QUEUED


def test_a_group_that_goes_between_two_questions_is_absent(tmp_path):
    said = iter([Answer(0, "{}"), Answer(1, "", "HTTPError 404: was not found")])
    job = make_job(tmp_path, "compute_engine")
    seen = compute_engine.look(job, lambda command: next(said), 0).slice
    assert seen is not None and seen.kind == decide.ABSENT


@needs_gcloud
def test_every_state_of_the_sdk_has_a_kind():
    sdk = pathlib.Path(shutil.which("gcloud")).resolve().parents[1]
    apis = sdk / "lib/googlecloudsdk/generated_clients/apis"
    tpu = (apis / "tpu/v2/tpu_v2_messages.py").read_text()
    compute = (apis / "compute/v1/compute_v1_messages.py").read_text()

    def read_states(text: str, message: str) -> set[str]:
        body = text.partition(f"\nclass {message}(")[2].partition("\nclass ")[0]
        return set(re.findall(r"^    ([A-Z_]+) = \d+$", body, re.MULTILINE))

    states = read_states(tpu, "QueuedResourceState")
    others = {"STATE_UNSPECIFIED", "STATE_INITIATOR_UNSPECIFIED", "USER", "SERVICE"}
    assert states - set(queued.QUEUED_KINDS) == others
    assert set(queued.QUEUED_KINDS) <= states
    assert set(queued.NODE_KINDS) <= read_states(tpu, "Node")
    members = read_states(compute, "ManagedInstance")
    known = compute_engine._LOST_STATES | compute_engine._MACHINES | compute_engine._REPAIRS
    assert known <= members
    others = {"NONE", "CREATING", "CREATING_WITHOUT_RETRIES", "DELETING", "ABANDONING"}
    assert members - known == others
