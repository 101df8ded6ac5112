"""Every setting of a training run: unit, default and source. Defaults are the paper's BERT-Base."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections

from data_pipeline.options import PretrainOptions


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Size and shape of the encoder. Names are those of Google's bert_config.json."""

    vocab_size: int = 0  # word pieces; 0: as many as the store's vocabulary has
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu_tanh"  # Google's BERT; "gelu_erf" is Hugging Face's "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02  # standard deviation of the truncated normal
    layer_norm_eps: float = 1e-12
    compute_dtype: str = "auto"  # of matmuls; auto: bfloat16 on accelerators, float32 on CPU


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How the step computes the same loss: for its time, its memory and its rounding.

    None of it changes what is learned, so a run may go on with other choices. "auto" of the three
    that round is the exact choice where matmuls are in float32, the cheap one where they are in
    bfloat16, whose own rounding is coarser (docs/decisions/0018).
    """

    attention: str = "auto"  # the TPU kernel where it takes the shapes, else plain; or plain,
    #                          or kernel: refused where it does not take them
    layer_norm_variance: str = "auto"  # or two_pass, mean((x - m)^2); single_pass, mean(x^2) - m^2
    mlm_logits_dtype: str = "auto"  # as they are kept for the backward; or float32, bfloat16
    gelu_backward: str = "auto"  # or recomputed from the input; saved: dy/dx kept from the forward
    remat: str = "none"  # or layer: the backward computes each layer again, for memory
    rolled_layers: bool = False  # one compiled layer in a loop: compiles sooner, runs slower


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training at one sequence length; a run is a tuple of them."""

    seq_len: int
    steps: int
    batch_size: int = 256  # rows an optimiser step, over all devices; one sequence each, or up to
    #                        config.data.packed_examples; in fine-tuning as step_packing lays them
    max_predictions_per_seq: int = 0  # of each sequence; 0: data.masked_lm_prob of seq_len, rounded
    #                                   up: 20 of 128 and 77 of 512, as Google's README advises
    micro_batches: int = 1  # a step's batch is computed in so many parts, gradients added up
    restart_learning_rate: float = 0.0  # peak of a schedule begun anew here; 0: go on with the last
    restart_warmup_steps: int = 0  # warm-up of that schedule


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    """Optimiser and schedule. Defaults: optimization.py@eedf5716ce and paper appendix A.2."""

    name: str = "bert_adamw"  # or adamw (bias-corrected), lamb
    learning_rate: float = 1e-4  # peak of the schedule that begins at step 0
    warmup_steps: int = 10_000
    decay_power: float = 1.0  # of (1 - step / steps): 1 is linear, 0.5 NVIDIA's LAMB
    end_learning_rate: float = 0.0
    decay_counts_warmup: bool = True  # Google's rule: decay is measured from step 0, so the rate
    #                                   steps down at the end of warm-up; False: from there on
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01  # not on biases and layer norms
    clip_norm: float = 1.0  # of the global gradient; 0: no clipping
    layer_rate_decay: float = 1.0  # each layer's rate is that of the one above times this, heads
    #                                at the top, embeddings below; ULMFiT: 1 / 2.6 = 0.385
    unfreeze_every_steps: int = 0  # heads are trained alone for so many steps, then with one layer
    #                                more every so many; 0: all from the start. See layer_rates.py


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """How the devices are arranged; see bert_jax/mesh.py for what each preset shards."""

    preset: str = "zero1"  # or dp, fsdp, tp, or several joined by +
    fsdp_size: int = 0  # devices on the fsdp axis where the preset has it; 0: all that are left
    model_size: int = 2  # devices on the model axis where the preset has tp
    num_slices: int = 1  # TPU slices that the data-centre network joins: the data axis spans them,
    #                      the other axes lie inside a slice
    gradient_dtype: str = "auto"  # in which gradients of kernels and tables are added up over
    #                               devices; auto: of the matmuls. Others are added in float32


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation on fixed pairs and masks."""

    every_steps: int = 10_000
    examples: int = 4096  # at most; fewer where the held-out split has fewer pairs


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the run is saved. It is also saved at its end and on Ctrl-C or SIGTERM."""

    every_steps: int = 1000
    keep: int = 3  # newest checkpoints kept
    keep_every_steps: int = 0  # those of every such step are kept for good; 0: none
    fresh: bool = False  # where no checkpoint can be restored: set the old records aside and start
    #                      at step 0, instead of refusing; no part of what a run is


