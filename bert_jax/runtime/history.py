"""Find the first step in which two runs differ.

A branch and its trunk must agree up to the step of the checkpoint that the branch begins with. A
branch from another run's checkpoint equals a run from step 0 with its config only if both configs
produce the same rows, masks, objective and learning rate in each step up to the checkpoint. Configs
that differ may still agree up to there: after the checkpoint, phases may be cut, added or
lengthened and a decay may begin later, and a store with no share of the rows may be added.
Decision 93 in docs/design/ has the reasons.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import ResolvedRun, RunConfig
from bert_jax.config.model_schema import THETAS
from bert_jax.model.bert import resolve_dtype
from bert_jax.runtime.run_record import MIXTURE, STORE_DIGEST, parse_config, read_pinned
from bert_jax.train_step.schedule import compute_rates
from data_pipeline.sampling.mixture import MIXTURE_VERSION, PARTS, chain, find_stores
from data_pipeline.sampling.mixture import make_schedule as make_shares
from data_pipeline.spec.options import OPTIONS_OF_A_RUN

# Settings of config.optim that affect a step only through its learning rate.
_SCHEDULE = (
    *("learning_rate", "warmup_steps", "warmup_tokens", "decay", "decay_power", "decay_steps"),
    *("end_learning_rate", "decay_counts_warmup"),
)
# Settings that affect no weight: groups, then single ones. Stores and the teacher are compared by
# their digests instead.
_FREE_GROUPS = ("checkpoint.", "eval.", "hosts.", "log.")
_FREE = {"log_every_steps", "teacher", *(f"data.{name}" for name in OPTIONS_OF_A_RUN)}
# Single settings that are compared step by step, as phases are.
_BY_STEP = {
    *("objective", "model.is_causal", "compute.compute_dtype", "data.masked_lm_prob"),
    *(f"model.{name}" for name in THETAS),
    *(f"optim.{name}" for name in _SCHEDULE),
}
_OF_PHASE = ("seq_len", "batch_size", "micro_batches", "max_predictions_per_seq", "objective")
_WEIGHTS = "phases[{}].store_weights (of each store)"  # entry of a record's fixed settings


@dataclasses.dataclass(frozen=True)
class History:
    """Hold the record of a run, and the config in it."""

    record: Mapping[str, Any]
    config: ResolvedRun

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings by key."""
        return config_lib.flatten(config_lib.recorded(self.config))

    @property
    def digests(self) -> list[str]:
        """Return the digest of each store."""
        return str(self.record["store"]["digest"]).split(",")

    def list_starts(self, last_step: int) -> list[int]:
        """List, for each phase that begins before last_step, the number of steps before it."""
        config = self.config
        starts = (config_lib.phase_start(config, index) for index in range(len(config.phases)))
        return [start for start in starts if start < last_step]


def read_history(record: Mapping[str, Any], name: object) -> History:
    """Parse the record of a pre-training run. Raises Refused if another version wrote it."""
    return History(record, parse_config(record, name, ResolvedRun))


@dataclasses.dataclass(frozen=True)
class StepDifference:
    """Hold the first step in which two runs differ, and a setting that causes the difference."""

    step: int
    key: str  # the setting, with "config." in front, or another entry of the record
    before: Any
    now: Any
    effect: str = ""  # how the step differs, if the setting alone does not show it

    def describe(self) -> str:
        """Return the difference as a clause."""
        effect = f"has {self.effect}" if self.effect else "differs"
        return (
            f"step {self.step:,} {effect}: {self.key} = {self.before!r:.80} there, and this config "
            f"says {self.now!r:.80}"
        )


def find_first_difference(
    trunk: History, leaf: History, last_step: int, has_bad_steps: bool
) -> StepDifference | None:
    """Find the first step, from 1 to last_step, in which two runs differ; None if they agree.

    `leaf` is the branch. `has_bad_steps`: whether the trunk discarded or left out a step. If so, or
    with spike_sigmas, the phases of both must begin after the same steps, as the guard's window
    begins with a phase.
    """
    differences = [
        *_compare_settings(trunk, leaf),
        *_compare_phases(trunk, leaf, last_step),
        *_compare_rows(trunk, leaf, last_step),
        *_compare_rates(trunk, leaf, last_step),
        *_compare_starts(trunk, leaf, last_step, has_bad_steps),
    ]
    return min(differences, key=lambda difference: difference.step, default=None)


def is_free(setting: str) -> bool:
    """Return whether no weight of a run depends on a setting."""
    return setting in _FREE or setting.startswith(_FREE_GROUPS)


def _compare_settings(trunk: History, leaf: History) -> Iterator[StepDifference]:
    """Compare what applies to all steps: settings, versions, vocabulary, dtype and devices."""
    before, now = (_list_settings(history) for history in (trunk, leaf))
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            yield StepDifference(1, key, before.get(key), now.get(key))


def _list_settings(history: History) -> dict[str, Any]:
    record, config = history.record, history.config
    settings = history.settings
    count, _, kind = str(record["devices"]).partition(" x ")
    values = {
        key: value
        for key, value in record["fixed"].items()
        if key not in settings and key != STORE_DIGEST and not key.startswith("phases[")
    }
    values.setdefault(MIXTURE, MIXTURE_VERSION)  # a run of one store has no such entry
    values |= {f"vocabulary.{key}": value for key, value in read_pinned(record).items()}
    values["devices"] = int(count)
    values["config.compute.compute_dtype"] = str(resolve_dtype(config.compute, kind))
    if config.optim.name == "stable_adamw":  # its weight decay is divided by the peak rate
        values["config.optim.learning_rate"] = config.optim.learning_rate
    return values | {
        f"config.{key}": value
        for key, value in settings.items()
        if not (is_free(key) or key in _BY_STEP or key.startswith("phases["))
    }


