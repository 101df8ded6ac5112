"""Open SQuAD 1.1 and 2.0 as a task: files -> rows of windows, logits -> answers and scores."""

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.files import DEV, TEST, TRAIN, read_splits
from bert_jax.tasks.squad import answers as squad_answers
from bert_jax.tasks.squad import metrics
from bert_jax.tasks.squad.answers import AnswerPrediction
from bert_jax.tasks.squad.data import (
    Paragraph,
    SquadFile,
    find_answer_span,
    read_squad,
)
from bert_jax.tasks.squad.windows import SquadWindows, make_windows
from bert_jax.tasks.task import SPAN, THRESHOLD, THRESHOLD_FILE, Example, Scores, Task
from data_pipeline.io import Refused
from data_pipeline.io.address import expand_home
from data_pipeline.vocab import Vocabulary

_find_sentences = re.compile(r".*?[.!?](?=\s|$)|.+", re.DOTALL).findall
Splits = dict[str, Sequence[Paragraph]]


def open_task(options: TaskOptions, vocabulary: Vocabulary) -> Task:
    """Open SQuAD, version 2.0 if options.has_unanswerable, from config.data.dir.

    Unless named, the files are train-v1.1.json and dev-v1.1.json, or v2.0's, perhaps with
    .gz. As in run_squad.py, training skips questions whose answer is not where the file says. With
    train_examples only that many first questions are used.
    """
    notes: list[str] = []
    paragraphs = _read_splits(options, vocabulary, notes)
    windows = {
        split: _encode_split(split, texts, vocabulary, options, notes)
        for split, texts in paragraphs.items()
    }
    squad = _Squad(options, windows)
    first = paragraphs[TRAIN][0]
    question, answer = first.questions[0], "no answer"
    if question.answers:
        answer = "{0.text!r} from character {0.answer_start:,}".format(question.answers[0])
    return Task(
        name=f"SQuAD {_version(options)}",
        kind=SPAN,
        classes=2,
        splits={split: encoded.rows for split, encoded in windows.items()},
        dev_splits=(DEV,),
        score=squad.score,
        main_score="f1",
        baseline=score_best_constant(paragraphs[TRAIN], paragraphs[DEV], options.has_unanswerable),
        format_predictions=squad.format_predictions,
        notes=tuple(notes),
        example=Example((question.text, first.context), answer),
    )


def _read_splits(options: TaskOptions, vocabulary: Vocabulary, notes: list[str]) -> Splits:
    """Read the paragraphs of each split; add lines for the screen to `notes`."""
    specials = vocabulary.template.count_specials(is_pair=True)
    if options.max_seq_length <= options.max_query_length + specials:
        raise Refused(
            f"config.data.max_seq_length is {options.max_seq_length}, which leaves no room for a "
            f"context next to a question of {options.max_query_length} tokens and {specials} "
            f"special ones; give at least {options.max_query_length + specials + 1}, or a smaller "
            "max_query_length"
        )
    folder = expand_home("config.data.dir", options.dir)
    names: dict[str, list[str]] = {}
    for split in (TRAIN, DEV):
        name = f"{split}-v{_version(options)}.json"
        names[split] = [name] if (folder / name).is_file() else [name, f"{name}.gz"]
    names[TEST] = []
    files = read_splits(
        options, names, lambda path, split: read_squad(path, has_answers=split != TEST)
    )
    splits: Splits = {split: file.paragraphs for split, file in files.items()}
    splits[TRAIN] = _select_training(files[TRAIN], options, notes)
    if misplaced := _find_misplaced(files[DEV], options):
        notes.append(
            "dev: questions with an answer that is not where answer_start says: "
            f"{len(misplaced):,}, the first is {misplaced[0]}; it is scored by its text"
        )
    return splits