LONGEST_WINDOW_STEPS = 1024  # of config.guard.window_steps: so much every checkpoint keeps


@dataclasses.dataclass(frozen=True)
class GuardConfig:
    """What becomes of a step whose loss or gradient is not finite, or leaps."""

    action: str = "skip"  # leave the weights as they were and go on; or roll_back to the newest
    #                       checkpoint and leave out the batches up to there; or stop
    spike_sigmas: float = 0.0  # a loss or gradient norm so many standard deviations above the mean
    #                            of the window is bad too; 0: only what is not finite
    window_steps: int = 128  # good steps that mean and deviation are taken over
    most_in_a_row: int = 10  # bad steps, or rolls back without a new checkpoint; then the run stops


@dataclasses.dataclass(frozen=True)
class HostsConfig:
    """How long the processes of a run wait, for each other and for themselves."""

    start_secs: int = 300  # until all processes have answered the roll-call
    heartbeat_secs: int = 60  # a process not heard of for so long is taken for dead
    stuck_step_secs: int = 600  # one step, its batch included; then stacks are written, exit 86
    stuck_secs: int = 3600  # a compile, a save, a restore or an evaluation, likewise


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Where the numbers of a run go beside its workdir; no part of what a run is."""

    wandb: str = ""  # project of Weights & Biases, by the account of the wandb package; "": none


@dataclasses.dataclass(frozen=True)
class Config:
    """A training run."""

    phases: tuple[Phase, ...] = (
        Phase(seq_len=128, steps=900_000),
        Phase(seq_len=512, steps=100_000),
    )
    seed: int = 0  # of the initial weights and of dropout
    init: str = ""  # a checkpoint to begin with, as bert_jax/pretrained.py reads it: its sizes are
    #                 taken too; "": fresh weights
    objective: str = "mlm_nsp"  # or mlm: no next-sentence term; see objectives.py
    model: ModelConfig = ModelConfig()
    compute: ComputeConfig = ComputeConfig()
    data: PretrainOptions = dataclasses.field(default_factory=PretrainOptions)
    optim: OptimConfig = OptimConfig()
    mesh: MeshConfig = MeshConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guard: GuardConfig = GuardConfig()
    hosts: HostsConfig = HostsConfig()
    log: LogConfig = LogConfig()
    log_every_steps: int = 100


Kind = typing.TypeVar("Kind")


class Phased(typing.Protocol):
    """Settings of a run that has phases."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Stretches of training, one after another."""


def to_config_dict(config: Any) -> ml_collections.ConfigDict:
    """Show a config dataclass as a locked ConfigDict, whose fields flags can override."""
    shown = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, tuple):
            value = tuple(to_config_dict(part) for part in value)
        elif dataclasses.is_dataclass(value):
            value = to_config_dict(value)
        shown[field.name] = value
    return ml_collections.ConfigDict(shown).lock()


def from_config_dict(shown: ml_collections.ConfigDict) -> Config:
    """Turn a ConfigDict back into a Config.

    Raises:
      ValueError: a field is unknown, of another type, or not a finite number.
    """
    return settings_from(Config, shown)


def settings_from(kind: type[Kind], shown: ml_collections.ConfigDict) -> Kind:
    """Turn a ConfigDict back into the dataclass of settings that it shows.

    Raises:
      ValueError: a field is unknown, of another type, or not a finite number.
    """
    return typing.cast(Kind, _dataclass_from(kind, shown, "config"))


def _dataclass_from(kind: Any, shown: Any, path: str) -> Any:
    if not isinstance(shown, ml_collections.ConfigDict):
        raise ValueError(
            f"{path} is {shown!r}; it has fields, of which one can be set: {path}.NAME"
        )
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(shown.keys()) - hints.keys())
    if unknown:
        raise ValueError(f"{path} has no field {unknown[0]}; its fields are {sorted(hints)}")
    values = {}
    for name in shown:
        hint, value, at = hints[name], shown[name], f"{path}.{name}"
        if isinstance(hint, types.GenericAlias):
            if not isinstance(value, tuple):
                raise ValueError(f"{at} is {value!r}; set a field of one of it: {at}[0].NAME=VALUE")
            part = typing.get_args(hint)[0]
            values[name] = tuple(
                _dataclass_from(part, item, f"{at}[{i}]") for i, item in enumerate(value)
            )
        elif dataclasses.is_dataclass(hint):
            values[name] = _dataclass_from(hint, value, at)
        else:
            values[name] = _plain(hint, value, at)
    return kind(**values)


