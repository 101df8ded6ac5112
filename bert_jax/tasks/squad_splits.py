"""What SQuAD's splits are made of: which files, what is left out of them, what is said of that."""

import dataclasses
import pathlib
from collections.abc import Sequence

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks.squad_files import Paragraph, Question, SquadFile, answer_span, read_squad
from bert_jax.tasks.squad_windows import Windows, make_windows
from data_pipeline.vocab import Vocabulary

TRAIN, DEV, TEST = "train", "dev", "test"


def read_splits(options: TaskOptions, notes: list[str]) -> dict[str, Sequence[Paragraph]]:
    """The paragraphs of each split with its questions; what was found is added to the notes.

    Raises:
      ValueError: a setting out of range, a file that is not there or not as SQuAD's are.
      OSError: a file cannot be read.
    """
    _check(options)
    train = _training_paragraphs(read_squad(_path(options, TRAIN)), options, notes)
    dev = read_squad(_path(options, DEV))
    _check_development(dev, options, notes)
    splits: dict[str, Sequence[Paragraph]] = {TRAIN: train, DEV: dev.paragraphs}
    if options.test_file:
        splits[TEST] = read_squad(_path(options, TEST), has_answers=False).paragraphs
    return splits


def _training_paragraphs(
    file: SquadFile, options: TaskOptions, notes: list[str]
) -> list[Paragraph]:
    """The paragraphs with the questions that can be learned from, so many as are asked for."""
    questions = misplaced = several = 0
    first_misplaced, kept = "", []
    for paragraph in file.paragraphs:
        learned = []
        for question in paragraph.questions:
            if options.train_examples and questions == options.train_examples:
                break
            questions += 1
            _check_answered(file, question, options)
            several += len(question.answers) > 1
            if question.answers and not answer_span(paragraph.context, question.answers[0]):
                misplaced += 1
                first_misplaced = first_misplaced or question.id
                continue
            learned.append(question)
        kept.append(dataclasses.replace(paragraph, questions=tuple(learned)))
    kept = [paragraph for paragraph in kept if paragraph.questions]
    if not kept:
        raise ValueError(
            f"{file.path} has no question to learn from: the answers of all {questions} stand "
            "elsewhere than their answer_start says; write the file with the right places"
        )
    if misplaced:
        notes.append(
            "train: answers that do not stand where answer_start says, left out: "
            f"{misplaced:,} of {questions:,}, the first of question {first_misplaced}"
        )
    if several:
        notes.append(
            f"train: questions with several answers, the first of which is learned: {several:,}"
        )
    return kept


def _check_answered(file: SquadFile, question: Question, options: TaskOptions) -> None:
    if not question.answers and not options.has_unanswerable:
        raise ValueError(
            f"{file.path} question {question.id} has no answer, and in SQuAD 1.1 each has one; for "
            "SQuAD 2.0 give --config=configs/finetune/squad.py:version=2.0"
        )


def _check_development(file: SquadFile, options: TaskOptions, notes: list[str]) -> None:
    misplaced = [
        question.id
        for paragraph in file.paragraphs
        for question in paragraph.questions
        if not all(answer_span(paragraph.context, one) for one in question.answers)
    ]
    for question in file.questions():
        _check_answered(file, question, options)
    if misplaced:
        notes.append(
            "dev: questions with an answer that does not stand where answer_start says: "
            f"{len(misplaced):,}, the first is {misplaced[0]}; scores go by its text"
        )


def windows_of(
    split: str,
    paragraphs: Sequence[Paragraph],
    vocabulary: Vocabulary,
    options: TaskOptions,
    notes: list[str],
) -> Windows:
    """The rows of a split; what was found is added to the notes."""
    windows, findings = make_windows(paragraphs, vocabulary, options, labelled=split != TEST)
    questions = len(windows.questions)
    notes.append(
        f"{split}: {questions:,} questions in {windows.rows.examples:,} rows; the context of "
        f"{len(findings.in_several_windows):,} is longer than a row of {options.max_seq_length}"
    )
    if findings.cut:
        notes.append(
            f"{split}: questions cut to their first {options.max_query_length} pieces: "
            f"{len(findings.cut):,}, the first is {findings.cut[0]}"
        )
    if findings.without_pieces:
        notes.append(
            f"{split}: questions that are empty or of nothing that the vocabulary keeps: "
            f"{len(findings.without_pieces):,}, the first is {findings.without_pieces[0]}"
        )
    return windows


def version(options: TaskOptions) -> str:
    """As SQuAD's files are named."""
    return "2.0" if options.has_unanswerable else "1.1"


def _path(options: TaskOptions, split: str) -> pathlib.Path:
    """Where a split's file lies.

    Raises:
      ValueError: it is not there.
    """
    named = {TRAIN: options.train_file, DEV: options.dev_file, TEST: options.test_file}[split]
    name = named or f"{split}-v{version(options)}.json"
    folder = pathlib.Path(options.dir).expanduser()
    path = folder / name
    if not named and not path.exists():
        path = path.with_name(f"{name}.gz")
    if path.is_file():
        return path
    raise ValueError(
        f"{folder / name} is not a file; give the folder of SQuAD "
        f"{version(options)} as --config.data.dir, or the file as --config.data.{split}_file"
    )


def _check(options: TaskOptions) -> None:
    for name in ("doc_stride", "max_query_length", "max_answer_length", "n_best_size"):
        value = getattr(options, name)
        if value < 1:
            raise ValueError(f"config.data.{name} is {value}; it must be 1 or more")
    if options.max_seq_length <= options.max_query_length + 3:
        raise ValueError(
            f"config.data.max_seq_length is {options.max_seq_length}, which leaves no room for a "
            f"context beside a question of {options.max_query_length} pieces and three special "
            f"ones; give at least {options.max_query_length + 4}, or a smaller max_query_length"
        )
    if options.source != "files":
        raise ValueError(
            f"config.data.source is {options.source!r}; SQuAD is read from its official JSON "
            "alone: give source='files' and its folder as --config.data.dir"
        )
