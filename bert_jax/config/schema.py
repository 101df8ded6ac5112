"""Declare every setting of a run: help, unit, range, choices, default and source.

Defaults come from the papers. validate checks the ranges and choices, docs/generate.py makes the
reference page of them.
"""

import dataclasses
import math
from collections.abc import Sequence

from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import setting
from data_pipeline.spec.options import PretrainOptions, parse_store_weights
from data_pipeline.spec.schema import GOOGLE, TRANSFORMERS

HIDDEN_ACTS = ("gelu_tanh", "gelu_erf", "silu")
POOLER_TYPES = ("tanh", "gelu_erf", "relu", "mlm_transform")
# Fields of ModelConfig that heads alone read.
OF_HEADS = ("pooler_type", "classifier_pooling", "head_act")
THETAS = ("global_rope_theta", "local_rope_theta")  # fields of ModelConfig and of Phase
DECAYS = ("polynomial", "constant", "one_minus_sqrt")
COMPUTE_DTYPES = ("auto", "float32", "bfloat16")
CAUSAL = "causal"  # name of the objective that predicts the next token
DISTILLATION = "distillation"  # name of the objective that learns a teacher's predictions
RELATION_DISTILLATION = "relation_distillation"  # the one that learns its attention's relations
FROM_A_TEACHER = (DISTILLATION, RELATION_DISTILLATION)  # those that learn from config.teacher
RTD = "rtd"  # name of the objective that trains a generator beside the encoder
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
PARTS = (DISCRIMINATOR, GENERATOR)  # the models of a run of RTD
MASKED = ("mlm_nsp", "mlm", RTD, DISTILLATION)  # those that predict masked tokens, single ones
BIDIRECTIONAL = ("mlm_nsp", "mlm", RTD, *FROM_A_TEACHER)  # those that read both sides of a token
MAX_WINDOW_STEPS = 1024  # limits config.guard.window_steps; every checkpoint keeps the window


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Size and shape of the encoder. Names come from Google's bert_config.json.

    Published BERTs stay below a quarter of each maximum: what lies beyond is damage or a slip.
    """

    vocab_size: int = setting(
        0, "size of the vocabulary; 0 takes the store's", unit="tokens", minimum=0, maximum=1 << 22
    )
    hidden_size: int = setting(768, "width of the encoder", minimum=1, maximum=1 << 16)
    num_hidden_layers: int = setting(12, "layers of the encoder", minimum=1, maximum=1 << 10)
    num_attention_heads: int = setting(
        12, "attention heads of a layer, which divide hidden_size", minimum=1, maximum=1 << 12
    )
    intermediate_size: int = setting(
        3072, "width between the two matrices of the feed-forward part", minimum=1, maximum=1 << 18
    )
    hidden_act: str = setting(
        "gelu_tanh",
        "activation function; gelu_tanh is Google BERT's, gelu_erf Hugging Face's \"gelu\"",
        choices=HIDDEN_ACTS,
    )
    head_act: str = setting(
        "",
        "activation function of the masked language model's head; empty takes hidden_act (Hugging "
        "Face's RoBERTa and ELECTRA have gelu_erf there, whatever their encoder has)",
        choices=("", *HIDDEN_ACTS),
    )
    hidden_dropout_prob: float = setting(
        0.1, "dropout rate of hidden vectors, where dropout_sites says", minimum=0, below=1
    )
    attention_probs_dropout_prob: float = setting(
        0.1, "dropout rate of the attention probabilities", minimum=0, below=1
    )
    max_position_embeddings: int = setting(
        512, "longest sequence; rows of the table of learned positions", minimum=1, maximum=1 << 20
    )
    type_vocab_size: int = setting(
        2,
        "segments that are told apart; sentence pairs need 2, 0 has no segment table",
        minimum=0,
        maximum=1 << 12,
    )
    initializer_range: float = setting(
        0.02, "standard deviation of the truncated normal of new weights", above=0
    )
    layer_norm_eps: float = setting(
        1e-12, "addition to the variance in layer normalization", above=0
    )
    embedding_size: int = setting(
        0,
        "width of the embeddings; 0 takes hidden_size, another is mapped to it (ALBERT, ELECTRA)",
        minimum=0,
        maximum=1 << 16,
    )
    embedding_projection: bool = setting(
        False,
        "embeddings are mapped to the encoder's width even if they have it (Hugging Face's ALBERT)",
    )
    position_embedding_type: str = setting(
        "learned",
        "how positions enter: a table added to the embeddings, rotated queries and keys, or "
        "distances (and segments) in the scores of an attention without biases (XLNet)",
        choices=("learned", "rotary", "relative"),
    )
    global_rope_theta: float = setting(
        10_000.0,
        "base of the rotary wavelengths where a layer attends to the complete row",
        above=1,
    )
    local_rope_theta: float = setting(
        10_000.0, "base of the rotary wavelengths in layers with a window", above=1
    )
    local_attention: int = setting(
        0,
        "width of the window that a layer attends to, half on each side; 0 has no window",
        unit="tokens",
        minimum=0,
    )
    global_attn_every_n_layers: int = setting(
        1,
        "layers from one that attends to the complete row to the next, beginning with the first; "
        "those between have the window",
        minimum=1,
    )
    norm_position: str = setting(
        "post",
        "normalization after each residual sum (post), or before attention and feed-forward part "
        "and after the last layer (pre)",
        choices=("post", "pre"),
    )
    norm_type: str = setting(
        "layer_norm", "kind of normalization", choices=("layer_norm", "rms_norm")
    )
    norm_bias: bool = setting(True, "normalization has a bias")
    embedding_norm: bool = setting(
        True, "normalization of the embeddings; the first pre-norm attention then has none"
    )
    linear_bias: bool = setting(True, "linear maps inside the encoder have a bias")
    gated_mlp: bool = setting(
        False, "feed-forward part with a gate: GeGLU, or with hidden_act silu SwiGLU"
    )
    is_causal: bool = setting(
        False,
        "a token attends to itself and those before it, in pre-training and after it; a classifier "
        "then reads the last token, as [CLS] sees nothing; a last phase of the causal objective "
        "sets it (Hugging Face: is_decoder)",
    )
    share_layers: bool = setting(False, "all layers have the same weights (ALBERT)")
    dropout_sites: str = setting(
        "all",
        "where hidden_dropout_prob applies: embeddings and each layer's outputs, or attention's "
        "outputs alone",
        choices=("all", "attention"),
    )
    mlm_transform: bool = setting(
        True, "the masked language model's head has a dense layer and a norm before its decoder"
    )
    pooler_type: str = setting(
        "tanh",
        "what a classifier reads of [CLS]: a layer of its own with this activation (tanh as in "
        "BERT, gelu_erf as in ELECTRA, relu as in DistilBERT), or the transform of the masked "
        "language model's head (ModernBERT), which a layer on tokens then reads too",
        choices=POOLER_TYPES,
    )
    classifier_pooling: str = setting(
        "cls",
        "what that is computed from: the vector of [CLS], or the mean of all tokens' vectors, "
        "[CLS] and [SEP] among them (ModernBERT); a next-sentence head always reads [CLS]",
        choices=("cls", "mean"),
    )
    initializer: str = setting(
        "bert",
        "bert draws all weights with initializer_range; megatron divides it by sqrt(2 x layers) "
        "for the maps back to the residual stream",
        choices=("bert", "megatron"),
    )

    generator_hidden_size: int = setting(
        0,
        "width of the generator of replaced-token detection; 0 has none",
        minimum=0,
        maximum=1 << 16,
        source="ELECTRA: 1/4 of hidden_size in Small and Large, 1/3 in Base",
    )
    generator_num_hidden_layers: int = setting(
        0, "layers of the generator; 0 takes num_hidden_layers", minimum=0, maximum=1 << 10
    )
    generator_num_attention_heads: int = setting(
        0,
        "attention heads of the generator; 0 takes one for each 64 of its width, at least one",
        minimum=0,
        maximum=1 << 12,
    )
    generator_intermediate_size: int = setting(
        0,
        "feed-forward width of the generator; 0 takes 4 x its width",
        minimum=0,
        maximum=1 << 18,
    )
    generator_embeddings: str = setting(
        "shared",
        "what generator and encoder share of their embeddings: the same tables and norm (ELECTRA), "
        "or gdes: the encoder adds its own difference to the generator's tables, which its loss "
        "does not move (DeBERTaV3)",
        choices=("shared", "gdes"),
    )
    bilstm_units: int = setting(
        0,
        "cells of a direction of two bidirectional LSTMs that a fine-tuning initializes on top of "
        "the encoder; its layer reads them in place of a pooler or of tokens; 0 has none",
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
    def has_equal_layers(self) -> bool:
        """Return whether layers differ in nothing but their weights: no window, no first norm."""
        has_window = self.global_attn_every_n_layers > 1
        return not has_window and not (self.norm_position == "pre" and self.embedding_norm)

    @property
    def encoder_alone(self) -> "ModelConfig":
        """Return the model without a generator."""
        return dataclasses.replace(
            self,
            generator_hidden_size=0,
            generator_num_hidden_layers=0,
            generator_num_attention_heads=0,
            generator_intermediate_size=0,
            generator_embeddings="shared",
        )

    @property
    def generator(self) -> "ModelConfig | None":
        """Return the model of the generator, whose embeddings are as wide; None without one.

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
        )

    def dropout_rate(self, site: str) -> float:
        """Return the rate for hidden vectors of a site: "embeddings", "attention" or "mlp"."""
        return self.hidden_dropout_prob if self.dropout_sites in ("all", site) else 0.0


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How the step computes the same loss: for its time, its memory and its rounding.

    A run may resume with other choices, except of compute_dtype, which changes every product.
    "auto" of the three that round is the exact choice where matmuls are in float32, the cheap one
    where they are in bfloat16, whose own rounding is coarser (docs/design/model_numerics.md).
    """

    compute_dtype: str = setting(
        "auto",
        "dtype of matmuls and activations; auto is bfloat16 on accelerators, float32 on CPU",
        choices=COMPUTE_DTYPES,
    )
    attention: str = setting(
        "auto",
        "attention of a layer; plain has all scores of a row at once, blocks a block of them at a "
        "time; kernel is one of the two TPU kernels or cuDNN's on GPUs, refused where none "
        "supports the shapes; auto takes a kernel where it can, else blocks where rows are long "
        "and attention_probs_dropout_prob is 0, else plain",
        choices=("auto", "plain", "kernel", "blocks"),
    )
    layer_norm_variance: str = setting(
        "auto",
        "formula of the variance; two_pass is mean((x - m)^2), single_pass mean(x^2) - m^2",
        choices=("auto", "two_pass", "single_pass"),
    )
    mlm_logits_dtype: str = setting(
        "auto", "dtype of the logits that are kept for the backward pass", choices=COMPUTE_DTYPES
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


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training at one sequence length; a run is a tuple of them."""

    seq_len: int = setting(dataclasses.MISSING, "length of a row", unit="tokens", minimum=8)
    steps: int = setting(dataclasses.MISSING, "length of the phase", unit="steps", minimum=1)
    batch_size: int = setting(
        256,
        "rows of an optimizer step over all devices: a sequence each, or up to "
        "config.data.packed_examples; a fine-tuning packs its examples into them",
        unit="rows",
        minimum=1,
    )
    max_predictions_per_seq: int = setting(
        0,
        "slots for predictions in a sequence; 0 takes the masking rate of seq_len, rounded up: 20 "
        "of 128 and 77 of 512, as Google's README advises",
        minimum=0,
    )
    micro_batches: int = setting(
        1, "parts in which a step's batch is computed, their gradients summed", minimum=1
    )
    restart_learning_rate: float = setting(
        0.0,
        "peak of a schedule begun anew in this phase, whatever optim.learning_rate is; 0 keeps the "
        "last schedule",
        minimum=0,
    )
    restart_warmup_steps: int = setting(
        0, "warm-up of the schedule begun anew", unit="steps", minimum=0
    )
    restart_decay: str = setting(
        "", "decay of the schedule begun anew; empty takes optim.decay", choices=("", *DECAYS)
    )
    restart_end_learning_rate: float = setting(
        0.0, "its learning rate at the end; 0 takes optim.end_learning_rate", minimum=0
    )
    objective: str = setting("", "what the phase learns; empty takes config.objective")
    masked_lm_prob: float = setting(
        0.0,
        "masking rate of the phase; 0 takes config.data.masked_lm_prob",
        minimum=0,
        below=1,
        source="mmBERT: 0.3, 0.15 and 0.05 in three phases",
    )
    global_rope_theta: float = setting(
        0.0,
        "config.model.global_rope_theta of this phase, as longer rows take a larger one; 0 takes "
        "the model's",
        minimum=0,
    )
    local_rope_theta: float = setting(0.0, "config.model.local_rope_theta, likewise", minimum=0)
    store_weights: str = setting("", "config.data.store_weights of this phase; empty takes those")
    store_temperature: float = setting(
        0.0, "config.data.store_temperature of this phase; 0 takes that", minimum=0, maximum=10
    )


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Optimizer and schedule. Defaults: optimization.py@eedf5716ce and paper appendix A.2."""

    name: str = setting(
        "bert_adamw",
        "optimizer; bert_adamw is Google BERT's, adamw corrects its bias, stable_adamw also "
        "shrinks the update of a tensor whose gradients grow and divides weight_decay by "
        "learning_rate",
        choices=("bert_adamw", "adamw", "stable_adamw", "lamb"),
    )
    learning_rate: float = setting(1e-4, "peak of the schedule that begins at step 0", above=0)
    warmup_steps: int = setting(
        10_000,
        "linear warm-up; a fine-tuning leaves it at 0 and sets warmup_share",
        unit="steps",
        minimum=0,
    )
    warmup_tokens: int = setting(
        0,
        "warm-up in tokens instead of steps; all of the schedule is then counted in tokens, as for "
        "a batch that grows",
        unit="tokens",
        minimum=0,
    )
    decay: str = setting(
        "polynomial",
        "curve after the warm-up: polynomial, constant, or one_minus_sqrt (1 - sqrt(share done))",
        choices=DECAYS,
    )
    decay_power: float = setting(
        1.0, "power of (1 - step / steps); 1 is linear, 0.5 NVIDIA's for LAMB", above=0
    )
    end_learning_rate: float = setting(0.0, "learning rate at the end of the decay", minimum=0)
    decay_counts_warmup: bool = setting(
        True,
        "Google's rule: the decay is measured from step 0, so the rate steps down at the end of "
        "warm-up; False measures it from there",
    )
    beta1: float = setting(0.9, "decay of the mean of gradients", minimum=0, below=1)
    beta2: float = setting(0.999, "decay of the mean of squared gradients", minimum=0, below=1)
    epsilon: float = setting(1e-6, "addition to the root in the update's denominator", above=0)
    weight_decay: float = setting(0.01, "weight decay of all but biases and layer norms", minimum=0)
    clip_norm: float = setting(
        1.0, "largest norm of the global gradient; 0 does not clip", minimum=0
    )
    layer_rate_decay: float = setting(
        1.0,
        "factor of each layer's learning rate to the rate of the layer above, heads on top, "
        "embeddings below; 1 leaves all the same, ULMFiT has 1 / 2.6 = 0.385",
        above=0,
        maximum=1,
    )
    layer_rate_top: int = setting(
        1,
        "power of layer_rate_decay that the last layer's rate is of the heads' rate; each layer "
        "below has one more: 1 as in ULMFiT, 2 as in ELECTRA's code",
        minimum=0,
        maximum=100,
        source="electra, model/optimization.py _get_layer_lrs",
    )
    unfreeze_every_steps: int = setting(
        0,
        "steps in which heads are trained alone, then with one layer more after as many again; "
        "0 trains everything from the start",
        unit="steps",
        minimum=0,
    )
    transfer: str = setting(
        "none",
        "mup scales initial weights and rates of a pre-training so that the best learning rate of "
        "a model of width transfer_base_width suits wider ones of the same depth",
        choices=("none", "mup"),
        source="Yang et al. 2022 (Tensor Programs V), table 8",
    )
    transfer_base_width: int = setting(
        0, "hidden_size at which transfer=mup changes nothing", minimum=0, maximum=1 << 16
    )
    transfer_base_head_width: int = setting(
        0,
        "width of a head there; 0 takes the width here, where heads grow in number",
        minimum=0,
        maximum=1 << 16,
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Arrangement of the devices; bert_jax/parallel/mesh.py has what each preset shards."""

    preset: str = setting("zero1", "what is sharded: dp, zero1, fsdp or tp, or several joined by +")
    fsdp_size: int = setting(
        0, "devices on the fsdp axis of a preset that has it; 0 takes all that are left", minimum=0
    )
    model_size: int = setting(2, "devices on the model axis of a preset with tp", minimum=1)
    num_slices: int = setting(
        1,
        "TPU slices joined by the data-center network; each has a copy of the weights and the "
        "state, sharded over its own chips",
        minimum=1,
    )
    gradient_dtype: str = setting(
        "auto",
        "dtype in which gradients of kernels and tables are summed over devices; auto takes the "
        "dtype of the matmuls; all others are summed in float32",
        choices=COMPUTE_DTYPES,
    )


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation on fixed pairs and masks."""

    every_steps: int = setting(10_000, "distance of held-out evaluations", unit="steps", minimum=1)
    examples: int = setting(
        4096, "examples evaluated, or all where the held-out split has fewer", minimum=1
    )
    masked_lm_prob: float = setting(
        0.0,
        "masking rate of evaluations in every phase; 0 takes config.data.masked_lm_prob",
        minimum=0,
        below=1,
        source="ModernBERT: 0.15, of a model trained at 0.3",
    )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When a run is saved. It is also saved at its end and on a signal to stop."""

    every_steps: int = setting(1000, "distance of checkpoints", unit="steps", minimum=1)
    keep: int = setting(3, "newest checkpoints kept", minimum=1)
    keep_every_steps: int = setting(
        0,
        "distance of checkpoints kept for good, a multiple of every_steps; 0 keeps none",
        unit="steps",
        minimum=0,
    )
    fresh: bool = setting(
        False,
        "where no checkpoint can be restored: move the records aside and start at step 0 instead "
        "of refusing; not part of the run's settings",
    )


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """Treatment of a step whose loss or gradient is not finite, or leaps."""

    action: str = setting(
        "skip",
        "skip keeps the weights and continues; roll_back returns to the newest checkpoint and "
        "skips the batches up to here; stop ends the run",
        choices=("skip", "roll_back", "stop"),
    )
    spike_sigmas: float = setting(
        0.0,
        "standard deviations above the window's mean from which a loss or a gradient norm is bad "
        "too; 0 refuses only what is not finite",
        minimum=0,
    )
    window_steps: int = setting(
        128,
        "good steps over which mean and deviation are taken",
        unit="steps",
        minimum=2,
        maximum=MAX_WINDOW_STEPS,
    )
    most_in_a_row: int = setting(
        10, "bad steps, or roll-backs without a new checkpoint, after which a run stops", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """How long the processes of a run wait, for each other and for themselves."""

    start_secs: int = setting(
        300, "time in which all processes must be present", unit="seconds", minimum=1
    )
    heartbeat_secs: int = setting(
        60, "silence after which a process counts as dead", unit="seconds", minimum=1
    )
    stuck_step_secs: int = setting(
        600,
        "longest step, its batch included; beyond it stacks are written and the exit code is 86",
        unit="seconds",
        minimum=1,
    )
    stuck_secs: int = setting(
        3600,
        "longest compilation, save, restore or evaluation, likewise",
        unit="seconds",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Where the numbers of a run go beside its workdir; not part of the run's settings."""

    wandb: str = setting(
        "", "project of Weights & Biases, by the account of the wandb package; empty for none"
    )


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """How a student learns from config.teacher: the weights of losses; 0 leaves one out.

    The first four are of the objective distillation, the others of relation_distillation.
    Source: Sanh et al. 2019 (DistilBERT); the numbers come from its code. Wang et al. 2021
    (MiniLMv2), section 3.
    """

    temperature: float = setting(
        2.0, "divisor of the logits of student and teacher, before their softmax", above=0
    )
    soft_weight: float = setting(
        5.0,
        "factor of the divergence from the teacher's predictions of masked tokens, which is "
        "multiplied by the temperature squared",
        minimum=0,
    )
    mlm_weight: float = setting(2.0, "factor of the masked language model's loss", minimum=0)
    cosine_weight: float = setting(
        1.0,
        "factor of 1 - cosine between the last vectors of student and teacher, which must be "
        "equally wide",
        minimum=0,
    )
    relation_heads: int = setting(
        48,
        "parts into which queries, keys and values are cut, each with relations of its own; they "
        "divide the widths of student and teacher",
        minimum=1,
        maximum=1 << 12,
        source="MiniLMv2: 48 for teachers of Base's size, 64 of Large's",
    )
    teacher_layer: int = setting(
        0,
        "layer of the teacher whose relations the student's last layer learns, counted from 1; 0 "
        "takes the last",
        minimum=0,
    )
    query_weight: float = setting(
        1.0, "factor of the divergence of relations between queries", minimum=0
    )
    key_weight: float = setting(1.0, "the same between keys", minimum=0)
    value_weight: float = setting(1.0, "the same between values", minimum=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedConfig:
    """What a user may set of any run, be it pre-training or fine-tuning."""

    init: str = setting(
        "",
        "checkpoint that the run begins with: hf:DIR, google:PREFIX or orbax:DIR; pre-training "
        "takes its sizes too, and fresh weights without one",
    )
    seed: int = setting(
        0,
        "seed of dropout and of weights that no checkpoint has",
        minimum=0,
        maximum=2**32 - 1,
    )
    model: ModelConfig = ModelConfig()
    compute: ComputeConfig = ComputeConfig()
    optim: OptimConfig = OptimConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    hosts: HostsConfig = HostsConfig()
    log: LogConfig = LogConfig()
    log_every_steps: int = setting(100, "distance of lines of metrics", unit="steps", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(SharedConfig):
    """What the trainer reads of a run's settings: Config and FinetuneRun are such."""

    phases: tuple[Phase, ...] = ()  # at least one
    eval: EvalConfig = EvalConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """A pre-training run. The model has the sizes of `init` where one is given."""

    # The kind of run, the command that takes it, and a bundled file: for messages.
    PURPOSE = "pre-training", "python -m bert_jax.train", "configs/base.py"

    phases: tuple[Phase, ...] = (
        Phase(seq_len=128, steps=900_000),
        Phase(seq_len=512, steps=100_000),
    )
    objective: str = setting(
        "mlm_nsp",
        "what is learned: mlm_nsp; mlm alone; causal, the next token from those before it; "
        "permutation, XLNet's; rtd, which tokens a generator has replaced (ELECTRA); distillation, "
        "what a teacher predicts (DistilBERT); relation_distillation, how the tokens of its "
        "attention relate (MiniLMv2)",
    )
    rtd_weight: float = setting(
        50.0,
        "factor of the loss of replaced-token detection, beside the generator's loss",
        minimum=0,
        source="ELECTRA: 50",
    )
    init_layers: str = setting(
        "",
        "layers of the checkpoint in init that the run takes, in this order, numbered from 0 and "
        "joined by commas; empty takes all",
        source="DistilBERT: 0,2,4,7,9,11 of 12",
    )
    data: PretrainOptions = dataclasses.field(default_factory=PretrainOptions)
    init_tile: bool = setting(
        False,
        "the sizes of config.model are taken as given, and the weights of the smaller checkpoint "
        "in init are repeated along each dimension to fill them",
        source="ModernBERT: Large begins as a tiled Base",
    )
    teacher: str = setting(
        "",
        "checkpoint that distillation and relation_distillation learn from: hf:DIR, google:PREFIX "
        "or the workdir of a run; never changed, read again at each start",
    )
    distill: DistillConfig = DistillConfig()


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which task, where its files lie, and how its examples become rows of tokens.

    Columns are for a table of one's own. From doc_stride to has_unanswerable, settings are SQuAD's;
    source: run_squad.py@eedf5716ce.
    """

    task: str = setting(
        "", "name of the task: cola, rte, ..., squad, swag, codah, ner, table (tasks/registry.py)"
    )
    dir: str = setting("", "folder of the task's files, under the names they are published with")
    source: str = setting(
        "files", "files, or tfds: a data set of TensorFlow Datasets that is on this machine"
    )
    train_file: str = setting("", "training file within dir, in place of the published name")
    dev_file: str = setting("", "development file, likewise")
    test_file: str = setting("", "test file, likewise")
    train_examples: int = setting(
        0, "first examples of the training split that are used; 0 takes all", minimum=0
    )
    max_seq_length: int = setting(
        0,
        "longest row, [CLS] and [SEP] counted, 8 or more; 0 takes 128, of SQuAD 384, and no more "
        "than the checkpoint has positions",
        unit="tokens",
        minimum=0,
    )
    order_seed: int = setting(0, "seed of the order of training examples")
    text_column: str = setting("", "column of the text")
    second_text_column: str = setting("", "column of the second text; empty for single texts")
    label_column: str = setting("", "column of the label")
    is_regression: bool = setting(False, "labels are numbers to predict, not classes")
    pair_truncation: str = setting(
        "",
        "who keeps the odd token of a pair that is cut: google, the first text; transformers, the "
        "longer, of equal ones the second; empty takes transformers for an imported hf: checkpoint "
        "and google for every other",
        choices=("", GOOGLE, TRANSFORMERS),
    )
    doc_stride: int = setting(
        128, "distance of the starts of two windows", unit="tokens", minimum=1
    )
    max_query_length: int = setting(64, "longest question", unit="tokens", minimum=1)
    max_answer_length: int = setting(30, "longest predicted answer", unit="tokens", minimum=1)
    n_best_size: int = setting(
        20, "starts and ends that are combined, and answers that are written", minimum=1
    )
    has_unanswerable: bool = setting(False, "SQuAD 2.0: a question may have no answer")
    window_stride: int = setting(
        0,
        "of a table: distance of the starts of two windows over a text that is longer than a row; "
        "each learns the text's label, and a prediction is their mean; 0 cuts the text",
        unit="tokens",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(SharedConfig):
    """What a user may set of a fine-tuning run.

    Of `model`, hidden_dropout_prob, attention_probs_dropout_prob and bilstm_units are read, and
    pooler_type and classifier_pooling where they are not the default; all else is the checkpoint's.
    """

    PURPOSE = "fine-tuning", "python -m bert_jax.finetune", "configs/finetune/glue.py:task=rte"

    data: TaskOptions = TaskOptions()
    epochs: float = setting(3.0, "passes over the training examples", above=0)
    batch_size: int = setting(32, "examples of an optimizer step, over all devices", minimum=1)
    micro_batches: int = setting(
        1, "parts in which a step's batch is computed, their gradients summed", minimum=1
    )
    evaluations_per_epoch: int = setting(
        1, "evaluations of the development sets in an epoch; another one ends the run", minimum=1
    )
    warmup_share: float = setting(0.1, "share of the steps that warm up", minimum=0, below=1)
    optim: OptimConfig = OptimConfig(learning_rate=5e-5, warmup_steps=0)
    checkpoint: CheckpointConfig = CheckpointConfig(keep=1)
    log_every_steps: int = setting(50, "distance of lines of metrics", unit="steps", minimum=1)
    from_scratch: bool = setting(
        False,
        "initialize all weights: of `init` only sizes and vocabulary are read; what pre-training "
        "is compared with",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRun(FinetuneConfig, RunConfig):
    """A fine-tuning run: its settings, and what follows from the checkpoint and the examples.

    Those are model, phases, eval.every_steps and optim.warmup_steps.
    """


def predictions_for(seq_len: int, masked_lm_prob: float) -> int:
    """Return the prediction slots that a full row of seq_len tokens needs.

    A row of l tokens has max(1, round(l * masked_lm_prob)) predictions; rounding up fits them all.
    """
    wanted = math.ceil(seq_len * masked_lm_prob - 1e-9)  # 0.15 * 140 may be 21.000000000000004
    return max(1, min(wanted, seq_len - 3))


def ramp_batch(phase: Phase, first: int, tokens: int, multiple: int) -> tuple[Phase, ...]:
    """Precede a phase by shorter ones whose batch grows from `first` to the phase's, linearly.

    Each is `multiple` rows larger than the one before and has an equal share of `tokens`, to the
    nearest step of the sum so far. Tokens are positions, padding counted, as in
    optim.warmup_tokens. The steps of `phase` itself are unchanged; a schedule that it restarts is
    restarted at the first of the phases. Each phase compiles and ends with an evaluation.

    Raises:
      Refused: `multiple` is not a whole part of the growth, or a share of tokens has no step.

    Source: Warner et al. 2024, section 2.2.3: ModernBERT-Base grows from 768 to 4,608 in 50 B.
    """
    growth = phase.batch_size - first
    if first < 1 or growth < 1 or multiple < 1 or growth % multiple:
        raise Refused(
            f"the batch grows from first = {first} to batch_size = {phase.batch_size} by multiple "
            f"= {multiple}; it must grow by a whole number of multiples, from 1 or more rows"
        )
    sizes = range(first, phase.batch_size, multiple)
    share, trained, ramp = tokens / len(sizes), 0, []
    for number, batch_size in enumerate(sizes, 1):
        step_tokens = batch_size * phase.seq_len
        steps = round((number * share - trained) / step_tokens)
        if steps < 1:
            raise Refused(
                f"tokens = {tokens:,} gives each of {len(sizes)} batch sizes {share:,.0f} tokens, "
                f"and a step of {batch_size} rows has {step_tokens:,}; take more tokens or a "
                "larger multiple"
            )
        ramp.append(dataclasses.replace(phase, batch_size=batch_size, steps=steps))
        trained += steps * step_tokens
    after = [
        dataclasses.replace(
            later,
            restart_learning_rate=0.0,
            restart_warmup_steps=0,
            restart_decay="",
            restart_end_learning_rate=0.0,
        )
        for later in (*ramp[1:], phase)
    ]
    return ramp[0], *after


def list_init_layers(config: Config) -> list[int]:
    """List the numbers in config.init_layers; [] takes all layers.

    Raises:
      Refused: it is not a list of numbers joined by commas.
    """
    texts = config.init_layers.split(",") if config.init_layers else []
    if not all(text.isascii() and text.isdecimal() and len(text) <= 4 for text in texts):
        raise Refused(
            f"config.init_layers is {config.init_layers!r:.60}; it must be numbers of layers "
            "joined by commas, as 0,2,4,7,9,11, or empty to take all layers"
        )
    return [int(text) for text in texts]


def list_objectives(config: Config) -> list[str]:
    """List the name of each phase's objective."""
    return [phase.objective or config.objective for phase in config.phases]


def model_in_phase(config: RunConfig, index: int) -> ModelConfig:
    """Return the model as a phase trains it: its rotary bases, and left to right if causal."""
    phase, model = config.phases[index], config.model
    thetas = {name: getattr(phase, name) or getattr(model, name) for name in THETAS}
    is_causal = model.is_causal or phase.objective == CAUSAL
    return dataclasses.replace(model, is_causal=is_causal, **thetas)


def data_in_phase(config: Config, index: int) -> PretrainOptions:
    """Return the options of sampling by which a phase trains: with its masking rate."""
    rate = config.phases[index].masked_lm_prob or config.data.masked_lm_prob
    return dataclasses.replace(config.data, masked_lm_prob=rate)


def weights_in_phase(config: Config, index: int, tokens: Sequence[int]) -> tuple[float, ...]:
    """Return the share of the phase's rows from each store, which has so many tokens to train on.

    Shares sum to 1. They are the weights of the phase, else in proportion to tokens to the power of
    its temperature; where it has neither, config.data decides.
    """
    if len(tokens) == 1:
        return (1.0,)
    phase, data = config.phases[index], config.data
    key, text = f"config.phases[{index}].store_weights", phase.store_weights
    if not text and not phase.store_temperature:
        key, text = "config.data.store_weights", data.store_weights
    if text:
        return parse_store_weights(text, len(tokens), key)
    temperature = phase.store_temperature or data.store_temperature
    scaled = [(count / max(tokens)) ** temperature for count in tokens]
    return tuple(size / math.fsum(scaled) for size in scaled)


def data_in_evaluations(config: Config) -> PretrainOptions:
    """Return the options of sampling with the masking rate of evaluations, the same for phases."""
    rate = config.eval.masked_lm_prob or config.data.masked_lm_prob
    return dataclasses.replace(config.data, masked_lm_prob=rate)


def total_steps(config: RunConfig) -> int:
    """Return the optimizer steps of all phases."""
    return sum(phase.steps for phase in config.phases)


def phase_start(config: RunConfig, index: int) -> int:
    """Return the number of steps before a phase."""
    return sum(phase.steps for phase in config.phases[:index])


def phase_of_step(config: RunConfig, step: int) -> int:
    """Return the index of the phase that contains a step, counted from 1 over all phases."""
    return sum(step > phase_start(config, index) for index in range(len(config.phases))) - 1


def first_row(config: Config, index: int) -> int:
    """Return a phase's first row in the stream of its length, after earlier such phases."""
    return sum(
        phase.steps * phase.batch_size
        for phase in config.phases[:index]
        if phase.seq_len == config.phases[index].seq_len
    )


_LENGTHS = {"squad": 384}  # run_squad.py@eedf5716ce
_LENGTH = 128  # paper, appendix A.3 and run_classifier.py@eedf5716ce


def with_length(options: TaskOptions, positions: int) -> TaskOptions:
    """Set max_seq_length, if unset, from the task and the checkpoint's number of positions."""
    if options.max_seq_length != 0:
        return options
    usual = _LENGTHS.get(options.task, _LENGTH)
    return dataclasses.replace(options, max_seq_length=min(usual, positions))