def _plain(hint: Any, value: Any, at: str) -> Any:
    if hint is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise ValueError(f"{at} is {value}; it must be a finite number")
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{at} is {value!r}; it must be of type {hint.__name__}")
    return value


def arguments(text: str, **defaults: str) -> dict[str, str]:
    """Read what follows the colon of --config=FILE:NAME=VALUE,...; defaults name what is known.

    Raises:
      ValueError: a name is unknown.
    """
    parts = [part for part in text.split(",") if part]
    for part in parts:
        if "=" not in part:
            raise ValueError(
                f"--config=...:{text}: {part!r} is not NAME=VALUE; this config takes "
                f"{sorted(defaults)}"
            )
    given = dict(part.partition("=")[::2] for part in parts)
    for name in given:
        if name not in defaults:
            raise ValueError(
                f"--config=...:{text} sets {name!r}; this config takes {sorted(defaults)}"
            )
    return defaults | given


def recorded(config: Any) -> dict[str, Any]:
    """Return a config as the records of a run keep it: without what holds for one start alone."""
    shown = dataclasses.asdict(config)
    shown["checkpoint"].pop("fresh")
    shown.pop("log")
    return shown


def predictions_for(seq_len: int, masked_lm_prob: float) -> int:
    """Return the slots for predictions that a full row of so many tokens needs.

    A row of l tokens has max(1, round(l * masked_lm_prob)) of them: rounded up, all have room.
    """
    wanted = math.ceil(seq_len * masked_lm_prob - 1e-9)  # 0.15 * 140 may be 21.000000000000004
    return max(1, min(wanted, seq_len - 3))


def with_predictions(
    config: Config, slots_of_lengths: Mapping[int, int] = types.MappingProxyType({})
) -> Config:
    """Fill in max_predictions_per_seq where a phase leaves it to the masking rate.

    slots_of_lengths says it of ready-made examples, by the tokens of their rows.
    """

    def filled(phase: Phase) -> Phase:
        if phase.max_predictions_per_seq != 0:
            return phase
        derived = predictions_for(phase.seq_len, config.data.masked_lm_prob)
        slots = slots_of_lengths.get(phase.seq_len, derived)
        return dataclasses.replace(phase, max_predictions_per_seq=slots)

    return dataclasses.replace(config, phases=tuple(map(filled, config.phases)))


def total_steps(config: Phased) -> int:
    """Optimiser steps of all phases."""
    return sum(phase.steps for phase in config.phases)


def phase_start(config: Phased, index: int) -> int:
    """First step of a phase, counted from the start of the run."""
    return sum(phase.steps for phase in config.phases[:index])


def phase_of_step(config: Phased, step: int) -> int:
    """The phase of a step's number, counted from 1 as in the records, over all phases."""
    return sum(step > phase_start(config, index) for index in range(len(config.phases))) - 1


def first_row(config: Config, index: int) -> int:
    """Where a phase begins in the stream of rows of its length: after earlier phases of it."""
    return sum(
        phase.steps * phase.batch_size
        for phase in config.phases[:index]
        if phase.seq_len == config.phases[index].seq_len
    )


def with_vocab_size(config: Config, vocab_size: int) -> Config:
    """Take the vocabulary's size from the store, or check the one that the config gives.

    Raises:
      ValueError: the config's size is another than the store's.
    """
    stated = config.model.vocab_size
    if stated not in (0, vocab_size):
        raise ValueError(
            f"config.model.vocab_size is {stated}, the store's vocabulary has {vocab_size} pieces; "
            "leave it 0 to take the store's, or point config.data.store at the right store"
        )
    return dataclasses.replace(
        config, model=dataclasses.replace(config.model, vocab_size=vocab_size)
    )
