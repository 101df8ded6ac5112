"""launch/wheelhouse.sh with stand-ins; a worker without internet that installs with the real uv."""

import hashlib
import os
import pathlib
import shutil
import sys
import zipfile

import pytest

from tests.launch.pods import run_on
from tests.launch.scripts import commit, git, run, write_command

pytestmark = pytest.mark.slow

UV = pathlib.Path(sys.executable).with_name("uv")
ARCHIVE = "cpython-3.12.1+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
URL = f"https://example.com/releases/download/20260101/{ARCHIVE.replace('+', '%2B')}"
PIP = """\
echo "$*" >>"$CLOUD/pip.calls"
for word in "$@"; do
    case $word in
        --dest=*) mkdir -p "${word#*=}" && touch "${word#*=}/a-1-py3-none-any.whl" ;;
        --target=*) mkdir -p "${word#*=}/bin" && cp "$UV_STAND_IN" "${word#*=}/bin/uv" ;;
    esac
done
"""


@pytest.fixture
def laptop(bucket, tmp_path):
    """The environment of wheelhouse.sh: pip, uv, curl and gcloud that stay on this machine."""
    tools = tmp_path / "laptop tools"
    write_command(tools / "python3", PIP)
    write_command(tools / "curl", '[[ ${!#} == "$URL" ]] && echo an archive >"${*: -2:1}"')
    write_command(tmp_path / "uv", 'echo "[{\\"url\\":\\"$URL\\"}]"')
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "LAUNCH_PYTHON": sys.executable,  # its python3 is no Python
        "UV_STAND_IN": str(tmp_path / "uv"),
        "URL": URL,
        "PYTHON": str(tools / "python3"),
    }


def test_wheels_and_python_come_into_the_bucket_and_the_mark_last(cluster, clone, bucket, laptop):
    option, clone = cluster(BUCKET="gs://my-bucket"), clone.rename(clone.with_name("my clone"))
    own = [option, f"--python={laptop['PYTHON']}"]
    ran = run(clone / "launch" / "wheelhouse.sh", *own, **laptop)
    assert ran.returncode == 0, ran.stderr
    assert f"launch/setup.sh {option} --wheelhouse" in ran.stdout
    (folder,) = (bucket / "my-bucket" / "wheelhouse").iterdir()
    there = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert there == ["complete", f"python/20260101/{ARCHIVE}", "wheels/a-1-py3-none-any.whl"]
    assert (bucket / "calls").read_text().splitlines()[-1].startswith("storage cp ")
    asked = (bucket / "pip.calls").read_text().splitlines()
    assert all("--require-hashes" in call for call in asked if " download " in call)
    asked = run(clone / "launch" / "setup.sh", "--dry-run", option, "--wheelhouse").stdout
    assert asked.startswith(f"gcloud storage ls gs://my-bucket/wheelhouse/{folder.name}/complete ")
    assert git(clone, "status", "--porcelain") == ""


def test_a_download_that_fails_leaves_no_mark(cluster, clone, bucket, laptop):
    laptop |= {"URL": URL + "?"}
    ran = run(clone / "launch" / "wheelhouse.sh", cluster(BUCKET="gs://my-bucket"), **laptop)
    assert ran.returncode != 0
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
def set_up(clone, bucket, tmp_path):
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
    tools = tmp_path / "worker_tools"
    # pip as a stand-in: what it would unpack is the real uv.
    uv = f'[[ "$*" != *--target* ]] || {{ mkdir -p .uv/bin && ln -s {UV} .uv/bin/uv; }}'
    write_command(tools / "python3", 'echo "$*" >>"$HOME/pip.calls"', uv)
    environment = {
        "PATH": f"{tools}:{sys.base_prefix}/bin:{os.environ['PATH']}",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }

    def run(house="gs://my-bucket/house"):
        git(clone, "archive", "--format=tar.gz", f"--output={home / 'sent.tar.gz'}", "HEAD")
        words = f"sent.tar.gz HEAD bert_jax .venv/bin/python {house}"
        return run_on(home, f"bash {script} {words}", **environment)

    return run


JAX = {"jax.py": "__version__ = '1 from the bucket'\n"}


@pytest.mark.skipif(not UV.exists(), reason="needs uv")
def test_a_worker_without_internet_installs_from_the_bucket(set_up, bucket, tmp_path):
    ran = set_up()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(", jax 1 from the bucket\n")
    assert "--no-index --find-links=" in (tmp_path / "worker-0" / "pip.calls").read_text()

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
