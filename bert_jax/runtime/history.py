"""Compare what two runs do in each step up to a given one, by value, as a branch must not differ.

A run that branches from another one's checkpoint ends as if it had been made alone only if both
configs give the same rows, masks, objective and learning rate for each step up to there. Configs
that differ in text may agree in this: phases may be cut, added or lengthened after the checkpoint,
a decay may begin later, and a store with no share of the rows may be added.
Decision 93 in docs/design/ has the reasons.
"""

import bisect
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
from data_pipeline.sampling.mixture import MIXTURE_VERSION, PARTS, MixedSource, chain
from data_pipeline.sampling.mixture import make_schedule as make_shares
from data_pipeline.spec.options import OPTIONS_OF_A_RUN

# Settings of config.optim that act through the learning rate of a step alone.
_SCHEDULE = (
    *("learning_rate", "warmup_steps", "warmup_tokens", "decay", "decay_power", "decay_steps"),
    *("end_learning_rate", "decay_counts_warmup"),
)
# Groups of settings that change no weight, and the phases, which are compared step by step.
_FREE_GROUPS = ("checkpoint.", "eval.", "hosts.", "log.", "phases[")
# The settings compared step by step, as the phases have them, and places.
_FREE = {
    *("log_every_steps", "objective", "teacher", "model.is_causal", "compute.compute_dtype"),
    *("data.masked_lm_prob", *(f"data.{name}" for name in OPTIONS_OF_A_RUN)),
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
        """Return the settings by key; what a record of another commit lacks has its default."""
        return config_lib.flatten(config_lib.recorded(self.config))

    @property
    def digests(self) -> list[str]:
        """Return the digest of each store."""
        return str(self.record["store"]["digest"]).split(",")

    def list_starts(self, last_step: int) -> list[int]:
        """List the steps after which a phase begins, before the given one."""
        config = self.config
        starts = (config_lib.phase_start(config, index) for index in range(len(config.phases)))
        return [start for start in starts if start < last_step]


def read_history(record: Mapping[str, Any], name: object) -> History:
    """Parse the record of a pre-training run; Refused if it is from another version."""
    return History(record, parse_config(record, name))


@dataclasses.dataclass(frozen=True)
class StepDifference:
    """Name the first step in which two runs differ, and a setting that makes it so."""

    step: int
    key: str  # the setting's, with "config." where it is one
    before: Any
    now: Any
    effect: str = ""  # what is different about the step, where the setting does not say it

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
    """Find the first of the steps 1 to last_step in which two runs differ; None if they agree.

    `has_bad_steps` says that the trunk discarded or skipped a step. Without one the guard's window
    follows from the phases, so a phase that begins in one run alone makes no difference.
    """
    differences = [
        *_compare_settings(trunk, leaf),
        *_compare_phases(trunk, leaf, last_step),
        *_compare_rows(trunk, leaf, last_step),
        *_compare_rates(trunk, leaf, last_step),
        *_compare_starts(trunk, leaf, last_step, has_bad_steps),
    ]
    return min(differences, key=lambda difference: difference.step, default=None)


def _compare_settings(trunk: History, leaf: History) -> Iterator[StepDifference]:
    """Compare what holds for all steps: settings, versions, vocabulary, dtype and devices."""
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
    values.setdefault(MIXTURE, MIXTURE_VERSION)  # a run of one store mixes nothing
    values |= {f"vocabulary.{key}": value for key, value in read_pinned(record).items()}
    values["devices"] = int(count)
    values["config.compute.compute_dtype"] = str(resolve_dtype(config.compute, kind))
    if config.optim.name == "stable_adamw":  # divides the weight decay by it
        values["config.optim.learning_rate"] = config.optim.learning_rate
    return values | {
        f"config.{key}": value
        for key, value in settings.items()
        if key not in _FREE and not key.startswith(_FREE_GROUPS)
    }


def _list_stretches(trunk: History, leaf: History, last_step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps with one phase in each run: the steps before, and the last step."""
    starts = sorted({*trunk.list_starts(last_step), *leaf.list_starts(last_step)})
    yield from itertools.pairwise([*starts, last_step])


def _compare_phases(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    for start, _ in _list_stretches(trunk, leaf, last_step):
        before, now = (_list_phase_values(each.config, start + 1) for each in (trunk, leaf))
        index = config_lib.phase_of_step(leaf.config, start + 1)
        for key, value in now.items():
            if before[key] != value:
                yield StepDifference(start + 1, f"config.phases[{index}].{key}", before[key], value)


def _list_phase_values(config: ResolvedRun, step: int) -> dict[str, Any]:
    """Return what a step takes from its phase, with the values of the run filled in."""
    index = config_lib.phase_of_step(config, step)
    model = config_lib.model_in_phase(config, index)
    return {
        **{name: getattr(config.phases[index], name) for name in _OF_PHASE},
        "masked_lm_prob": config_lib.data_in_phase(config, index).masked_lm_prob,
        **{name: getattr(model, name) for name in (*THETAS, "is_causal")},
    }


def _compare_rows(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    """Compare from which store the rows of each step are, and which of its rows they are.

    Within a range of steps both sequences of stores are periodic, with periods of PARTS at most, so
    they agree everywhere if they agree on two of these (the theorem of Fine and Wilf).
    """
    for start, end in _list_stretches(trunk, leaf, last_step):
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
    """Return the digest of the store of each row after `start` steps, and its row in that store."""
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
    store_B, own_B = MixedSource((), chain(shares), shares[0][1].weights_K).find_parts(positions_B)
    return digests_K[store_B], own_B


def _list_weights(history: History, index: int) -> tuple[float, ...]:
    return tuple(history.record["fixed"].get(_WEIGHTS.format(index), (1.0,)))


def _compare_rates(trunk: History, leaf: History, last_step: int) -> Iterator[StepDifference]:
    """Compare the learning rates bit by bit, and name a setting of the schedule that differs."""
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
        key = next(key for key in keys if settings.get(key) != others.get(key))
        effect = f"a learning rate of {now_N[step]:g}, not {before_N[step]:g}"
        values = settings.get(key), others.get(key)
        yield StepDifference(step + 1, f"config.{key}", *values, effect)


def _compare_starts(
    trunk: History, leaf: History, last_step: int, has_bad_steps: bool
) -> Iterator[StepDifference]:
    """Compare where phases begin, if the guard's window, which begins with them, matters."""
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
    """Return the steps of a step's phase up to it: the good ones in the guard's window if all are.

    0 for step 0.
    """
    starts = [config_lib.phase_start(config, index) for index in range(len(config.phases))]
    return step - starts[max(0, bisect.bisect_left(starts, step) - 1)]
