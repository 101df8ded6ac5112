"""Score sentences by pseudo-log-likelihood: how likely each word is, given all the others.

Each token is masked in turn, and the log-probabilities of the masked tokens are added up.

Dimensions: N sentences, R masked copies of them, B rows of a batch.

Source: Salazar et al. 2020 (Masked Language Model Scoring), section 2.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from bert_jax.inference import batches
from bert_jax.interop.pretrained import PlacedModel
from bert_jax.logging.console import Screen
from bert_jax.model.bert import Bert
from bert_jax.train_step.objectives.objective import make_rows
from data_pipeline.io import Refused
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import EncodedRows, build_rows
from data_pipeline.vocab import Vocabulary, split_ids
from data_pipeline.vocab.template import Template

_TOKENS_AT_ONCE = 1 << 22  # tokens of masked copies in memory


@dataclasses.dataclass(frozen=True)
class Score:
    """Hold the score of a sentence."""

    tokens: int  # [CLS] and [SEP] not counted
    unknown: int  # how many of these are [UNK]
    log_likelihood: float  # sum of log P(token | all others), nats

    @property
    def perplexity(self) -> float:
        """Return exp of the mean loss of a token."""
        return math.exp(min(-self.log_likelihood / self.tokens, 700.0))


def encode_sentences(
    vocabulary: Vocabulary, sentences: Sequence[str], place: str, max_positions: int
) -> list[np.ndarray]:
    """Return the token ids of each sentence, one per line; `place` names their file in errors.

    Raises:
      Refused: a line has no token, or more than the model has positions for.
    """
    ids, lengths_N = vocabulary.encode(sentences)
    most = max_positions - vocabulary.template.count_specials(is_pair=False)
    for line, (sentence, length) in enumerate(zip(sentences, lengths_N, strict=True), 1):
        if length == 0 or not sentence.strip():  # a byte-level vocabulary has pieces of spaces
            raise Refused(
                f"line {line} of {place}, {sentence[:40]!r}, is empty or makes no piece of the "
                "vocabulary, as it holds nothing but characters that BERT drops; remove it"
            )
        if length > most:
            raise Refused(
                f"line {line} of {place}, {sentence[:40]!r}..., is {length:,} pieces, the model "
                f"reads {most:,} plus special tokens; cut it into sentences"
            )
    return split_ids(ids.astype(np.int32), lengths_N)


def make_masked_copies(
    sentences: Sequence[np.ndarray], template: Template, mask_id: int
) -> tuple[EncodedRows, np.ndarray]:
    """Make a row for each token with that token masked; int64[R] has the sentence of each row."""
    before, after = template.margins(is_pair=False)
    rows, positions, masked_ids = list[FramedRow](), list[int](), list[int]()
    for ids in sentences:
        whole = frame(ids.tolist(), None, template, before + len(ids) + after)
        copies = np.tile(np.array(whole.token_ids), (len(ids), 1))
        np.fill_diagonal(copies[:, before:], mask_id)
        rows += [whole._replace(token_ids=token_ids) for token_ids in copies]
        positions += range(before, before + len(ids))
        masked_ids += ids.tolist()
    labels = {
        "positions": np.array(positions, np.int32),
        "masked_ids": np.array(masked_ids, np.int32),
    }
    sentence_R = np.repeat(np.arange(len(sentences)), [len(ids) for ids in sentences])
    return build_rows(rows, labels), sentence_R


def score_sentences(
    model: PlacedModel, sentences: Sequence[np.ndarray], batch_size: int, screen: Screen
) -> list[Score]:
    """Score sentences of token ids, the longest first; batch_size counts masked copies."""
    special_ids, template = model.vocabulary.special_ids, model.vocabulary.template
    step = batches.compile_step(model.model, _compute_nats)
    totals_N = np.zeros(len(sentences))
    copies = sum(len(ids) for ids in sentences)
    done = 0
    with screen.spinning(f"masking {copies:,} tokens in turn: compiling") as show:
        for group in _group_by_memory(sentences):
            rows, sentence_R = make_masked_copies(
                [sentences[i] for i in group], template, special_ids["mask"]
            )
            for index_B, outputs in batches.run_rows(step, model, rows, batch_size):
                np.add.at(totals_N, group[sentence_R[index_B]], outputs["nats"].astype(np.float64))
                done += len(index_B)
                show(f"masking {copies:,} tokens in turn: {done / copies:.0%}")
    unknown_id = special_ids["unk"]
    return [
        Score(len(ids), int((ids == unknown_id).sum()), -float(total))
        for ids, total in zip(sentences, totals_N, strict=True)
    ]


def add_scores(scores: Sequence[Score]) -> Score:
    """Return the score of all sentences as one text, whose perplexity is the pseudo-perplexity.

    Source: Salazar et al. 2020, section 2.3.
    """
    return Score(
        sum(score.tokens for score in scores),
        sum(score.unknown for score in scores),
        math.fsum(score.log_likelihood for score in scores),
    )


def _compute_nats(bert: Bert, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return float32[B], the loss of the one token that is masked in a row."""
    positions_B1, weights_B1 = (batch[name][:, None] for name in ("positions", "example_weights"))
    vectors_BPD = bert.encode_masked(make_rows(batch, None), positions_B1, weights_B1)
    losses = bert.compute_target_losses(vectors_BPD, batch["masked_ids"][:, None])
    return {"nats": losses[0][:, 0]}


def _group_by_memory(sentences: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield numbers of sentences, the longest first, in groups whose copies fit into memory."""
    lengths_N = np.fromiter((len(ids) for ids in sentences), np.int64, len(sentences))
    order = np.argsort(-lengths_N, kind="stable")
    tokens = np.cumsum(lengths_N[order] * (lengths_N[order] + 2))
    group_N = tokens // _TOKENS_AT_ONCE
    yield from np.split(order, np.flatnonzero(np.diff(group_N)) + 1)
