"""What every entry shares: reading --config with its overrides, and errors as one sentence."""

import difflib
import math
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from bert_jax import config as config_lib
from bert_jax import overrides
from bert_jax.config import Config
from bert_jax.exit_codes import BAD_NUMBERS, BY_SIGNAL, FAILED, Refused
from data_pipeline import ctrl_c, passing
from data_pipeline.exit_code import INTERRUPTED, REFUSED, in_words
from data_pipeline.library_log import LibraryLog
from data_pipeline.live_line import LINE
from data_pipeline.small_files import DamagedFile

BROKEN_PIPE = BY_SIGNAL + signal.SIGPIPE

_CONFIG_HELP = "config file, such as {}, with --config.FIELD=VALUE for its fields"

Prepare = Callable[[LibraryLog, list[str]], Callable[[], int]]

# In JAX's reason for not starting a device: it is absent, and will be when asked again.
_ABSENT = re.compile(r"NOT_FOUND|not in the list of known backends")

# Flags that name a model, of which each entry has one or two.
_OF_A_MODEL = ("checkpoint", "from", "workdir", "model", "init")

_PACKAGE = pathlib.Path(__file__).resolve().parent


class _ConfigFlag(flags.Flag[str]):
    """--config=FILE[:NAME=VALUE,...], and the kind of settings that it is read as."""

    def __init__(self, kind: type[Any]) -> None:
        *_, example = overrides.KINDS[kind]
        words = _CONFIG_HELP.format(example)
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), "config", None, words)
        self.kind = kind


def config_flag(kind: type[Any] = Config) -> flags.FlagHolder:
    """Define --config=FILE[:NAME=VALUE,...], whose fields --config.FIELD=VALUE overrides."""
    return flags.DEFINE_flag(_ConfigFlag(kind))


def find_config(path: str) -> str:
    """A config file given by a path, or one of ours by the path it has in our source tree.

    configs/ lies beside the package in a source tree and inside it where a wheel is installed.
    """
    if pathlib.Path(path).is_file():
        return path
    for home in (_PACKAGE.parent, _PACKAGE):
        if (home / path).is_file():
            return str(home / path)
    what = "that is a folder" if pathlib.Path(path).is_dir() else "there is no such file"
    raise ValueError(f"--config={path}: {what}; ours are {_our_configs()}")


def _our_configs() -> str:
    """List those of the kind that the command takes."""
    is_of_a_task = _kind_of_config() not in (None, Config)
    folder = "configs/finetune" if is_of_a_task else "configs"
    return ", ".join(
        sorted(
            str(found.relative_to(home))
            for home in (_PACKAGE.parent, _PACKAGE)
            for found in (home / folder).glob("*.py")
            if found.name != "__init__.py"
        )
    )


def resolved(flag: flags.FlagHolder) -> Config:
    """The Config that --config and its overrides give; resolved_as, of pre-training."""
    return resolved_as(Config, flag)


def resolved_as(kind: type[config_lib.Kind], flag: flags.FlagHolder) -> config_lib.Kind:
    """The settings of a kind that --config and its overrides give.

    Raises:
      ValueError: no --config, or a file or a field that cannot be read.
    """
    if not flag.value:
        raise ValueError(
            f"--config is missing; give --config=FILE, one of yours or of ours: {_our_configs()}"
        )
    given, _ = overrides.take(_arguments(), kind)
    return overrides.load(kind, flag.value, find_config, given)


def _stays(code: int, message: str) -> None:
    """Most entries end as Python does."""


