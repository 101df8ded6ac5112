"""What workers and images install: hashes, tested versions, and the Dockerfile that does so."""

import json
import os
import re
import sys

import pytest
from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch.cloud import gke
from tests.launch.scripts import LAUNCH, UV, call, git, needs_uv

pytestmark = pytest.mark.slow

# Target of the Dockerfile: its packages, and what they have for its devices alone.
TARGETS = {"cpu": ("cpu.txt", None), "cuda": ("gpu.txt", "jax-cuda13-plugin")}
TARGETS["tpu"] = ("tpu.txt", "libtpu")
ENTRY = ["python", "-m", "bert_jax"]
FOLDER = LAUNCH.parent / "requirements"
ON_A_WORKER = {
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
}


def lines(name: str) -> list[str]:
    """One line a package, hashes and all."""
    text = (FOLDER / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def versions(name: str) -> dict[str, str]:
    """Package -> the version that a worker gets."""
    found = {}
    for line in lines(name):
        pin = Requirement(line.partition("--hash")[0])
        if pin.marker is None or pin.marker.evaluate(ON_A_WORKER):
            (version,) = pin.specifier
            assert version.operator == "=="
            found[canonicalize_name(pin.name)] = version.version
    return found


@pytest.mark.parametrize("name", ["cpu.txt", "gpu.txt", "tpu.txt", "uv.txt"])
def test_every_package_has_a_hash_and_the_version_that_was_tested(name):
    for line in lines(name):
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", line), line
    tested = versions("ci.txt")
    other = {p: v for p, v in versions(name).items() if tested.get(p, v) != v}
    assert set(other) <= ({"libtpu"} if name == "tpu.txt" else set())


def test_a_worker_gets_what_training_needs_for_its_python():
    pins = versions("tpu.txt")
    assert {"jax", "jaxlib", "libtpu", "flax", "optax", "setuptools"} <= set(pins)
    assert set(pins) & {"torch", "transformers", "pytest"} == set()
    script = (LAUNCH / "worker" / "on_worker_setup.sh").read_text()
    (version,) = re.findall(r"^readonly VERSION=(.+)$", script, re.MULTILINE)
    assert ON_A_WORKER["python_version"] == version
    makefile = (LAUNCH.parent / "Makefile").read_text()
    assert f"--generate-hashes --python-version {version} " in makefile


def stages() -> dict[str, list[tuple[str, ...]]]:
    """Read each target of the Dockerfile, its base first: name -> (instruction, words)."""
    with (LAUNCH / "Dockerfile").open("rb") as file:
        structure = DockerfileParser(fileobj=file).structure
    made: dict[str, list[tuple[str, ...]]] = {}
    for line in structure:
        instruction, words = line["instruction"], " ".join(line["value"].split())
        if instruction == "FROM":
            image, _, name = words.partition(" AS ")
            made[name] = [*made.get(image, [("FROM", image)])]
        elif instruction != "COMMENT":
            made[name].append((instruction, words))
    del made["base"]
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_the_packages_of_its_devices_the_code_and_another_user_than_root(target):
    name, package = TARGETS[target]
    others = {other for _, other in TARGETS.values()} - {package, None}
    assert package in {None, *versions(name)} and not others & set(versions(name))
    assert set(stages()) == set(TARGETS)
    first, *instructions = stages()[target]
    assert first == ("FROM", "python:3.12-slim")
    (sync,) = (words for _, words in instructions if "uv pip sync" in words)
    assert f" --require-hashes --build-constraints=requirements/{name} requirements/{name}" in sync
    files = git(LAUNCH.parent, "ls-files").splitlines()
    assert {f"requirements/{name}", "requirements/uv.txt"} <= set(files)
    copied = [words.split()[0] for instruction, words in instructions if instruction == "COPY"]
    assert copied == ["requirements", "."]
    assert {i for i, _ in instructions} <= {"WORKDIR", "COPY", "RUN", "ENV", "ENTRYPOINT", "USER"}
    assert [json.loads(words) for i, words in instructions if i == "ENTRYPOINT"] == [ENTRY]
    # Its last user runs the check, and whatever is started in it; pods have the same one.
    assert instructions[-2] == ("USER", f"{gke.USER}:{gke.USER}") and gke.USER
    check = re.sub("^JAX_PLATFORMS=cpu ", "", instructions[-1][1])
    assert check == f"{' '.join(ENTRY)} train --config=configs/tiny.py --print_config >/dev/null"


@pytest.mark.long
@needs_uv
@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_environment_gets_the_packages_of_an_image(tmp_path, target):
    """Where there is a Python 3.12, those of cpu are installed and the entry point is run."""
    python, wanted = f"{tmp_path}/bin/python", f"requirements/{TARGETS[target][0]}"
    made = call([UV, "venv", "--python=3.12", "--no-python-downloads", "--clear", tmp_path])
    if is_dry := target != "cpu" or made.returncode != 0:
        call([UV, "venv", f"--python={sys.executable}", "--clear", tmp_path])
    other = ["--dry-run", "--python-version=3.12", "--python-platform=x86_64-manylinux_2_31"]
    words = [UV, "pip", "sync", f"--python={python}", "--require-hashes", wanted, *other * is_dry]
    assert (done := call(words, cwd=LAUNCH.parent)).returncode == 0, done.stderr
    if not is_dry:
        check = [python, *ENTRY[1:], "train", "--config=configs/tiny.py", "--print_config"]
        ran = call(check, cwd=LAUNCH.parent, env={"PATH": os.defpath, "JAX_PLATFORMS": "cpu"})
        assert "max_predictions" in ran.stdout, ran.stderr
