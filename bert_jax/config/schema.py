"""Declare every setting of a run: help, unit, range, choices, default and source.

Defaults come from the papers. validate checks the ranges and choices, and docs/generate.py makes
the reference page.
"""

import dataclasses

from bert_jax.config.model_schema import COMPUTE_DTYPES, ComputeConfig, ModelConfig
from data_pipeline.spec.fields import setting
from data_pipeline.spec.options import PretrainOptions

DECAYS = ("polynomial", "constant", "one_minus_sqrt")
CAUSAL = "causal"  # name of the objective that predicts the next token
DISTILLATION = "distillation"  # name of the objective that learns a teacher's predictions
RELATION_DISTILLATION = "relation_distillation"  # objective that learns a teacher's attention
FROM_A_TEACHER = (DISTILLATION, RELATION_DISTILLATION)  # objectives with config.teacher
RTD = "rtd"  # name of the objective that trains a generator with the encoder
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
PARTS = (DISCRIMINATOR, GENERATOR)  # the two models that RTD trains
MASKED = ("mlm_nsp", "mlm", RTD, DISTILLATION)  # objectives that predict masked tokens
BIDIRECTIONAL = ("mlm_nsp", "mlm", RTD, *FROM_A_TEACHER)  # objectives that read both sides
MAX_WINDOW_STEPS = 1024  # limits config.guard.window_steps; every checkpoint keeps the window


