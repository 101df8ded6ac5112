"""Create a JobSet on a GKE cluster that has node pools of the slice (v4 and later).

JobSet restarts all pods when one fails; GKE recreates a node pool of several hosts as a whole. The
supervisor sees progress and money, and ends the run. Source of the manifest's fields:
kubernetes-sigs/jobset v0.12.0, keps/262-ConfigurableFailurePolicy.
"""

import dataclasses
import json
import re
from typing import Any

from . import decide
from .cluster import Cluster
from .decide import Answers, SliceSeen, Worker
from .job import Job
from .queued import no_answer
from .run import CONTEXT, Answer, Ask, Command, make
from .text import dig, dig_any, read_json, read_time, refuse
from .topologies import CHIPS_PER_HOST

STARTS_ITSELF = True
LISTING = "kubectl get jobsets"
MAX_RESTARTS = 100
# The user of launch/Dockerfile.
USER = 1000
_GKE = "cloud.google.com/gke"
# A rule of JobSet, the pod failure that it matches, and JobSet's action. Every failure has the same
# reason; the message names the rule by its index here. Any other failure restarts all pods and
# counts toward maxRestarts.
_FINAL_CODES = {"containerName": "train", "operator": "In", "values": list(decide.FINAL_CODES)}
_DISRUPTION = {"type": "DisruptionTarget", "status": "True"}
_RULES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("final", {"onExitCodes": _FINAL_CODES}, "FailJobSet"),
    ("disrupted", {"onPodConditions": [_DISRUPTION]}, "RestartJobSetAndIgnoreMaxRestarts"),
)
# Reason of a JobSet's condition Failed after rule `final`; only the Job's condition has the code.
_FINAL = "FailJobSetFailurePolicyAction"
_WORKDIR = "bert-jax-workdir"
_EXIT_CODE = re.compile(r"failed with exit code (\d{1,3}) ")


def pin_context(ask: Ask) -> Ask:
    """Return `ask` with kubectl's current context fixed, in case the context is changed later."""
    context = ask(CONTEXT).out.strip()
    pin = [f"--context={context}"] * bool(context)

    def ask_pinned(command: Command) -> Answer:
        words = [*command.words, *pin * (command.words[0] == "kubectl")]
        return ask(dataclasses.replace(command, words=words))

    return ask_pinned


def plan(kind: str, job: Job) -> list[Command]:
    """Return the commands of an action of the supervisor; of a look: the JobSet and its Job."""
    if kind == "look":
        return [
            make(f"kubectl get jobset {job.cluster.name} --output=json --ignore-not-found"),
            make(f"kubectl get jobs {_select(job.cluster)} --output=json"),
        ]
    if kind == "create":
        manifest = json.dumps(make_manifest(job), indent=2) + "\n"
        return [make("kubectl create --filename=-", given=manifest)]
    if kind == "delete":
        return [make(f"kubectl delete jobset {job.cluster.name} --wait=false", may_be_absent=True)]
    return [show_log(job.cluster, "all", 20, False)] if kind == "last_words" else []


def _select(cluster: Cluster) -> str:
    return f"--selector=jobset.sigs.k8s.io/jobset-name={cluster.name}"


def show_log(cluster: Cluster, worker: str, lines: int, follow: bool) -> Command:
    """Return the command that shows the end of the log of one pod, by its number, or of all."""
    index = f",batch.kubernetes.io/job-completion-index={worker}" * (worker != "all")
    return make(f"""kubectl logs --prefix {_select(cluster)}{index}
        --tail={lines} --max-log-requests={cluster.slice.hosts} {"--follow" * follow}""")


def look(job: Job, ask: Ask, now: float) -> Answers:
    """Ask for the state of the JobSet and, where a final exit code ended it, for the code."""
    about_jobset, about_jobs = plan("look", job)
    said = ask(about_jobset)
    if not said.code and not said.out.strip():
        return Answers(now, SliceSeen(decide.ABSENT))
    body, jobs = None if said.code else read_json(said.out), None
    if dig(_find_failure(body), "reason") == _FINAL:
        said = ask(about_jobs)
        jobs = read_json(said.out)
    found = None if said.code else read_jobset(body, jobs)
    if found is None:
        return no_answer(now, said)
    return Answers(now, found[0], workers=(found[1],))


def _find_failure(body: Any) -> Any:
    """Return the condition Failed of a JobSet or Job; None where there is none."""
    conditions = dig_any(body, "status", "conditions")
    listed = conditions if isinstance(conditions, list) else []
    return next((c for c in listed if dig(c, "type") == "Failed"), None)


