"""The entry that proves resuming, as far as it refuses; tests/faults has it run."""

import functools

import pytest

VERIFY = "bert_jax.verify_resume"
CONFIG = "--config=configs/tiny.py"


@pytest.fixture
def verify(forked):
    return functools.partial(forked, VERIFY)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([CONFIG], "--workdir is missing"),
        ([CONFIG, "--workdir=gs://b/run"], "give one on a disk of this machine"),
        ([CONFIG, "--workdir=bert_jax"], "is there and not empty"),
        ([CONFIG, "--workdir=w", "--kills=0"], "--kills is 0; it must be 1 or more"),
        ([CONFIG, "--workdir=w", "--processes=0"], "--processes is 0"),
        (
            [CONFIG, "--workdir=w", "--kills=5"],
            "checkpoint.every_steps is 100: in 400 steps the run would be over before 5 kills; "
            "take --config.checkpoint.every_steps=80 or less",
        ),
        (
            [CONFIG, "--workdir=w", "--kills=25", "--config.checkpoint.every_steps=10"],
            "log_every_steps is 20: in 400 steps the run would be over before 25 kills",
        ),
    ],
)
def test_what_proves_nothing_is_refused(verify, flags, words):
    done = verify(*flags, code=2)
    assert done.stderr.count("\n") == 1 and words in done.stderr


def test_the_training_gets_the_config_and_its_fields_alone(verify, tmp_path):
    """A mistake that only the training finds is said in its words."""
    done = verify(CONFIG, f"--workdir={tmp_path}/new", "--kills=2", "--config.seed=7", code=1)
    assert "nothing is proved: the run ended with exit code 2: error: config.data" in done.stdout
