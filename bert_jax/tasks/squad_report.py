"""What SQuAD's official scripts print of a file of predictions: their numbers, in per cent."""

import dataclasses
import math
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.tasks import squad_score
from bert_jax.tasks.squad_files import read_json_object, read_squad

Numbers = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Report:
    """Scores of predictions, and what else there is to say of the file."""

    numbers: Numbers
    notes: tuple[str, ...]


def read(
    data: pathlib.Path,
    predictions: pathlib.Path,
    null_odds: pathlib.Path | None,
    null_threshold: float,
) -> Report:
    """The scores of a file of predictions for the questions of a file of SQuAD.

    A question without prediction counts as wrong in version 1.1 and is refused in 2.0, where the
    official script ends in an error.

    Raises:
      ValueError: a file that is not there or not as it should be.
      OSError: a file cannot be read.
    """
    asked = read_squad(data)
    golds = {one.id: [answer.text for answer in one.answers] for one in asked.questions()}
    answers = _by_question(predictions, "a text", str)
    missing = golds.keys() - answers.keys()
    if missing and asked.has_unanswerable:
        raise ValueError(
            f"{predictions} has no prediction for {len(missing):,} of the {len(golds):,} questions "
            f"of {data}, such as {min(missing)}; give each one, empty where there is no answer"
        )
    notes = []
    if missing:
        notes.append(f"questions without a prediction, counted as wrong: {len(missing):,}")
    if others := answers.keys() - golds.keys():
        notes.append(f"predictions for no question of {data}: {len(others):,}")
    exact, f1s = squad_score.scores_of_all(golds, answers, asked.has_unanswerable)
    if not asked.has_unanswerable:
        if null_odds:
            raise ValueError(
                f"--null_odds is {null_odds}, but {data} is of SQuAD 1.1; leave it out"
            )
        return Report({"exact_match": _percent(exact), "f1": _percent(f1s)}, tuple(notes))
    odds = _odds(null_odds, golds) if null_odds else dict.fromkeys(golds, 0.0)
    numbers = _at_threshold(exact, f1s, golds, odds, null_threshold)
    if null_odds:
        for name, scores in (("exact", exact), ("f1", f1s)):
            best, threshold = squad_score.best_threshold(answers, scores, golds, odds)
            numbers[f"best_{name}"] = 100 * best
            numbers[f"best_{name}_thresh"] = 0.0 if threshold is None else threshold
    return Report(numbers, tuple(notes))


def _at_threshold(
    exact: squad_score.PerQuestion,
    f1s: squad_score.PerQuestion,
    golds: squad_score.Golds,
    odds: Mapping[str, float],
    threshold: float,
) -> Numbers:
    exact = squad_score.with_threshold(exact, golds, odds, threshold)
    f1s = squad_score.with_threshold(f1s, golds, odds, threshold)
    with_answer = [question_id for question_id, texts in golds.items() if texts]
    without = [question_id for question_id, texts in golds.items() if not texts]
    groups: dict[str, Collection[str]] = {"": golds, "HasAns_": with_answer, "NoAns_": without}
    numbers: Numbers = {}
    for prefix, group in groups.items():
        if group:
            numbers[f"{prefix}exact"] = _percent(squad_score.only(exact, group))
            numbers[f"{prefix}f1"] = _percent(squad_score.only(f1s, group))
            numbers[f"{prefix}total"] = len(group)
    return numbers


def _percent(scores: squad_score.PerQuestion) -> float:
    return 100.0 * sum(scores.values()) / len(scores)  # in the script's order: the same digits


def _odds(path: pathlib.Path, golds: squad_score.Golds) -> dict[str, float]:
    odds = _by_question(path, "a number", float, int)
    if missing := golds.keys() - odds.keys():
        raise ValueError(
            f"{path} has no null odds for {len(missing):,} questions, such as {min(missing)}; give "
            "those that were written with the predictions"
        )
    return odds


def _by_question(path: pathlib.Path, expected: str, *kinds: type) -> dict[str, Any]:
    found = read_json_object(path)
    for question_id, value in found.items():
        is_number = type(value) is float
        if type(value) not in kinds or (is_number and not math.isfinite(value)):
            raise ValueError(
                f"{path} question {question_id} has {value!r:.80}, not {expected}; the file maps "
                f"each question's id to {expected}"
            )
    return found
