"""Read the frozen checkpoint that a student learns from: config.teacher, read at each start."""

import dataclasses
import math
from typing import Any

import jax

from bert_jax.config import (
    DISTILLATION,
    RELATION_DISTILLATION,
    Config,
    ModelConfig,
    list_objectives,
)
from bert_jax.interop import load
from bert_jax.interop.pretrained import (
    Pretrained,
    check_masked_lm,
    hash_weights,
    place_params,
    refuse_causal,
)
from bert_jax.interop.warm_start import fit_vocabulary
from bert_jax.logging.console import Screen
from bert_jax.model.bert import Model, Params
from bert_jax.train_step import objectives
from data_pipeline.io import Refused
from data_pipeline.store import Store


def read_teacher(config: Config, store: Store, screen: Screen) -> Pretrained:
    """Read the teacher of a run; `config` has the sizes of the student.

    Raises:
      Refused: there is no such checkpoint, or the student cannot learn from it.
    """
    ours = store.load_vocabulary()
    with screen.spinning(f"reading {config.teacher}"):
        fitted = fit_vocabulary(_load_teacher(config), ours, "config.teacher")
    if fitted.new_tokens:
        raise Refused(
            f"the store has {fitted.new_tokens:,} tokens that config.teacher={config.teacher} does "
            "not know, so it could not teach them; build the store with the teacher's vocabulary"
        )
    return fitted.checkpoint


def read_teacher_sizes(config: Config) -> ModelConfig | None:
    """Return the sizes of a run's teacher for a plan or a benchmark, None if it has none.

    `config` has the sizes of the student and of the vocabulary, which is the teacher's as well.

    Raises:
      Refused: as read_teacher does.
    """
    if not config.teacher:
        return None
    theirs = _load_teacher(config).config
    return dataclasses.replace(theirs, vocab_size=config.model.vocab_size)


def _load_teacher(config: Config) -> Pretrained:
    """Read the checkpoint in config.teacher; refuse one from which the student cannot learn."""
    needs_mlm = any(objective.reads_teacher_mlm for objective in objectives.find_each(config))
    teacher = load.load_masked_lm(config.teacher) if needs_mlm else load.load(config.teacher)
    if needs_mlm:
        check_masked_lm(teacher)
    refuse_causal(teacher, "and its student reads both sides of a token; give another one")
    _check_shape(config, teacher.config)
    return teacher


def _check_shape(config: Config, theirs: ModelConfig) -> None:
    """Refuse a teacher whose sizes do not go with the student's or its rows."""
    ours, names = config.model, list_objectives(config)
    kind = ""
    if theirs.position_embedding_type == "relative":
        kind = "an XLNet, which predicts in an order, not masked words"
    if theirs.enhanced_mask_decoder:
        kind = "a generator with an enhanced mask decoder, which teaches no student"
    if kind:
        raise Refused(f"config.teacher={config.teacher} is {kind}; give another one")
    is_cosine = DISTILLATION in names and config.distill.cosine_weight > 0
    if is_cosine and theirs.hidden_size != ours.hidden_size:
        raise Refused(
            f"config.model.hidden_size is {ours.hidden_size}, and config.teacher={config.teacher} "
            f"has {theirs.hidden_size}, so their vectors do not compare; make them equal, or set "
            "config.distill.cosine_weight=0"
        )
    if RELATION_DISTILLATION in names:
        _check_relations(config, theirs)
    longest = max(phase.seq_len for phase in config.phases)
    if longest > theirs.max_position_embeddings:
        raise Refused(
            f"config.phases has rows of {longest} tokens, and config.teacher={config.teacher} has "
            f"{theirs.max_position_embeddings} positions; take shorter rows, or another teacher"
        )
    if config.data.has_next_sentences and theirs.type_vocab_size == 1:
        raise Refused(
            f"config.data.segments is {config.data.segments!r}, which makes pairs, and "
            f"config.teacher={config.teacher} knows one segment; set segments to full_sentences "
            "or doc_sentences"
        )


def _check_relations(config: Config, theirs: ModelConfig) -> None:
    heads, layer = config.distill.relation_heads, config.distill.teacher_layer
    common = math.gcd(config.model.hidden_size, theirs.hidden_size)
    if common % heads:
        raise Refused(
            f"config.distill.relation_heads is {heads}, which must divide the width of "
            f"config.teacher={config.teacher}, {theirs.hidden_size}, and config.model.hidden_size "
            f"= {config.model.hidden_size}; set it to a divisor of {common}"
        )
    if layer > theirs.num_hidden_layers:
        raise Refused(
            f"config.distill.teacher_layer is {layer}, and config.teacher={config.teacher} has "
            f"{theirs.num_hidden_layers} layers; give one of them, or 0 for the last"
        )


def identify_teacher(teacher: Pretrained) -> dict[str, Any]:
    """Return the settings that identify a teacher: weights, vocabulary, config."""
    return {
        "teacher's weights": hash_weights(teacher),
        "teacher's vocabulary": teacher.vocabulary.digest[:12],
        **{f"teacher.{name}": value for name, value in vars(teacher.config).items()},
    }


def place_teacher(
    teacher: Pretrained, model: Model, mesh: jax.sharding.Mesh, shardings: Params
) -> Params:
    """Place a teacher's parameters on a mesh, partitioned as the student's."""
    params, missing = place_params(teacher, model, mesh, seed=0)
    if missing:
        raise Refused(f"{teacher.address} lacks {', '.join(missing)}; give another teacher")
    return jax.device_put(params, shardings)
