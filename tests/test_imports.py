"""The architecture as rules: who may import whom, how large a folder is, which names say nothing.

Each rule is a function over a source tree. The tests run it on this tree and on planted files.
"""

import ast
import collections
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The folders of each package, in order: a file imports from its own folder and from earlier ones.
FOLDERS = {
    "data_pipeline": (
        *("io", "spec", "cli", "read", "vocab", "store", "corpus", "sampling", "labeled"),
        "report",
    ),
    "bert_jax": (
        *("config", "parallel", "model", "tasks", "train_step", "logging", "runtime"),
        "monitoring",
        *("checkpoint", "interop", "trainer", "inference", "finetuning"),
        *("planning", "benchmarking", "lab"),
    ),
}
MAX_MODULES_PER_FOLDER = 13
NEVER_IN_DATA_PIPELINE = {"jax", "jaxlib", "flax", "optax", "orbax", "bert_jax"}
VAGUE_MODULES = {"utils", "util", "helpers", "helper", "common", "misc"}
BANNED_NAMES = {
    *("of", "one", "at", "on", "held", "found", "said", "told"),
    *("there", "where", "what", "shown"),
}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported name: `from a.b import c` gives a.b.c, which may be a module or a value."""

    module: str
    name: str
    line: int
    at_top: bool

    def is_of(self, *packages: str) -> bool:
        return any(in_package(self.name, package) for package in packages)

    def __str__(self) -> str:
        return f"{self.module} line {self.line} imports {self.name}"


def in_package(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def module_name(path: pathlib.Path, root: pathlib.Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules(root: pathlib.Path) -> dict[str, pathlib.Path]:
    return {
        module_name(path, root): path
        for package in (*FOLDERS, "configs")
        for path in sorted((root / package).rglob("*.py"))
    }


def read_nodes(path: pathlib.Path) -> list[ast.AST]:
    """Return every node of a file's syntax tree, the outer ones first."""
    return _parse(path.read_text(encoding="utf-8"))


@functools.cache
def _parse(text: str) -> list[ast.AST]:
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:  # which grows; ast.walk takes twice as long
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and field != "ctx":
                nodes.append(value)
    return nodes


def imports(root: pathlib.Path) -> Iterable[Import]:
    return _imports_of_this_tree() if root == ROOT else _read_imports(root)


@functools.cache
def _imports_of_this_tree() -> tuple[Import, ...]:
    return tuple(_read_imports(ROOT))


def _read_imports(root: pathlib.Path) -> Iterator[Import]:
    for module, path in modules(root).items():
        nodes = read_nodes(path)
        inside = set[int]()  # lines
        for node in nodes:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function or getattr(getattr(node, "test", None), "id", "") == "TYPE_CHECKING":
                inside.update(range(node.lineno, node.end_lineno + 1))
        for node in nodes:
            for name in names_imported(node, module, is_package=path.name == "__init__.py"):
                yield Import(module, name, node.lineno, node.lineno not in inside)


