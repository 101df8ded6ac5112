"""The manual as a site: every link and anchor is checked by a strict build."""

import subprocess
import sys

import pytest

from tests.docs import pages

pytest.importorskip("material", reason="needs the extra [docs]: mkdocs-material")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=pages.ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert (
        "(prefers-color-scheme: dark)"
        in (tmp_path / "site" / "guide" / "training.html").read_text()
    )
