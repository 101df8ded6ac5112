"""Scores of predicted classes and numbers, and those of knowing nothing of the text.

scikit-learn and SciPy are imported where something is scored: no start, help or refusal needs them.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.tasks.task import Scores

MATTHEWS = "matthews_correlation"
F1, MACRO_F1, ACCURACY = "f1", "macro_f1", "accuracy"
PEARSON, SPEARMAN = "pearson", "spearman"


def class_scores(names: Sequence[str], label_ids_N: np.ndarray, given_N: np.ndarray) -> Scores:
    """The named scores of the classes that were given: accuracy, Matthews correlation, F1.

    F1 is that of class 1; macro F1 the mean over all classes that are right or given somewhere.
    """
    return {name: _class_score(name, label_ids_N, given_N) for name in names}


def _class_score(name: str, label_ids_N: np.ndarray, given_N: np.ndarray) -> float:
    from sklearn import metrics

    if name == MATTHEWS:
        return float(metrics.matthews_corrcoef(label_ids_N, given_N))
    if name == F1:
        return float(metrics.f1_score(label_ids_N, given_N, pos_label=1, zero_division=0.0))
    if name == MACRO_F1:
        return float(metrics.f1_score(label_ids_N, given_N, average="macro", zero_division=0.0))
    return float(metrics.accuracy_score(label_ids_N, given_N))


def number_scores(values_N: np.ndarray, given_N: np.ndarray) -> Scores:
    """Spearman's and Pearson's correlation; 0 where one side is constant and there is none."""
    if len(values_N) < 2 or np.ptp(values_N) == 0.0 or np.ptp(given_N) == 0.0:
        return {SPEARMAN: 0.0, PEARSON: 0.0}
    from scipy import stats

    return {
        SPEARMAN: float(stats.spearmanr(values_N, given_N).statistic),
        PEARSON: float(stats.pearsonr(values_N, given_N).statistic),
    }


def majority_scores(
    names: Sequence[str], train_label_ids_N: np.ndarray, label_ids_N: np.ndarray
) -> Scores:
    """What always giving the commonest class of the training split scores."""
    commonest = np.bincount(train_label_ids_N).argmax()
    return class_scores(names, label_ids_N, np.full_like(label_ids_N, commonest))
