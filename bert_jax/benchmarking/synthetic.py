"""Make batches of synthetic tokens in the shapes of a phase: for timing without a store.

What a step costs depends on shapes alone on most devices; ids are random so that table lookups
spread as they do in text, and rows are padded and packed as asked for.
"""

import numpy as np

from data_pipeline.spec.schema import MIN_EXAMPLE_TOKENS, RowShape

Batch = dict[str, np.ndarray]

# How often a packed row holds 1, 2 or 3 examples: 1.75 on average, as Wikipedia's pairs at 512.
_EXAMPLES_OF_A_ROW = (0.5, 0.25, 0.25)


def make_synthetic_batch(
    shape: RowShape, rows: int, vocab_size: int, token_share: float, seed: int
) -> Batch:
    """Make a batch whose rows are filled with tokens to this share of their length.

    Masked positions are 15% of an example's tokens, as many as there are slots at most; each
    example has a next-sentence label.
    """
    rng = np.random.default_rng(seed)
    used = max(MIN_EXAMPLE_TOKENS, round(token_share * shape.seq_len))
    batch = shape.zeros(rows)
    batch["input_ids"][:, :used] = rng.integers(1, vocab_size, (rows, used))
    batch["input_mask"][:, :used] = 1
    for row in range(rows):
        ends = _ends(rng, used, shape.examples)
        _fill_row(batch, row, ends, shape, rng)
    batch["masked_lm_ids"] = np.where(
        batch["masked_lm_weights"] > 0,
        rng.integers(1, vocab_size, batch["masked_lm_ids"].shape),
        0,
    ).astype(np.int32)
    return batch


def _ends(rng: np.random.Generator, used: int, most_examples: int) -> list[int]:
    """Choose where the examples of a row end."""
    most = min(most_examples, len(_EXAMPLES_OF_A_ROW), used // MIN_EXAMPLE_TOKENS)
    chances = np.array(_EXAMPLES_OF_A_ROW[:most])
    examples = int(rng.choice(most, p=chances / chances.sum())) + 1
    spare = used - examples * MIN_EXAMPLE_TOKENS
    cuts = np.sort(rng.integers(0, spare + 1, examples - 1))
    extra = np.diff(cuts, prepend=0, append=spare)
    return [int(end) for end in np.cumsum(extra + MIN_EXAMPLE_TOKENS)]


def _fill_row(
    batch: Batch, row: int, ends: list[int], shape: RowShape, rng: np.random.Generator
) -> None:
    """Write segments, masks, labels and, in a packed row, positions of its examples."""
    start, slot = 0, 0
    for number, end in enumerate(ends):
        length = end - start
        batch["segment_ids"][row, start + length // 2 : end] = 1
        masks = min(max(1, round(0.15 * length)), shape.predictions - slot, length - 1)
        slots = np.s_[row, slot : slot + masks]
        batch["masked_lm_positions"][slots] = (
            start + 1 + np.sort(rng.choice(length - 1, masks, replace=False))
        )
        batch["masked_lm_weights"][slots] = 1.0
        label = row if shape.examples == 1 else (row, number)
        batch["next_sentence_labels"][label] = rng.integers(0, 2)
        batch["next_sentence_weights"][label] = 1.0
        if shape.examples > 1:
            batch["example_ids"][row, start:end] = number + 1
            batch["position_ids"][row, start:end] = np.arange(length)
            batch["cls_positions"][row, number] = start
        start, slot = end, slot + masks
