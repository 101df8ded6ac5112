"""launch/pod.sh: what it gives to watch.sh, and a run from nothing to the end."""

import pytest

from tests.launch.pods import quick_pod
from tests.launch.scripts import commands, refusal, run
from tests.launch.tpu_api import TpuApi

WATCH = ("--poll_secs=0.05", "--tries=2")


@pytest.mark.long
def test_a_run_from_nothing_to_the_end_leaves_nothing_that_costs_money(tmp_path):
    api = TpuApi(2)
    with quick_pod(tmp_path, api) as pod:
        pod.plan.write_text("1 exit 0\n")
        flags = (*WATCH, f"--state_dir={pod.state}", f"--workdir={pod.workdir}", "--config.seed=3")
        script = pod.clone / "launch" / "pod.sh"
        ran = run(script, "configs/tiny.py", pod.cluster, *flags, **pod.environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    first, *events = ran.stdout.splitlines()
    assert f"watching my-tpu, which trains into {pod.workdir} and is deleted at the end" in first
    assert "training has come to its end" in events[-2]
    assert "deleted my-tpu" in events[-1]
    assert api.names == {}


def test_the_workdir_is_in_the_bucket_unless_it_is_given(cluster):
    option = cluster(BUCKET="gs://my-bucket/bert")
    flags = ("configs/base.py", "--revision=HEAD", "--config.seed=3")
    for given, workdir in (
        ((), "gs://my-bucket/bert/runs/my-tpu"),
        (("--workdir=/mnt/a",), "/mnt/a"),
    ):
        (train,) = (
            command[-1]
            for command in commands("pod.sh", option, *flags, *given)
            if "on_worker_train.sh .venv" in command[-1]
        )
        assert f"--config=configs/base.py --workdir={workdir} --config.seed=3" in train


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "CONFIG is missing"),
        (("a.py", "b.py"), "'b.py' is a second config beside 'a.py'"),
        (("--config=a.py",), "launch/pod.sh a.py"),
        (("a.py",), "BUCKET is empty"),
        (("a.py", "--workdir=runs/a"), "lies in REMOTE_DIR on a disk of the TPU VM"),
        (("a.py", "--workdir=/a", "--tries=no"), "--tries=no"),
    ],
)
def test_what_is_missing_is_refused_before_anything_costs_money(cluster, flags, words):
    assert words in refusal("pod.sh", "--dry-run", cluster(), *flags)


def test_help():
    ran = run("pod.sh", "--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: launch/pod.sh")
    assert "Not yet run against Google Cloud" in ran.stdout
