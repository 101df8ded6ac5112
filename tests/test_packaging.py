"""The wheel and the sdist: what is in them, and that the wheel works in an empty folder."""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_jax

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What a clone holds that a wheel is made from; build/ and egg-info are left out on purpose.
SOURCES = ("bert_jax", "data_pipeline", "configs", "launch", "setup.py", "pyproject.toml")
FILES = ("README.md", "LICENSE")
PINNED = [
    Requirement(line)
    for line in (ROOT / "requirements" / "ci.txt").read_text().splitlines()
    if not line.startswith("#")
]


def pip(*arguments: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def build_wheel(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Build a wheel without network."""
    flags = ["--no-index", "--no-build-isolation", "--no-deps", f"--wheel-dir={folder}"]
    pip("wheel", *flags, str(source))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> pathlib.Path:
    """A copy of what is built from."""
    tree = tmp_path_factory.mktemp("tree")
    for name in (*SOURCES, *FILES):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    return tree


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory) -> pathlib.Path:
    return build_wheel(tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("installed")
    pip("install", "--no-index", "--no-deps", f"--target={folder}", str(wheel))
    return folder


def run(installed: pathlib.Path, folder: pathlib.Path, *arguments: str) -> str:
    """Run a Python in an empty folder where bert_jax can only come from the wheel."""
    assert list(folder.iterdir()) == []
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(installed), "JAX_PLATFORMS": "cpu"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_holds_the_packages_the_configs_the_launch_scripts_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"bert_jax/py.typed", "data_pipeline/py.typed"}
    expected |= {
        str(path.relative_to(ROOT))
        for package in ("bert_jax", "data_pipeline")
        for path in (ROOT / package).rglob("*.py")
    }
    expected |= {
        f"bert_jax/{path.relative_to(ROOT)}"
        for moved in ("configs", "launch")
        for path in (ROOT / moved).rglob("*")
        if path.is_file() and path.suffix in (".py", ".sh", ".env")
    }
    assert expected <= names
    assert {"bert_jax/configs/large.py", "bert_jax/launch/train.sh"} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"bert_jax", "data_pipeline", f"bert_jax-{bert_jax.__version__}.dist-info"}


@pytest.mark.long
def test_the_sdist_makes_the_same_wheel(wheel, tree, tmp_path):
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", f"--outdir={tmp_path}"]
    subprocess.run([*command, str(tree)], capture_output=True, check=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    ours, same = (zipfile.ZipFile(path) for path in (build_wheel(sdist, tmp_path), wheel))
    assert {each.filename: each.CRC for each in ours.infolist()} == {
        each.filename: each.CRC for each in same.infolist()
    }


def test_training_finds_a_config_inside_the_wheel(installed, tmp_path):
    config = "--config=configs/large.py:recipe=lamb64k"
    said = run(installed, tmp_path, "-m", "bert_jax.train", config, "--print_config")
    assert "name: lamb" in said
    assert "hidden_size: 1024" in said


@pytest.mark.long  # that it finds its parts is seen above and below
def test_the_command_of_the_wheel_trains_in_another_folder(installed, tiny_store, tmp_path):
    flags = ["--config=configs/tiny.py", f"--config.data.store={tiny_store}", "--workdir=run"]
    flags += ["--config.model.num_hidden_layers=1"]
    flags += ["--config.phases[0].steps=3", "--config.phases[1].steps=2"]
    flags += ["--config.optim.warmup_steps=1", "--config.eval.examples=8"]
    command = str(installed / "bin" / "bert-jax")
    said = run(installed, tmp_path, command, "train", *flags)
    assert "resuming" not in said and "held-out at 5 " in said
    assert (tmp_path / "run" / "curves.png").is_file()


def test_the_code_and_the_commands_are_the_wheels(installed, tmp_path):
    said = run(installed, tmp_path, "-c", "import bert_jax; print(bert_jax.__file__)")
    assert said.strip() == str(installed / "bert_jax" / "__init__.py")
    assert "--input" in run(installed, tmp_path, "-m", "data_pipeline.build", "--help")
    script = "from bert_jax.launch.cloud.topologies import find_slice as f; print(f(*%r).price())"
    assert run(installed, tmp_path, "-c", script % (("v4:4x4x4", "", ""),)) == "3.22\n"
    for name in ("create", "setup", "train", "ssh", "pod"):
        script = installed / "bert_jax" / "launch" / f"{name}.sh"
        ran = subprocess.run([str(script), "--help"], capture_output=True, text=True)
        assert ran.returncode == 0
        assert f"usage: launch/{name}.sh" in ran.stdout


def test_every_pin_is_within_its_range_and_extras_exist(wheel):
    (folder,) = [path for path in zipfile.Path(wheel).iterdir() if path.name.endswith(".dist-info")]
    metadata = importlib.metadata.PathDistribution(folder)
    pins: dict[str, list[str]] = {}  # one for each kind of Python
    for pin in PINNED:
        (version,) = pin.specifier
        pins.setdefault(canonicalize_name(pin.name), []).append(version.version)
    for line in metadata.requires:
        wanted = Requirement(line)
        if wanted.marker and "extra" in str(wanted.marker):
            continue
        assert all(map(wanted.specifier.contains, pins[canonicalize_name(wanted.name)])), line
    extras = set(metadata.metadata.get_all("Provides-Extra"))
    assert {"tpu", "gpu", "gcs", "plan", "test", "dev"} <= extras
    assert pins.keys() & {"torch", "transformers"} == set()