def run(
    prepare: Prepare, usage: str, way_on: str, leave: Callable[[int, str], None] = _stays
) -> None:
    """Parse the command line, prepare, do the work that prepare returns, exit with its code.

    prepare gets the log that can hold what libraries write, and the arguments that are no flags.
    A ValueError or OSError up to there becomes one line on stderr and exit code 2, or 1 where the
    disk or the bucket may do later what it does not do now. The work may end with an OSError, one
    line and exit code 1, with Refused or DamagedFile, one line and exit code 2, or with a
    FloatingPointError, that of the guard of bad numbers, one line and exit code 3; any other error
    of it is ours, and shows where it came from. way_on ends the line of work that was cut off.
    leave is told the code and the message, and may end the process in another way.
    """
    LINE.show("")  # libraries are imported
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(_help(usage))
        sys.exit(0)
    try:
        with LibraryLog() as log:
            code, message = _done(prepare, log, way_on)
            if message:
                log.say(message)
    except Exception as error:
        leave(FAILED, f"{type(error).__name__}: {error}")
        raise
    leave(code, message)
    sys.exit(code)


def _done(prepare: Prepare, log: LibraryLog, way_on: str) -> tuple[int, str]:
    """Exit code, and what is to be said on stderr."""
    try:
        return _outcome(prepare, log, way_on)
    except (RuntimeError, AssertionError) as error:
        missing = _missing_device(error)
        if missing is None:
            raise
        code, message = missing
        return code, f"error: {message}"


def _missing_device(error: RuntimeError | AssertionError) -> tuple[int, str] | None:
    """Return exit code and sentence where JAX lacks the device it was told to use, else None.

    JAX raises a RuntimeError wherever it first touches a device that does not start, and a bare
    AssertionError for JAX_PLATFORMS=cuda on a machine without a GPU.
    """
    jax: Any = sys.modules.get("jax")  # an entry that never imports it is not slowed down
    if jax is None:
        return None
    platforms = jax.config.jax_platforms or ""
    wanted = f"JAX_PLATFORMS is {platforms!r}" if platforms else "JAX_PLATFORMS is not set"
    _, is_of_backends, reason = str(error).partition("Unable to initialize backend ")
    if is_of_backends:
        # The reason follows the name of the platform; advice in brackets ends it.
        reason = reason.splitlines()[0].partition(": ")[2].partition(" (set JAX_PLATFORMS")[0]
        reason = reason.partition(" (you may need")[0].rstrip(".")
        if not _ABSENT.search(reason):
            return FAILED, (
                f"{wanted}, and JAX cannot start that device now: {reason}; end what else uses it "
                "and try again, or set JAX_PLATFORMS=cpu"
            )
    elif isinstance(error, RuntimeError) or not platforms or _finds_devices(jax):
        return None
    return REFUSED, (
        f"{wanted}, but JAX finds no such device here{f' ({reason})' if reason else ''}; unset it "
        "to use what this machine has, or install JAX for the device: pip install '.[gpu]' or "
        "'.[tpu]'"
    )


def _finds_devices(jax: Any) -> bool:
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        return False
    return True


def _outcome(prepare: Prepare, log: LibraryLog, way_on: str) -> tuple[int, str]:
    try:
        arguments = _parsed_flags()
        with LINE.doing("getting ready"):
            work = prepare(log, arguments)
    except OSError as error:
        # Another process, a bucket or a mounted folder may answer the next time.
        code = FAILED if passing.is_of_the_moment(error) else REFUSED
        return code, f"error: {in_words(error)}"
    except ValueError as error:
        return REFUSED, f"error: {error}"
    except KeyboardInterrupt:
        return INTERRUPTED, f"interrupted; {way_on}"
    ctrl_c.raises_again()
    try:
        code = work()
        sys.stdout.flush()
        return code, ""
    except BrokenPipeError:  # whoever read the output has gone, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE, ""
    except OSError as error:
        return FAILED, f"error: {in_words(error)}; {way_on}"
    except (Refused, DamagedFile) as error:
        return REFUSED, f"error: {error}"
    except FloatingPointError as error:
        return BAD_NUMBERS, f"error: {error}"
    except KeyboardInterrupt:
        return INTERRUPTED, f"interrupted; {way_on}"


