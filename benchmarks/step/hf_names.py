"""Rename parameters (or gradients) of Hugging Face's BertForPreTraining to our paths.

Written by hand, independent of bert_jax, so that it can serve as its oracle. PyTorch's names are
renamed to Flax's first.
Source: transformers v4.57.6, models/bert/modeling_flax_bert.py and, for PyTorch,
modeling_flax_pytorch_utils.py rename_key_and_reshape_tensor.
"""

from collections.abc import Mapping

import numpy as np

_ARRAYS = {
    "embeddings/word/embedding": "bert/embeddings/word_embeddings/embedding",
    "embeddings/position/embedding": "bert/embeddings/position_embeddings/embedding",
    "embeddings/segment/embedding": "bert/embeddings/token_type_embeddings/embedding",
    "mlm/output_bias": "cls/predictions/bias",
}
# Modules: norms have a scale and a bias, the others a kernel and a bias.
_ONCE = {
    "embeddings/layer_norm": "bert/embeddings/LayerNorm",
    "pooler": "bert/pooler/dense",
    "mlm/transform": "cls/predictions/transform/dense",
    "mlm/layer_norm": "cls/predictions/transform/LayerNorm",
    "nsp": "cls/seq_relationship",
}
_IN_A_LAYER = {
    "attention/query": "attention/self/query",
    "attention/key": "attention/self/key",
    "attention/value": "attention/self/value",
    "attention/output": "attention/output/dense",
    "attention/layer_norm": "attention/output/LayerNorm",
    "mlp/intermediate": "intermediate/dense",
    "mlp/output": "output/dense",
    "mlp/layer_norm": "output/LayerNorm",
}


def from_hf_flax(theirs: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Return every parameter under our path.

    Raises:
      ValueError: theirs has parameters that this table does not name.
    """
    modules = dict(_ONCE)
    for layer in range(layers):
        for ours, name in _IN_A_LAYER.items():
            modules[f"layers/{layer:02d}/{ours}"] = f"bert/encoder/layer/{layer}/{name}"
    names = dict(_ARRAYS)
    for ours, name in modules.items():
        for leaf in ("scale" if ours.endswith("layer_norm") else "kernel", "bias"):
            names[f"{ours}/{leaf}"] = f"{name}/{leaf}"
    unknown = sorted(set(theirs) - set(names.values()))
    if unknown:
        raise ValueError(f"FlaxBertForPreTraining has {unknown}, which this table does not name")
    return {ours: theirs[name] for ours, name in names.items()}


def from_hf_torch(theirs: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Return every parameter under our path.

    Raises:
      ValueError: theirs has parameters that the table of names does not have.
    """
    return from_hf_flax(_as_in_flax(theirs), layers)


def _as_in_flax(theirs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename PyTorch's parameters to Flax's, and transpose its matrices to [in, out]."""
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
