"""Check a model's settings, alone and in combination; `validate` has the rules of whole runs."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.config.config_dict import flatten
from bert_jax.config.model_schema import DISENTANGLED, THETAS, ModelConfig
from bert_jax.config.schema import SharedConfig
from data_pipeline.io import Refused
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.spec.fields import get_setting

Rule = tuple[str, bool, str]  # the key of a setting, whether the setting is right, what is allowed


def apply(config: SharedConfig, rules: Iterator[Rule]) -> None:
    """Raise a Refused that names key, value and what is allowed, for the first rule that fails."""
    for key, holds, allowed in rules:
        if not holds:
            raise Refused(f"config.{key} is {flatten(config)[key]!r}; {allowed}")


def require_defaults(group: str, part: Any, names: Iterable[str], allowed: str) -> Iterator[Rule]:
    """Allow only the defaults of some settings in a group or a phase."""
    for name in names:
        yield f"{group}.{name}", getattr(part, name) == getattr(type(part), name), allowed


def check_sizes(model: ModelConfig, name: object) -> None:
    """Raise DamagedFile if the file `name` gives a model a setting that no config allows.

    Checked before building, which would take time and memory in proportion to each size.
    """
    for key, holds, allowed in _list_size_rules(model):
        if not holds:
            raise DamagedFile(
                f"{name} has {key} = {getattr(model, key)!r:.40}; {allowed}: put back the file "
                "that belongs to these arrays"
            )


def _list_size_rules(model: ModelConfig) -> Iterator[Rule]:
    for field in dataclasses.fields(model):
        if known := get_setting(field):
            holds = known.allows(getattr(model, field.name))
            yield field.name, holds, f"it must be {known.allowed()}"
    yield from list_width_rules(model)


def list_width_rules(model: ModelConfig) -> Iterator[Rule]:
    """List two rules: heads divide the width, and paired positions need an even width."""
    heads, width, kind = model.num_attention_heads, model.hidden_size, model.position_embedding_type
    yield (
        "hidden_size",
        width % heads == 0,
        f"it must be a multiple of num_attention_heads = {heads}",
    )
    paired = {"rotary": width // heads, "relative": width}.get(kind, 0)
    allowed = (
        f"with num_attention_heads = {heads}, {kind} positions need an even width, not {paired}"
    )
    yield "hidden_size", paired % 2 == 0, allowed


def check_buckets(model: ModelConfig) -> tuple[bool, str]:
    """Return whether every distance of a row has a bucket, and what is allowed."""
    buckets, reach = model.position_buckets, model.max_relative_positions - 1
    has_own = model.max_position_embeddings - 1 <= buckets // 2
    return (
        buckets == 0 or (buckets > 1 and (has_own or buckets // 2 < reach)),
        f"with config.model.max_relative_positions = {reach + 1} it must be 0, or from 2 to "
        f"{max(2 * reach - 1, 2)}",
    )


def _list_position_rules(model: ModelConfig) -> Iterator[Rule]:
    kind = model.position_embedding_type
    for owner, keys in (("rotary", THETAS), ("disentangled", DISENTANGLED)):
        if kind != owner:
            allowed = (
                f"config.model.position_embedding_type = {kind!r} has none: leave it out, or "
                f"choose {owner}"
            )
            yield from require_defaults("model", model, keys, allowed)
    yield "model.position_buckets", *check_buckets(model)
    chosen = f"position_embedding_type is {kind!r}: "
    if kind == "relative":
        segments = f"{chosen}attention encodes segments: set 0"
        yield "model.type_vocab_size", model.type_vocab_size == 0, segments
        has_width = model.embedding_width == model.hidden_size
        yield "model.embedding_size", has_width, f"{chosen}leave it at 0"
        names = ("embedding_projection", "is_causal")
        yield from require_defaults("model", model, names, f"{chosen}leave it false")
    if model.scores_distances:
        every = ("global_attn_every_n_layers",)
        yield from require_defaults("model", model, every, f"{chosen}leave it out")


def check_architecture(config: SharedConfig) -> None:
    """Raise Refused if settings of a checkpoint's model contradict the config's or each other."""
    apply(config, list_architecture_rules(config))


def list_architecture_rules(config: SharedConfig) -> Iterator[Rule]:
    """List the rules about several of a model's settings."""
    model = config.model
    yield from _list_position_rules(model)
    has_transform = model.mlm_transform and model.embedding_width == model.hidden_size
    yield (
        "model.pooler_type",
        model.pooler_type != "mlm_transform" or has_transform,
        f"it needs mlm_transform = True, not {model.mlm_transform}, and embeddings as wide as the "
        f"encoder, {model.hidden_size}, not {model.embedding_width}: take another pooler_type",
    )
    generator = model.generator
    width = (generator or model).hidden_size
    yield (
        "model.mlm_transform",
        model.mlm_transform or width == model.embedding_width,
        f"without it the word table, {model.embedding_width} wide, would read vectors of width "
        f"{width}: set it to true",
    )
    if generator is not None:
        heads = generator.num_attention_heads
        is_divided = generator.hidden_size % heads == 0
        is_even = generator.hidden_size // heads % 2 == 0
        yield (
            "model.generator_hidden_size",
            is_divided and (is_even or model.position_embedding_type != "rotary"),
            f"it must be a multiple of the generator's {heads} attention heads, an even one for "
            "rotary positions; change it, or set config.model.generator_num_attention_heads",
        )
    has_window = model.global_attn_every_n_layers > 1
    windows = "the other layers need a window: set its width"
    no_window = "no layer has a window: leave it at 0"
    yield (
        "model.local_attention",
        has_window == (model.local_attention > 0),
        f"with global_attn_every_n_layers = {model.global_attn_every_n_layers} "
        f"{windows if has_window else no_window}",
    )
    differ = "layers differ in their windows or norms: leave it false"
    if not model.has_equal_layers:
        yield from require_defaults("compute", config.compute, ("rolled_layers",), differ)
        yield from require_defaults("model", model, ("share_layers",), differ)
