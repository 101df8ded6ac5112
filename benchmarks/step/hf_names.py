"""Rename parameters (or gradients) of Hugging Face's BertForPreTraining to our paths.

Written out by hand, apart from bert_jax, so that it can serve as an oracle of it. PyTorch's are
renamed to Flax's first.
Source: transformers v4.57.6, models/bert/modeling_flax_bert.py and, for PyTorch,
modeling_flax_pytorch_utils.py rename_key_and_reshape_tensor.
"""

from collections.abc import Mapping

import numpy as np

_ONCE = {
    "embeddings/word/embedding": "bert/embeddings/word_embeddings/embedding",
    "embeddings/position/embedding": "bert/embeddings/position_embeddings/embedding",
    "embeddings/segment/embedding": "bert/embeddings/token_type_embeddings/embedding",
    "embeddings/layer_norm/scale": "bert/embeddings/LayerNorm/scale",
    "embeddings/layer_norm/bias": "bert/embeddings/LayerNorm/bias",
    "pooler/kernel": "bert/pooler/dense/kernel",
    "pooler/bias": "bert/pooler/dense/bias",
    "mlm/transform/kernel": "cls/predictions/transform/dense/kernel",
    "mlm/transform/bias": "cls/predictions/transform/dense/bias",
    "mlm/layer_norm/scale": "cls/predictions/transform/LayerNorm/scale",
    "mlm/layer_norm/bias": "cls/predictions/transform/LayerNorm/bias",
    "mlm/output_bias": "cls/predictions/bias",
    "nsp/kernel": "cls/seq_relationship/kernel",
    "nsp/bias": "cls/seq_relationship/bias",
}
_IN_A_LAYER = {
    "attention/query/kernel": "attention/self/query/kernel",
    "attention/query/bias": "attention/self/query/bias",
    "attention/key/kernel": "attention/self/key/kernel",
    "attention/key/bias": "attention/self/key/bias",
    "attention/value/kernel": "attention/self/value/kernel",
    "attention/value/bias": "attention/self/value/bias",
    "attention/output/kernel": "attention/output/dense/kernel",
    "attention/output/bias": "attention/output/dense/bias",
    "attention/layer_norm/scale": "attention/output/LayerNorm/scale",
    "attention/layer_norm/bias": "attention/output/LayerNorm/bias",
    "mlp/intermediate/kernel": "intermediate/dense/kernel",
    "mlp/intermediate/bias": "intermediate/dense/bias",
    "mlp/output/kernel": "output/dense/kernel",
    "mlp/output/bias": "output/dense/bias",
    "mlp/layer_norm/scale": "output/LayerNorm/scale",
    "mlp/layer_norm/bias": "output/LayerNorm/bias",
}


def from_hf_flax(theirs: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Every parameter under our path.

    Raises:
      ValueError: theirs has parameters that this table does not name.
    """
    names = dict(_ONCE)
    for layer in range(layers):
        for ours, name in _IN_A_LAYER.items():
            names[f"layers/{layer:02d}/{ours}"] = f"bert/encoder/layer/{layer}/{name}"
    unknown = sorted(set(theirs) - set(names.values()))
    if unknown:
        raise ValueError(f"FlaxBertForPreTraining has {unknown}, which this table does not name")
    return {ours: theirs[name] for ours, name in names.items()}


def from_hf_torch(theirs: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """Every parameter under our path.

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
