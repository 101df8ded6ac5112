"""A corpus that every Python carries: python -m data_pipeline.python_docs OUTPUT.jsonl

Writes the documentation of the running Python as JSON lines, about 2 MB of English prose, without
a download: a document is a topic of pydoc_data, or the docstrings of a module of the standard
library in the order of the file.
"""

import ast
import json
import pathlib
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics

import rich.console

from data_pipeline import terminal_console
from data_pipeline.build_report import progress_bar
from data_pipeline.exit_code import exit_code_of
from data_pipeline.flag_parser import FlagParser

# Tests have docstrings of their own, about themselves; the rest of the list is not Python's own.
_LEFT_OUT = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})
_BLANK_LINES = re.compile(r"\n\s*\n")
_LETTER = re.compile(r"[^\W\d_]")
_MIN_MODULES = 100  # a Python with fewer was packed without its sources


def main(argv: list[str] | None = None) -> int:
    """Write the corpus; 0, or 2 after one line on stderr that says what is wrong."""
    parser = FlagParser(
        prog="python -m data_pipeline.python_docs",
        description="Writes the documentation that this Python carries as JSON lines.",
    )
    parser.add_argument("output", type=pathlib.Path, metavar="OUTPUT.jsonl", help="file to write")
    console = terminal_console.console(highlight=False)
    return exit_code_of(lambda: write(parser.parse_args(argv).output, console))


def write(output: pathlib.Path, console: rich.console.Console) -> None:
    """Write the documents, one a line, as {"title": ..., "text": ...}: whole or not at all.

    Raises:
      ValueError: the output is a folder; this Python has no sources to read.
      OSError: the file cannot be written.
    """
    if output.is_dir():
        raise ValueError(f"OUTPUT.jsonl is {output}, which is a folder; name a file in it")
    modules = list(_modules(pathlib.Path(sysconfig.get_path("stdlib"))))
    if len(modules) < _MIN_MODULES:
        raise ValueError(
            f"{sys.executable} carries the source of {len(modules)} modules of its standard "
            f"library, {_MIN_MODULES} are needed; use a Python from python.org, or your system's "
            "package of the whole of it (Debian, Ubuntu: libpython3-stdlib)"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    total_bytes = sum(path.stat().st_size for _, path in modules)
    label = f"reading the documentation of Python {platform.python_version()}"
    partial = output.with_name(output.name + ".partial")
    try:
        with (
            progress_bar(console, label, total_bytes) as advance,
            partial.open("w", encoding="utf-8") as lines,
        ):
            for title, text in _documents(modules, advance):
                lines.write(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)


def _modules(root: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Name and file of every module under root but those of tests and of installed packages."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not _LEFT_OUT & set(parts):
            yield ".".join(parts).removesuffix(".__init__"), path


def _documents(
    modules: list[tuple[str, pathlib.Path]], advance: Callable[[int], None]
) -> Iterator[tuple[str, str]]:
    for name, text in topics.items():
        yield f"topic {name}", prose(text)
    for name, path in modules:
        text = "\n".join(prose(docstring) for docstring in docstrings(path.read_bytes()))
        if text.strip():
            yield name, text
        advance(path.stat().st_size)


def docstrings(source: bytes) -> list[str]:
    """The docstrings of a module, its classes and functions, in the order of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in old code
        tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def prose(text: str) -> str:
    """The paragraphs of a text, each on one line; no doctests, rules or underlines."""
    paragraphs = []
    for block in _BLANK_LINES.split(text):
        lines = [line.strip() for line in block.splitlines() if _LETTER.search(line)]
        if not any(line.startswith(">>>") for line in lines):
            paragraphs.append(" ".join(lines))
    return "\n".join(filter(None, paragraphs))


if __name__ == "__main__":
    sys.exit(main())
