"""Predict the answers of questions in SQuAD's JSON, which may have answers or not.

OUT.json has an answer for each id, as the official script scores it; OUT.nbest.json the best texts
with probabilities; for SQuAD 2.0 OUT.null_odds.json has the null odds.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence

from bert_jax.tasks.predicting import (
    ComputeLogits,
    PredictRequest,
    check_request,
    describe_count,
    group_by_size,
    reread,
)
from bert_jax.tasks.squad import answers
from bert_jax.tasks.squad.data import Paragraph, read_squad
from bert_jax.tasks.squad.windows import make_windows
from data_pipeline.io.atomic import check_new_file, new_file

ENDINGS = (".json",)
_PIECE_QUESTIONS = 256
_PIECE_CHARS = 1 << 20  # characters of all contexts together


class AnswerPredictor:
    """Answer the questions of a file."""

    unit = "questions"

    def __init__(self, request: PredictRequest, show: Callable[[int], None]) -> None:
        """Read the whole input once."""
        self._options, output = request.layer.options, request.output
        specials = request.vocabulary.template.count_specials(is_pair=True)
        least_tokens = self._options.max_query_length + specials + 1
        check_request(request, ENDINGS, "SQuAD's answers", least_tokens)
        self._threshold, self._origin = _choose_threshold(request)
        self._files = [output, output.with_suffix(".nbest.json")]
        if self._threshold is not None:
            self._files.append(output.with_suffix(".null_odds.json"))
        for path in self._files:
            check_new_file(path)
        self._request = request
        self._several = self._cut = self._unanswered = 0
        self.total = _questions(read_squad(request.path, has_answers=False).paragraphs)
        show(self.total)

    def run(self, compute_logits: ComputeLogits) -> list[pathlib.Path]:
        """Predict and write the files; see Predictor.run."""
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(_new_object(path)) for path in self._files]
            path = self._request.path
            for piece in reread(_read_pieces(path), _questions, self.total, path):
                self._write(piece, writers, compute_logits)
        return self._files

    def _write(
        self,
        piece: list[Paragraph],
        writers: list[Callable[[str, object], None]],
        compute_logits: ComputeLogits,
    ) -> None:
        options = self._options
        windows, findings = make_windows(piece, self._request.vocabulary, options, labeled=False)
        self._several += len(findings.in_several_windows)
        self._cut += len(findings.cut)
        logits_RS2 = compute_logits(windows.rows, len(windows.questions))
        most, most_tokens = options.n_best_size, options.max_answer_length
        predictions = answers.find_best_answers(windows, logits_RS2, most, most_tokens, texts=most)
        for question, prediction in zip(windows.questions, predictions, strict=True):
            documents = answers.make_documents(prediction, most, self._threshold)
            self._unanswered += not documents[0]
            for write, document in zip(writers, documents, strict=False):
                write(question.id, document)

    def summary_rows(self) -> list[tuple[str, str]]:
        """Report long contexts, truncated questions and questions without an answer."""
        options = self._options
        findings = {
            f"in contexts longer than a row of {options.max_seq_length}": self._several,
            f"cut to {options.max_query_length} tokens": self._cut,
        }
        rows = [("questions", describe_count(self.total, self.unit, findings))]
        if self._threshold is not None:
            odds = f"whose null odds are above {self._threshold:.4g} ({self._origin})"
            rows.append(("no answer", f"to {self._unanswered:,}, {odds}"))
        return rows


def _choose_threshold(request: PredictRequest) -> tuple[float | None, str]:
    """Return the null odds above which no answer is given and their origin; None: no limit."""
    if request.null_threshold is not None:
        return request.null_threshold, "--null_threshold"
    if not request.layer.options.has_unanswerable:
        return None, ""
    if request.layer.null_threshold is not None:
        return request.layer.null_threshold, "the run's choice on its development set"
    return 0.0, "the run has chosen none; --null_threshold sets another"


def _read_pieces(path: pathlib.Path) -> Iterator[list[Paragraph]]:
    """Yield paragraphs with at most _PIECE_QUESTIONS; a longer one is split."""
    parts = (
        Paragraph(paragraph.context, paragraph.questions[start : start + _PIECE_QUESTIONS])
        for paragraph in read_squad(path, has_answers=False).paragraphs
        for start in range(0, len(paragraph.questions), _PIECE_QUESTIONS)
    )
    return group_by_size(
        parts,
        lambda part: (len(part.questions), len(part.context)),
        (_PIECE_QUESTIONS, _PIECE_CHARS),
    )


def _questions(piece: Sequence[Paragraph]) -> int:
    return sum(len(paragraph.questions) for paragraph in piece)


@contextlib.contextmanager
def _new_object(path: pathlib.Path) -> Iterator[Callable[[str, object], None]]:
    """Open a new JSON object in a file; yield a function that writes a key and its value."""
    with new_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        before = "{\n"

        def write(key: str, value: object) -> None:
            nonlocal before
            file.write(f"{before}    {json.dumps(key)}: {json.dumps(value)}")
            before = ",\n"

        yield write
        file.write("\n}\n")
