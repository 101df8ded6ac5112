"""launch/gke/xpk.sh: the command, and the manifest that xpk itself makes of it."""

import os
import shutil
import subprocess

import pytest
import yaml

from bert_jax import exit_codes
from tests.launch.gke.test_jobset_sh import FLAGS, IMAGE, MACHINES
from tests.launch.scripts import commands, refusal, run

PLACE = ["--cluster=my-cluster", "--project=my-project", "--zone=us-central2-b"]


def test_dry_run_prints_one_command(cluster):
    option = cluster(SPOT="true", COORDINATOR_PORT="8476", **IMAGE)
    assert commands("gke/xpk.sh", option, *FLAGS, "--x=a b") == [
        [
            *("xpk", "workload", "create", "--workload=my-tpu", *PLACE),
            *("--tpu-type=v5litepod-16", f"--docker-image={IMAGE['GKE_IMAGE']}"),
            *("--max-restarts=100", "--restart-on-exit-codes=1,86"),
            "--termination-grace-period-seconds=60",
            "--command=JAX_COORDINATOR_PORT=8476 exec python -u -m bert_jax.train --multihost"
            " --config=configs/base.py --workdir=gs://my-bucket/base '--x=a b'",
            "--spot",
        ]
    ]


def test_what_is_missing_is_named(cluster, tmp_path):
    assert "GKE_CLUSTER is empty" in refusal("gke/xpk.sh", "--dry-run", cluster(), *FLAGS)
    assert "--workdir=gs://" in refusal("gke/xpk.sh", cluster(**IMAGE), FLAGS[0])
    (tmp_path / "only").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "only" / name).symlink_to(shutil.which(name))
    said = refusal("gke/xpk.sh", cluster(**IMAGE), *FLAGS, PATH=str(tmp_path / "only"))
    assert "xpk is not on PATH; install it" in said
    assert run("gke/xpk.sh", "--dry-run", cluster(**IMAGE), *FLAGS).returncode == 0


needs_xpk = pytest.mark.skipif(shutil.which("xpk") is None, reason="needs xpk")


def manifest_of(command: list[str], folder) -> dict:
    """What xpk would send to the cluster for a command; it asks no server."""
    path = folder / "manifest.yaml"
    ran = subprocess.run(
        [*command, "--dry-run", "--skip-validation", f"--output-manifest-file={path}"],
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": str(folder)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return yaml.safe_load(path.read_text())


@needs_xpk
@pytest.mark.parametrize("kind", ["v5litepod-16", "v5p-128"])
def test_xpk_makes_the_same_slice_of_it(cluster, tmp_path, kind):
    option = cluster(ACCELERATOR_TYPE=kind, SPOT="true", **IMAGE)
    (command,) = commands("gke/xpk.sh", option, *FLAGS, "--x=it's a")
    made = manifest_of(command, tmp_path)
    accelerator, topology, hosts = MACHINES[kind]
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    assert job["parallelism"] == job["completions"] == hosts
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == accelerator
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    line = command[-2].removeprefix("--command=")
    assert f"({line}) & PID=$!" in container["command"][-1]

    assert made["spec"]["failurePolicy"]["maxRestarts"] == 100
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    anew = set(rule["onExitCodes"]["values"])
    ends = {exit_codes.FAILED, exit_codes.STUCK, 128 + 2, 128 + 6, 128 + 9, 128 + 15}
    assert ends <= anew
    assert not anew & set(exit_codes.FINAL)


@needs_xpk
def test_xpk_refuses_a_flag_that_it_does_not_know(cluster, tmp_path):
    (command,) = commands("gke/xpk.sh", cluster(**IMAGE), *FLAGS)
    with pytest.raises(AssertionError, match="unrecognized arguments: --tpu-kind"):
        manifest_of([*command, "--tpu-kind=v4"], tmp_path)
