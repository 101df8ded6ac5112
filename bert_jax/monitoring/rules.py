"""Diagnose a run while it trains: named rules that report what looks wrong.

A rule reads the metrics of a phase up to a step, the settings and facts about the data. It returns
a sentence and advice, or None. docs/guide/on_track.md lists all rules. Normal behavior is not
reported, such as a short plateau at the unigram loss before a sudden drop, or a loss that changes
with the phase.

Source: benchmarks/planted_faults.py for the thresholds; Chen et al. 2023 (2309.07311) for the
sudden drop.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import Config, phase_start, total_steps

Line = Mapping[str, Any]  # a line of metrics.jsonl
Words = tuple[str, str] | None  # a sentence, and advice

TERMS = {"mlm": "masked words", "causal": "next tokens", "permutation": "permuted tokens"}
# Standard deviations in nats: of a token's loss, and of the mean loss of an example in addition.
_SPREAD, _SPREAD_OF_EXAMPLES = 2.5, 1.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """Hold the report of a rule at a step."""

    rule: str
    step: int
    sentence: str
    advice: str

    def as_record(self) -> dict[str, Any]:
        """Return the record that metrics.jsonl and summary.json keep."""
        return {
            "rule": self.rule,
            "step": self.step,
            "sentence": self.sentence,
            "try": self.advice,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Finding":
        """Build a finding from its record; missing keys give empty values."""
        texts = (str(record.get(key, "")) for key in ("sentence", "try"))
        return cls(str(record.get("rule", "")), int(record.get("step", 0)), *texts)


@dataclasses.dataclass(frozen=True)
class PhaseView:
    """Hold what rules read: a phase up to a step."""

    config: Config
    index: int  # the phase's number
    baseline: Mapping[str, float]  # scores without context, by their names in the records
    per_step: Mapping[str, float]  # counts of a step, named as in summary.json
    step: int  # step of the newest line
    train: Sequence[Line]  # lines of the phase, thinned if there are many
    heldout: Sequence[Line]  # evaluations of the phase

    @property
    def share(self) -> float:
        """Return the share of the run that is done."""
        return self.step / total_steps(self.config)

    @property
    def first_step(self) -> int:
        """Return how many steps of the run are before the phase."""
        return phase_start(self.config, self.index)

    @property
    def steps_taken(self) -> int:
        """Return the steps that this phase has taken."""
        return self.step - self.first_step

    @property
    def taken(self) -> float:
        """Return the share of the run that this phase has taken."""
        return self.steps_taken / total_steps(self.config)

    def curve(self, measure: str, is_heldout: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the steps and values of a measure in this phase: int64[N], float64[N]."""
        lines = [line for line in (self.heldout if is_heldout else self.train) if measure in line]
        return (
            np.array([line["step"] for line in lines], np.int64),
            np.array([line[measure] for line in lines], np.float64),
        )

    def noise(self, steps_N: np.ndarray) -> np.ndarray:
        """Estimate the standard deviation of each line's loss due to the sample of text."""
        before_N = np.concatenate([[self.first_step], steps_N[:-1]])
        count_N = np.maximum(steps_N - before_N, 1)
        words_N = np.maximum(count_N * self.per_step["predictions_per_step"], 1.0)
        examples_N = np.maximum(count_N * self.per_step["examples_per_step"], 1.0)
        return np.sqrt(_SPREAD**2 / words_N + _SPREAD_OF_EXAMPLES**2 / examples_N)


@dataclasses.dataclass(frozen=True)
class _Losses:
    """Hold the losses of a phase with their unigram line."""

    term: str  # mlm, causal or permutation
    words: str
    steps_N: np.ndarray
    losses_N: np.ndarray
    noise_N: np.ndarray
    unigram: float
    uniform: float  # ln of the vocabulary

    @property
    def newest(self) -> float:
        """Return the mean of the last three lines."""
        return float(self.losses_N[-3:].mean())


