"""Choose the size, rows, batch and steps that a budget of time pays for.

`choose_run` is a function of a request, a measurement and a clock. A step of the smallest size is
measured first. Unmeasured sizes are assumed to run at the same operations per second, until one of
them is predicted to have the lowest loss; then it is measured too.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.benchmarking.dial_settings import (
    EVALUATIONS,
    PHASE_SHARES,
    DialRequest,
    choose_octaves,
    configure,
    find_tuned,
    set_choices,
)
from bert_jax.config import Config, ResolvedRun, resolve
from bert_jax.planning import budget as budget_lib
from bert_jax.planning import estimate
from bert_jax.planning.candidates import FAMILY, SIZE_FIELDS, EncoderShape, reshape
from bert_jax.planning.fit import fit_ladder
from bert_jax.planning.law import Law, count_layer_parameters, count_most_parameters
from bert_jax.trainer.heldout import MANY_EPOCHS
from data_pipeline.io import Refused

# The share of the budget that is planned for; the rest covers variation from run to run.
AIM = 0.96
# Seconds after the choice that go into neither steps nor evaluations (initial weights, tracing,
# compiling evaluations, saves, curves), per second of tracing and compiling a step. Estimated from
# the processor time of a single run.
REST_PER_SETUP_SEC = 2.0
MAX_MEASURED = 3  # sizes, and batches
# The share of the remaining time that may go into measuring another batch, per octave of change.
BATCH_SHARE = 0.2


class StepTime(NamedTuple):
    """Hold the seconds of a step, and the seconds that tracing and compiling it took."""

    step_secs: float
    setup_secs: float


Measure = Callable[[ResolvedRun, int], StepTime]  # times a phase of a resolved config


@dataclasses.dataclass(frozen=True)
class DialSize:
    """Hold a size of the model at one batch: its config, and the step time of each phase."""

    shape: EncoderShape
    octaves: float  # doublings between the tuned batch and this one
    config: ResolvedRun  # its steps are yet to be chosen
    step_secs: tuple[float, ...]
    setup_secs: float  # the longest set-up: others may find the step compiled
    paced_secs: tuple[float, ...]  # step_secs, plus evaluations if eval.every_steps is given
    evaluation_secs: float  # evaluations that are not in paced_secs

    @property
    def layer_parameters(self) -> int:
        return count_layer_parameters(self.config.model)

    @property
    def min_steps(self) -> int:
        """Return the fewest steps in which a model learns something useful."""
        return find_tuned(self.config.optim.name, self.shape).min_steps

    @property
    def rest_secs(self) -> float:
        """Return the seconds after the choice that are neither in steps nor in evaluations."""
        return REST_PER_SETUP_SEC * self.setup_secs

    @property
    def measuring_secs(self) -> float:
        """Return the seconds that a measurement takes."""
        return len(self.step_secs) * self.setup_secs

    @property
    def mean_secs(self) -> float:
        """Return the mean of paced_secs, weighted by the phases' steps."""
        return float(np.dot(PHASE_SHARES, self.paced_secs))


@dataclasses.dataclass(frozen=True)
class DialChoice:
    """Hold the chosen run, with the numbers that decided it."""

    config: ResolvedRun  # its budget is empty
    written: Config  # the same without settings that follow from others
    size: DialSize
    measured: tuple[DialSize, ...]
    losses: Mapping[EncoderShape, float]  # predicted by the law; infinity for too few steps
    too_large: EncoderShape | None  # the smallest size that does not fit into memory
    spent_secs: float  # time that the command took until the choice
    secs: float  # expected, from the start of the command to its end


