"""Run a command: parse flags and --config, print errors as one line, return the exit code.

A command is `main(argv) -> int`. It passes run() a function that does its setup inside preparing()
and then its work. As a program it first calls check_command_line(), between its flags and its slow
imports. RunFlags are the flags of the commands that train.
"""

import contextlib
import copy
import dataclasses
import difflib
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from absl import flags

from bert_jax import config as config_lib
from bert_jax.config import Config, overrides
from bert_jax.runtime.exit_codes import DONE, FAILED, describe_failure
from data_pipeline.cli import main
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import READER_LEFT, REFUSED, ReaderLeft, describe_os_error
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_no_file
from data_pipeline.io.errors import is_transient
from data_pipeline.io.refused import Refused

Command = Callable[[LibraryLog, list[str]], int]

# Parts of JAX's messages which mean that a device is absent, so a retry cannot help.
_ABSENT = re.compile(r"NOT_FOUND|not in the list of known backends")

# Flags that name a model; each command has one or two.
_OF_A_MODEL = ("checkpoint", "from", "workdir", "model", "init")

_ADDRESS = re.compile(r"gs://[^/]+/+[^/].*")
SCRATCH = "~/.cache/bert_jax"  # default of --scratch

_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


class _ConfigFlag(flags.Flag[str]):
    """Represent --config=FILE[:NAME=VALUE,...] and the dataclass that it is read as."""

    def __init__(self, kind: type[Any]) -> None:
        *_, example = overrides.KINDS[kind]
        words = f"config file, such as {example}, with --config.FIELD=VALUE for its fields"
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), "config", None, words)
        self.kind = kind


def config_flag(kind: type[Any] = Config) -> flags.FlagHolder:
    """Define --config=FILE[:NAME=VALUE,...], whose fields --config.FIELD=VALUE overrides."""
    return flags.DEFINE_flag(_ConfigFlag(kind))


def find_config(path: str) -> str:
    """Find a config file by its path, or a bundled one by its path in the source tree.

    configs/ is beside the package in a source tree and inside it in an installed wheel.
    """
    if pathlib.Path(path).is_file():
        return path
    for home in (_PACKAGE.parent, _PACKAGE):
        if (home / path).is_file():
            return str(home / path)
    kind = "that is a folder" if pathlib.Path(path).is_dir() else "there is no such file"
    raise Refused(f"--config={path}: {kind}; bundled are {_our_configs()}")


def _our_configs() -> str:
    """List the bundled configs for this command."""
    *_, example = overrides.KINDS[_config_kind() or Config]
    folder = example.rpartition("/")[0]
    return ", ".join(
        sorted(
            str(path.relative_to(home))
            for home in (_PACKAGE.parent, _PACKAGE)
            for path in (home / folder).glob("*.py")
            if path.name != "__init__.py"
        )
    )


def load_config(
    kind: type[config_lib.Kind], flag: flags.FlagHolder, default: str = ""
) -> config_lib.Kind:
    """Read a config of the given dataclass from --config, or a default file, and its overrides.

    Raises Refused if --config is missing without a default, or the file or a field cannot be read.
    """
    place = flag.value or default
    if not place:
        *_, example = overrides.KINDS[kind]
        raise Refused(
            "--config is missing; give --config=FILE, your own or a bundled one such as "
            f"{example}; --config=configs lists all"
        )
    given, _ = overrides.take(_arguments(), kind)
    return overrides.load(kind, place, find_config, given)


def find_kept_settings(config: Config) -> list[tuple[str, str]]:
    """Return lines for the screen on phases that this command line's overrides pass over."""
    return overrides.find_kept_settings(config, overrides.take(_arguments(), Config)[0])


class _TryLater(Exception):
    """Signal a transient storage error during setup."""


@contextlib.contextmanager
def preparing() -> Iterator[None]:
    """Turn errors of a command's setup into a refusal: one line on stderr and exit code 2.

    Applies to OSError inside the context; the exit code is 1 for transient storage errors.
    """
    try:
        with LINE.doing("getting ready"):
            yield
    except OSError as error:
        kind = _TryLater if is_transient(error) else Refused
        raise kind(describe_os_error(error)) from error


def check_command_line(usage: str) -> None:
    """Print --help or the error of a wrong flag or variable and exit, or else return.

    A command calls it as a program, before it imports JAX and what builds on it, so that these
    answers do not wait for the imports. The flags keep their defaults until run() sets them.
    """
    if _asks_for_help():
        LINE.show("")
        print(_help(usage))
        sys.exit(DONE)
    try:
        check_jax_settings(os.environ)
        _parse_flags(copy.deepcopy(flags.FLAGS))
    except Refused as error:
        LibraryLog().say(f"error: {error}")
        sys.exit(REFUSED)


