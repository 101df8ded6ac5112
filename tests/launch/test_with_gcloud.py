"""The scripts with the real gcloud, against a stand-in for Google Cloud, and a real training.

A worker is a folder of this machine; ssh and scp are commands that run there. Where a TPU VM's own
services would tell a process its number and where the others are, the Python of the workers that
train is told as under Slurm, which jax knows as well.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from tests.faults.runs import ROOT, TINY, environment, free_port, last_step, training
from tests.launch.conftest import write_worker
from tests.launch.scripts import (
    TRAIN_FLAGS,
    call,
    commit,
    git,
    make_clone,
    needs_gcloud,
    write_cluster,
    write_command,
)
from tests.launch.test_hosts import assert_same_run, wait_for_step
from tests.launch.tpu_api import TOKEN, TpuApi, log_in, serving

pytestmark = [pytest.mark.long, needs_gcloud]

WORKERS = 4
FLAGS = [*TINY[1:], "--config.phases[0].steps=120", "--config.checkpoint.every_steps=20"]
FLAGS += ["--config.log_every_steps=5"]
# In the place of a secret in the environment.
CANARY = "canary-4e1f"
_SSH = """\
address=${destination#*@}
home=$WORKERS/worker-${address##*.}
mkdir -p "$home"
cd "$home"
export HOME=$home HOSTNAME=${home##*/} PATH=$WORKER_PATH
"""


def write_ssh(folder: pathlib.Path) -> None:
    """Write ssh, scp and ssh-keygen: a worker is a folder of WORKERS, named by its address.

    WORKER_PATH is the PATH that a command has there.
    """
    find = "while (($#)) && [[ $1 != *@* ]]; do shift; done; destination=$1; shift"
    write_command(folder / "ssh", find, "[[ $1 != -- ]] || shift", _SSH, 'exec bash -c "$*"')
    find = "source=${*: -2:1} destination=${*: -1}"
    name = "name=${destination#*:} destination=${destination%%:*}"
    write_command(folder / "scp", find, name, _SSH, 'cp "$source" "$name"')
    find = "while (($#)) && [[ $1 != -f ]]; do shift; done; (($#)) || exit 0"
    key = 'echo private >"$2"; echo "ssh-rsa AAAA me@here" >"$2.pub"'
    write_command(folder / "ssh-keygen", find, key)


class Pod:
    """Hold a clone, the stand-in for the API and the workers, driven by the real gcloud."""

    def __init__(self, folder: pathlib.Path, api: TpuApi, address: str) -> None:
        self.api = api
        self.clone = make_clone(folder / "clone")
        self.workers = folder / "workers"
        self.cluster = write_cluster(folder / "cluster.env", PROVISIONING="spot")
        self.workers.mkdir()
        write_ssh(folder / "bin")
        write_worker(folder / "tools")
        (folder / "home").mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "WORKERS": str(self.workers),
            "WORKER_PATH": f"{folder / 'tools'}:{os.environ['PATH']}",
            "LIBTPU_LOCK": str(folder / "libtpu_lockfile"),
            "MY_API_KEY": CANARY,
            "HOME": str(folder / "home"),
            **log_in(folder, TPU=f"{address}/", COMPUTE=f"{address}/compute/v1/"),
        }
        api.on_loss = self.lose

    def run(self, script: str, *flags: str, code: int = 0, **changed: str):
        """Run a script of the clone, which must end with this code."""
        words = ["bash", str(self.clone / "launch" / script), self.cluster, *flags]
        ran = call(words, env=self.environment | changed)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran

    def lose(self) -> None:
        """Kill every process of the workers and remove their disks."""
        for pids in self.workers.glob("*/bert_jax/logs/train.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(pids.read_text().split()[0]), signal.SIGKILL)
        for worker in self.workers.glob("worker-*"):
            shutil.rmtree(worker, ignore_errors=True)


@pytest.fixture
def pod(tmp_path):
    api = TpuApi(WORKERS)
    with serving(api.answer) as address:
        pod = Pod(tmp_path, api, address)
        yield pod
        pod.lose()


def files_with(text, folder):
    """List the files that have a text, without the one that the token is read from."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != folder / "token"]
    found = [path for path in files if text.encode() in path.read_bytes()]
    return [str(path.relative_to(folder)) for path in found]


@pytest.mark.fault(20, "a secret in the environment and the token of gcloud, through all scripts")
def test_a_tpu_vm_is_made_set_up_trained_on_and_deleted(pod, tmp_path):
    flag = "--config.data.store=/mnt/my stores/a"
    made = pod.run("create.sh")
    method, path, asked = pod.api.requests[0]
    assert (method, path) == ("POST", "queuedResources")
    ready = pod.run("setup.sh")
    assert ready.stdout.count("ready: Python 3.12.0") == pod.api.workers
    head = git(pod.clone, "rev-parse", "HEAD")
    assert f"my-tpu has commit {head}" in ready.stdout
    assert git(pod.clone, "status", "--porcelain") == ""
    workers = [f"worker-{number}" for number in range(pod.api.workers)]
    for worker in workers:
        assert (pod.workers / worker / "bert_jax/.sent/commit").read_text() == f"{head}\n"
    trained = pod.run("train.sh", *TRAIN_FLAGS, flag, TRAIN_EXIT="86")
    assert f"launch/logs.sh {pod.cluster} --follow" in trained.stdout
    shown = pod.run("logs.sh", "--lines=2")
    said = f"trains: -u -m bert_jax.train --multihost {' '.join((*TRAIN_FLAGS, flag))}"
    lines = sorted(line for line in shown.stdout.splitlines() if "trains" in line)
    assert lines == [f"{worker}: {worker} {said}" for worker in workers]
    assert shown.stdout.count(" ended with exit code 86\n") == pod.api.workers
    gone = pod.run("delete.sh", "--yes")
    assert pod.api.requests[-1][:2] == ("DELETE", "queuedResources/my-tpu")
    assert pod.api.names == {}
    printed = "".join(ran.stdout + ran.stderr for ran in (made, ready, trained, shown, gone))
    assert asked["spot"] == {}
    (spec,) = asked["tpu"]["nodeSpec"]
    kind = (spec["node"]["acceleratorType"], spec["node"]["runtimeVersion"])
    assert (spec["nodeId"], *kind) == ("my-tpu", "v5litepod-8", "v2-alpha-tpuv5-lite")
    for secret in (CANARY, TOKEN):
        assert secret not in printed and secret not in str(pod.api.requests)
        assert files_with(secret, tmp_path) == []
    # The search would find it: gcloud's own log has every command of the workers, word for word.
    logs = files_with(TRAIN_FLAGS[1], tmp_path)
    assert any(name.startswith("gcloud/logs/") for name in logs)


@pytest.mark.fault(18, "no right to create, to look, to delete; a name that is absent")
def test_what_google_cloud_refuses_is_said_and_nothing_is_taken_for_done(pod):
    said = "Permission 'tpu.nodes.create' denied on 'my-project'"
    assert "my-tpu was not found" in pod.run("delete.sh", "--yes", code=1).stderr
    pod.api.refusals = [("POST", 403, said)]
    ran = pod.run("create.sh", "--wait", code=1)
    assert f"PERMISSION_DENIED: {said}" in ran.stderr
    assert "Requested" not in ran.stdout
    pod.run("create.sh")
    pod.api.refusals = [("GET", 403, "Permission 'tpu.queuedresources.get' denied")]
    said = pod.run("delete.sh", "--yes", code=1).stderr
    assert "may still cost money" in said and "tpu.queuedresources.get" in said
    pod.api.refusals = [("DELETE", 403, "Permission 'tpu.queuedresources.delete' denied")]
    assert "my-tpu may still cost money" in pod.run("delete.sh", "--yes", code=1).stdout
    assert list(pod.api.names) == ["my-tpu"]


def give_the_clone_what_trains(clone):
    for name in ("bert_jax", "data_pipeline", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, clone / name, dirs_exist_ok=True, ignore=ignored)
    commit(clone)


def write_trainer(path, python):
    """What the workers' Python comes to: this one, and the place of its worker."""
    write_command(
        path,
        "export SLURM_STEP_NODELIST=127.0.0.1 SLURM_LOCALID=0",
        # jax takes the port from the number of the job.
        f"export SLURM_JOB_ID={(free_port() - 61440) % 4096} SLURM_NTASKS={WORKERS}",
        "export SLURM_PROCID=${HOSTNAME##*-}",
        f'exec {python} "$@"',
    )


@pytest.mark.fault(
    18, "created, set up, trained on by 4 processes, taken away, made again, finished"
)
def test_a_pod_that_is_taken_away_ends_with_the_same_weights(pod, tmp_path, tiny_store):
    workdir, flags = tmp_path / "runs" / "a", [*FLAGS, f"--config.data.store={tiny_store}"]
    give_the_clone_what_trains(pod.clone)
    write_trainer(tmp_path / "trainer", sys.executable)
    script = ["bash", str(pod.clone / "launch" / "pod.sh"), "configs/tiny.py", pod.cluster]
    own = ["--poll_secs=0.5", f"--state_dir={tmp_path / 'state'}", f"--workdir={workdir}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    around = environment() | pod.environment | {"TRAINER": str(tmp_path / "trainer")}
    running = subprocess.Popen([*script, *own, *flags], env=around, **pipes)
    try:
        wait_for_step(workdir, 50, running)
        pod.api.preempt()
        at = last_step(workdir)
        said, _ = running.communicate(timeout=900)
    finally:
        running.kill()
    assert running.returncode == 0, said
    assert at < 120
    assert "the slice is lost (" in said
    assert said.count("started training") == 2
    assert "the slice is deleted" in said
    assert pod.api.names == {}
    made = [path for method, path, _ in pod.api.requests if method == "POST"]
    assert made.count("queuedResources") == 2
    assert files_with(TOKEN, tmp_path) == []
    alone = tmp_path / "never_taken_away"
    with training("--config=configs/tiny.py", *flags, workdir=alone, processes=WORKERS) as never:
        never.finish(secs=900)
    assert_same_run(workdir, alone)
