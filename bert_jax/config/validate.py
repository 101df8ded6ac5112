"""Check settings, alone and in combination, before anything is opened or compiled.

Ranges and choices are metadata of the fields in schema; this module has rules about several fields.
"""

import itertools
import math
import re
from collections.abc import Iterator

from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.config.model_rules import (
    Rule,
    apply,
    list_architecture_rules,
    list_width_rules,
    require_defaults,
)
from bert_jax.config.model_schema import OF_A_GENERATOR, THETAS, ModelConfig
from bert_jax.config.phases import data_in_phase, list_init_layers, list_objectives
from bert_jax.config.schema import (
    BIDIRECTIONAL,
    CAUSAL,
    DISTILLATION,
    FROM_A_TEACHER,
    MASKED,
    RELATION_DISTILLATION,
    RTD,
    Config,
    Phase,
    SharedConfig,
)
from data_pipeline.io import Refused
from data_pipeline.spec.fields import check_fields
from data_pipeline.spec.options import parse_store_weights
from data_pipeline.spec.schema import MIN_EXAMPLE_TOKENS

MAX_STABLE_DECAY = 0.005  # share per step; 200 steps shrink weights to 0.37
_WANDB_PROJECT = re.compile(r"[^/\\#?%:]{0,128}")  # names that wandb.init accepts


def check(config: Config) -> None:
    """Raise Refused if a setting is out of range or settings contradict each other.

    The error names the key, its value, what is allowed and how to fix it. Needs neither devices nor
    a store.
    """
    apply(config, _list_pretraining_rules(config))


def _list_pretraining_rules(config: Config) -> Iterator[Rule]:
    yield from _list_shared_rules(config)
    config.data.check()
    if not config.phases:
        raise Refused("config.phases is (); a run needs at least one phase")
    for index in range(len(config.phases)):
        yield from _list_phase_rules(config, index)
    yield (
        "budget",
        not config.budget,
        "only bert_jax.train chooses a run by budget, and writes its config to the workdir: leave "
        "it empty, or give that file as --config",
    )
    yield (
        "model.type_vocab_size",
        not config.data.has_next_sentences
        or config.model.type_vocab_size >= 2
        or config.model.position_embedding_type == "relative",
        f"config.data.segments = {config.data.segments!r} makes pairs, which need 2 segments",
    )
    yield (
        "init_tile",
        not config.init_tile or bool(config.init and not config.init_layers),
        "it repeats the weights of a checkpoint, in all its layers: set config.init, and leave "
        "config.init_layers empty",
    )
    yield (
        "model.bilstm_units",
        config.model.bilstm_units == 0,
        "only fine-tuning adds LSTMs, on top of a trained encoder: leave it at 0",
    )
    yield from _list_objective_rules(config)
    yield from _list_replaced_token_rules(config)
    yield from _list_teacher_rules(config)
    yield from _list_schedule_rules(config)
    yield from _list_transfer_rules(config)


def check_finetune(config: FinetuneConfig) -> None:
    """Raise Refused if a setting of fine-tuning is out of range or contradicts another one."""
    apply(config, _list_finetuning_rules(config))


