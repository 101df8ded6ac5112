"""Choose the size, tokens and steps with the lowest predicted held-out loss for a budget.

A law predicts the loss of each candidate from its parameters, the tokens that it reads, and how
often it reads the same tokens. The number of tokens follows from the speed, which is assumed at
first. The best candidate is compiled for a better estimate, until the best one has been compiled.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.planning import candidates as candidates_lib
from bert_jax.planning.aot_compile import TooLarge
from bert_jax.planning.candidates import SIZE_FIELDS, CompileAll, EncoderShape, RunCandidate
from bert_jax.planning.chip_prices import Price
from bert_jax.planning.law import Law, count_in_words, count_most_parameters
from bert_jax.planning.slices import Slice
from bert_jax.train_step.schedule import list_ramps
from bert_jax.trainer.feed import StoreFeed
from bert_jax.trainer.heldout import MANY_EPOCHS
from data_pipeline.io import Refused
from data_pipeline.store import TEXT, Store

# The share of a budget that does not go into steps (evaluations, saves, reading, waiting for
# batches), and its minimum, the seconds that are billed before the first step. Both are assumed.
RESERVE_SHARE, START_SECS = 0.05, 300.0
SAVE_EVERY_SECS = 480.0  # mean seconds of steps between saves
MIN_EPOCHS = 0.1  # epochs of the corpus; nothing is predicted for fewer
OBJECTIVES = ("mlm_nsp", "mlm")  # the law predicts their masked language model
OPTIMISM = 1.5  # how much faster than assumed a size may turn out
_MAX_COMPILED = 2  # candidates
_CLOSE = 0.01  # nats
_CURVE = np.geomspace(1 / 8, 8, 49)  # times the budget
_ANY_BUDGET = 1e30  # times the budget, so that only the text limits the steps


@dataclasses.dataclass(frozen=True)
class Budget:
    """Hold the dollars to spend on a slice."""

    usd: float
    usd_per_chip_hour: float
    chips: int
    price: Price  # the list's entry

    @property
    def secs(self) -> float:
        """Return the seconds of the slice that the budget pays for."""
        return 3600 * self.usd / (self.usd_per_chip_hour * self.chips)

    @property
    def step_secs(self) -> float:
        """Return the seconds of steps that the budget pays for, after the overhead."""
        return self.secs - max(START_SECS, RESERVE_SHARE * self.secs)

    def price_secs(self, secs: float) -> float:
        """Return the price of some seconds of the slice."""
        return secs / 3600 * self.usd_per_chip_hour * self.chips


def compute_reserve(step_secs: float) -> float:
    """Return the overhead, in seconds, of a run whose steps take step_secs in total."""
    return max(START_SECS, RESERVE_SHARE / (1 - RESERVE_SHARE) * step_secs)


@dataclasses.dataclass(frozen=True)
class CorpusFacts:
    """Hold counts of the training text, and of the rows of each phase."""

    unique_tokens: float
    tokens_per_row: tuple[float, ...]  # positions that are not padding
    rows_per_epoch: tuple[float, ...]


_ROWS_COUNTED = 512


def count_corpus(source: StoreFeed) -> CorpusFacts:
    """Count the text of a store, or of several, and the tokens in rows of each phase.

    Raises:
      Refused: as check_stores does.
    """
    check_stores(source.stores)
    indices = range(len(source.config.phases))
    masks = [source.first_rows(index, _ROWS_COUNTED)["input_mask"] for index in indices]
    return CorpusFacts(
        unique_tokens=float(sum(store.train.tokens for store in source.stores)),
        tokens_per_row=tuple(float(mask_BS.sum(axis=1).mean()) for mask_BS in masks),
        rows_per_epoch=tuple(source.open_source(index).mean_rows_per_epoch for index in indices),
    )


@dataclasses.dataclass(frozen=True)
class BudgetRequest:
    """Hold a budget to spend, with the slice, the text and the law."""

    config: Config  # resolved, with the size of the vocabulary
    tpu_slice: Slice
    budget: Budget
    corpus: CorpusFacts
    law: Law
    is_spot: bool = False

    def scale(self, factor: float) -> "BudgetRequest":
        """Return the request with its budget times `factor`."""
        budget = dataclasses.replace(self.budget, usd=factor * self.budget.usd)
        return dataclasses.replace(self, budget=budget)


@dataclasses.dataclass(frozen=True)
class Purchase:
    """Hold the run of a shape that a budget pays for. Fields are public keys of --json_out."""

    size: str
    layer_parameters: int
    budget_dollars: float
    dollars: float  # less than the budget if more steps would read the text too often
    steps: list[int]  # each phase's
    tokens: float
    epochs: float
    predicted_heldout_loss: float
    interval: list[float]
    speed: str  # origin of the first phase's speed: compiled, or assumed


@dataclasses.dataclass(frozen=True)
class PhaseBill:
    """Describe a phase of the chosen run. Fields are public keys of --json_out."""

    seq_len: int
    steps: int
    rows_per_step: int
    tokens: float
    step_secs: float
    peak_share: float
    speed: str  # compiled, or operations: at the share of peak of a compiled phase
    secs: float
    dollars: float


@dataclasses.dataclass(frozen=True)
class BudgetPlan:
    """Describe the run to train for a budget. Fields are public keys: docs/reference/files.md."""

    topology: str
    chips: int
    usd_per_chip_hour: float
    price_region: str
    price_read: str
    price_source: str
    is_spot: bool
    predicted_heldout_loss: float
    interval: list[float]
    budget_dollars: float
    dollars: float  # the sum of the bill
    days: float
    tokens: float
    unique_tokens: float
    chosen: Purchase
    half: Purchase | None  # the run for half the budget; None if too short to predict
    twice: Purchase | None
    enough_dollars: float  # least dollars with a predicted loss at most 0.01 higher
    candidates: list[Purchase]
    phases: list[PhaseBill]
    reserve_dollars: float
    learning_rate: float
    settings: dict[str, Any]  # flag -> value
    curves: dict[str, list[list[float]]]  # size -> points of dollars, predicted loss, its interval
    law: dict[str, Any]
    law_in_words: str
    notes: list[str]


def check(config: Config, flag: str = "--budget") -> None:
    """Raise Refused for a run whose loss the law does not predict; `flag` names the flag used."""
    for name in config_lib.list_objectives(config):
        if name not in OBJECTIVES:
            raise Refused(
                f"{flag} predicts the loss of a masked language model, but this config learns "
                f"{name}; set --config.objective=mlm, or leave {flag} out"
            )
    shares = config.model.share_layers
    for key, value in (("model.share_layers", shares), ("init", config.init)):
        if value:
            raise Refused(
                f"{flag} predicts runs of new weights, layer by layer, but config.{key} is "
                f"{value}; leave it out, or leave {flag} out"
            )


def check_stores(stores: Sequence[Store], flag: str = "--budget") -> None:
    """Raise Refused for ready-made examples, whose rows keep their length; `flag` as in check."""
    for store in stores:
        if store.kind != TEXT:
            raise Refused(
                f"config.data.store={store.directory} holds ready-made examples, and {flag} counts "
                "text and cuts rows of it; give a store of text"
            )


def choose(request: BudgetRequest, compile_all: CompileAll) -> BudgetPlan:
    """Choose the shape of the lowest predicted loss; its first and longest phases are compiled.

    Raises:
      Refused: the budget pays for less than a start or MIN_EPOCHS of the text, or no shape fits.
    """
    tpu_slice, notes = request.tpu_slice, list[str]()
    ratios = [point.parameters / point.unique_tokens for point in request.law.points]
    most = count_most_parameters(request.corpus.unique_tokens, ratios)
    candidates = candidates_lib.list_candidates(request.config, tpu_slice, most, notes)
    budget = request.budget
    if budget.secs <= START_SECS:
        raise Refused(
            f"${budget.usd:,.2f} pays for {budget.secs:,.0f} s of {tpu_slice.name}, but a start "
            f"alone takes about {START_SECS:.0f} s (assumed); take more than "
            f"${budget.price_secs(START_SECS):,.2f}, or a smaller slice"
        )
    while unknown := _choose_to_compile(request, candidates):
        result = candidates_lib.compile_phases(unknown, tpu_slice, compile_all)
        place = candidates.index(unknown)
        if isinstance(result, TooLarge):
            needed, available = result.needed / 2**30, result.available / 2**30
            words = f"does not fit: a chip needs {needed:.2f} GiB and has {available:.2f}"
            notes.append(f"{unknown.shape.name} {words}")
            del candidates[place]
        else:
            candidates[place] = result
        candidates = candidates_lib.correct_assumed(candidates, tpu_slice)
        if not candidates:
            raise Refused(
                f"no size fits {tpu_slice.name}: {'; '.join(notes)}; take a larger slice, smaller "
                "batches or --config.phases[0].micro_batches=2"
            )
    return _build_plan(request, candidates, notes)


def _choose_to_compile(
    request: BudgetRequest, candidates: Sequence[RunCandidate]
) -> RunCandidate | None:
    """Return the candidate to compile next; None once the best candidate is certain.

    This is the candidate with the lowest predicted loss, then any candidate that would beat it if
    it were OPTIMISM times as fast as assumed.
    """
    (best, bought), *others = _buy_each(request, candidates)
    if not best.is_compiled:
        return best
    if sum(each.is_compiled for each in candidates) >= _MAX_COMPILED:
        return None
    for rival, _ in others:
        if not rival.is_compiled:
            possible = _buy(request, rival.speed_up(OPTIMISM))
            if possible and possible.predicted_heldout_loss < bought.predicted_heldout_loss:
                return rival
    return None


def _split_steps(request: BudgetRequest, candidate: RunCandidate) -> list[int] | None:
    """Return the steps of each phase, in the config's proportions; None if a phase gets no step.

    The steps are as many as the budget pays for, but at most MANY_EPOCHS of the text.
    """
    total = config_lib.total_steps(request.config)
    shares = [phase.steps / total for phase in request.config.phases]
    count = request.budget.step_secs / candidate.count_secs(shares)
    count = min(count, MANY_EPOCHS / _count_epochs(request, shares))
    steps = [math.floor(share * count) for share in shares]
    return steps if min(steps) >= 1 else None


def _count_tokens(request: BudgetRequest, steps: Sequence[int]) -> list[float]:
    """Count the positions that each phase reads without padding."""
    phases, per_row = request.config.phases, request.corpus.tokens_per_row
    return [
        count * phase.batch_size * tokens
        for count, phase, tokens in zip(steps, phases, per_row, strict=True)
    ]


def _count_epochs(request: BudgetRequest, steps: Sequence[float]) -> float:
    phases, rows = request.config.phases, request.corpus.rows_per_epoch
    return sum(
        count * phase.batch_size / per_epoch
        for count, phase, per_epoch in zip(steps, phases, rows, strict=True)
    )


def _buy(request: BudgetRequest, candidate: RunCandidate) -> Purchase | None:
    """Return the run of a candidate that the budget pays for; None if too short to predict."""
    steps = _split_steps(request, candidate)
    if steps is None or (epochs := _count_epochs(request, steps)) < MIN_EPOCHS:
        return None
    budget, tokens = request.budget, sum(_count_tokens(request, steps))
    parameters, unique_tokens = candidate.layer_parameters, request.corpus.unique_tokens
    loss, *interval = request.law.predict(parameters, tokens, unique_tokens)
    return Purchase(
        size=candidate.shape.name,
        layer_parameters=parameters,
        budget_dollars=budget.usd,
        dollars=budget.price_secs(_count_run_secs(candidate, steps)),
        steps=steps,
        tokens=tokens,
        epochs=epochs,
        predicted_heldout_loss=loss,
        interval=interval,
        speed=candidate.speeds[0].origin,
    )


def _count_run_secs(candidate: RunCandidate, steps: Sequence[int]) -> float:
    """Return the seconds of a run, the overhead of compute_reserve included."""
    in_steps = candidate.count_secs(steps)
    return in_steps + compute_reserve(in_steps)


def _buy_each(
    request: BudgetRequest, candidates: Sequence[RunCandidate]
) -> list[tuple[RunCandidate, Purchase]]:
    """Return the run that the budget pays for with each shape, the lowest predicted loss first.

    Raises:
      Refused: no run reads enough of the text, or the text is too little for any run.
    """
    if ranked := _rank(request, candidates):
        return ranked
    store = f"the store's {request.corpus.unique_tokens:,.0f} tokens"
    if not _rank(request.scale(_ANY_BUDGET), candidates):
        raise Refused(
            f"{store}, read {MANY_EPOCHS} times, are fewer than a step of each phase takes; set "
            "smaller config.phases[i].batch_size, or build a store of more text"
        )
    split = [_split_steps(request, candidate) for candidate in candidates]
    most = max(_count_epochs(request, steps) if steps else 0.0 for steps in split)
    raise Refused(
        f"${request.budget.usd:,.2f} on {request.tpu_slice.name} buys {most:.2g} epochs of {store} "
        f"at the fastest size, too few to predict (at least {MIN_EPOCHS}); take a larger budget, "
        "or a part of the text"
    )


def _rank(
    request: BudgetRequest, candidates: Sequence[RunCandidate]
) -> list[tuple[RunCandidate, Purchase]]:
    """List the runs that read enough of the text, the lowest predicted loss first."""
    bought = [(candidate, _buy(request, candidate)) for candidate in candidates]
    known = [(candidate, purchase) for candidate, purchase in bought if purchase is not None]
    return sorted(known, key=lambda pair: pair[1].predicted_heldout_loss)


def _build_plan(
    request: BudgetRequest, candidates: Sequence[RunCandidate], notes: list[str]
) -> BudgetPlan:
    budget = request.budget
    ranked = _buy_each(request, candidates)
    best, chosen = ranked[0]
    phases = _bill_phases(request, best, chosen)
    in_steps = sum(phase.secs for phase in phases)
    curves = _draw_curves(request, candidates)
    half, twice = (
        next((purchase for _, purchase in _rank(request.scale(factor), candidates)), None)
        for factor in (0.5, 2.0)
    )
    return BudgetPlan(
        topology=request.tpu_slice.name,
        chips=request.tpu_slice.chips,
        usd_per_chip_hour=budget.usd_per_chip_hour,
        price_region=budget.price.region,
        price_read=budget.price.read,
        price_source=budget.price.source,
        is_spot=request.is_spot,
        predicted_heldout_loss=chosen.predicted_heldout_loss,
        interval=chosen.interval,
        budget_dollars=budget.usd,
        dollars=chosen.dollars,
        days=_count_run_secs(best, chosen.steps) / 86_400,
        tokens=chosen.tokens,
        unique_tokens=request.corpus.unique_tokens,
        chosen=chosen,
        half=half,
        twice=twice,
        enough_dollars=_find_enough(curves, chosen),
        candidates=[purchase for _, purchase in ranked],
        phases=phases,
        reserve_dollars=budget.price_secs(compute_reserve(in_steps)),
        learning_rate=request.config.optim.learning_rate,
        settings=make_settings(best.config, chosen.steps, phases, request),
        curves=curves,
        law=request.law.to_json(),
        law_in_words=request.law.describe(),
        notes=[*notes, *_write_notes(request, best)],
    )


def _write_notes(request: BudgetRequest, best: RunCandidate) -> list[str]:
    """Return the caveats of the chosen run."""
    notes, model, law = list[str](), request.config.model, request.law
    unique = request.corpus.unique_tokens
    if law.is_own and all(point.unique_tokens != unique for point in law.points):
        theirs, ours = (count_in_words(n) for n in (law.points[0].unique_tokens, unique))
        notes.append(
            f"the ladder was trained on {law.corpus}, {theirs} tokens, and this text has {ours}: "
            "its constants may not fit this text"
        )
    given = EncoderShape(model.num_hidden_layers, model.hidden_size)
    if request.config.optim.transfer == "none" and law.is_own:
        notes.append(
            "the ladder's runs had their rates by transfer, and this config has none, so its loss "
            "may be higher: take the flags config.optim.* of the ladder's own --predict"
        )
    elif request.config.optim.transfer == "none" and given != best.shape:
        notes.append(
            f"the learning rate is the config's, of {given.name}, and may not be the best of "
            f"{best.shape.name}; --config.optim.transfer=mup scales it"
        )
    if best.has_unpriced_kernels:
        notes.append(describe_unpriced(best.shape))
    return notes


def describe_unpriced(shape: EncoderShape) -> str:
    """Return the caveat of a shape whose estimate leaves out a kernel."""
    return (
        f"a kernel of {shape.name} has no price for its shape and counts as nothing: steps take "
        "longer than estimated (python -m benchmarks.kernel_price prices it)"
    )


def _find_enough(curves: dict[str, list[list[float]]], chosen: Purchase) -> float:
    """Return the least dollars for which a curve is within _CLOSE of the chosen loss."""
    most = chosen.predicted_heldout_loss + _CLOSE
    close = [usd for points in curves.values() for usd, loss, *_ in points if loss <= most]
    return min(close, default=chosen.budget_dollars)


def _bill_phases(request: BudgetRequest, best: RunCandidate, chosen: Purchase) -> list[PhaseBill]:
    tokens = _count_tokens(request, chosen.steps)
    bills = []
    for phase, speed, steps, read in zip(
        best.config.phases, best.speeds, chosen.steps, tokens, strict=True
    ):
        secs = steps * speed.step_secs
        bills.append(
            PhaseBill(
                seq_len=phase.seq_len,
                steps=steps,
                rows_per_step=phase.batch_size,
                tokens=read,
                step_secs=speed.step_secs,
                peak_share=speed.peak_share,
                speed=speed.origin,
                secs=secs,
                dollars=request.budget.price_secs(secs),
            )
        )
    return bills


def make_settings(
    config: Config, steps: Sequence[int], bills: Sequence[PhaseBill], request: BudgetRequest
) -> dict[str, Any]:
    """Return the settings of the chosen run, by flag of bert_jax.train.

    Warm-ups keep their share of the steps, and end before their schedule. Saves are SAVE_EVERY_SECS
    apart.
    """
    given, total = request.config, sum(steps)
    settings: dict[str, Any] = {f"model.{n}": getattr(config.model, n) for n in SIZE_FIELDS}
    steps_of_phases = {f"phases[{index}].steps": count for index, count in enumerate(steps)}
    settings |= steps_of_phases
    bought = config_lib.set_fields(given, steps_of_phases)
    lengths = {ramp.first_step: ramp.steps for ramp in list_ramps(bought)}
    for index, phase in enumerate(given.phases):
        if phase.restart_warmup_steps:
            warmup_steps = round(phase.restart_warmup_steps * steps[index] / phase.steps)
            length = lengths[config_lib.phase_start(bought, index)]
            name = f"phases[{index}].restart_warmup_steps"
            settings[name] = min(max(1, warmup_steps), length - 1)
    share = total / config_lib.total_steps(given)
    for name in ("warmup_tokens", "decay_steps"):
        if number := getattr(given.optim, name):
            settings[f"optim.{name}"] = max(1, round(number * share))
    if given.optim.warmup_steps and not given.optim.warmup_tokens:
        warmup_steps = max(1, round(given.optim.warmup_steps * share))
        settings["optim.warmup_steps"] = min(warmup_steps, lengths[0] - 1)
    mean_secs = sum(bill.secs for bill in bills) / total
    settings["checkpoint.every_steps"] = max(1, round(SAVE_EVERY_SECS / mean_secs))
    return {f"config.{key}": value for key, value in settings.items()}


def _draw_curves(
    request: BudgetRequest, candidates: Sequence[RunCandidate]
) -> dict[str, list[list[float]]]:
    """Predict the loss of each shape at budgets from an eighth to eight times this budget."""
    curves: dict[str, list[list[float]]] = {}
    for candidate, factor in itertools.product(candidates, _CURVE):
        if bought := _buy(request.scale(factor), candidate):
            point = [bought.budget_dollars, bought.predicted_heldout_loss, *bought.interval]
            curves.setdefault(bought.size, []).append(point)
    return curves
