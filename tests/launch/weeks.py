"""Let the supervisor live through weeks of simulated_cloud.py: `python -m tests.launch.weeks`."""

import argparse
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable

from launch.cloud import compute_engine, gke, queued
from launch.cloud import decide as module
from launch.cloud.decide import ABSENT, READY, Answers, Outcome, Rules, SliceSeen, State, decide
from tests.launch.simulated_cloud import BEGIN, HOUR, MAX_DELETION_SECS, WEEK, WORKERS, Cloud

LOOK_SECS = 1800.0
ROADS = ("queued", "compute_engine", "gke")
USD_PER_HOUR = 10.0
# A run that may go on ends within its length and this: a look that finds it lost, a hang that is
# seen, a deletion, a look, a new slice, a try, and the work since the last save.
RESTART_SECS = 5 * LOOK_SECS + 4000 + MAX_DELETION_SECS + HOUR


def look(cloud: Cloud, said: dict | str) -> Answers:
    """Translate what the cloud says as the roads do."""
    now = cloud.now
    if isinstance(said, str):
        return Answers(now, error=said)
    body, checkpoint = said.get("slice"), said["saved"]
    if body is None:
        return Answers(now, SliceSeen(ABSENT), checkpoint=checkpoint)
    text = said.get("workers", "")
    workers, junk, _ = queued.read_workers(text if isinstance(text, str) else "")
    if cloud.road == "queued":
        seen = queued.read_queued(body)
        if seen is not None and seen.kind == READY:
            seen = queued.read_node(seen, {} if said["node"] is None else said["node"])
    elif cloud.road == "compute_engine":
        seen = compute_engine.read_group(body, said.get("node"), WORKERS)
    else:
        found = gke.read_jobset(body)
        seen, workers = (found[0], (found[1],)) if found else (None, ())
    if seen is None:
        return Answers(now, error="an answer without a state")
    return Answers(now, seen, workers=workers, junk=junk, checkpoint=checkpoint)


@dataclasses.dataclass
class Week:
    """How a week went; broken: the properties that did not hold."""

    code: int | None
    words: str
    looks: int
    broken: list[str]


def live(seed: int, road: str, decides: Callable = decide) -> Week:
    """Live a week, and what is left of it from the hour that grants all."""
    cloud = Cloud(seed, road)
    limit = cloud.random.uniform(50, 1500) if cloud.random.random() < 0.3 else None
    rules = Rules(
        "gs://b/runs/a", starts_itself=road != "queued", is_deleted_at_end=True,
        usd_per_hour=USD_PER_HOUR, max_usd=limit,
    )  # fmt: skip
    state, code, words, looks, broken = State(rules), None, "", 0, []
    # Whether the run had to be over, and the first look after it that was told the truth.
    is_over, honest_at, saved_at_grant = False, None, None
    while code is None and cloud.now < BEGIN + 2 * WEEK:
        if cloud.is_granting and saved_at_grant is None:
            saved_at_grant = (cloud.now, cloud.saved)
        looks += 1
        answers = look(cloud, cloud.answer())
        for _ in range(9):
            state, actions = decides(state, answers)
            outcomes = []
            for action in actions:
                kind = action.kind
                if kind == "end":
                    code, words = action.code, action.words
                elif kind == "stop":
                    cloud.stop()
                elif kind in module.REPORTED:
                    error = getattr(cloud, kind)(*[action.words] * bool(action.words))
                    error *= (kind, error) != ("delete", "NOT_FOUND")
                    outcomes.append(Outcome(kind, error, False, "ALREADY_EXISTS" in error))
                    if error:
                        break
            if code is not None or not outcomes:
                break
            answers = Answers(cloud.now, outcomes=tuple(outcomes))
        else:
            broken.append("acts without a pause")
        if looks % 50 == 0:  # killed, and read back from the disk
            text = json.dumps(dataclasses.asdict(state) | {"rules": None})
            assert len(text) < 4000, "the state grows"
            state = State(**json.loads(text) | {"rules": rules})
        is_over |= cloud.succeeded_at is not None or cloud.failed_for_good_at is not None
        is_over |= limit is not None and cloud.count_hours() * USD_PER_HOUR >= limit
        if is_over and honest_at is None and cloud.was_honest and cloud.is_granting:
            honest_at = cloud.now
        last = cloud.now if honest_at is None else honest_at + LOOK_SECS + MAX_DELETION_SECS + 1
        if cloud.names and cloud.now > last:
            broken.append("a slice outlives its end")
            break
        cloud.advance(min(max(cloud.next_event(), cloud.now + 1), cloud.now + LOOK_SECS))
    if cloud.most_names > 1:
        broken.append("two slices at once")
    if code is not None and cloud.names and not words.startswith("gave up"):
        broken.append(f"ended with a slice: {words}")
    if saved_at_grant and limit is None and not cloud.final_code:
        since, saved = saved_at_grant
        if code != 0:
            broken.append(f"a run that could end did not: {words}")
        elif cloud.now > since + cloud.length - saved + RESTART_SECS:
            broken.append("a run ended too late")
    return Week(code, words, looks, broken)


def main() -> None:
    """Live many weeks and count how they end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weeks", type=int, default=2000)
    weeks, begin = parser.parse_args().weeks, time.process_time()
    ends: Counter = Counter()
    looks = 0
    for seed in range(weeks):
        road = ROADS[seed % 3]
        week = live(seed, road)
        looks += week.looks
        ends[road, week.code] += 1
        for words in week.broken:
            print(f"seed {seed} {road}: {words}")
            ends["broken"] += 1
    secs = time.process_time() - begin
    print(f"{weeks} weeks, {looks / weeks:.0f} looks each, {secs:.0f} s: {dict(ends)}")


if __name__ == "__main__":
    main()
