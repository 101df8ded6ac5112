"""Compare runs: which settings differ, and which differences of loss are larger than noise."""

import collections
import statistics
from collections.abc import Sequence
from typing import Any

from bert_jax.monitoring.run_state import RunState

SEEDS = ("seed", "data.random_seed")  # runs that differ only in these have the same setting
_PLACES = ("data.store", "data.data_cache", "data.dir", *SEEDS)
_MAX_SETTINGS = 20


def compare_settings(runs: Sequence[RunState]) -> dict[str, list[Any]]:
    """Return the settings that differ between runs: key -> value per run, None if it has none.

    Seeds and paths are left out.
    """
    tables = [run.settings for run in runs]
    values = {key: [table.get(key) for table in tables] for table in tables for key in table}
    return {
        key: listed
        for key, listed in values.items()
        if key not in _PLACES and any(value != listed[0] for value in listed)
    }


def describe_settings(runs: Sequence[RunState]) -> list[str]:
    """Describe each differing setting, and its runs, in a sentence."""
    sentences = []
    differing = compare_settings(runs)
    for key, values in list(differing.items())[:_MAX_SETTINGS]:
        names: dict[str, list[str]] = collections.defaultdict(list)
        for run, value in zip(runs, values, strict=True):
            names["unset" if value is None else str(value) or "empty"].append(run.folder.name)
        parts = (f"{value} in {', '.join(members)}" for value, members in names.items())
        sentences.append(f"{key}: {'; '.join(parts)}.")
    if len(differing) > _MAX_SETTINGS:
        sentences.append(f"{len(differing) - _MAX_SETTINGS:,} more settings differ.")
    return sentences or ["No setting differs, except seeds and places."]


def compare(runs: Sequence[RunState]) -> list[str]:
    """Describe how held-out losses of runs differ, and whether by more than noise.

    Runs whose settings differ only in seeds form a group. The noise is the standard deviation
    within groups, pooled; each later group is compared with the first by Student's t. Losses are
    compared term by term, only between runs of the same store.
    """
    if len({run.store for run in runs}) > 1:
        return ["Their stores differ, so their losses cannot be compared."]
    differing = compare_settings(runs)
    groups: dict[tuple[str, ...], list[RunState]] = collections.defaultdict(list)
    sentences = []
    for index, run in enumerate(runs):
        if not run.steps or run.curves.last_step < run.steps:
            sentences.append(f"Not compared: {run.folder.name} has not finished.")
        elif not run.list_heldout_terms():
            sentences.append(f"{run.folder.name} has no held-out loss to compare.")
        else:
            groups[tuple(str(values[index]) for values in differing.values())].append(run)
    if len(groups) > 1:
        ends = (".seq_len", ".masked_lm_prob")  # no other setting but data.* changes the examples
        if others := [key for key in differing if key.startswith("data.") or key.endswith(ends)]:
            sentences.append(
                f"Held-out examples may differ too, by {', '.join(others)}: compare such losses "
                "with care."
            )
        if all(len(members) == 1 for members in groups.values()):
            sentences.append(
                "Each setting has one run, so the noise is not known; add runs with other seeds."
            )
    terms = [run.list_heldout_terms() for members in groups.values() for run in members]
    shared = [term for term in terms[0] if all(term in each for each in terms)] if terms else []
    if terms and not shared:
        sentences.append("Their objectives share no term, so their losses cannot be compared.")
    for term in shared:
        sentences += _compare_term(list(groups.values()), term)
    return sentences


def _compare_term(groups: Sequence[Sequence[RunState]], term: str) -> list[str]:
    from bert_jax.logging.statistics import compare_unpaired  # scipy, which takes a second

    measure = f"{term}_loss"
    table = [[run.curves.list_newest("heldout")[measure] for run in members] for members in groups]
    sentences = []
    for members, losses in zip(groups, table, strict=True):
        count = f"{len(losses)} run{'s' * (len(losses) > 1)}"
        mean = statistics.fmean(losses)
        sentences.append(f"{members[0].folder.name}: held-out {term} loss {mean:.4f}, {count}.")
    for members, losses in list(zip(groups, table, strict=True))[1:]:
        gap = statistics.fmean(losses) - statistics.fmean(table[0])
        names = f"{members[0].folder.name} - {groups[0][0].folder.name}"
        interval = compare_unpaired(losses, table[0], table)
        if interval is None:
            sentences.append(f"{names}: {gap:+.4f} {term} loss, noise unknown.")
            continue
        verdict = "more than" if interval.is_beyond_chance else "within"
        sentences.append(f"{names}: {interval.describe(4)} {term} loss, {verdict} the noise.")
    return sentences
