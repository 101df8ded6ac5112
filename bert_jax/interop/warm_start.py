"""Initialize a run from a checkpoint (config.init), fitted to its vocabulary, lengths and sizes.

Once the run has saved its own checkpoint, config.init is not read: the record has the sizes.

Dimensions: V tokens, P positions, D width.
"""

import dataclasses
import glob
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.directory import NoIntactCheckpoint
from bert_jax.checkpoint.reader import find_newest_step, find_run
from bert_jax.config import RTD, Config, ModelConfig, ResolvedRun, list_objectives
from bert_jax.config.phases import list_init_layers
from bert_jax.config.schema import DISCRIMINATOR
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import OPTIONAL_PARTS, PART_NAMES, nest
from bert_jax.logging.console import Screen
from bert_jax.model import bert
from bert_jax.model.bert import Params
from bert_jax.runtime import run_record
from bert_jax.runtime.workdir import Workdir
from data_pipeline.io import Refused
from data_pipeline.store import Store
from data_pipeline.vocab import WORDPIECE, Vocabulary, split_ids
from data_pipeline.vocab.sentencepiece_model import RECORDED
from data_pipeline.vocab.template import UNUSED

# Words that tokenizers of equal pieces may cut differently.
_PROBES = ("caf\u00e9", "\u4f60\u597d", "2024", "$3.50", "don't", "\uff01\uff12")


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """Hold a checkpoint on the host with a row for each token of the run's vocabulary."""

    checkpoint: Pretrained
    new_tokens: int  # tokens whose rows are means of other rows
    repeated_positions: int = 0  # positions whose rows repeat other rows
    parts: Sequence[str] = OPTIONAL_PARTS  # what a run initializes if the checkpoint lacks it
    tiled_from: str = ""  # layers and width of the checkpoint if it was smaller, in words

    def describe(self) -> str:
        """Describe the source of the weights and which of them are new."""
        checkpoint = self.checkpoint
        text = f"{checkpoint.parameter_count:,} from {checkpoint.address}"
        if self.new_tokens == 1:
            text += "; 1 new token begins as the mean of those it was cut into"
        elif self.new_tokens:
            text += f"; {self.new_tokens:,} new tokens begin as means of those they were cut into"
        if self.repeated_positions:
            positions = checkpoint.config.max_position_embeddings
            learned = positions - self.repeated_positions
            text += f"; its {learned:,} learned positions are repeated up to {positions:,}"
        if self.tiled_from:
            text += f"; tiled from {self.tiled_from}"
        has_pooler = checkpoint.config.pooler_type != "mlm_transform"
        parts = [part for part in self.parts if part != "pooler" or has_pooler]
        missing = [PART_NAMES[part] for part in parts if part not in checkpoint.params]
        return f"{text}; initialized: {', '.join(missing)}" if missing else text


def read_init(
    config: Config, storage: Workdir, screen: Screen
) -> tuple[ModelConfig | None, Pretrained | None]:
    """Read the model's sizes and the checkpoint in config.init; no checkpoint in a resume.

    A resumed run reads the sizes in its own record.

    Raises:
      Refused: there is no such checkpoint.
    """
    try:
        has_saved = find_newest_step(storage.checkpoints) is not None
    except NoIntactCheckpoint:
        if not config.checkpoint.fresh:
            raise
        has_saved = False
    if not has_saved:
        with screen.spinning(f"reading {config.init}"):
            checkpoint = read_checkpoint(config)
        return checkpoint.config, checkpoint
    record, _ = find_run(storage.home, storage.checkpoints)
    if record is None:  # refused later, for the checkpoints without a record
        return None, None
    return run_record.parse_run(record, storage.home / run_record.FILE).model, None


def read_sizes(config: Config) -> ModelConfig | None:
    """Return the sizes of the checkpoint in config.init, None without one."""
    return read_checkpoint(config).config if config.init else None


def read_local_sizes(config: Config) -> ModelConfig | None:
    """Return read_sizes, but None for a checkpoint that is not on this machine: fetch nothing."""
    place = re.sub(r"^(hf|google|orbax):|@\d+$", "", config.init)
    is_here = place and glob.glob(f"{glob.escape(place)}*")  # a folder, or the prefix of files
    return read_sizes(config) if is_here else None


