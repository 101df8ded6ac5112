"""Map the names of third-party arrays to our parameter paths, and read them as parameters.

Google's code and Hugging Face use the same names of modules, with different separators.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import ModelConfig
from bert_jax.model import bert
from bert_jax.model.bert import Params
from data_pipeline.io import Refused, small_files

OPTIONAL_PARTS = ("pooler", "mlm", "nsp")  # a checkpoint may lack these
# The parts that a checkpoint may lack or a format does not hold, in words.
PART_NAMES = {
    **{"pooler": "pooler", "mlm": "MLM head", "nsp": "NSP head", "rtd": "replaced-token head"},
    **{"generator": "generator", "classifier": "layer of the task", "bilstm": "its LSTMs"},
}
# DataParallel, torch.compile and trainers put the name of their own attribute before each name.
_UNWRAP = "remove what a wrapper put before the names (module., _orig_mod., model.)"
_NUMBERED = re.compile(r"(?:^|[./])(?:layer|layers)[./_](\d{1,9})[./]")


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Read the arrays of a third-party checkpoint on demand."""

    place: str  # the folder or prefix, as messages name it
    dims: Mapping[str, tuple[int, ...]]  # name -> sizes
    read: Callable[[str], np.ndarray]

    def rename(self, name: str, new: str) -> "Tensors":
        """Return the checkpoint with the array of one name under another."""
        dims = {new if each == name else each: sizes for each, sizes in self.dims.items()}
        return Tensors(self.place, dims, lambda each: self.read(name if each == new else each))


@dataclasses.dataclass(frozen=True)
class TensorName:
    """Hold the names that one parameter can have in a third-party checkpoint."""

    names: tuple[str, ...]  # current name first, then older ones; none if they have no such part
    is_transposed: bool = False
    # Number of the part, from 0, and count of equal parts along the third party's first dimension.
    part: int = 0
    parts: int = 1
    skipped_rows: int = 0  # first rows of theirs, which ours does not have; written as zeros


def nest(leaves: Mapping[str, Any]) -> Params:
    """Build the tree of leaves that have these paths; the inverse of name_leaves."""
    tree: Params = {}
    for path, leaf in leaves.items():
        *parts, name = path.split("/")
        branch = tree
        for part in parts:
            branch = branch.setdefault(part, {})
        branch[name] = leaf
    return tree


def rename(params: Params, name_tensor: Callable[[str], TensorName]) -> dict[str, np.ndarray]:
    """Return the arrays of a model by their third-party names, in the third party's layout."""
    named: dict[str, dict[int, np.ndarray]] = {}
    for path, leaf in name_leaves(params).items():
        tensor = name_tensor(path)
        parts = named.setdefault(tensor.names[0], {})
        array = leaf.T if tensor.is_transposed else leaf
        skipped = [(tensor.skipped_rows, 0), *[(0, 0)] * (array.ndim - 1)]
        parts[tensor.part] = np.pad(array, skipped)
    return {
        name: np.ascontiguousarray(np.concatenate([parts[i] for i in sorted(parts)]))
        for name, parts in named.items()
    }


