"""Logits of windows to answers: n-best spans, their text cut from the context, null odds."""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.special

from bert_jax.record_files import write_whole
from bert_jax.tasks.squad_windows import Windows, window_of_most_context


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A text that may be the answer; "" is that there is none."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def logit(self) -> float:
        """What candidates are ordered by."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the logits say of a question."""

    candidates: tuple[Candidate, ...]  # texts that are not empty and differ, the best first
    null: Candidate  # of the window whose [CLS] has the least sum of logits

    @property
    def text(self) -> str:
        """The best text; empty where the context has no piece."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def null_odds(self) -> float:
        """How much more the logits speak for no answer than for the best text."""
        return self.null.logit - self.candidates[0].logit if self.candidates else np.inf


def predictions(
    windows: Windows, logits_RS2: np.ndarray, n_best_size: int, max_answer_length: int, texts: int
) -> Iterator[Prediction]:
    """The best so many texts of each question, in order.

    Starts are places of a window's context that have no more context in another window; ends,
    any places of it. The n_best_size best of each are combined into spans of at most
    max_answer_length pieces.

    Shapes: float32[R,S,2] start and end logits of all rows in order, S at least the longest row.
    Source: run_squad.py@eedf5716ce write_predictions.
    """
    for question, rows in enumerate(windows.rows_of()):
        spans = [
            (int(windows.first_piece_R[row]), int(windows.window_pieces_R[row])) for row in rows
        ]
        best_window_T = window_of_most_context(spans, sum(spans[-1]))
        found = []
        for which, (row, (first, length)) in enumerate(zip(rows, spans, strict=True)):
            at = int(windows.context_at_R[row])
            start_S, end_S = logits_RS2[row, at : at + length].astype(np.float64).T
            may_start = best_window_T[first : first + length] == which
            start_S = np.where(may_start, start_S, -np.inf)
            found.append(first + _best_spans(start_S, end_S, n_best_size, max_answer_length))
        yield Prediction(
            _texts(windows, question, rows, logits_RS2, found, texts),
            min(_nulls(logits_RS2, rows), key=lambda null: null.logit),
        )


def _nulls(logits_RS2: np.ndarray, rows: Sequence[int]) -> Iterator[Candidate]:
    for row in rows:
        yield Candidate("", float(logits_RS2[row, 0, 0]), float(logits_RS2[row, 0, 1]))


def _best_spans(
    start_S: np.ndarray, end_S: np.ndarray, n_best_size: int, max_answer_length: int
) -> np.ndarray:
    """int64[N,2]: spans within a window, by the rank of their start, then of their end."""
    starts = np.argsort(-start_S, kind="stable")[:n_best_size]
    starts = starts[np.isfinite(start_S[starts])]
    ends = np.argsort(-end_S, kind="stable")[:n_best_size]
    span_pieces = ends - starts[:, None] + 1
    chosen = np.argwhere((span_pieces >= 1) & (span_pieces <= max_answer_length))
    return np.stack([starts[chosen[:, 0]], ends[chosen[:, 1]]], axis=1)


def _texts(
    windows: Windows,
    question: int,
    rows: Sequence[int],
    logits_RS2: np.ndarray,
    found: Sequence[np.ndarray],
    texts: int,
) -> tuple[Candidate, ...]:
    """The best texts among the spans of a question's windows, in pieces of its context."""
    row_N = np.repeat(rows, [len(spans) for spans in found])
    span_N2 = np.concatenate(found)
    place_N2 = span_N2 + (windows.context_at_R - windows.first_piece_R)[row_N][:, None]
    start_N = logits_RS2[row_N, place_N2[:, 0], 0].astype(np.float64)
    end_N = logits_RS2[row_N, place_N2[:, 1], 1].astype(np.float64)
    context, pieces = windows.contexts[question], windows.pieces[question]
    best: dict[str, Candidate] = {}
    for i in np.argsort(-(start_N + end_N), kind="stable"):
        first, last = span_N2[i]
        text = context[pieces.starts_T[first] : pieces.ends_T[last]].strip()
        if text and text not in best:
            best[text] = Candidate(text, float(start_N[i]), float(end_N[i]))
            if len(best) == texts:
                break
    return tuple(best.values())


def n_best(prediction: Prediction, n_best_size: int, has_unanswerable: bool) -> list[Candidate]:
    """The best so many, no answer among them where that is possible, even if it comes last."""
    listed = list(prediction.candidates)
    if has_unanswerable:
        listed = sorted([*listed, prediction.null], key=lambda one: -one.logit)
    best = listed[:n_best_size]
    if has_unanswerable and prediction.null not in best:
        best.append(prediction.null)
    return best or [prediction.null]


def documents(
    prediction: Prediction, n_best_size: int, threshold: float | None
) -> tuple[str, list[dict[str, str | float]], float]:
    """Return a question's answer, its best texts with probabilities, and its null odds.

    With a threshold, that of SQuAD 2.0, the answer is empty where the odds are above it.
    """
    is_null = threshold is not None and prediction.null_odds > threshold
    best = n_best(prediction, n_best_size, threshold is not None)
    answer = "" if is_null else prediction.text
    return answer, _with_probabilities(best), _finite(prediction.null_odds)


def write_files(
    folder: pathlib.Path,
    by_id: Mapping[str, Prediction],
    n_best_size: int,
    threshold: float | None,
) -> list[pathlib.Path]:
    """predictions.json and nbest_predictions.json, and with a threshold null_odds.json.

    They are what run_squad.py writes: of SQuAD 2.0, the answer of a question whose null odds are
    above the threshold is empty.
    """
    of_each = {
        question_id: documents(one, n_best_size, threshold) for question_id, one in by_id.items()
    }
    names = ["predictions.json", "nbest_predictions.json"]
    names += ["null_odds.json"] * (threshold is not None)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, name in enumerate(names):
        document = {question_id: of_one[number] for question_id, of_one in of_each.items()}
        write_whole(folder / name, f"{json.dumps(document, indent=4)}\n".encode())
        written.append(folder / name)
    return written


def _finite(odds: float) -> float:
    """JSON has no infinity."""
    return min(odds, float(np.finfo(np.float32).max))


def _with_probabilities(candidates: Sequence[Candidate]) -> list[dict[str, str | float]]:
    shares = scipy.special.softmax([one.logit for one in candidates])
    return [
        {
            "text": one.text,
            "probability": float(share),
            "start_logit": one.start_logit,
            "end_logit": one.end_logit,
        }
        for one, share in zip(candidates, shares, strict=True)
    ]
