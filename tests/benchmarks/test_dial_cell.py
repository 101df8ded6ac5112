"""The configs that a budget's run is compared with, and the steps that they get."""

import pytest

from benchmarks import dial_cell
from bert_jax.config import Phase, resolve


@pytest.mark.parametrize("name", dial_cell.HAND)
def test_a_config_by_hand_resolves_and_reads_as_many_positions_in_both_phases(name):
    flags = dial_cell.list_flags(dial_cell.HAND[name], (100, 25))
    config = dial_cell.read_config(dial_cell.CONFIG, flags, "")
    first, second = resolve(config).phases
    assert first.batch_size * first.seq_len == second.batch_size * second.seq_len
    assert (first.steps, second.steps, second.seq_len) == (100, 25, 64)


def test_all_get_the_time_of_the_budgets_run():
    step_secs = {name: [0.01 * number, 0.02] for number, name in enumerate(dial_cell.HAND, 1)}
    chosen = (Phase(32, 800), Phase(64, 200))
    steps = dial_cell.plan_steps(
        dict.fromkeys((dial_cell.DIAL, *step_secs)), chosen, {"budget": [0.1, 0.1], **step_secs}
    )
    for name, (first, second) in step_secs.items():
        assert steps[name][0] * first + steps[name][1] * second == pytest.approx(100, abs=0.2)
