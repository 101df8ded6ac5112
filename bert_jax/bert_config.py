"""The sizes of a BERT as Google's bert_config.json and Hugging Face's config.json give them."""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.config_check import check_sizes
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile

# ModelConfig has the names of these files; what a file does not say of the others is its default.
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON file that holds an object.

    Raises:
      ValueError: it holds something else.
      OSError: it cannot be read.
    """
    try:
        return small_files.read_object(path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; put the file back that the checkpoint came with") from None


def model_config(
    path: pathlib.Path, shown: Mapping[str, Any], acts: Mapping[str, str]
) -> ModelConfig:
    """The sizes in such a file; acts gives our name of each activation that it may name.

    Raises:
      ValueError: a size is missing or impossible, the activation is not one of BERT's.
    """
    sizes: dict[str, Any] = {name: _size(path, shown, name) for name in _SIZES}
    if "type_vocab_size" in shown:
        sizes["type_vocab_size"] = _size(path, shown, "type_vocab_size")
    numbers: dict[str, Any] = {
        name: _number(path, shown, name) for name in (*_RATES, "layer_norm_eps") if name in shown
    }
    act = str(shown.get("hidden_act"))
    if act not in acts:
        raise ValueError(
            f"{path} says hidden_act = {act!r:.80}; bert_jax computes {', '.join(acts)}: give a "
            "BERT with one of these"
        )
    config = ModelConfig(**sizes, **numbers, hidden_act=acts[act])
    check_sizes(config, path)
    return config


def _size(path: pathlib.Path, shown: Mapping[str, Any], name: str) -> int:
    value = shown.get(name)
    if type(value) is not int or value < 1:
        raise ValueError(
            f"{path} says {name} = {value!r:.80}; it must be a whole number from 1: put the "
            "file back that the checkpoint came with"
        )
    return value


def _number(path: pathlib.Path, shown: Mapping[str, Any], name: str) -> float:
    value = shown[name]
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ValueError(
            f"{path} says {name} = {value!r:.80}; it must be a number from 0 and below 1: put "
            "the file back that the checkpoint came with"
        )
    return float(value)
