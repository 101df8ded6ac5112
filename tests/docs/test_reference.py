"""The pages of the reference are up to date with the code."""

import ast
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from PIL import Image

from bert_jax.finetuning.objectives import TERM
from bert_jax.logging.plots import TITLES
from tests.docs import pages

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GENERATOR = ROOT / "docs" / "generate.py"


def page(name):
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def test_the_config_the_decisions_and_the_results_are_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(GENERATOR.parent)
    generate = importlib.import_module("generate")
    assert generate.config_page() == page("config.md"), "run make docs-reference"
    assert generate.decisions_page() == page("../design/decisions.md"), "run make docs-reference"
    sources = sorted((ROOT / "docs" / "results").glob("*.json"))
    assert len(sources) == 6
    for source in sources:
        written = source.with_suffix(".md").read_text(encoding="utf-8")
        assert generate.results_page(source) == written, "run make docs-reference"
    for path in generate.WITH_HEADLINES:
        text = path.read_text(encoding="utf-8")
        assert generate.fill_headlines(text) == text, "run make docs-reference"


def test_the_picture_of_speed_is_up_to_date_and_labels_each_pair_of_times(monkeypatch):
    monkeypatch.syspath_prepend(GENERATOR.parent)
    generate, pictures = importlib.import_module("generate"), importlib.import_module("pictures")
    rows = generate.list_named_rows()
    with Image.open(pictures.IMAGES / "speed.png") as picture:
        assert picture.text["Description"] == pictures.describe_source(rows), GENERATOR
    axes = pictures.make_speed(rows).axes
    assert len(axes) == len(pictures.PANELS)
    for ax, (_, name, labels) in zip(axes, pictures.PANELS, strict=True):
        theirs, ours = ([bar.get_width() for bar in each] for each in ax.containers)
        measured = pages.numbers_in(rows[name]["figure"])
        assert {*theirs, *ours} <= set(map(float, measured))
        for pair in zip(theirs, ours, strict=True):  # the ratio is theirs / ours, so sides are told
            assert any(abs(pair[0] / pair[1] - float(ratio)) < 0.03 for ratio in measured), pair
        assert len(ours) == len(labels)


def test_the_metrics_that_are_drawn_and_a_tasks_are_explained():
    names = [*TITLES, f"{TERM}_loss", f"{TERM}_accuracy"]
    assert [name for name in names if f"`{name}`" not in page("metrics.md")] == []


@pytest.mark.slow
def test_where_names_a_function_of_each_file():
    rows = re.findall(r"\| `([\w/]+\.py)` \| `([\w.]+)` \|", page("where.md"))
    assert len(rows) >= 40
    missing = [(path, name) for path, name in rows if name not in list_names(ROOT / path)]
    assert missing == []


def list_names(path):
    """List the functions, classes, methods and constants that a file defines."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_the_signatures_of_the_python_api_are_those_of_the_code():
    rows = re.findall(r"^\| `([\w.]+)\.(\w+)\((.*)\)` \| ", page("api.md"), re.MULTILINE)
    assert len(rows) >= 15
    for module, name, written in rows:
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
        assert ", ".join(map(str, parameters)).replace(" = ", "=") == written, name


def test_the_glossary_names_each_word_once_and_other_pages_use_it():
    words = re.findall(r"^\| ([a-z][\w &-]*(?:, \w+)*) \| ", page("glossary.md"), re.MULTILINE)
    words = [word for entry in words if entry != "word" for word in entry.split(", ")]
    assert len(words) == len(set(words)) >= 40
    manual = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    text = " ".join(each.read_text(encoding="utf-8") for each in manual if each.stem != "glossary")
    assert [word for word in words if word not in text.lower()] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse prints help otherwise")
def test_the_reference_of_the_commands_is_up_to_date(tmp_path):
    subprocess.run([sys.executable, GENERATOR, tmp_path], check=True, cwd=ROOT)
    written = (tmp_path / "commands.md").read_text(encoding="utf-8")
    assert written == page("commands.md"), "run make docs-reference"
