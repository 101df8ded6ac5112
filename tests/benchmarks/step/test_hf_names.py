"""PyTorch's names through Flax's to ours, by the benchmark's own table and by bert_jax's."""

import numpy as np

from benchmarks.step import hf_names
from bert_jax.checkpoint.arrays import name_leaves
from tests.bert_jax import small_checkpoints


def test_every_parameter_has_its_place_among_ours(tmp_path):
    """Each table is the other's oracle; small_checkpoints has the names of PyTorch's model."""
    theirs = small_checkpoints.tensors()
    renamed = hf_names.from_hf_torch(theirs, layers=2)
    _, params, _ = small_checkpoints.read(small_checkpoints.write(tmp_path, theirs))
    leaves = name_leaves(params)
    assert renamed.keys() == leaves.keys() and len(renamed) == len(theirs)
    for path, array in renamed.items():
        np.testing.assert_array_equal(array, leaves[path])
    # x @ kernel here is torch's x @ weight.T.
    weight = theirs["bert.encoder.layer.1.attention.self.key.weight"]
    np.testing.assert_array_equal(leaves["layers/01/attention/key/kernel"], weight.T)
