"""BERT with its heads, and the one way to make its parameters and to use them.

Dimensions: B rows, S sequence, N examples in a packed row, P predictions, D width,
V vocabulary (padded).
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from bert_jax import mesh, ops
from bert_jax.attention import Visible
from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.cross_entropy import Losses
from bert_jax.dropout import Dropout
from bert_jax.models.choices import Choices, choices
from bert_jax.models.encoder import CLASSIFIER_INPUT, Embeddings, Layer, LayerNumber
from bert_jax.models.heads import MaskedLmHead
from bert_jax.models.layers import Initial, Linear

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Heads:
    """Which maps stand on the encoder and its pooler."""

    mlm: bool = True
    nsp: bool = True
    classes: int = 0  # logits of a task's one layer, `classifier`; 0: there is none


PRETRAINING = Heads()


class Bert(nnx.Module):
    """The encoder with its heads, bound to parameters."""

    def __init__(
        self,
        config: ModelConfig,
        padded_vocab_size: int,
        dtype: jnp.dtype,
        choices: Choices,
        heads: Heads = PRETRAINING,
    ) -> None:
        self.embeddings = Embeddings(config, padded_vocab_size, choices)
        numbers = range(config.num_hidden_layers)
        self.layers = nnx.Dict({f"{i:02d}": Layer(config, choices) for i in numbers})
        width = (config.hidden_size, "embed")
        pooled = (config.hidden_size, None)
        self.pooler = Linear(width, pooled, config.initializer_range)
        if heads.mlm:
            self.mlm = MaskedLmHead(config, padded_vocab_size, choices)
        if heads.nsp:
            self.nsp = Linear(pooled, (2, None), config.initializer_range)
        if heads.classes:
            self.classifier = Linear(pooled, (heads.classes, None), config.initializer_range)
        self.classifier_dropout_rate = config.hidden_dropout_prob
        self.classifier_dropout_layer = config.num_hidden_layers
        self.dtype = dtype
        self.choices = choices

    def encode(
        self,
        input_ids_BS: jax.Array,
        segment_ids_BS: jax.Array,
        visible: Visible,
        dropout: Dropout | None = None,
        position_ids_BS: jax.Array | None = None,
    ) -> jax.Array:
        """Hidden vectors of the last layer.

        Shapes: int32[B,S] twice -> compute dtype[B,S,D]. Positions count from 0 unless given.
        dropout is None for evaluation.
        """
        x_BSD = self.embeddings(input_ids_BS, segment_ids_BS, position_ids_BS, self.dtype, dropout)
        return self._through_layers(x_BSD, visible, dropout)

    def hidden_layers(
        self, input_ids_BS: jax.Array, segment_ids_BS: jax.Array, visible: Visible
    ) -> list[jax.Array]:
        """Hidden vectors of the embeddings and of every layer, without dropout.

        Shapes: int32[B,S] twice -> L + 1 times compute dtype[B,S,D].
        """
        hidden = [self.embeddings(input_ids_BS, segment_ids_BS, None, self.dtype, None)]
        for number, layer in enumerate(self.layers.values()):
            hidden.append(layer(hidden[-1], visible, number, None))
        return hidden

    def _through_layers(
        self, x_BSD: jax.Array, visible: Visible, dropout: Dropout | None
    ) -> jax.Array:
        """One layer after another, as config.compute.remat and rolled_layers have it."""
        layers = [nnx.split(layer) for layer in self.layers.values()]
        graphdef = layers[0][0]

        def through(x_BSD: jax.Array, weights: Any, number: LayerNumber) -> jax.Array:
            return nnx.merge(graphdef, weights)(x_BSD, visible, number, dropout)

        if self.choices.remat_layers:
            # In a loop nothing can be shared between forward and backward by mistake.
            through = jax.checkpoint(through, prevent_cse=not self.choices.rolled_layers)
        if not self.choices.rolled_layers:
            for number, (_, weights) in enumerate(layers):
                x_BSD = through(x_BSD, weights, number)
            return x_BSD
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[state for _, state in layers])
        numbers = jnp.arange(len(layers), dtype=jnp.uint32)
        return jax.lax.scan(
            lambda x_BSD, layer: (through(x_BSD, *layer), None), x_BSD, (stacked, numbers)
        )[0]

    def mlm_logits(self, hidden_BSD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """float32[B,P,V]: logits of the word at each of these positions."""
        gathered_BPD = ops.gather_positions(hidden_BSD, positions_BP)
        return self.mlm.logits(gathered_BPD, self.embeddings.word.embedding[...])

    def mlm_cross_entropy(
        self, hidden_BSD: jax.Array, positions_BP: jax.Array, labels_BP: jax.Array
    ) -> Losses:
        """float32[B,P] twice: nats of the word at each position, and whether it is the likeliest.

        As cross_entropy of mlm_logits, for less memory: config.compute.mlm_logits_dtype.
        """
        gathered_BPD = ops.gather_positions(hidden_BSD, positions_BP)
        table_VD = self.embeddings.word.embedding[...]
        return self.mlm.cross_entropy(gathered_BPD, table_VD, labels_BP)

    def nsp_logits(
        self, hidden_BSD: jax.Array, cls_positions_BN: jax.Array | None = None
    ) -> jax.Array:
        """Logits of (B follows A, it does not), from [CLS] through the pooler.

        Shapes: float[B,S,D] -> float32[B,2]; with int32[B,N], where each example of a packed row
        begins, float32[B,N,2].

        Source: modeling.py@eedf5716ce pooler; run_pretraining.py get_next_sentence_output.
        """
        return self.nsp(self.pooled(hidden_BSD, cls_positions_BN)).astype(jnp.float32)

    def pooled(self, hidden_BSD: jax.Array, cls_positions_BN: jax.Array | None = None) -> jax.Array:
        """The vector of [CLS], through the pooler: float[B,D], or float[B,N,D] of packed rows."""
        if cls_positions_BN is None:
            first = hidden_BSD[:, 0]
        else:
            first = ops.gather_positions(hidden_BSD, cls_positions_BN)
        return jnp.tanh(self.pooler(first))

    def class_logits(self, x: jax.Array, dropout: Dropout | None = None) -> jax.Array:
        """Logits of a task from vectors, dropped out first.

        Shapes: float[B,D], [B,S,D], or [B,N,D] of packed rows -> float32, with C in the place of D.

        Source: run_classifier.py@eedf5716ce create_model.
        """
        if dropout is not None:
            at = self.classifier_dropout_layer, CLASSIFIER_INPUT
            x = dropout.apply(x, self.classifier_dropout_rate, *at, 1)
        return self.classifier(x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Declared:
    """What is known of a parameter before it exists; sizes are those in memory unless logical."""

    dims: tuple[int, ...]
    logical_dims: tuple[int, ...]  # without rows that pad the vocabulary
    spec: PartitionSpec
    initial: Initial

    @property
    def is_matrix(self) -> bool:
        """A kernel or a table, and no bias or norm."""
        return self.initial.stddev > 0.0


@dataclasses.dataclass(frozen=True)
class Model:
    """BERT of one configuration without parameters: a value that makes and binds them."""

    config: ModelConfig
    dtype: jnp.dtype  # of matmuls and of activations between them
    graphdef: Any
    declared: Params  # nested dict of Declared

    def init(self, key: jax.Array) -> Params:
        """Fresh float32 parameters on the current mesh: a function of the key and of their paths.

        Made one by one (docs/decisions/0004). Rows that pad the vocabulary are zeros.
        """
        return jax.tree_util.tree_map_with_path(functools.partial(drawn, key), self.declared)

    def bind(self, params: Params) -> Bert:
        """The model with these parameters. Cheap: done anew in every trace."""
        return nnx.merge(self.graphdef, params)

    @property
    def abstract_params(self) -> Params:
        """Nested dict of float32 jax.ShapeDtypeStruct, as held in memory."""
        return jax.tree.map(lambda of: jax.ShapeDtypeStruct(of.dims, jnp.float32), self.declared)

    @property
    def specs(self) -> Params:
        """Nested dict of PartitionSpec: where each parameter lies."""
        return jax.tree.map(lambda of: of.spec, self.declared)

    @property
    def parameter_count(self) -> int:
        """Parameters of encoder and heads, padding not counted."""
        return sum(math.prod(of.logical_dims) for of in jax.tree.leaves(self.declared))


def drawn(key: jax.Array, path: tuple[Any, ...], of: Declared) -> jax.Array:
    """The parameter at a path of the tree as a model has it at the start, on the current mesh."""
    return _draw(of)(jax.random.fold_in(key, zlib.crc32(jax.tree_util.keystr(path).encode())))


@functools.cache
def _draw(of: Declared) -> Callable[[jax.Array], jax.Array]:
    padding = [(0, held - real) for held, real in zip(of.dims, of.logical_dims, strict=True)]
    return jax.jit(
        lambda key: jnp.pad(of.initial.draw(key, of.logical_dims), padding),
        out_shardings=of.spec,
    )


def compute_dtype(config: ModelConfig, platform: str) -> jnp.dtype:
    """The dtype of matmuls and of activations between them on this platform ("cpu", "tpu", ...)."""
    if config.compute_dtype != "auto":
        return jnp.dtype(config.compute_dtype)
    return jnp.dtype(jnp.float32 if platform == "cpu" else jnp.bfloat16)


def build(
    config: ModelConfig,
    platform: str,
    model_size: int = 1,
    compute: ComputeConfig = ComputeConfig(),
    heads: Heads = PRETRAINING,
) -> Model:
    """Shapes and layouts of a BERT, without allocating it.

    platform names the device kind that will run it; model_size is the length of the mesh's model
    axis, for which vocabulary rows are padded; compute changes no parameter.
    """
    padded = mesh.padded_vocab_size(config.vocab_size, model_size)
    dtype = compute_dtype(config, platform)
    graphdef, state = nnx.split(Bert(config, padded, dtype, choices(compute, dtype), heads))

    def declare(param: nnx.Variable[Any]) -> Declared:
        axes, dims = param.get_metadata("logical_axes"), param.get_value().shape
        logical_dims = tuple(
            config.vocab_size if axis == "vocab" else size
            for axis, size in zip(axes, dims, strict=True)
        )
        return Declared(dims, logical_dims, mesh.spec(*axes), param.get_metadata("initial"))

    declared = jax.tree.map(declare, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return Model(config, dtype, graphdef, nnx.to_pure_dict(declared))