_OFF, _ON = ("n", "no", "f", "false", "off", "0"), ("y", "yes", "t", "true", "on", "1")
_PROMOTES = "mixes ranks and types of arrays by JAX's usual rules"
_PLACES = "copies small arrays between the host and its devices as JAX's functions need them"
# Settings of JAX under which nothing here is tested: the values that are, and why not others.
_JAX_SETTINGS = {
    "JAX_ENABLE_X64": (_OFF, "computes in 32 bits and less"),
    "JAX_DISABLE_JIT": (_OFF, "shards arrays in compiled functions alone"),
    "JAX_DEBUG_NANS": (_OFF, "handles them in the step (config.guard)"),
    "JAX_DEBUG_INFS": (_OFF, "handles them in the step (config.guard)"),
    "JAX_CHECK_TRACER_LEAKS": (_OFF, "keeps traced functions"),
    "JAX_NUMPY_RANK_PROMOTION": (("allow", "warn"), _PROMOTES),
    "JAX_NUMPY_DTYPE_PROMOTION": (("standard",), _PROMOTES),
    "JAX_DEFAULT_PRNG_IMPL": (("threefry2x32",), "draws weights and dropout by threefry2x32"),
    "JAX_THREEFRY_PARTITIONABLE": (_ON, "draws alike on any number of devices"),
    "JAX_TRANSFER_GUARD": (("allow", "log", "log_explicit"), _PLACES),
}


def check_jax_settings(environment: Mapping[str, str]) -> None:
    """Raise Refused if a variable of JAX has a value under which the commands are not right."""
    for name, (accepted, reason) in _JAX_SETTINGS.items():
        value = environment.get(name)
        if value is not None and value.lower() not in accepted:
            usual = accepted[-1] if accepted in (_OFF, _ON) else accepted[0]
            raise Refused(
                f"{name} is {overrides.shortened(value)!r}, and bert_jax {reason}; unset it, or "
                f"set {name}={usual}"
            )


def run(
    command: Command,
    usage: str,
    how_to_resume: str,
    argv: Sequence[str] | None = None,
    leave: Callable[[int, str], None] = lambda code, message: None,
    outlives_reader: bool = False,
) -> int:
    """Parse the command line, run the command, and return its exit code.

    `argv` replaces sys.argv[1:]. `command` receives the log that captures library output, and the
    positional arguments. After its setup, these errors are printed as one line: OSError (exit code
    1), Refused (2), FloatingPointError from the guard against bad steps (3). Any
    other error is a bug and shows its traceback. `how_to_resume` is appended to the line of
    interrupted work. `leave` receives the exit code and the message, and may end the process.
    A command that outlives its reader goes on without a screen when nobody reads its stdout any
    more; others end with code 141.
    """
    main.begin_work(outlives_reader)
    if argv is not None:
        sys.argv[1:] = argv
    LINE.show("")  # libraries are imported
    if _asks_for_help():
        print(_help(usage))
        return DONE
    try:
        with LibraryLog() as log:
            code, message = _run_to_code(command, log, how_to_resume)
            if message:
                log.say(message)
    except Exception as error:
        leave(FAILED, f"{type(error).__name__}: {error}")
        raise
    leave(code, message)
    return code


def _run_to_code(command: Command, log: LibraryLog, how_to_resume: str) -> tuple[int, str]:
    """Return the exit code and the line for stderr."""
    try:
        with preparing():
            arguments = _parse_flags(flags.FLAGS)
        code = command(log, arguments)
        sys.stdout.flush()
        return code, ""
    except ReaderLeft:
        return READER_LEFT, ""
    except _TryLater as error:
        return FAILED, f"error: {error}"
    except OSError as error:
        code, message = describe_failure(error)
        return code, f"{message}; {how_to_resume}"
    except (Refused, FloatingPointError) as error:
        return describe_failure(error)
    except KeyboardInterrupt as error:
        return main.choose_stop_code(error), f"interrupted; {how_to_resume}"
    except (RuntimeError, AssertionError) as error:
        if missing := _missing_device(error):
            return missing[0], f"error: {missing[1]}"
        raise


def _missing_device(error: RuntimeError | AssertionError) -> tuple[int, str] | None:
    """Return exit code and message if JAX lacks the requested device, else None.

    JAX raises RuntimeError at the first use of a device that does not start, and a bare
    AssertionError for JAX_PLATFORMS=cuda on a machine without a GPU.
    """
    jax: Any = sys.modules.get("jax")  # not imported here, to keep other commands fast
    if jax is None:
        return None
    platforms = jax.config.jax_platforms or ""
    wanted = f"JAX_PLATFORMS is {platforms!r}" if platforms else "JAX_PLATFORMS is not set"
    _, is_of_backends, reason = str(error).partition("Unable to initialize backend ")
    if is_of_backends:
        # JAX's message: platform, reason, advice in brackets.
        reason = reason.splitlines()[0].partition(": ")[2].partition(" (set JAX_PLATFORMS")[0]
        reason = reason.partition(" (you may need")[0].rstrip(".")
        if not _ABSENT.search(reason):
            return FAILED, (
                f"{wanted}, and JAX cannot start that device now: {reason}; end what else uses it "
                "and try again, or set JAX_PLATFORMS=cpu"
            )
    elif isinstance(error, RuntimeError) or not platforms:
        return None
    else:
        try:
            jax.devices()
            return None
        except (RuntimeError, AssertionError):
            pass
    return REFUSED, (
        f"{wanted}, but JAX finds no such device here{f' ({reason})' if reason else ''}; unset it "
        "to use what this machine has, or install JAX for the device: pip install '.[gpu]' or "
        "'.[tpu]'"
    )


