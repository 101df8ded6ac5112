"""SQuAD 1.1 and 2.0: the official files to rows of windows, logits to answers and scores."""

import collections
import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.finetune_config import TaskOptions
from bert_jax.record_files import write_whole
from bert_jax.tasks import squad_answers, squad_score
from bert_jax.tasks.squad_answers import Prediction
from bert_jax.tasks.squad_files import Paragraph, Question, read_json_object
from bert_jax.tasks.squad_splits import DEV, TRAIN, read_splits, version, windows_of
from bert_jax.tasks.squad_windows import Windows
from bert_jax.tasks.task import SPAN, THRESHOLD, THRESHOLD_FILE, Scores, Task
from data_pipeline.vocab import Vocabulary

_find_first_sentence = re.compile(r".*?[.!?](?=\s|$)", re.DOTALL).match


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """SQuAD, of version 2.0 if options.has_unanswerable, from options.dir or the files named.

    Without names the files are train-v1.1.json and dev-v1.1.json, or those of v2.0, as they are or
    with .gz behind. Questions whose answer does not stand where the file says are left out of
    training, as in run_squad.py. Of train_examples so many rows are made of the first questions.

    Raises:
      ValueError: a setting out of range, a file that is not there or not as SQuAD's are.
      OSError: a file cannot be read.
    """
    notes: list[str] = []
    paragraphs = read_splits(options, notes)
    windows = {
        split: windows_of(split, of_split, vocabulary, options, notes)
        for split, of_split in paragraphs.items()
    }
    squad = _Squad(options, windows)
    return Task(
        name=f"SQuAD {version(options)}",
        kind=SPAN,
        classes=2,
        splits={split: of_split.rows for split, of_split in windows.items()},
        dev_splits=(DEV,),
        score=squad.score,
        main_score="f1",
        baseline=best_constant(paragraphs[TRAIN], paragraphs[DEV], options.has_unanswerable),
        write_predictions=squad.write_predictions,
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class _Squad:
    """The opened task: what its functions know."""

    options: TaskOptions
    windows: Mapping[str, Windows]  # of each split

    def score(self, split: str, logits_RS2: np.ndarray) -> Scores:
        """Exact match and F1; of SQuAD 2.0 at the null threshold that is best for F1 here."""
        by_id = self._predictions(split, logits_RS2, texts=1)
        golds = _golds(self.windows[split].questions)
        answers = {question_id: one.text for question_id, one in by_id.items()}
        exact, f1s = squad_score.scores_of_all(golds, answers, self.options.has_unanswerable)
        if not self.options.has_unanswerable:
            return _means(exact, f1s)
        odds = {question_id: one.null_odds for question_id, one in by_id.items()}
        threshold = _threshold(by_id, golds)
        exact = squad_score.with_threshold(exact, golds, odds, threshold)
        f1s = squad_score.with_threshold(f1s, golds, odds, threshold)
        return _means(exact, f1s) | _by_answerability(exact, f1s, golds)

    def write_predictions(
        self, split: str, logits_RS2: np.ndarray, folder: pathlib.Path
    ) -> list[pathlib.Path]:
        """What run_squad.py writes, into a folder of the split's name.

        Of SQuAD 2.0 the null threshold is chosen on dev and kept in null_threshold.json beside the
        folders; a test set, which comes after dev, takes that one, and 0 where there is none.
        """
        by_id = self._predictions(split, logits_RS2, texts=self.options.n_best_size)
        threshold, written = None, []
        kept = folder / THRESHOLD_FILE
        if self.options.has_unanswerable and split == DEV:
            threshold = _threshold(by_id, _golds(self.windows[split].questions))
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(kept, f"{json.dumps({THRESHOLD: threshold})}\n".encode())
            written.append(kept)
        elif self.options.has_unanswerable:
            threshold = read_json_object(kept)[THRESHOLD] if kept.exists() else 0.0
        written += squad_answers.write_files(
            folder / split, by_id, self.options.n_best_size, threshold
        )
        return written

    def _predictions(self, split: str, logits_RS2: np.ndarray, texts: int) -> dict[str, Prediction]:
        windows, options = self.windows[split], self.options
        found = squad_answers.predictions(
            windows, logits_RS2, options.n_best_size, options.max_answer_length, texts
        )
        return dict(zip((question.id for question in windows.questions), found, strict=True))


def _threshold(by_id: Mapping[str, Prediction], golds: squad_score.Golds) -> float:
    """The null odds above which no answer is given, for the best F1."""
    answers = {question_id: one.text for question_id, one in by_id.items()}
    odds = {question_id: one.null_odds for question_id, one in by_id.items()}
    _, f1s = squad_score.scores_of_all(golds, answers, of_version_2=True)
    _, threshold = squad_score.best_threshold(answers, f1s, golds, odds)
    return min(odds.values()) - 1 if threshold is None else threshold


def _golds(questions: Sequence[Question]) -> dict[str, list[str]]:
    return {question.id: [one.text for one in question.answers] for question in questions}


def _means(exact: squad_score.PerQuestion, f1s: squad_score.PerQuestion) -> Scores:
    return {"f1": squad_score.mean(f1s), "exact_match": squad_score.mean(exact)}


def _by_answerability(
    exact: squad_score.PerQuestion, f1s: squad_score.PerQuestion, golds: squad_score.Golds
) -> Scores:
    """Scores of the questions that have an answer, and of those that have none."""
    with_answer = {question_id for question_id, texts in golds.items() if texts}
    scores = {}
    if with_answer:
        scores["has_answer_f1"] = squad_score.mean(squad_score.only(f1s, with_answer))
        scores["has_answer_exact_match"] = squad_score.mean(squad_score.only(exact, with_answer))
    if without := golds.keys() - with_answer:
        scores["no_answer_exact_match"] = squad_score.mean(squad_score.only(exact, without))
    return scores


def best_constant(
    train: Sequence[Paragraph], dev: Sequence[Paragraph], has_unanswerable: bool
) -> Scores:
    """The best F1 of four ways to answer dev without reading the question, and its exact match.

    They are: nothing, the commonest answer of training, the first sentence, the whole context.
    """
    answers = [
        question.answers[0].text
        for paragraph in train
        for question in paragraph.questions
        if question.answers
    ]
    commonest = collections.Counter(answers).most_common(1)[0][0] if answers else ""
    best: Scores = {"f1": -1.0}
    for answer_of in (
        lambda context: "",
        lambda context: commonest,
        _first_sentence,
        lambda context: context,
    ):
        golds: dict[str, list[str]] = {}
        given: dict[str, str] = {}
        for paragraph in dev:
            golds |= _golds(paragraph.questions)
            text = answer_of(paragraph.context)
            given |= {question.id: text for question in paragraph.questions}
        exact, f1s = squad_score.scores_of_all(golds, given, has_unanswerable)
        best = max(best, _means(exact, f1s), key=lambda scores: scores["f1"])
    return best


def _first_sentence(context: str) -> str:
    found = _find_first_sentence(context)
    return found.group() if found else context
