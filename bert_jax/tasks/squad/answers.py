"""Turn the logits of windows into answers: n-best spans, their text in the context, null odds."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.special

from bert_jax.tasks.squad.windows import SquadWindows
from data_pipeline.labeled.windows import choose_windows
from data_pipeline.vocab.offsets import AlignedPieces

_MAX_ODDS = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class AnswerSpan:
    """Hold a text that may be the answer; "" means no answer."""

    text: str
    start_logit: float
    end_logit: float

    @property
    def logit(self) -> float:
        """Return the logit by which candidates are ordered."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class AnswerPrediction:
    """Hold the candidate answers of a question."""

    candidates: tuple[AnswerSpan, ...]  # different texts that are not empty, the best first
    null: AnswerSpan  # no answer: of the window whose [CLS] has the smallest sum of logits

    @property
    def text(self) -> str:
        """Return the best text; empty where the context has no token."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def null_odds(self) -> float:
        """Return the logit of no answer minus the best text's; without one the largest float32."""
        return self.null.logit - self.candidates[0].logit if self.candidates else _MAX_ODDS


def find_best_answers(
    windows: SquadWindows,
    logits_RS2: np.ndarray,
    n_best_size: int,
    max_answer_length: int,
    texts: int,
) -> Iterator[AnswerPrediction]:
    """Yield the prediction of each question in order, with at most `texts` candidates.

    A span may start at positions for which no other window has more context, and end anywhere in
    the window's context. The n_best_size best starts and ends are combined into spans of at most
    max_answer_length tokens.

    Shapes: float32[R,S,2] start and end logits of all rows in order; S is at least the longest row.
    Source: run_squad.py@eedf5716ce write_predictions.
    """
    for question, rows in enumerate(windows.split_rows_by_question()):
        spans = [
            (int(windows.first_piece_R[row]), int(windows.window_pieces_R[row])) for row in rows
        ]
        best_window_T = choose_windows(spans, sum(spans[-1]))
        spans_of_rows = []
        for window, (row, (first, length)) in enumerate(zip(rows, spans, strict=True)):
            begin = int(windows.rows.second_starts[row])
            start_S, end_S = logits_RS2[row, begin : begin + length].astype(np.float64).T
            may_start = best_window_T[first : first + length] == window
            start_S = np.where(may_start, start_S, -np.inf)
            starts, ends = _rank_spans(start_S, end_S, n_best_size, max_answer_length)
            spans_of_rows.append((first + starts, first + ends, start_S[starts], end_S[ends]))
        cls_R = windows.rows.cls_positions
        nulls = (AnswerSpan("", *map(float, logits_RS2[row, cls_R[row]])) for row in rows)
        columns = [np.concatenate(arrays) for arrays in zip(*spans_of_rows, strict=True)]
        yield AnswerPrediction(
            _choose_texts(windows.contexts[question], windows.pieces[question], columns, texts),
            min(nulls, key=lambda null: null.logit),
        )


def _rank_spans(
    start_S: np.ndarray, end_S: np.ndarray, n_best_size: int, max_answer_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of a window's best spans, int64[N], by rank of start, then of end."""
    starts = np.argsort(-start_S, kind="stable")[:n_best_size]
    starts = starts[np.isfinite(start_S[starts])]
    ends = np.argsort(-end_S, kind="stable")[:n_best_size]
    span_pieces = ends - starts[:, None] + 1
    chosen = np.nonzero((span_pieces >= 1) & (span_pieces <= max_answer_length))
    return starts[chosen[0]], ends[chosen[1]]


def _choose_texts(
    context: str, pieces: AlignedPieces, spans: Sequence[np.ndarray], texts: int
) -> tuple[AnswerSpan, ...]:
    """Return the best spans with different texts.

    spans: arrays of first pieces, last pieces, start logits and end logits.
    """
    first_N, last_N, start_N, end_N = spans
    best: dict[str, AnswerSpan] = {}
    for i in np.argsort(-(start_N + end_N), kind="stable"):
        text = context[pieces.starts_T[first_N[i]] : pieces.ends_T[last_N[i]]].strip()
        if text and text not in best:
            best[text] = AnswerSpan(text, float(start_N[i]), float(end_N[i]))
            if len(best) == texts:
                break
    return tuple(best.values())


def list_best(
    prediction: AnswerPrediction, n_best_size: int, has_unanswerable: bool
) -> list[AnswerSpan]:
    """Return the best candidates; with has_unanswerable, no answer is always among them."""
    candidates = list(prediction.candidates)
    if has_unanswerable:
        candidates.append(prediction.null)
        candidates.sort(key=lambda candidate: -candidate.logit)
    best = candidates[:n_best_size]
    if has_unanswerable and prediction.null not in best:
        best.append(prediction.null)
    return best or [prediction.null]


def make_documents(
    prediction: AnswerPrediction, n_best_size: int, threshold: float | None
) -> tuple[str, list[dict[str, str | float]], float]:
    """Return a question's answer, its best texts with probabilities, and its null odds.

    With a threshold (SQuAD 2.0) the answer is empty where the null odds are above it.
    """
    is_null = threshold is not None and prediction.null_odds > threshold
    best = list_best(prediction, n_best_size, threshold is not None)
    shares = scipy.special.softmax([candidate.logit for candidate in best])
    texts: list[dict[str, str | float]] = [
        {
            "text": candidate.text,
            "probability": float(share),
            "start_logit": candidate.start_logit,
            "end_logit": candidate.end_logit,
        }
        for candidate, share in zip(best, shares, strict=True)
    ]
    return "" if is_null else prediction.text, texts, prediction.null_odds


def format_files(
    by_id: Mapping[str, AnswerPrediction], n_best_size: int, threshold: float | None
) -> dict[str, str]:
    """Format the files of run_squad.py: name -> text, JSON by question id."""
    documents = {
        question_id: make_documents(prediction, n_best_size, threshold)
        for question_id, prediction in by_id.items()
    }
    names = ["predictions.json", "nbest_predictions.json"]
    names += ["null_odds.json"] * (threshold is not None)
    texts = {}
    for number, name in enumerate(names):
        document = {question_id: parts[number] for question_id, parts in documents.items()}
        texts[name] = f"{json.dumps(document, indent=4)}\n"
    return texts
