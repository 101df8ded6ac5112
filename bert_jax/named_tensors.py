"""Arrays under the names that other code gives them, read as parameters under ours.

Google's code and Hugging Face's share the names of modules, but for what separates their parts.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.config import ModelConfig
from bert_jax.models import bert
from bert_jax.models.bert import Params

OPTIONAL_PARTS = ("pooler", "mlm", "nsp")  # a checkpoint may be without; embeddings and layers not
_MODULES = {
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/segment": "embeddings.token_type_embeddings",
    "embeddings/layer_norm": "embeddings.LayerNorm",
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/output": "attention.output.dense",
    "attention/layer_norm": "attention.output.LayerNorm",
    "mlp/intermediate": "intermediate.dense",
    "mlp/output": "output.dense",
    "mlp/layer_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
    "mlm/transform": "cls.predictions.transform.dense",
    "mlm/layer_norm": "cls.predictions.transform.LayerNorm",
    "nsp": "cls.seq_relationship",
    "classifier": "classifier",
}
_NUMBERED = re.compile(r"(?:^|[./])(?:layer|layers)[./_](\d{1,9})[./]")
_LAYER = re.compile(r"layers/(\d+)/(.+)")
_MOST_LISTED, _MOST_CHARACTERS = 8, 90


@dataclasses.dataclass(frozen=True)
class Tensors:
    """What a checkpoint of other code holds; an array is read when it is asked for."""

    place: str  # for messages
    dims: Mapping[str, tuple[int, ...]]  # by name
    read: Callable[[str], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Named:
    """What other code calls an array of ours."""

    names: tuple[str, ...]  # that of its present version, then older ones
    is_transposed: bool = False


def their_module(path: str) -> str:
    """The module of other code that is at this path of ours, with dots between its parts."""
    layer = _LAYER.fullmatch(path)
    if layer is None:
        return _MODULES[path]
    return f"encoder.layer.{int(layer[1])}.{_MODULES[layer[2]]}"


def by_path(tree: Params) -> dict[str, Any]:
    """The leaves of parameters by their paths, as layers/00/mlp/output/kernel."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def nested(flat: Mapping[str, np.ndarray]) -> Params:
    """Parameters of leaves by their paths."""
    tree: Params = {}
    for path, leaf in flat.items():
        *parts, last = path.split("/")
        at = tree
        for part in parts:
            at = at.setdefault(part, {})
        at[last] = leaf
    return tree


def dims_of(
    config: ModelConfig, heads: bert.Heads = bert.PRETRAINING
) -> dict[str, tuple[int, ...]]:
    """Sizes of every array of a BERT by its path, without padding."""
    declared = bert.build(config, "cpu", heads=heads).declared
    return {path: of.logical_dims for path, of in by_path(declared).items()}


def params_of(tensors: Tensors, named: Mapping[str, Named], config: ModelConfig) -> Params:
    """The arrays that a checkpoint has of a BERT, float32 under our paths.

    named says what it calls them. Without any array of the pooler or of a head that part is left
    out.

    Raises:
      ValueError: arrays are missing, of another shape, not numbers with a fraction.
    """
    dims = dims_of(config)
    found = {
        path: next((name for name in named[path].names if name in tensors.dims), None)
        for path in dims
    }
    absent = {
        part
        for part in OPTIONAL_PARTS
        if not any(name for path, name in found.items() if path.split("/")[0] == part)
    }
    held = {path: name for path, name in found.items() if path.split("/")[0] not in absent}
    missing = [named[path].names[0] for path, name in held.items() if name is None]
    if missing:
        raise ValueError(
            f"{tensors.place} lacks {len(missing)} of the {len(held)} arrays that a BERT of "
            f"{config.num_hidden_layers} layers has: {listed(missing)}; give a whole checkpoint, "
            "with the config.json or bert_config.json that belongs to it"
        )
    names = {path: name for path, name in held.items() if name is not None}
    _check_dims(tensors, named, dims, names)
    return nested({path: _read(tensors, name, named[path]) for path, name in names.items()})


def unread_names(
    tensors: Tensors, named: Mapping[str, Named], ignored: Sequence[str]
) -> tuple[str, ...]:
    """Names of the arrays that are of no part of a BERT, nor ignored, nor an optimiser's.

    TF1 keeps an optimiser's under the name of their array, as .../kernel/adam_m.
    """
    known = {name for of in named.values() for name in of.names} | set(ignored)
    unread = set(tensors.dims) - known
    return tuple(sorted(name for name in unread if name.rpartition("/")[0] not in tensors.dims))


def check_layers(names: Iterable[str], config: ModelConfig, place: str) -> None:
    """Raise if arrays of fewer layers are there than a config says, before their model is built.

    Names may be ours, Google's or Hugging Face's.

    Raises:
      ValueError: names both numbers.
    """
    found = {int(number[1]) for name in names if (number := _NUMBERED.search(name))}
    layers = config.num_hidden_layers
    if max(found, default=-1) + 1 < layers:
        raise ValueError(
            f"{place} lacks layers: its config says num_hidden_layers = {layers}, and it has "
            f"arrays of {len(found)}; give a whole checkpoint, with the config that belongs to it"
        )


def refuse_more_encoder(
    place: str, unread: Sequence[str], stems: tuple[str, ...], config_name: str
) -> None:
    """Refuse arrays of an encoder with more to it: it would compute something else without them.

    stems are how the names of an encoder's arrays begin.

    Raises:
      ValueError: names them.
    """
    more = [name for name in unread if name.startswith(stems)]
    if more:
        raise ValueError(
            f"{place} holds {listed(more)}, which the encoder of its {config_name} has no use for; "
            "put the config back that belongs to it, or give a plain BERT"
        )


def _check_dims(
    tensors: Tensors,
    named: Mapping[str, Named],
    dims: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
) -> None:
    wrong = []
    for path, name in names.items():
        wanted = dims[path][::-1] if named[path].is_transposed else dims[path]
        if tuple(tensors.dims[name]) != wanted:
            wrong.append(f"{name} as {list(tensors.dims[name])} in place of {list(wanted)}")
    if wrong:
        raise ValueError(
            f"{tensors.place} holds {listed(wrong)}; the sizes are those of the config.json or "
            "bert_config.json beside it: give the one that belongs to these arrays"
        )


def _read(tensors: Tensors, name: str, of: Named) -> np.ndarray:
    array = tensors.read(name)
    if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
        raise ValueError(
            f"{tensors.place} holds {name} as {array.dtype}; only arrays of float32, float16, "
            "bfloat16 and float64 are read: give a checkpoint that is not quantised"
        )
    widened = array.astype(np.float32)
    return np.ascontiguousarray(widened.T) if of.is_transposed else widened


def listed(names: Sequence[str]) -> str:
    """Names with commas between them, the first so many, each cut to a length for a line."""
    more = len(names) - _MOST_LISTED
    return ", ".join(name[:_MOST_CHARACTERS] for name in names[:_MOST_LISTED]) + (
        f" and {more} more" if more > 0 else ""
    )
