"""A real training of four processes on a pod that is taken away in the middle: pod.sh, real gcloud.

A worker is a folder of this machine. Where a TPU VM's own services would tell a process its number
and where the others are, the workers' Python is told as under Slurm, which jax knows as well.
"""

import shutil
import subprocess
import sys

import pytest

from tests.faults.runs import ROOT, TINY, environment, free_port, last_step, training
from tests.launch.pods import TOKEN, pod_with_gcloud
from tests.launch.scripts import commit, needs_gcloud, write_command
from tests.launch.test_hosts import assert_same_run, wait_for_step
from tests.launch.tpu_api import TpuApi

pytestmark = pytest.mark.long

WORKERS = 4
FLAGS = [*TINY[1:], "--config.phases[0].steps=120", "--config.checkpoint.every_steps=20"]
FLAGS += ["--config.log_every_steps=5"]


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


@needs_gcloud
@pytest.mark.fault(
    18, "created, set up, trained on by 4 processes, taken away, made again, finished"
)
def test_a_pod_that_is_taken_away_ends_with_the_same_weights(tmp_path, tiny_store):
    api = TpuApi(WORKERS)
    flags = [*FLAGS, f"--config.data.store={tiny_store}"]
    with pod_with_gcloud(tmp_path, api) as pod:
        give_the_clone_what_trains(pod.clone)
        write_trainer(tmp_path / "trainer", sys.executable)
        script = ["bash", str(pod.clone / "launch" / "pod.sh"), "configs/tiny.py", pod.cluster]
        own = ["--poll_secs=0.5", f"--state_dir={pod.state}", f"--workdir={pod.workdir}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        around = environment() | pod.environment
        running = subprocess.Popen([*script, *own, *flags], env=around, **pipes)
        try:
            wait_for_step(pod.workdir, 50, running)
            api.preempt()
            at = last_step(pod.workdir)
            said, _ = running.communicate(timeout=900)
        finally:
            running.kill()
        assert running.returncode == 0, said
        assert at < 120
        assert "the slice is lost (" in said
        assert said.count("started training") == 2
        assert "the slice is deleted" in said
        assert api.names == {}
        made = [path for method, path, _ in api.requests if method == "POST"]
        assert made.count("queuedResources") == 2
        written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "token"]
        assert [path for path in written if TOKEN.encode() in path.read_bytes()] == []
    alone = tmp_path / "never_taken_away"
    with training("--config=configs/tiny.py", *flags, workdir=alone, processes=WORKERS) as never:
        never.finish()
    assert_same_run(pod.workdir, alone)
