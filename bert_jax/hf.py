"""Hugging Face's layout of a BERT: names of its arrays, its config.json, its safetensors files."""

import contextlib
import pathlib
from typing import Any

import numpy as np
import safetensors

from bert_jax import bert_config
from bert_jax.config import ModelConfig
from bert_jax.models.bert import Params
from bert_jax.named_tensors import (
    Named,
    Tensors,
    check_layers,
    dims_of,
    listed,
    params_of,
    refuse_more_encoder,
    their_module,
    unread_names,
)
from data_pipeline.small_files import is_file_name

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ACTS = {"gelu": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
TASK_LAYERS = ("classifier", "qa_outputs")  # of classes; of the starts and ends of answers
_PREFIX = "bert."  # of the encoder in a model with heads
_DECODER = "cls.predictions.decoder.weight"  # the word table once more
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")
# Settings that change what the encoder computes, and the one value that is BERT's.
_FIXED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


def named(path: str, prefix: str = _PREFIX) -> Named:
    """What Hugging Face calls the array at a path of ours, and what older versions did.

    Source: modeling_bert.py@transformers 4.57; LayerNorm.gamma and beta: 2018's.
    """
    if path == "mlm/output_bias":
        return Named(("cls.predictions.bias", "cls.predictions.decoder.bias"))
    our_module, leaf = path.rsplit("/", 1)
    module = their_module(our_module)
    if not module.startswith(("cls.", TASK_LAYERS[0])):
        module = prefix + module
    if our_module.endswith("layer_norm"):
        now, before = {"scale": ("weight", "gamma"), "bias": ("bias", "beta")}[leaf]
        return Named((f"{module}.{now}", f"{module}.{before}"))
    if leaf == "bias":
        return Named((f"{module}.bias",))
    return Named((f"{module}.weight",), is_transposed=leaf == "kernel")


def read_config(directory: pathlib.Path) -> ModelConfig:
    """The sizes that a folder's config.json gives.

    Raises:
      ValueError: it is missing, or not that of a BERT encoder.
      OSError: it cannot be read.
    """
    path = directory / CONFIG
    if not path.is_file():
        raise ValueError(
            f"{directory} has no {CONFIG}; give the folder that save_pretrained of transformers "
            "wrote, or a download of the whole repository"
        )
    shown = bert_config.read_json(path)
    for name, value in _FIXED.items():
        if shown.get(name, value) != value:
            raise ValueError(
                f"{path} says {name} = {shown[name]!r:.80}; only BERT itself is read, with "
                f"{name} = {value!r}: give a checkpoint of that kind"
            )
    return bert_config.model_config(path, shown, ACTS)


def read(directory: pathlib.Path) -> tuple[ModelConfig, Params, tuple[str, ...]]:
    """The sizes and the arrays of a BERT in a folder: encoder, pooler and heads, where it has them.

    And the names of the arrays that are nothing of these, as of a head of somebody's own.

    Raises:
      ValueError: a file is missing, damaged, pickled, or not that of a BERT encoder.
      OSError: a file cannot be read.
    """
    config = read_config(directory)
    with contextlib.ExitStack() as stack:
        tensors = _tensors(directory, stack)
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensors.dims) else ""
        check_layers(tensors.dims, config, tensors.place)
        names = {path: named(path, prefix) for path in dims_of(config)}
        unread = unread_names(tensors, names, [_DECODER, *(prefix + name for name in _BUFFERS)])
        stems = (f"{prefix}embeddings.", f"{prefix}encoder.")
        refuse_more_encoder(tensors.place, unread, stems, CONFIG)
        params = params_of(tensors, names, config)
        _check_tied(tensors, params)
        layer = _task_layer(tensors, config)
        if layer:
            unread = tuple(name for name in unread if not name.startswith(TASK_LAYERS))
        return config, params | layer, unread


def _task_layer(tensors: Tensors, config: ModelConfig) -> Params:
    """The one layer of a task, under its path of ours; {} where there is none, or another head."""
    for name in TASK_LAYERS:
        weight, bias = f"{name}.weight", f"{name}.bias"
        dims = tensors.dims.get(weight, ())
        if dims[1:] == (config.hidden_size,) and tensors.dims.get(bias) == dims[:1]:
            kernel = np.ascontiguousarray(tensors.read(weight).astype(np.float32).T)
            return {"classifier": {"kernel": kernel, "bias": tensors.read(bias).astype(np.float32)}}
    return {}


def _tensors(directory: pathlib.Path, stack: contextlib.ExitStack) -> Tensors:
    """What the safetensors files of a folder hold; they are open until the stack is left."""
    file_of: dict[str, Any] = {}
    for path in _files(directory):
        try:
            opened = stack.enter_context(safetensors.safe_open(path, "np"))
        except safetensors.SafetensorError as error:
            raise ValueError(
                f"{path} is damaged or cut off ({error}); copy or download it again"
            ) from error
        file_of |= dict.fromkeys(opened.keys(), opened)
    dims = {name: tuple(of.get_slice(name).get_shape()) for name, of in file_of.items()}

    def read_one(name: str) -> np.ndarray:
        try:
            array: np.ndarray = file_of[name].get_tensor(name)
        except (safetensors.SafetensorError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{directory}: {name} cannot be read ({str(error)[:80]}); copy or download it again"
            ) from error
        return array

    return Tensors(str(directory), dims, read_one)


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a folder: one, or the parts that its index names."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    index = directory / INDEX
    if index.is_file():
        return _parts(index)
    pickled = sorted(directory.glob("*.bin")) + sorted(directory.glob("*.pt"))
    if pickled:
        raise ValueError(
            f"{directory} has its weights in {pickled[0].name}, a pickle, which may run code and "
            "is not read; open it with transformers and save it again: "
            "AutoModel.from_pretrained(DIR).save_pretrained(NEW, safe_serialization=True), with "
            "the class of its heads in place of AutoModel"
        )
    raise ValueError(
        f"{directory} has no {WEIGHTS}; give the folder that save_pretrained of transformers "
        "wrote, or a download of the whole repository"
    )


def _parts(index: pathlib.Path) -> list[pathlib.Path]:
    weight_map = bert_config.read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map; copy or download the folder again")
    parts = sorted(set(map(str, weight_map.values())))
    # The files themselves may be links: the hub's cache is made of them.
    outside = [
        part
        for part in parts
        if pathlib.PurePath(part).name != part or part == ".." or not is_file_name(part)
    ]
    missing = [] if outside else [p for p in parts if not (index.parent / p).is_file()]
    if missing or outside:
        raise ValueError(
            f"{index} names {listed(outside or missing)}, which is not in its folder; copy or "
            "download the folder again"
        )
    return [index.parent / part for part in parts]


def _check_tied(tensors: Tensors, params: Params) -> None:
    """Refuse an output map of the MLM head that is not the word table: ours is always the table."""
    if _DECODER not in tensors.dims or "mlm" not in params:
        return
    if not np.array_equal(
        tensors.read(_DECODER).astype(np.float32), params["embeddings"]["word"]["embedding"]
    ):
        raise ValueError(
            f"{tensors.place} has another {_DECODER} than its word embeddings; BERT's MLM head "
            "shares them: save it again with tie_word_embeddings = true, or without the head"
        )
