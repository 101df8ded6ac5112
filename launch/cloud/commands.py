"""Run the scripts of launch/: each `launch/NAME.sh` is an entry to the function of its name."""

import dataclasses
import functools
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from types import ModuleType

from . import compute_engine, decide, gke, queued
from .check import list_questions, run_checks
from .cluster import ROOT, read_arguments
from .decide import Rules
from .job import Job, check_config, find_commit, find_digest
from .queued import on_workers
from .run import Command, ask, check_login, make, run_all
from .text import escape, refuse
from .watch import Supervisor, list_own_commands

ROADS: dict[str, ModuleType] = {"queued": queued, "compute_engine": compute_engine, "gke": gke}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# The platforms whose wheels a worker (glibc 2.31 or newer) can use, newest first.
_PLATFORMS = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(31, 4, -1)]
_PLATFORMS += [f"--platform=manylinux{name}_x86_64" for name in ("2014", "2010", "1")]
# In a mirror of the downloads, uv looks for DATE/FILE.
_ARCHIVE = re.compile(
    r"https://[\w:/.%+-]+/download/"
    r"(\d+/[\w.%+-]+-x86_64-unknown-linux-gnu-install_only_stripped\.tar\.gz)"
)


def _find_road(given: Namespace) -> ModuleType:
    cluster, road = given.cluster, given.cluster.slice.road
    # GKE's page on flex-start: no v3 and v4.
    is_offered = road != "queued" and cluster.slice.name != "v4"
    if cluster.get("PROVISIONING") == "flex_start" and not is_offered:
        refuse(
            f"{cluster.path}: PROVISIONING=flex_start is for ROAD=compute_engine or gke without v4,"
            f" not for {cluster.slice.name} on {road}; take spot"
        )
    is_examined = "doctor" in given and given.doctor
    if road != "queued" and (is_examined or given.script in ("setup", "train", "ssh")):
        what = "--doctor" if is_examined else f"launch/{given.script}.sh"
        refuse(
            f"{what} is for ROAD=queued: on {road} machines set themselves up and train once "
            "launch/pod.sh has created them; gcloud compute ssh or kubectl exec reaches one"
        )
    return ROADS[road]


def _make_job(given: Namespace) -> Job:
    """Return the job of a commit; all but setup.sh name a config and a workdir."""
    cluster = given.cluster
    job = Job(cluster, tuple(given.rest), from_bucket=given.wheelhouse)
    if given.script != "setup":
        _need_flags(job)
        starts_itself, config = ROADS[cluster.slice.road].STARTS_ITSELF, job.find("config")
        if starts_itself and os.path.normpath(config).startswith(("/", "..")):
            refuse(
                f"--config={config} is no path from the clone's root, and the machines have files "
                "of the clone alone; name one, such as configs/base.py"
            )
        outlives = ("gs://",) if starts_itself else ("gs://", "/")
        if not job.workdir.startswith(outlives):
            refuse(
                f"--workdir={job.workdir} is deleted with the machines; give a folder in a bucket, "
                "such as gs://BUCKET/runs/a, or on queued one on a disk that outlives them, such as"
                " /mnt/runs/a"
            )
    if cluster.slice.road == "gke":
        if given.revision or given.wheelhouse:
            refuse(
                "on gke, pods have the commit and packages of GKE_IMAGE; remove --revision and"
                " --wheelhouse"
            )
    else:
        job = dataclasses.replace(job, commit=find_commit(given.revision or ""))
        if job.wheelhouse and not given.dry_run and ask(job.pack()[0]).code:
            refuse(f"{job.wheelhouse}/complete was not found; run launch/wheelhouse.sh first")
    if given.script == "setup":
        return job
    job = check_config(job)
    # A disk that all workers mount, or an image for pods, may have it; its name may have commas.
    mounted = () if cluster.slice.road == "compute_engine" else ("/",)
    stores = [] if job.store.startswith(mounted) else map(str.strip, job.store.split(","))
    if lost := next((store for store in stores if not store.startswith(("gs://", *mounted))), ""):
        refuse(
            f"config.data.store={lost} is on none of the machines, which have files of the clone "
            f"alone; gcloud storage cp --recursive {lost} gs://BUCKET/stores/, and name that"
        )
    return job


