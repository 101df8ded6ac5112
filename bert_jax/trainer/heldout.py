"""Prepare a phase before its first step: example counts, held-out batches and baselines.

The baselines score the same predictions without a network: a uniform guess, token frequencies, and
counts of two nearby tokens (both neighbors of a masked token, the two before it in a causal model).

The data are checked too: true next sentences must share more words with the sentence before them
than random ones, and a masked token's neighbors must predict it better than word frequencies.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.config import Config, Phase
from bert_jax.logging.console import Screen, list_lines
from bert_jax.monitoring.rules import Finding
from bert_jax.train_step import metrics
from bert_jax.train_step.objectives import Objective
from bert_jax.trainer.baselines import Show, compute_baselines, list_next_tokens
from bert_jax.trainer.feed import HostBatch, RunPhase, StoreFeed
from data_pipeline.io import Refused
from data_pipeline.sampling.batches import ExampleSource
from data_pipeline.sampling.masking import restore_masked
from data_pipeline.store import EXAMPLES, HELDOUT, TRAIN, Store
from data_pipeline.store.findings import find_before_training

_LABELED_ROWS = 1024  # most rows of the training split whose labels are checked
_FEW_LABELS = 32  # fewer labels than this may be equal by chance


@dataclasses.dataclass(frozen=True)
class HeldoutSet:
    """Hold the held-out batches of one store, their counts and their baselines."""

    store: str  # short name of the store
    weight: float  # the store's share of the phase
    batches: Sequence[HostBatch]
    tokens_B: np.ndarray  # tokens of each example
    predictions: float  # mean per example, at training's rate
    baseline: Mapping[str, float]


def score_stores(parts: Sequence[HeldoutSet], results: Sequence[Any]) -> dict[str, float]:
    """Compute mean scores from `results`, the sums of each held-out batch, in the order of `parts`.

    With several stores, each store's scores are named "mlm_loss/STORE". A score without a store's
    name is the mean over all stores, weighted by their shares of the phase.
    """
    totals, waiting = [], iter(results)
    for part in parts:
        total = dict[str, float]()
        for sums in itertools.islice(waiting, len(part.batches)):
            total = metrics.add_step(total, metrics.flatten(sums))
        totals.append(total)
    if len(totals) == 1:
        return metrics.compute_heldout_means(totals[0])
    factors = [part.weight * _MIXED_EXAMPLES / len(part.tokens_B) for part in parts]
    scores = metrics.compute_heldout_means(metrics.mix(factors, totals))
    for part, total in zip(parts, totals, strict=True):
        means = metrics.compute_heldout_means(total)
        scores |= {f"{name}/{part.store}": value for name, value in means.items()}
    return scores


def show_stores(
    names: Sequence[str],
    baseline: dict[str, float],
    screen: Screen,
    step: int,
    scores: dict[str, float],
) -> None:
    """Print the scores of a step next to the baselines, then the scores of each store."""
    screen.heldout_line(step, scores, baseline)
    for name in names if len(names) > 1 else ():
        end = f"/{name}"
        own, references = (
            {key.removesuffix(end): value for key, value in all_.items() if key.endswith(end)}
            for all_ in (scores, baseline)
        )
        screen.heldout_line(step, own, references, name)


def count_phase(
    feed: StoreFeed, index: int, objective: Objective, show: Show = lambda words: None
) -> RunPhase:
    """Build the held-out batches of a phase, their counts and the objective's baselines.

    Raises Refused if the objective predicts next sentences and check_next_sentences refuses.
    """
    phase, source = feed.config.phases[index], feed.open_source(index)
    parts = [_count_heldout(feed, index, k, objective, show) for k in range(len(feed.stores))]
    tokens = sum(part.weight * int(part.tokens_B.sum()) / len(part.tokens_B) for part in parts)
    predictions = sum(part.weight * part.predictions for part in parts)
    baseline = _mix_baselines(parts, predictions)
    slots = source.shape.predictions
    if "unigram_causal_loss" in baseline:
        slots = phase.seq_len - 1
    if "majority_nsp_accuracy" in baseline:
        check_next_sentences(feed, index)
    in_row = source.mean_examples_in_row
    per_step = estimate_step(phase, slots, in_row, tokens, predictions)
    per_step["epochs"] = phase.steps * phase.batch_size / source.mean_rows_per_epoch
    return RunPhase(
        examples_per_row=in_row,
        per_step=per_step,
        baseline=baseline,
        heldout_examples=sum(len(part.tokens_B) for part in parts),
        heldout_batches=[batch for part in parts for batch in part.batches],
        score=functools.partial(score_stores, parts),
        show=functools.partial(show_stores, feed.config.data.store_names, baseline),
    )


def _mix_baselines(parts: Sequence[HeldoutSet], predictions: float) -> dict[str, float]:
    """Mix the baselines of the stores as score_stores mixes scores, and keep each store's own.

    `predictions` is the mean number per example, over all stores.
    """
    baseline = dict[str, float]()
    for part in parts:
        of_predictions = (
            part.weight * part.predictions / predictions if predictions else part.weight
        )
        for key, score in part.baseline.items():
            share = of_predictions if key.endswith("_loss") else part.weight
            baseline[key] = baseline.get(key, 0.0) + share * score
            if len(parts) > 1:
                baseline[f"{key}/{part.store}"] = score
    return baseline


def find_in_data(feed: StoreFeed, phases: Sequence[RunPhase]) -> list[Finding]:
    """Return findings on the text, the targets and the sentence pairs of phase 0."""
    findings = [each for store in feed.stores for each in find_in_store(store)]
    findings += find_in_targets(phases[0].baseline)
    if "majority_nsp_accuracy" in phases[0].baseline and feed.config.data.segments == "nsp":
        counts_V = np.sum([store.train.token_counts for store in feed.stores], axis=0)
        findings += find_in_pairs(feed.first_rows(0, _LABELED_ROWS), counts_V)
    return findings


# Scale of the sums over several stores; cancels in the means. It is large, so that the lower limits
# of the divisors in compute_means have no effect.
_MIXED_EXAMPLES = 1e6


def _count_heldout(
    feed: StoreFeed, index: int, number: int, objective: Objective, show: Show
) -> HeldoutSet:
    batches = feed.make_heldout_batches(index, number)
    tokens_B = np.concatenate([batch["input_mask"].sum(axis=1) for batch in batches])
    tokens_B = tokens_B[tokens_B > 1]  # drops padding rows, which have one token each
    baseline = compute_baselines(feed.stores[number], objective, batches, show)
    predictions = sum(float(batch["masked_lm_weights"].sum()) for batch in batches)
    # Counted at the masking rate of evaluations; scale it to the rate of training.
    trained = feed.open_split(index, number)
    evaluated = feed.open_split(index, number, HELDOUT)
    slots = feed.config.phases[index].max_predictions_per_seq
    predictions *= _count_predictions(trained, slots, tokens_B)
    predictions /= _count_predictions(evaluated, evaluated.shape.predictions, tokens_B)
    if "unigram_causal_loss" in baseline:
        predictions = sum(len(list_next_tokens(batch)) for batch in batches)
    name, weight = feed.config.data.store_names[number], feed.weights(index)[number]
    return HeldoutSet(name, weight, batches, tokens_B, predictions / len(tokens_B), baseline)


def _count_predictions(source: ExampleSource, slots: int, tokens_B: np.ndarray) -> float:
    """Count the predictions in examples of these lengths, by the source's masking rate."""
    wanted_B = np.rint(tokens_B * source.options.masked_lm_prob)
    return float(np.clip(wanted_B, 1, slots).sum())


