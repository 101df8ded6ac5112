"""Guess the tokens that [MASK] hides in sentences.

Dimensions: B sentences, S sequence, P masks of a sentence, V vocabulary.
"""

import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import rich.text

from bert_jax.inference import batches
from bert_jax.interop import load
from bert_jax.interop.pretrained import PlacedModel, place_masked_lm, refuse_causal
from bert_jax.model.bert import Bert
from bert_jax.train_step.objectives.objective import make_rows
from bert_jax.trainer.feed import join_digests, open_stores
from data_pipeline.io import Refused
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import build_rows
from data_pipeline.store import EXAMPLES, Split, Store
from data_pipeline.vocab import BYTE_LEVEL, WORD_START, Vocabulary, split_ids
from data_pipeline.vocab.byte_level import SPACE
from data_pipeline.vocab.wordpiece import replace_surrogates

MASK = "[MASK]"
_HELDOUT_TOKENS = (8, 25)  # fewest and most tokens of a held-out sentence to ask about
_BATCH_SIZE = 32  # sentences


@dataclasses.dataclass(frozen=True)
class Question:
    """Hold a sentence as a row of token ids with masked tokens."""

    text: str
    row: FramedRow
    mask_positions: list[int]  # positions of [MASK] in the row
    answers: list[str]  # the hidden tokens, "" if unknown


@dataclasses.dataclass(frozen=True)
class Guess:
    """Hold a token that may replace a mask."""

    token: str
    probability: float


def load_guesser(address: str) -> PlacedModel:
    """Read the masked language model at an address onto the first device.

    Raises:
      Refused: there is none; the model reads from left to right.
    """
    checkpoint = load.load_masked_lm(address)
    refuse_causal(checkpoint, "and guesses no [MASK]: give a masked language model")
    return place_masked_lm(checkpoint, jax.local_devices()[:1])


def read_question(model: PlacedModel, sentence: str) -> Question:
    """Read a sentence with [MASK] in it, or with the vocabulary's own spelling, such as <mask>.

    Raises:
      Refused: there is no [MASK], the sentence is not UTF-8, or it is longer than the model's
        positions.
    """
    if replace_surrogates(sentence) != sentence:  # BERT drops them: another sentence is guessed
        raise Refused(
            f"{sentence!a:.80} has bytes that are not UTF-8; write it in UTF-8, in a locale that "
            "reads it, such as LC_ALL=C.UTF-8"
        )
    special_ids, vocabulary = model.vocabulary.special_ids, model.vocabulary
    parts = sentence.replace(vocabulary.pieces()[special_ids["mask"]], MASK).split(MASK)
    if len(parts) < 2:
        raise Refused(
            f"{sentence!r} has no {MASK}; write it, in capitals, in the place of the word to guess"
        )
    before, after = vocabulary.template.margins(is_pair=False)
    token_ids: list[int] = []
    mask_positions: list[int] = []
    # A guessed token includes the space before it.
    parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
    ids_of_parts = split_ids(*vocabulary.encode(parts))
    for number, (part, part_ids) in enumerate(zip(parts, ids_of_parts, strict=True)):
        if number:
            mask_positions.append(before + len(token_ids))
            token_ids.append(special_ids["mask"])
        has_space = number == 0 or part.startswith(" ")
        kept = part_ids.tolist()
        token_ids += kept if has_space else _drop_space(vocabulary, kept)
    longest = model.checkpoint.config.max_position_embeddings
    tokens = before + len(token_ids) + after
    if tokens > longest:
        raise Refused(
            f"{sentence[:40]!r}... is {tokens} tokens with [CLS] and [SEP], the model "
            f"reads {longest}; shorten it"
        )
    row = frame(token_ids, None, vocabulary.template, longest)
    return Question(sentence, row, mask_positions, [""] * len(mask_positions))


def _drop_space(vocabulary: Vocabulary, token_ids: list[int]) -> list[int]:
    """Remove the space that a vocabulary puts before any text."""
    if not vocabulary.has_spaces or not token_ids:
        return token_ids
    tokens = vocabulary.pieces()  # readable pieces would hide the space before a partial character
    space = SPACE if vocabulary.kind == BYTE_LEVEL else WORD_START
    first = tokens[token_ids[0]].removeprefix(space)
    if not first:
        return token_ids[1:]
    if first == tokens[token_ids[0]]:
        return token_ids
    return [tokens.index(first), *token_ids[1:]] if first in tokens else token_ids


def open_stores_of_run(address: str, wish: str) -> tuple[Store, ...]:
    """Open the stores that the run of a checkpoint was trained on.

    Raises:
      Refused: there are none, or they hold no sentences; `wish` begins the error.
    """
    run = load.read_run(address)
    if run is None or run.converted_from:
        raise Refused(
            f"{wish}, but {address} is not the workdir of a run that was trained here, which held "
            "text out; give one, or ask your own sentences with fill_mask"
        )
    stores = open_stores(run.config.data)
    if join_digests(stores) != run.store_digest:
        raise Refused(
            f"{run.config.data.store} is not the store that the run of {address} was trained on; "
            "put that one back, or ask your own sentences with fill_mask"
        )
    if stores[0].kind == EXAMPLES:  # stores of examples are not mixed
        raise Refused(
            f"{wish}, but {run.config.data.store} holds ready-made examples and no sentences; ask "
            "your own sentences with fill_mask"
        )
    return stores


