"""What is known of a phase before its first step: its examples, and its held-out baselines."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import baselines, metrics
from bert_jax.feed import Feed
from bert_jax.objectives import Objective
from bert_jax.screen import Screen

_LABELLED_ROWS = 1024  # of the training split, looked at for their labels
_FEW_LABELS = 32  # of so few all may be alike by chance


@dataclasses.dataclass(frozen=True)
class PhaseFacts:
    """A phase's held-out batches and what follows from them and from its lengths."""

    heldout_batches: list[dict[str, np.ndarray]]
    baseline: dict[str, float]  # named as in the records
    heldout_examples: int
    tokens_per_example: float  # mean over the held-out examples
    predictions_per_example: float  # likewise
    seq_len: int
    rows_per_step: int
    row_predictions: int  # slots of a row for masked tokens
    examples_per_row: float  # mean over the training split; 1 where rows are not packed
    epochs: float  # passes over the training split

    @property
    def examples_per_step(self) -> float:
        """Examples in a batch, about."""
        return self.rows_per_step * self.examples_per_row

    @property
    def tokens_per_step(self) -> float:
        """Tokens in a batch, padding not counted, about."""
        # Held-out examples may be longer than those of training, and full rows would overflow.
        most = float(self.rows_per_step * self.seq_len)
        return min(self.examples_per_step * self.tokens_per_example, most)

    @property
    def predictions_per_step(self) -> float:
        """Masked tokens in a batch, about."""
        most = float(self.rows_per_step * self.row_predictions)
        return min(self.examples_per_step * self.predictions_per_example, most)

    @property
    def of_a_step(self) -> dict[str, float]:
        """What a step sees, named as in the summary; all but lengths and rows are means."""
        return {
            "seq_len": self.seq_len,
            "rows_per_step": self.rows_per_step,
            "examples_per_step": self.examples_per_step,
            "tokens_per_step": self.tokens_per_step,
            "predictions_per_step": self.predictions_per_step,
            "epochs": self.epochs,
        }

    def heldout_scores(self, results: Sequence[Any]) -> dict[str, float]:
        """The means over the held-out examples, from the sums of each batch."""
        total = dict[str, float]()
        for sums in results:
            total = metrics.add(total, metrics.flat(sums))
        return metrics.read_heldout(total)

    def show(self, screen: Screen, step: int, scores: dict[str, float]) -> None:
        """Print them beside the baselines."""
        screen.heldout_line(step, scores, self.baseline)


def facts_of(feed: Feed, index: int, objective: Objective) -> PhaseFacts:
    """Count in the held-out examples of a phase; baselines are of the objective's terms.

    Raises:
      ValueError: the objective learns next sentences, and the training split has none to tell.
    """
    batches = feed.heldout_batches(index)
    tokens_B = np.concatenate([batch["input_mask"].sum(axis=1) for batch in batches])
    tokens_B = tokens_B[tokens_B > 1]  # rows that fill up the last batch show one token each
    examples, tokens = len(tokens_B), int(tokens_B.sum())
    predictions = sum(float(batch["masked_lm_weights"].sum()) for batch in batches)
    phase = feed.config.phases[index]
    terms = jax.eval_shape(objective.weights, batches[0])
    baseline = {}
    if "mlm" in terms:
        baseline["unigram_mlm_loss"] = baselines.unigram_mlm_loss(feed.store, batches)
    if "nsp" in terms:
        _check_next_sentences(feed.first_rows(index, _LABELLED_ROWS))
        baseline["majority_nsp_accuracy"] = baselines.majority_nsp_accuracy(batches)
    return PhaseFacts(
        heldout_batches=batches,
        baseline=baseline,
        heldout_examples=examples,
        tokens_per_example=tokens / examples,
        predictions_per_example=predictions / examples,
        seq_len=phase.seq_len,
        rows_per_step=phase.batch_size,
        row_predictions=feed.row_shape(index).predictions,
        examples_per_row=feed.mean_examples_in_row(index),
        epochs=phase.steps * phase.batch_size / feed.mean_epoch_rows(index),
    )


def _check_next_sentences(rows: dict[str, np.ndarray]) -> None:
    """Raise where no example has a label, or all have the same one: nothing could be learned."""
    labels_N = rows["next_sentence_labels"][rows["next_sentence_weights"] > 0]
    found = np.unique(labels_N)
    if len(found) > 1 or 0 < len(labels_N) < _FEW_LABELS:
        return
    state = f"all have the label {found[0]}" if len(found) else "none has a label"
    raise ValueError(
        f"config.objective learns next sentences, and of the first {len(rows['input_ids']):,} rows "
        f"of the training split {state}: its documents have one sentence each; set "
        "config.objective=mlm, or build the store so that documents have more (--documents, "
        "--sentences)"
    )
