"""Sentences with hidden pieces, and what a trained model guesses for them.

Dimensions: B sentences, S sequence, P hidden pieces, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax import mesh
from bert_jax.attention import unpadded
from bert_jax.masked_lm import MaskedLm
from bert_jax.models.bert import Params
from data_pipeline.store import Split
from data_pipeline.vocab import SENTENCEPIECE, WORD_START, Vocabulary

MASK = "[MASK]"
_SENTENCE_TOKENS = (8, 25)  # of a held-out sentence that is shown


@dataclasses.dataclass(frozen=True)
class Question:
    """A sentence as token ids, [CLS] and [SEP] around it, with hidden pieces."""

    text: str
    token_ids: list[int]
    hidden_at: list[int]  # positions of [MASK] in token_ids
    answers: list[str]  # what was there, "" where nobody knows


@dataclasses.dataclass(frozen=True)
class Guess:
    """A piece for a hidden place."""

    piece: str
    probability: float


def question(model: MaskedLm, sentence: str) -> Question:
    """Read a sentence with [MASK] in it.

    Raises:
      ValueError: there is no [MASK], or the sentence is longer than the model's positions.
    """
    parts = sentence.split(MASK)
    if len(parts) < 2:
        raise ValueError(
            f"{sentence!r} has no {MASK}; write it, in capitals, in the place of the word to guess"
        )
    special, vocabulary = model.vocabulary.special_ids, model.vocabulary
    token_ids, hidden_at = [special["cls"]], []
    ids, lengths = vocabulary.encode(parts)
    ids_of_parts = np.split(ids, np.cumsum(lengths)[:-1])
    for number, (part, part_ids) in enumerate(zip(parts, ids_of_parts, strict=True)):
        if number:
            hidden_at.append(len(token_ids))
            token_ids.append(special["mask"])
        has_space = number == 0 or part.startswith(" ")
        found = part_ids.tolist()
        token_ids += found if has_space else _without_space(vocabulary, found)
    token_ids.append(special["sep"])
    longest = model.checkpoint.config.max_position_embeddings
    if len(token_ids) > longest:
        raise ValueError(
            f"{sentence[:40]!r}... is {len(token_ids)} tokens with [CLS] and [SEP], the model "
            f"reads {longest}; shorten it"
        )
    return Question(sentence, token_ids, hidden_at, [""] * len(hidden_at))


def _without_space(vocabulary: Vocabulary, token_ids: list[int]) -> list[int]:
    """What SentencePiece makes of a text, less the space that it sees before any text."""
    pieces = vocabulary.pieces()
    if vocabulary.kind != SENTENCEPIECE or not token_ids:
        return token_ids
    first = pieces[token_ids[0]].removeprefix(WORD_START)
    if not first:
        return token_ids[1:]
    return [pieces.index(first), *token_ids[1:]] if first in pieces else token_ids


def heldout_questions(vocabulary: Vocabulary, heldout: Split, count: int) -> list[Question]:
    """Held-out sentences, each with one whole word hidden: the same ones at every call.

    Raises:
      ValueError: the split has too few sentences that are fit to be shown.
    """
    rng = np.random.default_rng(0)
    special, pieces = vocabulary.special_ids, vocabulary.pieces()
    goes_on = vocabulary.is_continuation  # made anew at every look, over the whole vocabulary
    found = []
    for sentence in rng.permutation(heldout.sentences):
        start, end = heldout.sentence_offsets[sentence : sentence + 2]
        token_ids = heldout.token_ids[start:end].astype(int).tolist()
        words = _words(token_ids, pieces, goes_on)
        if not _SENTENCE_TOKENS[0] <= len(token_ids) <= _SENTENCE_TOKENS[1] or not words:
            continue
        at = int(rng.choice(words))
        before, answer, after = token_ids[:at], token_ids[at], token_ids[at + 1 :]
        text = f"{vocabulary.decode(before)} {MASK} {vocabulary.decode(after)}".strip()
        framed = [special["cls"], *before, special["mask"], *after, special["sep"]]
        found.append(Question(text, framed, [at + 1], [pieces[answer]]))
        if len(found) == count:
            return found
    raise ValueError(
        f"--heldout is {count}; only {len(found)} held-out sentences of {_SENTENCE_TOKENS[0]} to "
        f"{_SENTENCE_TOKENS[1]} tokens have a word to hide"
    )


def _words(token_ids: Sequence[int], pieces: Sequence[str], goes_on: np.ndarray) -> list[int]:
    """Where a sentence has a word of one piece: not a number, not a sign, not a part of one."""
    found = []
    for at, token_id in enumerate(token_ids):
        is_word = pieces[token_id].removeprefix(WORD_START).isalpha() and not goes_on[token_id]
        is_cut = at + 1 < len(token_ids) and bool(goes_on[token_ids[at + 1]])
        if is_word and not is_cut:
            found.append(at)
    return found


def guess(model: MaskedLm, questions: Sequence[Question], top: int) -> list[list[list[Guess]]]:
    """For every hidden place of every question the likeliest pieces, best first.

    Special pieces are never guessed.
    """
    seq_len = max(len(asked.token_ids) for asked in questions)
    places = max(len(asked.hidden_at) for asked in questions)
    input_ids_BS = np.full((len(questions), seq_len), model.vocabulary.special_ids["pad"])
    visible_BS = np.zeros((len(questions), seq_len), np.int32)
    hidden_BP = np.zeros((len(questions), places), np.int32)
    for row, asked in enumerate(questions):
        input_ids_BS[row, : len(asked.token_ids)] = asked.token_ids
        visible_BS[row, : len(asked.token_ids)] = 1
        hidden_BP[row, : len(asked.hidden_at)] = asked.hidden_at
    batch = {
        "input_ids": input_ids_BS.astype(np.int32),
        "input_mask": visible_BS,
        "positions": hidden_BP,
    }
    probabilities_BPV = _probabilities(model, mesh.place(batch, model.mesh))
    probabilities_BPV[..., list(model.vocabulary.special_ids.values())] = 0.0
    pieces = model.vocabulary.pieces()

    def best(probabilities_V: np.ndarray) -> list[Guess]:
        likeliest = np.argsort(-probabilities_V, kind="stable")[:top]
        return [Guess(pieces[i], float(probabilities_V[i])) for i in likeliest]

    return [
        [best(probabilities_BPV[row, place]) for place in range(len(asked.hidden_at))]
        for row, asked in enumerate(questions)
    ]


def _probabilities(model: MaskedLm, batch: dict[str, jax.Array]) -> np.ndarray:
    """float32[B,P,V] without the rows that pad the vocabulary."""

    @jax.jit
    def run(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        bert = model.model.bind(params)
        first_segment_BS = jnp.zeros_like(batch["input_ids"])
        visible = unpadded(batch["input_mask"])
        hidden_BSD = bert.encode(batch["input_ids"], first_segment_BS, visible)
        return jax.nn.softmax(bert.mlm_logits(hidden_BSD, batch["positions"]))

    return np.array(run(model.params, batch))[..., : model.vocabulary.size]
