"""What a run begins with that goes on from a checkpoint: its sizes, its rows of the vocabulary.

A run that has a checkpoint of its own needs config.init no more: its receipt has the sizes.

Dimensions: V pieces, D width.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from bert_jax import config_check, pretrained, receipt
from bert_jax.checkpoint_choice import NoneIsWhole
from bert_jax.checkpoint_reading import newest_run, newest_step
from bert_jax.config import Config, ModelConfig
from bert_jax.models.bert import Model, Params
from bert_jax.pretrained import Pretrained
from bert_jax.screen import Screen
from bert_jax.workdir import Workdir
from data_pipeline.store import Store
from data_pipeline.vocab import WORDPIECE, Vocabulary, load_vocabulary
from data_pipeline.vocab_growth import UNUSED

# Of config.model, what a run decides for itself; vocab_size is the store's. All else is the
# checkpoint's.
OF_THE_RUN = (
    "vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "compute_dtype",
)
_PARTS = {"pooler": "pooler", "mlm": "masked language model's head", "nsp": "next sentence's head"}


@dataclasses.dataclass(frozen=True)
class InitialWeights:
    """A checkpoint on the host with a row for each piece of the run's vocabulary."""

    checkpoint: Pretrained
    new_pieces: int  # whose rows are means of others'

    def placed(self, model: Model, on: jax.sharding.Mesh, seed: int) -> Params:
        """The parameters on a mesh; parts that the checkpoint lacks are drawn from the seed."""
        params, _ = pretrained.placed(self.checkpoint, model, on, seed)
        return params

    def in_words(self) -> str:
        """Where the weights come from and which of them are new."""
        held = self.checkpoint
        said = f"{held.parameter_count:,} from {held.address}"
        if self.new_pieces:
            rows = f"{self.new_pieces:,} new pieces begin as means of those they were cut into"
            if self.new_pieces == 1:
                rows = "1 new piece begins as the mean of those it was cut into"
            said += f"; {rows}"
        drawn = [name for part, name in _PARTS.items() if part not in held.params]
        return f"{said}; drawn anew: {', '.join(drawn)}" if drawn else said


def of_run(
    config: Config, storage: Workdir, store: Store, screen: Screen
) -> tuple[Config, InitialWeights | None]:
    """The config with the sizes of its checkpoint, and the weights of a run that has none saved.

    Raises:
      ValueError: no such checkpoint, config.model or the store's vocabulary contradicts it.
      OSError: it cannot be read.
    """
    if not config.init:
        return config, None
    weights = None
    try:
        has_saved = newest_step(storage.checkpoints) is not None
    except NoneIsWhole:
        if not config.checkpoint.fresh:
            raise
        has_saved = False
    if not has_saved:
        weights = read(config, store, screen)
        held = weights.checkpoint.config
    else:
        record, _ = receipt.find(storage.home, lambda: newest_run(storage.checkpoints))
        if record is None:
            return config, None  # it is refused for the checkpoints that lie there
        held = receipt.model_of(record, storage.home)
    config = dataclasses.replace(config, model=sizes(config.model, held, config.init))
    config_check.check(config)
    return config, weights


def read(config: Config, store: Store, screen: Screen) -> InitialWeights:
    """Read the checkpoint that a run begins with, for the store's vocabulary.

    Raises:
      ValueError, OSError: as of_run.
    """
    manifest = store.manifest["vocabulary"]
    ours = load_vocabulary(store.vocab_path, manifest["lowercase"], checks_case=False)
    with screen.spinning(f"reading {config.init}"):
        return with_vocabulary(pretrained.load(config.init), ours)


def with_sizes(config: Config) -> Config:
    """The config with the sizes of its checkpoint, for what wants no weights: a plan, a benchmark.

    Raises:
      ValueError, OSError: as of_run.
    """
    if not config.init:
        return config
    held = pretrained.load(config.init).config
    model = sizes(config.model, held, config.init)
    if not model.vocab_size and not config.data.store:
        model = dataclasses.replace(model, vocab_size=held.vocab_size)
    return dataclasses.replace(config, model=model)