def _need_flags(job: Job) -> None:
    for name in ("config", "workdir"):
        if f"--{name}" in job.flags or not job.find(name):
            refuse(f"--{name}= is missing, such as --config=configs/base.py --workdir=gs://b/a")
    folder = job.workdir.removeprefix("gs://")
    if folder not in (job.workdir, plain := os.path.normpath(folder)):
        refuse(f"--workdir={job.workdir} is gs://{plain} to training; give that")
    if folder != job.workdir and set(folder) & set("*?["):
        refuse(f"--workdir={job.workdir} has one of *?[, a pattern to gcloud; give another name")
    if any(f.startswith("--print_config") and f != "--print_config=false" for f in job.flags):
        refuse("--print_config trains nothing, on a slice that costs money; remove it")
    own = ("--multihost=", "--num_processes", "--process_id")
    if alone := next((flag for flag in job.flags if flag.startswith(own)), ""):
        refuse(f"{alone} would replace what --multihost finds on each host; remove it")


def create(given: Namespace, road: ModuleType) -> int:
    """Request the slice TPU_NAME, labeled launched_by=LABEL.

    Without that label nothing deletes it. It costs money from its creation until launch/delete.sh,
    whether it trains or not. On compute_engine and gke it trains at once: add --config=FILE
    --workdir=gs://BUCKET/DIR.
    """
    cluster, job = given.cluster, Job(given.cluster)
    if road.STARTS_ITSELF:
        job = _make_job(given)
    elif given.rest:
        refuse(f"'{given.rest[0]}' is no option of launch/create.sh; see launch/create.sh --help")
    until = f"costs money until: {cluster.next_command('delete')}"
    if code := run_all(road.plan("create", job), given.dry_run):
        refuse(f"{cluster.name} may exist nonetheless; then it {until}", code)
    if given.dry_run:
        return run_all(road.plan("look", job), True) if given.wait else 0
    print(f"Requested {cluster.name}. It {until}")
    if not road.STARTS_ITSELF:
        print(f"Once it is ACTIVE, set it up: {cluster.next_command('setup')}")
    return _wait(road, job, given) if given.wait else 0


def _wait(road: ModuleType, job: Job, given: Namespace) -> int:
    limit, poll = given.wait, float(given.poll_secs)
    begin, former, failures = time.monotonic(), "", 0
    while True:
        answers = road.look(job, ask, time.time())
        state, waited = answers.slice.kind, time.monotonic() - begin
        if state != former:
            print(f"{given.cluster.name} is {state} after {waited / 60:.0f} min", flush=True)
        failures, former = failures + 1 if state == decide.UNKNOWN else 0, state
        if state == decide.READY:
            return 0
        is_over = state in (decide.LOST, decide.DELETING) or failures == 5
        if is_over or waited + poll > int(limit[:-1]) * _UNITS[limit[-1]]:
            until = f"it may cost money until {given.cluster.next_command('delete')}"
            why = answers.slice.words or answers.error or "no reason given"
            refuse(f"it is {state} after {waited:.0f} s ({why}); {until}", 1)
        time.sleep(poll)


def delete(given: Namespace, road: ModuleType) -> int:
    """Delete the slice TPU_NAME, running or not, with everything on its machines' disks.

    You confirm by typing its name. One without the label launched_by=LABEL is left alone.
    """
    cluster, job, is_foreign = given.cluster, Job(given.cluster), given.force_foreign
    commands = [*road.plan("delete", job), *road.plan("clean", job)]
    if given.dry_run:
        return run_all([*road.plan("look", job), *commands], True)
    if is_foreign or not given.yes:
        _confirm(cluster.name, "--force_foreign needs one" if is_foreign else "add --yes")
    answers = road.look(job, ask, time.time())
    listing = road.LISTING.format(place=cluster.place, project=cluster.project)
    if not answers.slice.exists:
        unseen = f"has an unknown state: {answers.error}" if answers.error else "was not found"
        refuse(f"{cluster.name} {unseen}; it may still cost money; {listing}", 1)
    if not is_foreign and answers.slice.label != cluster.get("LABEL"):
        refuse(
            f"{cluster.name} has the label launched_by='{answers.slice.label}', not "
            f"'{cluster.get('LABEL')}': nothing was deleted; set LABEL, or add --force_foreign"
        )
    code = run_all(commands)
    said = "may still cost money" if code else "is being deleted"
    print(f"{cluster.name} {said}; list what exists: {listing}")
    return code


def _confirm(name: str, otherwise: str) -> None:
    if not sys.stdin.isatty():
        refuse(f"the slice's name is read from a terminal, and there is none; {otherwise}")
    print(f"This deletes {name} and its disks. Type its name to confirm: ", end="", file=sys.stderr)
    answer = sys.stdin.readline().strip()
    if answer != name:
        refuse(f"'{answer}' is not {name}; nothing was deleted, and it still costs money")


