"""What every entry shares: reading --config with its overrides, and errors as one sentence."""

import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.exit_codes import BAD_NUMBERS, BY_SIGNAL, FAILED, Refused
from data_pipeline import ctrl_c, passing
from data_pipeline.exit_code import INTERRUPTED, REFUSED, in_words
from data_pipeline.library_log import LibraryLog
from data_pipeline.live_line import LINE
from data_pipeline.small_files import DamagedFile

BROKEN_PIPE = BY_SIGNAL + signal.SIGPIPE

CONFIG_HELP = "config file, such as configs/base.py or configs/large.py:recipe=lamb64k"

Prepare = Callable[[LibraryLog, list[str]], Callable[[], int]]

# In JAX's reason for not starting a device: it is absent, and will be when asked again.
_ABSENT = re.compile(r"NOT_FOUND|not in the list of known backends")

_PACKAGE = pathlib.Path(__file__).resolve().parent


def config_flag() -> flags.FlagHolder:
    """Define --config=FILE[:NAME=VALUE,...], whose fields --config.FIELD=VALUE overrides."""
    return config_flags.DEFINE_config_file("config", None, CONFIG_HELP)


def find_config(path: str) -> str:
    """A config file given by a path, or one of ours by the path it has in our source tree.

    configs/ lies beside the package in a source tree and inside it where a wheel is installed.
    """
    if pathlib.Path(path).is_file():
        return path
    for home in (_PACKAGE.parent, _PACKAGE):
        if (home / path).is_file():
            return str(home / path)
    ours = sorted(
        str(found.relative_to(home))
        for home in (_PACKAGE.parent, _PACKAGE)
        for found in (home / "configs").glob("*.py")
        if found.name != "__init__.py"
    )
    raise ValueError(f"--config={path}: there is no such file; ours are {', '.join(ours)}")


def _with_found_config(argv: Sequence[str]) -> list[str]:
    """Replace the file of --config=FILE or --config FILE by where it lies."""
    found = list(argv)
    for i, argument in enumerate(found):
        name, equals, value = argument.partition("=")
        if name not in ("--config", "-config"):
            continue
        if not equals and i + 1 < len(found):
            found[i], value, found[i + 1] = "", found[i + 1], ""
        path, colon, arguments = value.partition(":")
        found[i] = f"--config={find_config(path)}{colon}{arguments}"
    return [argument for argument in found if argument]


def resolved(flag: flags.FlagHolder) -> Config:
    """The Config that --config and its overrides give; resolved_as, of pre-training."""
    return resolved_as(Config, flag)


def resolved_as(kind: type[config_lib.Kind], flag: flags.FlagHolder) -> config_lib.Kind:
    """The settings of a kind that --config and its overrides give.

    Raises:
      ValueError: no --config, or a field of the wrong type.
    """
    if flag.value is None:
        raise ValueError(
            "--config is missing; give --config=configs/tiny.py, or another of ours or yours"
        )
    return config_lib.settings_from(kind, flag.value)


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


def config_arguments(arguments: Sequence[str]) -> list[str]:
    """What of a command line is --config and its fields, for another entry that takes them."""
    kept = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, _ = argument.lstrip("-").partition("=")
        if argument.startswith("-") and (name == "config" or name.startswith("config.")):
            kept += [argument] if equals else [argument, following]
    return kept


def refuse_arguments(arguments: Sequence[str], usage: str) -> None:
    """Raise if there is an argument that is no flag, for an entry that takes none."""
    if arguments:
        raise ValueError(f"{arguments[0]!r} is not a flag; usage: {usage}")


def _parsed_flags() -> list[str]:
    """Parse sys.argv and return what is no flag, or raise ValueError with one sentence."""
    try:
        rest = flags.FLAGS(_with_found_config(sys.argv))
    except flags.Error as error:
        raise ValueError(_first_sentence(error)) from error
    except IndexError as error:
        numbered = [argument for argument in sys.argv if "[" in argument]
        raise ValueError(
            f"{' '.join(numbered)}: the config has fewer phases than that; they count from 0"
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        # What ml_collections lets through of a path into the config that leads nowhere.
        overrides = [argument for argument in sys.argv if argument.startswith("--config.")]
        raise ValueError(
            f"not a field of the config: {_plain(error)} (in {' '.join(overrides)})"
        ) from error
    return list(rest[1:])


def _help(usage: str) -> str:
    entry = sys.modules["__main__"]
    listed = (
        flags.FLAGS.main_module_help().strip().split("\n", 1)[1]
    )  # its heading is the file's path
    config = f"  --config: {CONFIG_HELP}\n" if "config" in flags.FLAGS else ""
    return f"{entry.__doc__}\nusage: {usage}\n{config}{listed}"


def _plain(error: Exception) -> str:
    """The message on one line, without the quotes that a KeyError puts around it."""
    words = str(error).replace("\\n", "; ").translate(str.maketrans("", "", "\\\"'"))
    return " ".join(words.split())


def _first_sentence(error: flags.Error) -> str:
    """What is wrong with a flag; for an error inside a config file, what that file said."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "parsing config file" not in lines[0]:
        return lines[0]
    return lines[-1].partition("Error: ")[2] or lines[-1]
