"""Settings that contradict each other, found before anything is opened or compiled."""

import math
import re
from typing import Any

from bert_jax.config import (
    LONGEST_WINDOW_STEPS,
    Config,
    GuardConfig,
    ModelConfig,
    OptimConfig,
    Phase,
)
from bert_jax.run_config import RunConfig
from data_pipeline.schema import SHORTEST_EXAMPLE_TOKENS
from data_pipeline.small_files import DamagedFile

HIDDEN_ACTS = ("gelu_tanh", "gelu_erf")
COMPUTE_DTYPES = ("auto", "float32", "bfloat16")
COMPUTE_CHOICES = {
    "attention": ("auto", "plain", "kernel"),
    "layer_norm_variance": ("auto", "two_pass", "single_pass"),
    "mlm_logits_dtype": ("auto", "float32", "bfloat16"),
    "gelu_backward": ("auto", "recomputed", "saved"),
    "remat": ("none", "layer"),
}
GUARD_ACTIONS = ("skip", "roll_back", "stop")
OPTIMIZERS = ("bert_adamw", "adamw", "lamb")
_WANDB_PROJECT = re.compile(r"[^/\\#?%:]{0,128}")  # as wandb.init refuses them


# Sizes beyond these are damage or a slip: published BERTs stay below a quarter of each. Building a
# model takes time and memory by each of them, so that whatever reads them checks them first.
MOST_SIZES = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 16,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "intermediate_size": 1 << 18,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 12,
}


def check_sizes(model: ModelConfig, name: object) -> None:
    """Raise if no model could be built with the sizes that were read from the file `name`.

    Raises:
      DamagedFile: names the size, its value and what is allowed.
    """
    for key, most in MOST_SIZES.items():
        size, least = getattr(model, key), int(key != "vocab_size")
        if not least <= size <= most:
            raise DamagedFile(
                f"{name} says {key} = {size!r:.40}; it must be from {least} to {most:,}: put back "
                "the file that belongs to these arrays"
            )
    if model.hidden_size % model.num_attention_heads:
        raise DamagedFile(
            f"{name} says num_attention_heads = {model.num_attention_heads}, which does not divide "
            f"hidden_size = {model.hidden_size}; put back the file that belongs to these arrays"
        )


def require(holds: bool, key: str, value: Any, allowed: str) -> None:
    """Raise a ValueError that names a key of the config, its value and what is allowed."""
    if not holds:
        raise ValueError(f"config.{key} is {value!r}; {allowed}")


def check(config: Config) -> None:
    """Raise if settings contradict each other; needs neither devices nor a store.

    Raises:
      ValueError: names the key, its value, what is allowed and a way out.
    """
    config.data.check()
    _check_model(config.model)
    require(len(config.phases) > 0, "phases", config.phases, "a run needs at least one phase")
    for index, phase in enumerate(config.phases):
        _check_phase(phase, f"phases[{index}]", config.model.max_position_embeddings)
        _check_packing(config.data.packed_examples, phase, f"phases[{index}]")
    _check_segments(config)
    check_run(config)
    _check_schedules(config)


