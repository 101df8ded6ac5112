"""Write the pages of the manual that follow from other files: make docs-reference.

docs/reference/config.md comes from the fields of the settings, commands.md from each command's
--help, docs/design/decisions.md from the headings of the other pages of design, docs/results/*.md
from the measurements in the JSON file of the same name, whose headlines README.md, docs/index.md
and docs/results.md repeat. docs/pictures.py draws two pictures.
"""

import contextlib
import importlib
import io
import json
import os
import pathlib
import re
import runpy
import sys
import tempfile
import typing
from collections.abc import Iterator, Sequence

from bert_jax.config import Config, FinetuneConfig
from bert_jax.lab.study_config import StudyConfig
from bert_jax.settings import SettingsGroup, list_all

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES, DESIGN, RESULTS = DOCS / "reference", DOCS / "design", DOCS / "results"
WITH_HEADLINES = (ROOT / "README.md", DOCS / "index.md", DOCS / "results.md")
_COLUMNS = "78"  # width of the help: a code block of the site must not scroll
_NOTE = "<!-- Written by docs/generate.py: change the code, then run make docs-reference. -->\n"
_CONFIG_HEAD = """# Config
{note}
A config file returns one of these three trees of settings; a flag overrides a single one:
`--config.optim.learning_rate=5e-5`, `--config.phases[0].steps=1000`. `--print_config` prints all.
A value out of its range or of another type is refused with its key before anything is opened.
"""
_COMMANDS_HEAD = """# Commands
{note}
What `python -m COMMAND --help` prints. Commands that take `--config` also take every setting of
[the config](config.md) as `--config.KEY=VALUE`.
"""
_DECISIONS_HEAD = """# Decisions
{note}
Comments and pages cite decisions by number. A replaced or removed decision begins by saying so.

| number | decision | page |
|---|---|---|"""
_RESULTS_NOTE = "<!-- Written by docs/generate.py from {}.json: change that file. -->"
# A line of a page WITH_HEADLINES: the headline of a row and its name.
_HEADLINE = re.compile(r"^- .* <!-- row: (\w+) -->$", re.MULTILINE)
# Imported once; each command is then run by a child of this process.
_LIBRARIES = ("bert_jax.trainer.loop", "bert_jax.finetuning.setup", "bert_jax.planning.aot_compile")


def config_page() -> str:
    """Return the reference of all settings: each group with keys, defaults, ranges and help."""
    groups = list_all()
    first, *tables = _write_groups(groups[FinetuneConfig], "finetune")
    return "\n".join(
        [
            _CONFIG_HEAD.format(note=_NOTE),
            "## Pre-training",
            *_write_groups(groups[Config], "config"),
            "## Fine-tuning",
            first,
            "A group or setting that is not repeated here is the same as in pre-training.\n",
            *tables,
            "## Studies",
            *_write_groups(groups[StudyConfig], "study"),
        ]
    )


def _write_groups(groups: Sequence[SettingsGroup], anchor: str) -> Iterator[str]:
    """Yield the introduction and the table of each group, the first without a heading.

    Each setting has an anchor, such as config.optim.name: `anchor` stands for the first word.
    """
    for group in groups:
        if group.key != "config":
            yield f"### {group.key}"
        yield f"{_write_about(group.about)}\n"
        rows = ["| key | default | allowed | |", "|---|---|---|---|"]
        place = anchor + group.key.removeprefix("config").replace("[0]", "")
        for row in group.rows:
            default = row.default
            if default not in ("required", "empty"):
                default = f"<code>{default}</code>" if "|" in default else f"`{default}`"
            name = f'<a id="{place}.{row.name}"></a>`{row.name}`'
            cells = (name, default, row.allowed, row.about)
            rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
        yield "\n".join(rows) + "\n"


def _write_about(about: str) -> str:
    """Turn the lines "  name   meaning" of a docstring, and their indented rests, into a list."""
    items = re.sub(r"^  (\w+) +", r"- `\1`: ", re.sub(r"\n {4,}", " ", about), flags=re.MULTILINE)
    return items.replace(":\n- ", ":\n\n- ")


