"""Convert settings to a ConfigDict that flags override, to flat keys, and to recorded form.

A config file returns to_config_dict(Config(...)); settings_from turns that back into dataclasses.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import ml_collections

from data_pipeline.io import Refused
from data_pipeline.spec.fields import parse_text

Kind = typing.TypeVar("Kind")


def to_config_dict(config: Any) -> ml_collections.ConfigDict:
    """Convert a config dataclass to a locked ConfigDict, whose fields flags can override."""
    view = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, list | tuple):
            value = tuple(to_config_dict(part) for part in value)
        elif dataclasses.is_dataclass(value):
            value = to_config_dict(value)
        view[field.name] = value
    return ml_collections.ConfigDict(view).lock()


def settings_from(kind: type[Kind], view: Any, path: str = "config") -> Kind:
    """Convert a ConfigDict back to its dataclass of settings; errors name it by `path`.

    Raises Refused if a field is unknown, missing, of another type, or not a finite number.
    """
    if not isinstance(view, ml_collections.ConfigDict):
        raise Refused(f"{path} is {view!r}; it is a group: set one of its fields, {path}.NAME")
    hints = typing.get_type_hints(kind)
    if unknown := sorted(set(view.keys()) - hints.keys()):
        raise Refused(f"{path} has no field {unknown[0]}; its fields are {sorted(hints)}")
    values = {}
    for name in view:
        hint, key = hints[name], f"{path}.{name}"
        try:
            value = view[name]
        except Exception as error:  # a FieldReference is computed here
            raise Refused(f"{key} has no value: {error}; give one by --{key}=VALUE") from error
        if isinstance(hint, types.GenericAlias):
            if not isinstance(value, tuple):
                raise Refused(f"{key} is a {type(value).__name__}; it must be a tuple, as (ENTRY,)")
            part = typing.get_args(hint)[0]
            values[name] = tuple(
                settings_from(part, item, f"{key}[{i}]") for i, item in enumerate(value)
            )
        elif dataclasses.is_dataclass(hint):
            values[name] = settings_from(typing.cast(type[Any], hint), value, key)
        else:
            values[name] = _check_value(hint, value, key)
    for field in dataclasses.fields(typing.cast(Any, kind)):
        if field.default is field.default_factory and field.name not in values:  # both are missing
            raise Refused(f"{path} has no {field.name}, which has no default; set it there")
    return kind(**values)


def _check_value(hint: Any, value: Any, key: str) -> Any:
    # NumPy's float64 is a float too.
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise Refused(f"{key} is {value}; it must be a finite number")
        return float(value)
    if type(value) is not hint:
        raise Refused(f"{key} is {value!r}; it must be of type {hint.__name__}")
    return value


class WrongArgument(Refused):
    """Signal a value that an argument of a config file does not take, or a second value."""


def arguments(text: str, **defaults: str | float | tuple[str, ...]) -> dict[str, Any]:
    """Parse the text after the colon in --config=FILE:NAME=VALUE,...; `defaults` has all names.

    The default of a choice is the tuple of allowed values, the default value first. Other values
    have the type of their default; numbers are 0 or more.

    Raises:
      Refused: a name that the config does not have.
      WrongArgument: a value that the config does not have, or a name twice.
    """
    usual = {name: each[0] if isinstance(each, tuple) else each for name, each in defaults.items()}
    given: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name in given:
            raise WrongArgument(f"--config=...:{text} sets {name!r} twice")
        if not equals or name not in defaults:
            problem = f" sets {name!r}" if equals else f": {part!r} is not NAME=VALUE"
            raise Refused(f"--config=...:{text}{problem}; this config takes {', '.join(defaults)}")
        allowed = defaults[name]
        if isinstance(allowed, tuple) and value not in allowed:
            raise WrongArgument(
                f"{name} is {value!r}; give one of {', '.join(dict.fromkeys(allowed))}"
            )
        try:
            given[name] = parse_text(type(usual[name]), value)
        except Refused as error:
            raise WrongArgument(f"{name} is {value!r}; {error}") from None
        if isinstance(given[name], int | float) and given[name] < 0:
            raise WrongArgument(f"{name} is {value!r}; it must be 0 or more")
    return {**usual, **given}


def recorded(config: Any) -> dict[str, Any]:
    """Return a config as run records store it: without settings that apply to a single start."""
    view = dataclasses.asdict(config)
    view["checkpoint"].pop("fresh")
    view.pop("log")
    return view


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """Map flat keys to the values of a config, or of one read from JSON.

    Keys are flag names without "config.", as phases[0].steps, and begin with `key`.
    """
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        parts = {f"{key}.{name}" if key else name: part for name, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"{key}[{number}]": part for number, part in enumerate(value)}
    else:
        return {key: value}
    return {
        path: each for name, part in parts.items() for path, each in flatten(part, name).items()
    }


def set_fields(config: Kind, settings: Mapping[str, Any]) -> Kind:
    """Return a config with other values of fields, by flat keys such as phases[1].steps."""
    for key, value in settings.items():
        config = _set_field(config, key, value)
    return config


def _set_field(config: Any, key: str, value: Any) -> Any:
    part, _, rest = key.partition(".")
    name, _, number = part.partition("[")
    if number:
        parts, index = list(getattr(config, name)), int(number[:-1])
        parts[index] = _set_field(parts[index], rest, value)
        value = tuple(parts)
    elif rest:
        value = _set_field(getattr(config, name), rest, value)
    return dataclasses.replace(config, **{name: value})