def check_run(config: RunConfig) -> None:
    """Raise if settings contradict each other that pre-training and fine-tuning share.

    Raises:
      ValueError: as of check.
    """
    for name, choices in COMPUTE_CHOICES.items():
        value = getattr(config.compute, name)
        require(value in choices, f"compute.{name}", value, f"one of {choices}")
    _check_optim(config.optim)
    for key, value in (
        ("log_every_steps", config.log_every_steps),
        ("eval.every_steps", config.eval.every_steps),
        ("eval.examples", config.eval.examples),
        ("checkpoint.every_steps", config.checkpoint.every_steps),
        ("checkpoint.keep", config.checkpoint.keep),
        ("guard.most_in_a_row", config.guard.most_in_a_row),
        ("hosts.start_secs", config.hosts.start_secs),
        ("hosts.heartbeat_secs", config.hosts.heartbeat_secs),
        ("hosts.stuck_step_secs", config.hosts.stuck_step_secs),
        ("hosts.stuck_secs", config.hosts.stuck_secs),
        ("mesh.model_size", config.mesh.model_size),
        ("mesh.num_slices", config.mesh.num_slices),
    ):
        require(value >= 1, key, value, "it must be 1 or more")
    require(
        config.mesh.gradient_dtype in COMPUTE_DTYPES,
        "mesh.gradient_dtype",
        config.mesh.gradient_dtype,
        f"one of {COMPUTE_DTYPES}",
    )
    require(config.mesh.fsdp_size >= 0, "mesh.fsdp_size", config.mesh.fsdp_size, "0 or more")
    require(
        config.checkpoint.keep_every_steps % config.checkpoint.every_steps == 0,
        "checkpoint.keep_every_steps",
        config.checkpoint.keep_every_steps,
        f"0, or a multiple of checkpoint.every_steps = {config.checkpoint.every_steps}",
    )
    _check_guard(config.guard)
    require(
        _WANDB_PROJECT.fullmatch(config.log.wandb) is not None,
        "log.wandb",
        config.log.wandb,
        "a project's name has 128 characters at most and none of / \\ # ? % :",
    )
    require(0 <= config.seed < 2**32, "seed", config.seed, "it must lie from 0 to 2**32 - 1")


def _check_guard(guard: GuardConfig) -> None:
    require(guard.action in GUARD_ACTIONS, "guard.action", guard.action, f"one of {GUARD_ACTIONS}")
    require(guard.spike_sigmas >= 0.0, "guard.spike_sigmas", guard.spike_sigmas, "0 or more")
    require(
        2 <= guard.window_steps <= LONGEST_WINDOW_STEPS,
        "guard.window_steps",
        guard.window_steps,
        f"it must lie from 2, for a deviation, to {LONGEST_WINDOW_STEPS}",
    )


def _check_model(model: ModelConfig) -> None:
    for name in (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ):
        require(
            getattr(model, name) >= 1, f"model.{name}", getattr(model, name), "it must be 1 or more"
        )
    for name, most in MOST_SIZES.items():
        size = getattr(model, name)
        require(size <= most, f"model.{name}", size, f"it must be {most:,} or less")
    require(model.vocab_size >= 0, "model.vocab_size", model.vocab_size, "0 takes the store's")
    require(
        model.type_vocab_size >= 2,
        "model.type_vocab_size",
        model.type_vocab_size,
        "sentence pairs need 2",
    )
    require(
        model.hidden_size % model.num_attention_heads == 0,
        "model.hidden_size",
        model.hidden_size,
        f"it must be a multiple of num_attention_heads = {model.num_attention_heads}",
    )
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        rate = getattr(model, name)
        require(0.0 <= rate < 1.0, f"model.{name}", rate, "it must be from 0 to below 1")
    require(
        model.hidden_act in HIDDEN_ACTS,
        "model.hidden_act",
        model.hidden_act,
        f"one of {HIDDEN_ACTS}",
    )
    require(
        model.compute_dtype in COMPUTE_DTYPES,
        "model.compute_dtype",
        model.compute_dtype,
        f"one of {COMPUTE_DTYPES}",
    )
    for name in ("initializer_range", "layer_norm_eps"):
        value = getattr(model, name)
        require(value > 0.0, f"model.{name}", value, "it must be above 0")


def _check_phase(phase: Phase, at: str, max_positions: int) -> None:
    require(
        phase.seq_len <= max_positions,
        f"{at}.seq_len",
        phase.seq_len,
        f"the position table ends at config.model.max_position_embeddings = {max_positions}; "
        "shorten the one or enlarge the other",
    )
    require(phase.seq_len >= 8, f"{at}.seq_len", phase.seq_len, "a sentence pair needs 8 or more")
    for name in ("steps", "batch_size", "micro_batches"):
        value = getattr(phase, name)
        require(value >= 1, f"{at}.{name}", value, "it must be 1 or more")
    require(
        phase.batch_size % phase.micro_batches == 0,
        f"{at}.micro_batches",
        phase.micro_batches,
        f"it must divide batch_size = {phase.batch_size}",
    )
    require(
        0 <= phase.max_predictions_per_seq <= phase.seq_len - 3,
        f"{at}.max_predictions_per_seq",
        phase.max_predictions_per_seq,
        f"it must lie from 1 to seq_len - 3 = {phase.seq_len - 3}, or be 0 to follow from "
        "config.data.masked_lm_prob",
    )
    for name in ("restart_learning_rate", "restart_warmup_steps"):
        value = getattr(phase, name)
        require(value >= 0, f"{at}.{name}", value, "it must be 0 or more")
    require(
        phase.restart_learning_rate > 0 or phase.restart_warmup_steps == 0,
        f"{at}.restart_warmup_steps",
        phase.restart_warmup_steps,
        "it needs a restart_learning_rate; without one the phase goes on with the last schedule",
    )


