"""Exact match and F1 as SQuAD's official scripts compute them, and the best null threshold.

Scores are from 0 to 1. Source: evaluate-v1.1.py and evaluate-v2.0.py of SQuAD.
"""

import collections
import functools
import re
import string
from collections.abc import Collection, Mapping, Sequence

_find_articles = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Golds = Mapping[str, Sequence[str]]  # question id -> its answers; none: unanswerable
PerQuestion = dict[str, float]


@functools.lru_cache(maxsize=1 << 16)  # gold answers come again at each evaluation
def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces between words."""
    return " ".join(_find_articles.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(gold: str, answer: str) -> float:
    """1 if the normalised texts are equal, else 0."""
    return float(normalized(gold) == normalized(answer))


def f1(gold: str, answer: str) -> float:
    """Harmonic mean of precision and recall of normalised words; 0 if none is shared."""
    gold_words, answer_words = normalized(gold).split(), normalized(answer).split()
    shared = (collections.Counter(gold_words) & collections.Counter(answer_words)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(answer_words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def question_scores(golds: Sequence[str], answer: str, of_version_2: bool) -> tuple[float, float]:
    """Exact match and F1 of an answer, each against the gold answer that is best for it.

    In SQuAD 2.0 gold answers of which nothing is left do not count, a question without any wants
    the empty answer, and two texts of which nothing is left share everything.
    """
    if of_version_2:
        golds = [gold for gold in golds if normalized(gold)] or [""]
    exact = max(exact_match(gold, answer) for gold in golds)
    if of_version_2 and (not normalized(answer) or not normalized(golds[0])):
        return exact, exact
    return exact, max(f1(gold, answer) for gold in golds)


def scores_of_all(
    golds: Golds, answers: Mapping[str, str], of_version_2: bool
) -> tuple[PerQuestion, PerQuestion]:
    """Exact match and F1 of each question; one without an answer in version 1.1 scores 0.

    Raises:
      ValueError: version 2.0, and a question has no answer.
    """
    exact: PerQuestion = {}
    f1s: PerQuestion = {}
    for question_id, texts in golds.items():
        if question_id in answers:
            exact[question_id], f1s[question_id] = question_scores(
                texts, answers[question_id], of_version_2
            )
        elif of_version_2:
            raise ValueError(
                f"question {question_id} has no prediction; give it one, or the empty one"
            )
        else:
            exact[question_id] = f1s[question_id] = 0.0
    return exact, f1s


def with_threshold(
    scores: PerQuestion, golds: Golds, null_odds: Mapping[str, float], threshold: float
) -> PerQuestion:
    """The scores where a question whose null odds are above the threshold is not answered."""
    return {
        question_id: float(not golds[question_id]) if null_odds[question_id] > threshold else score
        for question_id, score in scores.items()
    }


def mean(scores: PerQuestion) -> float:
    """The mean over questions; 0 of none."""
    return sum(scores.values()) / max(len(scores), 1)


def only(scores: PerQuestion, question_ids: Collection[str]) -> PerQuestion:
    """The scores of these questions."""
    return {question_id: scores[question_id] for question_id in question_ids}


def best_threshold(
    answers: Mapping[str, str],
    scores: PerQuestion,
    golds: Golds,
    null_odds: Mapping[str, float],
) -> tuple[float, float | None]:
    """The best mean that a threshold gives, and that threshold; None if to answer nothing is best.

    Questions are answered one after another, by rising null odds: an answered one adds its score,
    an unanswerable one that gets an answer loses the point it had.

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
    return best / len(scores), threshold