_MIN_STEPS = 100  # even a good run needs so many to learn word frequencies
_MIN_LINES = 3


def _find_losses(view: PhaseView) -> _Losses | None:
    for term, words in TERMS.items():
        unigram = view.baseline.get(f"unigram_{term}_loss")
        if unigram is not None:
            steps_N, losses_N = view.curve(f"{term}_loss")
            uniform = math.log(view.config.model.vocab_size)
            losses = _Losses(term, words, steps_N, losses_N, view.noise(steps_N), unigram, uniform)
            return losses if len(steps_N) >= _MIN_LINES else None
    return None


def _is_warming_up(view: PhaseView) -> bool:
    """Return whether the learning rate is still rising, so that it is too early to judge it."""
    rates = view.curve("learning_rate")[1]
    is_rising = len(rates) < 2 or rates[-1] > rates[:-1].max()  # a constant rate is not rising
    return is_rising and view.taken < _LATE


_EARLY, _LATE = 0.08, 0.3  # shares of the run
_NEAR = 0.15  # nats above the unigram line that still count as reaching it


def _name_rate(view: PhaseView) -> str:
    return f"config.optim.learning_rate ({view.config.optim.learning_rate:g})"


def classify_above_unigram(view: PhaseView) -> dict[str, _Losses]:
    """Return losses that are still above the unigram line as flat, falling or unsteady; else {}."""
    losses = _find_losses(view)
    if losses is None or view.step < _MIN_STEPS or much_dropout(view):
        return {}
    is_near = min(losses.newest, losses.losses_N[-1]) < losses.unigram + _NEAR
    if view.taken < _EARLY or _is_warming_up(view) or is_near:
        return {}
    later_N = losses.losses_N[len(losses.losses_N) // 3 :]
    if len(later_N) < _MIN_LINES:
        return {}
    noise_N = losses.noise_N[-len(later_N) :]
    fell = later_N[0] - later_N[-1] > 5 * noise_N.mean()
    if fell and (np.diff(later_N) < noise_N[1:]).all():
        return {"falling": losses}
    is_flat = losses.newest > losses.uniform - 0.2 * (losses.uniform - losses.unigram)
    return {"flat" if is_flat else "unsteady": losses}


def nothing_learned(view: PhaseView) -> Words:
    """Report a loss that is still near a random guess among all words."""
    losses = classify_above_unigram(view).get("flat")
    if losses is None:
        return None
    return (
        f"the loss on {losses.words} is {losses.newest:.2f}, and a random guess has "
        f"{losses.uniform:.2f}: the model has learned nothing.",
        f"Check that {_name_rate(view)} is not far too low or too high, and that labels belong to "
        "their rows (python -m bert_jax.replay shows them).",
    )


def rate_too_low(view: PhaseView) -> Words:
    """Report a loss that falls steadily but is still above the unigram line."""
    losses = classify_above_unigram(view).get("falling")
    if losses is None:
        return None
    return (
        f"after {view.share:.0%} of the run the loss on {losses.words} is "
        f"{losses.losses_N[-1]:.2f} and falls slowly; word frequencies alone give "
        f"{losses.unigram:.2f}.",
        f"The learning rate looks too low: try 3 to 10 times {_name_rate(view)}, or fewer warm-up "
        "steps.",
    )


_RISE = 0.3  # nats
_WORSE_THAN_GUESS = 0.03  # nats; on its plateau a sound run has up to 0.02 more than a guess


def rate_too_high(view: PhaseView) -> Words:
    """Report a loss that stays above the unigram line without falling, or that has risen again."""
    unsteady = classify_above_unigram(view).get("unsteady")
    losses = _find_losses(view)
    advice = (
        f"The learning rate looks too high: try a third of {_name_rate(view)}, or more warm-up "
        "steps."
    )
    if unsteady is not None:
        return (
            f"the loss on {unsteady.words} goes up and down around {unsteady.newest:.2f}; word "
            f"frequencies alone give {unsteady.unigram:.2f}.",
            advice,
        )
    if losses is None:
        return None
    nsp_N = view.curve("nsp_loss")[1][-3:]
    if is_stuck(view, losses) and len(nsp_N) and nsp_N.mean() > math.log(2) + _WORSE_THAN_GUESS:
        return (
            f"the loss on {losses.words} is {losses.newest:.2f}, about what word frequencies alone "
            f"give ({losses.unigram:.2f}), and the loss on next sentences is {nsp_N.mean():.2f}, "
            f"worse than a guess ({math.log(2):.2f}).",
            advice,
        )
    if len(losses.losses_N) < 6:
        return None
    means_N = np.convolve(losses.losses_N, np.ones(3) / 3, mode="valid")
    best = float(means_N[:-3].min())
    if losses.newest < best + max(_RISE, 5 * losses.noise_N[-1]):
        return None
    return f"the loss on {losses.words} has risen from {best:.2f} to {losses.newest:.2f}.", advice


# A loss is stuck after so many steps at the unigram line, or this share of the run if longer.
_STUCK_STEPS, _STUCK_SHARE = 60, 0.03
_UNDER = 0.06  # nats below the unigram line that count as passing it


def is_stuck(view: PhaseView, losses: _Losses) -> bool:
    """Return whether the loss reached the unigram line long ago and has not passed it."""
    if _is_warming_up(view) or much_dropout(view):
        return False
    least = max(_STUCK_STEPS, _STUCK_SHARE * total_steps(view.config))
    margin = max(_UNDER, 3 * float(losses.noise_N[-1]))
    is_over = losses.losses_N.min() > losses.unigram - margin
    return bool(is_over) and _count_steps_at_line(view, losses) >= least


def _count_steps_at_line(view: PhaseView, losses: _Losses) -> int:
    (reached,) = np.nonzero(losses.losses_N <= losses.unigram + _NEAR)
    return view.step - int(losses.steps_N[reached[0]]) if len(reached) else 0


def stuck_at_unigram(view: PhaseView) -> Words:
    """Report a loss that stays at the unigram line.

    If an n-gram line shows that targets fit their neighbors, the plateau will most likely end by
    itself, and is reported only after 30% of the run.
    """
    losses = _find_losses(view)
    if losses is None or not is_stuck(view, losses) or rate_too_high(view):
        return None
    if f"ngram_{losses.term}_loss" in view.baseline and view.taken < _LATE:
        return None
    since = _count_steps_at_line(view, losses)
    return (
        f"the loss on {losses.words} has stayed at {losses.newest:.2f} for {since:,} steps, and "
        f"word frequencies alone give {losses.unigram:.2f}: the model does not use context yet. A "
        "short plateau here that ends in a drop is normal.",
        "If it does not end soon, check that targets and masks belong to their rows (python -m "
        f"bert_jax.replay shows them), then try a third of {_name_rate(view)} and less dropout.",
    )


_KNOWS_ALL = 0.9  # accuracy; the paper's Large has about 0.7 at its end


def targets_visible(view: PhaseView) -> Words:
    """Report that nearly all targets are predicted, which no model does from context."""
    for term, words in TERMS.items():
        accuracies = view.curve(f"{term}_accuracy")[1][-3:]  # one line may hold few targets
        if len(accuracies) and accuracies.min() > _KNOWS_ALL:
            masks, randoms = view.config.data.mask_token_share, view.config.data.random_token_share
            shares = (
                f"config.data.mask_token_share and random_token_share ({masks:g} and {randoms:g}) "
                "leave the other targets visible. "
            ) * (term == "mlm")
            return (
                f"{accuracies[-1]:.0%} of the {words} are predicted: the model sees the answers.",
                f"Look at rows with python -m bert_jax.replay. {shares}Training on the same few "
                "documents over and over has this effect too.",
            )
    return None


def next_sentence_at_chance(view: PhaseView) -> Words:
    """Report next-sentence accuracy that is still at chance after 30% of the run."""
    accuracies = view.curve("nsp_accuracy")[1]
    majority = view.baseline.get("majority_nsp_accuracy")
    if majority is None or not len(accuracies) or view.share < _LATE:
        return None
    newest = float(accuracies[-3:].mean())
    if view.steps_taken < 10 * _MIN_STEPS or newest > max(majority, 0.5) + 0.02:
        return None
    return (
        f"the accuracy on next sentences is {newest:.1%}; always guessing the more frequent label "
        f"has {majority:.1%}.",
        "Check that labels belong to their pairs (python -m bert_jax.replay). Lists, and documents "
        "of one or two sentences, teach nothing here: config.objective=mlm trains without it.",
    )


def next_sentence_too_easy(view: PhaseView) -> Words:
    """Report next-sentence labels that are nearly all predicted from the start."""
    accuracies = view.curve("nsp_accuracy")[1]
    if len(accuracies) < _MIN_LINES or view.share > 0.1 or accuracies[-3:].min() < 0.995:
        return None
    return (
        f"the accuracy on next sentences is {accuracies[-1]:.1%} after {view.share:.0%} of the "
        "run: something other than their content gives them away.",
        "Look at rows with python -m bert_jax.replay: random sentences should be of the same kind "
        "of text and of the same length as true ones.",
    )


def heldout_rising(view: PhaseView) -> Words:
    """Report a held-out loss above its best at two evaluations in a row."""
    for term, words in TERMS.items():
        steps_N, losses_N = view.curve(f"{term}_loss", is_heldout=True)
        if len(losses_N) < 4:
            continue
        best = int(losses_N[:-2].argmin())
        if losses_N[-2:].min() > losses_N[best] * 1.02:
            return (
                f"the held-out loss on {words} was {losses_N[best]:.2f} at step "
                f"{steps_N[best]:,} and is {losses_N[-1]:.2f} now: the model overfits.",
                "More text helps most; otherwise fewer steps, a smaller model, or more dropout. "
                f"The checkpoint of step {steps_N[best]:,} may be better than the last one.",
            )
    return None


def gradient_growing(view: PhaseView) -> Words:
    """Report a gradient norm that grew fivefold while the loss did not fall."""
    norms_N = view.curve("grad_norm")[1]
    losses = _find_losses(view)
    if losses is None or len(norms_N) < 12 or _is_warming_up(view):
        return None
    usual, newest = float(np.median(norms_N[len(norms_N) // 4 :])), float(np.median(norms_N[-3:]))
    earlier = float(np.median(losses.losses_N[-9:-3]))
    if newest < 5 * usual or losses.newest < earlier:
        return None
    return (
        f"the gradient norm grew from {usual:.1f} to {newest:.1f}, and the loss does not fall.",
        f"The run may diverge: try a third of {_name_rate(view)}, more warm-up steps, or "
        f"config.optim.clip_norm=1.0 (now {view.config.optim.clip_norm:g}).",
    )


_DISPERSED = 2.5  # times the deviation that sampling text explains
_SETTLED_LINES = 8


def not_shuffled(view: PhaseView) -> Words:
    """Report losses that differ from line to line by more than sampling noise."""
    losses = _find_losses(view)
    if losses is None or targets_visible(view):
        return None
    is_settled_N = losses.losses_N <= losses.unigram + _NEAR
    losses_N = losses.losses_N[is_settled_N][-16:]
    if len(losses_N) < _SETTLED_LINES:
        return None
    # Second differences are small for a smooth curve, and sqrt(6) times the deviation of noise.
    bends = (losses_N[2:] - 2 * losses_N[1:-1] + losses_N[:-2]) / math.sqrt(6)
    explained = float(losses.noise_N[is_settled_N][-16:].mean())
    usual, root = float(np.median(np.abs(bends))) / 0.6745, float(np.sqrt(np.mean(bends**2)))
    highest_rise = float(np.diff(losses_N).max())  # a fast fall bends, and does not rise
    if min(usual, root, highest_rise) < _DISPERSED * explained:
        return None
    return (
        f"the loss on {losses.words} jumps from line to line by {usual / explained:.1f} times the "
        "sampling noise: batches differ in kind.",
        "Check that ready-made examples are shuffled: documents in order, or one source after "
        f"another, look like this. If they are shuffled, try a third of {_name_rate(view)}.",
    )


def input_starves(view: PhaseView) -> Words:
    """Report devices that wait for batches a tenth of the time, over 20 lines."""
    shares = view.curve("input_wait_share")[1]
    if len(shares) < 20 or shares[-20:].min() < 0.1:
        return None
    return (
        f"the devices wait for batches {float(shares[-20:].mean()):.0%} of the time.",
        "python -m data_pipeline.benchmark --store=STORE measures how many batches the host makes "
        "per second; docs/guide/runs.md has advice under Speed on the host.",
    )


def generator_dead(view: PhaseView) -> Words:
    """Report replaced tokens that are not detected, or too few replaced tokens."""
    areas, replaced = view.curve("rtd_auc")[1], view.curve("rtd_replaced_share")[1]
    if not len(areas) or view.share < _LATE or view.step < 10 * _MIN_STEPS:
        return None
    area, share = float(areas[-3:].mean()), float(replaced[-3:].mean())
    size = f"config.model.generator_hidden_size ({view.config.model.generator_hidden_size})"
    if share < 0.01:
        return (
            f"{share:.1%} of the tokens are replaced: the generator is right nearly always, and "
            "the encoder has nothing to detect.",
            f"Set a smaller {size}: a quarter to a half of the encoder's width.",
        )
    if area > 0.52:
        return None
    return (
        f"replaced tokens are detected no better than by chance (ROC AUC {area:.2f}).",
        f"Check that the generator's loss falls below the unigram line; try another {size} and "
        f"a third of {_name_rate(view)}.",
    )


def no_warmup(view: PhaseView) -> Words:
    """Report a post-norm model that starts at its peak learning rate."""
    optim = view.config.optim
    if view.config.model.norm_position != "post" or optim.warmup_steps or optim.warmup_tokens:
        return None
    if total_steps(view.config) < 5 * _MIN_STEPS or view.config.init:
        return None
    return (
        "config.optim.warmup_steps is 0: training starts at the peak learning rate, at which "
        "post-norm layers such as BERT's often never learn.",
        "Set config.optim.warmup_steps to 1 to 10% of the steps.",
    )


_MUCH_DROPOUT = 0.5


def much_dropout(view: PhaseView) -> Words:
    """Report dropout above one half."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    high = {
        name: rate for name in names if (rate := getattr(view.config.model, name)) > _MUCH_DROPOUT
    }
    if not high:
        return None
    values = " and ".join(f"config.model.{name} is {rate:g}" for name, rate in high.items())
    return (
        f"{values}: too little is left to learn from.",
        "BERT uses 0.1; small data sets use up to 0.3.",
    )


Rule = Callable[[PhaseView], Words]
TIMED_RULES = (input_starves.__name__,)  # rules that read timings, which differ between equal runs
# In the order in which they run; a run reports each once.
RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        no_warmup,
        much_dropout,
        targets_visible,
        nothing_learned,
        rate_too_low,
        rate_too_high,
        stuck_at_unigram,
        not_shuffled,
        gradient_growing,
        heldout_rising,
        next_sentence_at_chance,
        next_sentence_too_easy,
        generator_dead,
        input_starves,
    )
}


def diagnose(view: PhaseView) -> list[Finding]:
    """Apply all RULES to a view; return their findings."""
    answers = ((name, rule(view)) for name, rule in RULES.items())
    return [Finding(name, view.step, *words) for name, words in answers if words is not None]