def _list_finetuning_rules(config: FinetuneConfig) -> Iterator[Rule]:
    begin = (
        "give the checkpoint to start from: hf:DIR, google:PREFIX or orbax:DIR, the workdir of a "
        "pre-training run"
    )
    yield "init", bool(config.init), begin
    yield from _list_shared_rules(config)
    divides = config.batch_size % config.micro_batches == 0
    yield "micro_batches", divides, f"it must divide batch_size = {config.batch_size}"
    length = config.data.max_seq_length
    yield (
        "data.max_seq_length",
        length == 0 or length >= 8,
        "a pair of texts needs 8 or more; 0 takes 128, or the checkpoint's positions if fewer",
    )
    data = config.data
    has_windows = data.task == "table" and not (data.second_text_column or data.train_examples)
    yield (
        "data.window_stride",
        has_windows or data.window_stride == 0,
        "windows slide over all single texts of a table: set config.data.task=table and leave out "
        "second_text_column and train_examples, or leave this at 0",
    )
    if config.prune.intermediate_size == 0:
        unused = "nothing is removed: set config.prune.intermediate_size, or leave this out"
        yield from require_defaults("prune", config.prune, ("rounds", "share"), unused)
    follows = "it follows from config.warmup_share: leave it at 0"
    for name in ("warmup_steps", "warmup_tokens"):
        yield f"optim.{name}", getattr(config.optim, name) == 0, follows
    no_generator = "fine-tuning trains no generator: leave it out"
    yield from require_defaults("model", config.model, OF_A_GENERATOR, no_generator)
    kept = "only pre-training transfers rates, as it starts from new weights: set it to none"
    yield "optim.transfer", config.optim.transfer == "none", kept
    yield (
        "model.pooler_type",
        config.model.bilstm_units == 0 or config.model.pooler_type == ModelConfig.pooler_type,
        f"config.model.bilstm_units = {config.model.bilstm_units} takes its place: leave one out",
    )


def _list_shared_rules(config: SharedConfig) -> Iterator[Rule]:
    check_fields(config, "config")
    for key, holds, allowed in list_width_rules(config.model):
        yield f"model.{key}", holds, allowed
    yield (
        "init_layers",
        not list_init_layers(config) or bool(config.init),
        "these are layers of a checkpoint, and config.init is empty: set it, or leave this empty",
    )
    yield (
        "optim.weight_decay",
        config.optim.name != "stable_adamw" or config.optim.weight_decay < MAX_STABLE_DECAY,
        "each step of stable_adamw at the peak rate shrinks the weights by this share: it must be "
        f"below {MAX_STABLE_DECAY}; adamw's 0.01 at a rate of 1e-4 is 1e-6 here",
    )
    peak = config.optim.learning_rate
    allowed = f"the rate decays to it from config.optim.learning_rate = {peak:g}: give that or less"
    yield "optim.end_learning_rate", config.optim.end_learning_rate <= peak, allowed
    phases: tuple[Phase, ...] = getattr(config, "phases", ())
    decays = {config.optim.decay, *(phase.restart_decay for phase in phases)} - {"constant", ""}
    allowed = "every decay is 'constant': set config.optim.decay=one_minus_sqrt, or leave this at 0"
    yield "optim.decay_steps", config.optim.decay_steps == 0 or bool(decays), allowed
    yield from list_architecture_rules(config)
    yield from _list_mesh_rules(config)
    is_name = _WANDB_PROJECT.fullmatch(config.log.wandb) is not None
    allowed = "a project's name has at most 128 characters and none of / \\ # ? % :"
    yield "log.wandb", is_name, allowed


def _list_mesh_rules(config: SharedConfig) -> Iterator[Rule]:
    """Allow the size of an axis only where the preset has the axis; mesh.py checks the preset."""
    parts = config.mesh.preset.split("+")
    for key, part in (("fsdp_size", "fsdp"), ("model_size", "tp")):
        if part not in parts:
            allowed = (
                f"config.mesh.preset = {config.mesh.preset!r} has no such axis: leave it out, or "
                f"take a preset with {part}, such as {part} or fsdp+tp"
            )
            yield from require_defaults("mesh", config.mesh, (key,), allowed)


