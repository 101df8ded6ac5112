"""A workdir that is not the same folder on all hosts is refused by name."""

import pytest

from bert_jax import shared_folder
from tests.bert_jax import joined

CHECK = """
import pathlib
from bert_jax import shared_folder
shared_folder.SEEN_SECS = 0.3
folder = pathlib.Path(FOLDER)
shared_folder.check(folder / "shared", 20)
try:
    shared_folder.check(folder / str(number) / "run", 20)
except ValueError as error:
    print(error)
"""


@pytest.mark.fault(12, "a folder of its own for each process")
def test_a_folder_that_another_process_does_not_see_is_refused_on_all(tmp_path):
    ended = joined.run(CHECK.replace("FOLDER", repr(str(tmp_path))))
    assert [one.code for one in ended] == [0, 0], ended
    for number, one in enumerate(ended):
        said = one.out.splitlines()[-1]
        assert said.startswith(f"--workdir={tmp_path / str(number) / 'run'} is not the same folder")
        assert "process 1 (" in said and "cannot see what process 0 wrote there" in said
    # The folder that all see is there for whoever writes into it first.
    left = [path for path in tmp_path.rglob("*") if path.name != "0"]
    assert left == [tmp_path / "shared"]


def test_one_process_writes_nothing(tmp_path):
    shared_folder.check(tmp_path / "run", 0.0)
    assert list(tmp_path.iterdir()) == []