def choose_run(request: DialRequest, measure: Measure, clock: Callable[[], float]) -> DialChoice:
    """Choose the run that a budget pays for on this machine.

    `clock` returns the seconds since the command began.

    Raises:
      Refused: the store is too small for any size, or the budget for any useful run.
    """
    _check_recipe(request.config)
    law = fit_ladder()
    shapes = _list_shapes(request, law)
    # Refuse settings that do not fit a size, and a store without held-out rows, before measuring.
    smallest, *_ = [configure(request, shape, 0.0) for shape in shapes]
    for phase in smallest.phases:
        request.count_rows(phase.seq_len)
    speeds = _Speeds(request, measure, clock, law, shapes)
    size = speeds.choose_size()
    tried = set[float]()  # batches; on a busy machine the best batch may oscillate
    while (octaves := choose_octaves(speeds.count_tokens(size))) not in tried:
        tried |= {size.octaves, octaves}
        if octaves < 0:
            size = speeds.shrink(size, octaves)
            break
        most_secs = BATCH_SHARE * abs(octaves - size.octaves) * speeds.left_secs(size)
        if size.measuring_secs > most_secs or len(tried) > MAX_MEASURED:
            break
        if configure(request, size.shape, octaves) == size.config:
            break  # batches are given, or already at the minimum for the devices
        try:
            size = speeds.measure(size.shape, octaves)
        except MemoryError:  # keep the smaller batch
            break
    speeds.rank([size.shape])  # refuses if the measurements left too little time
    return _build_choice(request, speeds, size)


def _check_recipe(config: Config) -> None:
    budget_lib.check(config, "config.budget")
    if len(config.phases) != 2:
        raise Refused(
            "config.budget is for a recipe of two phases, and this config has "
            f"{len(config.phases)}; use --config=configs/auto.py"
        )


def _list_shapes(request: DialRequest, law: Law) -> list[EncoderShape]:
    """List the sizes that the text is enough for, the smallest first.

    Raises:
      Refused: there is none.
    """
    model = request.config.model
    given = [name for name in SIZE_FIELDS if request.is_given(f"model.{name}")]
    if given:
        for name in ("num_hidden_layers", "hidden_size"):
            if name not in given:
                raise Refused(
                    f"config.model.{given[0]} is given, and a size needs config.model.{name} too; "
                    "give both num_hidden_layers and hidden_size, or leave the size to the budget"
                )
        return [EncoderShape(model.num_hidden_layers, model.hidden_size)]
    ratios = [point.parameters / point.unique_tokens for point in law.points]
    most = count_most_parameters(request.unique_tokens, ratios)
    counts = {
        shape: count_layer_parameters(reshape(request.config, shape).model) for shape in FAMILY
    }
    shapes = [shape for shape, count in counts.items() if count <= most]
    if not shapes:
        smallest, count = min(counts.items(), key=lambda pair: pair[1])
        needed = math.ceil(count / (most / request.unique_tokens))
        raise Refused(
            f"config.data.store={request.config.data.store} has {request.unique_tokens:,} tokens "
            f"to train on, and the smallest size, {smallest.name}, needs {needed:,}, one per ten "
            "parameters of its layers; build a store of more text, continue a published encoder "
            "with --config=configs/continue.py, or try --config=configs/quickstart.py"
        )
    return shapes