def _list_phase_rules(config: Config, index: int) -> Iterator[Rule]:
    phase, key = config.phases[index], f"phases[{index}]"
    positions = config.model.max_position_embeddings
    yield (
        f"{key}.seq_len",
        phase.seq_len <= positions,
        f"config.model.max_position_embeddings is {positions}; shorten the rows or raise it",
    )
    divides = phase.batch_size % phase.micro_batches == 0
    yield f"{key}.micro_batches", divides, f"it must divide batch_size = {phase.batch_size}"
    yield (
        f"{key}.max_predictions_per_seq",
        phase.max_predictions_per_seq <= phase.seq_len - 3,
        f"it must be from 1 to seq_len - 3 = {phase.seq_len - 3}, or 0 to follow from the masking "
        "rate",
    )
    if (kind := config.model.position_embedding_type) != "rotary":
        none = f"config.model.position_embedding_type = {kind!r} has none: leave it at 0"
        yield from require_defaults(key, phase, THETAS, none)
    for name in THETAS:
        is_base = not 0 < getattr(phase, name) <= 1
        yield f"{key}.{name}", is_base, "it must be above 1, or 0 for the model's"
    yield (
        f"{key}.store_weights",
        not (phase.store_weights and phase.store_temperature),
        f"config.{key}.store_temperature is {phase.store_temperature}, which is for shares by "
        "tokens: leave one out",
    )
    if phase.store_weights and config.data.stores:
        parse_store_weights(
            phase.store_weights, len(config.data.stores), f"config.{key}.store_weights"
        )
    if phase.restart_learning_rate == 0:
        names = ("restart_warmup_steps", "restart_decay", "restart_end_learning_rate")
        kept = "it needs a restart_learning_rate; without one the last schedule continues"
        yield from require_defaults(key, phase, names, kept)
    else:
        end = phase.restart_end_learning_rate or config.optim.end_learning_rate
        allowed = f"its schedule ends at {end:g}: raise it, or lower restart_end_learning_rate"
        yield f"{key}.restart_learning_rate", end <= phase.restart_learning_rate, allowed
    most = phase.seq_len // MIN_EXAMPLE_TOKENS
    yield (
        "data.packed_examples",
        config.data.packed_examples <= most,
        f"{key}.seq_len = {phase.seq_len} has room for {most} at most; pack fewer, or 1 for none",
    )


def check_masks(config: Config, is_text: bool) -> None:
    """Raise Refused if masking rates or prediction slots do not fit the kind of store.

    Text needs enough slots in each phase for its rate; ready-made examples have fixed masks.
    """
    apply(config, _list_mask_rules(config, is_text))


def _list_mask_rules(config: Config, is_text: bool) -> Iterator[Rule]:
    rates = {f"phases[{i}]": phase.masked_lm_prob for i, phase in enumerate(config.phases)}
    for owner, rate in (rates | {"eval": config.eval.masked_lm_prob}).items():
        fixed = "the store holds ready-made examples, whose masks are fixed: leave it at 0"
        yield f"{owner}.masked_lm_prob", is_text or rate == 0, fixed
    for index, phase in enumerate(config.phases if is_text else ()):
        owner = f"phases[{index}]" if phase.masked_lm_prob else "data"
        prob = data_in_phase(config, index).masked_lm_prob
        wanted = min(math.floor(phase.seq_len * prob), phase.seq_len - 3)
        yield (
            f"phases[{index}].max_predictions_per_seq",
            phase.max_predictions_per_seq >= wanted,
            f"a full row of {phase.seq_len} has {wanted} predictions at "
            f"config.{owner}.masked_lm_prob = {prob}, and the rest would be dropped; set it to 0 "
            f"for {wanted} or more, or lower the share",
        )


def _find_objective_key(config: Config, index: int) -> str:
    return f"phases[{index}].objective" if config.phases[index].objective else "objective"


