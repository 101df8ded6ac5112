"""Compute exact match, F1 and the best null threshold as SQuAD's official scripts do.

Scores are from 0 to 1; only score_file's are in percent, as the scripts print them. Source:
evaluate-v1.1.py and evaluate-v2.0.py of SQuAD.
"""

import collections
import functools
import math
import pathlib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.tasks.squad.data import SquadQuestion, read_json_object, read_squad
from data_pipeline.io import Refused

_find_articles = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Golds = Mapping[str, Sequence[str]]  # question id -> its answers; none: unanswerable
PerQuestion = dict[str, float]
Numbers = dict[str, float]


@functools.lru_cache(maxsize=1 << 16)  # each evaluation repeats the gold answers
def normalize(text: str) -> str:
    """Return a text in lower case without ASCII punctuation and articles, with single spaces."""
    return " ".join(_find_articles.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def collect_gold_texts(questions: Iterable[SquadQuestion]) -> dict[str, list[str]]:
    """Return the right answers of each question by its id; none where it is unanswerable."""
    return {question.id: [answer.text for answer in question.answers] for question in questions}


def f1(gold: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall of normalized words."""
    gold_words, answer_words = normalize(gold).split(), normalize(answer).split()
    shared = (collections.Counter(gold_words) & collections.Counter(answer_words)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(answer_words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def score_question(golds: Sequence[str], answer: str, is_version_2: bool) -> tuple[float, float]:
    """Return exact match and F1 of an answer, each against the gold answer that is best for it.

    In SQuAD 2.0, gold answers that normalize to nothing do not count, a question without any
    requires the empty answer, and two texts that normalize to nothing match.
    """
    if is_version_2:
        golds = [gold for gold in golds if normalize(gold)] or [""]
    exact = float(normalize(answer) in map(normalize, golds))
    if is_version_2 and (not normalize(answer) or not normalize(golds[0])):
        return exact, exact
    return exact, max(f1(gold, answer) for gold in golds)


def score_questions(
    golds: Golds, answers: Mapping[str, str], is_version_2: bool
) -> tuple[PerQuestion, PerQuestion]:
    """Return exact match and F1 of each question; one without a prediction scores 0."""
    scores = {
        question_id: score_question(texts, answers[question_id], is_version_2)
        if question_id in answers
        else (0.0, 0.0)
        for question_id, texts in golds.items()
    }
    exact = {question_id: exact for question_id, (exact, _) in scores.items()}
    return exact, {question_id: best_f1 for question_id, (_, best_f1) in scores.items()}


def apply_threshold(
    scores: PerQuestion, golds: Golds, null_odds: Mapping[str, float], threshold: float
) -> PerQuestion:
    """Rescore with an empty answer wherever the null odds are above the threshold."""
    return {
        question_id: float(not golds[question_id]) if null_odds[question_id] > threshold else score
        for question_id, score in scores.items()
    }


def mean(scores: PerQuestion, scale: float = 1.0) -> float:
    """Return the mean over questions, times `scale`, with the digits of the official scripts."""
    return scale * sum(scores.values()) / len(scores)


def select(scores: PerQuestion, golds: Golds, has_answer: bool) -> PerQuestion:
    """Return the scores of the questions with an answer, or of the questions without one."""
    return {
        question_id: score
        for question_id, score in scores.items()
        if bool(golds[question_id]) == has_answer
    }


def find_best_threshold(
    answers: Mapping[str, str],
    scores: PerQuestion,
    golds: Golds,
    null_odds: Mapping[str, float],
) -> tuple[float, float | None]:
    """Return the best sum over all thresholds, and its threshold; None if no answers are best.

    Questions are answered one after another by rising null odds: an answer adds its score, an
    answer to an unanswerable question loses the point of leaving it empty.

    Source: evaluate-v2.0.py find_best_thresh.
    """
    total = best = float(sum(not texts for texts in golds.values()))
    threshold = None
    for question_id in sorted(null_odds, key=null_odds.__getitem__):
        if question_id not in scores:
            continue
        if golds[question_id]:
            total += scores[question_id]
        elif answers[question_id]:
            total -= 1
        if total > best:
            best, threshold = total, null_odds[question_id]
    return best, threshold


def score_file(
    data: pathlib.Path,
    predictions: pathlib.Path,
    null_odds: pathlib.Path | None,
    null_threshold: float,
) -> tuple[Numbers, list[str]]:
    """Score a file of predictions for the questions of a file of SQuAD, in percent, with notes.

    A question without a prediction counts as wrong in version 1.1 and is refused in 2.0, where the
    official script fails.
    """
    file = read_squad(data)
    golds = collect_gold_texts(file.questions())
    answers = _by_question(predictions, "a text", str)
    missing = golds.keys() - answers.keys()
    if missing and file.has_unanswerable:
        raise Refused(
            f"{predictions} has no prediction for {len(missing):,} of the {len(golds):,} questions "
            f"of {data}, such as {min(missing)}; give each one, empty where there is no answer"
        )
    notes = []
    if missing:
        notes.append(f"questions without a prediction, counted as wrong: {len(missing):,}")
    if others := answers.keys() - golds.keys():
        notes.append(f"predictions for no question of {data}: {len(others):,}")
    exact, f1s = score_questions(golds, answers, file.has_unanswerable)
    if not file.has_unanswerable:
        if null_odds:
            raise Refused(f"--null_odds is {null_odds}, but {data} is SQuAD 1.1; leave it out")
        return {"exact_match": mean(exact, 100.0), "f1": mean(f1s, 100.0)}, notes
    odds = dict.fromkeys(golds, 0.0)
    if null_odds:
        odds = _by_question(null_odds, "a number", float, int)
        if missing := golds.keys() - odds.keys():
            raise Refused(
                f"{null_odds} has no null odds for {len(missing):,} questions, such as "
                f"{min(missing)}; give those that were written with the predictions"
            )
    exact_then = apply_threshold(exact, golds, odds, null_threshold)
    f1s_then = apply_threshold(f1s, golds, odds, null_threshold)
    groups = [("", exact_then, f1s_then)]
    groups += [
        (prefix, select(exact_then, golds, has_answer), select(f1s_then, golds, has_answer))
        for prefix, has_answer in (("HasAns_", True), ("NoAns_", False))
    ]
    numbers: Numbers = {}
    for prefix, exact_of_group, f1s_of_group in groups:
        if exact_of_group:
            numbers[f"{prefix}exact"] = mean(exact_of_group, 100.0)
            numbers[f"{prefix}f1"] = mean(f1s_of_group, 100.0)
            numbers[f"{prefix}total"] = len(exact_of_group)
    if null_odds:
        for name, scores in (("exact", exact), ("f1", f1s)):
            best, threshold = find_best_threshold(answers, scores, golds, odds)
            numbers[f"best_{name}"] = 100.0 * best / len(scores)
            numbers[f"best_{name}_thresh"] = 0.0 if threshold is None else threshold
    return numbers, notes


def _by_question(path: pathlib.Path, expected: str, *kinds: type) -> dict[str, Any]:
    values = read_json_object(path)
    for question_id, value in values.items():
        is_number = type(value) is float
        if type(value) not in kinds or (is_number and not math.isfinite(value)):
            raise Refused(
                f"{path} question {question_id} has {value!r:.80}, not {expected}; the file maps "
                f"each question's id to {expected}"
            )
    return values
