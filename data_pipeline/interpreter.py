"""How a person calls the running Python again, or installs more: for the commands that we offer."""

import pathlib
import shutil
import sys


def python() -> str:
    """The running interpreter as a command: python where that is it, else its shortest path."""
    ours = pathlib.Path(sys.executable)
    found = shutil.which("python")
    if found and pathlib.Path(found) == ours:
        return "python"
    here = pathlib.Path.cwd()
    if ours.is_relative_to(here) and ours.parent != here:
        return str(ours.relative_to(here))
    return str(ours)


def how_to_install(extra: str) -> str:
    """Say how to install what an extra of this package brings; its name on PyPI is not ours."""
    return f"in a clone of bert_jax: pip install '.[{extra}]', or else 'FILE.whl[{extra}]'"