def _list_objective_rules(config: Config) -> Iterator[Rule]:
    """Allow next sentences only on pairs, and masked words only where both sides are read."""
    names, segments, model = list_objectives(config), config.data.segments, config.model
    yield (
        "data.masked_lm_smoothing",
        config.data.masked_lm_smoothing == 0 or not set(names).isdisjoint(MASKED),
        f"config.objective = {config.objective!r} and config.phases predict no masked tokens: "
        "leave it at 0",
    )
    for index, name in enumerate(names):
        key = _find_objective_key(config, index)
        yield (
            key,
            name != "mlm_nsp" or config.data.has_next_sentences,
            f"it learns from pairs, and config.data.segments = {segments!r} has none: take mlm, "
            "or set segments to nsp or sop",
        )
        positions = model.position_embedding_type
        yield (
            key,
            (positions == "relative") == (name == "permutation"),
            f"config.model.position_embedding_type is {positions!r}, and permutation and relative "
            "positions need each other: change one",
        )
        if name not in BIDIRECTIONAL:
            continue
        yield (
            key,
            not model.is_causal and names[-1] != CAUSAL,
            f"it needs both sides of a token, but config.model.is_causal is {model.is_causal} and "
            f"the last phase learns {names[-1]}: leave is_causal False and put the causal phases "
            "first, or learn causal in every phase",
        )


def _list_teacher_rules(config: Config) -> Iterator[Rule]:
    """Require a teacher if and only if a phase learns from one, and a loss of weight above 0."""
    names = list_objectives(config)
    if chosen := [name for name in FROM_A_TEACHER if name in names]:
        allowed = (
            f"the objective {' and '.join(chosen)} learns from a teacher: give its checkpoint, as "
            "hf:DIR or the workdir of a run"
        )
    else:
        allowed = (
            "no phase learns from a teacher: set config.objective to "
            f"{' or '.join(FROM_A_TEACHER)}, or leave it empty"
        )
    yield "teacher", bool(chosen) == bool(config.teacher), allowed
    for name, fields, losses in (
        (DISTILLATION, ("temperature",), ("soft_weight", "mlm_weight", "cosine_weight")),
        (
            RELATION_DISTILLATION,
            ("relation_heads", "teacher_layer"),
            ("query_weight", "key_weight", "value_weight"),
        ),
    ):
        first, *others = losses
        yield (
            f"distill.{first}",
            any(getattr(config.distill, field) for field in losses),
            f"and so are {others}; one of them must be above 0",
        )
        if name not in names:
            belongs = f"it belongs to the objective {name}, which no phase learns: leave it out"
            yield from require_defaults("distill", config.distill, (*fields, *losses), belongs)
    if RELATION_DISTILLATION in names and not config.init:  # else the width is the checkpoint's
        yield (
            "distill.relation_heads",
            config.model.hidden_size % config.distill.relation_heads == 0,
            f"it must divide config.model.hidden_size = {config.model.hidden_size} and the width "
            "of the teacher",
        )


def _list_replaced_token_rules(config: Config) -> Iterator[Rule]:
    """Allow a generator and the objective that trains it only together."""
    names, model = list_objectives(config), config.model
    if RTD not in names:
        allowed = "no phase trains a generator: set config.objective=rtd, or leave it false"
        yield "rtd_generator_first", not config.rtd_generator_first, allowed
        other = f", and start from another checkpoint than {config.init}" if config.init else ""
        belongs = (
            f"it belongs to a generator, which only config.objective={RTD} trains: set that, or "
            f"leave it out{other}"
        )
        yield from require_defaults("model", model, OF_A_GENERATOR, belongs)
        return
    index = names.index(RTD)
    key = _find_objective_key(config, index)
    yield (
        key,
        set(names) == {RTD},
        f"it trains a generator too, and other phases learn {sorted({*names} - {RTD})}, which have "
        "none: learn rtd in all phases, or in none",
    )
    yield (
        key,
        model.generator_hidden_size > 0,
        "it needs a generator, and config.model.generator_hidden_size is 0; set that to a quarter "
        f"of config.model.hidden_size = {model.hidden_size} or so",
    )
    yield from _list_deberta_rules(config)
    yield (
        key,
        not config.data.has_next_sentences,
        f"it has no pairs, which config.data.segments = {config.data.segments!r} makes; set "
        "segments to full_sentences or doc_sentences",
    )
    allowed = (
        f"config.{key}={RTD} trains a generator too, whose layers do not match the encoder's: "
        "leave it out"
    )
    yield "init_layers", not config.init_layers, allowed
    yield "init_tile", not config.init_tile, allowed
    by_layer = ("layer_rate_decay", "unfreeze_every_steps")
    later = f"{allowed}, and set it in fine-tuning"
    yield from require_defaults("optim", config.optim, by_layer, later)