def config_arguments(flag: flags.FlagHolder) -> list[str]:
    """What of the command line is --config and its fields, for another entry that takes them."""
    given, _ = overrides.take(_arguments(), _kind_of_config() or Config)
    return [f"--config={flag.value}", *(f"--config.{one.path}={one.text}" for one in given)]


def refuse_arguments(arguments: Sequence[str], usage: str) -> None:
    """Raise if there is an argument that is no flag, for an entry that takes none."""
    if arguments:
        raise ValueError(f"{arguments[0]!r} is not a flag; usage: {usage}")


def _arguments() -> list[str]:
    """The command line with what --flagfile names in its place."""
    return list(flags.FLAGS.read_flags_from_files(sys.argv[1:], force_gnu=False))


def _kind_of_config() -> type[Any] | None:
    """What --config is read as, None for an entry without one."""
    flag = flags.FLAGS["config"] if "config" in flags.FLAGS else None  # noqa: SIM401
    return flag.kind if isinstance(flag, _ConfigFlag) else None


def _parsed_flags() -> list[str]:
    """Parse sys.argv and return what is no flag, or raise ValueError with one sentence."""
    kind = _kind_of_config()
    try:
        arguments = _arguments()
        if kind is not None:
            _, arguments = overrides.take(arguments, kind)
        rest = flags.FLAGS([sys.argv[0], *arguments])
    except flags.UnrecognizedFlagError as error:
        raise ValueError(_unknown_flag(error.flagname, error.flagvalue, kind)) from error
    except flags.Error as error:
        raise ValueError(_wrong_value(str(error).splitlines()[0])) from error
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--{name} is {value}; it must be a finite number")
    return list(rest[1:])


def _unknown_flag(name: str, value: str, kind: type[Any] | None) -> str:
    """Say that there is no such flag, and which flags or fields of the config are like it."""
    given = overrides.shortened(value) if value.startswith("-") else f"--{name}"
    if kind is None and name.partition(".")[0] == "config":
        return f"{given}: this command takes no --config"
    models = [f"--{one}" for one in ("checkpoint", "from") if one in flags.FLAGS]
    if name == "workdir" and models:
        _, _, place = value.partition("=")
        return f"--workdir: this command takes the model as {models[0]}={place or 'ADDRESS'}"
    written = name.replace("-", "_")
    near = difflib.get_close_matches(written, list(flags.FLAGS), 2, 0.75)
    similar = [f"--{one}" for one in near]
    if name in _OF_A_MODEL:
        near = [one for one in _OF_A_MODEL if one in flags.FLAGS]
        similar = [f"--{one}" for one in near]
        if kind is not None:
            similar.append("--config.init")
    elif kind is not None and not near:
        similar = overrides.near_fields(kind, written)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "--help lists the flags"
    return f"{given}: there is no such flag; {hint}"


def _wrong_value(message: str) -> str:
    """Say what a flag's value must be, where absl says what Python's int() or float() did."""
    given = re.match(r"flag --(\w+)=(.*?): ", message)
    parser = flags.FLAGS[given[1]].parser if given and given[1] in flags.FLAGS else None
    kinds: dict[type, str] = {
        flags.IntegerParser: "a whole number",
        flags.FloatParser: "a number",
        flags.BooleanParser: "True or False",
    }
    if isinstance(parser, flags.EnumParser):
        allowed: str | None = f"one of {', '.join(parser.enum_values)}"
    else:
        allowed = next((kinds[one] for one in kinds if isinstance(parser, one)), None)
    if given is None or allowed is None or "not within" in message or "must be" in message:
        return message
    return f"--{given[1]} is {overrides.shortened(given[2])!r}; it must be {allowed}"


def _help(usage: str) -> str:
    entry = sys.modules["__main__"]
    listed = (
        flags.FLAGS.main_module_help().strip().split("\n", 1)[1]
    )  # its heading is the file's path
    has_config = "config" in flags.FLAGS
    config = f"  --config: {flags.FLAGS['config'].help}\n" if has_config else ""
    return f"{entry.__doc__}\nusage: {usage}\n{config}{listed}"