def names_imported(node: ast.AST, module: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    origin = node.module or ""
    if node.level:
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        origin = ".".join([*parts, origin] if origin else parts)
    return [f"{origin}.{alias.name}" for alias in node.names]


def rank(name: str) -> int | None:
    """Return the place of a module's folder in its package, commands last; None for others."""
    package, _, rest = name.partition(".")
    folder = rest.partition(".")[0]
    if package not in FOLDERS or not folder or folder == "__version__":
        return None
    order = FOLDERS[package]
    return order.index(folder) if folder in order else len(order)


def upward_imports(root: pathlib.Path) -> list[str]:
    return [
        str(found)
        for found in imports(root)
        if found.module.partition(".")[0] == found.name.partition(".")[0]
        and (importer := rank(found.module)) is not None
        and (imported := rank(found.name)) is not None
        and imported > importer
    ]


# Packages that a function may import when it needs them, without loading them for all others.
LOADED_AT_NEED = (
    *("bert_jax.interop", "bert_jax.tasks", "bert_jax.logging.plots"),
    "bert_jax.benchmarking.dial_run",
)


@dataclasses.dataclass(frozen=True)
class Closure:
    """What one module may load: so many modules of ours, and no package of `without`."""

    module: str
    most: int
    without: tuple[str, ...]


CLOSURES = (
    Closure(
        "bert_jax.train",
        most=130,
        without=(
            *("data_pipeline.read", "data_pipeline.corpus", "data_pipeline.report"),
            *("bert_jax.finetuning", "bert_jax.lab"),
            *("bert_jax.planning", *LOADED_AT_NEED),
        ),
    ),
    Closure(
        "bert_jax.train_step.step",
        most=59,
        without=(
            *("data_pipeline.read", "data_pipeline.vocab", "data_pipeline.store"),
            *("bert_jax.logging", "bert_jax.runtime", "bert_jax.checkpoint", "bert_jax.trainer"),
        ),
    ),
)


def find_closure(module: str, root: pathlib.Path) -> set[str]:
    """Return the modules of ours that importing one loads, imports in functions included."""
    files = modules(root)
    loaded: dict[str, set[str]] = {}
    for each in imports(root):
        if each.is_of(*FOLDERS) and (each.at_top or not each.is_of(*LOADED_AT_NEED)):
            name = each.name if each.name in files else each.name.rpartition(".")[0]
            loaded.setdefault(each.module, set()).add(name)
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name and name not in found:
            found.add(name)
            waiting += [*loaded.get(name, ()), name.rpartition(".")[0]]
    return found


def large_closures(root: pathlib.Path) -> list[str]:
    broken = []
    for closure in CLOSURES:
        found = find_closure(closure.module, root)
        wrong = sorted(
            name for name in found if any(in_package(name, package) for package in closure.without)
        )
        broken += [f"{closure.module} loads {', '.join(wrong)}"] * bool(wrong)
        if len(found) > closure.most:
            broken.append(f"{closure.module} loads {len(found)} modules of at most {closure.most}")
    return broken


def unlisted_modules(root: pathlib.Path) -> list[str]:
    """Modules that the docstring of their folder, which says in what order to read, leaves out."""
    missing = []
    for package, folders in FOLDERS.items():
        for folder in folders:
            home = root / package / folder
            index, words = home / "__init__.py", set[str]()
            if index.exists():
                text = ast.get_docstring(ast.parse(index.read_text("utf-8"))) or ""
                words = set(re.findall(r"\w+", text))
            missing += [
                f"{package}/{folder}/{path.name}"
                for path in sorted(home.glob("*.py"))
                if path.stem != "__init__" and path.stem not in words
            ]
    return missing


def class_names_used_twice(root: pathlib.Path) -> list[str]:
    homes = collections.defaultdict(list)
    for module, path in modules(root).items():
        for node in read_nodes(path):
            if isinstance(node, ast.ClassDef) and not in_package(module, "configs"):
                homes[node.name.lstrip("_")].append(module)
    return [f"{name}: {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def superlative_constants(root: pathlib.Path) -> list[str]:
    """Constants that say MOST_ or LEAST_: they are MAX_ and MIN_."""
    pattern = re.compile(r"^_?(MOST|LEAST|FEWEST|LONGEST|SHORTEST|SMALLEST)(_|$)")
    return [
        f"{module} line {node.lineno}: {node.id}"
        for module, path in modules(root).items()
        for node in read_nodes(path)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and pattern.match(node.id)
    ]


def prepositions_after_code(root: pathlib.Path) -> list[str]:
    """Trailing comments that begin with a preposition: they name a thing instead."""
    words = "about above after as at before behind below between by during except for from in into"
    words += " like of on onto out over per since through to under until up via with without"
    pattern = re.compile(rf"^ *[^# ].*  # (?:{'|'.join(words.split())})\b", re.IGNORECASE)
    return [
        f"{module} line {number}: {line}"
        for module, path in modules(root).items()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.match(line)
    ]


def docstrings_without_a_verb(root: pathlib.Path) -> list[str]:
    """Docstrings that begin with an article: they begin with what the code does."""
    no_verb = re.compile(r"(A|An|The|All|Both|This|Also|These) ")
    return [
        f"{module}: {text.splitlines()[0]}"
        for module, path in modules(root).items()
        if not in_package(module, "configs")  # their docstrings are headings
        for node in read_nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if no_verb.match(text := ast.get_docstring(node) or "")
    ]


def imports_of_a_command(root: pathlib.Path) -> list[str]:
    return [
        str(found)
        for found in imports(root)
        if any(
            rank(found.name) == len(order) and found.is_of(package)
            for package, order in FOLDERS.items()
        )
    ]


def forbid(name: str, *libraries: str, within: str = "", outside: Sequence[str] = ()):
    """Make the rule that libraries are not imported in a package, or outside of some folders."""

    def rule(root: pathlib.Path) -> list[str]:
        return [
            str(found)
            for found in imports(root)
            if found.is_of(*libraries)
            and (not within or in_package(found.module, within))
            and not any(in_package(found.module, home) for home in outside)
        ]

    rule.__name__ = name
    return rule


trainer_in_the_pipeline = forbid("trainer", *NEVER_IN_DATA_PIPELINE, within="data_pipeline")
jax_in_tasks = forbid("jax_in_tasks", "jax", within="bert_jax.tasks")
orbax_elsewhere = forbid("orbax_elsewhere", "orbax", outside=["bert_jax.checkpoint"])
flax_elsewhere = forbid("flax_elsewhere", "flax", outside=["bert_jax.model"])
flags_of_absl = forbid("flags_of_absl", "absl.flags", "absl.app")
# Beam has a parser of its own, whose errors argparse raises.
argparse_elsewhere = forbid(
    "argparse_elsewhere", "argparse", outside=["data_pipeline.cli", "data_pipeline.corpus.beam"]
)
# In a wheel configs/ is bert_jax/configs, so `from configs import` works in a clone only.
configs_importing_configs = forbid("configs_importing_configs", "configs")


def absl_in_a_library(root: pathlib.Path) -> list[str]:
    commands = len(FOLDERS["bert_jax"])
    return [
        str(found)
        for found in imports(root)
        if found.is_of("absl") and rank(found.module) != commands
    ]


def tensorflow_at_the_top(root: pathlib.Path) -> list[str]:
    return [
        str(found)
        for found in imports(root)
        if found.is_of("tensorflow", "tensorflow_datasets")
        and found.at_top
        and in_package(found.module, "bert_jax")
    ]


def vague_modules(root: pathlib.Path) -> list[str]:
    return [module for module in modules(root) if VAGUE_MODULES & set(module.split("."))]


def unknown_folders(root: pathlib.Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for package, order in FOLDERS.items()
        for path in sorted((root / package).glob("*/"))
        if any(path.glob("*.py")) and path.name not in order
    ]


def crowded_folders(root: pathlib.Path) -> list[str]:
    """Return folders with more modules than a reader can take in; commands are not counted."""
    counts: dict[str, int] = {}
    for package in FOLDERS:
        for path in (root / package).rglob("*.py"):
            if path.parent != root / package and path.name != "__init__.py":
                folder = str(path.parent.relative_to(root))
                counts[folder] = counts.get(folder, 0) + 1
    return [
        f"{folder} has {count} modules"
        for folder, count in sorted(counts.items())
        if count > MAX_MODULES_PER_FOLDER
    ]


def banned_names(root: pathlib.Path) -> list[str]:
    """Return parameters and variables named by a word that says nothing."""
    broken = []
    for module, path in modules(root).items():
        for node in read_nodes(path):
            is_variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_variable else node.arg if isinstance(node, ast.arg) else ""
            if name in BANNED_NAMES:
                broken.append(f"{module} line {node.lineno}: {name}")
    return broken


# A rule, and for its control: the file to plant, a text that breaks the rule, one that keeps it.
MODEL, PIPELINE = "bert_jax/model/bert.py", "data_pipeline/sampling/pairs.py"
TRAINER, STEP = "bert_jax/trainer/feed.py", "bert_jax/train_step/step.py"
RULES = [
    (upward_imports, MODEL, "from bert_jax.train_step import step", "from bert_jax.model import x"),
    (
        upward_imports,
        MODEL,
        "def f():\n    from ..train_step.optimizers import x",
        "from ..config import x",
    ),
    (
        *(upward_imports, "data_pipeline/vocab/train.py"),
        *("from data_pipeline.store import open_store", "from data_pipeline.io import files"),
    ),
    (imports_of_a_command, TRAINER, "import bert_jax.train", "import bert_jax.train_step.step"),
    (imports_of_a_command, "bert_jax/plan.py", "from bert_jax.train import main", "import sys"),
    (trainer_in_the_pipeline, PIPELINE, "def f():\n    import jax.numpy as jnp", "import numpy"),
    (trainer_in_the_pipeline, PIPELINE, "from bert_jax.config import Config", "import jaxtyping"),
    (jax_in_tasks, "bert_jax/tasks/ner/task.py", "import jax.numpy as jnp", "import numpy"),
    (
        *(tensorflow_at_the_top, TRAINER),
        *("if True:\n    import tensorflow as tf", "def f():\n    import tensorflow as tf"),
    ),
    (orbax_elsewhere, STEP, "import orbax.checkpoint as ocp", "import jax"),
    (flax_elsewhere, STEP, "from flax import nnx", "from jax import numpy"),
    (absl_in_a_library, TRAINER, "from absl import logging", "import sys"),
    (flags_of_absl, "bert_jax/plan.py", "from absl import flags", "from absl import logging"),
    (argparse_elsewhere, "bert_jax/plan.py", "import argparse", "import sys"),
    (
        *(configs_importing_configs, "configs/large.py"),
        *("from configs import base", "from bert_jax import config"),
    ),
    (
        *(large_closures, "bert_jax/train.py"),
        *(
            "def f():\n    import bert_jax.planning.plan",
            "def f():\n    import bert_jax.interop.load",
        ),
    ),
    (unlisted_modules, MODEL, "", None),
    (class_names_used_twice, MODEL, "class A: ...\nclass A: ...", "class A: ..."),
    (superlative_constants, MODEL, "MOST_ROWS = 2", "MAX_ROWS = 2"),
    (class_names_used_twice, MODEL, "class A: ...\nclass _A: ...", "class A: ...\nclass _B: ..."),
    (docstrings_without_a_verb, MODEL, '"""A file."""', '"""Describe a file."""'),
    (prepositions_after_code, MODEL, "rows = 2  # of a batch", "rows = 2  # a batch's"),
    (vague_modules, "bert_jax/model/utils.py", "", None),
    (unknown_folders, "bert_jax/things/bert.py", "", None),
    (banned_names, MODEL, "def f(of):\n    return of", "def f(x):\n    of(x)"),
    (banned_names, MODEL, "for one in range(3):\n    pass", "one(3)"),
]


@pytest.mark.parametrize(
    "rule", dict.fromkeys(rule for rule, *_ in RULES), ids=lambda rule: rule.__name__
)
def test_nothing_breaks(rule):
    assert rule(ROOT) == []


@pytest.mark.parametrize(("rule", "path", "broken", "kept"), RULES)
def test_a_planted_violation_is_reported(rule, path, broken, kept, tmp_path):
    planted = tmp_path / path
    planted.parent.mkdir(parents=True)
    planted.write_text(broken)
    assert len(rule(tmp_path)) == 1
    if kept is not None:
        planted.write_text(kept)
        assert rule(tmp_path) == []


def test_a_folder_holds_a_dozen_modules(tmp_path):
    assert crowded_folders(ROOT) == []
    (tmp_path / "bert_jax/model").mkdir(parents=True)
    for number in range(MAX_MODULES_PER_FOLDER):
        (tmp_path / f"bert_jax/model/m{number}.py").touch()
    (tmp_path / "bert_jax/model/__init__.py").touch()
    assert crowded_folders(tmp_path) == []
    (tmp_path / "bert_jax/model/another.py").touch()
    assert crowded_folders(tmp_path) == [f"bert_jax/model has {MAX_MODULES_PER_FOLDER + 1} modules"]
