"""What the checks of a machine find on its disk."""

import pytest

from bert_jax.benchmarking.checks import find_accelerators


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        *(("accel0", True), ("vfio/0", True), ("nvidia0", True)),
        *(("accel/accel0", False), ("vfio/vfio", False), ("nvidiactl", False)),
    ],
)
def test_the_device_files_of_accelerators_are_found(name, is_found, tmp_path):
    path = tmp_path / "dev" / name
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_accelerators(tmp_path) == [path] * is_found
