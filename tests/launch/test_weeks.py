"""The supervisor lives through weeks of simulated_cloud.py: properties that wrong ones break."""

import contextlib
import dataclasses
import io
import itertools
import os
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable
from unittest import mock

import pytest

from launch.cloud import decide as module
from launch.cloud import watch
from launch.cloud.commands import ROADS
from launch.cloud.decide import FINAL_CODES, Action, Rules, decide
from launch.cloud.watch import write_state
from tests.launch.scripts import make_job
from tests.launch.simulated_cloud import BEGIN, HOUR, LOOK_SECS, MAX_DELETION_SECS, WEEK, Cloud

pytestmark = pytest.mark.slow

SEEDS = range(int(os.environ.get("LAUNCH_WEEKS", 102)))
NAMES = tuple(ROADS)
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # events and locks, at each look
USD_PER_HOUR = 10.0
# A run that may go on ends within its length and this: a look that finds it lost, a hang that is
# seen, a deletion, a look, a new slice, a try, and the work since the last save.
RESTART_SECS = 5 * LOOK_SECS + 4000 + MAX_DELETION_SECS + HOUR


@dataclasses.dataclass
class Week:
    """Hold how a week ended; broken: the properties that did not hold."""

    code: int | None
    looks: int
    broken: list[str]


def live(seed: int, road: str, decides: Callable = decide) -> Week:
    """Run a supervisor through a week, the last part of which grants everything."""
    cloud = Cloud(seed, road)
    limit = cloud.random.uniform(50, 1500) if cloud.random.random() < 0.3 else None
    rules = Rules(
        "gs://b/a", starts_itself=road != "queued", is_deleted_at_end=True,
        usd_per_hour=USD_PER_HOUR, max_usd=limit,
    )  # fmt: skip
    with contextlib.ExitStack() as end:  # on the cloud's clock, printing nothing
        end.enter_context(contextlib.redirect_stdout(io.StringIO()))
        end.enter_context(mock.patch.object(watch, "time", cloud.clock(lambda secs: None)))
        end.enter_context(mock.patch.object(module, "decide", decides))
        end.enter_context(mock.patch.object(watch, "write_state", lambda path, state: None))
        end.enter_context(mock.patch.object(os, "fsync", lambda file: None))
        folder = pathlib.Path(end.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY)))
        return live_in(folder, cloud, rules)


def live_in(folder: pathlib.Path, cloud: Cloud, rules: Rules) -> Week:
    road, job, limit = ROADS[cloud.road], make_job(folder, cloud.road), rules.max_usd
    supervisor = watch.Supervisor(road, job, rules, folder, cloud.ask)
    code, looks, broken = None, 0, []
    # Whether the run had to be over, and the first look after it that was told the truth.
    is_over, honest_at, saved_at_grant = False, None, None
    while code is None and cloud.now < BEGIN + 2 * WEEK:
        if cloud.is_granting and saved_at_grant is None:
            saved_at_grant = (cloud.now, cloud.saved)
        looks += 1
        code = supervisor.turn()
        if cloud.has_two:
            broken.append("two slices at once")
            break
        if looks % 50 == 0:  # killed, and read back from the disk
            write_state(folder / "state.json", supervisor.state)
            assert (folder / "state.json").stat().st_size < 4000, "the state grows"
            supervisor.lock.close()
            supervisor = watch.Supervisor(road, job, rules, folder, cloud.ask)
        is_over |= cloud.ended is not None
        is_over |= limit is not None and cloud.count_hours() * USD_PER_HOUR >= limit
        if is_over and honest_at is None and cloud.was_honest and cloud.is_granting:
            honest_at = cloud.now
        last = cloud.now if honest_at is None else honest_at + LOOK_SECS + MAX_DELETION_SECS + 1
        if cloud.exists and cloud.now > last:
            broken.append("a slice outlives its end")
            break
        cloud.sleep(LOOK_SECS)
    words = (folder / "events.log").read_text().rpartition(" my-tpu: ")[2]
    if code is not None and cloud.exists and not words.startswith("gave up"):
        broken.append(f"ended with a slice: {words}")
    if saved_at_grant and limit is None and cloud.ended and code not in FINAL_CODES:
        broken.append(f"a final exit code {cloud.ended} was followed by {code}: {words}")
    if saved_at_grant and limit is None and not cloud.final_code:
        since, saved = saved_at_grant
        if code != 0:
            broken.append(f"a run that could end did not: {words}")
        elif cloud.now > since + cloud.length - saved + RESTART_SECS:
            broken.append("a run ended too late")
    supervisor.lock.close()
    return Week(code, looks, broken)


@pytest.mark.parametrize("road", NAMES)
def test_no_week_breaks_a_property(road):
    weeks = {}
    for seed in SEEDS[NAMES.index(road) :: len(NAMES)]:
        weeks[seed] = live(seed, road)
        if not len(weeks) % 100:
            print(f"{road}: {len(weeks):,} weeks", flush=True)
    looks = sum(week.looks for week in weeks.values()) / len(weeks)
    ends = Counter(week.code for week in weeks.values())
    print(f"{road}: {len(weeks):,} weeks, {looks:.0f} looks each, exit codes {dict(ends)}")
    assert {seed: week.broken for seed, week in weeks.items() if week.broken} == {}
    # They are long and end in several ways. Of the first 34 of a road, queued alone has a code 2.
    assert looks > 150
    assert ends.keys() >= ({0, 1, 2, 3} if road == "queued" else {0, 1, 3})


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
