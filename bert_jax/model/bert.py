"""Define BERT with its heads, declare and initialize its parameters, and bind them.

Dimensions: B rows, S sequence, N examples in a packed row, P predictions, D width,
V vocabulary (padded).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model import ops
from bert_jax.model.attention import Visible
from bert_jax.model.dropout import CLASSIFIER_INPUT, Dropout
from bert_jax.model.embeddings import Embeddings
from bert_jax.model.encoder import Layer, Views, make_views
from bert_jax.model.heads import (
    Losses,
    MaskedLmHead,
    ReplacedTokenHead,
    pool_lstms,
    run_lstms,
    stack_lstms,
)
from bert_jax.model.layers import (
    Choices,
    Declared,
    LayerNumber,
    Linear,
    Norm,
    Table,
    init_param,
    resolve_choices,
)
from bert_jax.model.relative import DistanceTable, Targets
from bert_jax.parallel import mesh

Params = dict[str, Any]
_TARGETS = 0x7A96E75  # mixed into dropout's seed for the stream of the targets


@dataclasses.dataclass(frozen=True)
class EncoderRows:
    """Hold what the encoder reads: tokens, their segments, and the keys that each may attend to."""

    input_ids_BS: jax.Array  # int32
    segment_ids_BS: jax.Array  # int32
    visible: Visible
    dropout: Dropout | None = None  # None drops nothing
    position_ids_BS: jax.Array | None = None  # int32; None counts from 0


@dataclasses.dataclass(frozen=True)
class Heads:
    """Select the heads that the model has on its encoder and pooler."""

    mlm: bool = True
    nsp: bool = True
    classes: int = 0  # number of logits of a task's layer, `classifier`; 0 for no such layer
    pooler: bool = True  # what a classifier reads, where the config has one
    rtd: bool = False  # the head of replaced-token detection
    generator: bool = False  # the model that replaces tokens for rtd


PRETRAINING = Heads()
_GENERATOR_HEADS = Heads(nsp=False, pooler=False)


class Bert(nnx.Module):
    """Compute the encoder and its heads with the parameters they are bound to."""

    def __init__(
        self,
        config: ModelConfig,
        padded_vocab_size: int,
        dtype: jnp.dtype,
        choices: Choices,
        heads: Heads = PRETRAINING,
        shared: Embeddings | None = None,
    ) -> None:
        """Declare the parameters; `shared` are embeddings of another model to read instead."""
        units = config.bilstm_units if heads.classes else 0
        if units:
            heads = dataclasses.replace(heads, pooler=False)  # nothing would read the pooler
        sizes = config.generator if heads.generator else None
        has_base = sizes is not None and config.generator_embeddings == "gdes"
        self.embeddings = Embeddings(config, padded_vocab_size, choices, shared, has_base)
        is_disentangled = config.position_embedding_type == "disentangled"
        self.distances = DistanceTable(config, choices) if is_disentangled else None
        own = 1 if config.share_layers else config.num_hidden_layers
        self.layers = nnx.Dict({f"{i:02d}": Layer(config, choices, i) for i in range(own)})
        is_pre_norm = config.norm_position == "pre"
        self.layer_norm = Norm(config, config.hidden_size, choices) if is_pre_norm else None
        width = (config.hidden_size, "embed")
        pooled = (config.hidden_size, None)
        has_pooler = heads.pooler and config.pooler_type != "mlm_transform"
        self.pooler = Linear(width, pooled, config.initializer_range) if has_pooler else None
        if heads.mlm or (heads.pooler and not has_pooler):
            self.mlm = MaskedLmHead(config, padded_vocab_size, choices)
        has_decoder = heads.mlm and config.enhanced_mask_decoder
        rows, std = config.max_position_embeddings, config.initializer_range
        self.decoder_positions = Table(rows, config.hidden_size, None, std) if has_decoder else None
        if heads.nsp:
            self.nsp = Linear(pooled, (2, None), config.initializer_range)
        if heads.classes:
            read = (2 * units or config.hidden_size, None)
            self.classifier = Linear(read, (heads.classes, None), config.initializer_range)
        self.bilstm = stack_lstms(config.hidden_size, units) if units else None
        if heads.rtd:
            self.rtd = ReplacedTokenHead(config, choices)
        given = None if has_base else self.embeddings
        self.generator = (
            Bert(sizes, padded_vocab_size, dtype, choices, _GENERATOR_HEADS, given)
            if sizes is not None
            else None
        )
        self.has_base = has_base
        self.config = config
        self.dtype = dtype
        self.choices = choices

    def encode(self, rows: EncoderRows) -> jax.Array:
        """Compute the hidden vectors of the last layer: compute dtype[B,S,D].

        Layers are applied as config.compute.remat and rolled_layers say.
        """
        x_BSD, _ = self._apply_first(self.config.num_hidden_layers, rows)
        return self._normalize_last(x_BSD)

    def _normalize_last(self, x_BSD: jax.Array) -> jax.Array:
        return x_BSD if self.layer_norm is None else self.layer_norm(x_BSD)

    def project_layer(
        self, number: int, rows: EncoderRows
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute queries, keys and values of a layer, counted from 0: compute dtype[B,S,D] each.

        Only the layers before it are computed.
        """
        x_BSD, _ = self._apply_first(number, rows)
        return self._layers_in_order()[number].project(x_BSD)

    def _apply_first(self, count: int, rows: EncoderRows) -> tuple[jax.Array, Views]:
        """Compute the hidden vectors of the first `count` layers, and what these layers share."""
        x_BSD, views = self._embed(rows), self._make_views(rows)
        layers = self._layers_in_order()[:count]
        x_BSD = self._apply_layers(
            x_BSD, lambda layer, x_BSD, number: layer(x_BSD, views, number, rows.dropout), layers
        )
        return x_BSD, views

    def _embed(self, rows: EncoderRows) -> jax.Array:
        base = self.generator.embeddings if self.has_base and self.generator is not None else None
        ids = (rows.input_ids_BS, rows.segment_ids_BS, rows.position_ids_BS)
        return self.embeddings(*ids, self.dtype, rows.dropout, base)

    def _make_views(self, rows: EncoderRows) -> Views:
        segment_ids_BS, table = rows.segment_ids_BS, self.distances
        distances_RD = None if table is None else table(segment_ids_BS.shape[1], self.dtype)
        return make_views(
            self.config, rows.visible, rows.position_ids_BS, segment_ids_BS, distances_RD
        )

    def _layers_in_order(self) -> list[Layer]:
        layers = list(self.layers.values())
        return layers * self.config.num_hidden_layers if self.config.share_layers else layers

    def encode_targets(
        self, rows: EncoderRows, positions_BP: jax.Array, mask: jax.Array
    ) -> jax.Array:
        """Compute the vectors of P target positions of each row: float[B,P,D].

        Tokens see `rows.visible`, targets see the tokens in mask, bool[B,1,P,S]. All targets begin
        as the same learned vector. Only models with relative positions have targets.
        Source: Yang et al. 2019 (XLNet), section 2.3.
        """
        x_BSD, views = self._embed(rows), self._make_views(rows)
        vectors_BPD = self.embeddings.embed_targets(positions_BP.shape, self.dtype)
        other = _drop_for_targets(rows.dropout)

        def step(layer: Layer, streams: Any, number: LayerNumber) -> Any:
            x_BSD, targets = streams
            targets = layer.predict(targets, x_BSD, views, number, other)
            return layer(x_BSD, views, number, rows.dropout), targets

        streams = (x_BSD, Targets(vectors_BPD, positions_BP, mask))
        _, targets = self._apply_layers(streams, step, self._layers_in_order())
        return self._normalize_last(targets.vectors_BPD)

    def encode_slots(self, rows: EncoderRows, positions_BP: jax.Array) -> jax.Array:
        """Compute the vectors that predict the tokens at P places of each row: float[B,P,D].

        The vectors come from the last layer or, with config.model.enhanced_mask_decoder, the
        decoder: the last layer applied twice, both times with keys and values from the layer before
        it. The first queries are that earlier layer's vectors plus position vectors.

        Source: He et al. 2021 (DeBERTa), section 3.2; microsoft/DeBERTa@4d7fe0b
        masked_language_model.py EnhancedMaskDecoder, which computes all places and keeps these.
        """
        if self.decoder_positions is None:
            return ops.gather_positions(self.encode(rows), positions_BP)
        x_BSD, views = self._apply_first(self.config.num_hidden_layers - 1, rows)
        places_BP, mask = positions_BP, rows.visible.mask
        if rows.position_ids_BS is not None:
            places_BP = ops.gather_positions(rows.position_ids_BS, positions_BP)
        if mask.shape[2] > 1:  # packed rows
            mask = ops.gather_positions(mask[:, 0], positions_BP)[:, None]
        place_BPD = ops.lookup(self.decoder_positions.embedding[...], places_BP, self.dtype)
        queries_BPD = ops.gather_positions(x_BSD, positions_BP) + place_BPD
        other = _drop_for_targets(rows.dropout)

        def step(layer: Layer, targets: Targets, number: LayerNumber) -> Targets:
            return layer.predict(targets, x_BSD, views, number, other)

        targets = Targets(queries_BPD, positions_BP, mask)
        return self._apply_layers(targets, step, self._layers_in_order()[-1:] * 2).vectors_BPD

    def encode_masked(
        self, rows: EncoderRows, positions_BP: jax.Array, weights_BP: jax.Array
    ) -> jax.Array:
        """Compute the vectors that predict the masked tokens of plain rows: float[B,P,D].

        With relative positions these are target vectors, and no token sees a masked token. Slots
        of weight 0 are unused.
        """
        if self.config.position_embedding_type != "relative":
            return self.encode_slots(rows, positions_BP)
        is_at_BPS = positions_BP[:, :, None] == jnp.arange(rows.input_ids_BS.shape[1])
        is_known_BS = ~jnp.any(is_at_BPS & (weights_BP > 0)[:, :, None], axis=1)
        mask = rows.visible.mask & is_known_BS[:, None, None, :]
        seen = dataclasses.replace(rows, visible=Visible(mask))
        return self.encode_targets(seen, positions_BP, mask)

    def _apply_layers(
        self, x: Any, step: Callable[[Layer, Any, LayerNumber], Any], chosen: list[Layer]
    ) -> Any:
        """Apply step(layer, x, number) for these layers in order, numbered from 0."""

        def apply(graphdef: Any, x: Any, weights: Any, number: LayerNumber) -> Any:
            return step(nnx.merge(graphdef, weights), x, number)

        if self.choices.remat_layers:
            # In a rolled loop XLA cannot merge the recomputation with the forward pass.
            apply = jax.checkpoint(
                apply, prevent_cse=not self.choices.rolled_layers, static_argnums=0
            )
        layers = [nnx.split(layer) for layer in chosen]
        if not self.choices.rolled_layers or not layers:
            for number, (graphdef, weights) in enumerate(layers):
                x = apply(graphdef, x, weights, number)
            return x
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[state for _, state in layers])
        numbers = jnp.arange(len(layers), dtype=jnp.uint32)
        graphdef = layers[0][0]
        return jax.lax.scan(
            lambda x, layer: (apply(graphdef, x, *layer), None), x, (stacked, numbers)
        )[0]

    def encode_layers(self, rows: EncoderRows) -> list[jax.Array]:
        """Compute the hidden vectors of the embeddings and of every layer.

        Shapes: L + 1 times compute dtype[B,S,D]. The last array is what encode returns: only this
        one has passed a pre-norm model's final norm.
        """
        hidden, views = [self._embed(rows)], self._make_views(rows)
        for number, layer in enumerate(self._layers_in_order()):
            hidden.append(layer(hidden[-1], views, number, rows.dropout))
        return [*hidden[:-1], self._normalize_last(hidden[-1])]

    def compute_mlm_logits(self, hidden_BSD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """Compute the logits of the token at each of these positions: float32[B,P,V]."""
        return self.compute_target_logits(ops.gather_positions(hidden_BSD, positions_BP))

    def compute_target_logits(self, vectors_BPD: jax.Array) -> jax.Array:
        """Compute the logits of tokens from their vectors: float[B,P,D] -> float32[B,P,V]."""
        return self.mlm.compute_logits(vectors_BPD, self.embeddings.word.embedding[...])

    def compute_target_losses(self, vectors_BPD: jax.Array, labels_BP: jax.Array) -> Losses:
        """Compute the loss (nats) of each label, and whether it is the likeliest token.

        Shapes: float[B,P,D], int32[B,P] -> float32[B,P] twice; P may be all of S. Like
        cross_entropy of compute_target_logits, in less memory: config.compute.mlm_logits_dtype.
        """
        table_VD = self.embeddings.word.embedding[...]
        return self.mlm.compute_losses(vectors_BPD, table_VD, labels_BP)

    def compute_nsp_logits(
        self, hidden_BSD: jax.Array, cls_positions_BN: jax.Array | None = None
    ) -> jax.Array:
        """Compute the logits of (B follows A, it does not): float32[B,2], or [B,N,2] if packed.

        Source: modeling.py@eedf5716ce pooler; run_pretraining.py get_next_sentence_output.
        """
        return self.nsp(self.pool(hidden_BSD, cls_positions_BN)).astype(jnp.float32)

    def pool(
        self,
        hidden_BSD: jax.Array,
        positions: jax.Array | None = None,
        example_ids_BS: jax.Array | None = None,
    ) -> jax.Array:
        """Pool the vector of [CLS] at position 0, or the vectors at the given positions.

        Shapes: float[B,S,D], int32[B] or [B,N] -> float[B,D] or [B,N,D]. A causal model requires
        the positions of the last tokens, as its [CLS] sees nothing.

        With example_ids_BS (from 1; padding is 0) and config.model.classifier_pooling = "mean", the
        mean of each example's vectors is pooled instead. LSTMs replace the pooler: see pool_lstms.
        """
        is_packed = positions is not None and positions.ndim == 2
        examples = positions.shape[1] if positions is not None and is_packed else 1
        averages = self.config.classifier_pooling == "mean"
        if example_ids_BS is not None and self.bilstm is not None:
            read = pool_lstms(self.bilstm, hidden_BSD, example_ids_BS, examples, averages)
            return read if is_packed else read[:, 0]
        if example_ids_BS is not None and averages:
            read = ops.average_examples(hidden_BSD, example_ids_BS, examples)
            read = read if is_packed else read[:, 0]
        elif positions is not None and is_packed:
            read = ops.gather_positions(hidden_BSD, positions)
        else:
            read = ops.read_positions(hidden_BSD, positions)
        if self.pooler is None:
            return self.mlm.transform_vectors(read)
        read, act = self.pooler(read), self.config.pooler_type
        return jnp.tanh(read) if act == "tanh" else ops.activate(read, act, saves_derivative=False)

    def transform_tokens(self, hidden_BSD: jax.Array, example_ids_BS: jax.Array) -> jax.Array:
        """Compute the input of a task's layer on tokens: float[B,S,D], or [B,S,2U] of LSTMs.

        The input is the last layer, the LSTMs on it (config.model.bilstm_units), or, where
        config.model.pooler_type is mlm_transform, the last layer after the masked language model's
        transform. Examples are numbered as for `pool`.

        Source: modeling_modernbert.py@transformers 5.23 ModernBertForTokenClassification.
        """
        if self.bilstm is not None:
            return run_lstms(self.bilstm, hidden_BSD, example_ids_BS)
        return self.mlm.transform_vectors(hidden_BSD) if self.pooler is None else hidden_BSD

    def compute_class_logits(self, x: jax.Array, dropout: Dropout | None = None) -> jax.Array:
        """Compute a task's logits from float[...,D], after dropout: float32[...,C].

        Source: run_classifier.py@eedf5716ce create_model.
        """
        if dropout is not None:
            layer, rate = self.config.num_hidden_layers, self.config.hidden_dropout_prob
            x = dropout.apply(x, rate, layer, CLASSIFIER_INPUT, 1)
        return self.classifier(x).astype(jnp.float32)


def _drop_for_targets(dropout: Dropout | None) -> Dropout | None:
    """Return the dropout of the stream of targets, with masks of its own."""
    return dropout and dataclasses.replace(dropout, seed=dropout.seed ^ jnp.uint32(_TARGETS))


@dataclasses.dataclass(frozen=True)
class Model:
    """Hold a BERT without parameters, to initialize parameters and bind them."""

    config: ModelConfig
    dtype: jnp.dtype  # dtype of matmuls and of activations between them
    graphdef: Any
    declared: Params  # nested dict of Declared

    def init(self, key: jax.Array) -> Params:
        """Initialize float32 parameters on the current mesh, from the key and their paths.

        Arrays are initialized one by one (decision 4). Rows that pad the vocabulary are zeros.
        """
        return jax.tree_util.tree_map_with_path(functools.partial(init_param, key), self.declared)

    def bind(self, params: Params) -> Bert:
        """Bind the model to these parameters; cheap, and called in every trace."""
        return nnx.merge(self.graphdef, params)

    @property
    def abstract_params(self) -> Params:
        """Return the shapes of the parameters in memory, as float32 jax.ShapeDtypeStruct."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.dims, jnp.float32), self.declared
        )

    @property
    def parameter_count(self) -> int:
        """Count the parameters of encoder and heads, without padding."""
        return sum(math.prod(leaf.logical_dims) for leaf in jax.tree.leaves(self.declared))


def resolve_dtype(compute: ComputeConfig, platform: str) -> jnp.dtype:
    """Return the dtype of matmuls and activations."""
    if compute.compute_dtype != "auto":
        return jnp.dtype(compute.compute_dtype)
    return jnp.dtype(jnp.float32 if platform == "cpu" else jnp.bfloat16)


def build(
    config: ModelConfig,
    platform: str,
    model_size: int = 1,
    compute: ComputeConfig = ComputeConfig(),
    heads: Heads = PRETRAINING,
) -> Model:
    """Build a BERT with the shapes and shardings of its parameters, without allocating them.

    `platform` ("cpu", "tpu", ...) will run it; model_size is the length of the mesh's model axis,
    for which vocabulary rows are padded. compute changes no parameter.
    """
    padded = mesh.padded_vocab_size(config.vocab_size, model_size)
    dtype = resolve_dtype(compute, platform)
    graphdef, state = nnx.split(Bert(config, padded, dtype, resolve_choices(compute, dtype), heads))

    def declare(param: nnx.Variable[Any]) -> Declared:
        axes, dims = param.get_metadata("logical_axes"), param.get_value().shape
        logical_dims = tuple(
            config.vocab_size if axis == "vocab" else size
            for axis, size in zip(axes, dims, strict=True)
        )
        initial = param.get_metadata("initial")
        return Declared(dims, logical_dims, mesh.spec(*axes), initial, axes)

    declared = jax.tree.map(declare, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return Model(config, dtype, graphdef, nnx.to_pure_dict(declared))
