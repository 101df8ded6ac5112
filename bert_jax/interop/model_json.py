"""Parse and describe the sizes of an encoder in Google's bert_config.json or a config.json."""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.config import ModelConfig
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.spec.fields import get_setting

_MAX_FLOAT = 1e38  # of float32
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
      acts: our activation function by the name in the file; the first of several is written.
      numbers: the setting of each field of ModelConfig that is a number.
      aliases: other names of settings, which count before these (transformers' attribute_map).
      flags: the setting of each field that is a bool, False where a file lacks it.
      act: the setting of the activation function.
      checked: settings that change what the encoder computes, and the one value that is read.
      written: settings that are the same in every file.
      defaults: settings that a file may lack, with the values that they have then.
      head_act: our activation function of the masked language model's head, if it is another.
      shape: fields of ModelConfig that are the same in every encoder of this kind.
    """

    acts: Mapping[str, str]
    numbers: Mapping[str, str] = dataclasses.field(default_factory=BERT_NUMBERS.copy)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    act: str = "hidden_act"
    checked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head_act: str = ""
    shape: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parse(self, path: pathlib.Path, settings: Mapping[str, Any]) -> ModelConfig:
        """Return the model that the settings of a file describe.

        Raises:
          Refused: a size is missing or impossible; a setting has a value that is not computed.
        """
        others = {
            name: settings[alias] for alias, name in self.aliases.items() if alias in settings
        }
        settings = {**self.defaults, **settings, **others}
        for name, value in self.checked.items():
            if settings.get(name, value) != value:
                raise Refused(
                    f"{path} says {name} = {settings[name]!r:.80}; bert_jax reads such a model "
                    f"only with {name} = {value!r}: give a checkpoint of that kind"
                )
        hidden_act = self.acts[read_choice(path, self.act, settings.get(self.act), self.acts)]
        fields = {field.name: field for field in dataclasses.fields(ModelConfig)}
        numbers = {
            name: _check_number(path, fields[name], settings.get(theirs), theirs)
            for name, theirs in self.numbers.items()
        }
        flags = {
            field: small_files.field(settings, theirs, bool, path, False)
            for field, theirs in self.flags.items()
        }
        head_act = "" if self.head_act == hidden_act else self.head_act
        acts = {"hidden_act": hidden_act, "head_act": head_act}
        return ModelConfig(**{**acts, **self.shape, **numbers, **flags})

    def name_act(self, act: str) -> str:
        """Return the name of our activation function in a file.

        Raises:
          KeyError: it has none.
        """
        return {ours: theirs for theirs, ours in reversed([*self.acts.items()])}[act]

    def describe(self, config: ModelConfig) -> dict[str, Any]:
        """Return the settings of a file for a model."""
        named = {**self.numbers, **self.flags}
        numbers = {theirs: getattr(config, field) for field, theirs in named.items()}
        return numbers | dict(self.written) | {self.act: self.name_act(config.hidden_act)}


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
      Refused: it holds something else.
    """
    try:
        return small_files.read_object(path)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; put back the file that the checkpoint came with") from None


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
