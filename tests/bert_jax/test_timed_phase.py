"""Which phase is timed, with how many rows, and the refusal of rows that do not divide."""

import dataclasses

import pytest

from bert_jax import config_check
from bert_jax.config import Config, Phase
from bert_jax.timed_phase import phase_of, with_rows

CONFIG = Config(
    phases=(
        Phase(128, 900, batch_size=256, micro_batches=4),
        Phase(512, 100, batch_size=64, max_predictions_per_seq=77, restart_learning_rate=1e-4),
    )
)


def test_a_phase_is_found_by_its_length_and_made_where_there_is_none():
    assert phase_of(CONFIG, 0) == CONFIG.phases[0]
    assert phase_of(CONFIG, 512) == CONFIG.phases[1]
    made = phase_of(CONFIG, 256)
    assert (made.seq_len, made.max_predictions_per_seq, made.batch_size) == (256, 39, 256)


@pytest.mark.parametrize(
    ("platform", "rows", "shards", "expected"),
    [
        ("tpu", 0, 8, (256, 4)),  # the recipe's
        ("cpu", 0, 2, (32, 1)),
        ("gpu", 0, 2, (128, 1)),
        ("cpu", 24, 2, (24, 4)),
        ("tpu", 24, 2, (24, 4)),
    ],
)
def test_rows_are_those_asked_for_or_suit_the_platform(platform, rows, shards, expected):
    timed = with_rows(CONFIG.phases[0], rows, platform, shards)
    assert (timed.batch_size, timed.micro_batches) == expected


def test_a_later_phase_can_be_the_only_one():
    timed = with_rows(phase_of(CONFIG, 512), 0, "tpu", 1)
    config_check.check(dataclasses.replace(CONFIG, phases=(timed,)))


def test_rows_that_do_not_divide_are_refused_with_those_that_do():
    with pytest.raises(ValueError, match=r"--batch_size is 250, not a multiple of 32.*x 4 micro"):
        with_rows(CONFIG.phases[0], 250, "tpu", 8)
    with pytest.raises(ValueError, match=r"--batch_size is 3, not a multiple of 8.*try 8$"):
        with_rows(CONFIG.phases[1], 3, "cpu", 8)
