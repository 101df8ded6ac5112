"""Benchmarks run seldom, and by hand: each name that they take from our packages exists."""

import ast
import importlib
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
OURS = ("bert_jax", "data_pipeline", "benchmarks", "configs")


def names_of_ours(tree: ast.Module) -> list[tuple[str, str]]:
    """(module, name) of every import from our packages, and of every attribute of such a module."""
    names, modules = [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            for alias in node.names:
                names.append((node.module, alias.name))
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if (FOLDER.parent / module.replace(".", "/")).with_suffix(".py").is_file():
                names.append((module, node.attr))
    return names


def has_name(module: str, name: str) -> bool:
    """Whether a module has a name; one of the benchmarks is not imported, as it may need torch."""
    source = (FOLDER.parent / module.replace(".", "/")).with_suffix(".py")
    if not source.is_relative_to(FOLDER) or not source.is_file():
        return hasattr(importlib.import_module(module), name)
    defined = set()
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        targets = getattr(node, "targets", [getattr(node, "target", node)])
        defined |= {getattr(each, "id", getattr(each, "name", "")) for each in targets}
    return name in defined


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_every_name_exists(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for module, name in names_of_ours(tree):
        source = (FOLDER.parent / f"{module}.{name}".replace(".", "/")).with_suffix(".py")
        if not source.is_file():
            assert has_name(module, name), f"{module} has no {name}"
