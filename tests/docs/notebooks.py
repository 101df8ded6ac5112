"""Run the notebooks of examples/: rewrite their outputs, or compare them with a second run.

    python -m tests.docs.notebooks      # make notebooks

Two outputs agree if they have the same words in the same order and each number is within TOLERANCE
of the other, since losses differ by processor. Dates, times, speeds, hashes, numbers of processes
and how a run spent its time are left out (LEFT_OUT). Under another version of Python than the
notebook's, numbers are left out too: the text is the documentation that a Python carries. Of
pictures, and of cells tagged `varies`, which show pieces of that text or what a model guessed, only
the kinds are compared.
"""

import itertools
import math
import pathlib
import re
import sys
import tempfile
from typing import Any

from tests.docs import pages

# In order: the second continues the checkpoint of the first.
NAMES = ("pretrain_and_ask", "continue_and_hand_over")
FOLDER = pages.ROOT / "examples"
TOLERANCE = 0.15  # relative or absolute
CELL_SECS = 3600
LEFT_OUT = re.compile(
    r"\d{4}-\d\d-\d\d|Python \d[\d.]*"
    r"|^wall time\n(?s:.*?)^done$|goodput\s+[\d.]+%"
    r"|(?:\d+ d )?\d+:\d\d(?::\d\d)?(?: left)?"
    r"|[\d,.]+ (?:ms|s|seconds|min|minutes|h|hours)\b"
    r"|[\d,.]+ (?:\w+/s\b|\w+ per second)"
    r"|\([0-9a-f]{12}\)"
    r"|with \d+ process(?:es)?"
    r"|(?:;\s+)?the\s+step\s+is\s+compiled\s+already|phase \d+: compiling the step"
    r"|─+",
    re.MULTILINE,
)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def path_of(name: str) -> pathlib.Path:
    """Return the file of a notebook."""
    return FOLDER / f"{name}.ipynb"


def run(name: str, folder: pathlib.Path) -> Any:
    """Return a notebook with the outputs of a fresh run; folder gets what its commands write."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path_of(name), as_version=4)
    (folder / "examples").mkdir(exist_ok=True)
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(pages.ROOT / "configs")
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_SECS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder / "examples")}},
    )
    client.execute()
    version = notebook.metadata["language_info"]["version"]
    notebook.metadata["language_info"] = {"name": "python", "version": version}
    return notebook


def list_differences(stored: Any, rerun: Any) -> list[str]:
    """List, for each cell that disagrees, the first words that do, or the kinds of its outputs."""
    versions = [notebook.metadata["language_info"]["version"] for notebook in (stored, rerun)]
    tolerance = TOLERANCE if versions[0] == versions[1] else math.inf
    differences = []
    for number, (old, new) in enumerate(zip(stored.cells, rerun.cells, strict=True)):
        if old.cell_type != "code":
            continue
        if list_kinds(old) != list_kinds(new):
            differences.append(f"cell {number}: {list_kinds(old)} became {list_kinds(new)}")
        elif "varies" not in old.metadata.get("tags", []):
            words = itertools.zip_longest(read_words(old), read_words(new), fillvalue="")
            disagreeing = [pair for pair in words if not agree(*pair, tolerance)]
            differences += [f"cell {number}: {a!r} became {b!r}" for a, b in disagreeing[:1]]
    return differences


def list_kinds(cell: Any) -> list[str]:
    """List what a cell put out: names of streams, and types of data."""
    return [
        " ".join(sorted(output.get("data", {output.get("name"): ""}))) for output in cell.outputs
    ]


def read_words(cell: Any) -> list[str]:
    """List the words that a cell printed."""
    text = "\n".join(output.get("text", "") for output in cell.outputs)
    return LEFT_OUT.sub("", text).split()


def agree(first: str, second: str, tolerance: float) -> bool:
    """Return whether two words are equal but for numbers, and these within the tolerance."""
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        return False
    pairs = zip(_NUMBER.findall(first), _NUMBER.findall(second), strict=True)
    numbers = [(float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs]
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in numbers)


def main() -> None:
    """Run both notebooks and write them with their outputs."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            print(f"running {path_of(name).relative_to(pages.ROOT)}", flush=True)
            notebook = run(name, pathlib.Path(folder))
            path_of(name).write_text(nbformat.writes(notebook, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