def setup(given: Namespace, road: ModuleType) -> int:
    """Send a commit of the clone to all workers, with Python 3.12 and the pinned packages.

    It is unpacked in REMOTE_DIR; REMOTE_PYTHON gets the packages of requirements/tpu.txt, each
    checked against its hash. Workers need the internet, but for --wheelhouse. One that trains is
    left unchanged.
    """
    job = _make_job(given)
    code = run_all(road.plan("set_up", job), given.dry_run)
    if not code and not given.dry_run:
        train_command = given.cluster.next_command("train", "--config=FILE", "--workdir=DIR")
        print(f"{given.cluster.name} has commit {job.commit}. Next: {train_command}")
    return code


def train(given: Namespace, road: ModuleType) -> int:
    """Start `python -m bert_jax.train --multihost` with these flags on all workers, and return.

    Output goes to REMOTE_DIR/logs/train.log, copied to BUCKET/logs/TPU_NAME. Nothing is started
    if a worker is already training, or if the config, resolved here first (by BERT_JAX_PYTHON), has
    a mistake. The same command resumes. Put no secret into it: gcloud logs it on this machine.
    """
    job = Job(given.cluster, tuple(given.rest))
    if given.stop:
        if given.rest:
            refuse(f"--stop takes no flags of training, but there is '{given.rest[0]}'; remove it")
        return run_all(road.plan("stop", job), given.dry_run)
    _need_flags(job)
    check_config(job)
    kinds = [*["examine"] * given.doctor, "start"]
    commands = [command for kind in kinds for command in road.plan(kind, job)]
    if code := run_all(commands, given.dry_run):
        stop = given.cluster.next_command("train", "--stop")
        refuse(f"{given.cluster.name} may train on some workers only; stop: {stop}", code)
    if not given.dry_run:
        print(f"It trains. Its output: {given.cluster.next_command('logs', '--follow')}")
    return 0


def logs(given: Namespace, road: ModuleType) -> int:
    """Show the end of each worker's log; on compute_engine its newest copy in the bucket."""
    cluster, worker = given.cluster, given.worker or "all"
    lines, follow = int(given.lines), given.follow
    if road is gke or (road is queued and not given.bucket):
        return run_all([road.show_log(cluster, worker, lines, follow)], given.dry_run)
    if road is compute_engine and worker != "all":
        refuse(f"--worker={worker} is no machine of a group, which have no numbers; remove it")
    if follow:
        refuse("--follow does not work with the copies in the bucket; remove it")
    return _show_copies(given, worker, lines)


def _show_copies(given: Namespace, worker: str, lines: int) -> int:
    """Show the newest copy: each is WORKER-TIME.log, and a worker's name ends with its number."""
    cluster = given.cluster
    cluster.need("BUCKET", "so no log was copied")
    folder = cluster.logs
    listing = make(f"gcloud storage ls --long {folder}/*.log {cluster.project}")
    cat = "gcloud storage cat"
    if given.dry_run:
        return run_all([listing, make(f"{cat} {folder}/NEWEST.log {cluster.project}")], True)
    said = ask(listing)
    # Size, time of the last copy, address; names that training would not give are skipped.
    rows = [row for row in map(str.split, said.out.split("\n")) if len(row) == 3]
    found = sorted((at, address, size) for size, at, address in rows if escape(address) == address)
    for at, address, size in found:
        print(f"{size:>10}  {escape(at)}  {address}")
    if worker != "all":
        found = [row for row in found if row[1].rpartition("-")[0].endswith(f"-{worker}")]
    if not found:
        refuse(f"{folder} has no log of worker {worker}: {said.words}", said.code or 1)
    print(f"\n{found[-1][1]}")
    said = ask(make(f"{cat} {found[-1][1]} {cluster.project}"))
    for line in said.out.removesuffix("\n").split("\n")[-lines:]:
        print(escape(line))
    return said.code


def ssh(given: Namespace, road: ModuleType) -> int:
    """Open a shell on a worker, or run COMMAND, one shell word, in its home folder.

    It is recorded in gcloud's log and in process lists: put no secret into it. Output is not
    escaped.
    """
    worker = given.worker or "0"
    if len(given.rest) > 1:
        whole = given.cluster.next_command("ssh", f"--worker={worker}", " ".join(given.rest))
        refuse(f"there are two commands; quote them: {whole}")
    remote = "".join(given.rest)
    if worker == "all" and not remote:
        refuse("a shell opens on one worker; try --worker=0, or add a command to --worker=all")
    command = on_workers(given.cluster, worker, remote)
    return run_all([command], True) if given.dry_run else subprocess.call(command.words)