@dataclasses.dataclass
class _Speeds:
    """Find how fast sizes train: measured, or scaled by operations from the largest measured."""

    request: DialRequest
    measure_phase: Measure
    clock: Callable[[], float]
    law: Law
    shapes: list[EncoderShape]  # the sizes that may be chosen, the smallest first
    measured: dict[EncoderShape, DialSize] = dataclasses.field(default_factory=dict)
    too_large: EncoderShape | None = None  # the smallest that does not fit into memory

    def choose_size(self) -> DialSize:
        """Measure sizes until the size with the lowest predicted loss is measured; return it.

        Raises:
          Refused: the budget is too small for any of them, or the memory.
        """
        shape: EncoderShape | None = self.shapes[0]
        while shape is not None and len(self.measured) < MAX_MEASURED:
            try:
                self.measure(shape, 0.0)
            except MemoryError as error:
                if not self.measured:
                    raise Refused(str(error)) from error
                self.shapes = self.shapes[: self.shapes.index(shape)]  # larger ones fail too
                self.too_large = shape
            shape = self._find_next()
        return self.rank(list(self.measured))[0]

    def _find_next(self) -> EncoderShape | None:
        """Return an unmeasured size that is predicted to be the best, or may be; else None."""
        best, *others = self.rank(self.shapes)
        rivals = [best, *(each for each in others if self._may_beat(each, best))]
        return next((each.shape for each in rivals if each.shape not in self.measured), None)

    def measure(self, shape: EncoderShape, octaves: float) -> DialSize:
        """Measure a step of each phase of a size."""
        config = configure(self.request, shape, octaves)
        times = [self.measure_phase(config, index) for index in range(len(config.phases))]
        step_secs = tuple(time.step_secs for time in times)
        before = [each.setup_secs for each in self.measured.values() if each.shape == shape]
        setup_secs = max(*before, *(time.setup_secs for time in times))
        size = self._make_size(shape, octaves, config, step_secs, setup_secs)
        self.measured[shape] = size
        return size

    def shrink(self, size: DialSize, octaves: float) -> DialSize:
        """Return a size with a smaller batch; step times are assumed proportional to the batch."""
        config = configure(self.request, size.shape, octaves)
        step_secs = tuple(
            secs * phase.batch_size / measured.batch_size
            for secs, phase, measured in zip(
                size.step_secs, config.phases, size.config.phases, strict=True
            )
        )
        return self._make_size(size.shape, octaves, config, step_secs, size.setup_secs)

    def find(self, shape: EncoderShape) -> DialSize:
        """Return a size with its measured speed, or one estimated from its operations."""
        if shape in self.measured:
            return self.measured[shape]
        known = max(self.measured.values(), key=lambda each: each.layer_parameters)
        config = configure(self.request, shape, known.octaves)
        setup_secs = known.setup_secs * max(1.0, shape.layers / known.shape.layers)
        flops_per_sec = estimate.count_step_flops(known.config, 0) / known.step_secs[0]
        secs = tuple(estimate.count_step_flops(config, i) / flops_per_sec for i in range(2))
        return self._make_size(shape, known.octaves, config, secs, setup_secs)

    def _make_size(
        self,
        shape: EncoderShape,
        octaves: float,
        config: ResolvedRun,
        step_secs: tuple[float, ...],
        setup_secs: float,
    ) -> DialSize:
        """Make a size with the time of its evaluations: a row takes a third of a training row."""
        each_secs = [
            self.request.count_rows(phase.seq_len).evaluated / phase.batch_size * secs / 3
            for phase, secs in zip(config.phases, step_secs, strict=True)
        ]
        paced_secs, evaluations = step_secs, (EVALUATIONS, 2)
        if self.request.is_given("eval.every_steps") and (every := config.eval.every_steps):
            pairs = zip(step_secs, each_secs, strict=True)
            paced_secs, evaluations = tuple(a + b / every for a, b in pairs), (1, 1)
        evaluation_secs = float(np.dot(evaluations, each_secs))
        times = (step_secs, setup_secs, paced_secs, evaluation_secs)
        return DialSize(shape, octaves, config, *times)

    def rank(self, shapes: Sequence[EncoderShape]) -> list[DialSize]:
        """List the sizes that learn anything within the budget, the lowest predicted loss first.

        Raises:
          Refused: there is none.
        """
        sizes = [self.find(shape) for shape in shapes]
        useful = [size for size in sizes if self.count_steps(size) >= size.min_steps]
        if not useful:
            fastest = min(sizes, key=lambda size: size.mean_secs)
            self._refuse(fastest)
        return sorted(useful, key=self.predict)

    def _refuse(self, size: DialSize) -> None:
        budget = self.request.budget
        steps = max(0, math.floor(self.count_steps(size)))
        if self.left_secs(size) >= size.min_steps * size.mean_secs:
            raise Refused(
                f"config.data.store={self.request.config.data.store} has "
                f"{self.request.unique_tokens:,} tokens to train on, which {steps:,} steps read "
                f"{MANY_EPOCHS} times, and a model learns little in fewer than {size.min_steps}; "
                "set smaller config.phases[0].batch_size and config.phases[1].batch_size, or build "
                "a store of more text"
            )
        in_steps = size.min_steps * size.mean_secs + size.evaluation_secs
        needed = (self.clock() + size.rest_secs + in_steps) / AIM / 60
        raise Refused(
            f"config.budget is {budget.text}, and here it buys {steps:,} steps of "
            f"{size.shape.name}, the fastest size, which learns little in fewer than "
            f"{size.min_steps}; give {math.ceil(needed)}m or more"
        )

    def _may_beat(self, size: DialSize, best: DialSize) -> bool:
        """Return whether a size would be better than the best if it were faster than assumed."""
        secs = tuple(each / budget_lib.OPTIMISM for each in size.step_secs)
        sizes = (size.shape, size.octaves, size.config)
        return self.predict(self._make_size(*sizes, secs, size.setup_secs)) < self.predict(best)

    def left_secs(self, size: DialSize) -> float:
        """Return the seconds that are left for steps, less a measurement if there was none."""
        left = AIM * self.request.budget.secs - self.clock() - size.rest_secs
        if size.shape not in self.measured:
            left -= size.measuring_secs
        return left - size.evaluation_secs

    def count_steps(self, size: DialSize) -> float:
        """Return the steps of both phases that fit the time, at most MANY_EPOCHS of the text."""
        most = MANY_EPOCHS * self.request.unique_tokens / self.count_step_tokens(size)
        return min(self.left_secs(size) / size.mean_secs, most)

    def count_tokens(self, size: DialSize) -> float:
        """Return the tokens that count_steps steps read."""
        return self.count_steps(size) * self.count_step_tokens(size)

    def count_step_tokens(self, size: DialSize) -> float:
        """Return the mean tokens of a step."""
        tokens = [self.request.count_tokens(phase) for phase in size.config.phases]
        return float(np.dot(PHASE_SHARES, tokens))

    def predict(self, size: DialSize) -> float:
        """Return the loss that the law predicts; infinity where nothing is learned."""
        if self.count_steps(size) < size.min_steps:
            return math.inf
        tokens, unique_tokens = self.count_tokens(size), self.request.unique_tokens
        return self.law.predict(size.layer_parameters, tokens, unique_tokens).loss


