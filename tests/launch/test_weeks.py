"""The properties of the supervisor over simulated weeks, each failed by a planted wrong one."""

import dataclasses
import itertools

import pytest

from launch.cloud.commands import ROADS
from launch.cloud.decide import Action, decide
from tests.launch.weeks import NAMES, live

pytestmark = pytest.mark.slow

SEEDS = range(102)


def test_no_week_breaks_a_property():
    weeks = [live(seed, NAMES[seed % 3]) for seed in SEEDS]
    assert [(seed, week.broken) for seed, week in enumerate(weeks) if week.broken] == []
    # They are long and end in several ways.
    assert sum(week.looks for week in weeks) > 150 * len(SEEDS)
    assert {week.code for week in weeks} >= {0, 1, 2, 3}


def forgets_money(state, answers):
    return decide(dataclasses.replace(state, spent_secs=0, billed_since=None), answers)


def ends_before_the_slice_is_gone(state, answers):
    state, actions = decide(state, answers)
    if state.end_code is not None:
        actions = [Action("end", state.end_words, code=state.end_code)]
    return state, actions


def waits_for_what_is_lost(state, answers):
    if answers.slice.kind == "LOST":
        return state, []
    return decide(state, answers)


WRONG = {
    forgets_money: "outlives",
    ends_before_the_slice_is_gone: "ended with a slice",
    waits_for_what_is_lost: "could end did not",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_supervisor_is_found(wrong):
    found = (words for seed in SEEDS for words in live(seed, NAMES[seed % 3], wrong).broken)
    assert any(WRONG[wrong] in words for words in found)


@pytest.mark.parametrize(
    ("road", "old", "words"),
    [(road, "my-tpu", "two slices at once") for road in NAMES]
    + [("queued", "--node-id=my-tpu", "could end did not")],
)
def test_a_road_that_names_each_creation_anew_is_found(monkeypatch, road, old, words):
    """The slice, or a queued resource's node alone; looks and deletions keep the first name."""
    right, numbers = ROADS[road].plan, itertools.count()

    def plan(kind, job):
        new = f"{old}-{next(numbers)}" if kind == "create" else old
        return [
            dataclasses.replace(
                command,
                words=[word.replace(old, new) for word in command.words],
                given=command.given and command.given.replace(old, new),
            )
            for command in right(kind, job)
        ]

    monkeypatch.setattr(ROADS[road], "plan", plan)
    assert any(words in found for seed in SEEDS for found in live(seed, road).broken)
