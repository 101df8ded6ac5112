"""launch/wheelhouse.sh with stand-ins for pip, uv, curl and gcloud."""

import os
import sys

import pytest

from tests.launch.scripts import call, git, write_command

pytestmark = pytest.mark.slow

ARCHIVE = "cpython-3.12.1+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
URL = f"https://example.com/releases/download/20260101/{ARCHIVE.replace('+', '%2B')}"


@pytest.fixture
def run(cluster, clone, bucket, worker_tools, tmp_path):
    """A function that runs a script of a clone: pip, uv, curl and gcloud stay on this machine."""
    write_command(worker_tools / "curl", '[[ ${!#} == "$URL" ]] && echo an archive >"${*: -2:1}"')
    around = os.environ | {"HOME": str(tmp_path), "URL": URL}
    around["LAUNCH_PYTHON"] = sys.executable  # python3 is no Python

    def run(name, *flags, **changed):
        option = cluster(BUCKET="gs://my-bucket")
        return call(["bash", str(clone / "launch" / name), option, *flags], env=around | changed)

    clone = clone.rename(clone.with_name("my clone"))
    return run


def test_wheels_and_python_come_into_the_bucket_and_the_mark_last(
    run, bucket, worker_tools, tmp_path
):
    ran = run("wheelhouse.sh", f"--python={worker_tools / 'python3'}")
    assert ran.returncode == 0, ran.stderr
    assert f"launch/setup.sh --cluster={tmp_path / 'cluster.env'} --wheelhouse" in ran.stdout
    (folder,) = (bucket / "my-bucket" / "wheelhouse").iterdir()
    there = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert there == ["complete", f"python/20260101/{ARCHIVE}", "wheels/a-1-py3-none-any.whl"]
    assert (bucket / "calls").read_text().splitlines()[-1].startswith("storage cp ")
    asked = (tmp_path / "calls.log").read_text().splitlines()
    assert all("--require-hashes" in call for call in asked if " download " in call)
    asked = run("setup.sh", "--dry-run", "--wheelhouse").stdout
    assert asked.startswith(f"gcloud storage ls gs://my-bucket/wheelhouse/{folder.name}/complete ")
    assert git(tmp_path / "my clone", "status", "--porcelain") == ""


def test_a_download_that_fails_leaves_no_mark(run, bucket):
    assert run("wheelhouse.sh", URL=f"{URL}?").returncode != 0
    assert not (bucket / "my-bucket").exists()
