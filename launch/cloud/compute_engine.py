"""Create slices of v5p, v6e and tpu7x as a managed instance group in bulk mode on Compute Engine.

Its machines fetch commit, packages and flags from the bucket at each boot, start training
themselves (launch/worker/on_boot.sh) and write there what it does. Google restarts a failed slice
as a whole, but neither a preempted Spot group nor a flex-start one after its days: these are
deleted and created again.
"""

import dataclasses
from typing import Any

from . import decide
from .cluster import LAUNCH, Cluster
from .decide import Answers, SliceSeen
from .job import SET_UP_SECS, Job
from .queued import no_answer, read_workers
from .run import Ask, Command, make
from .text import MAX_TEXT, dig, dig_any, read_json, read_time

STARTS_ITSELF = True
LISTING = "gcloud compute instances list {project}"  # the TPU API does not list these machines
_MODELS = {
    "standard": "",
    "spot": "--provisioning-model=SPOT --instance-termination-action=STOP",
    "flex_start": "--provisioning-model=FLEX_START --max-run-duration=7d "
    "--instance-termination-action=DELETE",
}
IMAGES = "ubuntu-os-accelerator-images"
# A machine writes its record every minute; an older record does not show its state now.
MAX_RECORD_SECS = 900
DELETE_SECS = 900  # gcloud waits until all machines are gone
# googlecloudsdk/generated_clients/apis/compute/v1: ManagedInstance. PENDING is newer.
_LOST_STATES = {"STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED", "DEPROVISIONING"}
_REPAIRS = {"RECREATING", "RESTARTING", "REFRESHING", "VERIFYING", "STARTING", "RESUMING"}
_MACHINES = {"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "STOPPING"}


def plan(kind: str, job: Job) -> list[Command]:
    """Return the commands of an action of the supervisor; of a look: group, machines, records."""
    if kind == "look":
        group = "--format=json(creationTimestamp,description,targetSize,status)"
        errors = "--sort-by=~timestamp --limit=1 --format=json(error)"
        return [
            _managed(job.cluster, "describe", group),
            _managed(job.cluster, "list-instances", "--format=json(instanceStatus,currentAction)"),
            _managed(job.cluster, "list-errors", errors),
            make(f"gcloud storage cat {_find_folder(job.cluster)}/records/*"),
        ]
    if kind == "create":
        # Deleting the template of an existing group fails, so its folder is not overwritten.
        return [*job.pack(), *_clean(job.cluster), *_upload(job), *_create(job)]
    if kind == "delete":
        return [_managed(job.cluster, "delete", "--quiet", may_be_absent=True, secs=DELETE_SECS)]
    return _clean(job.cluster) if kind == "clean" else []


def _managed(cluster: Cluster, verb: str, flags: str, *words: str, **options: Any) -> Command:
    line = f"gcloud compute instance-groups managed {verb} {cluster.name} {cluster.place} {flags}"
    return make(line, *words, **options)


def _find_folder(cluster: Cluster) -> str:
    bucket = cluster.need("BUCKET", "and the machines read code and flags there")
    return f"{bucket}/launch/{cluster.name}"


def _upload(job: Job) -> list[Command]:
    """Return the commands that upload commit and flags and delete earlier records."""
    cluster, folder = job.cluster, _find_folder(job.cluster)
    lines = [job.commit, cluster.get("REMOTE_PYTHON"), job.wheelhouse]
    lines += [cluster.get("COORDINATOR_PORT"), cluster.logs]
    text = "".join(f"{line}\n" for line in [*lines, "--multihost", *job.flags])
    return [
        make("gcloud storage cp", str(job.archive), f"{folder}/code.tar.gz", secs=SET_UP_SECS),
        make(f"gcloud storage cp - {folder}/job.txt", given=text),
        make(f"gcloud storage rm {folder}/records/**", may_be_absent=True),
    ]


def _clean(cluster: Cluster) -> list[Command]:
    """Return the commands that delete our template and policy; they fail if a group uses them."""
    place = f"{cluster.name} --region={cluster.region} {cluster.project}"
    return [
        make(f"gcloud compute {kind} {verb} {place} {flag}", may_be_absent=True, owner=owner)
        for kind in ("instance-templates", "resource-policies")
        for verb, flag, owner in (
            ("describe", "--format=value(description)", cluster.label),
            ("delete", "--quiet", ""),
        )
    ]


def _create(job: Job) -> list[Command]:
    cluster = job.cluster
    slice_, name, region = cluster.slice, cluster.name, cluster.region
    resources = "https://www.googleapis.com/compute/v1/projects/"
    resources += f"{cluster.get('PROJECT')}/regions/{region}"
    network = f"network={cluster.get('NETWORK') or 'default'}"
    if subnet := cluster.get("SUBNETWORK"):
        # gcloud asks for the region of a bare name, --instance-template-region or not.
        network += f",subnet={subnet if '/' in subnet else f'{resources}/subnetworks/{subnet}'}"
    network += ",no-address" * cluster.is_internal
    policy = f"""gcloud compute resource-policies create workload-policy {name}
        --accelerator-topology={slice_.topology} --type=HIGH_THROUGHPUT
        --region={region} {cluster.project} --description={cluster.label}"""
    template = f"""gcloud compute instance-templates create {name}
        --instance-template-region={region} {cluster.project} --description={cluster.label}
        {_MODELS[cluster.get("PROVISIONING")]}
        --machine-type={slice_.generation.machine} --maintenance-policy=TERMINATE
        --image-project={IMAGES} --image-family={slice_.generation.image} --boot-disk-size=200GB
        --scopes=cloud-platform --labels={cluster.label} --network-interface={network}
        {cluster.flags(service_account="SERVICE_ACCOUNT")}
        --metadata=bert-jax-folder={_find_folder(cluster)}"""
    worker = LAUNCH / "worker"
    # The clone's path may have a comma; gcloud splits at what stands between ^ and ^ instead.
    scripts = f"startup-script={worker}/on_boot.sh;;shutdown-script={worker}/on_shutdown.sh"
    group = f"""--size=0 --target-size-policy-mode=bulk
        --template={resources}/instanceTemplates/{name}
        --workload-policy={resources}/resourcePolicies/{name}
        --default-action-on-vm-failure=do-nothing"""
    description = f"--description={cluster.label},workdir={job.workdir}"
    return [
        make(policy),
        make(template, f"--metadata-from-file=^;;^{scripts}"),
        _managed(cluster, "create", group, description),
        _managed(cluster, "resize", f"--size={slice_.hosts}"),
    ]


def look(job: Job, ask: Ask, now: float) -> Answers:
    """Ask for the state of the group and, where all machines run, for their records."""
    about_group, about_machines, about_errors, about_records = plan("look", job)
    said = ask(about_group)
    listed = said if said.code else ask(about_machines)
    if listed.is_absent:  # the group may vanish between the two questions
        return Answers(now, SliceSeen(decide.ABSENT))
    group, machines = read_json(said.out), read_json(listed.out)
    is_spot = job.cluster.get("PROVISIONING") == "spot"
    seen = None if listed.code else read_group(group, machines, job.cluster.slice.hosts, is_spot)
    if seen is None:
        return no_answer(now, listed)
    if seen.kind in (decide.QUEUED, decide.STARTING):
        errors = read_json(ask(about_errors).out)
        code, words = (dig(errors, 0, "error", key) for key in ("code", "message"))
        seen = dataclasses.replace(seen, words=f"{seen.words} {code}".strip())
        # If left, the group would keep trying, and train unsupervised once there is quota.
        if "QUOTA" in code and not seen.has_machines:
            seen = dataclasses.replace(seen, kind=decide.LOST, words=f"{code}: {words}")
    if seen.kind != decide.READY:
        return Answers(now, seen)
    records = ask(about_records)
    if records.code and not records.is_absent:  # the state of the machines is unknown
        return no_answer(now, records)
    workers, junk, _ = read_workers(records.out)
    # Records go stale after a final exit code, and once all machines have finished.
    is_over = all((worker.status, worker.code) == ("ended", 0) for worker in workers)
    young = [
        worker
        for worker in workers
        if is_over or now - worker.time < MAX_RECORD_SECS or worker.code in decide.FINAL_CODES
    ]
    error = records.words if records.code else ""
    return Answers(now, seen, error, workers=tuple(young), junk=junk)


def read_group(group: Any, machines: Any, hosts: int, is_spot: bool) -> SliceSeen | None:
    """Parse the answers about a group and its machines; None if they are not readable."""
    created = read_time(dig(group, "creationTimestamp"))
    if created is None or not isinstance(machines, list):
        return None
    by, _, rest = str(dig_any(group, "description")).partition("=")
    label, _, workdir = (rest if by == "launched_by" else "").partition(",workdir=")
    label, workdir = label[:MAX_TEXT], workdir[:MAX_TEXT]
    listed = [dig(machine, "instanceStatus") or "PENDING" for machine in machines]
    actions, states = {dig(machine, "currentAction") for machine in machines}, set(listed)
    has_machines = bool(_MACHINES & states)
    is_complete = states == {"RUNNING"} and actions == {"NONE"} and len(machines) >= hosts
    kinds = (
        (dig_any(group, "targetSize") == 0, decide.LOST),  # bulk mode shrinks to 0 or not at all
        (_REPAIRS & actions, decide.STARTING),
        ("DELETING" in actions, decide.DELETING),
        # Google restarts all but Spot machines once maintenance is over.
        (_LOST_STATES & states, decide.LOST if is_spot else decide.STARTING),
        (is_complete, decide.READY),
        (has_machines, decide.STARTING),
        (True, decide.QUEUED),
    )
    kind = next(kind for is_so, kind in kinds if is_so)
    words = ", ".join(f"{listed.count(state)} {state}" for state in sorted(states))
    return SliceSeen(kind, words[:MAX_TEXT], label, created, has_machines, hosts, workdir)
