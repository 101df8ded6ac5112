"""Run a command: read its flags and --config, print errors as one line, return the exit code.

A command's `main(argv) -> int` calls `run` with its Command and a function that does the work and
wraps its own setup in `preparing`. The module of a command calls `check_command_line` after it
declares its flags and before its slow imports. RunFlags are the flags of commands that train.
"""

import contextlib
import dataclasses
import difflib
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import yaml

from bert_jax import config as config_lib
from bert_jax.config import Config, overrides
from bert_jax.config.overrides import Override
from data_pipeline.cli import main
from data_pipeline.cli.flags import Command, Kinds, flag
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import (
    DONE,
    FAILED,
    REFUSED,
    asks_for_help,
    describe_failure,
    describe_os_error,
)
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address, make_install_command
from data_pipeline.io.atomic import check_no_file
from data_pipeline.io.errors import is_transient
from data_pipeline.spec.fields import check_fields, shorten

Values = TypeVar("Values")

# Parts of JAX's messages that mean that a device is absent, so a retry cannot help.
_ABSENT = ("NOT_FOUND", "not in the list of known backends")

_BUCKET = "gs://"
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class GivenConfig(Generic[config_lib.Kind]):
    """Hold --config=FILE[:TEXT] and its overrides from a command line."""

    kind: type[config_lib.Kind]
    place: str
    overrides: tuple[Override, ...]

    def load(self, default: str = "") -> config_lib.Kind:
        """Read the config file, or `default` without one, and apply the overrides.

        Raises:
          Refused: the file or a field cannot be read, or a value is out of its field's range.
        """
        find = functools.partial(find_config, kind=self.kind)
        config = overrides.load(self.kind, self.place or default, find, self.overrides)
        check_fields(config, "config")  # so early, as commands divide by sizes before they resolve
        return config

    def list_arguments(self) -> list[str]:
        """Return --config and its overrides as given, to pass to a child process."""
        texts = (f"--config.{override.path}={override.text}" for override in self.overrides)
        return [f"--config={self.place}", *texts]


@dataclasses.dataclass(frozen=True)
class _ConfigFlag:
    """Read --config and --config.FIELD=VALUE as flags of a command."""

    kind: type[Any]
    is_required: bool

    def take(self, arguments: Sequence[str]) -> tuple[list[Override], list[str]]:
        return overrides.take(arguments, self.kind)

    def make(self, text: str, parts: Sequence[Override]) -> GivenConfig[Any]:
        if self.is_required and not text:
            raise Refused(
                "--config is missing; give --config=FILE, your own or a bundled one such as "
                f"{self.kind.PURPOSE[-1]}; --config=configs lists all"
            )
        find = functools.partial(find_config, kind=self.kind)
        return GivenConfig(self.kind, *overrides.move_arguments(self.kind, text, find, parts))

    def suggest(self, name: str) -> list[str]:
        return overrides.near_fields(self.kind, name)


def config_flag(kind: type[Any] = Config, is_required: bool = True, about: str = "") -> Any:
    """Declare the field `config: GivenConfig[kind]` of a command's flags."""
    words = (
        f"config file{about or f', such as {kind.PURPOSE[-1]}'}; --config.KEY=VALUE sets one of "
        "its settings, which bert-jax config lists"
    )
    with_parts = _ConfigFlag(kind, is_required)
    metavar = "FILE[:NAME=VALUE,...]"
    return flag(None, words, metavar=metavar, is_required=is_required, with_parts=with_parts)


def int8_flag() -> Any:
    """Declare the field `int8` of the flags of a command that runs a trained model."""
    return flag(False, "compute the layers' linear maps in int8; results change a little")


def find_config(path: str, kind: type[Any] = Config) -> str:
    """Find a config file by its path, or a bundled one by its path in the source tree.

    configs/ is next to the package in a source tree and inside it in an installed wheel.
    """
    path = os.path.expanduser(path)
    for home in ("", _PACKAGE.parent, _PACKAGE):
        if pathlib.Path(home, path).is_file():
            return os.path.join(home, path)
    problem = "that is a folder" if pathlib.Path(path).is_dir() else "there is no such file"
    bundled = _list_configs(kind)
    near = difflib.get_close_matches(path, bundled, 1, cutoff=0.85)
    hint = f"did you mean {near[0]}?" if near else f"bundled are {', '.join(bundled)}"
    raise Refused(f"--config={path}: {problem}; {hint}")


def _list_configs(kind: type[Any]) -> list[str]:
    return sorted(
        str(path.relative_to(home))
        for home in (_PACKAGE.parent, _PACKAGE)
        for path in (home / kind.PURPOSE[-1]).parent.glob("*.py")
        if path.name != "__init__.py"
    )


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


