"""Scripts that a page or a usage line names as a command have the run bit, on disk and in git."""

import os
import re
import subprocess

import pytest

from tests.launch.scripts import LAUNCH

ROOT = LAUNCH.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def named_scripts() -> set[str]:
    """Every script of launch/ that a page names, and every one that has a usage line."""
    named = {
        name
        for page in PAGES
        for name in re.findall(r"\blaunch/(?:gke/)?[a-z_]+\.sh\b", page.read_text(encoding="utf-8"))
    }
    commands = {path for path in LAUNCH.rglob("*.sh") if "\nusage() {" in path.read_text()}
    return named | {str(path.relative_to(ROOT)) for path in commands}


def is_sourced(name: str) -> bool:
    return not (ROOT / name).read_text().startswith("#!")


def test_what_is_named_as_a_command_can_be_run():
    commands = {name for name in named_scripts() if not is_sourced(name)}
    assert {"launch/ssh.sh", "launch/gke/xpk.sh"} <= commands
    assert [name for name in commands if not os.access(ROOT / name, os.X_OK)] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the clone")
def test_git_has_the_run_bit_of_each_script_and_of_nothing_that_is_sourced():
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-s", "launch"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in listed.splitlines():
        mode, name = line.split()[0], line.split("\t")[1]
        is_script = name.endswith(".sh") and not is_sourced(name)
        assert mode == ("100755" if is_script else "100644"), name
