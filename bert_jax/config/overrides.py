"""Read the config from a command line: a file, and flags that override its fields.

    --config=FILE[:NAME=VALUE,...] --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000

A flag names a path through the dataclass of settings, and its value must match the field's type.
Every error names the flag, its value and what is allowed.
"""

import copy
import dataclasses
import difflib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.schema import FinetuneConfig
from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import parse_text, shorten

_FLAG = re.compile(r"--?config\.([^=]*)(?:=(.*))?", re.DOTALL)
_COLON = re.compile(r"(?<=\.py):")  # of FILE:TEXT; folders may have colons too
_PART = re.compile(r"([A-Za-z_]\w*)(?:\[(-?\d+)\])?")

# Least share of common words between similar paths; abbreviations and what they stand for.
_MIN_SHARE = 0.5
_SHORT = {"lr": "learning rate", "save": "checkpoint", "logging": "log", "len": "length"}

# Groups that fine-tuning derives from other settings, and which settings to use instead.
_RESOLVED = {
    "phases": "set config.epochs, config.batch_size and config.data.max_seq_length",
    "eval": "set config.evaluations_per_epoch; all examples are evaluated",
}

# Fields of a phase, and the fields that it takes where its own is empty.
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

Part = tuple[str, int | None]  # phases[0] is ("phases", 0), optim is ("optim", None)


@dataclasses.dataclass(frozen=True)
class Override:
    """Hold a field set on the command line, as text."""

    path: str  # the flag's name without "config."
    text: str

    def __str__(self) -> str:
        return f"--config.{self.path}={shorten(self.text)}"


def take(arguments: Sequence[str], kind: type[Any]) -> tuple[list[Override], list[str]]:
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
            is_bare = _is_bool(kind, path) and follower.lower() not in ("true", "false")
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
    file, *texts = _COLON.split(place, 1)
    path = find(file)
    view = _run_file(path, texts)
    _check_kind(kind, view, file)
    view = ConfigDict(view)  # thaws a FrozenConfigDict
    _complete(view, config_lib.to_config_dict(kind()))
    for override in overrides:
        if override.path.isidentifier() and override.path not in typing.get_type_hints(kind):
            _refuse_argument(place, path, override)
        _set(kind, view, override)
    return config_lib.settings_from(kind, view)


def _refuse_argument(place: str, path: str, override: Override) -> None:
    """Raise if the file takes an override as text after its colon, such as shape=modernbert."""
    file, *given = _COLON.split(place, 1)
    text = ",".join(filter(None, [*given, f"{override.path}={override.text}"]))
    try:
        _run_file(path, [text])
    except Refused:
        return  # the file takes no such text
    raise Refused(f"{override}: write it after a colon, as --config={file}:{text}")