def _find_misplaced(
    file: SquadFile, options: TaskOptions, questions: int | None = None, answers: int | None = None
) -> list[str]:
    """Return the ids of questions with an answer that is not where the file says.

    `questions` and `answers` limit how many are read, answers per question; by default all are. A
    question without an answer is refused in SQuAD 1.1.
    """
    misplaced = []
    pairs = ((paragraph, each) for paragraph in file.paragraphs for each in paragraph.questions)
    for paragraph, question in itertools.islice(pairs, questions):
        if not question.answers and not options.has_unanswerable:
            raise Refused(
                f"{file.path} question {question.id} has no answer, and in SQuAD 1.1 each has one; "
                "for SQuAD 2.0 give --config=configs/finetune/squad.py:version=2.0"
            )
        spans = (find_answer_span(paragraph.context, each) for each in question.answers[:answers])
        if not all(spans):
            misplaced.append(question.id)
    return misplaced


def _select_training(file: SquadFile, options: TaskOptions, notes: list[str]) -> list[Paragraph]:
    """Keep the questions that can be learned from, options.train_examples at most."""
    most = options.train_examples or None
    misplaced = _find_misplaced(file, options, most, answers=1)
    questions = list(itertools.islice(file.questions(), most))
    if len(misplaced) == len(questions):
        raise Refused(
            f"{file.path} has no question to learn from: none of its {len(questions)} answers is "
            "where its answer_start says; write the file with the right positions"
        )
    if misplaced:
        notes.append(
            "train: skipped answers that are not where answer_start says: "
            f"{len(misplaced):,} of {len(questions):,}, the first is of question {misplaced[0]}"
        )
    if several := sum(len(question.answers) > 1 for question in questions):
        notes.append(
            f"train: questions with several answers, of which the first is learned: {several:,}"
        )
    learned = {question.id for question in questions} - set(misplaced)
    chosen = [
        (paragraph, tuple(each for each in paragraph.questions if each.id in learned))
        for paragraph in file.paragraphs
    ]
    return [Paragraph(paragraph.context, kept) for paragraph, kept in chosen if kept]


def _encode_split(
    split: str,
    paragraphs: Sequence[Paragraph],
    vocabulary: Vocabulary,
    options: TaskOptions,
    notes: list[str],
) -> SquadWindows:
    """Encode the rows of a split; add lines for the screen to `notes`."""
    windows, findings = make_windows(paragraphs, vocabulary, options, labeled=split != TEST)
    notes.append(
        f"{split}: {len(windows.questions):,} questions in {windows.rows.examples:,} rows; the "
        f"context of {len(findings.in_several_windows):,} is longer than a row of "
        f"{options.max_seq_length}"
    )
    for ids, finding in (
        (findings.cut, f"cut to their first {options.max_query_length} tokens"),
        (findings.without_pieces, "without a token of the vocabulary"),
    ):
        if ids:
            notes.append(f"{split}: questions {finding}: {len(ids):,}, the first is {ids[0]}")
    return windows


def _version(options: TaskOptions) -> str:
    """Return the version as in the names of SQuAD's files."""
    return "2.0" if options.has_unanswerable else "1.1"


