"""launch/wheelhouse.sh with stand-ins; a worker without internet that installs with the real uv."""

import hashlib
import os
import pathlib
import shutil
import sys
import zipfile

import pytest

from tests.launch.scripts import UV, call, commit, git, needs_uv, run_on, write_command

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


def write_wheel(folder: pathlib.Path, name: str, **files: str) -> str:
    """Write NAME-1 as a wheel; gives its line of requirements, with its hash."""
    info = f"{name}-1.dist-info"
    files |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
        record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
        wheel.writestr(f"{info}/RECORD", record)
    return f"{name}==1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def set_up(clone, bucket, worker_tools, tmp_path):
    """A function that sets up a worker with the real uv; a folder stands for the bucket."""
    home = tmp_path / "worker-0"
    home.mkdir()
    line = write_wheel(bucket / "my-bucket/house/wheels", "jax", **JAX)
    (clone / "requirements" / "tpu.txt").write_text(line)
    # This test's own Python stands for 3.12, a backend that builds nothing for setuptools.
    script = clone / "launch" / "worker" / "on_worker_setup.sh"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script.write_text(script.read_text().replace("VERSION=3.12", f"VERSION={version}"))
    write_wheel(clone / "built", "bert_jax", **{"bert_jax/train.py": "import jax\n"})
    (clone / "backend.py").write_text(
        "import shutil\n\n\ndef build_editable(folder, *_):\n"
        "    shutil.copy('built/bert_jax-1-py3-none-any.whl', folder)\n"
        "    return 'bert_jax-1-py3-none-any.whl'\n"
    )
    (clone / "pyproject.toml").write_text(
        "[project]\nname = 'bert_jax'\nversion = '1'\n"
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    commit(clone)
    around = {"REAL_UV": str(UV), "UV_CACHE_DIR": str(tmp_path / "cache")}
    around["PATH"] = f"{worker_tools}:{sys.base_prefix}/bin:{os.environ['PATH']}"

    def run(house="gs://my-bucket/house"):
        git(clone, "archive", "--format=tar.gz", f"--output={home / 'sent.tar.gz'}", "HEAD")
        words = f"sent.tar.gz HEAD bert_jax .venv/bin/python {house}"
        return run_on(home, f"bash {script} {words}", **around)

    return run


JAX = {"jax.py": "__version__ = '1 from the bucket'\n"}


@needs_uv
def test_a_worker_without_internet_installs_from_the_bucket(set_up, bucket, tmp_path):
    ran = set_up()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(", jax 1 from the bucket\n")
    assert "--no-index --find-links=" in (tmp_path / "worker-0" / "calls.log").read_text()

    # One other byte in a package, under the same name, is not installed.
    elsewhere = {"jax.py": "__version__ = '1 from elsewhere'\n"}
    write_wheel(bucket / "my-bucket/house/wheels", "jax", **elsewhere)
    shutil.rmtree(tmp_path / "worker-0" / "bert_jax" / ".venv")
    shutil.rmtree(tmp_path / "cache")
    ran = set_up()
    assert ran.returncode != 0
    assert "Hash mismatch" in ran.stderr
    assert "worker-0: error: setup failed at: .uv/bin/uv pip sync" in ran.stderr

    ran = set_up("gs://my-bucket/absent")
    assert ran.returncode == 2
    assert "worker-0: error: gs://my-bucket/absent could not be fetched" in ran.stderr
    assert "gs://my-bucket/absent is not there" in ran.stderr