def estimate_step(
    phase: Phase,
    row_slots: int,
    examples_per_row: float,
    tokens_per_example: float,
    predictions_per_example: float,
) -> dict[str, float]:
    """Estimate the counts of a step from means; row_slots is a row's number of prediction slots."""
    examples = phase.batch_size * examples_per_row
    # Held-out examples may be longer than training ones: cap the estimates at full rows.
    most_tokens = float(phase.batch_size * phase.seq_len)
    most_predictions = float(phase.batch_size * row_slots)
    return {
        "seq_len": phase.seq_len,
        "rows_per_step": phase.batch_size,
        "examples_per_step": examples,
        "tokens_per_step": min(examples * tokens_per_example, most_tokens),
        "predictions_per_step": min(examples * predictions_per_example, most_predictions),
    }


def check_next_sentences(feed: StoreFeed, index: int) -> None:
    """Raise Refused if a phase's first 1,024 rows have no label, or at least 32 and all equal."""
    rows = feed.first_rows(index, _LABELED_ROWS)
    labels_N = rows["next_sentence_labels"][rows["next_sentence_weights"] > 0]
    labels = np.unique(labels_N)
    if len(labels) > 1 or 0 < len(labels_N) < _FEW_LABELS:
        return
    state = f"all have the label {labels[0]}" if len(labels) else "none has a label"
    raise Refused(
        f"config.objective learns next sentences, and of the first {len(rows['input_ids']):,} rows "
        f"of the training split {state}: its documents have one sentence each; set "
        "config.objective=mlm, or build the store so that documents have more (--documents, "
        "--sentences)"
    )


