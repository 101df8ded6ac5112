"""The drawn models of make exports: each is one that its family describes."""

import numpy as np
import pytest

from benchmarks.parity_runs.drawn_models import FAMILIES_DRAWN, draw_config
from bert_jax.interop.families import FAMILIES, find_family


@pytest.mark.parametrize("family", FAMILIES_DRAWN)
def test_a_drawn_shape_is_of_its_family(family):
    drawn = [draw_config(family, np.random.default_rng(shape), 400) for shape in range(10)]
    assert len(set(drawn)) == 10
    for config in drawn:
        assert FAMILIES[family].fits(config)
        if family != "electra":  # whose wide embeddings are a BERT's too
            described = FAMILIES[family]
            found = find_family(config, described.names.pad_id or 0, described.vocabulary_kind)
            assert found is described
