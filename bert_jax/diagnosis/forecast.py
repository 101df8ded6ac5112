"""Predict the last held-out loss of a run from its first lines and a band of earlier runs.

The early losses of a run do not tell its last one by themselves: the loss falls late, when a
plateau ends and when the learning rate decays. Runs of the same config have the same shape, so the
forecast is the band's end, moved by 0.75 of the distance between this run's training loss and the
band's over the newest tenth of the run. A held-out set of another seed is easier or harder; where
the unigram line of the last phase is known, it says by how much.

What was compared, and the errors: docs/experiments.md, "Forecast of the last loss".
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.diagnosis.bands import Band
from bert_jax.diagnosis.curves import Points
from bert_jax.diagnosis.run_state import RunState

TERMS = ("mlm", "causal", "permutation")  # the losses whose forecasts were measured
FIRST_SHARE = 0.1  # of the run, from which it is predicted
LEVEL = 0.8  # share of runs whose last loss lies in the interval
_WINDOW_SHARE = 0.1  # of the run, over which training losses are averaged
_FEWEST_LINES = 2  # of training in the window
_WEIGHT = 0.75  # of this run's distance to the band; 1 follows noise, 0 ignores the run
# What is known of the deviation before a band's own runs: 1% of the loss, as good as two runs.
_PRIOR_DEVIATION, _PRIOR_DEGREES = 0.01, 2
_FAR_DEVIATIONS, _FAR_SHARE = 4.0, 0.03  # from the band: a run unlike all of it


class NotKnown(ValueError):
    """Explain why a run's end cannot be predicted."""


