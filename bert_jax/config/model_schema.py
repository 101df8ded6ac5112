"""Declare the settings of the encoder and of its computation."""

import dataclasses
from typing import Any

from data_pipeline.spec.fields import setting

HIDDEN_ACTS = ("gelu_tanh", "gelu_erf", "silu", "relu", "quick_gelu")
POOLER_TYPES = ("tanh", "gelu_erf", "relu", "mlm_transform")
# Fields of ModelConfig that only heads read.
OF_HEADS = ("pooler_type", "classifier_pooling", "head_act", "detects_by_cls")
THETAS = ("global_rope_theta", "local_rope_theta")  # fields of ModelConfig and of Phase
# Fields of ModelConfig that only disentangled attention reads.
DISENTANGLED = (
    *("pos_att_type", "position_buckets", "max_relative_positions"),
    *("share_att_key", "norm_rel_ebd", "position_biased_input", "detects_by_cls"),
    "enhanced_mask_decoder",
)
# Fields of ModelConfig that describe a generator next to the encoder.
OF_A_GENERATOR = (
    *("generator_hidden_size", "generator_num_hidden_layers", "generator_num_attention_heads"),
    *("generator_intermediate_size", "generator_embeddings", "enhanced_mask_decoder"),
)
COMPUTE_DTYPES = ("auto", "float32", "bfloat16")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Hold the sizes of the encoder. Names come from Google's bert_config.json.

    Published BERTs stay below a quarter of each maximum: a larger value is damage or a typo.
    """

    vocab_size: int = setting(
        0, "size of the vocabulary; 0 takes the store's", unit="tokens", minimum=0, maximum=1 << 22
    )
    hidden_size: int = setting(768, "width of the encoder", minimum=1, maximum=1 << 16)
    num_hidden_layers: int = setting(12, "layers of the encoder", minimum=1, maximum=1 << 10)
    num_attention_heads: int = setting(
        12, "attention heads per layer; must divide hidden_size", minimum=1, maximum=1 << 12
    )
    intermediate_size: int = setting(
        3072, "inner width of the feed-forward layers", minimum=1, maximum=1 << 18
    )
    hidden_act: str = setting(
        "gelu_tanh",
        "activation function; gelu_tanh is Google BERT's, gelu_erf Hugging Face's \"gelu\"",
        choices=HIDDEN_ACTS,
    )
    head_act: str = setting(
        "",
        "activation function of the masked language model's head; empty takes hidden_act (Hugging "
        "Face's RoBERTa and ELECTRA always have gelu_erf in the head)",
        choices=("", *HIDDEN_ACTS),
    )
    hidden_dropout_prob: float = setting(
        0.1, "dropout rate of hidden vectors, at the places in dropout_sites", minimum=0, below=1
    )
    attention_probs_dropout_prob: float = setting(
        0.1, "dropout rate of the attention probabilities", minimum=0, below=1
    )
    max_position_embeddings: int = setting(
        512, "longest sequence; number of learned positions", minimum=1, maximum=1 << 20
    )
    type_vocab_size: int = setting(
        2,
        "number of segment ids; sentence pairs need 2, 0 has no segment table",
        minimum=0,
        maximum=1 << 12,
    )
    initializer_range: float = setting(
        0.02, "standard deviation of the truncated normal that initializes weights", above=0
    )
    layer_norm_eps: float = setting(
        1e-12, "epsilon added to the variance in layer normalization", above=0
    )
    embedding_size: int = setting(
        0,
        "width of the embeddings; 0 takes hidden_size, another width is projected to it (ALBERT, "
        "ELECTRA)",
        minimum=0,
        maximum=1 << 16,
    )
    embedding_projection: bool = setting(
        False, "project embeddings even if they have the encoder's width (Hugging Face's ALBERT)"
    )
    position_embedding_type: str = setting(
        "learned",
        "learned: a table added to the embeddings; rotary: rotated queries and keys; relative: "
        "distances and segments in the scores of attention without biases (XLNet); disentangled: "
        "a learned table of distances in the scores (DeBERTa)",
        choices=("learned", "rotary", "relative", "disentangled"),
    )
    pos_att_type: str = setting(
        "c2p|p2c",
        "position terms in disentangled attention's scores: query with distance (c2p, content to "
        "position), key with distance (p2c), or both",
        choices=("c2p|p2c", "c2p", "p2c"),
    )
    position_buckets: int = setting(
        0,
        "buckets of distances to either side in disentangled attention: one distance each in the "
        "near half, then logarithmically wider ones up to max_relative_positions; 0 gives each "
        "distance its own",
        minimum=0,
        maximum=1 << 16,
        source="DeBERTaV3: 256",
    )
    max_relative_positions: int = setting(
        512,
        "disentangled attention treats distances from here on as equal",
        unit="tokens",
        minimum=1,
        maximum=1 << 16,
    )
    share_att_key: bool = setting(
        True, "disentangled attention projects distances with the query and key weights (DeBERTaV3)"
    )
    norm_rel_ebd: bool = setting(
        True, "disentangled attention normalizes its table of distances (DeBERTaV3)"
    )
    position_biased_input: bool = setting(
        False, "disentangled attention also adds a table of positions to the embeddings (DeBERTa)"
    )
    global_rope_theta: float = setting(
        10_000.0, "base of the rotary wavelengths in layers that attend to the whole row", above=1
    )
    local_rope_theta: float = setting(
        10_000.0, "base of the rotary wavelengths in layers with a window", above=1
    )
    local_attention: int = setting(
        0,
        "width of a layer's attention window, half on each side; 0 has no window",
        unit="tokens",
        minimum=0,
    )
    global_attn_every_n_layers: int = setting(
        1,
        "the first layer and every Nth after it attend to the whole row; the layers between have "
        "the window",
        minimum=1,
    )
    norm_position: str = setting(
        "post",
        "normalization after each residual sum (post), or before attention and feed-forward and "
        "after the last layer (pre)",
        choices=("post", "pre"),
    )
    norm_type: str = setting(
        "layer_norm", "kind of normalization", choices=("layer_norm", "rms_norm")
    )
    norm_bias: bool = setting(True, "normalization has a bias")
    embedding_norm: bool = setting(
        True, "normalize the embeddings; the first pre-norm attention then has no norm"
    )
    linear_bias: bool = setting(True, "linear maps inside the encoder have a bias")
    gated_mlp: bool = setting(
        False, "gated feed-forward layers: GeGLU, or SwiGLU if hidden_act is silu"
    )
    is_causal: bool = setting(
        False,
        "each token attends to itself and earlier tokens only, in all training; a classifier then "
        "reads the last token, as [CLS] sees no other; set by a last phase with the causal "
        "objective (Hugging Face: is_decoder)",
    )
    share_layers: bool = setting(False, "all layers have the same weights (ALBERT)")
    dropout_sites: str = setting(
        "all",
        "where hidden_dropout_prob applies: embeddings and each layer's outputs, or "
        "attention outputs only",
        choices=("all", "attention"),
    )
    mlm_transform: bool = setting(
        True, "the masked language model's head has a dense layer and a norm before its decoder"
    )
    pooler_type: str = setting(
        "tanh",
        "pooler of a classifier: a dense layer with this activation (tanh as in BERT, gelu_erf as "
        "in ELECTRA, relu as in DistilBERT), or the transform of the masked language model's head "
        "(ModernBERT), which tasks on tokens then read too",
        choices=POOLER_TYPES,
    )
    classifier_pooling: str = setting(
        "cls",
        "input of the pooler: the vector of [CLS], or the mean of all tokens' vectors, [CLS] and "
        "[SEP] included (ModernBERT); a next-sentence head always reads [CLS]",
        choices=("cls", "mean"),
    )
    initializer: str = setting(
        "bert",
        "bert draws all weights with initializer_range; megatron divides it by sqrt(2 x layers) "
        "for projections into the residual stream",
        choices=("bert", "megatron"),
    )

    generator_hidden_size: int = setting(
        0,
        "width of the generator for replaced-token detection; 0 for none",
        minimum=0,
        maximum=1 << 16,
        source="ELECTRA: 1/4 of hidden_size in Small and Large, 1/3 in Base",
    )
    generator_num_hidden_layers: int = setting(
        0, "layers of the generator; 0 takes num_hidden_layers", minimum=0, maximum=1 << 10
    )
    generator_num_attention_heads: int = setting(
        0,
        "attention heads of the generator; 0 takes one per 64 of its width, at least one",
        minimum=0,
        maximum=1 << 12,
    )
    generator_intermediate_size: int = setting(
        0, "feed-forward width of the generator; 0 takes 4 x its width", minimum=0, maximum=1 << 18
    )
    generator_embeddings: str = setting(
        "shared",
        "embeddings of generator and encoder: shared has one set of tables and one norm "
        "(ELECTRA); gdes adds the encoder's own difference to the generator's tables, which the "
        "encoder's loss does not update (DeBERTaV3)",
        choices=("shared", "gdes"),
    )
    enhanced_mask_decoder: bool = setting(
        False,
        "the generator predicts by its last layer applied twice, with queries that start as the "
        "layer's input plus a position vector (DeBERTa)",
    )
    detects_by_cls: bool = setting(
        False,
        "the replaced-token head adds [CLS]'s vector to each token's and normalizes the sum "
        "(DeBERTaV3)",
    )
    bilstm_units: int = setting(
        0,
        "cells per direction of two bidirectional LSTM layers that fine-tuning adds on top of the "
        "encoder; the task's layer reads their outputs instead of a pooler or tokens; 0 for none",
        minimum=0,
        maximum=1 << 16,
        source="BERT paper, section 5.1: + BiLSTM",
    )

    @property
    def mlm_act(self) -> str:
        """Return the activation function of the masked language model's head."""
        return self.head_act or self.hidden_act

    @property
    def embedding_width(self) -> int:
        """Return the width of the embeddings."""
        return self.embedding_size or self.hidden_size

    @property
    def maps_embeddings(self) -> bool:
        """Return whether a layer maps the embeddings to the encoder's width."""
        return self.embedding_projection or self.embedding_width != self.hidden_size

    @property
    def has_position_table(self) -> bool:
        """Return whether the embeddings have a vector for each position."""
        return self.position_embedding_type == "learned" or self.position_biased_input

    @property
    def scores_distances(self) -> bool:
        """Return whether attention scores depend on distances, which no kernel supports."""
        return self.position_embedding_type in ("relative", "disentangled")

    @property
    def has_equal_layers(self) -> bool:
        """Return whether all layers are alike: none has a window, none lacks its first norm."""
        has_window = self.global_attn_every_n_layers > 1
        return not has_window and not (self.norm_position == "pre" and self.embedding_norm)

    @property
    def encoder_alone(self) -> "ModelConfig":
        """Return the model without a generator."""
        defaults: dict[str, Any] = {name: getattr(ModelConfig, name) for name in OF_A_GENERATOR}
        return dataclasses.replace(self, **defaults)

    @property
    def generator(self) -> "ModelConfig | None":
        """Return the generator's model, with embeddings of the encoder's width; None without one.

        Source: google-research/electra run_pretraining.py get_generator_config.
        """
        width = self.generator_hidden_size
        if width == 0:
            return None
        return dataclasses.replace(
            self.encoder_alone,
            hidden_size=width,
            embedding_size=self.embedding_width,
            num_hidden_layers=self.generator_num_hidden_layers or self.num_hidden_layers,
            num_attention_heads=self.generator_num_attention_heads or max(1, width // 64),
            intermediate_size=self.generator_intermediate_size or 4 * width,
            enhanced_mask_decoder=self.enhanced_mask_decoder,
        )

    def dropout_rate(self, site: str) -> float:
        """Return the rate of a site: "embeddings", "attention", "mlp" or "distances"."""
        return self.hidden_dropout_prob if self.dropout_sites in ("all", site) else 0.0


# The fields of ModelConfig that ModernBERT and its relatives have in common, whatever their size.
# Source: Warner et al. 2024; configuration_modernbert.py@transformers 5.23.
MODERNBERT: dict[str, Any] = {
    "type_vocab_size": 0,
    "attention_probs_dropout_prob": 0.0,
    "position_embedding_type": "rotary",
    "norm_position": "pre",
    "norm_bias": False,
    "linear_bias": False,
    "gated_mlp": True,
    "dropout_sites": "attention",
    "initializer": "megatron",
    "pooler_type": "mlm_transform",
}


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """Choose how the step computes the loss; choices change only time, memory and rounding.

    A run may resume with other choices, except of compute_dtype, which changes every matmul. For
    layer_norm_variance, mlm_logits_dtype and gelu_backward, "auto" is exact if matmuls are in
    float32 and cheap if they are in bfloat16, which rounds more (docs/design/model_numerics.md).
    """

    compute_dtype: str = setting(
        "auto",
        "dtype of matmuls and activations; auto is bfloat16 on accelerators, float32 on CPU",
        choices=COMPUTE_DTYPES,
    )
    attention: str = setting(
        "auto",
        "attention implementation; plain computes all scores of a row at once, blocks one block "
        "at a time; kernel is a TPU kernel or cuDNN on GPUs, refused if none supports the shapes; "
        "auto takes a kernel if it can, else blocks if rows are long and "
        "attention_probs_dropout_prob is 0, else plain",
        choices=("auto", "plain", "kernel", "blocks"),
    )
    layer_norm_variance: str = setting(
        "auto",
        "formula of the variance; two_pass is mean((x - m)^2), single_pass mean(x^2) - m^2",
        choices=("auto", "two_pass", "single_pass"),
    )
    mlm_logits_dtype: str = setting(
        "auto", "dtype of the logits saved for the backward pass", choices=COMPUTE_DTYPES
    )
    gelu_backward: str = setting(
        "auto",
        "derivative of gelu; recomputed from its input, or saved in the forward pass",
        choices=("auto", "recomputed", "saved"),
    )
    remat: str = setting(
        "none",
        "rematerialization; layer computes each layer again in the backward pass, to save memory",
        choices=("none", "layer"),
    )
    rolled_layers: bool = setting(
        False, "one compiled layer in a loop, which compiles sooner and runs slower"
    )
