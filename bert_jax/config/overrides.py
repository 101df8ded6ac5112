"""Read the config from a command line: a file, and flags that override its fields.

    --config=FILE[:NAME=VALUE,...] --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000

A flag names a path through the dataclass of settings, and its value must match the field's type.
Every error names the flag, its value and what is allowed.
"""

import contextlib
import copy
import dataclasses
import difflib
import functools
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import RequiredValueError

from bert_jax import config as config_lib
from bert_jax.config.config_dict import WrongArgument
from bert_jax.config.finetune_schema import FinetuneConfig
from data_pipeline.io import Refused
from data_pipeline.spec.fields import parse_text, shorten

_FLAG = re.compile(r"--?config\.([^=]*)(?:=(.*))?", re.DOTALL)
_COLON = re.compile(r"(?<=\.py):")  # separates FILE:TEXT; folders may have colons too
# ml_collections writes all fields with their values if a file sets one that is not there.
_OTHER_FIELDS = re.compile(r' Other fields present: "{.*}"(?:\\+n)?', re.DOTALL)
_INDEX = re.compile(r"\[-?\d{1,99}\]")  # int() refuses thousands of digits

_MIN_SHARE = 0.5  # paths are similar from this share of common words on
# Abbreviations -> the words that they stand for.
_SHORT = {"lr": "learning rate", "save": "checkpoint", "logging": "log", "len": "length"}

# Groups that fine-tuning derives from other settings, and which settings to use instead.
_RESOLVED = {
    "phases": "set config.epochs, config.batch_size and config.data.max_seq_length",
    "eval": "set config.evaluations_per_epoch; all examples are evaluated",
}

# Fields of a phase -> fields of the run that apply where the phase's is empty.
_PHASE_SETTINGS = {
    "restart_learning_rate": "optim.learning_rate",
    "restart_decay": "optim.decay",
    "restart_end_learning_rate": "optim.end_learning_rate",
    "objective": "objective",
    "masked_lm_prob": "data.masked_lm_prob",
    "global_rope_theta": "model.global_rope_theta",
    "local_rope_theta": "model.local_rope_theta",
    "store_weights": "data.store_weights",
    "store_temperature": "data.store_temperature",
}


@dataclasses.dataclass(frozen=True)
class Override:
    """Hold a field set on the command line, as text."""

    path: str  # the flag's name without "config."
    text: str

    def __str__(self) -> str:
        return f"--config.{self.path}={shorten(self.text)}"


def take(arguments: Sequence[str], kind: Any) -> tuple[list[Override], list[str]]:
    """Separate the overrides of a config from the other arguments of a command line."""
    overrides: list[Override] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            return overrides, [*rest, argument, *waiting]
        flag = _FLAG.fullmatch(argument)
        if flag is None:
            rest.append(argument)
            continue
        path, text = flag.groups()
        if text is None:
            follower = waiting[0] if waiting else ""
            is_bool = _list_fields(kind).get(_INDEX.sub("[0]", path)) is bool
            is_bare = is_bool and follower.lower() not in ("true", "false")
            text = "true" if is_bare else waiting.pop(0) if waiting else None
        if text is None or text.startswith("--"):
            raise Refused(f"--config.{path} has no value; write --config.{path}=VALUE")
        overrides.append(Override(path, text))
    return overrides, rest


def load(
    kind: type[config_lib.Kind],
    place: str,
    find: Callable[[str], str],
    overrides: Sequence[Override],
) -> config_lib.Kind:
    """Return the settings of --config=PLACE with its overrides; `find` locates the file.

    Raises:
      Refused: names the file and its line, or the field, its value and what is allowed.
    """
    file, *texts = _COLON.split(place.removesuffix(":"), 1)
    path = find(file)
    view = _run_file(path, texts)
    _check_kind(kind, view, file)
    view = ConfigDict(view)  # thaws a FrozenConfigDict
    with view.unlocked(), contextlib.suppress(RequiredValueError):  # settings_from refuses these
        if isinstance(phases := view.get("phases"), list | tuple):
            view.phases = tuple(
                config_lib.to_config_dict(each) if isinstance(each, config_lib.Phase) else each
                for each in phases
            )
    _complete(view, config_lib.to_config_dict(kind()))
    for override in overrides:
        _set(kind, view, override)
    return config_lib.settings_from(kind, view)


def move_arguments(
    kind: type[Any], place: str, find: Callable[[str], str], overrides: Sequence[Override]
) -> tuple[str, tuple[Override, ...]]:
    """Move overrides that are arguments of the config file into --config=PLACE; return the others.

    So --config.shape=modernbert is --config=FILE:shape=modernbert where the file has an argument
    of this name.

    Raises:
      WrongArgument: the file takes the argument, but not this value, or it is given twice.
    """
    fields, rest = typing.get_type_hints(kind), []
    for override in overrides:
        if not place or not override.path.isidentifier() or override.path in fields:
            rest.append(override)
            continue
        file, *texts = _COLON.split(place.removesuffix(":"), 1)
        text = ",".join([*texts, f"{override.path}={override.text}"])
        try:
            _run_file(find(file), [text])
            place = f"{file}:{text}"
        except WrongArgument:
            raise
        except Refused:  # the file takes no such text
            rest.append(override)
    return place, tuple(rest)


