"""Pseudo-log-likelihood of sentences: how likely each word is, given all the others.

Each token is masked in turn, and the log-probabilities of what was there are added up.

Dimensions: N sentences, R masked copies of them, B rows of a batch.

Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from bert_jax import inference
from bert_jax.attention import unpadded
from bert_jax.masked_lm import MaskedLm
from bert_jax.models.bert import Bert
from bert_jax.screen import Screen
from data_pipeline.finetune import EncodedRows, encoded
from data_pipeline.vocab import Vocabulary

_TOKENS_AT_ONCE = 1 << 22  # of masked copies that lie in memory


@dataclasses.dataclass(frozen=True)
class Score:
    """What a sentence scores."""

    tokens: int  # pieces, [CLS] and [SEP] not counted
    unknown: int  # of these, pieces that stand for what the vocabulary has not
    log_likelihood: float  # sum of log P(token | all others), nats

    @property
    def perplexity(self) -> float:
        """exp of the mean loss a token."""
        return math.exp(min(-self.log_likelihood / self.tokens, 700.0))


def token_ids(
    vocabulary: Vocabulary, sentences: Sequence[str], place: str, max_positions: int
) -> list[np.ndarray]:
    """The ids of each sentence; `place` is where they came from, a sentence a row.

    Raises:
      ValueError: a row has no piece, or more than the model has positions for.
    """
    ids, lengths_N = vocabulary.encode(sentences)
    for row, (sentence, length) in enumerate(zip(sentences, lengths_N, strict=True), 1):
        if not sentence.strip():
            raise ValueError(f"row {row} of {place} is empty; remove it")
        if length == 0:
            raise ValueError(
                f"row {row} of {place}, {sentence[:40]!r}, makes no piece of the vocabulary: it "
                "holds nothing but characters that BERT drops; remove it"
            )
        if length > max_positions - 2:
            raise ValueError(
                f"row {row} of {place}, {sentence[:40]!r}..., is {length:,} pieces, the model "
                f"reads {max_positions - 2:,} beside [CLS] and [SEP]; cut it into sentences"
            )
    return np.split(ids.astype(np.int32), np.cumsum(lengths_N)[:-1])


def masked_copies(
    sentences: Sequence[np.ndarray], special_ids: Mapping[str, int]
) -> tuple[EncodedRows, np.ndarray]:
    """A row for each token with that token masked; and int64[R], whose sentence each row is."""
    cls, sep, mask = (special_ids[name] for name in ("cls", "sep", "mask"))
    rows, masked_at, masked_ids = [], [], []
    for ids in sentences:
        for at, token_id in enumerate(ids):
            row = [cls, *ids.tolist(), sep]
            row[at + 1] = mask
            rows.append((row, len(row)))
            masked_at.append(at + 1)
            masked_ids.append(token_id)
    labels = {
        "masked_at": np.array(masked_at, np.int32),
        "masked_ids": np.array(masked_ids, np.int32),
    }
    sentence_R = np.repeat(np.arange(len(sentences)), [len(ids) for ids in sentences])
    return encoded(rows, labels), sentence_R


def scored(
    of: MaskedLm, sentences: Sequence[np.ndarray], batch_size: int, screen: Screen
) -> list[Score]:
    """Score sentences of token ids, the longest first; batch_size counts masked copies."""
    special_ids = of.checkpoint.vocabulary.special_ids
    positions = of.checkpoint.config.max_position_embeddings
    step = inference.step(of.model, _nats)
    totals_N = np.zeros(len(sentences))
    copies = sum(len(ids) for ids in sentences)
    done = 0
    with screen.spinning(f"masking {copies:,} tokens in turn: compiling") as show:
        for group in _groups(sentences):
            rows, sentence_R = masked_copies([sentences[i] for i in group], special_ids)
            for index_B, outputs in inference.each_batch(
                step, of.params, of.mesh, rows, batch_size, special_ids["pad"], positions
            ):
                np.add.at(totals_N, group[sentence_R[index_B]], outputs["nats"].astype(np.float64))
                done += len(index_B)
                show(f"masking {copies:,} tokens in turn: {done / copies:.0%}")
    unknown_id = special_ids["unk"]
    return [
        Score(len(ids), int((ids == unknown_id).sum()), -float(total))
        for ids, total in zip(sentences, totals_N, strict=True)
    ]


def of_all(scores: Sequence[Score]) -> Score:
    """The sentences as one text: its perplexity is the corpus' pseudo-perplexity.

    Source: Salazar et al. 2020, section 2.3.
    """
    return Score(
        sum(one.tokens for one in scores),
        sum(one.unknown for one in scores),
        math.fsum(one.log_likelihood for one in scores),
    )


def _nats(bert: Bert, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """float32[B]: the loss of the one word that is masked in a row."""
    visible = unpadded(batch["input_mask"])
    hidden_BSD = bert.encode(batch["input_ids"], batch["segment_ids"], visible)
    losses = bert.mlm_cross_entropy(
        hidden_BSD, batch["masked_at"][:, None], batch["masked_ids"][:, None]
    )
    return {"nats": losses[0][:, 0]}


def _groups(sentences: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Numbers of sentences, the longest first, in groups whose copies fit into memory."""
    lengths_N = np.fromiter((len(ids) for ids in sentences), np.int64, len(sentences))
    order = np.argsort(-lengths_N, kind="stable")
    tokens = np.cumsum(lengths_N[order] * (lengths_N[order] + 2))
    group_N = tokens // _TOKENS_AT_ONCE
    yield from np.split(order, np.flatnonzero(np.diff(group_N)) + 1)