def commands() -> list[str]:
    """Return the modules that `python -m` runs, first bert_jax's."""
    return [
        f"{package}.{path.stem}"
        for package in ("bert_jax", "data_pipeline")
        for path in sorted((ROOT / package).glob("*.py"))
        if not path.stem.startswith("_")
    ]


def commands_page() -> str:
    """Return what --help of each command prints; each is run by a child of this process."""
    for library in _LIBRARIES:
        importlib.import_module(library)
    parts = [_COMMANDS_HEAD.format(note=_NOTE)]
    for module in commands():
        parts.append(f"## {module}\n```text\n{_help(module)}\n```\n")
    return "\n".join(parts)


def _help(module: str) -> str:
    """Run a command with --help in a child and return what it prints.

    Raises:
      RuntimeError: the command failed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = os.fork()
        if child == 0:
            os._exit(_print_help(module, output))
        _, status = os.waitpid(child, 0)
        output.seek(0)
        text = output.read()
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"python -m {module} --help failed: {text}")
    home = str(pathlib.Path.home())
    return text.replace(f"{ROOT}/", "").replace(home, "~").strip()


def _print_help(module: str, output: typing.IO[str]) -> int:
    os.environ["COLUMNS"] = _COLUMNS
    sys.modules.pop(module, None)  # bert_jax.settings is imported above
    sys.argv = [module, "--help"]
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    output.write(written.getvalue())
    output.flush()
    return code


def decisions_page() -> str:
    """Return the index of the decisions by number, each with a link to its section."""
    heading = re.compile(r"^## (Decision (\d+): (.+))$", re.MULTILINE)
    rows = {}
    for page in sorted(DESIGN.glob("*.md")):
        for title, number, words in heading.findall(page.read_text(encoding="utf-8")):
            anchor = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
            rows[int(number)] = f"| [{number}]({page.name}#{anchor}) | {words} | {page.stem} |"
    return "\n".join([_DECISIONS_HEAD.format(note=_NOTE), *(rows[n] for n in sorted(rows)), ""])


def results_page(source: pathlib.Path) -> str:
    """Return the page of one theme's measurements; each row's command unfolds under it."""
    theme = json.loads(source.read_text(encoding="utf-8"))
    parts = [f"# {theme['title']}", _RESULTS_NOTE.format(source.stem), ""]
    for section in theme["sections"]:
        parts += [section["heading"], *section["text"]]
        if section["rows"]:
            parts += ["", "| what | figure | date, commit |", "|---|---|---|"]
            parts += [_write_result(row) for row in section["rows"]]
        parts.append("")
    return "\n".join(parts)


def _write_result(row: dict[str, str]) -> str:
    details = f"{row['command']}<br>Device: {row['device']}. Runs: {row['runs']}."
    what = f"{row['what']} <details><summary>command</summary>{details}</details>"
    return f"| {what} | {row['figure']} | {row['date']}, {row['commit']} |"


def list_named_rows() -> dict[str, dict[str, str]]:
    """Return the measurements that have a name and a headline, by name."""
    themes = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    rows = [row for theme in themes for section in theme["sections"] for row in section["rows"]]
    return {row["name"]: row for row in rows if "name" in row}


def fill_headlines(text: str) -> str:
    """Return a page with the headline of its row in each line that names one."""
    rows = list_named_rows()
    return _HEADLINE.sub(
        lambda line: f"- {rows[line[1]]['headline']} <!-- row: {line[1]} -->", text
    )


def write_results() -> None:
    """Write the pages and the picture that show rows of docs/results."""
    import pictures

    for source in RESULTS.glob("*.json"):
        source.with_suffix(".md").write_text(results_page(source), encoding="utf-8")
    for page in WITH_HEADLINES:
        page.write_text(fill_headlines(page.read_text(encoding="utf-8")), encoding="utf-8")
    pictures.draw_speed(list_named_rows())


def main() -> None:
    """Write all pages, or only the reference pages into the given folder."""
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES
    if folder == PAGES:
        import pictures

        write_results()
        pictures.draw_rows()
        (DESIGN / "decisions.md").write_text(decisions_page(), encoding="utf-8")
    (folder / "config.md").write_text(config_page(), encoding="utf-8")
    (folder / "commands.md").write_text(commands_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
