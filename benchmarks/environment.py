"""Environments of their own for the programs that we are compared with."""

import pathlib
import subprocess
import sys
from collections.abc import Sequence

import rich.console


def interpreter(
    env: pathlib.Path, wanted: Sequence[str], console: rich.console.Console
) -> pathlib.Path:
    """The Python of an environment with these packages, made with pip where it is absent."""
    python, ready = env / "bin" / "python", env / "installed.txt"
    if ready.exists() and ready.read_text(encoding="utf-8").split() == list(wanted):
        return python
    console.print(f"making {env} with {', '.join(wanted)}")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    ready.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python