MANY_EPOCHS = 256  # more repetition costs quality; source in warn_of_repetition
PAPER_EPOCHS = 40  # Devlin et al. 2019, appendix A.2


def describe_corpus(feed: StoreFeed, phases: Sequence[RunPhase]) -> list[tuple[str, str]]:
    """Describe the corpus and the phases of a pre-training run, as labels and texts."""
    config, rows = feed.config, list[tuple[str, str]]()
    for store in feed.stores:
        rows += _describe_store(store, "" if rows else "corpus")
    for index, (phase, facts) in enumerate(zip(config.phases, phases, strict=True)):
        lengths, *others = _describe_phase(phase, facts, config.data.packed_examples)
        if len(feed.stores) > 1:
            others.insert(0, _describe_mixture(feed, index))
        rows += [(f"phase {index}", lengths), *(("", text) for text in others)]
    return [*rows, *warn_of_repetition(config, [facts.per_step["epochs"] for facts in phases])]


def _describe_store(store: Store, label: str) -> list[tuple[str, str]]:
    if store.kind == EXAMPLES:
        lengths = store.manifest["examples"].values()
        train, heldout = (sum(each[name] for each in lengths) for name in (TRAIN, HELDOUT))
        corpus, more = f"{train:,} ready-made examples", f"{heldout:,} more examples"
    else:
        corpus = f"{store.train.documents:,} documents, {store.train.tokens:,} tokens"
        more = f"{store.heldout.documents:,} more documents"
    return [
        (label, f"{corpus} in {store.directory}"),
        ("", f"{more} are held out, never trained on"),
    ]


def _describe_mixture(feed: StoreFeed, index: int) -> str:
    """Describe each store's share in a phase, and how often the phase repeats its text."""
    phase, parts = feed.config.phases[index], []
    names, weights = feed.config.data.store_names, feed.weights(index)
    for number, (name, weight) in enumerate(zip(names, weights, strict=True)):
        rows = phase.steps * phase.batch_size * weight
        epochs = rows / feed.open_split(index, number).mean_rows_per_epoch
        parts.append(f"{name} {weight:.2%} ({epochs:,.1f} epochs)")
    return f"from {', '.join(parts)}"


