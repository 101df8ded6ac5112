"""Which curves are drawn, and how far apart they are said to be."""

import numpy as np
import pytest

from benchmarks.numerics_curves import EXACT, OTHER_SEED, REFERENCE, SMOOTHED, apart, variants
from bert_jax.config import Config, validate


def test_each_choice_is_on_in_its_own_curve_and_in_the_last():
    configs = variants(Config())
    changed = {
        name: {
            field
            for field, value in vars(config.compute).items()
            if field != "compute_dtype" and value != getattr(EXACT, field)
        }
        for name, config in configs.items()
    }
    alone = [fields for fields in changed.values() if len(fields) == 1]
    assert set.union(*alone) == changed["bfloat16, all of these"] and len(alone) == 3
    assert changed[REFERENCE] == changed[OTHER_SEED] == changed["bfloat16, exact formulas"] == set()
    in_bfloat16 = {
        name for name, config in configs.items() if config.mesh.gradient_dtype == "bfloat16"
    }
    assert in_bfloat16 == {"bfloat16, gradients added up in bfloat16", "bfloat16, all of these"}
    for config in configs.values():
        validate.check(config)


def test_distances_are_of_means_over_some_steps():
    reference = np.arange(2.0 * SMOOTHED + 3)
    lifted = reference + np.repeat([0.5, -1.5, 100.0], [SMOOTHED, SMOOTHED, 3])
    row = apart({REFERENCE: reference, "lifted": lifted})["lifted"]
    assert row["last_difference"] == pytest.approx(-1.5)
    assert row["mean_distance"] == pytest.approx(1.0)
    assert row["largest_distance"] == pytest.approx(1.5)
