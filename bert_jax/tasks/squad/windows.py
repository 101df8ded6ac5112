"""Encode questions and contexts as rows: windows slide over contexts longer than a row."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.config.schema import TaskOptions
from bert_jax.tasks.squad.data import Paragraph, SquadQuestion, answer_span
from data_pipeline.labelled.rows import EncodedRows
from data_pipeline.labelled.windows import Span, window_spans
from data_pipeline.vocab import Vocabulary
from data_pipeline.vocab.offsets import AlignedPieces, PieceAligner


@dataclasses.dataclass(frozen=True)
class Windows:
    """Hold R rows [CLS] question [SEP] window [SEP] of Q questions, in the order of the questions.

    The window of row r is window_pieces_R[r] tokens of the context of question question_R[r], from
    token first_piece_R[r] on; it begins at position context_at_R[r] of the row.
    """

    rows: EncodedRows
    questions: tuple[SquadQuestion, ...]
    contexts: tuple[str, ...]  # Q: the text of each context
    pieces: tuple[AlignedPieces, ...]  # Q: the tokens of each context
    question_R: np.ndarray  # int32[R]
    context_at_R: np.ndarray  # int32[R]
    first_piece_R: np.ndarray  # int32[R]
    window_pieces_R: np.ndarray  # int32[R]

    def rows_of(self) -> list[range]:
        """Return the row numbers of each question, Q ranges."""
        bounds = np.searchsorted(self.question_R, np.arange(len(self.questions) + 1))
        return [range(start, end) for start, end in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class Findings:
    """List the ids of questions that a note is written about."""

    in_several_windows: list[str]
    cut: list[str]  # longer than max_query_length
    without_pieces: list[str]  # without a token of the vocabulary


def find_pieces(pieces: AlignedPieces, start: int, end: int) -> Span | None:
    """Find the first and last token that overlap characters start to end - 1; None if none do."""
    first = int(np.searchsorted(pieces.ends_T, start, side="right"))
    last = int(np.searchsorted(pieces.starts_T, end, side="left")) - 1
    return (first, last) if first <= last else None


def make_windows(
    paragraphs: Sequence[Paragraph], vocabulary: Vocabulary, options: TaskOptions, labelled: bool
) -> tuple[Windows, Findings]:
    """Encode the rows of all questions in order; if labelled, with the spans of first answers.

    As in run_squad.py, a window without the complete answer, and every window of a question without
    one, has its answer at [CLS], position 0. A context shared by questions is tokenized once.
    """
    aligner = PieceAligner(vocabulary)
    special = vocabulary.special_ids
    cls, sep = np.array([special["cls"]], np.int32), np.array([special["sep"]], np.int32)
    between = sep.repeat(vocabulary.pair_separators)
    findings = Findings([], [], [])
    parts: list[np.ndarray] = []  # tokens of the rows, one after another
    facts: list[tuple[int, int, int, int, int, int]] = []  # of each row
    asked: list[tuple[SquadQuestion, str, AlignedPieces]] = []
    for paragraph in paragraphs:
        pieces = aligner.encode(paragraph.context)
        queries = _encode(vocabulary, [question.text for question in paragraph.questions])
        for question, query in zip(paragraph.questions, queries, strict=True):
            if len(query) == 0:
                findings.without_pieces.append(question.id)
            if len(query) > options.max_query_length:
                findings.cut.append(question.id)
                query = query[: options.max_query_length]
            most_pieces = options.max_seq_length - len(query) - len(between) - 2  # [CLS], [SEP]
            spans = window_spans(len(pieces.ids_T), most_pieces, options.doc_stride)
            if len(spans) > 1:
                findings.in_several_windows.append(question.id)
            answer = _answer_pieces(question, paragraph.context, pieces)
            context_at = len(query) + 1 + len(between)
            for first, length in spans:
                parts += [cls, query, between, pieces.ids_T[first : first + length], sep]
                start = end = 0
                if answer and first <= answer[0] and answer[1] < first + length:
                    start, end = (place - first + context_at for place in answer)
                facts.append((len(asked), context_at, first, length, start, end))
            asked.append((question, paragraph.context, pieces))
    question_R, at_R, first_R, length_R, start_R, end_R = np.array(facts, np.int32).T
    offsets = np.concatenate([[0], np.cumsum(at_R + length_R + 1, dtype=np.int64)])
    labels = {"start_positions": start_R, "end_positions": end_R} if labelled else {}
    rows = EncodedRows(np.concatenate(parts), offsets, at_R, labels)
    questions, contexts, aligned = zip(*asked, strict=True)
    return Windows(
        rows, questions, contexts, aligned, question_R, at_R, first_R, length_R
    ), findings


def _encode(vocabulary: Vocabulary, texts: Sequence[str]) -> list[np.ndarray]:
    flat, lengths = vocabulary.encode(texts)
    return np.split(flat.astype(np.int32), np.cumsum(lengths)[:-1]) if len(texts) else []


def _answer_pieces(question: SquadQuestion, context: str, pieces: AlignedPieces) -> Span | None:
    if not question.answers:
        return None
    span = answer_span(context, question.answers[0])
    return span and find_pieces(pieces, *span)
