"""Parse and describe the sizes of an encoder in Google's bert_config.json or a config.json."""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.config import ModelConfig
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.spec.fields import get_setting

JsonObject = Mapping[str, Any]
_MAX_FLOAT = 1e38  # float32's largest is 3.4e38
# ModelConfig uses the names of BERT's files.
BERT_NUMBERS = {
    name: name
    for name in (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "max_position_embeddings"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "type_vocab_size"),
        *("initializer_range", "layer_norm_eps"),
    )
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Map the settings of a JSON file to ModelConfig, and hold the constant settings of such files.

    Attributes:
      choices: field of ModelConfig -> the setting's name, and our value for each of a file's
        values; of several equal ones the first is written.
      numbers: field of ModelConfig that is a number -> the setting's name.
      aliases: other name of a setting -> its name; the other name wins (transformers'
        attribute_map).
      flags: field of ModelConfig that is a bool -> the setting's name; False where a file lacks it.
      checked: settings that change what the encoder computes, each with the only value allowed.
      written: settings that are the same in every file.
      defaults: values of settings that a file may lack.
      shape: fields of ModelConfig that are the same in every encoder of this kind.
    """

    choices: Mapping[str, tuple[str, Mapping[str, Any]]]
    numbers: Mapping[str, str] = dataclasses.field(default_factory=BERT_NUMBERS.copy)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    checked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shape: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parse(self, path: pathlib.Path, settings: JsonObject) -> ModelConfig:
        """Return the model that the settings of a file describe.

        Raises:
          Refused: a size is missing or impossible; a setting has a value that is not computed.
        """
        others = {
            name: settings[alias] for alias, name in self.aliases.items() if alias in settings
        }
        settings = {**self.defaults, **settings, **others}
        check_values(path, settings, self.checked)
        choices = {
            field: known[read_choice(path, theirs, settings.get(theirs), known)]
            for field, (theirs, known) in self.choices.items()
        }
        fields = {field.name: field for field in dataclasses.fields(ModelConfig)}
        numbers = {
            name: _check_number(path, fields[name], settings.get(theirs), theirs)
            for name, theirs in self.numbers.items()
        }
        flags = {
            field: small_files.field(settings, theirs, bool, path, False)
            for field, theirs in self.flags.items()
        }
        config = ModelConfig(**{**self.shape, **choices, **numbers, **flags})
        has_one_act = config.head_act == config.hidden_act
        return dataclasses.replace(config, head_act="") if has_one_act else config

    def describe(self, config: ModelConfig) -> dict[str, Any]:
        """Return the settings of a file for a model.

        Raises:
          KeyError: a file has no name for one of the model's choices.
        """
        given = vars(config) | {"head_act": config.mlm_act}
        numbers = {theirs: given[ours] for ours, theirs in {**self.numbers, **self.flags}.items()}
        choices = {
            name: {value: theirs for theirs, value in reversed([*known.items()])}[given[ours]]
            for ours, (name, known) in self.choices.items()
        }
        return {**numbers, **self.written, **choices}


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
      Refused: it holds something else.
    """
    try:
        return small_files.read_object(path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; put back the file that the checkpoint came with") from None


def check_values(
    path: pathlib.Path,
    settings: JsonObject,
    values: Mapping[str, Any],
    remark: str = "",
    way_out: str = "give a checkpoint of that kind",
) -> None:
    """Raise Refused if a file gives a setting another value than the only one allowed.

    `remark` follows the allowed value in the error, `way_out` ends the error.
    """
    for name, value in values.items():
        if settings.get(name, value) != value:
            raise Refused(
                f"{path} says {name} = {settings[name]!r:.80}; bert_jax reads such a model only "
                f"with {name} = {value!r}{remark}: {way_out}"
            )


def read_choice(path: pathlib.Path, name: str, value: Any, known: Collection[str]) -> str:
    """Return the value of a file's setting; `known` has all values that are read.

    Raises:
      Refused: it is another value.
    """
    if not isinstance(value, str) or value not in known:
        raise Refused(
            f"{path} says {name} = {value!r:.80}; bert_jax reads {', '.join(known)}: give a "
            "checkpoint with one of these"
        )
    return value


def _check_number(
    path: pathlib.Path, field: dataclasses.Field[Any], value: Any, name: str
) -> float:
    is_size, known = field.type is int, get_setting(field)
    if is_size or known is None:
        fits, allowed = type(value) is int and value >= 1, "a whole number from 1"
    else:
        fits = type(value) in (int, float) and known.allows(value) and value < _MAX_FLOAT
        allowed = f"a number {known.allowed()}"
    if not fits:
        raise Refused(
            f"{path} says {name} = {value!r:.80}; it must be {allowed}: put back the file that "
            "the checkpoint came with"
        )
    return int(value) if is_size else float(value)