def fit_weights(checkpoint: Pretrained, run: ResolvedRun, store: Store) -> InitialWeights:
    """Fit the checkpoint in run.init to the store's vocabulary and the run's sizes.

    Raises:
      Refused: the vocabulary contradicts the checkpoint's.
    """
    ours = store.load_vocabulary()
    weights = fit_vocabulary(checkpoint, ours, "config.init")
    if RTD in list_objectives(run):
        checkpoint = weights.checkpoint
        if run.model.generator_embeddings == "gdes" and not checkpoint.heads.generator:
            checkpoint = checkpoint.change(_split_tables(checkpoint.params["embeddings"]))
        weights = dataclasses.replace(weights, checkpoint=checkpoint, parts=("rtd", "generator"))
    if run.init_tile:
        weights = tile_weights(weights, run.model)
    return fit_positions(weights, run.model.max_position_embeddings)


def read_checkpoint(config: Config) -> Pretrained:
    """Read what the run takes from the checkpoint in config.init: its layers, and segments if any.

    In a run without segments, the vector of the first segment, which every token had, is added to
    the position table, or to the word table where positions are not learned. Replaced-token
    detection takes both models of a checkpoint with a generator.
    """
    part = None if RTD in list_objectives(config) else DISCRIMINATOR
    checkpoint = select_layers(load.load(config.init, part), list_init_layers(config))
    if config.model.type_vocab_size or "segment" not in checkpoint.params["embeddings"]:
        return checkpoint
    parts = {"embeddings": _drop_segments(checkpoint.params["embeddings"])}
    generator = checkpoint.params.get("generator", {})
    if "segment" in generator.get("embeddings", {}):  # the encoder's are differences to these
        parts["generator"] = generator | {"embeddings": _drop_segments(generator["embeddings"])}
    return checkpoint.change(parts, type_vocab_size=0)


def _drop_segments(embeddings: Params) -> Params:
    tables = dict(embeddings)
    vector = tables.pop("segment")["embedding"][0]
    name = "position" if "position" in tables else "word"
    return tables | {name: {"embedding": tables[name]["embedding"] + vector}}


def _split_tables(embeddings: Params) -> Params:
    """Move an encoder's tables to a new generator; the encoder's differences begin at zero."""
    tables = {name: tree for name, tree in embeddings.items() if name != "projection"}
    zeros = {
        name: jax.tree.map(np.zeros_like, tree)
        for name, tree in tables.items()
        if name != "layer_norm"
    }
    return {"embeddings": embeddings | zeros, "generator": {"embeddings": tables}}


def select_layers(checkpoint: Pretrained, numbers: Sequence[int]) -> Pretrained:
    """Return a checkpoint with these of its layers, in this order; all of them for [].

    Embeddings and heads stay. Source: Sanh et al. 2019 (DistilBERT), section 3.

    Raises:
      Refused: a number is not one of its layers; its layers differ in more than their weights,
        or share them.
    """
    if not numbers:
        return checkpoint
    config, layers = checkpoint.config, checkpoint.params["layers"]
    given = ",".join(map(str, numbers))
    if max(numbers) >= config.num_hidden_layers:
        raise Refused(
            f"config.init_layers is {given!r}, and {checkpoint.address} has "
            f"{config.num_hidden_layers} layers: give numbers from 0 to "
            f"{config.num_hidden_layers - 1}"
        )
    if config.share_layers or not config.has_equal_layers:
        reason = "share their weights" if config.share_layers else "differ in window or first norm"
        raise Refused(
            f"config.init_layers is {given!r}, and the layers of {checkpoint.address} {reason}, so "
            "none can take another's place; leave it empty"
        )
    chosen = {f"{i:02d}": layers[f"{number:02d}"] for i, number in enumerate(numbers)}
    return checkpoint.change({"layers": chosen}, num_hidden_layers=len(numbers))


