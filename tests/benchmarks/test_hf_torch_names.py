"""PyTorch's names through Flax's to ours: every parameter arrives, in its shape, turned around."""

import jax
import numpy as np

from benchmarks import hf_torch_names
from bert_jax.models import bert
from tests.bert_jax import tiny_models

LAYERS, WIDTH, MLP = 2, 32, 88


def torch_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes as BertForPreTraining(...).named_parameters() gives them."""
    shapes = {
        "bert.embeddings.word_embeddings.weight": (tiny_models.VOCAB, WIDTH),
        "bert.embeddings.position_embeddings.weight": (24, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (2, WIDTH),
        "bert.embeddings.LayerNorm.weight": (WIDTH,),
        "bert.embeddings.LayerNorm.bias": (WIDTH,),
        "cls.predictions.bias": (tiny_models.VOCAB,),
        "cls.predictions.transform.LayerNorm.weight": (WIDTH,),
        "cls.predictions.transform.LayerNorm.bias": (WIDTH,),
    }
    linear = {
        "bert.pooler.dense": (WIDTH, WIDTH),
        "cls.predictions.transform.dense": (WIDTH, WIDTH),
        "cls.seq_relationship": (2, WIDTH),
    }
    for layer in range(LAYERS):
        at = f"bert.encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear[f"{at}.attention.{name}"] = (WIDTH, WIDTH)
        linear |= {f"{at}.intermediate.dense": (MLP, WIDTH), f"{at}.output.dense": (WIDTH, MLP)}
        for norm in ("attention.output", "output"):
            shapes[f"{at}.{norm}.LayerNorm.weight"] = (WIDTH,)
            shapes[f"{at}.{norm}.LayerNorm.bias"] = (WIDTH,)
    for name, (outputs, inputs) in linear.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    return shapes


def test_every_parameter_has_its_place_among_ours():
    rng = np.random.default_rng(0)
    theirs = {name: rng.normal(size=shape) for name, shape in torch_shapes().items()}
    ours = hf_torch_names.from_hf(theirs, LAYERS)
    declared = bert.build(tiny_models.MODEL, "cpu").declared
    expected = {
        jax.tree_util.keystr(path, simple=True, separator="/"): of.logical_dims
        for path, of in jax.tree_util.tree_leaves_with_path(declared)
    }
    assert {name: array.shape for name, array in ours.items()} == expected
    # x @ kernel here is torch's x @ weight.T.
    for name in ("self.key", "output.dense"):
        weight = theirs[f"bert.encoder.layer.1.attention.{name}.weight"]
        path = f"layers/01/attention/{name.removeprefix('self.').removesuffix('.dense')}/kernel"
        np.testing.assert_array_equal(ours[path], weight.T)
