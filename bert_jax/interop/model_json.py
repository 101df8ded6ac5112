"""Parse the sizes of a BERT from Google's bert_config.json or Hugging Face's config.json."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.config.validate import check_sizes
from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile

# ModelConfig uses the names of these files; any other setting that a file lacks has its default.
_REQUIRED = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings"),
)
BERT_NUMBERS = (
    *_REQUIRED,
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size"),
    *("initializer_range", "layer_norm_eps"),
)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
      ValueError: it holds something else.
    """
    try:
        return small_files.read_object(path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; put the file back that the checkpoint came with") from None


def write_json(path: pathlib.Path, content: object) -> None:
    """Write JSON as the files of models are written: indented, a newline at the end."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def parse_model_config(
    path: pathlib.Path, settings: Mapping[str, Any], acts: Mapping[str, str]
) -> ModelConfig:
    """Return the sizes in the settings of a file; `acts` maps its activations to our names.

    Raises:
      ValueError: a size is missing or impossible, the activation is not one of BERT's.
    """
    act = str(settings.get("hidden_act"))
    if act not in acts:
        raise ValueError(
            f"{path} says hidden_act = {act!r:.80}; bert_jax computes {', '.join(acts)}: give a "
            "BERT with one of these"
        )
    numbers = parse_numbers(path, settings, {name: name for name in BERT_NUMBERS})
    config = ModelConfig(hidden_act=acts[act], **numbers)
    check_sizes(config, path)
    return config


def parse_numbers(
    path: pathlib.Path, settings: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the numbers of a file by our fields; `names` has its settings by those fields.

    Sizes are required; another number that the file lacks is left out.

    Raises:
      ValueError: a number is missing or impossible.
    """
    fields = {field.name: field for field in dataclasses.fields(ModelConfig)}
    return {
        name: _check_number(path, fields[name], settings.get(theirs), theirs)
        for name, theirs in names.items()
        if theirs in settings or name in _REQUIRED
    }


def _check_number(
    path: pathlib.Path, field: dataclasses.Field[Any], value: Any, name: str
) -> float:
    is_size = field.type is int
    if is_size:
        fits = type(value) is int and value >= 1
    else:
        fits = type(value) in (int, float) and 0 <= value < 1
    if not fits:
        allowed = "a whole number from 1" if is_size else "a number from 0 and below 1"
        raise ValueError(
            f"{path} says {name} = {value!r:.80}; it must be {allowed}: put the file back "
            "that the checkpoint came with"
        )
    return int(value) if is_size else float(value)