def fit_vocabulary(checkpoint: Pretrained, vocabulary: Vocabulary, key: str = "") -> InitialWeights:
    """Give a checkpoint rows for a vocabulary: its own, or its own grown by new tokens.

    New tokens follow at the end, or take [unusedN] slots of WordPiece. The row of a new token in
    the word table is the mean of the rows of the tokens that it was cut into; so is its bias in the
    masked language model's logits. Rows without a token, which pad some tables, are dropped. Errors
    name `key`, the setting that gave the checkpoint, if any.

    Raises:
      Refused: the vocabulary is another one; names the first token that differs.
    """
    known, pieces = checkpoint.vocabulary, vocabulary.pieces()
    name = f"{key}={checkpoint.address}" if key else checkpoint.address
    new = _list_new_tokens(known, vocabulary, name)
    cut_into = split_ids(*known.encode(vocabulary.spell(new)))
    unknown = [known.special_ids["unk"]]

    def grow(rows: np.ndarray) -> np.ndarray:
        """Add rows to [V] or [V,D]."""
        added = np.zeros((len(pieces) - known.size, *rows.shape[1:]), rows.dtype)
        fitted = np.concatenate([rows[: known.size], added])
        for new_id, token_ids in zip(new, cut_into, strict=True):
            fitted[new_id] = rows[token_ids if len(token_ids) else unknown].mean(axis=0)
        return fitted

    rules = {"embeddings/word/embedding": grow, "mlm/output_bias": grow}
    params = resize(checkpoint.params, rules)
    fitted = checkpoint.change(params, vocab_size=len(pieces))
    return InitialWeights(dataclasses.replace(fitted, vocabulary=vocabulary), len(new))


def resize(
    params: Params, rules: Mapping[str, Callable[[np.ndarray], np.ndarray]]
) -> dict[str, Any]:
    """Replace the arrays that have a rule, by path, in an encoder and in its generator."""
    resized = {}
    for path, array in name_leaves(params).items():
        rule = rules.get(path.removeprefix("generator/"))
        resized[path] = rule(array) if rule else array
    return nest(resized)


def tile_weights(weights: InitialWeights, model: ModelConfig) -> InitialWeights:
    """Fill the arrays of a larger model with a smaller model's, repeated.

    Along each dimension, of n numbers that become m, the source lies in the middle and wraps
    around on both sides: number i is the source's (i - (m - n) // 2) modulo n. A dimension of heads
    side by side wraps by whole heads. Layer i of L is a copy of the source's layer i l / L of l,
    rounded. Rows of tokens, positions and segments stay as they are.

    If the first layer has no norm, its copies in later layers get an initialized norm.

    Source: Warner et al. 2024 (ModernBERT), section 2.2.2; AnswerDotAI/ModernBERT
    src/bert_layers/initialization.py, tile_weights_from_middle, and init_model_from_pretrained,
    which tiles single numbers, not whole heads, and leaves the last norm out.
    """
    checkpoint = weights.checkpoint
    small = checkpoint.config
    model = dataclasses.replace(
        model,
        vocab_size=small.vocab_size,
        max_position_embeddings=small.max_position_embeddings,
    )
    declared = name_leaves(bert.build(model, "cpu", heads=checkpoint.heads).declared)
    arrays = name_leaves(checkpoint.params)
    layers = len(checkpoint.params["layers"])
    new_layers = 1 if model.share_layers else model.num_hidden_layers
    tiled = {}
    for path, parameter in declared.items():
        source = arrays.get(_find_source_path(path, layers, new_layers))
        if source is None:
            continue  # initialized, as a head that the checkpoint lacks
        for axis, name in enumerate(parameter.logical_axes):
            unit = source.shape[axis] // small.num_attention_heads if name == "heads" else 1
            source = _tile_axis(source, axis, parameter.logical_dims[axis], unit)
        tiled[path] = source
    return dataclasses.replace(
        weights,
        checkpoint=dataclasses.replace(checkpoint, config=model, params=nest(tiled)),
        tiled_from=f"{small.num_hidden_layers} layers of {small.hidden_size}",
    )


