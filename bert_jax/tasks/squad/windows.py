"""Encode questions and contexts as rows: windows slide over contexts longer than a row."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.encode import encode_ids
from bert_jax.tasks.squad.data import Paragraph, SquadQuestion, find_answer_span
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import EncodedRows, build_rows, join_rows
from data_pipeline.labeled.windows import Span, cut_windows
from data_pipeline.vocab import Vocabulary
from data_pipeline.vocab.offsets import AlignedPieces, PieceAligner


@dataclasses.dataclass(frozen=True)
class SquadWindows:
    """Hold R rows, pairs of a question and a window, of Q questions, in the order of the questions.

    The window of row r is window_pieces_R[r] tokens of the context of question question_R[r], from
    token first_piece_R[r] on; it begins at position rows.second_starts[r] of the row.
    """

    rows: EncodedRows
    questions: tuple[SquadQuestion, ...]
    contexts: tuple[str, ...]  # Q: the text of each context
    pieces: tuple[AlignedPieces, ...]  # Q: the tokens of each context
    question_R: np.ndarray  # int32[R]
    first_piece_R: np.ndarray  # int32[R]
    window_pieces_R: np.ndarray  # int32[R]

    def split_rows_by_question(self) -> list[range]:
        """Return the row numbers of each question, Q ranges."""
        bounds = np.searchsorted(self.question_R, np.arange(len(self.questions) + 1))
        return [range(start, end) for start, end in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class Findings:
    """List the ids of questions that a note is written about."""

    in_several_windows: list[str]
    cut: list[str]  # longer than max_query_length
    without_pieces: list[str]  # no token of the vocabulary is left


def find_pieces(pieces: AlignedPieces, start: int, end: int) -> Span | None:
    """Find the first and last token that overlap characters start to end - 1; None if none do."""
    first = int(np.searchsorted(pieces.ends_T, start, side="right"))
    last = int(np.searchsorted(pieces.starts_T, end, side="left")) - 1
    return (first, last) if first <= last else None


def make_windows(
    paragraphs: Sequence[Paragraph], vocabulary: Vocabulary, options: TaskOptions, labeled: bool
) -> tuple[SquadWindows, Findings]:
    """Encode the rows of all questions in order; if `labeled`, with the spans of first answers.

    As in run_squad.py, a window without the complete answer, and every window of a question without
    one, has its answer at [CLS]. A context shared by questions is tokenized once.
    """
    aligner = PieceAligner(vocabulary)
    template, most = vocabulary.template, options.max_seq_length
    findings = Findings([], [], [])
    chunks: list[EncodedRows] = []  # one per paragraph
    facts: list[tuple[int, int, int, int, int]] = []  # one per row
    asked: list[tuple[SquadQuestion, str, AlignedPieces]] = []
    for paragraph in paragraphs:
        pieces = aligner.encode(paragraph.context)
        context, framed = pieces.ids_T.tolist(), []
        queries = encode_ids([question.text for question in paragraph.questions], vocabulary)
        for question, query in zip(paragraph.questions, queries, strict=True):
            if len(query) == 0:
                findings.without_pieces.append(question.id)
            if len(query) > options.max_query_length:
                findings.cut.append(question.id)
                query = query[: options.max_query_length]
            most_pieces = most - len(query) - template.count_specials(is_pair=True)
            spans = cut_windows(len(pieces.ids_T), most_pieces, options.doc_stride)
            if len(spans) > 1:
                findings.in_several_windows.append(question.id)
            span = question.answers and find_answer_span(paragraph.context, question.answers[0])
            answer = find_pieces(pieces, *span) if span else None
            for first, length in spans:
                row = frame(query, context[first : first + length], template, most)
                start = end = row.cls_position
                if answer and first <= answer[0] and answer[1] < first + length:
                    start, end = (place - first + row.second_start for place in answer)
                framed.append(row)
                facts.append((len(asked), first, length, start, end))
            asked.append((question, paragraph.context, pieces))
        chunks.append(build_rows(framed))
    question_R, first_R, length_R, start_R, end_R = np.array(facts, np.int32).T
    labels = {"start_positions": start_R, "end_positions": end_R} if labeled else {}
    rows = dataclasses.replace(join_rows(chunks), labels=labels)
    questions, contexts, aligned = zip(*asked, strict=True)
    return SquadWindows(rows, questions, contexts, aligned, question_R, first_R, length_R), findings