def find_kept_settings(
    config: config_lib.Config, overrides: Sequence[Override]
) -> list[tuple[str, str]]:
    """Return a (label, warning) row for each setting of a phase that makes an override ineffective.

    The config file sets a value for the phase, as quickstart.py sets a learning rate, and the
    override sets the run's value, which the phase would use only if it had none of its own.
    """
    texts = {override.path: override.text for override in overrides}
    rows = []
    for index, phase in enumerate(config.phases):
        for name, path in _PHASE_SETTINGS.items():
            value = getattr(phase, name)
            places = {f"phases[{i}].{name}" for i in (index, index - len(config.phases))}
            if not value or path not in texts or places & texts.keys():
                continue
            if value != _parse_value(type(value), texts[path]):
                words = (
                    f"config.{path} = {texts[path]} does not change "
                    f"config.phases[{index}].{name}={value}, which the phase sets: change that too"
                )
                rows.append(("! phases", words))
    return rows


def _check_kind(kind: type[Any], view: ConfigDict, file: str) -> None:
    """Raise if a pre-training config is given for fine-tuning, or vice versa."""
    for other in (config_lib.Config, FinetuneConfig):
        names = {field.name for field in dataclasses.fields(other)}
        if other is not kind and set(view.keys()) == names:
            purpose, commands, _ = other.PURPOSE
            ours, _, right = kind.PURPOSE
            raise Refused(
                f"--config={file} is a config of {purpose}, for {commands}; this command is for "
                f"{ours}: give one such as --config={right}"
            )