def sizes(given: ModelConfig, held: ModelConfig, address: str) -> ModelConfig:
    """The model of a checkpoint with the dropout and the dtype that a config gives.

    Raises:
      ValueError: the config sets a size to something that is neither the default nor the
        checkpoint's.
    """
    for field in dataclasses.fields(ModelConfig):
        ours, theirs = getattr(given, field.name), getattr(held, field.name)
        if field.name not in OF_THE_RUN and ours not in (field.default, theirs):
            raise ValueError(
                f"config.model.{field.name} is {ours!r}, but config.init={address} has "
                f"{theirs!r}; leave it out of the config, and the checkpoint's is taken"
            )
    return dataclasses.replace(held, **{name: getattr(given, name) for name in OF_THE_RUN})


def with_vocabulary(checkpoint: Pretrained, vocabulary: Vocabulary) -> InitialWeights:
    """A checkpoint with rows for a vocabulary: its own, or its own grown by new pieces.

    New pieces stand in [unusedN] slots or at the end. A new piece's row of the word table is the
    mean of the rows of the pieces that it was cut into, as is its bias of the masked language
    model's logits. Rows without a piece, by which some tables are padded, are left.

    Raises:
      ValueError: another vocabulary; names the first piece that differs.
    """
    known, pieces = checkpoint.vocabulary, vocabulary.pieces()
    new = _new_pieces(checkpoint, vocabulary)
    ids, lengths = known.encode([pieces[i].removeprefix("##") for i in new])
    unknown = [known.special_ids["unk"]]
    cut_into = [
        of_piece if len(of_piece) else unknown
        for of_piece in np.split(ids, np.cumsum(lengths)[:-1])
    ]

    def grown(rows: np.ndarray) -> np.ndarray:
        """[V] or [V,D]."""
        added = np.zeros((len(pieces) - known.size, *rows.shape[1:]), rows.dtype)
        fitted = np.concatenate([rows[: known.size], added])
        for piece, of_piece in zip(new, cut_into, strict=False):
            fitted[piece] = rows[of_piece].mean(axis=0)
        return fitted

    params = dict(checkpoint.params)
    embeddings = dict(params["embeddings"])
    embeddings["word"] = {"embedding": grown(embeddings["word"]["embedding"])}
    params["embeddings"] = embeddings
    if "mlm" in params:
        params["mlm"] = params["mlm"] | {"output_bias": grown(params["mlm"]["output_bias"])}
    fitted: Any = dataclasses.replace(
        checkpoint,
        config=dataclasses.replace(checkpoint.config, vocab_size=len(pieces)),
        params=params,
        vocabulary=vocabulary,
    )
    return InitialWeights(fitted, len(new))


def _new_pieces(checkpoint: Pretrained, vocabulary: Vocabulary) -> list[int]:
    """Ids of the pieces of a grown vocabulary that the checkpoint's has not."""
    known, where = checkpoint.vocabulary, checkpoint.address
    theirs, ours = known.pieces(), vocabulary.pieces()
    way_out = (
        f"build the store with --vocab={known.path}, or with that list grown by python -m "
        "data_pipeline.grow_vocab"
    )
    for i, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our and not (known.kind == WORDPIECE and UNUSED.fullmatch(their)):
            raise ValueError(
                f"piece {i} of {vocabulary.path} is {our!r}, of the vocabulary of {where} "
                f"{their!r}: the rows of the checkpoint mean other words; {way_out}"
            )
    if len(ours) < len(theirs):
        raise ValueError(
            f"{vocabulary.path} ends after {len(ours):,} pieces, the vocabulary of {where} goes on "
            f"with {theirs[len(ours)]!r}; {way_out}"
        )
    if known.kind != vocabulary.kind or (known.kind != WORDPIECE and len(ours) > len(theirs)):
        raise ValueError(
            f"{vocabulary.path} is a {vocabulary.kind} vocabulary of {len(ours):,} pieces, that of "
            f"{where} a {known.kind} one of {len(theirs):,}; build the store with "
            f"--vocab={known.path}"
        )
    if known.lowercase != vocabulary.lowercase:
        raise ValueError(
            f"{vocabulary.path} was built with --lowercase={str(vocabulary.lowercase).lower()}, "
            f"the vocabulary of {where} is read with {str(known.lowercase).lower()}; build the "
            "store as that"
        )
    return [i for i, piece in enumerate(ours) if i >= len(theirs) or piece != theirs[i]]
