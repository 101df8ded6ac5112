"""Read the pages of the manual: links, commands, paths and settings that they name."""

import json
import pathlib
import re
from decimal import Decimal

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
TOP_FOLDERS = (
    *("bert_jax", "data_pipeline", "configs", "launch", "benchmarks", "docs", "examples"),
    *("requirements", "tests", r"\.ci"),
)
# A path in back quotes; a config may have arguments, `configs/base.py:recipe=x`.
_PATH = re.compile(rf"`((?:{'|'.join(TOP_FOLDERS)})/[\w./-]*)(?::[\w=.]+)?`|`([\w-]+\.(?:md|cff))`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND = re.compile(r"^    (\S(?:.*\\\n)*.*)", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SETTING = re.compile(r'(?<![#"])(?:--)?config\.((?:\w+(?:\[[\di]\])?\.)*\w+)')
# Third-party files, or files in a user's folder.
_NOT_OURS = {"README.md", "run.md", "study.md"}


def pages() -> list[pathlib.Path]:
    """List every page of the repository: those at its root and the manual."""
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def paths_in(text: str) -> set[str]:
    """List the project's files and folders that a page names in back quotes."""
    return {path or page for path, page in _PATH.findall(text)} - _NOT_OURS


def links_in(text: str) -> list[str]:
    """List the targets of links and pictures."""
    return _LINK.findall(_FENCE.sub("", text))


def anchors_in(text: str) -> set[str]:
    """List the anchors of a page: its own, and its headings', as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
    return set(re.findall(r'<a id="(.+?)"></a>', text)) | {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


def commands_in(text: str) -> list[str]:
    """List the indented blocks of a page that are commands, one string a command."""
    blocks = _COMMAND.findall(_FENCE.sub("", text))
    return [" ".join(block.replace("\\\n", " ").split()) for block in blocks if is_command(block)]


def is_command(block: str) -> bool:
    """Return whether an indented block is a command and not output or Python."""
    first = block.split()[0]
    return first in ("make", "python", "pip", "sbatch") or first.startswith(
        ("launch/", ".venv", ".ci/", "python3")
    )


def script_in(words: list[str]) -> list[str]:
    """Return the words from a script of launch/ on, which may follow sbatch; [] without one."""
    first = 0 if words[0] != "sbatch" else next(i for i, w in enumerate(words) if "launch/" in w)
    return words[first:] if words[first].startswith("launch/") else []


def python_in(text: str) -> list[str]:
    """List the indented blocks of a page that are Python, without their indent."""
    blocks = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    blocks = [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]
    return [block for block in blocks if block.startswith(("from ", "import "))]


def settings_in(text: str) -> set[str]:
    """List the paths of settings, as in config.optim.learning_rate or config.phases[0].steps."""
    named = {path.replace("[i]", "[0]") for path in _SETTING.findall(text)}
    return {path for path in named if path.split(".")[-1] not in ("json", "py", "md")}


def tables_in(text: str) -> list[list[str]]:
    """List the rows of all tables of a page as their cells, without heads and rules."""
    rows = re.findall(r"^\|(.*)\|$(?!\n\|-)", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]
    return [row for row in cells if not set("".join(row)) <= set("-")]


def read_flags(command: str) -> set[str]:
    """List the flags of a command, as build or train, that the reference prints."""
    reference = (DOCS / "reference" / "commands.md").read_text("utf-8")
    (section,) = re.findall(rf"^## \w+\.{command}\n(.*?)^```$", reference, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^  (--\w+)", section, re.MULTILINE))


def results() -> list[dict[str, str]]:
    """List the rows of all measurements."""
    themes = [json.loads(path.read_text("utf-8")) for path in (DOCS / "results").glob("*.json")]
    return [row for theme in themes for section in theme["sections"] for row in section["rows"]]


def numbers_in(text: str) -> list[Decimal]:
    """List the numbers that stand alone: 4.54, 1,000,000 and 2.6e-5, not v5e."""
    found = re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?(?![^\W_])", text)
    return [Decimal(number.replace(",", "")) for number in found]


def make_targets() -> set[str]:
    """List the targets of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