@dataclasses.dataclass
class _Squad:
    """Score and format the predictions of an opened task."""

    options: TaskOptions
    windows: Mapping[str, SquadWindows]  # split -> its rows
    threshold: float = 0.0  # null odds above which a question gets no answer, chosen on dev

    def score(self, split: str, logits_RS2: np.ndarray) -> Scores:
        """Compute exact match and F1; for SQuAD 2.0 at the threshold that is best for F1 here."""
        by_id = self._predictions(split, logits_RS2, texts=1)
        golds = metrics.collect_gold_texts(self.windows[split].questions)
        answers = {question_id: prediction.text for question_id, prediction in by_id.items()}
        exact, f1s = metrics.score_questions(golds, answers, self.options.has_unanswerable)
        if not self.options.has_unanswerable:
            return _average({"f1": f1s, "exact_match": exact})
        odds = {question_id: prediction.null_odds for question_id, prediction in by_id.items()}
        threshold = _choose_threshold(by_id, golds)
        scores = {
            "f1": metrics.apply_threshold(f1s, golds, odds, threshold),
            "exact_match": metrics.apply_threshold(exact, golds, odds, threshold),
        }
        answered = {name: metrics.select(each, golds, True) for name, each in scores.items()}
        others = metrics.select(scores["exact_match"], golds, False)
        return {
            **_average(scores),
            **_average({f"has_answer_{name}": each for name, each in answered.items()}),
            **_average({"no_answer_exact_match": others}),
        }

    def format_predictions(self, split: str, logits_RS2: np.ndarray) -> dict[str, str]:
        """Format the files of run_squad.py, in a folder named after the split.

        For SQuAD 2.0 the null threshold is chosen on dev and written to null_threshold.json next to
        the folders. Predict dev first: a test set uses the threshold of dev.
        """
        options, files = self.options, dict[str, str]()
        by_id = self._predictions(split, logits_RS2, texts=options.n_best_size)
        if options.has_unanswerable and split == DEV:
            golds = metrics.collect_gold_texts(self.windows[split].questions)
            self.threshold = _choose_threshold(by_id, golds)
            files[THRESHOLD_FILE] = f"{json.dumps({THRESHOLD: self.threshold})}\n"
        threshold = self.threshold if options.has_unanswerable else None
        texts = squad_answers.format_files(by_id, options.n_best_size, threshold)
        return files | {f"{split}/{name}": text for name, text in texts.items()}

    def _predictions(
        self, split: str, logits_RS2: np.ndarray, texts: int
    ) -> dict[str, AnswerPrediction]:
        windows, options = self.windows[split], self.options
        predictions = squad_answers.find_best_answers(
            windows, logits_RS2, options.n_best_size, options.max_answer_length, texts
        )
        return dict(zip((question.id for question in windows.questions), predictions, strict=True))


def _choose_threshold(by_id: Mapping[str, AnswerPrediction], golds: metrics.Golds) -> float:
    """Find the null odds above which no answer is given, for the best F1."""
    answers = {question_id: prediction.text for question_id, prediction in by_id.items()}
    odds = {question_id: prediction.null_odds for question_id, prediction in by_id.items()}
    _, f1s = metrics.score_questions(golds, answers, is_version_2=True)
    _, threshold = metrics.find_best_threshold(answers, f1s, golds, odds)
    return min(odds.values()) - 1 if threshold is None else threshold


def _average(scores: Mapping[str, metrics.PerQuestion]) -> Scores:
    """Average each score over its questions; leave out scores without a question."""
    return {name: metrics.mean(each) for name, each in scores.items() if each}


def score_best_constant(
    train: Sequence[Paragraph], dev: Sequence[Paragraph], has_unanswerable: bool
) -> Scores:
    """Score the best of four ways to answer dev without reading the question.

    They are: nothing, the most frequent answer of training, the first sentence, the whole context.
    """
    answers = [
        question.answers[0].text
        for paragraph in train
        for question in paragraph.questions
        if question.answers
    ]
    most_frequent = collections.Counter(answers).most_common(1)[0][0] if answers else ""
    golds = metrics.collect_gold_texts(
        question for paragraph in dev for question in paragraph.questions
    )
    contexts = {each.id: paragraph.context for paragraph in dev for each in paragraph.questions}
    scores = []
    for choose_answer in (
        lambda context: "",
        lambda context: most_frequent,
        lambda context: next(iter(_find_sentences(context)), ""),
        lambda context: context,
    ):
        given = {question_id: choose_answer(context) for question_id, context in contexts.items()}
        exact, f1s = metrics.score_questions(golds, given, has_unanswerable)
        scores.append(_average({"f1": f1s, "exact_match": exact}))
    return max(scores, key=lambda each: each["f1"])