def _split_steps(request: DialRequest, size: DialSize, left_secs: float) -> list[int]:
    """Return each phase's steps for what given steps leave of the time and of MANY_EPOCHS."""
    left_tokens = float(MANY_EPOCHS * request.unique_tokens)
    secs_per_share = tokens_per_share = 0.0
    for index, phase in enumerate(size.config.phases):
        secs, tokens = size.paced_secs[index], request.count_tokens(phase)
        if request.is_given(f"phases[{index}].steps"):
            left_secs -= phase.steps * secs
            left_tokens -= phase.steps * tokens
        else:
            secs_per_share += PHASE_SHARES[index] * secs
            tokens_per_share += PHASE_SHARES[index] * tokens
    if left_secs < 0:
        raise Refused(
            f"config.budget is {request.budget.text}, and the steps given take {-left_secs:,.0f} s "
            "more; give fewer config.phases[i].steps, or a larger budget"
        )
    total = 0.0
    if secs_per_share:
        total = min(left_secs / secs_per_share, left_tokens / tokens_per_share)
    return [max(1, math.floor(share * total)) for share in PHASE_SHARES]


def _build_choice(request: DialRequest, speeds: _Speeds, size: DialSize) -> DialChoice:
    steps = _split_steps(request, size, speeds.left_secs(size))
    most_between_saves = round(budget_lib.SAVE_EVERY_SECS / size.mean_secs)
    written = set_choices(request, size.shape, size.octaves, steps, most_between_saves)
    config = resolve(written, store=request.facts)
    in_steps = sum(
        phase.steps * secs for phase, secs in zip(config.phases, size.paced_secs, strict=True)
    )
    secs = speeds.clock() + size.rest_secs + size.evaluation_secs + in_steps
    losses = {shape: speeds.predict(speeds.find(shape)) for shape in speeds.shapes}
    measured = tuple(speeds.measured.values())
    spent_secs, too_large = speeds.clock(), speeds.too_large
    return DialChoice(config, written, size, measured, losses, too_large, spent_secs, secs)