def _describe_phase(phase: Phase, facts: RunPhase, packed_examples: int) -> list[str]:
    """Describe a phase's lengths, the counts of a step, and the held-out examples."""
    counts = facts.per_step
    parts = f" in {phase.micro_batches} parts" if phase.micro_batches > 1 else ""
    rows, at_most = "sequences", ""
    if packed_examples > 1:
        rows, at_most = "rows", f", up to {packed_examples} examples in a row"
    verb = "masks" if "unigram_mlm_loss" in facts.baseline else "predicts"
    share = counts["tokens_per_step"] / (phase.batch_size * phase.seq_len)
    heldout = f"held out: {facts.heldout_examples:,} examples"
    scores = []
    for name, words in (("mlm", "MLM"), ("causal", "next-token"), ("permutation", "permutation")):
        lines = [
            f"{value:.4f} ({label})" for label, value in list_lines(facts.baseline, name).items()
        ]
        if lines:
            scores.append(f"{words} loss {', '.join(lines)}")
    if "majority_nsp_accuracy" in facts.baseline:
        scores.append(f"NSP accuracy {facts.baseline['majority_nsp_accuracy']:.1%} (majority)")
    return [
        f"{phase.steps:,} steps of {phase.batch_size:,} {rows}{parts} of {phase.seq_len}"
        f"{at_most}, {counts['epochs']:,.1f} epochs",
        f"a step sees about {counts['examples_per_step']:,.0f} examples, "
        f"{counts['tokens_per_step']:,.0f} tokens ({share:.0%} of its positions), and {verb} "
        f"{counts['predictions_per_step']:,.0f} of them",
        f"{heldout}; reference lines: {', '.join(scores)}" if scores else heldout,
    ]


def warn_of_repetition(config: Config, epochs: Sequence[float]) -> list[tuple[str, str]]:
    """Return a warning and its fix if a run repeats its text too often; else [].

    `epochs` is the number of passes over the training split, per phase.

    Source: Raffel et al. 2020, table 9 (masked objective): GLUE falls from 83.28 without repetition
    to 82.87 at 64 epochs, 82.62 at 256, 79.55 at 1,024 and 76.34 at 4,096. For causal models, whose
    targets are all tokens and not 15% of them, Muennighoff et al. 2023 find little gain beyond 40.
    """
    passes = sum(epochs)
    if passes <= MANY_EPOCHS:
        return []
    share = PAPER_EPOCHS / passes
    steps = {"optim.warmup_steps": config.optim.warmup_steps}
    for index, phase in enumerate(config.phases):
        steps[f"phases[{index}].steps"] = phase.steps
        steps[f"phases[{index}].restart_warmup_steps"] = phase.restart_warmup_steps
    flags = []
    for name, number in steps.items():
        least = 0 if name.endswith("warmup_steps") else 1
        if number:
            flags.append(f"'--config.{name}={max(least, round(number * share))}'")
    return [
        (
            "! epochs",
            f"{passes:,.0f} passes over the same text. Masked models lose little by 256 passes "
            "and much by 1,024 (Raffel et al. 2020, table 9: 0.7 and 3.7 points of GLUE); BERT's "
            f"paper made {PAPER_EPOCHS}. For {PAPER_EPOCHS} take {1 / share:,.0f} times as much "
            "text, let configs/auto.py choose (from 40,000 tokens on), or take fewer steps:",
        ),
        ("", " ".join(flags)),
    ]


_FREQUENT = 200  # most frequent tokens, which any two texts share
_MIN_DIFFERENCE = 0.01  # least difference of the two labels' shares of words
_SURE = 5.0  # least difference, in standard errors
# Nats by which the n-gram loss must exceed the unigram loss to be reported. In five corpora it was
# 0.9 to 2.8 below, and 0.35 to 4.6 above once the targets were shuffled.
_WORSE_BY_NEIGHBORS = 0.1


def find_in_store(store: Store) -> list[Finding]:
    """Return findings on a store's text; [] for ready-made examples, which have no text."""
    if store.kind == EXAMPLES:
        return []
    findings = []
    for name, text in find_before_training(store).items():
        sentence, _, advice = text.partition(". ")
        findings.append(Finding(name, 0, f"{sentence}.", advice))
    return findings


