"""Declare every setting of a run: help, unit, range, choices, default and source.

Defaults come from the papers. validate checks the ranges and choices, and docs/generate.py makes
the reference page.
"""

import dataclasses

from bert_jax.config.model_schema import COMPUTE_DTYPES, ComputeConfig, ModelConfig
from data_pipeline.spec.fields import setting
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import GOOGLE, TRANSFORMERS

DECAYS = ("polynomial", "constant", "one_minus_sqrt")
CAUSAL = "causal"  # name of the objective that predicts the next token
DISTILLATION = "distillation"  # name of the objective that learns a teacher's predictions
RELATION_DISTILLATION = "relation_distillation"  # objective that learns a teacher's attention
FROM_A_TEACHER = (DISTILLATION, RELATION_DISTILLATION)  # objectives with config.teacher
RTD = "rtd"  # name of the objective that trains a generator with the encoder
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
PARTS = (DISCRIMINATOR, GENERATOR)  # the two models that RTD trains
MASKED = ("mlm_nsp", "mlm", RTD, DISTILLATION)  # objectives that predict masked tokens
BIDIRECTIONAL = ("mlm_nsp", "mlm", RTD, *FROM_A_TEACHER)  # that read both sides of a token
MAX_WINDOW_STEPS = 1024  # limits config.guard.window_steps; every checkpoint keeps the window


