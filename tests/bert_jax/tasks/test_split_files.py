"""Files of a task's splits: by the config's name or the published one, never by chance."""

import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.split_files import split_file

NAMES = ("eng.train", "train.txt")


def test_a_published_name_is_found_and_a_given_one_comes_first(tmp_path):
    (tmp_path / "train.txt").write_text("")
    (tmp_path / "mine").write_text("")
    folder = str(tmp_path)
    assert split_file(TaskOptions(dir=folder), "train", NAMES) == tmp_path / "train.txt"
    assert split_file(TaskOptions(dir=folder, train_file="mine"), "train", NAMES).name == "mine"
    assert split_file(TaskOptions(dir=folder), "test", ("eng.testb",)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dir": ""}, "config.data.dir is ''"),
        ({"dir": "nowhere"}, "config.data.dir is 'nowhere', which is not a folder"),
        ({"train_file": "none"}, "config.data.train_file is 'none', but there is no file"),
        ({}, "no train file of ner: none of eng.train, train.txt; name yours with --config.data"),
    ],
)
def test_a_missing_file_is_refused(tmp_path, changes, words):
    options = TaskOptions(**{"task": "ner", "dir": str(tmp_path), **changes})
    with pytest.raises(ValueError, match=words):
        split_file(options, "train", NAMES)


def test_two_files_that_could_be_it_are_refused(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"holds both eng\.train and train.txt"):
        split_file(TaskOptions(dir=str(tmp_path)), "train", NAMES)
