"""Create slices of v4 and v5e (v5p, v6e where asked for) as queued resources of the TPU API.

The supervisor sets up the workers and starts training over ssh. Google repairs nothing here: a
preempted resource stays SUSPENDED until it is deleted.
"""

import re
import shlex

from . import decide
from .cluster import Cluster
from .decide import Answers, SliceSeen, Worker
from .job import SET_UP_SECS, Job
from .run import Answer, Ask, Command, make
from .text import dig, dig_any, read_json, read_time

STARTS_ITSELF = False
LISTING = "gcloud compute tpus tpu-vm list {place}"
_TPUS = "gcloud compute tpus"
_NAMED = '"s/^/$HOSTNAME: /"'  # sed script: prefixes each line with the worker
# Where training writes on a worker, from REMOTE_DIR.
LOG = "logs/train.log"
_TRAIN = ("bash", "launch/worker/on_worker_train.sh")
START_SECS, DOCTOR_SECS = 600, 900
# googlecloudsdk/generated_clients/apis/tpu/v2: QueuedResourceState.State, Node.State.
_WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
_GONE = ("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "DELETING", "HIDING", "HIDDEN")
QUEUED_KINDS = dict.fromkeys(_WAITING, decide.QUEUED)
QUEUED_KINDS |= dict.fromkeys(("SUSPENDING", "SUSPENDED", "FAILED"), decide.LOST)
QUEUED_KINDS |= {"ACTIVE": decide.READY, "DELETING": decide.DELETING}
NODE_KINDS = dict.fromkeys(_GONE, decide.LOST) | {"READY": decide.READY}
# A line "worker NAME STATUS", with the words of on_worker_train.sh --status, and in a bucket how
# often training was started and when that was written. A file system's clock may be ahead.
_ANSWER = re.compile(
    r"worker (?P<name>[A-Za-z0-9._-]{1,64}) "
    r"(?:(?:running (?:\d{1,9}|-) (?P<silent>-?\d{1,9})|ended (?P<code>\d{1,3}))"
    r" (?P<step>\d{1,15}|-)|busy (?:\d{1,9}|-)|never started|not set up)"
    r"(?: starts (?P<starts>\d{1,6}) time (?P<time>\d{1,12}))?",
    re.ASCII,
)


def plan(kind: str, job: Job) -> list[Command]:
    """Return the commands of an action of the supervisor; of a look: resource, node, workers."""
    cluster = job.cluster
    name, place, folder = cluster.name, cluster.place, cluster.get("REMOTE_DIR")
    if kind == "create":
        names = {"valid_until_duration": "VALID_UNTIL", "service_account": "SERVICE_ACCOUNT"}
        line = f"""{_TPUS} queued-resources create {name} --node-id={name}
            --accelerator-type={cluster.slice.accelerator_type}
            --runtime-version={cluster.slice.generation.queued[2]} {place}
            --labels={cluster.label}
            {"--spot" * (cluster.get("PROVISIONING") == "spot")}
            {cluster.flags(**names, network="NETWORK", subnetwork="SUBNETWORK")}
            {"--internal-ips" * cluster.is_internal}"""
        return [make(line, secs=START_SECS)]
    if kind == "look":
        status = _call(cluster, *_TRAIN, "--status", LOG, job.workdir)
        script = f'echo "worker $HOSTNAME $({{ {status}; }} 2>/dev/null || echo not set up)"'
        queued, node = "json(state,createTime,tpu)", "json(state,networkEndpoints,createTime)"
        return [
            make(f"{_TPUS} queued-resources describe {name} {place} --format={queued}"),
            make(f"{_TPUS} tpu-vm describe {name} {place} --format={node}"),
            on_workers(cluster, "all", script),
        ]
    if kind == "delete":
        line = f"{_TPUS} queued-resources delete {name} --force {place} --quiet --async"
        return [make(line, may_be_absent=True)]
    if kind == "set_up":
        archive, inside = job.archive.name, "--internal-ip" * cluster.is_internal
        where = f"{name}:{archive} {place} --worker=all {inside}"
        copy = make(f"{_TPUS} tpu-vm scp", str(job.archive), *where.split(), secs=SET_UP_SECS)
        script = f"tar -xzOf {archive} launch/worker/on_worker_setup.sh >bert_jax-setup.sh && "
        script += f"bash bert_jax-setup.sh {archive} {job.commit} {folder} "
        script += f"{cluster.get('REMOTE_PYTHON')} {job.wheelhouse}".rstrip()
        return [*job.pack(), copy, on_workers(cluster, "all", script, SET_UP_SECS)]
    if kind in ("examine", "start"):
        return _start(job, is_examined=kind == "examine")
    codes = "|".join(map(str, decide.FINAL_CODES))
    scripts = {
        "stop": _call(cluster, *_TRAIN, "--stop", LOG),
        "stacks": f"{_call(cluster, *_TRAIN, '--stacks', LOG)} | sed {_NAMED}",
        "last_words": f"cd {folder} && if grep -qxE '{codes}' logs/train.exit_code 2>/dev/null; "
        f"then tail -n 20 {LOG} | sed {_NAMED}; fi",
    }
    return [on_workers(cluster, "all", scripts[kind])] if kind in scripts else []


def _start(job: Job, is_examined: bool) -> list[Command]:
    """Return the commands that clear all workers, then start (or examine) all of them."""
    cluster, port = job.cluster, job.cluster.get("COORDINATOR_PORT")
    python, flags = cluster.get("REMOTE_PYTHON"), ["--multihost", *job.flags]
    words = [*_TRAIN, python, LOG, cluster.logs, *flags]
    if is_examined:
        known = [flag for flag in flags if re.match(r"--(config[=.[]|workdir=|multihost$)", flag)]
        doctor = ["timeout", "--kill-after=10", str(DOCTOR_SECS), python, "-m", "bert_jax.doctor"]
        words = [*doctor, *known, "--json_out=logs/doctor.json"]
    environment = ["env", f"JAX_COORDINATOR_PORT={port}"] * bool(port)
    lines = (_call(cluster, *_TRAIN, "--clear", LOG), _call(cluster, *environment, *words))
    secs = START_SECS + DOCTOR_SECS * is_examined
    return [on_workers(cluster, "all", line, secs) for line in lines]


def on_workers(cluster: Cluster, worker: str, command: str, secs: float = 180) -> Command:
    """Return the command that runs `command` on a worker, by its number, or on all; '': a shell.

    gcloud logs it on this machine, and a worker's process list shows it: put no secret in it.
    """
    line = f"{_TPUS} tpu-vm ssh {cluster.name} {cluster.place} --worker={worker}"
    words = [f"--command={command}"] * bool(command) + ["--internal-ip"] * cluster.is_internal
    return make(line, *words, secs=secs)


def show_log(cluster: Cluster, worker: str, lines: int, follow: bool) -> Command:
    """Return the command that shows the end of the log of one worker, or of all."""
    path = f"{cluster.get('REMOTE_DIR')}/{LOG}"
    # A tail that --follow leaves behind ends when the log grows and nobody reads.
    tail = f"tail -n {lines}{' -F' * follow} {path} | sed -u {_NAMED}"
    absent = f'echo "$HOSTNAME: {path} does not exist; launch/train.sh has not run here" >&2'
    script = f"if [ -f {path} ]; then {tail}; else {absent}; exit 1; fi"
    return on_workers(cluster, worker, script)


def _call(cluster: Cluster, *words: str) -> str:
    """Return the shell line that runs a command in REMOTE_DIR."""
    return f"cd {cluster.get('REMOTE_DIR')} && {shlex.join(words)}"


def no_answer(now: float, said: Answer) -> Answers:
    """Return Answers without a slice, and the error that hides its state."""
    words = said.words if said.code else f"an answer without a state: {said.out[:200]!r}"
    return Answers(now, error=words, is_permanent=said.is_permanent)


def look(job: Job, ask: Ask, now: float) -> Answers:
    """Ask for the state of the slice and, where it is ready, of its workers."""
    about_queued, about_node, about_workers = plan("look", job)
    said = ask(about_queued)
    if said.is_absent:
        return Answers(now, SliceSeen(decide.ABSENT))
    seen = None if said.code else read_queued(read_json(said.out))
    if seen is None:
        return no_answer(now, said)
    if seen.kind == decide.READY:
        node = ask(about_node)
        if node.code and not node.is_absent:
            return no_answer(now, node)
        seen = read_node(seen, {} if node.is_absent else read_json(node.out))
    if seen.kind != decide.READY:
        return Answers(now, seen)
    status = ask(about_workers)
    workers, junk, step = read_workers(status.out)
    checkpoint = None if job.workdir.startswith("gs://") else step
    return Answers(now, seen, status.words if status.code else "", False, workers, junk, checkpoint)


def read_queued(body: object) -> SliceSeen | None:
    """Parse the description of a queued resource; None if it is not one."""
    state, created = dig(body, "state", "state"), read_time(dig(body, "createTime"))
    if state not in QUEUED_KINDS or created is None:
        return None
    label = dig(body, "tpu", "nodeSpec", 0, "node", "labels", "launched_by")
    why = dig(body, "state", "failedData", "error", "message")
    return SliceSeen(QUEUED_KINDS[state], f"{state} {why}".strip(), label, created)


def read_node(seen: SliceSeen, body: object) -> SliceSeen:
    """Add the description of its node to a slice; without a node the slice is LOST."""
    state, ends = dig(body, "state"), dig_any(body, "networkEndpoints")
    count = len(ends) if isinstance(ends, list) else 0
    kind = NODE_KINDS.get(state, decide.STARTING) if body != {} else decide.LOST
    if kind == decide.READY and not count:
        kind = decide.STARTING
    has_machines = body != {} and state not in ("PREEMPTED", "TERMINATED")
    words = f"ACTIVE, and its node {state or 'GONE'}"
    started = read_time(dig(body, "createTime")) or 0
    return SliceSeen(kind, words, seen.label, seen.created, has_machines, count, started=started)


def read_workers(text: str) -> tuple[tuple[Worker, ...], tuple[str, ...], int | None]:
    """Return the workers' answers, events for other lines, and the newest checkpoint.

    Other lines come from login shells. Only the first answer of a worker counts.
    """
    workers: dict[str, Worker] = {}
    junk, steps = [], []
    for line in text.split("\n"):
        if not line.startswith("worker "):
            continue
        found = _ANSWER.fullmatch(line)
        if found is None or found["name"] in workers:
            junk.append(line)
            continue
        silent_secs, *rest = (int(found[key] or 0) for key in ("silent", "code", "starts", "time"))
        name, status = line.split(" ")[1:3]
        workers[name] = Worker(name, status, max(silent_secs, 0), *rest)
        if step := found["step"]:
            steps.append(-1 if step == "-" else int(step))
    if junk:
        junk = [f"{len(junk)} answers are none of on_worker_train.sh: '{junk[0][:200]}'"]
    return tuple(workers.values()), tuple(junk), max(steps, default=None)
