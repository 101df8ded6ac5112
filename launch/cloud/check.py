"""Check before anything costs money what a run needs: project, APIs, image, buckets, store."""

import dataclasses
import re
from collections.abc import Iterator

from .job import Job
from .run import CONTEXT, LOGINS, Ask, Command, make
from .text import escape

_APIS = {"queued": "tpu", "compute_engine": "compute", "gke": "container"}
JOBSET = "https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml"


@dataclasses.dataclass(frozen=True)
class Check:
    """Hold a question, the fix, the pattern of a right answer, and the fix for a wrong region."""

    name: str
    question: Command
    remedy: str
    pattern: str = r"\S"
    relocation: str = ""


def list_checks(job: Job) -> Iterator[Check]:
    """Yield the checks for the ROAD of a job, in the order in which to fix them."""
    cluster, road = job.cluster, job.cluster.slice.road
    project, region = cluster.project, cluster.region
    api = f"{_APIS[road]}.googleapis.com"
    question = f"gcloud projects describe {cluster.get('PROJECT')} --format=value(projectId)"
    yield Check("project", make(question), "gcloud projects list")
    question = f"gcloud services list --enabled {project} --format=value(config.name)"
    remedy = f"gcloud services enable {api} {project}"
    yield Check(api, make(question), remedy, f"(?m)^{api}$")
    if road == "compute_engine":
        question = "gcloud compute instance-groups managed create --help"
        remedy = "gcloud components update"
        yield Check("gcloud of 2026", make(question), remedy, "target-size-policy-mode")
    if road == "gke":
        question = "kubectl get crd jobsets.jobset.x-k8s.io --output=json"
        remedy = f"kubectl apply --server-side --filename={JOBSET}"
        yield Check("JobSet 0.11 or later", make(question), remedy, "MessagePatterns")
    if road == "gke" and (image := cluster.get("GKE_IMAGE")):
        question = f"gcloud artifacts docker images describe {image} --format=json(image_summary)"
        yield Check(image, make(question), f"docker push {image}")
    # The multi-region US, EU or ASIA around the region is near. A dual-region passes, as its name
    # does not say which two regions it has.
    around = region.partition("-")[0].replace("europe", "eu")
    near = f'(?i)"location": "({region}|{around})"|"location_type": "dual'
    ours, runs = ("/".join(path.split("/")[:3]) for path in (cluster.bucket, job.workdir))
    for name in dict.fromkeys(name for name in (ours, runs) if name.startswith("gs://")):
        describe = make("gcloud storage buckets describe", name, "--format=json")
        remedy = f"gcloud storage buckets create {name} --location={region} {project}"
        if name == ours:
            move = f"gcloud storage buckets relocate {name} --location={region} {project}"
            yield Check(f"{name} in {region}", describe, remedy, near, move)
        else:  # a workdir may be in another region
            yield Check(name, describe, remedy)
    for address in (job.store or job.find("config.data.store")).split(","):
        if (store := address.strip().rstrip("/")).startswith("gs://"):
            command = make("gcloud storage ls", f"{store}/manifest.json")
            remedy = "gcloud storage cp --recursive stores/{2} {0}/".format(*store.rpartition("/"))
            yield Check(store, command, remedy)


def list_questions(job: Job) -> list[Command]:
    """Return the questions of check.sh, in their order."""
    context = [CONTEXT] * (job.cluster.slice.road == "gke")
    return [*LOGINS, *context, *(check.question for check in list_checks(job))]


def run_checks(job: Job, ask: Ask) -> bool:
    """Print what is missing, with the command that fixes it; return whether all is there.

    What cannot be checked is printed as a note: chip quotas, whose names are not published.
    """
    is_fine = True
    for check in list_checks(job):
        said = ask(check.question)
        if said.code == 0 and re.search(check.pattern, said.out):
            continue
        is_missing = said.code == 0 or said.is_absent
        is_fine &= not is_missing
        remedy = check.remedy if said.code else check.relocation or check.remedy
        words = f"missing: {check.name}; {remedy}"
        print(escape(words if is_missing else f"not known: {check.name} ({said.words})"))
    service = "tpu" if job.cluster.slice.road == "queued" else "compute"
    quota = f"gcloud beta quotas info list --service={service}.googleapis.com"
    print(f"not known: quota; {quota} {job.cluster.project}")
    return is_fine