def check(given: Namespace, road: ModuleType) -> int:
    """Say what a run lacks, before anything costs money.

    Asks for login, project, APIs, image, buckets and store, and prints the command that fixes what
    is missing. launch/pod.sh and launch/watch.sh do the same before they create a slice.
    """
    job = Job(given.cluster, tuple(given.rest))
    if job.find("config"):
        job = check_config(job)
    road.plan("create", job)  # refuses a setting that is missing
    if given.dry_run:
        return run_all(list_questions(job), True)
    return 0 if run_checks(job, ask) else 2


def wheelhouse(given: Namespace, road: ModuleType) -> int:
    """Copy to BUCKET/wheelhouse/DIGEST what workers without internet install.

    Python 3.12 and the packages of requirements/tpu.txt and uv.txt, each checked against its hash:
    about 1 GB, once for all commits with the same packages. This machine needs the internet, git
    and curl.
    """
    cluster, python, is_dry_run = given.cluster, given.python, given.dry_run
    bucket = cluster.need("BUCKET", "and the packages go there")
    project, commit = cluster.project, find_commit(given.revision or "")
    digest = find_digest(commit)
    folder, house = f"{ROOT}/build/wheelhouse/{digest}", f"{bucket}/wheelhouse/{digest}"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if not is_dry_run and (ask(Command([*pip, "--version"])).code or not shutil.which("curl")):
        refuse(f"--python={python} has no pip, or curl is not on PATH; try .venv/bin/python")
    safe = ["--quiet", "--no-deps", "--require-hashes"]
    wheels = [*pip, "download", *safe, "--implementation=cp"]
    tpu, uv = (f"--requirement={folder}/requirements/{name}.txt" for name in ("tpu", "uv"))
    into = [*_PLATFORMS, f"--dest={folder}/wheels"]
    install = [*pip, "install", "--upgrade", *safe, "--only-binary=:all:"]
    archive = ["archive", f"--output={folder}/requirements.tar", commit, "requirements"]
    commands = [
        make("mkdir -p", f"{folder}/wheels"),
        make("git -C", str(ROOT), *archive),
        make("tar -xf", f"{folder}/requirements.tar", "-C", folder),
        Command([*wheels, "--prefer-binary", "--python-version=3.12", *into, tpu]),
        Command([*wheels, "--only-binary=:all:", "--python-version=3.10", *into, uv]),
        Command([*install, f"--target={folder}/uv", uv]),
    ]
    if code := run_all(commands, is_dry_run):
        return code
    sync, complete = "gcloud storage rsync --recursive", f"{folder}/requirements/tpu.txt"
    commands = [
        *_fetch_python(folder, is_dry_run),
        *(make(sync, f"{folder}/{n}", f"{house}/{n}", project) for n in ("wheels", "python")),
        # The last file tells the workers that nothing is missing.
        make("gcloud storage cp", complete, f"{house}/complete", project),
    ]
    code = run_all(commands, is_dry_run)
    if not code and not is_dry_run:
        print(f"Ready: {cluster.next_command('setup', '--wheelhouse')}")
    return code


def _fetch_python(folder: str, is_dry_run: bool) -> list[Command]:
    """Return the download of the Python that this uv names; uv on the worker checks its hash."""
    url, name = "URL", "FILE"
    flags = ["--only-downloads", "--all-platforms", "--all-arches", "--output-format=json"]
    listing = Command([f"{folder}/uv/bin/uv", "python", "list", "3.12", *flags])
    if is_dry_run:
        listing.print()
    else:
        if not (found := _ARCHIVE.search(ask(listing).out)):
            refuse("uv names no Python 3.12 for x86 Linux at an address that ends in DATE/FILE")
        url, name = found[0], found[1].replace("%2B", "+")
    path = f"{folder}/python/{name}"
    curl = "curl --fail --silent --show-error --location --output"
    return [make("mkdir -p", path.rpartition("/")[0]), make(curl, path, url)]


