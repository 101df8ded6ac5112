"""Score predicted classes and numbers, and a prediction made without reading the text.

scikit-learn and SciPy are imported within the functions: --help and refusals do not need them.
"""

import functools
from collections.abc import Sequence

import numpy as np

from bert_jax.tasks.task import Scores

MATTHEWS = "matthews_correlation"
F1, MACRO_F1, ACCURACY = "f1", "macro_f1", "accuracy"
PEARSON, SPEARMAN = "pearson", "spearman"


def score_classes(names: Sequence[str], label_ids_N: np.ndarray, predicted_N: np.ndarray) -> Scores:
    """Compute the named scores of predicted classes: accuracy, Matthews correlation, F1.

    F1 is for class 1; macro F1 is the mean over all classes that occur in either array.
    """
    from sklearn import metrics

    compute_f1 = functools.partial(metrics.f1_score, zero_division=0.0)
    functions = {
        MATTHEWS: metrics.matthews_corrcoef,
        F1: functools.partial(compute_f1, pos_label=1),
        MACRO_F1: functools.partial(compute_f1, average="macro"),
        ACCURACY: metrics.accuracy_score,
    }
    return {name: float(functions[name](label_ids_N, predicted_N)) for name in names}


def score_numbers(values_N: np.ndarray, predicted_N: np.ndarray) -> Scores:
    """Compute Spearman's and Pearson's correlation; 0 where one side is constant."""
    if len(values_N) < 2 or np.ptp(values_N) == 0.0 or np.ptp(predicted_N) == 0.0:
        return {SPEARMAN: 0.0, PEARSON: 0.0}
    from scipy import stats

    return {
        SPEARMAN: float(stats.spearmanr(values_N, predicted_N).statistic),
        PEARSON: float(stats.pearsonr(values_N, predicted_N).statistic),
    }


def score_logits(names: Sequence[str], targets_N: np.ndarray, logits: np.ndarray) -> Scores:
    """Compute the named scores from float32[N,C] and classes, or float32[N,1] and numbers."""
    if SPEARMAN in names:
        return score_numbers(targets_N, logits[:, 0])
    return score_classes(names, targets_N, logits.argmax(axis=1))


def make_constant_logits(targets_N: np.ndarray, classes: int, rows: int) -> np.ndarray:
    """Return float64[R,C] that predicts the most frequent class for every row; zeros if C = 1."""
    if classes == 1:
        return np.zeros((rows, 1))
    logits_C = np.zeros(classes)
    logits_C[np.bincount(targets_N).argmax()] = 1.0
    return np.broadcast_to(logits_C, (rows, classes))  # a view: memory for one row
