"""Parameters (or gradients) of PyTorch's BertForPreTraining under our paths and in our shapes.

By way of the Flax model's names, of which hf_flax_names.py knows ours.
Source: transformers v4.57.6, modeling_flax_pytorch_utils.py rename_key_and_reshape_tensor.
"""

from collections.abc import Mapping

import numpy as np

from benchmarks import hf_flax_names


def from_hf(theirs: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Every parameter under our path.

    Raises:
      ValueError: theirs has parameters that the table of names does not have.
    """
    return hf_flax_names.from_hf(_as_in_flax(theirs), layers)


def _as_in_flax(theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same, renamed; torch keeps the matrix of a Linear as [out, in], Flax as [in, out]."""
    named = {}
    for path, array in theirs.items():
        *folders, leaf = path.split(".")
        if leaf != "weight":
            named["/".join([*folders, leaf])] = array
        elif folders[-1] == "LayerNorm":
            named["/".join([*folders, "scale"])] = array
        elif folders[-1].endswith("_embeddings"):
            named["/".join([*folders, "embedding"])] = array
        else:
            named["/".join([*folders, "kernel"])] = array.T
    return named
