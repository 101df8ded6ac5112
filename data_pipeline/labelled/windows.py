"""Slide windows over a text that is longer than a row.

Dimensions: T tokens of the text, W windows.
"""

from collections.abc import Sequence

import numpy as np

Span = tuple[int, int]  # first token and number of tokens


def cut_windows(pieces: int, most: int, stride: int) -> list[Span]:
    """Return the first token and the number of tokens of each window over a context.

    pieces is the length of the context; without any there is one empty window.

    Source: run_squad.py@eedf5716ce convert_examples_to_features.
    """
    spans = [(0, min(pieces, most))]
    while sum(spans[-1]) < pieces:
        start = spans[-1][0] + min(most, stride)
        spans.append((start, min(pieces - start, most)))
    return spans


def choose_windows(spans: Sequence[Span], pieces: int) -> np.ndarray:
    """Return int64[T]: for each token the window with the most context on its poorer side.

    Among equals the longer window counts, then the first.

    Source: run_squad.py@eedf5716ce _check_is_max_context.
    """
    if len(spans) == 1:
        return np.zeros(pieces, np.int64)
    starts_W1, lengths_W1 = np.array(spans).T[..., None]
    left_WT = np.arange(pieces) - starts_W1
    right_WT = starts_W1 + lengths_W1 - 1 - np.arange(pieces)
    least_WT = np.minimum(left_WT, right_WT)
    # Hundredths of a token: integers have no rounding that could break a tie.
    context_WT = np.where(least_WT >= 0, 100 * least_WT + lengths_W1, -1)
    return np.argmax(context_WT, axis=0)