def check_command_line(command: Command[Any] | Kinds) -> None:
    """Print --help and exit, or exit on a wrong flag or environment variable.

    Otherwise call use_huge_pages, which may restart the process, and read_xla_flags. A command
    calls this before it imports JAX, so that help and errors do not wait for slow imports.
    """
    if asks_for_help(sys.argv[1:]):
        sys.exit(run(command, lambda log, values: DONE, "nothing was changed"))
    try:
        check_jax_settings(os.environ)
        with preparing():
            command.read(sys.argv[1:])
        use_huge_pages()
        read_xla_flags()
    except (Refused, _TryLater) as error:
        LibraryLog().say(f"error: {error}")
        sys.exit(REFUSED if isinstance(error, Refused) else FAILED)


_HUGE_PAGES = "glibc.malloc.hugetlb"


def use_huge_pages(setting: str = "/sys/kernel/mm/transparent_hugepage/enabled") -> None:
    """Restart a command's process with huge pages in malloc if the kernel allows them on request.

    On a CPU, XLA allocates its temporary arrays again in every step, at one page fault per page;
    a huge page has 2 MiB instead of 4 KiB. glibc reads GLIBC_TUNABLES only when a process starts; a
    huge-page value set by the user is kept. A program that only imports a command is not restarted
    (decision 77).
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    try:
        is_on_request = "[madvise]" in pathlib.Path(setting).read_text()
        has_glibc = bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (OSError, ValueError):
        return
    if main.is_starting() and is_on_request and has_glibc and _HUGE_PAGES not in tunables:
        LINE.close()
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, f"{_HUGE_PAGES}=1"]))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


_OFF, _ON = ("0", "n", "no", "f", "false", "off"), ("1", "y", "yes", "t", "true", "on")
# JAX settings that bert_jax relies on, and the values that it works with, the default first.
_JAX_SETTINGS = {
    "JAX_ENABLE_X64": _OFF,
    "JAX_DISABLE_JIT": _OFF,
    "JAX_DEBUG_NANS": _OFF,  # config.guard handles them in the step
    "JAX_DEBUG_INFS": _OFF,
    "JAX_CHECK_TRACER_LEAKS": _OFF,
    "JAX_NUMPY_RANK_PROMOTION": ("allow", "warn"),
    "JAX_NUMPY_DTYPE_PROMOTION": ("standard",),
    "JAX_DEFAULT_PRNG_IMPL": ("threefry2x32",),
    "JAX_THREEFRY_PARTITIONABLE": _ON,
    "JAX_TRANSFER_GUARD": ("allow", "log", "log_explicit"),
}


def check_jax_settings(environment: Mapping[str, str]) -> None:
    """Raise Refused if a JAX environment variable has a value that bert_jax does not support."""
    for name, accepted in _JAX_SETTINGS.items():
        value = environment.get(name)
        if value is not None and value.lower() not in accepted:
            raise Refused(
                f"{name} is {shorten(value)!r}, which bert_jax does not support; unset it, or set "
                f"{name}={accepted[0]}"
            )


def read_xla_flags() -> None:
    """Make XLA parse XLA_FLAGS now.

    XLA ends the process on a bad flag, and its message would be lost once stderr goes to a file.
    """
    if os.environ.get("XLA_FLAGS"):
        from jaxlib import xla_client

        xla_client.CompileOptions()


def run(
    command: Command[Values] | Kinds,
    work: Callable[[LibraryLog, Values], int],
    how_to_resume: str,
    argv: Sequence[str] | None = None,
    leave: Callable[[int, str], None] = lambda code, message: None,
    outlives_reader: bool = False,
) -> int:
    """Run a command and return its exit code, one of data_pipeline/cli/main.py.

    Wraps data_pipeline.cli.main.run_main. `argv` replaces sys.argv[1:]. After the setup, an OSError
    gives exit code 1 and a FloatingPointError (from the guard against bad steps) 3. `how_to_resume`
    is appended to the message of an OSError and of an interruption. When the reader of stdout has
    gone, a command with outlives_reader continues without output; others end with code 141.
    `leave(code, message)` is called last and may end the process.
    """
    if argv is not None:
        sys.argv[1:] = argv

    def describe(error: Exception) -> tuple[int, str] | None:
        if isinstance(error, _TryLater):
            return FAILED, f"error: {error}"
        if isinstance(error, OSError):
            return FAILED, f"error: {describe_os_error(error)}; {how_to_resume}"
        if isinstance(error, Refused | FloatingPointError):
            return describe_failure(error)
        if isinstance(error, _NO_DEVICE):
            return _describe_missing_device(error)
        return None

    return main.run_main(
        command, work, argv, how_to_resume, describe, leave, outlives_reader=outlives_reader
    )


# JAX raises RuntimeError at the first use of a device that does not start. JAX_PLATFORMS=cuda on a
# machine without a GPU raises a bare AssertionError, or AttributeError under PYTHONOPTIMIZE.
_NO_DEVICE = (RuntimeError, AssertionError, AttributeError)


def _describe_missing_device(error: Exception) -> tuple[int, str] | None:
    """Return an exit code and a line if JAX lacks the requested device, else None."""
    jax: Any = sys.modules.get("jax")  # an import here would slow down other commands
    if jax is None:
        return None
    platforms = jax.config.jax_platforms or ""
    wanted = f"error: JAX_PLATFORMS is {repr(platforms) if platforms else 'not set'}"
    _, is_of_backends, reason = str(error).partition("Unable to initialize backend ")
    older = os.environ.get("JAX_PLATFORM_NAME")
    if older and str(error).startswith("Unknown backend"):
        platforms, wanted = older, f"error: JAX_PLATFORM_NAME is {older!r}"
    elif is_of_backends:
        # JAX's message: platform, reason, advice in brackets.
        reason = reason.splitlines()[0].partition(": ")[2].partition(" (set JAX_PLATFORMS")[0]
        reason = reason.partition(" (you may need")[0].rstrip(".")
        if not any(words in reason for words in _ABSENT):
            return FAILED, (
                f"{wanted}, and JAX cannot start that device now: {reason}; end other processes "
                "that use it and try again, or set JAX_PLATFORMS=cpu"
            )
    elif isinstance(error, RuntimeError) or not platforms:
        return None
    else:
        try:
            jax.devices()
            return None
        except _NO_DEVICE:
            pass
    return REFUSED, (
        f"{wanted}, but JAX finds no such device here{f' ({reason})' if reason else ''}; unset it "
        "to use what this machine has, or install JAX for the device: "
        f"{make_install_command('tpu' if 'tpu' in platforms else 'gpu')}"
    )


def print_config(config: Any) -> int:
    """Print a resolved config as YAML; return exit code 0."""
    main.end_with_reader()
    print(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False), end="")
    return DONE


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """Declare the flags of a process that is one of several, as on a TPU pod."""

    multihost: bool = flag(False, "join the run's other processes, as on a TPU pod", "processes")
    coordinator_address: str | None = flag(
        None, "address of process 0, if the platform does not set it", "processes", "HOST:PORT"
    )
    num_processes: int | None = flag(
        None, "number of processes, if the platform does not set it", "processes"
    )
    process_id: int | None = flag(
        None, "number of this process from 0, if the platform does not set it", "processes"
    )

    def __post_init__(self) -> None:
        for name in ("coordinator_address", "num_processes", "process_id"):
            if getattr(self, name) is not None and not self.multihost:
                raise Refused(f"--{name} is for a run of several processes; add --multihost")


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Declare the flags of a run: workdir, processes and profiling."""

    process: ProcessFlags
    workdir: str = flag(
        "", "folder of the run, or gs://BUCKET/PATH: checkpoints, metrics, summary", metavar="DIR"
    )
    print_config: bool = flag(False, "check and print the complete config, and stop")
    scratch: str = flag(
        "~/.cache/bert_jax", "local folder for small files of runs on gs://", metavar="DIR"
    )
    profile_steps: str = flag(
        "", "steps to trace; the trace goes into the workdir", metavar="FIRST:LAST"
    )

    def __post_init__(self) -> None:
        if self.workdir:
            check_address(self.workdir)
        elif not self.print_config:
            raise Refused("--workdir is missing: a folder for checkpoints and metrics")


def check_folder(workdir: str) -> None:
    """Raise Refused if --workdir is an address such as gs://BUCKET/PATH, not a local path."""
    if is_address(workdir):
        raise Refused(f"--workdir is {workdir}; give a folder on this machine for the runs")


def check_address(address: str) -> None:
    """Raise Refused if an address cannot be a workdir; nothing is read from a bucket."""
    if not is_address(address):
        check_no_file(pathlib.Path(address), "--workdir")
        return
    bucket, _, folder = address.removeprefix(_BUCKET).partition("/")
    if not address.startswith(_BUCKET) or not bucket or not folder.strip("/"):
        raise Refused(
            f"--workdir is {address}; give a local folder, or a folder in a bucket, as "
            "gs://BUCKET/PATH; mount other storage and give that path"
        )
