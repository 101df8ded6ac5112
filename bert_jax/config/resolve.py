"""Resolve a config: fill in what follows from its store and its checkpoint, and check the result.

`resolve` is the only place that does so for pre-training, and all later code takes a ResolvedRun.
"""

import dataclasses
from collections.abc import Mapping

from bert_jax.config import validate
from bert_jax.config.model_schema import OF_A_GENERATOR, OF_HEADS, ModelConfig
from bert_jax.config.phases import data_in_phase, list_objectives, predictions_for
from bert_jax.config.schema import CAUSAL, Config, Phase
from data_pipeline.io import Refused

# Fields of config.model that a run sets, vocab_size by its store and is_causal by its objectives.
# The others are the checkpoint's, but max_position_embeddings may be larger.
OF_THE_RUN = (
    *("vocab_size", "hidden_dropout_prob", "attention_probs_dropout_prob", "is_causal"),
    "bilstm_units",
)
# Fields of config.model that a run may set to other values than its checkpoint's.
_ADDED = (*OF_HEADS, "enhanced_mask_decoder")
_TILED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_GENERATOR_FIELDS = tuple(name for name in OF_A_GENERATOR if name.startswith("generator_"))


@dataclasses.dataclass(frozen=True)
class StoreFacts:
    """Hold what `resolve` needs from a store."""

    vocab_size: int
    is_text: bool = True  # False: ready-made examples, whose masks are fixed
    # Predictions in a row by row length, for ready-made examples.
    slots_of_lengths: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ResolvedRun(Config):
    """Hold the checked settings of a pre-training run, with nothing left to fill in.

    Phases have their objective and prediction slots, the model has its sizes; without a store
    vocab_size may still be 0.
    """


def resolve(
    config: Config, sizes: ModelConfig | None = None, store: StoreFacts | None = None
) -> ResolvedRun:
    """Fill in what a config leaves to its store and its checkpoint, and check all settings.

    `sizes` is the model of the checkpoint in config.init, None for a run with new weights or one
    whose checkpoint was not read. Unset prediction slots follow from the masking rate or the store,
    unset objectives of phases from the config's. A causal last objective makes the model causal.

    Raises:
      Refused: a setting is out of range, or contradicts another one, the checkpoint or the store;
        the error names the key, its value, what is allowed and how to fix it.
    """
    if sizes is not None and config.init_tile:
        sizes = enlarge(sizes, config.model, config.init)
    model = config.model if sizes is None else merge_sizes(config.model, sizes, config.init)
    config = dataclasses.replace(config, model=model)
    validate.check(config)
    if store is not None and model.vocab_size not in (0, store.vocab_size):
        raise Refused(
            f"config.model.vocab_size is {model.vocab_size}, the store's vocabulary has "
            f"{store.vocab_size} pieces; leave it 0 to take the store's, or point "
            "config.data.store at the right store"
        )
    source = store or sizes
    slots_of_lengths = store.slots_of_lengths if store else {}
    model = dataclasses.replace(
        model,
        vocab_size=model.vocab_size or (source.vocab_size if source else 0),
        is_causal=model.is_causal or list_objectives(config)[-1] == CAUSAL,
    )
    phases = tuple(
        _fill_phase(config, index, slots_of_lengths) for index in range(len(config.phases))
    )
    run = ResolvedRun(**vars(config) | {"model": model, "phases": phases})
    if store is not None:
        validate.check_masks(run, store.is_text)
    return run


def _fill_phase(config: Config, index: int, slots_of_lengths: Mapping[int, int]) -> Phase:
    phase, rate = config.phases[index], data_in_phase(config, index).masked_lm_prob
    slots = slots_of_lengths.get(phase.seq_len, predictions_for(phase.seq_len, rate))
    return dataclasses.replace(
        phase,
        max_predictions_per_seq=phase.max_predictions_per_seq or slots,
        objective=list_objectives(config)[index],
    )


def enlarge(saved: ModelConfig, given: ModelConfig, address: str) -> ModelConfig:
    """Return the model of a checkpoint with the sizes to which its weights are to be tiled.

    Raises:
      Refused: a size is smaller than the checkpoint's; the heads have another width; the
        embeddings would no longer need a map to the encoder's width.
    """
    for name in _TILED:
        ours, theirs = getattr(given, name), getattr(saved, name)
        if ours < theirs:
            raise Refused(
                f"config.model.{name} is {ours!r}, but config.init={address} has {theirs!r}, and "
                "config.init_tile=True only enlarges; give that or more, or another checkpoint"
            )
    heads, width = given.num_attention_heads, saved.hidden_size // saved.num_attention_heads
    if given.hidden_size != heads * width:
        raise Refused(
            f"config.model.num_attention_heads is {heads}, which makes heads of width "
            f"{given.hidden_size / heads:g}, but config.init={address} has heads of width "
            f"{width}, which config.init_tile=True keeps; change it, or hidden_size = "
            f"{given.hidden_size} to a multiple of {width}"
        )
    embeddings = saved.embedding_width if saved.maps_embeddings else 0
    if embeddings == given.hidden_size and not saved.embedding_projection:
        raise Refused(
            f"config.model.hidden_size is {given.hidden_size}, the width of the embeddings of "
            f"config.init={address}, which that checkpoint projects to another width; take a "
            "larger one"
        )
    sizes = {name: getattr(given, name) for name in _TILED}
    return dataclasses.replace(saved, embedding_size=embeddings, **sizes)


def merge_sizes(given: ModelConfig, saved: ModelConfig, address: str) -> ModelConfig:
    """Return a checkpoint's model with the config's dropout and, if larger, number of positions.

    Fields of heads that the config sets are the config's. Relative positions may also be fewer;
    rotary positions, which have no table either, take the larger number.

    Raises:
      Refused: the config sets a size to something that is neither the default nor the
        checkpoint's, and is not a larger number of positions.
    """
    positions = given.max_position_embeddings
    if positions != ModelConfig.max_position_embeddings:
        # Relative positions have no table and no end.
        if saved.position_embedding_type != "relative":
            positions = max(positions, saved.max_position_embeddings)
        saved = dataclasses.replace(saved, max_position_embeddings=positions)
    run_fields = OF_THE_RUN if saved.generator else (*OF_THE_RUN, *_GENERATOR_FIELDS)
    free = [*run_fields, *_ADDED]
    if saved.position_embedding_type == "rotary":
        free.append("max_position_embeddings")
    for field in dataclasses.fields(ModelConfig):
        ours, theirs = getattr(given, field.name), getattr(saved, field.name)
        if field.name not in free and ours not in (field.default, theirs):
            is_larger = field.name in _TILED and ours > theirs
            tile = ", or pre-train with config.init_tile=True, which repeats weights to fill it"
            raise Refused(
                f"config.model.{field.name} is {ours!r}, but config.init={address} has {theirs!r}; "
                f"leave it out of the config, and the checkpoint's is taken{tile * is_larger}"
            )
    chosen = [name for name in _ADDED if getattr(given, name) != getattr(ModelConfig, name)]
    return dataclasses.replace(
        saved, **{name: getattr(given, name) for name in (*run_fields, *chosen)}
    )