def find_in_pairs(rows: Mapping[str, np.ndarray], counts_V: np.ndarray) -> list[Finding]:
    """Return a finding if the next-sentence labels of these rows look inverted.

    rows are the arrays of data_pipeline.spec.schema; counts_V, int64[V], counts the store's tokens.
    """
    text = restore_masked(rows)
    example_BS = text.get("example_ids", text["input_mask"])
    examples_M, share_M = share_words(text["input_ids"], text["segment_ids"], example_BS, counts_V)
    row_M, slot_M = np.divmod(examples_M, example_BS.shape[1])
    labels_BN, is_labeled_BN = (
        text[name].reshape(len(example_BS), -1)
        for name in ("next_sentence_labels", "next_sentence_weights")
    )
    is_used_M = is_labeled_BN[row_M, slot_M] > 0
    is_random_M = labels_BN[row_M, slot_M] == 1
    if not _are_inverted(share_M[is_used_M], is_random_M[is_used_M]):
        return []
    shares = (share_M[is_used_M & is_random_M].mean(), share_M[is_used_M & ~is_random_M].mean())
    return [
        Finding(
            "next_sentence_inverted",
            0,
            f"texts labeled as random share {shares[0]:.1%} of their words with the text before, "
            f"those labeled as next {shares[1]:.1%}: the labels look inverted.",
            "Label 0 is the true next sentence, 1 a random one. The loss looks as good if they are "
            "inverted, but software that reads the checkpoint by BERT's convention will be wrong.",
        )
    ]


def find_in_targets(baseline: Mapping[str, float]) -> list[Finding]:
    """Return a finding if masked tokens do not fit their neighbors, by the held-out baselines.

    baseline has losses in nats, named as in metrics.jsonl. Ready-made examples have no n-gram
    loss, and are not checked.
    """
    for term in ("mlm", "permutation"):
        unigram, ngram = (baseline.get(f"{line}_{term}_loss") for line in ("unigram", "ngram"))
        if unigram is None or ngram is None or ngram < unigram + _WORSE_BY_NEIGHBORS:
            continue
        return [
            Finding(
                "targets_misplaced",
                0,
                f"the tokens next to a masked one predict it worse ({ngram:.2f} nats) than word "
                f"frequencies do ({unigram:.2f}): targets seem to belong to other places.",
                "Check that masked_lm_ids are the tokens at masked_lm_positions (python -m "
                "bert_jax.replay shows them). Text without any order looks like this too.",
            )
        ]
    return []


def share_words(
    ids_BS: np.ndarray,
    segment_BS: np.ndarray,
    example_BS: np.ndarray,
    counts_V: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute, per pair, the share of the second segment's distinct words also in the first.

    The most frequent tokens are ignored; pairs whose second segment has no others are left out.
    Shapes: int[B,S] three times, int[V] counts of tokens -> int64[M], float64[M]. example_BS
    numbers the examples of a row from 1 and is 0 for padding. The first result identifies each
    example by row * S + number - 1.
    """
    rows, seq_len = ids_BS.shape
    is_frequent_V = np.zeros(len(counts_V), bool)
    is_frequent_V[np.argsort(-counts_V, kind="stable")[:_FREQUENT]] = True
    is_word_BS = (example_BS > 0) & ~is_frequent_V[ids_BS] & (counts_V[ids_BS] > 0)
    example_N = (np.arange(rows)[:, None] * seq_len + example_BS - 1)[is_word_BS]
    word_N = example_N * len(counts_V) + ids_BS[is_word_BS]
    is_second_N = segment_BS[is_word_BS] == 1
    first, second = np.unique(word_N[~is_second_N]), np.unique(word_N[is_second_N])
    is_shared = np.isin(second, first, assume_unique=True)
    example_K = second // len(counts_V)
    examples_M, where_K, words_M = np.unique(example_K, return_inverse=True, return_counts=True)
    return examples_M, np.bincount(where_K, weights=is_shared) / words_M


def _are_inverted(share_M: np.ndarray, is_random_M: np.ndarray) -> bool:
    """Return whether texts labeled random share significantly more words than the others."""
    random_N, true_N = share_M[is_random_M], share_M[~is_random_M]
    if min(len(random_N), len(true_N)) < 30:
        return False
    difference = random_N.mean() - true_N.mean()
    deviation = np.sqrt(random_N.var() / len(random_N) + true_N.var() / len(true_N))
    return bool(difference > max(_SURE * deviation, _MIN_DIFFERENCE))
