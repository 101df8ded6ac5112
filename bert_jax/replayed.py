"""A step's rows as text: what the model saw of each example, and what it was to find."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from bert_jax import config as config_lib
from bert_jax.feed import Feed
from data_pipeline.vocab import WORD_START, Vocabulary

ROWS_A_CALL = 1024


@dataclasses.dataclass(frozen=True)
class Example:
    """An example of a row, padding left out; its tokens to predict stand as [seen->answer]."""

    parts: tuple[str, ...]  # the text of segment A, and of B where there is one
    label: int | None  # 1: the second segment is random, or the two are swapped; None without one


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a global batch, and where it is from."""

    position: int  # in the phase's stream
    epoch: int
    index: int  # within the epoch
    examples: tuple[Example, ...]


def rows_of(feed: Feed, vocabulary: Vocabulary, step: int, most: int | None) -> Iterator[Row]:
    """The rows of the global batch of a step, counted from 1; the first `most`, None for all."""
    phase = config_lib.phase_of_step(feed.config, step)
    positions = feed.positions(step)[:most]
    words, continues = vocabulary.pieces(), vocabulary.is_continuation
    for start in range(0, len(positions), ROWS_A_CALL):
        some = positions[start : start + ROWS_A_CALL]
        batch = feed.rows(phase, some)
        epochs, indices = feed.located(phase, some)
        has_label = feed.config.data.has_next_sentences
        for number, position in enumerate(some.tolist()):
            row = {name: array[number] for name, array in batch.items()}
            examples = _examples(row, words, continues, has_label)
            yield Row(position, int(epochs[number]), int(indices[number]), examples)


def _examples(
    row: Mapping[str, np.ndarray], pieces: list[str], continues: np.ndarray, has_label: bool
) -> tuple[Example, ...]:
    """Of one row: fields without their batch dimension."""
    is_used_P = row["masked_lm_weights"] != 0
    answers = zip(
        row["masked_lm_positions"][is_used_P].tolist(),
        row["masked_lm_ids"][is_used_P].tolist(),
        strict=True,
    )
    answer_at = {at: pieces[token_id] for at, token_id in answers}
    example_S = row.get("example_ids", row["input_mask"])
    label_N = np.atleast_1d(row["next_sentence_labels"])
    found = []
    for number in range(int(example_S.max(initial=0))):
        parts = []
        for segment in (0, 1):
            is_here_S = (example_S == number + 1) & (row["segment_ids"] == segment)
            places = np.flatnonzero(is_here_S & (row["input_mask"] != 0)).tolist()
            if places:
                parts.append(_text(places, row["input_ids"], pieces, continues, answer_at))
        found.append(Example(tuple(parts), int(label_N[number]) if has_label else None))
    return tuple(found)


def _text(
    places: list[int],
    ids_S: np.ndarray,
    pieces: list[str],
    continues: np.ndarray,
    answer_at: Mapping[int, str],
) -> str:
    text = ""
    for at in places:
        token_id = int(ids_S[at])
        seen = pieces[token_id]
        if at in answer_at:
            shown = f"[{seen.strip('[]')}->{answer_at[at]}]"
        else:
            shown = seen.removeprefix("##").removeprefix(WORD_START) or seen
        text += shown if continues[token_id] and text else f" {shown}"
    return text.strip()