def _list_deberta_rules(config: Config) -> Iterator[Rule]:
    """Allow DeBERTa-v3's order of updates and its generator's decoder where they are defined."""
    model = config.model
    yield (
        "rtd_generator_first",
        not config.rtd_generator_first or model.generator_embeddings == "gdes",
        "both models train the shared tables: set config.model.generator_embeddings=gdes, or "
        "leave it false",
    )
    fits = model.norm_position == "post" and not model.position_biased_input
    yield (
        "model.enhanced_mask_decoder",
        fits or not model.enhanced_mask_decoder,
        "it adds positions to normalized vectors, so config.model.norm_position must be 'post' and "
        "config.model.position_biased_input False: change those, or leave it false",
    )


def _list_schedule_rules(config: Config) -> Iterator[Rule]:
    yield (
        "phases[0].restart_learning_rate",
        config.phases[0].restart_learning_rate == 0,
        "the first phase has nothing to restart; set config.optim.learning_rate",
    )
    warmup_tokens = config.optim.warmup_tokens
    warm_ups = [("optim.warmup_steps", 0 if warmup_tokens else config.optim.warmup_steps)]
    lengths = [0]  # steps of the schedule that each warm-up begins
    for index, phase in enumerate(config.phases):
        if phase.restart_learning_rate > 0:
            warm_ups.append((f"phases[{index}].restart_warmup_steps", phase.restart_warmup_steps))
            lengths.append(0)
        lengths[-1] += phase.steps
    for (key, warmup_steps), steps in zip(warm_ups, lengths, strict=True):
        allowed = f"the schedule has only {steps} steps; warm up over fewer"
        yield key, warmup_steps < steps, allowed
        counted = "config.optim.warmup_tokens counts the schedule in tokens: leave it at 0"
        yield key, warmup_steps == 0 or warmup_tokens == 0, counted
    first = itertools.takewhile(lambda phase: phase.restart_learning_rate == 0, config.phases)
    tokens = sum(phase.steps * phase.batch_size * phase.seq_len for phase in first)
    allowed = f"the schedule has only {tokens:,} tokens; warm up over fewer"
    yield "optim.warmup_tokens", warmup_tokens < tokens, allowed


def _list_transfer_rules(config: Config) -> Iterator[Rule]:
    """Allow muP only with a base width, and for models whose scales are known."""
    optim, model = config.optim, config.model
    if optim.transfer == "none":
        widths = ("transfer_base_width", "transfer_base_head_width")
        yield from require_defaults(
            "optim", optim, widths, "config.optim.transfer is 'none': leave it at 0"
        )
        return
    named = "config.optim.transfer scales from a width: give the width with the known rate"
    yield "optim.transfer_base_width", optim.transfer_base_width > 0, named
    has = "config.optim.transfer = 'mup' "
    is_adam = optim.name not in ("lamb", "muon")
    none = "or set config.optim.transfer=none, which scales no rates"
    adam = f"{has}is for Adam: take adamw, bert_adamw or stable_adamw, {none}"
    yield "optim.name", is_adam, adam
    new = f"{has}scales new weights, not a checkpoint's: leave it empty"
    yield "init", not config.init, new
    has_width = model.embedding_width == model.hidden_size
    table = f"{has}has no rule for a narrower table: set it to 0, {none}"
    yield "model.embedding_size", has_width, table
    is_other = model.position_embedding_type != "relative"
    other = f"{has}has no rule for its attention's projections: take another one, {none}"
    yield "model.position_embedding_type", is_other, other
    names = ("mlm_transform", "embedding_projection", "share_layers", "generator_hidden_size")
    default = f"{has}has a rule for the default alone: leave it out, {none}"
    yield from require_defaults("model", model, names, default)