def print_config(config: Any) -> int:
    """Print a resolved config as YAML; return exit code 0."""
    main.end_with_reader()
    fields = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in dataclasses.asdict(config).items()
    }
    print(yaml.safe_dump(fields, sort_keys=False), end="")
    return DONE


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
    return flag.kind if isinstance(flag, _ConfigFlag) else None


def _asks_for_help() -> bool:
    return bool({"--help", "-h"} & set(sys.argv[1:]))


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
    given = overrides.shortened(value) if value.startswith("-") else f"--{name}"
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
    return f"--{given[1]} is {overrides.shortened(given[2])!r}; it must be {allowed}"


def _help(usage: str) -> str:
    entry = sys.modules["__main__"]
    _, listed = flags.FLAGS.main_module_help().strip().split("\n", 1)  # heading: the file's path
    config = ""
    if "config" in flags.FLAGS and "--config: " not in listed:
        config = f"  --config: {flags.FLAGS['config'].help}\n"
    return f"{entry.__doc__}\nusage: {usage}\n{config}{listed}"


@dataclasses.dataclass(frozen=True)
class ProcessLocation:
    """Hold the number of a process among the processes of a run, as far as flags give it."""

    is_one_of_several: bool
    coordinator: str | None
    processes: int | None
    number: int | None


@dataclasses.dataclass(frozen=True)
class RunLocation(ProcessLocation):
    """Hold the workdir of a process, and its number among the processes of the run."""

    address: str  # the workdir's folder or bucket address
    scratch: str


class ProcessFlags:
    """Define the flags of a process that is one of several, as on a TPU pod."""

    def __init__(self) -> None:
        self._multihost = flags.DEFINE_bool(
            "multihost", False, "one of several processes, as on a TPU pod"
        )
        self._coordinator = flags.DEFINE_string(
            "coordinator_address", None, "host:port of process 0, where the platform does not tell"
        )
        self._processes = flags.DEFINE_integer(
            "num_processes", None, "processes of the run, where the platform does not tell"
        )
        self._process = flags.DEFINE_integer(
            "process_id", None, "number of this process from 0, where the platform does not tell"
        )

    def locate(self) -> ProcessLocation:
        """Return the number of this process; call after flags are parsed.

        Raises Refused if a flag contradicts another one.
        """
        for flag in (self._coordinator, self._processes, self._process):
            if flag.value is not None and not self._multihost.value:
                raise Refused(f"--{flag.name} is for a run of several processes; add --multihost")
        return ProcessLocation(
            self._multihost.value,
            self._coordinator.value,
            self._processes.value,
            self._process.value,
        )


class RunFlags:
    """Define the flags of a run: workdir, processes and profiling."""

    def __init__(self) -> None:
        self._workdir = flags.DEFINE_string(
            "workdir", None, "folder of the run, or gs://BUCKET/PATH: checkpoints, metrics, summary"
        )
        self._scratch = flags.DEFINE_string(
            "scratch",
            SCRATCH,
            "folder of this host for small files of runs on gs://",
        )
        self._profile_steps = flags.DEFINE_string(
            "profile_steps", None, "FIRST:LAST, numbers of steps to trace into the workdir"
        )
        self._process = ProcessFlags()

    @property
    def profile_steps(self) -> str | None:
        return self._profile_steps.value

    def locate(self, usage: str) -> RunLocation:
        """Return the location of this process; call after flags are parsed.

        Raises Refused if a flag is missing or contradicts another one.
        """
        process = self._process.locate()
        address = self._workdir.value or ""
        if not address:
            raise Refused(f"--workdir is missing: a folder for checkpoints and metrics; {usage}")
        check_address(address)
        return RunLocation(
            **dataclasses.asdict(process), address=address, scratch=self._scratch.value
        )


def check_address(address: str) -> None:
    """Raise Refused if an address cannot be a workdir; nothing is read from a bucket."""
    if not is_address(address):
        check_no_file(pathlib.Path(address), "--workdir")
    elif not _ADDRESS.fullmatch(address):
        raise Refused(
            f"--workdir is {address}; it may be a folder, or a folder in a bucket, as "
            "gs://BUCKET/PATH; mount other storage and give that path"
        )
