"""Read the flags of the commands that still define them with absl; run() is cli.run."""

import copy
import dataclasses
import difflib
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from bert_jax import config as config_lib
from bert_jax.config import Config, overrides
from bert_jax.runtime import cli
from bert_jax.runtime.cli import find_config as find_config
from bert_jax.runtime.cli import preparing as preparing
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.refused import Refused
from data_pipeline.spec.fields import shorten

# Flags that name a model; each command has one or two.
_OF_A_MODEL = ("checkpoint", "from", "workdir", "model", "init")


@dataclasses.dataclass(frozen=True)
class _AbslCommand:
    """Read the flags that absl knows; the values are its flags', the result positional."""

    usage: str
    values: flags.FlagValues

    def read(self, arguments: Sequence[str]) -> list[str]:
        """Read the flags, or raise Refused."""
        return _parse_flags(self.values)

    def format_help(self) -> str:
        """Return the text of --help."""
        return _help(self.usage) + "\n"


def check_command_line(usage: str) -> None:
    """Print --help or the error of a wrong flag and exit, or else return."""
    command: Any = _AbslCommand(usage, copy.deepcopy(flags.FLAGS))
    cli.check_command_line(command)


def run(
    command: Callable[[LibraryLog, list[str]], int],
    usage: str,
    how_to_resume: str,
    argv: Sequence[str] | None = None,
    leave: Callable[[int, str], None] = lambda code, message: None,
    outlives_reader: bool = False,
) -> int:
    """Run a command whose flags absl knows, as cli.run does."""
    absl_command: Any = _AbslCommand(usage, flags.FLAGS)
    return cli.run(absl_command, command, how_to_resume, argv, leave, outlives_reader)


class _AbslConfigFlag(flags.Flag[str]):
    """Represent --config=FILE[:NAME=VALUE,...] and the dataclass that it is read as."""

    def __init__(self, kind: type[Any]) -> None:
        *_, example = kind.PURPOSE
        words = f"config file, such as {example}, with --config.FIELD=VALUE for its fields"
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), "config", None, words)
        self.kind = kind


def config_flag(kind: type[Any] = Config) -> flags.FlagHolder:
    """Define --config=FILE[:NAME=VALUE,...], whose fields --config.FIELD=VALUE overrides."""
    return flags.DEFINE_flag(_AbslConfigFlag(kind))


def load_config(
    kind: type[config_lib.Kind], flag: flags.FlagHolder, default: str = ""
) -> config_lib.Kind:
    """Read a config of the given dataclass from --config, or a default file, and its overrides.

    Raises Refused if --config is missing without a default, or the file or a field cannot be read.
    """
    place = flag.value or default
    if not place:
        known: type[Any] = kind
        *_, example = known.PURPOSE
        raise Refused(
            "--config is missing; give --config=FILE, your own or a bundled one such as "
            f"{example}; --config=configs lists all"
        )
    given, _ = overrides.take(_arguments(), kind)
    return overrides.load(kind, place, lambda path: find_config(path, kind), given)


def config_arguments(flag: flags.FlagHolder) -> list[str]:
    """Return --config and its overrides as given, to pass to a child process."""
    given, _ = overrides.take(_arguments(), _config_kind() or Config)
    return [
        f"--config={flag.value}",
        *(f"--config.{override.path}={override.text}" for override in given),
    ]


def refuse_arguments(arguments: Sequence[str], usage: str) -> None:
    """Raise if there are positional arguments, for a command that takes none."""
    if arguments:
        raise Refused(f"{arguments[0]!r} is not a flag; usage: {usage}")


def _arguments() -> list[str]:
    """Return the command line with --flagfile expanded."""
    return list(flags.FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False))


def _config_kind() -> type[Any] | None:
    """Return the type that --config is read as, None for a command without one."""
    flag = flags.FLAGS["config"] if "config" in flags.FLAGS else None  # noqa: SIM401
    return flag.kind if isinstance(flag, _AbslConfigFlag) else None


def _parse_flags(values: flags.FlagValues) -> list[str]:
    """Set values by sys.argv; return the positional arguments, or raise a one-line Refused."""
    kind = _config_kind()
    try:
        arguments = _arguments()
        if kind is not None:
            _, arguments = overrides.take(arguments, kind)
        rest = values([sys.argv[0], *arguments])
    except flags.UnrecognizedFlagError as error:
        raise Refused(_unknown_flag(error.flagname, error.flagvalue, kind)) from error
    except flags.Error as error:
        raise Refused(_wrong_value(str(error).splitlines()[0])) from error
    for name in values:
        value = values[name].value
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused(f"--{name} is {value}; it must be a finite number")
    return list(rest[1:])


def _unknown_flag(name: str, value: str, kind: type[Any] | None) -> str:
    """Describe an unknown flag, with similar flags or config fields."""
    given = shorten(value) if value.startswith("-") else f"--{name}"
    if kind is None and name.partition(".")[0] == "config":
        return f"{given}: this command takes no --config"
    models = [f"--{flag}" for flag in ("checkpoint", "from") if flag in flags.FLAGS]
    if name == "workdir" and models:
        _, _, place = value.partition("=")
        return f"--workdir: this command takes the model as {models[0]}={place or 'ADDRESS'}"
    written = name.replace("-", "_")
    near = difflib.get_close_matches(written, list(flags.FLAGS), 2, 0.75)
    similar = [f"--{flag}" for flag in near]
    if name in _OF_A_MODEL:
        near = [flag for flag in _OF_A_MODEL if flag in flags.FLAGS]
        similar = [f"--{flag}" for flag in near]
        if kind is not None:
            similar.append("--config.init")
    elif kind is not None and not near:
        similar = overrides.near_fields(kind, written)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "--help lists the flags"
    return f"{given}: there is no such flag; {hint}"


def _wrong_value(message: str) -> str:
    """Describe the allowed values of a flag, in place of absl's int() or float() message."""
    given = re.match(r"flag --(\w+)=(.*?): ", message)
    parser = flags.FLAGS[given[1]].parser if given and given[1] in flags.FLAGS else None
    kinds: dict[type, str] = {
        flags.IntegerParser: "a whole number",
        flags.FloatParser: "a number",
        flags.BooleanParser: "True or False",
    }
    allowed = next((kinds[kind] for kind in kinds if isinstance(parser, kind)), None)
    if isinstance(parser, flags.EnumParser):
        allowed = f"one of {', '.join(filter(None, parser.enum_values))}"
    elif isinstance(parser, flags.IntegerParser) and parser.lower_bound is not None:
        allowed = parser.syntactic_help
    if given is None or allowed is None or "not within" in message or "must be" in message:
        return message
    return f"--{given[1]} is {shorten(given[2])!r}; it must be {allowed}"


def _help(usage: str) -> str:
    entry = sys.modules["__main__"]
    _, listed = flags.FLAGS.main_module_help().strip().split("\n", 1)  # heading: the file's path
    config = ""
    if "config" in flags.FLAGS and "--config: " not in listed:
        config = f"  --config: {flags.FLAGS['config'].help}\n"
    return f"{entry.__doc__}\nusage: {usage}\n{config}{listed}"
