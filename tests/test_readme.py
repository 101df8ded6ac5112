"""README and the files beside it: what they name exists."""

import itertools
import pathlib
import re
import subprocess

import pytest
import yaml

import bert_jax
from bert_jax.config import Config, to_config_dict
from bert_jax.finetune_config import FinetuneConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(ROOT.glob("*.md"))
TOPS = ("bert_jax", "configs", "data_pipeline", "docs", "launch", "requirements", "tests", r"\.ci")
# A path of the project in back quotes; a config may have arguments, `configs/base.py:recipe=x`.
PATH = re.compile(rf"`((?:{'|'.join(TOPS)})/[\w./-]*)(?::[\w=]+)?`|`([\w-]+\.(?:md|cff|py))`")
COMMAND_LINE = re.compile(r"^    (\S.*(?:\\\n.*)*)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    named = {one or other for one, other in PATH.findall(text)}
    in_tables = {
        name
        for line in text.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([\w/]+\.py)`", line)
    }
    missing = [name for name in named - in_tables if not (ROOT / name).exists()]
    assert missing == []


def test_every_local_link_and_picture_exists():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert link.startswith("https://") or (ROOT / link).exists(), link


def test_every_command_has_a_module_a_script_or_a_make_target():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in COMMAND_LINE.findall(README):
        words = command.split()
        if words[0] == "make":
            assert words[1] in targets, command
        elif words[0].startswith("launch/"):
            assert (ROOT / words[0]).is_file(), command
        elif "-m" in words:
            module = words[words.index("-m") + 1]
            known = (ROOT / (module.replace(".", "/") + ".py")).is_file()
            assert known or module in ("pip", "venv"), command


def test_every_config_field_that_is_named_exists():
    shown = [to_config_dict(config) for config in (Config(), FinetuneConfig())]
    for path in re.findall(r"(?:--)?config\.((?:\w+(?:\[\d\])?\.)*\w+)", README):
        if path not in ("json", "py"):
            assert any(has_field(config, path) for config in shown), path


def has_field(value, path):
    """Whether a config has the field that a path of names and places leads to."""
    for name, index in re.findall(r"(\w+)(?:\[(\d)\])?", path):
        if name not in value:
            return False
        value = value[name][int(index)] if index else value[name]
    return True


def test_every_config_file_has_a_row():
    for path in (ROOT / "configs").glob("*.py"):
        if path.name != "__init__.py":
            assert f"| `configs/{path.name}` |" in README


def test_every_row_of_numbers_has_its_command_device_date_and_commit():
    numbers = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
    rows = [line for line in numbers.splitlines() if line.startswith("| ")][1:]
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 7 and all(cells), row


def test_decisions_are_numbered_without_a_gap():
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == bert_jax.__version__
    assert citation["license"] == "Apache-2.0"


def test_the_workflow_runs_what_ci_runs_on_pythons_that_are_supported():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    pythons = workflow["jobs"]["pinned"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12"]
    assert "schedule" in workflow[True]  # YAML 1.1 reads the key `on` as true
    runs = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command, argument in itertools.pairwise(" ; ".join(runs).split()):
        assert command != "make" or argument in targets
    assert ".ci/run" in runs


def test_the_makefile_has_what_its_head_explains_and_the_quickstart_is_four_commands():
    makefile = (ROOT / "Makefile").read_text()
    explained = re.findall(r"^# make (\w+)", makefile, re.MULTILINE)
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in explained)
    shown = subprocess.run(
        ["make", "--dry-run", "quickstart"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    for module in ("python_docs", "build", "train", "fill_mask"):
        assert re.search(rf"-m \w+\.{module} ", shown)