def _run_file(path: str, arguments: list[str]) -> ConfigDict:
    """Execute a config file and call its get_config."""
    name = "config_config"
    spec = importlib.util.spec_from_file_location(name, file := os.path.abspath(path))
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise Refused(f"--config={path} is not a Python file; its name must end in .py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        # Without bytecode, which would be stale after two edits within a second.
        exec(spec.loader.source_to_code(spec.loader.get_data(file), file), vars(module))
        if not callable(getattr(module, "get_config", None)):
            raise Refused("it has no get_config(), the function that returns the config")
        signature = inspect.signature(module.get_config)
        try:
            signature.bind(*arguments)
        except TypeError:
            signature = signature.replace(return_annotation=signature.empty)
            raise Refused(
                f"its get_config{signature} does not fit: it is called with "
                f"{repr(arguments[0]) if arguments else 'nothing'}, the text after the colon of "
                "--config=FILE:TEXT"
            ) from None
        view = module.get_config(*arguments)
    except (Exception, SystemExit) as error:
        kind = WrongArgument if isinstance(error, WrongArgument) else Refused
        raise kind(_describe_error(error, path)) from error
    if not isinstance(view, ConfigDict):
        raise Refused(
            f"--config={path}: get_config() returned {shorten(repr(view))}; it must return "
            "to_config_dict(...) of a config"
        )
    return view


def _describe_error(error: BaseException, path: str) -> str:
    """Describe an error raised by a config file, with the line of the file that caused it."""
    file = os.path.abspath(path)
    if isinstance(error, SyntaxError) and error.filename == file:
        line: int | None = error.lineno
        message = f"not Python: {error.msg}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
        message = " ".join(_OTHER_FIELDS.sub(" ", str(error)).split())
        if not isinstance(error, ValueError):
            message = f"{type(error).__name__}: {message}"
    return f"--config={path}{f', line {line}' if line else ''}: {message}"


def _complete(view: ConfigDict, defaults: ConfigDict) -> None:
    """Add the groups and settings that a file leaves out, so that flags can set them."""
    with view.unlocked():
        for name, default in defaults.items():
            if name not in view:
                view[name] = default
            elif isinstance(default, ConfigDict) and isinstance(view[name], ConfigDict):
                _complete(view[name], default)


def _set(kind: type[Any], view: ConfigDict, override: Override) -> None:
    try:
        value = _parse_value(_find_type(kind, override.path), override.text)
    except ValueError as error:
        raise Refused(f"{override}: {error}") from error
    *groups, leaf = override.path.split(".")
    holder: Any = view
    for text in groups:
        name, _, index = text.removesuffix("]").partition("[")
        group, holder = holder, holder[name]
        if not index:
            continue
        if not isinstance(holder, tuple):
            return  # settings_from refuses the file
        if not -len(holder) <= int(index) < len(holder):
            raise Refused(
                f"{override}: this config has {len(holder) or 'no'} {name}, counted from 0"
            )
        entries = list(holder)
        # Copied, since other entries may be the same object.
        holder = entries[int(index)] = copy.copy(entries[int(index)])
        group[name] = tuple(entries)
    if not isinstance(holder, ConfigDict):
        return  # settings_from refuses the file
    with holder.ignore_type(), holder.unlocked():  # types are checked above and in settings_from
        holder[leaf] = value


@functools.cache
def _list_fields(kind: Any) -> dict[str, Any]:
    """Map the path of every field that a flag can set to its type; a tuple counts as its [0]."""
    fields: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        is_tuple = isinstance(hint, types.GenericAlias)
        part = typing.get_args(hint)[0] if is_tuple else hint
        if dataclasses.is_dataclass(part):
            group = f"{name}[0]" if is_tuple else name
            below = _list_fields(typing.cast(Any, part))
            fields |= {f"{group}.{path}": each for path, each in below.items()}
        else:
            fields[name] = hint
    return fields


def _find_type(kind: Any, path: str) -> Any:
    """Return the type of the field at a path; raise Refused, with a way out, if there is none."""
    fields, first = _list_fields(kind), _INDEX.sub("[0]", path)
    if first in fields:
        return fields[first]
    bracketed = re.sub(r"\.(-?\d+)(?=\.|$)", r"[\1]", path)
    if bracketed != path:
        raise Refused(f"an index is written in brackets; write --config.{bracketed}=VALUE")
    if kind is FinetuneConfig and (group := re.split(r"[.\[]", path)[0]) in _RESOLVED:
        raise Refused(f"fine-tuning has no such field; {_RESOLVED[group]}")
    for group in (path, f"{path}[0]"):
        if names := _name_fields(fields, _INDEX.sub("[0]", group)):
            raise Refused(
                f"that is a group of settings; set one of them: --config.{group}.{names[0]}=VALUE; "
                f"its fields are {', '.join(names)}"
            )
    if near := near_fields(kind, path):
        raise Refused(f"there is no such field; did you mean {' or '.join(near)}?")
    names = _name_fields(fields, first.rpartition(".")[0])
    place = f"config.{path.rpartition('.')[0]}" if names else "config"
    names = names or [field.name for field in dataclasses.fields(kind)]
    raise Refused(f"there is no such field; the fields of {place} are {', '.join(names)}")


def _name_fields(fields: Iterable[str], group: str) -> list[str]:
    """List the names of the fields in a group of settings."""
    prefix = f"{group}."
    return [path.removeprefix(prefix) for path in fields if path.startswith(prefix)]


def near_fields(kind: Any, name: str) -> list[str]:
    """Return the flags of up to three fields whose paths share the most words with a name."""
    wanted = _split_words(name)
    shares = {path: _compare_paths(wanted, _split_words(path)) for path in _list_fields(kind)}
    best = max(shares.values())
    near = [path for path, share in shares.items() if share >= max(_MIN_SHARE, best - 0.05)]
    near.sort(key=lambda path: -difflib.SequenceMatcher(None, path, name).ratio())
    return [f"--config.{path}" for path in near[:3]]


def _split_words(path: str) -> dict[str, float]:
    """Return the words of a path with their weights; the words of its groups count half."""
    *groups, leaf = re.sub(r"\[.*?\]", "", path.lower()).split(".")
    return {
        part: weight
        for text, weight in ((".".join(groups), 0.5), (leaf, 1.0))
        for word in re.findall(r"[a-z]+[0-9]*", text)
        for part in _SHORT.get(word, word).split()
    }


def _compare_paths(wanted: Mapping[str, float], words: Mapping[str, float]) -> float:
    """Return the weighted share, from 0 to 1, of words that are alike in two paths.

    It is 0 if no word in the last part of the second path is like one of the first path.
    """
    nearest = {word: max(words, key=lambda other: _compare_words(word, other)) for word in wanted}
    alike = {word: near for word, near in nearest.items() if _compare_words(word, near) >= 0.75}
    if all(words[near] < 1.0 for near in alike.values()):
        return 0.0
    common = sum(
        _compare_words(word, near) * (wanted[word] + words[near]) for word, near in alike.items()
    )
    return common / sum([*wanted.values(), *words.values()])


def _compare_words(word: str, other: str) -> float:
    starts = min(len(word), len(other)) >= 3 and (word.startswith(other) or other.startswith(word))
    return max(0.8 if starts else 0.0, difflib.SequenceMatcher(None, word, other).ratio())


def _parse_value(hint: Any, text: str) -> Any:
    """Parse a value as the field's type; refuse quotation marks that the shell left around text."""
    if hint is str and (text[:1] in ("'", '"') or text[-1:] in ("'", '"')):
        raise Refused("it must be text without quotation marks around it")
    return parse_text(hint, text)
