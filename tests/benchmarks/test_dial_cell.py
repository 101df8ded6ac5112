"""The configs that a budget's run is compared with, and the steps that they get."""

import json

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


def test_a_longer_budget_takes_the_best_from_the_shorter_one_with_seeds_of_its_own(tmp_path):
    shorter, longer = tmp_path / "shorter", tmp_path / "longer"
    first = dial_cell.enter(None)
    means = dict(zip(("budget", *first.names[:3]), (4.0, 4.3, 4.1, 4.2), strict=True))
    for folder, settings in ((shorter, {}), (longer, {"after": "shorter"})):
        folder.mkdir()
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / dial_cell.RESULT).write_text(json.dumps(means))
    second, third = dial_cell.enter(shorter), dial_cell.enter(longer)
    one, two, three = first.names[:3]
    assert second.names == (two, three, one, f"{two}, twice as wide")
    assert third.names == (two, three)
    assert dial_cell.find_hand(second.names[-1]).width == 2 * dial_cell.HAND[two].width
    seeds = [set(each.choosing + each.seeds) for each in (first, second, third)]
    assert sum(map(len, seeds)) == len(set.union(*seeds)) == 8


def test_an_unfinished_comparison_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"has no result\.json; finish that comparison first"):
        dial_cell.enter(tmp_path)