@dataclasses.dataclass(frozen=True)
class Early:
    """Hold what is known about a run at a step."""

    step: int
    steps: int  # of the complete run
    store: str  # digest; "" if unknown
    train: Points  # steps and training losses of the term, nats
    unigram: float | None  # line of the last phase's held-out set; None if unknown


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Hold the predicted last held-out loss of a term, in nats."""

    term: str
    step: int  # at which it was made
    loss: float
    low: float  # the interval of LEVEL
    high: float
    runs: int  # of the band

    def __str__(self) -> str:
        return (
            f"last held-out {self.term} loss {self.loss:.3f} ({self.low:.3f} to "
            f"{self.high:.3f} in {LEVEL:.0%} of runs; from {self.runs} earlier runs)"
        )


def forecast(term: str, early: Early, band: Band | None) -> Forecast:
    """Predict the last held-out loss of a term.

    The interval is Student's, of the deviations that the same rule leaves among the band's runs
    and a prior deviation of 1% of the loss with the weight of two runs.

    Raises:
      NotKnown: less than a tenth of the run is over, there is no band of its config and store, too
        few training lines, or the run is far from every run of the band.
    """
    if early.step < FIRST_SHARE * early.steps:
        raise NotKnown(f"none before step {FIRST_SHARE * early.steps:,.0f}, a tenth of it")
    if term not in TERMS:
        raise NotKnown(f"none of the {term} loss; forecasts are of {', '.join(TERMS)}")
    if band is None:
        raise NotKnown(
            "none without a band of earlier runs of this config; report --record=FILE makes "
            "one of finished runs"
        )
    if not early.store or band.store != early.store:
        raise NotKnown(f"none from {band.name}, which is of runs on another store")
    train = band.curves.get(("train", f"{term}_loss"))
    heldout = band.curves.get(("heldout", f"{term}_loss"))
    if band.steps != early.steps or train is None or heldout is None:
        raise NotKnown(f"none: {band.name} has no {term} loss of runs of {early.steps:,} steps")
    if heldout.steps_N[-1] < band.steps:
        raise NotKnown(f"none: the held-out losses of {band.name} end before its last step")
    own = float(_mean_of_window(early.train, early.step, early.steps))
    others_R = _mean_of_window((train.steps_N, train.values_RN), early.step, early.steps)
    far = max(_FAR_DEVIATIONS * others_R.std(ddof=1), _FAR_SHARE * others_R.mean())
    if abs(own - others_R.mean()) > far:
        raise NotKnown(
            f"none: the training {term} loss is {own:.3f}, far from {others_R.mean():.3f}, "
            f"the mean of the {band.runs} runs of {band.name} at this step"
        )
    lasts_R = heldout.values_RN[:, -1]
    unigrams = band.curves.get(("heldout", f"unigram_{term}_loss"))
    base = 0.0
    if early.unigram is not None and unigrams is not None:
        lasts_R, base = lasts_R - unigrams.values_RN[:, -1], early.unigram
    rests_R = lasts_R - _WEIGHT * others_R
    loss = base + float(rests_R.mean()) + _WEIGHT * own
    return _with_interval(term, early.step, loss, rests_R)


def _with_interval(term: str, step: int, loss: float, rests_R: np.ndarray) -> Forecast:
    """Add the interval: Student's, for one more run beside R, with the prior's degrees."""
    from scipy import special

    runs = len(rests_R)
    degrees = _PRIOR_DEGREES + runs - 1
    squares = _PRIOR_DEGREES * (_PRIOR_DEVIATION * loss) ** 2 + runs * float(rests_R.var())
    deviation = (squares / degrees * (1 + 1 / runs)) ** 0.5
    half = float(special.stdtrit(degrees, 0.5 + LEVEL / 2)) * deviation
    return Forecast(term, step, loss, loss - half, loss + half, runs)


def _mean_of_window(points: Points, step: float, steps: int) -> np.ndarray:
    """Return means of losses [..., N] over the tenth of the run up to a step, float64[...]."""
    steps_N, values = points
    in_window_N = (steps_N <= step) & (steps_N > step - _WINDOW_SHARE * steps)
    if in_window_N.sum() < _FEWEST_LINES:
        raise NotKnown(
            f"the tenth of the run before step {step:,.0f} has {in_window_N.sum()} training lines, "
            f"and a forecast needs {_FEWEST_LINES}; log more often (config.log_every_steps)"
        )
    return np.asarray(values)[..., in_window_N].mean(axis=-1)


@dataclasses.dataclass
class Forecaster:
    """Predict a training run's end at its held-out lines.

    A run without a forecast shows none; one that had one and loses it shows why, once.
    """

    band: Band
    steps: int  # of the complete run
    store: str  # digest
    unigrams: Mapping[str, float]  # lines of the last phase's held-out set, by term
    show: Callable[[str], None]

    def __post_init__(self) -> None:
        self._train: list[Mapping[str, Any]] = []
        self._predicted: set[str] = set()  # terms whose newest line has a forecast

    def restart(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Go on behind the lines of a metrics.jsonl."""
        self._train = []
        for line in lines:
            self._keep(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a line of metrics; at one of held-out losses show the forecasts."""
        self._keep(line)
        if line["split"] != "heldout" or line["step"] >= self.steps:
            return
        for term in TERMS:
            points = [
                (each["step"], each[f"{term}_loss"])
                for each in self._train
                if f"{term}_loss" in each
            ]
            if not points:
                continue
            train_N2 = np.asarray(points, np.float64)
            unigram = self.unigrams.get(term)
            train = (train_N2[:, 0], train_N2[:, 1])
            early = Early(int(line["step"]), self.steps, self.store, train, unigram)
            try:
                guess = forecast(term, early, self.band)
            except NotKnown as reason:
                if term in self._predicted:
                    self.show(f"forecast: {reason}")
                self._predicted.discard(term)
                continue
            self._predicted.add(term)
            self.show(f"forecast: {guess}")

    def _keep(self, line: Mapping[str, Any]) -> None:
        if line["split"] == "train":
            first = line["step"] - _WINDOW_SHARE * self.steps
            self._train = [*(each for each in self._train if each["step"] > first), line]


def describe(run: RunState, band: Band | None) -> list[tuple[str, str]]:
    """Describe a run beside a band, and its forecast or why it has none, as labels and texts."""
    rows = []
    if band is not None:
        place = "" if band.store == run.store else " on another store: compare shapes, not losses"
        rows.append(("band", f"{band.runs} runs of this config ({band.name}){place}"))
    terms = [term for term in TERMS if term in run.list_terms()]
    if run.summary and run.curves.last_step >= run.steps:
        if band is None:
            words = "none of this config; report --record=FILE makes one of finished runs"
            return [("band", words)] if terms else []
        for term in terms:
            loss, ends = run.curves.last("heldout", f"{term}_loss"), _range_at_end(band, term)
            if loss is not None and ends:
                text = f"last held-out {term} loss {loss:.3f}; earlier runs ended at {ends}"
                rows.append(("", text))
        return rows
    texts = []
    for term in terms:
        try:
            texts.append(str(forecast(term, read_early(run, term), band)))
        except NotKnown as error:
            texts.append(str(error))
    return rows + [("forecast", text) for text in dict.fromkeys(texts)]


def _range_at_end(band: Band, term: str) -> str:
    table = band.summarize("heldout", f"{term}_loss")
    if not table or table["steps"][-1] < band.steps:
        return ""
    mean, deviation, low, high = (table[key][-1] for key in ("mean", "sd", "min", "max"))
    return f"{low:.3f} to {high:.3f}, mean {mean:.3f}, standard deviation {deviation:.3f}"


def read_early(run: RunState, term: str) -> Early:
    """Return what a run's records say; the unigram line once the last phase was evaluated."""
    counts = [
        count
        for key, count in run.settings.items()
        if key.startswith("phases[") and key.endswith("].steps") and type(count) is int
    ]
    steps_N, values_N = run.curves.select("heldout", f"unigram_{term}_loss")
    is_in_last_phase = (
        len(steps_N) > 0 and steps_N[-1] > run.steps - counts[-1] if counts else False
    )
    unigram = float(values_N[-1]) if is_in_last_phase else None
    train = run.curves.select("train", f"{term}_loss")
    return Early(run.curves.last_step, run.steps, run.store, train, unigram)
