"""Write the documentation that this Python carries as JSON lines.

The running Python carries about 2 MB of English prose, so nothing is downloaded. A document is a
topic of pydoc_data, or the docstrings of a module of the standard library in the order of the file.
"""

import ast
import dataclasses
import json
import pathlib
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from pydoc_data.topics import topics

import rich.console

from data_pipeline.cli.flags import Command, flag
from data_pipeline.cli.main import run_main
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_file
from data_pipeline.report.progress import progress_bar
from data_pipeline.store import check_is_local

# Docstrings of tests describe the tests; installed packages are not a part of Python.
_SKIPPED = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})
_BLANK_LINES = re.compile(r"\n\s*\n")
_LETTER = re.compile(r"[^\W\d_]")
_MIN_MODULES = 100  # a Python with fewer modules was packed without its sources


@dataclasses.dataclass(frozen=True)
class PythonDocsFlags:
    """Declare the flags."""

    output: str = flag(
        "", "file to write", metavar="OUTPUT.jsonl", is_positional=True, is_required=True
    )

    def __post_init__(self) -> None:
        check_is_local("OUTPUT.jsonl", self.output)


COMMAND = Command(
    "data_pipeline.python_docs",
    __doc__,
    PythonDocsFlags,
    "python -m data_pipeline.python_docs docs.jsonl",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the corpus to the file that the command line names; return the exit code."""
    console = make_console(highlight=False)
    return run_main(COMMAND, lambda _, flags: write(pathlib.Path(flags.output), console), argv)


def write(output: pathlib.Path, console: rich.console.Console) -> None:
    """Write the documents, one per line, as {"title": ..., "text": ...}, or nothing.

    Raises:
      Refused: the output is a folder; this Python has no sources to read.
      OSError: the file cannot be written.
    """
    if output.is_dir():
        raise Refused(f"OUTPUT.jsonl is {output}, which is a folder; name a file in it")
    modules = list(_modules(pathlib.Path(sysconfig.get_path("stdlib"))))
    if len(modules) < _MIN_MODULES:
        raise Refused(
            f"{sys.executable} carries the source of {len(modules)} modules of its standard "
            f"library, {_MIN_MODULES} are needed; use a Python from python.org, or your system's "
            "package of the whole of it (Debian, Ubuntu: libpython3-stdlib)"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    total_bytes = sum(path.stat().st_size for _, path in modules)
    label = f"reading the documentation of Python {platform.python_version()}"
    with progress_bar(console, label, total_bytes) as advance:
        lines = [
            json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n"
            for title, text in _documents(modules, advance)
        ]
    write_file(output, "".join(lines).encode())


def _modules(root: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield name and file of every module under root, without tests and installed packages."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not _SKIPPED & set(parts):
            yield ".".join(parts).removesuffix(".__init__"), path


def _documents(
    modules: list[tuple[str, pathlib.Path]], advance: Callable[[int], None]
) -> Iterator[tuple[str, str]]:
    for name, text in topics.items():
        yield f"topic {name}", extract_prose(text)
    for name, path in modules:
        text = "\n".join(
            extract_prose(docstring) for docstring in find_docstrings(path.read_bytes())
        )
        if text.strip():
            yield name, text
        advance(path.stat().st_size)


def find_docstrings(source: bytes) -> list[str]:
    """Return the docstrings of a module, its classes and functions, in the order of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old code has wrong escapes
        tree = ast.parse(source)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def extract_prose(text: str) -> str:
    """Return the paragraphs of a text, each on a line, without doctests and rules."""
    paragraphs = []
    for block in _BLANK_LINES.split(text):
        lines = [line.strip() for line in block.splitlines() if _LETTER.search(line)]
        if not any(line.startswith(">>>") for line in lines):
            paragraphs.append(" ".join(lines))
    return "\n".join(filter(None, paragraphs))


if __name__ == "__main__":
    sys.exit(main())