def _check_packing(packed_examples: int, phase: Phase, at: str) -> None:
    most = phase.seq_len // SHORTEST_EXAMPLE_TOKENS
    require(
        packed_examples <= most,
        "data.packed_examples",
        packed_examples,
        f"{at}.seq_len = {phase.seq_len} has room for {most} at most; pack fewer, or 1 for none",
    )


def check_predictions(config: Config) -> None:
    """Raise if the slots of a phase hold fewer masks than the share of tokens that was asked for.

    Of text only: ready-made examples have the masks that they have.

    Raises:
      ValueError: names the phase, its slots and how many are wanted.
    """
    prob = config.data.masked_lm_prob
    for index, phase in enumerate(config.phases):
        wanted = min(math.floor(phase.seq_len * prob), phase.seq_len - 3)
        require(
            phase.max_predictions_per_seq >= wanted,
            f"phases[{index}].max_predictions_per_seq",
            phase.max_predictions_per_seq,
            f"a full row of {phase.seq_len} has {wanted} predictions at config.data.masked_lm_prob "
            f"= {prob}, and the rest would be left out; leave it at 0 to take {wanted} or more, "
            "or lower the share",
        )


def _check_segments(config: Config) -> None:
    if config.objective == "mlm_nsp" and not config.data.has_next_sentences:
        raise ValueError(
            "config.objective is 'mlm_nsp', which learns from pairs, and config.data.segments is "
            f"{config.data.segments!r}, which has none; set config.objective=mlm, or segments to "
            "nsp or sop"
        )


def _check_optim(optim: OptimConfig) -> None:
    require(optim.name in OPTIMIZERS, "optim.name", optim.name, f"one of {OPTIMIZERS}")
    require(optim.learning_rate > 0, "optim.learning_rate", optim.learning_rate, "above 0")
    for name in ("beta1", "beta2"):
        value = getattr(optim, name)
        require(0.0 <= value < 1.0, f"optim.{name}", value, "it must be from 0 to below 1")
    for name in ("epsilon", "decay_power"):
        value = getattr(optim, name)
        require(value > 0.0, f"optim.{name}", value, "it must be above 0")
    for name in (
        "weight_decay",
        "clip_norm",
        "end_learning_rate",
        "warmup_steps",
        "unfreeze_every_steps",
    ):
        value = getattr(optim, name)
        require(value >= 0, f"optim.{name}", value, "it must be 0 or more")
    require(
        0.0 < optim.layer_rate_decay <= 1.0,
        "optim.layer_rate_decay",
        optim.layer_rate_decay,
        "above 0 and at most 1, which leaves all layers the same rate (ULMFiT: 0.385)",
    )


def _check_schedules(config: Config) -> None:
    optim = config.optim
    require(
        config.phases[0].restart_learning_rate == 0,
        "phases[0].restart_learning_rate",
        config.phases[0].restart_learning_rate,
        "the first phase has nothing to restart; set config.optim.learning_rate",
    )
    warm_ups = [("optim.warmup_steps", optim.warmup_steps)]
    lengths = [0]  # steps of the schedule that each warm-up begins
    for index, phase in enumerate(config.phases):
        if phase.restart_learning_rate > 0:
            warm_ups.append((f"phases[{index}].restart_warmup_steps", phase.restart_warmup_steps))
            lengths.append(0)
        lengths[-1] += phase.steps
    for (key, warmup_steps), steps in zip(warm_ups, lengths, strict=True):
        allowed = f"the schedule has only {steps} steps; warm up over fewer"
        require(warmup_steps < steps, key, warmup_steps, allowed)