def _tile_axis(array: np.ndarray, axis: int, size: int, unit: int) -> np.ndarray:
    """Wrap an axis around its middle up to `size`, in whole units of `unit` numbers."""
    units, new_units = array.shape[axis] // unit, size // unit
    chosen = (np.arange(new_units) - (new_units - units) // 2) % units
    indices = (chosen[:, None] * unit + np.arange(unit)).reshape(size)
    return array.take(indices, axis)


def _find_source_path(path: str, layers: int, new_layers: int) -> str:
    """Return the path of the source's array, of `layers` layers, that a larger model copies."""
    top, _, rest = path.partition("/")
    if top != "layers":
        return path
    number, _, rest = rest.partition("/")
    # For 10 layers from 2, the last would be layer round(1.8) = 2, which does not exist.
    source = min(round(int(number) * layers / new_layers), layers - 1)
    return f"{top}/{source:02d}/{rest}"


def fit_positions(weights: InitialWeights, positions: int) -> InitialWeights:
    """Repeat the learned positions of a checkpoint, its rows in turn, up to `positions`.

    Within a copy, neighbors keep what they learned about each other: [P,D] -> [positions,D]. Rotary
    positions have no table; only their limit changes.

    Source: Beltagy et al. 2020 (Longformer), section 5.
    """
    checkpoint = weights.checkpoint
    learned = checkpoint.config.max_position_embeddings
    if positions == learned:
        return weights

    def repeat(table: np.ndarray) -> np.ndarray:
        return table[np.arange(positions) % len(table)]

    path, decoder = "embeddings/position/embedding", "decoder_positions/embedding"
    params = resize(checkpoint.params, {path: repeat, decoder: repeat})
    repeated = positions - learned if path in name_leaves(params) else 0
    longer = checkpoint.change(params, max_position_embeddings=positions)
    return dataclasses.replace(weights, checkpoint=longer, repeated_positions=repeated)


def _list_new_tokens(known: Vocabulary, vocabulary: Vocabulary, address: str) -> list[int]:
    """Return the ids of a grown vocabulary's tokens that the checkpoint's does not have."""
    if known.kind != vocabulary.kind:
        raise Refused(
            f"{vocabulary.path} is a {vocabulary.kind} vocabulary, but {address} has a "
            f"{known.kind} one; build the store (config.data.store) with --vocab={known.path}"
        )
    theirs, ours = known.pieces(), vocabulary.pieces()
    how_to_fix = (
        f"build the store with --vocab={known.path}, or with that list grown by python -m "
        "data_pipeline.grow_vocab or, of another kind, by Tokenizer.add_tokens of tokenizers"
    )
    for i, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our and not (known.kind == WORDPIECE and UNUSED.fullmatch(their)):
            raise Refused(
                f"piece {i} of {vocabulary.path} is {our!r}, of the vocabulary of {address} "
                f"{their!r}: the rows of the checkpoint mean other words; {how_to_fix}"
            )
    if len(ours) < len(theirs):
        raise Refused(
            f"{vocabulary.path} ends after {len(ours):,} pieces, the vocabulary of {address} "
            f"continues with {theirs[len(ours)]!r}; {how_to_fix}"
        )
    for flag in (RECORDED, "lowercase"):
        built, read = (str(getattr(each, flag)).lower() for each in (vocabulary, known))
        if built != read:
            raise Refused(
                f"{vocabulary.path} was built with --{flag}={built}, the vocabulary of {address} "
                f"is read with {read}; build the store with --{flag}={read}"
            )
    new = [i for i, piece in enumerate(ours) if i >= len(theirs) or piece != theirs[i]]
    cuts = (split_ids(*each.encode(_PROBES)) for each in (vocabulary, known))
    for probe, built, read in zip(_PROBES, *cuts, strict=True):
        if not np.array_equal(built, read) and not np.isin(built, new).any():
            raise Refused(
                f"{vocabulary.path} cuts {probe} into {' '.join(ours[i] for i in built)}, the "
                f"vocabulary of {address} into {' '.join(theirs[i] for i in read)}: texts were cut "
                f"by other rules for the checkpoint; {how_to_fix}"
            )
    return new
