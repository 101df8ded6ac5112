"""Describe one planted edit: its place, its text, the tests that must notice it."""

import ast
import collections
import dataclasses
import functools
import pathlib
from collections.abc import Sequence

# Wiring: who passes what to whom. Rule: what one function computes.
WIRING, RULE = "wiring", "rule"
PACKAGES = ("bert_jax", "data_pipeline")
MIN_EDITS = 60
MIN_EDITS_PER_FOLDER = 2


@dataclasses.dataclass(frozen=True)
class Mutant:
    """Hold a wrong edit of one file, and the tests that fail with it by an assertion.

    `old` occurs exactly once in the file. `tests` are ids of functions, "FILE::NAME", or of one of
    their cases, "FILE::NAME[case]", or of all tests of a file.
    """

    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the words of a progress line."""
        words = " ".join(self.old.split())
        return f"{self.file}: {words if len(words) <= 60 else words[:57] + '...'}"

    @property
    def module(self) -> str:
        """Return the name by which the edited file is imported."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def apply(self, root: pathlib.Path) -> str:
        """Return the text of the file with the edit."""
        return (root / self.file).read_text(encoding="utf-8").replace(self.old, self.new)


def make_mutants(package: str, rows: Sequence[tuple[str, str, str, str, str]]) -> list[Mutant]:
    """Make the edits of a package of rows (kind, file, old, new, test below tests/PACKAGE)."""
    return [
        Mutant(
            kind,
            f"{package}/{file}",
            old,
            new,
            (test if test.startswith("tests/") else f"tests/{package}/{test}",),
        )
        for kind, file, old, new, test in rows
    ]


def find_problems(root: pathlib.Path, mutants: Sequence[Mutant]) -> list[str]:
    """List what has rotted in a table: text that moved, syntax that broke, tests that are gone."""
    problems = []
    for mutant in mutants:
        path = root / mutant.file
        times = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        if times != 1 or mutant.old == mutant.new:
            problems.append(f"{mutant.name}: its text occurs {times} times")
            continue
        ast.parse(mutant.apply(root))
        for test in mutant.tests:
            file, _, function = test.partition("::")
            if function and function.partition("[")[0] not in _list_tests(root / file):
                problems.append(f"{mutant.name}: no test {test}")
    return problems


def find_gaps(root: pathlib.Path, mutants: Sequence[Mutant]) -> list[str]:
    """List what a table lacks: edits, folders with too few of them, half of them in wiring."""
    gaps = []
    counts = collections.Counter(str(pathlib.PurePath(mutant.file).parent) for mutant in mutants)
    folders = {
        str(path.parent.relative_to(root))
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    for folder in sorted(folders):
        if counts[folder] < MIN_EDITS_PER_FOLDER:
            gaps.append(f"{folder} has {counts[folder]} edits, not {MIN_EDITS_PER_FOLDER}")
    wiring = sum(mutant.kind == WIRING for mutant in mutants)
    if len(mutants) < MIN_EDITS or 2 * wiring < len(mutants):
        gaps.append(f"{len(mutants)} edits, {wiring} of them in wiring")
    if len({(mutant.file, mutant.old, mutant.new) for mutant in mutants}) < len(mutants):
        gaps.append("an edit stands there twice")
    return gaps


@functools.cache
def _list_tests(path: pathlib.Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))
