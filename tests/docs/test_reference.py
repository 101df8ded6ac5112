"""The generated pages of the reference are those that the code would generate now."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GENERATOR = ROOT / "docs" / "generate.py"


def page(name):
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def test_the_reference_of_the_config_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.config_page() == page("config.md"), "run make docs-reference"


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse prints help otherwise")
def test_the_reference_of_the_commands_is_up_to_date(tmp_path):
    subprocess.run([sys.executable, GENERATOR, tmp_path], check=True, cwd=ROOT)
    written = (tmp_path / "commands.md").read_text(encoding="utf-8")
    assert written == page("commands.md"), "run make docs-reference"