def find_kept_settings(
    config: config_lib.Config, overrides: Sequence[Override]
) -> list[tuple[str, str]]:
    """Return a (label, warning) row for each setting of a phase that makes an override ineffective.

    The config file sets a value for the phase, as quickstart.py does a learning rate, and the
    override sets the run's value, which the phase would use without its own.
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
        try:
            inspect.signature(module.get_config).bind(*arguments)
        except TypeError:
            raise Refused(
                f"its get_config{inspect.signature(module.get_config)} does not fit: it is called "
                f"with {repr(arguments[0]) if arguments else 'nothing'}, the text after the colon "
                "of --config=FILE:TEXT"
            ) from None
        view = module.get_config(*arguments)
    except (Exception, SystemExit) as error:
        raise Refused(_describe_error(error, path)) from error
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
        message = " ".join(str(error).split())
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
        parts, hint = _find_field(kind, override.path)
        value = _parse_value(hint, override.text)
    except ValueError as error:
        raise Refused(f"{override}: {error}") from error
    holder: Any = view
    for name, index in parts[:-1]:
        group, holder = holder, holder[name]
        if index is None:
            continue
        if not isinstance(holder, tuple):
            return  # settings_from refuses the file
        if not -len(holder) <= index < len(holder):
            raise Refused(
                f"{override}: this config has {len(holder) or 'no'} {name}, counted from 0"
            )
        entries = list(holder)
        holder = entries[index] = copy.copy(entries[index])  # other entries may be the same object
        group[name] = tuple(entries)
    if not isinstance(holder, ConfigDict):
        return  # settings_from refuses the file
    with holder.ignore_type(), holder.unlocked():  # types are checked above and in settings_from
        holder[parts[-1][0]] = value


def _find_field(kind: type[Any], path: str) -> tuple[list[Part], Any]:
    """Return the path to a field, as parts, and its type."""
    hint: Any = kind
    parts: list[Part] = []
    done = ""
    bracketed = re.sub(r"\.(-?\d+)(?=\.|$)", r"[\1]", path)
    if bracketed != path:
        raise Refused(f"a number stands in brackets; write --config.{bracketed}=VALUE")
    for text in path.split("."):
        part = _PART.fullmatch(text)
        fields = typing.get_type_hints(hint) if dataclasses.is_dataclass(hint) else {}
        if part is None or part[1] not in fields:
            raise Refused(_describe_unknown_field(kind, path, done, list(fields)))
        name, index = part[1], part[2]
        hint, done = fields[name], f"{done}.{text}" if done else text
        if isinstance(hint, types.GenericAlias):
            if index is None:
                break
            hint = typing.get_args(hint)[0]
        elif index is not None:
            raise Refused(f"config.{done.partition('[')[0]} has no [{index}]; leave it out")
        parts.append((name, None if index is None else int(index)))
    if isinstance(hint, types.GenericAlias):
        below = typing.get_args(hint)[0]
        raise Refused(f"set a field of one of them: {_name_fields(f'{done}[0]', below)}")
    if dataclasses.is_dataclass(hint):
        raise Refused(f"that is a group of settings; set one of them: {_name_fields(done, hint)}")
    return parts, hint


def _name_fields(done: str, kind: Any) -> str:
    names = [field.name for field in dataclasses.fields(kind)]
    return f"--config.{done}.{names[0]}=VALUE; its fields are {', '.join(names)}"


def _describe_unknown_field(kind: type[Any], path: str, done: str, fields: list[str]) -> str:
    place = f"config.{done}" if done else "config"
    if kind is FinetuneConfig and (group := re.split(r"[.\[]", path)[0]) in _RESOLVED:
        return f"fine-tuning has no such field; {_RESOLVED[group]}"
    if not fields:
        return f"{place} is a single value and has no fields"
    if near := near_fields(kind, path):
        return f"there is no such field; did you mean {' or '.join(near)}?"
    return f"there is no such field; the fields of {place} are {', '.join(fields)}"


def near_fields(kind: type[Any], name: str) -> list[str]:
    """Return the flags of up to three fields whose paths share the most words with a name."""
    wanted = _split_words(name)
    shares = {path: _share_words(wanted, _split_words(path)) for path in _list_fields(kind)}
    best = max(shares.values())
    near = [path for path, share in shares.items() if share >= max(_MIN_SHARE, best - 0.05)]
    near.sort(key=lambda path: -difflib.SequenceMatcher(None, path, name).ratio())
    return [f"--config.{path}" for path in near[:3]]


def _split_words(path: str) -> list[tuple[str, float]]:
    """Return the words of a path with their weights; the words of its groups count half."""
    *groups, leaf = re.sub(r"\[.*?\]", "", path.lower()).split(".")
    return [
        (part, weight)
        for text, weight in ((".".join(groups), 0.5), (leaf, 1.0))
        for word in re.findall(r"[a-z]+[0-9]*", text)
        for part in _SHORT.get(word, word).split()
    ]


def _share_words(wanted: list[tuple[str, float]], words: list[tuple[str, float]]) -> float:
    """Return the share, from 0 to 1, of equal or similar words in two paths.

    0 if no such word is in the last part of the second path.
    """
    total, common, in_leaf = sum(weight for _, weight in [*wanted, *words]), 0.0, False
    rest = list(words)
    for word, weight in wanted:
        nearest = max(rest, key=lambda other: _compare_words(word, other[0]), default=("", 0.0))
        likeness = _compare_words(word, nearest[0])
        if likeness >= 0.75:
            common += likeness * (weight + nearest[1])
            in_leaf |= nearest[1] == 1.0
            rest.remove(nearest)
    return common / total if in_leaf else 0.0


def _compare_words(word: str, other: str) -> float:
    starts = min(len(word), len(other)) >= 3 and (word.startswith(other) or other.startswith(word))
    return max(0.8 if starts else 0.0, difflib.SequenceMatcher(None, word, other).ratio())


def _list_fields(kind: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field that a flag can set; for tuples, of the first entry."""
    for name, hint in typing.get_type_hints(kind).items():
        place = f"{path}.{name}" if path else name
        if isinstance(hint, types.GenericAlias):
            yield from _list_fields(typing.get_args(hint)[0], f"{place}[0]")
        elif dataclasses.is_dataclass(hint):
            yield from _list_fields(hint, place)
        else:
            yield place


def _is_bool(kind: type[Any], path: str) -> bool:
    try:
        return _find_field(kind, path)[1] is bool
    except ValueError:
        return False


def _parse_value(hint: Any, text: str) -> Any:
    """Parse a value as the field's type; refuse quotation marks that the shell left around text."""
    if hint is str and (text[:1] in ("'", '"') or text[-1:] in ("'", '"')):
        raise Refused("it must be text without quotation marks around it")
    return parse_text(hint, text)