def read_params(
    tensors: Tensors,
    name_tensor: Callable[[str], TensorName],
    config: ModelConfig,
    *,
    ignored: Sequence[str],
    stems: tuple[str, ...],
) -> tuple[Params, tuple[str, ...]]:
    """Read the arrays of a BERT, float32 under our paths; also return the names of unread ones.

    A pooler or head without any array is skipped. Unread arrays belong to no part of a BERT, are
    not ignored, and are not an optimizer's, which TF1 names after parameters: .../kernel/adam_m.
    Arrays whose names begin with one of `stems` must all be read.

    Raises:
      Refused: arrays are missing, have another shape or are not floating-point, two of them
        that should be the same differ, or an array under `stems` would be unread.
    """
    check_layers(tensors.dims, config, tensors.place)
    declared = name_leaves(bert.build(config, "cpu", heads=bert.Heads(rtd=True)).declared)
    named = {path: name_tensor(path) for path in declared}
    known = {name for tensor in named.values() for name in tensor.names} | set(ignored)
    unread = sorted(
        name for name in set(tensors.dims) - known if name.rpartition("/")[0] not in tensors.dims
    )
    if more := [name for name in unread if name.startswith(stems)]:
        raise Refused(
            f"{tensors.place} holds {list_names(more)}, which the model of its config.json or "
            f"bert_config.json has no use for; put back the config that belongs to it, {_UNWRAP}, "
            "or give a plain BERT"
        )
    names = _choose_names(tensors, named, config)
    wrong = []
    for path, name in names.items():
        dims = declared[path].logical_dims
        expected = dims[::-1] if named[path].is_transposed else dims
        rows = expected[0] * named[path].parts + named[path].skipped_rows
        expected = (rows, *expected[1:])
        if tuple(tensors.dims[name]) != expected:
            wrong.append(f"{name} as {list(tensors.dims[name])} in place of {list(expected)}")
    if wrong:
        raise Refused(
            f"{tensors.place} holds {list_names(wrong)}; the sizes come from the config.json or "
            "bert_config.json in its folder: give the one that belongs to these arrays"
        )
    for path, name in names.items():
        for other in named[path].names:
            is_second = other in tensors.dims and other != name
            if is_second and not np.array_equal(tensors.read(other), tensors.read(name)):
                raise Refused(
                    f"{tensors.place} holds {name} and another {other}, which are one array of the "
                    "model; save it again with only one, or without that head if it is untied"
                )
    arrays = {path: _read(tensors, name, named[path]) for path, name in names.items()}
    return nest(arrays), tuple(unread)


def _choose_names(
    tensors: Tensors, named: Mapping[str, TensorName], config: ModelConfig
) -> dict[str, str]:
    """Return the name in a checkpoint of each array, by our path, without the parts it lacks."""
    chosen = {
        path: next((name for name in tensor.names if name in tensors.dims), "")
        for path, tensor in named.items()
        if tensor.names
    }
    present = {path.split("/")[0] for path, name in chosen.items() if name}
    absent = {*OPTIONAL_PARTS, "rtd"} - present
    expected = {path: name for path, name in chosen.items() if path.split("/")[0] not in absent}
    if missing := [named[path].names[0] for path, name in expected.items() if not name]:
        raise Refused(
            f"{tensors.place} lacks {len(missing)} of the {len(expected)} arrays of a BERT with "
            f"{config.num_hidden_layers} layers: {list_names(missing)}; give a whole checkpoint, "
            f"with the config.json or bert_config.json that belongs to it, or {_UNWRAP}"
        )
    return expected


def check_layers(names: Iterable[str], config: ModelConfig, place: str) -> None:
    """Raise if a checkpoint has fewer layers than its config says, before a model is built.

    `names` may be ours, Google's or Hugging Face's.
    """
    numbers = {int(number[1]) for name in names if (number := _NUMBERED.search(name))}
    layers = 0 if config.share_layers else config.num_hidden_layers
    if max(numbers, default=-1) + 1 < layers:
        raise Refused(
            f"{place} lacks layers: its config says num_hidden_layers = {layers}, and it has "
            f"arrays of {len(numbers)}; give a whole checkpoint, with the config that belongs to it"
        )


def read_floats(tensors: Tensors, name: str) -> np.ndarray:
    """Return an array of a checkpoint as float32.

    Raises:
      Refused: it is of whole numbers, or of booleans.
    """
    array = tensors.read(name)
    if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
        raise Refused(
            f"{tensors.place} holds {name} as {array.dtype}; only arrays of float32, float16, "
            "bfloat16 and float64 are read: give a checkpoint that is not quantized"
        )
    return array.astype(np.float32)


def _read(tensors: Tensors, name: str, tensor: TensorName) -> np.ndarray:
    widened = read_floats(tensors, name)[tensor.skipped_rows :]
    widened = np.split(widened, tensor.parts)[tensor.part]
    return np.ascontiguousarray(widened.T) if tensor.is_transposed else widened


def list_names(names: Sequence[str]) -> str:
    """List the names of arrays for a message, which may be long."""
    return small_files.list_names(names, count=8, characters=90)