@dataclasses.dataclass(frozen=True)
class Phase:
    """Describe a part of a run at one sequence length."""

    seq_len: int = setting(dataclasses.MISSING, "length of a row", unit="tokens", minimum=8)
    steps: int = setting(dataclasses.MISSING, "length of the phase", unit="steps", minimum=1)
    batch_size: int = setting(
        256,
        "rows per optimizer step over all devices; a row holds one sequence, or up to "
        "config.data.packed_examples; fine-tuning packs its examples into rows",
        unit="rows",
        minimum=1,
    )
    max_predictions_per_seq: int = setting(
        0,
        "slots for predictions per sequence; 0 takes seq_len times the masking rate, rounded up: "
        "20 for 128, 77 for 512, as Google's README advises",
        minimum=0,
    )
    micro_batches: int = setting(
        1, "parts to split a step's batch into, whose gradients are summed", minimum=1
    )
    restart_learning_rate: float = setting(
        0.0,
        "peak learning rate of a new schedule that starts with this phase; 0 continues the last "
        "schedule",
        minimum=0,
    )
    restart_warmup_steps: int = setting(0, "warm-up of the new schedule", unit="steps", minimum=0)
    restart_decay: str = setting(
        "", "decay of the new schedule; empty takes optim.decay", choices=("", *DECAYS)
    )
    restart_end_learning_rate: float = setting(
        0.0, "last learning rate of the new schedule; 0 takes optim.end_learning_rate", minimum=0
    )
    objective: str = setting("", "training objective of the phase; empty takes config.objective")
    masked_lm_prob: float = setting(
        0.0,
        "masking rate of the phase; 0 takes config.data.masked_lm_prob",
        minimum=0,
        below=1,
        source="mmBERT: 0.3, 0.15 and 0.05 in three phases",
    )
    global_rope_theta: float = setting(
        0.0,
        "config.model.global_rope_theta for this phase, larger for longer rows; 0 takes the "
        "model's",
        minimum=0,
    )
    local_rope_theta: float = setting(0.0, "rotary base of windows; 0 takes the model's", minimum=0)
    store_weights: str = setting("", "shares in this phase; empty takes config.data.store_weights")
    store_temperature: float = setting(
        0.0, "sampling temperature; 0 takes config.data.store_temperature", minimum=0, maximum=10
    )


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Choose optimizer and schedule. Defaults: optimization.py@eedf5716ce, paper appendix A.2."""

    name: str = setting(
        "bert_adamw",
        "optimizer; bert_adamw is Google BERT's, adamw adds bias correction, stable_adamw also "
        "shrinks the update of a tensor whose gradients grow and divides weight_decay by "
        "learning_rate; muon makes the updates of the layers' kernels orthogonal and leaves the "
        "other parameters to adamw",
        choices=("bert_adamw", "adamw", "stable_adamw", "lamb", "muon"),
    )
    learning_rate: float = setting(1e-4, "peak learning rate of the first schedule", above=0)
    warmup_steps: int = setting(
        10_000,
        "linear warm-up; fine-tuning leaves it at 0 and sets warmup_share",
        unit="steps",
        minimum=0,
    )
    warmup_tokens: int = setting(
        0,
        "warm-up in tokens instead of steps; the whole schedule is then counted in tokens, to "
        "suit a batch size that grows",
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
    decay_steps: int = setting(
        0,
        "steps at the end of each schedule over which the rate decays from a constant peak; 0 "
        "decays from the start or the end of warm-up",
        unit="steps",
        minimum=0,
        source="Hägele et al. 2024: 10 to 20% of the run",
    )
    end_learning_rate: float = setting(0.0, "learning rate at the end of the decay", minimum=0)
    decay_counts_warmup: bool = setting(
        True,
        "Google's rule: the decay is measured from step 0, so the rate drops at the end of "
        "warm-up; False measures it from the end of warm-up",
    )
    beta1: float = setting(0.9, "decay of the mean of gradients", minimum=0, below=1)
    beta2: float = setting(0.999, "decay of the mean of squared gradients", minimum=0, below=1)
    muon_momentum: float = setting(
        0.95, "decay of the mean of gradients for the kernels that muon updates", minimum=0, below=1
    )
    epsilon: float = setting(1e-6, "added to the square root in the update's denominator", above=0)
    weight_decay: float = setting(
        0.01,
        "weight decay of all but biases and layer norms; for stable_adamw, the share of a weight "
        "removed per step at the peak rate",
        minimum=0,
    )
    clip_norm: float = setting(
        1.0, "largest global norm of the gradient; 0 does not clip", minimum=0
    )
    layer_rate_decay: float = setting(
        1.0,
        "each layer's learning rate as a share of the rate one layer above, from the heads down "
        "to the embeddings; 1 gives equal rates, ULMFiT has 1 / 2.6 = 0.385",
        above=0,
        maximum=1,
    )
    layer_rate_top: int = setting(
        1,
        "power of layer_rate_decay from the heads' rate to the last layer's; each layer below "
        "adds one: 1 as in ULMFiT, 2 as in ELECTRA's code",
        minimum=0,
        maximum=100,
        source="electra, model/optimization.py _get_layer_lrs",
    )
    unfreeze_every_steps: int = setting(
        0,
        "interval of gradual unfreezing: first the heads train alone, then one more layer joins "
        "per interval; 0 trains everything from the start",
        unit="steps",
        minimum=0,
    )
    transfer: str = setting(
        "none",
        "mup scales initial weights and learning rates in pre-training, so that the best rate at "
        "width transfer_base_width suits wider models of the same depth",
        choices=("none", "mup"),
        source="Yang et al. 2022 (Tensor Programs V), table 8",
    )
    transfer_base_width: int = setting(
        0, "hidden_size at which transfer=mup changes nothing", minimum=0, maximum=1 << 16
    )
    transfer_base_head_width: int = setting(
        0,
        "head width at transfer_base_width; 0 takes this model's, so wider models have more heads",
        minimum=0,
        maximum=1 << 16,
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Arrange the devices in a mesh; bert_jax/parallel/mesh.py says what each preset shards."""

    preset: str = setting("zero1", "what is sharded: dp, zero1, fsdp or tp, or several joined by +")
    fsdp_size: int = setting(
        0, "devices on the fsdp axis of a preset with fsdp; 0 takes all that remain", minimum=0
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
        "matmul dtype; other gradients are summed in float32",
        choices=COMPUTE_DTYPES,
    )


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Choose when held-out examples, with fixed pairs and masks, are evaluated."""

    every_steps: int = setting(10_000, "interval of held-out evaluations", unit="steps", minimum=1)
    examples: int = setting(
        4096, "examples to evaluate, or all if the held-out split has fewer", minimum=1
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
    """Choose when a run is saved. It is also saved at its end and on a stop signal."""

    every_steps: int = setting(1000, "interval between checkpoints", unit="steps", minimum=1)
    keep_every_steps: int = setting(
        0,
        "interval between checkpoints that are kept for good, in addition to the newest two; 0 "
        "keeps none",
        unit="steps",
        minimum=0,
    )
    fresh: bool = setting(
        False,
        "if no checkpoint can be restored, move the records aside and start at step 0 instead of "
        "refusing; not part of the run's settings",
    )


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """Choose what to do with a step whose loss or gradient is not finite, or jumps."""

    action: str = setting(
        "skip",
        "skip keeps the weights and continues; roll_back returns to the newest checkpoint and "
        "skips the batches up to here; stop ends the run",
        choices=("skip", "roll_back", "stop"),
    )
    spike_sigmas: float = setting(
        0.0,
        "a loss or gradient norm this many standard deviations above the window's mean is bad "
        "too; 0 checks only for infinities and NaN",
        minimum=0,
    )
    window_steps: int = setting(
        128,
        "good steps that give the mean and deviation",
        unit="steps",
        minimum=2,
        maximum=MAX_WINDOW_STEPS,
    )
    most_in_a_row: int = setting(
        10, "bad steps in a row, or roll-backs without a new checkpoint, that stop a run", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """Limit how long processes wait for each other, and how long their own work may take."""

    start_secs: int = setting(
        300, "time limit for all processes to connect", unit="seconds", minimum=1
    )
    heartbeat_secs: int = setting(
        60, "silence after which a process counts as dead", unit="seconds", minimum=1
    )
    stuck_step_secs: int = setting(
        600,
        "time limit of a step and its batch; a run that exceeds it writes its stacks and exits "
        "with code 86",
        unit="seconds",
        minimum=1,
    )
    stuck_secs: int = setting(
        3600,
        "the same limit for a start (which copies a store from a bucket and counts its examples), "
        "a compilation, save, restore or evaluation",
        unit="seconds",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Choose where metrics go in addition to the workdir; not part of the run's settings."""

    wandb: str = setting(
        "", "Weights & Biases project, in the account that wandb is logged in to; empty for none"
    )


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Choose how a student learns from config.teacher: weights of losses; 0 leaves a loss out.

    The first four are for the objective distillation, the others for relation_distillation.
    Source: Sanh et al. 2019 (DistilBERT); the numbers come from its code. Wang et al. 2021
    (MiniLMv2), section 3.
    """

    temperature: float = setting(2.0, "softmax temperature of student and teacher", above=0)
    soft_weight: float = setting(
        5.0,
        "weight of the divergence from the teacher's predictions of masked tokens, times the "
        "temperature squared",
        minimum=0,
    )
    mlm_weight: float = setting(2.0, "weight of the masked language model's loss", minimum=0)
    cosine_weight: float = setting(
        1.0,
        "weight of 1 - cosine between the last hidden vectors of student and teacher, which must "
        "have equal width",
        minimum=0,
    )
    relation_heads: int = setting(
        48,
        "relation heads that queries, keys and values are split into; must divide the widths of "
        "student and teacher",
        minimum=1,
        maximum=1 << 12,
        source="MiniLMv2: 48 for teachers of Base's size, 64 of Large's",
    )
    teacher_layer: int = setting(
        0,
        "teacher layer whose relations the student's last layer learns, counted from 1; 0 takes "
        "the last",
        minimum=0,
    )
    query_weight: float = setting(1.0, "weight of the divergence of query relations", minimum=0)
    key_weight: float = setting(1.0, "weight of the divergence of key relations", minimum=0)
    value_weight: float = setting(1.0, "weight of the divergence of value relations", minimum=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedConfig:
    """Hold the settings that pre-training and fine-tuning have in common."""

    init: str = setting(
        "",
        "checkpoint to start from: hf:DIR, google:PREFIX or orbax:DIR; pre-training takes its "
        "sizes too, or initializes new weights if empty",
    )
    init_layers: str = setting(
        "",
        "layers to take from the checkpoint in init, in this order, numbered from 0 and joined by "
        "commas; empty takes all",
        source="DistilBERT: 0,2,4,7,9,11 of 12",
    )
    seed: int = setting(
        0, "seed of dropout and of newly initialized weights", minimum=0, maximum=2**32 - 1
    )
    model: ModelConfig = ModelConfig()
    compute: ComputeConfig = ComputeConfig()
    optim: OptimConfig = OptimConfig()
    mesh: MeshConfig = MeshConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    hosts: HostsConfig = HostsConfig()
    log: LogConfig = LogConfig()
    log_every_steps: int = setting(100, "interval between metrics lines", unit="steps", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig(SharedConfig):
    """Hold the settings that the trainer reads, common to Config and FinetuneRun."""

    phases: tuple[Phase, ...] = ()  # one or more
    eval: EvalConfig = EvalConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """Hold the settings of a pre-training run. The sizes of `init`, if set, replace the model's."""

    # The kind of run, the command that takes it, and a bundled file: for messages.
    PURPOSE = "pre-training", "python -m bert_jax.train", "configs/base.py"

    phases: tuple[Phase, ...] = (
        Phase(seq_len=128, steps=900_000),
        Phase(seq_len=512, steps=100_000),
    )
    objective: str = setting(
        "mlm_nsp",
        "training objective: mlm_nsp (masked LM and next sentence), mlm, causal (next token), "
        "permutation (XLNet), rtd (replaced-token detection, ELECTRA), distillation (a teacher's "
        "predictions, DistilBERT), relation_distillation (a teacher's attention relations, "
        "MiniLMv2)",
    )
    rtd_weight: float = setting(
        50.0,
        "weight of the replaced-token detection loss; the generator's loss has weight 1",
        above=0,
        source="ELECTRA: 50",
    )
    rtd_generator_first: bool = setting(
        False,
        "each rtd step updates the generator before the encoder reads the generator's tables, and "
        "clips their gradients separately (DeBERTaV3)",
    )
    data: PretrainOptions = dataclasses.field(default_factory=PretrainOptions)
    init_tile: bool = setting(
        False,
        "keep the sizes in config.model, and repeat the weights of the smaller checkpoint in init "
        "along each dimension to fill them",
        source="ModernBERT: Large begins as a tiled Base",
    )
    teacher: str = setting(
        "",
        "teacher of distillation and relation_distillation: hf:DIR, google:PREFIX or the workdir "
        "of a run; its weights stay fixed and are read again at each start",
    )
    distill: DistillConfig = DistillConfig()
    budget: str = setting(
        "",
        "time or money to spend, for configs/auto.py: 30m, 2h, or dollars on a slice, as "
        "40usd@v5e:2x4; sizes, row lengths, batches and steps are chosen to fit",
    )