def watch(given: Namespace, road: ModuleType) -> int:
    """Do what launch/pod.sh does for a config and a workdir, but keep the slice.

    Exit code: launch/pod.sh's.
    """
    cluster, job = given.cluster, _make_job(given)
    price = float(given.price) if given.price else cluster.slice.price()
    if given.max_usd and price is None:
        refuse(f"--max_usd needs a price, and none of {cluster.slice.name} is known; add --price=")
    road.plan("create", job)  # refuses a setting that is missing
    if given.dry_run:
        steps = {"check": list_questions(job), "supervise": list_own_commands(job)}
        examine = "examine " * given.doctor
        kinds = f"create look set_up {examine}start stacks last_words stop delete clean".split()
        for kind, commands in (steps | {kind: road.plan(kind, job) for kind in kinds}).items():
            print(f"# {kind}\n" * bool(commands), end="")
            run_all(commands, True)
        return 0
    ask_here = gke.pin_context(ask) if road is gke else ask
    if not run_checks(job, ask_here):
        refuse("something is missing, see above; nothing was created")
    rules = Rules(
        workdir=job.workdir,
        label=cluster.get("LABEL"),
        poll_secs=float(given.poll_secs),
        hung_secs=float(given.hung_secs),
        max_tries=int(given.tries),
        starts_itself=road.STARTS_ITSELF,
        is_examined=given.doctor,
        is_deleted_at_end=given.delete_at_end,
        usd_per_hour=None if price is None else price * cluster.slice.chips,
        max_usd=float(given.max_usd) if given.max_usd else None,
    )
    # Slices of one name on two roads are two slices.
    name = f"{cluster.get('PROJECT').replace(':', '.')}.{cluster.get('ZONE')}.{cluster.name}"
    name += f".{cluster.slice.road}"
    chosen = os.path.expanduser(given.state_dir or f"~/.local/state/bert_jax/{name}")
    if chosen.startswith("~"):
        refuse(f"--state_dir={chosen} names a user who is not known here; give the folder's path")
    folder = pathlib.Path(chosen)
    supervisor = Supervisor(road, job, rules, folder, ask_here)
    ending = " and is deleted at the end" * given.delete_at_end
    words = f"trains into {job.workdir}{ending}; commit {job.commit or 'of the image'}"
    words += ", unless the slice exists: it keeps what it has" * road.STARTS_ITSELF
    supervisor.say(f"{words}; {rules.max_tries} tries; events: {folder}/events.log")
    return supervisor.run()


def pod(given: Namespace, road: ModuleType) -> int:
    """Train a config from start to end on a slice that is created for it and deleted at the end.

    Replaces a slice that was preempted or lost, restarts a run that failed or is silent. The config
    is resolved here first. --workdir=DIR is a folder in a bucket, or on a disk that outlives the
    slice; without it the run trains into BUCKET/runs/TPU_NAME. The supervisor needs a machine that
    stays on; if that stops, training continues, and the same command resumes. It also restarts what
    launch/train.sh --stop has stopped: end it first. Exit code: 0 once training has finished; 2 or
    3 as soon as a worker ends with it; 1 if it gives up; 130 after a signal.
    """
    configs = [word for word in given.rest if word[:1] != "-" or word.startswith("--config=")]
    if len(configs) != 1 or configs[0].startswith("-"):
        refuse(f"one CONFIG is named, as in launch/pod.sh configs/base.py, not {configs}")
    given.rest.remove(configs[0])
    if not Job(given.cluster, tuple(given.rest)).workdir:
        bucket = given.cluster.need("BUCKET", "and --workdir is not given")
        given.rest.insert(0, f"--workdir={bucket}/runs/{given.cluster.name}")
    given.rest.insert(0, f"--config={configs[0]}")
    given.delete_at_end = True
    return watch(given, road)


_TRAINING = "--config=FILE --workdir=DIR [TRAIN_FLAG ...]"
_SUPERVISION = "revision wheelhouse doctor poll_secs hung_secs tries price max_usd state_dir"
# The function of a script -> its other arguments, and its flags.
_ARGUMENTS: dict[Callable[[Namespace, ModuleType], int], tuple[str, str]] = {
    check: ("[TRAIN_FLAG ...]", ""),
    create: ("[TRAIN_FLAG ...]", "wait poll_secs revision wheelhouse"),
    delete: ("", "yes force_foreign"),
    setup: ("", "revision wheelhouse"),
    train: (_TRAINING, "doctor stop"),
    logs: ("", "worker lines follow bucket"),
    ssh: ("['COMMAND']", "worker"),
    wheelhouse: ("", "revision python"),
    watch: (_TRAINING, f"{_SUPERVISION} delete_at_end"),
    pod: ("CONFIG [TRAIN_FLAG ...]", _SUPERVISION),
}


def _start(function: Callable[[Namespace, ModuleType], int], arguments: Sequence[str]) -> int:
    words = inspect.getdoc(function) or ""
    given = read_arguments(function.__name__, arguments, *_ARGUMENTS[function], words)
    road = _find_road(given)
    try:
        if not given.dry_run:
            check_login()
        return function(given, road)
    except KeyboardInterrupt:
        return 130


COMMANDS = {function.__name__: functools.partial(_start, function) for function in _ARGUMENTS}