@dataclasses.dataclass(frozen=True)
class Phase:
    """Describe a part of a run at one sequence length."""

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
class FinetunePhase(Phase):
    """Describe a part of a fine-tuning with its own number of feed-forward neurons."""

    intermediate_size: int = setting(0, "config.model.intermediate_size of this phase", minimum=0)


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Choose optimizer and schedule. Defaults: optimization.py@eedf5716ce, paper appendix A.2."""

    name: str = setting(
        "bert_adamw",
        "optimizer; bert_adamw is Google BERT's, adamw corrects its bias, stable_adamw also "
        "shrinks the update of a tensor whose gradients grow and divides weight_decay by "
        "learning_rate; muon makes the updates of the layers' kernels orthogonal and leaves the "
        "other parameters to adamw",
        choices=("bert_adamw", "adamw", "stable_adamw", "lamb", "muon"),
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
    decay_steps: int = setting(
        0,
        "last steps of each schedule, over which its rate decays; before them it stays at its "
        "peak; 0 decays from the start or the warm-up on",
        unit="steps",
        minimum=0,
        source="Hägele et al. 2024: 10 to 20% of the run",
    )
    end_learning_rate: float = setting(0.0, "learning rate at the end of the decay", minimum=0)
    decay_counts_warmup: bool = setting(
        True,
        "Google's rule: the decay is measured from step 0, so the rate steps down at the end of "
        "warm-up; False measures it from there",
    )
    beta1: float = setting(0.9, "decay of the mean of gradients", minimum=0, below=1)
    beta2: float = setting(0.999, "decay of the mean of squared gradients", minimum=0, below=1)
    muon_momentum: float = setting(
        0.95, "decay of the mean of gradients of muon's kernels", minimum=0, below=1
    )
    epsilon: float = setting(1e-6, "addition to the root in the update's denominator", above=0)
    weight_decay: float = setting(
        0.01,
        "weight decay of all but biases and layer norms; stable_adamw takes it per step at the "
        "peak rate and does not multiply it by the rate",
        minimum=0,
    )
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
    """Arrange the devices in a mesh; bert_jax/parallel/mesh.py says what each preset shards."""

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
    """Choose when held-out examples, with fixed pairs and masks, are evaluated."""

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
    """Choose when a run is saved. It is also saved at its end and on a stop signal."""

    every_steps: int = setting(1000, "distance of checkpoints", unit="steps", minimum=1)
    keep_every_steps: int = setting(
        0,
        "distance of checkpoints that are saved and kept for good, next to the newest two; 0 keeps "
        "none",
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
    """Choose what to do with a step whose loss or gradient is not finite, or jumps."""

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
    """Limit how long processes wait for each other, and how long their own work may take."""

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
        "longest start (which copies a store from a bucket and counts its examples), compilation, "
        "save, restore or evaluation, likewise",
        unit="seconds",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Choose where metrics go in addition to the workdir; not part of the run's settings."""

    wandb: str = setting(
        "", "project of Weights & Biases, by the account of the wandb package; empty for none"
    )


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Choose how a student learns from config.teacher; a loss with weight 0 is left out.

    The first four settings are for objective distillation, the others for relation_distillation.
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
    """Hold the settings that pre-training and fine-tuning have in common."""

    init: str = setting(
        "",
        "checkpoint that the run begins with: hf:DIR, google:PREFIX or orbax:DIR; pre-training "
        "takes its sizes too, and fresh weights without one",
    )
    init_layers: str = setting(
        "",
        "layers of the checkpoint in init that the run takes, in this order, numbered from 0 and "
        "joined by commas; empty takes all",
        source="DistilBERT: 0,2,4,7,9,11 of 12",
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
    """Hold the settings that the trainer reads, common to Config and FinetuneRun."""

    phases: tuple[Phase, ...] = ()  # at least one
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
        "what is learned: mlm_nsp; mlm alone; causal, the next token from those before it; "
        "permutation, XLNet's; rtd, which tokens a generator has replaced (ELECTRA); distillation, "
        "what a teacher predicts (DistilBERT); relation_distillation, how the tokens of its "
        "attention relate (MiniLMv2)",
    )
    rtd_weight: float = setting(
        50.0,
        "factor of the loss of replaced-token detection; the generator's loss has factor 1",
        minimum=0,
        source="ELECTRA: 50",
    )
    rtd_generator_first: bool = setting(
        False,
        "a step of replaced-token detection updates the generator before the encoder reads its "
        "tables, and clips the gradients of both apart (DeBERTaV3)",
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
    budget: str = setting(
        "",
        "what a training may take, for configs/auto.py: 30m, 2h, or dollars on a slice as "
        "40usd@v5e:2x4; the size, rows, batch and steps are chosen to fit",
    )


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Choose a task, its files, and how its examples become rows of tokens.

    Columns are for the user's own table. From doc_stride to has_unanswerable settings are for
    SQuAD; source: run_squad.py@eedf5716ce.
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


@dataclasses.dataclass(frozen=True)
class PruneConfig:
    """Choose how a fine-tuning removes the least important neurons, equally many in every layer.

    Equally spaced rounds remove about the same number each; the steps after the last round train
    the remaining neurons. init_layers removes layers, at the start.
    """

    intermediate_size: int = setting(
        0,
        "neurons that each feed-forward part has at the end; 0 removes none",
        minimum=0,
        maximum=1 << 20,
    )
    rounds: int = setting(4, "times that neurons are removed", minimum=1, maximum=1000)
    share: float = setting(
        0.5, "share of the steps after which the last are removed", above=0, below=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(SharedConfig):
    """Hold the settings of a fine-tuning run.

    Of `model`, only hidden_dropout_prob, attention_probs_dropout_prob and bilstm_units are read,
    and pooler_type and classifier_pooling if changed; the checkpoint decides all else.
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
    causal_weight: float = setting(
        0.0,
        "factor of the loss of next tokens, by which a left-to-right model goes on learning the "
        "language of the task's texts; 0 leaves it out",
        minimum=0,
        source="GPT: 0.5",
    )
    warmup_share: float = setting(0.1, "share of the steps that warm up", minimum=0, below=1)
    prune: PruneConfig = PruneConfig()
    optim: OptimConfig = OptimConfig(learning_rate=5e-5, warmup_steps=0)
    log_every_steps: int = setting(50, "distance of lines of metrics", unit="steps", minimum=1)
    from_scratch: bool = setting(
        False,
        "initialize all weights: of `init` only sizes and vocabulary are read; what pre-training "
        "is compared with",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRun(FinetuneConfig, RunConfig):
    """Hold a fine-tuning run's settings, completed from the checkpoint and the examples.

    They determine model, phases, eval.every_steps and optim.warmup_steps.
    """


_LENGTHS = {"squad": 384}  # run_squad.py@eedf5716ce
_LENGTH = 128  # paper, appendix A.3 and run_classifier.py@eedf5716ce


def with_length(options: TaskOptions, positions: int) -> TaskOptions:
    """Set max_seq_length, if unset, from the task and the checkpoint's number of positions."""
    if options.max_seq_length != 0:
        return options
    usual = _LENGTHS.get(options.task, _LENGTH)
    return dataclasses.replace(options, max_seq_length=min(usual, positions))
