"""A small clone of bert_jax: the scripts and what they send, in a git repository of its own."""

import pathlib
import shutil
import subprocess

from tests.launch.scripts import LAUNCH


def git(folder: pathlib.Path, *arguments: str) -> str:
    identity = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "-c",
        "init.defaultBranch=main",
    )
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def make_clone(folder: pathlib.Path) -> pathlib.Path:
    """What the scripts are and send as it is now, and a file that goes away later, committed."""
    shutil.copytree(LAUNCH, folder / "launch")
    shutil.copytree(LAUNCH.parent / "requirements", folder / "requirements")
    (folder / "bert_jax").mkdir()
    shutil.copy(LAUNCH.parent / "bert_jax" / "prices.json", folder / "bert_jax")
    (folder / ".gitignore").write_text("build/\n")
    (folder / "old module.py").touch()
    git(folder, "init", "--quiet")
    return commit(folder)


def commit(folder: pathlib.Path) -> pathlib.Path:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=a")
    return folder
