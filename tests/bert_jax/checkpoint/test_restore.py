"""What process 0 finds out about a folder of checkpoints, and how the others hear of errors."""

import pytest
from etils import epath

from bert_jax.checkpoint import directory, manager
from bert_jax.parallel import processes

FOLDER = epath.Path("gs://runs/mine/checkpoints")


class HttpError(Exception):
    """Like gcsfs's, which has no base but Exception."""

    code = 503


@pytest.fixture
def told(monkeypatch):
    """What the other processes were told."""
    answers = []

    def agree(what, answer, within_secs):
        answers.append(answer)
        return [answer, " "]

    monkeypatch.setattr(processes, "agree", agree)
    return answers


@pytest.fixture
def choose(monkeypatch):
    """Choose a checkpoint where listing the folder raises an error."""

    def choose(error):
        def find_steps(folder):
            raise error

        monkeypatch.setattr(directory, "find_steps", find_steps)
        return manager.list_on_process_0(FOLDER)

    return choose


def test_a_drivers_error_is_raised_on_every_process(told, choose):
    with pytest.raises(OSError, match="the bucket does not answer as it should"):
        choose(HttpError("Service Unavailable, 503"))
    assert told[0].startswith(f"failed {FOLDER}: reading failed, the bucket does not answer")


def test_an_error_of_ours_is_shown_once_the_others_know(told, choose):
    with pytest.raises(RuntimeError, match="a bug"):
        choose(RuntimeError("a bug"))
    assert told == ["failed a bug"]


def test_a_receipt_that_a_bucket_does_not_give_now_is_no_damage():
    class Late(type(FOLDER)):
        def stat(self):
            raise HttpError("Service Unavailable, 503")

    with pytest.raises(ConnectionError):
        directory.read_json(Late("gs://runs/mine/checkpoints/8/a.json"))