def guess_heldout_words(workdir: str, count: int, top: int) -> list[tuple[str, str]]:
    """Hide a word in `count` held-out sentences of each store of a run; return (text, guesses).

    The newest checkpoint guesses. Raises Refused if the run has no masked language model.
    """
    address = f"{load.ORBAX}:{workdir}"
    stores = open_stores_of_run(address, f"--guesses is {count}")
    model = load_guesser(address)
    positions = model.checkpoint.config.max_position_embeddings
    questions = [
        question
        for store in stores
        for question in hide_heldout_words(model.vocabulary, store.heldout, count, positions)
    ]
    return [
        (question.text, format_guesses(guesses[0], question.answers[0]).plain)
        for question, guesses in zip(questions, guess_tokens(model, questions, top), strict=True)
    ]


def format_guesses(guesses: Sequence[Guess], answer: str) -> rich.text.Text:
    """Format the guesses for a mask; with an answer, also the answer and its rank."""
    parts = []
    for guess in guesses:
        style = "bold green" if guess.token == answer else "cyan"
        token = (guess.token.removeprefix(WORD_START) or WORD_START, style)
        parts.append(rich.text.Text.assemble(token, f" {guess.probability:.0%}"))
    if answer:
        tokens = [guess.token for guess in guesses]
        place = f", guess {tokens.index(answer) + 1}" if answer in tokens else ""
        parts.append(rich.text.Text(f"it was: {answer.removeprefix(WORD_START)}{place}", "dim"))
    return rich.text.Text("  ") + rich.text.Text("   ").join(parts)


def hide_heldout_words(
    vocabulary: Vocabulary, heldout: Split, count: int, positions: int
) -> list[Question]:
    """Choose held-out sentences and mask one whole word of each, the same ones at every call.

    A sentence and its special tokens fit into `positions`, as many as the model has.

    Raises:
      Refused: the split has too few sentences of a fitting length.
    """
    rng = np.random.default_rng(0)
    first, last = vocabulary.template.margins(is_pair=False)
    fewest, most = _HELDOUT_TOKENS
    most = min(most, positions - first - last)
    tokens = vocabulary.readable_pieces()
    is_continuation_V = vocabulary.is_continuation
    questions = []
    for sentence in rng.permutation(heldout.sentences):
        start, end = heldout.sentence_offsets[sentence : sentence + 2]
        token_ids = heldout.token_ids[start:end].astype(int).tolist()
        words = _find_words(token_ids, tokens, is_continuation_V)
        if not fewest <= len(token_ids) <= most or not words:
            continue
        position = int(rng.choice(words))
        before, answer, after = token_ids[:position], token_ids[position], token_ids[position + 1 :]
        text = f"{vocabulary.decode(before)} {MASK} {vocabulary.decode(after)}".strip()
        masked = [*before, vocabulary.special_ids["mask"], *after]
        row = frame(masked, None, vocabulary.template, len(masked) + first + last)
        questions.append(Question(text, row, [first + position], [tokens[answer]]))
        if len(questions) == count:
            return questions
    raise Refused(
        f"there are no {count:,} held-out sentences to hide a word of: only {len(questions):,} of "
        f"{fewest} to {most} tokens have one; ask for fewer"
    )


def _find_words(
    token_ids: Sequence[int], tokens: Sequence[str], is_continuation_V: np.ndarray
) -> list[int]:
    """Return the positions of single-token words that are neither numbers nor punctuation."""
    positions = []
    for position, token_id in enumerate(token_ids):
        text = tokens[token_id].removeprefix(WORD_START)
        # Combining marks, the vowels of many scripts, are no letters to Python.
        letters = "".join(char for char in text if unicodedata.category(char)[0] != "M")
        is_word = letters.isalpha() and not is_continuation_V[token_id]
        following = token_ids[position + 1 : position + 2]
        if is_word and not any(is_continuation_V[token_id] for token_id in following):
            positions.append(position)
    return positions


def guess_tokens(
    model: PlacedModel, questions: Sequence[Question], top: int
) -> list[list[list[Guess]]]:
    """Return for every mask of every question the `top` likeliest tokens, best first.

    Special tokens are never guessed, so a tiny vocabulary gives fewer than `top`.
    """
    masks = max((len(question.mask_positions) for question in questions), default=0)
    positions_BP = np.zeros((len(questions), masks), np.int32)
    weights_BP = np.zeros((len(questions), masks), np.float32)
    for row, question in enumerate(questions):
        positions_BP[row, : len(question.mask_positions)] = question.mask_positions
        weights_BP[row, : len(question.mask_positions)] = 1.0
    labels = {"positions": positions_BP, "weights": weights_BP}
    rows = build_rows([question.row for question in questions], labels)
    tokens = model.vocabulary.readable_pieces()
    special_ids = sorted({*model.vocabulary.special_ids.values()})
    top = min(top, len(tokens) - len(special_ids))

    def choose_likeliest(probabilities_V: np.ndarray) -> list[Guess]:
        probabilities_V = probabilities_V[: len(tokens)].copy()  # drops the vocabulary's padding
        probabilities_V[special_ids] = 0.0
        likeliest = np.argsort(-probabilities_V, kind="stable")[:top]
        return [Guess(tokens[i], float(probabilities_V[i])) for i in likeliest]

    guesses: list[list[list[Guess]]] = [[] for _ in questions]
    step = batches.compile_step(model.model, _compute_probabilities)
    for index_B, outputs in batches.run_rows(step, model, rows, _BATCH_SIZE):
        for row, probabilities_PV in zip(index_B, outputs["probabilities"], strict=True):
            count = len(questions[row].mask_positions)
            guesses[row] = [choose_likeliest(each_V) for each_V in probabilities_PV[:count]]
    return guesses


def _compute_probabilities(bert: Bert, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return float32[B,P,V]."""
    rows = make_rows(batch, None)
    vectors_BPD = bert.encode_masked(rows, batch["positions"], batch["weights"])
    logits_BPV = bert.compute_target_logits(vectors_BPD)
    return {"probabilities": jax.nn.softmax(logits_BPV)}