def _list_step_ranges(trunk: History, leaf: History, last_step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps (steps before, last step) within a single phase of each run."""
    starts = sorted({*trunk.list_starts(last_step), *leaf.list_starts(last_step)})
    yield from itertools.pairwise([*starts, last_step])


def _compare_phases(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    for start, _ in _list_step_ranges(trunk, leaf, last_step):
        before, now = (_list_phase_values(each.config, start + 1) for each in (trunk, leaf))
        index = config_lib.phase_of_step(leaf.config, start + 1)
        for key, value in now.items():
            if before[key] != value:
                yield StepDifference(start + 1, f"config.phases[{index}].{key}", before[key], value)


def _list_phase_values(config: ResolvedRun, step: int) -> dict[str, Any]:
    """Return the values that a step takes from its phase, or from the run where it has none."""
    index = config_lib.phase_of_step(config, step)
    model = config_lib.model_in_phase(config, index)
    return {
        **{name: getattr(config.phases[index], name) for name in _OF_PHASE},
        "masked_lm_prob": config_lib.data_in_phase(config, index).masked_lm_prob,
        **{name: getattr(model, name) for name in (*THETAS, "is_causal")},
    }


def _compare_rows(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    """Compare the store of each step's rows, and the position of each row within its store.

    Within a range of steps both sequences of stores have periods of at most PARTS rows, so they
    agree everywhere if they agree in the first 2 * PARTS rows (theorem of Fine and Wilf).
    """
    for start, end in _list_step_ranges(trunk, leaf, last_step):
        index = config_lib.phase_of_step(leaf.config, start + 1)
        batch_size = leaf.config.phases[index].batch_size
        rows = min((end - start) * batch_size, 2 * PARTS)
        (before, own), (now, own_now) = (_find_rows(each, start, rows) for each in (trunk, leaf))
        differing = np.flatnonzero((before != now) | (own != own_now))
        if differing.size:
            row = int(differing[0])
            step = start + row // batch_size + 1
            if before[row] not in leaf.digests or now[row] not in trunk.digests:
                yield StepDifference(step, "config.data.store", before[row][:12], now[row][:12])
            else:
                key = f"config.phases[{index}].store_weights"
                shares = [
                    _list_weights(each, config_lib.phase_of_step(each.config, start + 1))
                    for each in (trunk, leaf)
                ]
                yield StepDifference(step, key, shares[0], shares[1])


def _find_rows(history: History, start: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the rows after `start` steps, the digest of their store and their place in it."""
    config = history.config
    index = config_lib.phase_of_step(config, start + 1)
    phase = config.phases[index]
    done_steps = start - config_lib.phase_start(config, index)
    first = config_lib.first_row(config, index) + done_steps * phase.batch_size
    positions_B = np.arange(first, first + rows)
    digests_K = np.asarray(history.digests)
    if len(digests_K) == 1:
        return np.repeat(digests_K, rows), positions_B
    shares = [
        (each.steps * each.batch_size, make_shares(_list_weights(history, number)))
        for number, each in enumerate(config.phases)
        if each.seq_len == phase.seq_len
    ]
    store_B, own_B = find_stores(chain(shares), positions_B)
    return digests_K[store_B], own_B


def _list_weights(history: History, index: int) -> tuple[float, ...]:
    return tuple(history.record["fixed"].get(_WEIGHTS.format(index), (1.0,)))


def _compare_rates(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    """Compare the learning rates bit by bit, and name a differing setting of the schedule."""
    before_N, now_N = (compute_rates(each.config, last_step) for each in (trunk, leaf))
    differing = np.flatnonzero(before_N != now_N)
    if differing.size:
        step = int(differing[0])
        settings, others = (each.settings for each in (trunk, leaf))
        keys = [
            key
            for key in {**settings, **others}
            if key.removeprefix("optim.") in _SCHEDULE
            or ".restart_" in key
            or key.endswith((".steps", ".batch_size", ".seq_len"))
        ]
        same_optim = dataclasses.replace(leaf.config, optim=trunk.config.optim)
        is_of_phases = compute_rates(same_optim, last_step)[step] != before_N[step]
        keys.sort(key=lambda key: key.startswith("optim.") == is_of_phases)
        key = next(key for key in keys if settings.get(key) != others.get(key))
        effect = f"a learning rate of {now_N[step]:g}, not {before_N[step]:g}"
        values = settings.get(key), others.get(key)
        yield StepDifference(step + 1, f"config.{key}", *values, effect)


def _compare_starts(
    trunk: History, leaf: History, last_step: int, has_bad_steps: bool
) -> Iterator[StepDifference]:
    """Compare the starts of phases, at which the guard's window begins, if the window matters."""
    differing = {*trunk.list_starts(last_step)} ^ {*leaf.list_starts(last_step)}
    if differing and (has_bad_steps or leaf.config.guard.spike_sigmas > 0):
        start = min(differing)
        before, now = (config_lib.phase_of_step(each.config, start) for each in (trunk, leaf))
        yield StepDifference(
            start + 1,
            f"config.phases[{now}].steps",
            trunk.config.phases[before].steps,
            leaf.config.phases[now].steps,
            "another window of the guard, which begins with a phase",
        )


def count_phase_steps(config: RunConfig, step: int) -> int:
    """Count the steps from the start of a step's phase through this step; 0 for step 0.

    Without bad steps this is the guard's count of good steps.
    """
    return step - config_lib.phase_start(config, config_lib.phase_of_step(config, step))
