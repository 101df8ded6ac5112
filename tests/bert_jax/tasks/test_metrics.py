"""Scores against values worked out by hand from their definitions."""

import math

import numpy as np
import pytest

from bert_jax.tasks.metrics import (
    make_constant_logits,
    score_classes,
    score_logits,
    score_numbers,
)

# Of class 1: 3 found, 1 missed, 2 given wrongly; 4 rightly not given.
RIGHT = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], np.int32)
GIVEN = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0], np.int32)


def test_accuracy_f1_and_matthews_correlation_by_their_formulas():
    scores = score_classes(["accuracy", "f1", "matthews_correlation", "macro_f1"], RIGHT, GIVEN)
    matthews = (3 * 4 - 2 * 1) / math.sqrt((3 + 2) * (3 + 1) * (4 + 2) * (4 + 1))
    assert scores == pytest.approx(
        {
            "accuracy": 7 / 10,
            "f1": 2 * 3 / (2 * 3 + 1 + 2),
            "matthews_correlation": matthews,
            "macro_f1": (6 / 9 + 8 / 11) / 2,
        }
    )
    constant = make_constant_logits(np.array([0, 1, 1]), 2, len(RIGHT))  # of training
    baseline = score_logits(["accuracy", "f1"], RIGHT, constant)
    assert baseline == pytest.approx({"accuracy": 4 / 10, "f1": 2 * 4 / (2 * 4 + 6)})


def test_the_logits_of_a_constant_are_one_row_in_memory():
    constant = make_constant_logits(np.array([7, 5, 7]), 100_000, 1_000_000)
    assert constant.shape == (1_000_000, 100_000) and constant.strides[0] == 0
    assert constant[:3].argmax(axis=1).tolist() == [7, 7, 7]


def test_correlations_by_hand_with_ties_for_spearman():
    values, given = np.array([1.0, 2.0, 3.0, 4.0]), np.array([10.0, 30.0, 30.0, 90.0])
    # Deviations -1.5 -.5 .5 1.5 and -30 -10 -10 50; ranks 1 2 3 4 and 1 2.5 2.5 4.
    pearson = (45 + 5 - 5 + 75) / math.sqrt(5 * (900 + 100 + 100 + 2500))
    spearman = (2.25 + 0 + 0 + 2.25) / math.sqrt(5 * 4.5)
    scores = score_numbers(values, given)
    assert scores == {"pearson": pytest.approx(pearson), "spearman": pytest.approx(spearman)}


def test_what_is_constant_correlates_with_nothing():
    constant, some = np.full(3, 2.5), np.array([1.0, 2.0, 4.0])
    for values, given in ((some, constant), (constant, some)):
        assert score_numbers(values, given) == {"pearson": 0.0, "spearman": 0.0}
    assert (
        score_classes(["matthews_correlation"], RIGHT, np.ones(10))["matthews_correlation"] == 0.0
    )