def read_jobset(body: Any, jobs: Any = None) -> tuple[SliceSeen, Worker] | None:
    """Parse a JobSet into the state of the slice, and of training as if by one worker.

    jobs: the list of its Job, where a final exit code ended it.
    """
    time = read_time(dig(body, "metadata", "creationTimestamp"))
    label = dig(body, "metadata", "labels", "launched_by")
    if time is None:
        return None
    status = dig_any(body, "status")
    state, restarts = dig(status, "terminalState"), dig_any(status, "restarts")
    has_machines = dig_any(status, "replicatedJobsStatus", 0, "ready") == 1
    failure = _find_failure(body)
    starts = restarts if isinstance(restarts, int) and 0 <= restarts < 10**6 else 0
    starts += has_machines
    kind, words, training, code = decide.READY, "", "running" if has_machines else "never", 0
    if not (state or starts):
        kind, words = decide.QUEUED, "its pods wait for nodes, or for their image"
    elif state == "Completed":
        training = "ended"
    elif state == "Failed" and dig(failure, "reason") == _FINAL:
        message = dig(_find_failure(dig_any(jobs, "items", 0)), "message")
        found = _EXIT_CODE.search(message)
        training, code = "ended", int(found[1]) if found else decide.FINAL_CODES[0]
    elif state == "Failed":
        kind, words = decide.LOST, f"Failed: {dig(failure, 'message')}"
    if dig(body, "metadata", "deletionTimestamp"):
        kind, words = decide.DELETING, "DELETING"
    workdir = dig(body, "metadata", "annotations", _WORKDIR)
    seen = SliceSeen(kind, words, label, time, has_machines and not state, 1, workdir)
    return seen, Worker("jobset", training, code=code, starts=starts)


def make_manifest(job: Job) -> dict[str, Any]:
    """Return the JobSet; the headless service is made by JobSet from `network`."""
    cluster = job.cluster
    hosts, name = cluster.slice.hosts, cluster.name
    # JobSet's webhook limits the names of pods.
    room = 63 - len(f"-slice-0-{hosts - 1}-abcde")
    if len(name) > room:
        refuse(f"{cluster.path}: TPU_NAME is '{name}'; pods' names have room for {room} characters")
    labels = {"launched_by": cluster.get("LABEL")}
    template = {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob"} | match for _, match, _ in _RULES]},
        "template": {"metadata": {"labels": labels}, "spec": _make_pod(job)},
    }
    pattern = ".*rule at index {}.*"
    rules = [
        {"name": rule, "action": action, "onJobFailureMessagePatterns": [pattern.format(index)]}
        for index, (rule, _, action) in enumerate(_RULES)
    ]
    policy = {"maxRestarts": MAX_RESTARTS, "restartStrategy": "BlockingRecreate", "rules": rules}
    # One slice holds all pods, and no other job's.
    notes = {"alpha.jobset.sigs.k8s.io/exclusive-topology": f"{_GKE}-nodepool"}
    notes[_WORKDIR] = job.workdir
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": labels, "annotations": notes},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": policy,
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": template}}],
        },
    }


def _make_pod(job: Job) -> dict[str, Any]:
    """Return the spec of a pod, one per host, on the nodes of the slice."""
    cluster, kind = job.cluster, job.cluster.slice.generation.gke
    selector = {f"{_GKE}-tpu-accelerator": kind, f"{_GKE}-tpu-topology": cluster.slice.topology}
    tolerated = ["google.com/tpu"]
    # GKE labels, and may taint, the nodes of pools made with --spot or --flex-start.
    if (model := cluster.get("PROVISIONING").replace("_", "-")) != "standard":
        selector[f"{_GKE}-{model}"] = "true"
        tolerated.append(f"{_GKE}-{model}")
    image = "and pods start from it (docker build --target=tpu, launch/Dockerfile)"
    # Kubernetes replaces $(NAME) in a command, and takes $$ for $.
    words = ["python", "-u", "-m", "bert_jax.train", "--multihost", *job.flags]
    container: dict[str, Any] = {
        "name": "train",
        "image": cluster.need("GKE_IMAGE", image),
        "command": [word.replace("$", "$$") for word in words],
        "resources": {"limits": {"google.com/tpu": CHIPS_PER_HOST}},
        # GKE 1.28 and later ask for neither privileged mode nor capabilities ("About TPUs in GKE").
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if port := cluster.get("COORDINATOR_PORT"):
        container["env"] = [{"name": "JAX_COORDINATOR_PORT", "value": port}]
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        # containerd gives devices to the user named here, not to the image's user.
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER},
        # Time for a save on SIGTERM; a Spot node leaves an ordinary pod only 15 s.
        "terminationGracePeriodSeconds": 60,
        "nodeSelector": selector,
        "tolerations": [{"key": key, "operator": "Exists"} for key in tolerated],
        "containers": [container],
    }
    account = cluster.get("GKE_SERVICE_ACCOUNT")
    return pod | {"serviceAccountName": account} if account else pod
