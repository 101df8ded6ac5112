"""What every entry shares: reading --config with its overrides, and errors as one sentence."""

import pathlib
import sys
from collections.abc import Callable, Sequence

from absl import flags
from ml_collections import config_flags

from bert_jax import config as config_lib
from bert_jax.config import Config

# Exit codes: 0 done, 1 the run failed, 2 what was asked for cannot be done.
FAILED, REFUSED = 1, 2

_PACKAGE = pathlib.Path(__file__).resolve().parent


def config_flag() -> flags.FlagHolder:
    """Define --config=FILE[:NAME=VALUE,...], whose fields --config.FIELD=VALUE overrides."""
    return config_flags.DEFINE_config_file(
        "config", None, "config file, such as configs/base.py or configs/large.py:recipe=lamb64k"
    )


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
    """The Config that --config and its overrides give.

    Raises:
      ValueError: no --config, or a field of the wrong type.
    """
    if flag.value is None:
        raise ValueError("--config is missing; give --config=configs/base.py, or a file of yours")
    return config_lib.from_config_dict(flag.value)


def run(main: Callable[[], int], usage: str) -> None:
    """Parse the command line, run main, and exit with its code.

    A ValueError or OSError becomes one line on stderr and exit code 2; a FloatingPointError
    exit code 1.
    """
    if {"--help", "-h"} & set(sys.argv[1:]):
        print(_help(usage))
        sys.exit(0)
    try:
        rest = flags.FLAGS(_with_found_config(sys.argv))
        if len(rest) > 1:
            raise ValueError(f"{rest[1]!r} is not a flag; usage: {usage}")
        code = main()
    except flags.Error as error:
        code = _refused(_first_sentence(error))
    except AttributeError as error:
        if "config_dict" not in _raised_in(error):
            raise
        code = _refused("--config: no field " + _plain(error))
    except (ValueError, OSError) as error:
        code = _refused(str(error))
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        code = FAILED
    sys.exit(code)


def _help(usage: str) -> str:
    entry = sys.modules["__main__"]
    return f"{entry.__doc__}\nusage: {usage}\n{flags.FLAGS.main_module_help()}"


def _plain(error: AttributeError) -> str:
    """ConfigDict's message on one line, without the quotes of the KeyError it wraps."""
    words = str(error).replace("\\n", "; ").replace("\\", "").replace('"', "'").strip("'")
    return " ".join(words.split())


def _first_sentence(error: flags.Error) -> str:
    """What is wrong with a flag; for an error inside a config file, what that file said."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if "parsing config file" not in lines[0]:
        return lines[0]
    return lines[-1].partition("Error: ")[2] or lines[-1]


def _refused(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return REFUSED


def _raised_in(error: BaseException) -> str:
    """Stem of the file whose line raised the error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else pathlib.Path(trace.tb_frame.f_code.co_filename).stem
