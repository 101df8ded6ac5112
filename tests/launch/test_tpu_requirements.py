"""requirements/tpu.txt and uv.txt: hashes, and the versions that requirements/ci.txt tests."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.launch.scripts import LAUNCH

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize("name", ["tpu.txt", "uv.txt"])
def test_every_package_has_a_hash_and_the_version_that_was_tested(name):
    for line in lines(name):
        assert re.search(r" --hash=sha256:[0-9a-f]{64}\b", line), line
    tested = versions("ci.txt")
    other = {p: v for p, v in versions(name).items() if tested.get(p, v) != v}
    assert set(other) <= {"libtpu"}


def test_a_worker_gets_what_training_needs_for_its_python():
    pins = versions("tpu.txt")
    assert {"jax", "jaxlib", "libtpu", "flax", "optax", "setuptools"} <= set(pins)
    assert set(pins) & {"torch", "transformers", "pytest"} == set()
    script = (LAUNCH / "worker" / "on_worker_setup.sh").read_text()
    (version,) = re.findall(r"^readonly VERSION=(.+)$", script, re.MULTILINE)
    assert ON_A_WORKER["python_version"] == version
    makefile = (LAUNCH.parent / "Makefile").read_text()
    assert f"--generate-hashes --python-version {version} " in makefile
