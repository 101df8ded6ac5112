"""Slide windows over a text of T tokens that is longer than a row."""

from collections.abc import Sequence

import numpy as np

Span = tuple[int, int]  # first token and number of tokens


def cut_windows(pieces: int, most: int, stride: int) -> list[Span]:
    """Return the first token and the number of tokens of each window over a context.

    pieces is the length of the context in tokens; 0 gives one empty window.

    Source: run_squad.py@eedf5716ce convert_examples_to_features.
    """
    spans = [(0, min(pieces, most))]
    while sum(spans[-1]) < pieces:
        start = spans[-1][0] + min(most, stride)
        spans.append((start, min(pieces - start, most)))
    return spans


def choose_windows(spans: Sequence[Span], pieces: int) -> np.ndarray:
    """Return int64[T]: for each token the window with the most context on its shorter side.

    A tie goes to the longer window, then to the first.

    Source: run_squad.py@eedf5716ce _check_is_max_context.
    """
    window_T, most_T = np.zeros(pieces, np.int64), np.full(pieces, -1)
    for window, (start, length) in enumerate(spans):
        place = np.arange(length)
        # Hundredths of a token: integers have no rounding that could break a tie.
        context = 100 * np.minimum(place, place[::-1]) + length
        has_more = context > most_T[start : start + length]
        window_T[start : start + length][has_more] = window
        most_T[start : start + length][has_more] = context[has_more]
    return window_T
