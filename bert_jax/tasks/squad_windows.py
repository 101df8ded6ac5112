"""Questions and contexts to rows: windows that slide over what is longer than a row."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.squad_files import Paragraph, Question, answer_span
from data_pipeline.finetune import EncodedRows
from data_pipeline.piece_offsets import AlignedPieces, PieceAligner
from data_pipeline.vocab import Vocabulary

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Windows:
    """R rows [CLS] question [SEP] window [SEP] of Q questions, those of a question in a row.

    Of row r, pieces first_piece_R[r] and the window_pieces_R[r] - 1 after it of the context of
    question question_R[r] begin at place context_at_R[r].
    """

    rows: EncodedRows
    questions: tuple[Question, ...]
    contexts: tuple[str, ...]  # Q: the text of each
    pieces: tuple[AlignedPieces, ...]  # Q: the pieces of each
    question_R: np.ndarray  # int32[R]
    context_at_R: np.ndarray  # int32[R]
    first_piece_R: np.ndarray  # int32[R]
    window_pieces_R: np.ndarray  # int32[R]

    def rows_of(self) -> list[range]:
        """Q: the rows of each question."""
        bounds = np.searchsorted(self.question_R, np.arange(len(self.questions) + 1))
        return [range(start, end) for start, end in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class Findings:
    """What was met while windows were made: the ids of the questions."""

    in_several_windows: tuple[str, ...]
    cut: tuple[str, ...]  # longer than max_query_length
    without_pieces: tuple[str, ...]  # empty, or nothing that the vocabulary keeps


def window_spans(pieces: int, most: int, stride: int) -> list[Span]:
    """First piece and number of pieces of each window over a context of so many pieces.

    A context without pieces has one window without any.

    Source: run_squad.py@eedf5716ce convert_examples_to_features.
    """
    spans = [(0, min(pieces, most))]
    while sum(spans[-1]) < pieces:
        start = spans[-1][0] + min(most, stride)
        spans.append((start, min(pieces - start, most)))
    return spans


def window_of_most_context(spans: Sequence[Span], pieces: int) -> np.ndarray:
    """int64[T]: in which window each piece of a context has the most context on its poorer side.

    Of equal windows the longer counts, then the first.

    Source: run_squad.py@eedf5716ce _check_is_max_context.
    """
    if len(spans) == 1:
        return np.zeros(pieces, np.int64)
    starts_W1, lengths_W1 = np.array(spans).T[..., None]
    left_WT = np.arange(pieces) - starts_W1
    right_WT = starts_W1 + lengths_W1 - 1 - np.arange(pieces)
    least_WT = np.minimum(left_WT, right_WT)
    # In pieces times a hundred: whole numbers have no roundings that could break a tie.
    context_WT = np.where(least_WT >= 0, 100 * least_WT + lengths_W1, -1)
    return np.argmax(context_WT, axis=0)


def pieces_of_characters(pieces: AlignedPieces, start: int, end: int) -> Span | None:
    """The first and last piece that stand for characters from start to end - 1; None if none."""
    first = int(np.searchsorted(pieces.ends_T, start, side="right"))
    last = int(np.searchsorted(pieces.starts_T, end, side="left")) - 1
    return (first, last) if first <= last else None


def make_windows(
    paragraphs: Sequence[Paragraph], vocabulary: Vocabulary, options: TaskOptions, labelled: bool
) -> tuple[Windows, Findings]:
    """The rows of all questions, in order; where labelled, with the places of their first answers.

    A window without the whole answer, and every window of a question without one, has its answer
    at [CLS], place 0, as in run_squad.py. A context shared by questions is cut into pieces once.
    """
    aligner = PieceAligner(vocabulary)
    made = _Rows(vocabulary, options)
    for paragraph in paragraphs:
        pieces = aligner.encode(paragraph.context)
        queries = _encoded(vocabulary, [question.text for question in paragraph.questions])
        for question, query in zip(paragraph.questions, queries, strict=True):
            made.add(question, query, paragraph.context, pieces)
    return made.windows(labelled), made.findings()


def _encoded(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
    flat, lengths = vocabulary.encode(texts)
    return np.split(flat.astype(np.int32), np.cumsum(lengths)[:-1]) if len(texts) else []


class _Rows:
    """Rows in the making."""

    def __init__(self, vocabulary: Vocabulary, options: TaskOptions) -> None:
        self._options = options
        special = vocabulary.special_ids
        self._cls = np.array([special["cls"]], np.int32)
        self._sep = np.array([special["sep"]], np.int32)
        self._parts: list[np.ndarray] = []  # of rows, one after another
        self._facts: list[tuple[int, int, int, int, int, int]] = []  # of each row
        self._questions: list[Question] = []
        self._contexts: list[str] = []
        self._pieces: list[AlignedPieces] = []
        self._several: list[str] = []
        self._cut: list[str] = []
        self._without_pieces: list[str] = []

    def add(
        self, question: Question, query: np.ndarray, context: str, pieces: AlignedPieces
    ) -> None:
        """The rows of one question."""
        most_of_query = self._options.max_query_length
        if len(query) == 0:
            self._without_pieces.append(question.id)
        if len(query) > most_of_query:
            self._cut.append(question.id)
            query = query[:most_of_query]
        spans = window_spans(
            len(pieces.ids_T),
            self._options.max_seq_length - len(query) - 3,  # [CLS] and two [SEP]
            self._options.doc_stride,
        )
        if len(spans) > 1:
            self._several.append(question.id)
        answer = _answer_pieces(question, context, pieces)
        at = len(query) + 2
        for first, length in spans:
            window = pieces.ids_T[first : first + length]
            self._parts += [self._cls, query, self._sep, window, self._sep]
            start = end = 0
            if answer and first <= answer[0] and answer[1] < first + length:
                start, end = (place - first + at for place in answer)
            self._facts.append((len(self._questions), at, first, length, start, end))
        self._questions.append(question)
        self._contexts.append(context)
        self._pieces.append(pieces)

    def windows(self, labelled: bool) -> Windows:
        """What was added, as arrays."""
        facts = np.array(self._facts, np.int32).T
        question_R, at_R, first_R, length_R, start_R, end_R = facts
        offsets = np.concatenate([[0], np.cumsum(at_R + length_R + 1, dtype=np.int64)])
        labels = {"start_positions": start_R, "end_positions": end_R} if labelled else {}
        return Windows(
            EncodedRows(np.concatenate(self._parts), offsets, at_R, labels),
            tuple(self._questions),
            tuple(self._contexts),
            tuple(self._pieces),
            question_R,
            at_R,
            first_R,
            length_R,
        )

    def findings(self) -> Findings:
        """What was met."""
        return Findings(tuple(self._several), tuple(self._cut), tuple(self._without_pieces))


def _answer_pieces(question: Question, context: str, pieces: AlignedPieces) -> Span | None:
    if not question.answers:
        return None
    span = answer_span(context, question.answers[0])
    return span and pieces_of_characters(pieces, *span)
