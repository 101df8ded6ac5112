"""The manual: what its pages name exists, and each keeps its form."""

import ast
import importlib
import pathlib
import re
import shlex

import pytest
import yaml

from bert_jax.config import Config, to_config_dict
from bert_jax.config.finetune_schema import FinetuneConfig
from bert_jax.lab.study_config import StudyConfig
from bert_jax.runtime.cli import GivenConfig
from launch.cloud.commands import COMMANDS
from tests.docs import pages

ROOT, DOCS = pages.ROOT, pages.DOCS
PAGES = sorted(DOCS.rglob("*.md"))
HOW_TO = sorted(set((DOCS / "guide").glob("*.md")) - {DOCS / "guide" / "faq.md"})


def text_of(page):
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_link_of_a_page_exists(page):
    text = text_of(page)
    assert [name for name in sorted(pages.paths_in(text)) if not (ROOT / name).exists()] == []
    for link in pages.links_in(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith("https://"):
            continue
        assert target.exists(), link
        assert not anchor or anchor in pages.anchors_in(text_of(target)), link


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_table_is_one_on_github_and_on_the_site(page):
    """GitHub ends a cell at each |, also in code; MkDocs reads no table right after a paragraph."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    for before, table in re.findall(r"^((?!\|).*)\n((?:\|.*\n)+)", text, re.M):
        assert before == "" or before.startswith("#"), before
        bars = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(bars) == 1, table.splitlines()[0]


def test_no_page_has_the_marks_of_a_merge():
    marked = [page.name for page in pages.pages() if re.search("^[<>]{7} ", text_of(page), re.M)]
    assert marked == []


@pytest.mark.parametrize(
    "page",
    [page for page in (pages.README, *PAGES) if pages.commands_in(text_of(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_command_of_a_page_has_its_module_flags_and_settings(page, capsys):
    """Each is read as it stands by what it names, and not run; test_commands.py runs them."""
    for command in pages.commands_in(text_of(page)):
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert words[1] in pages.make_targets(), command
        elif script := pages.script_in(words):
            known = describe_script(script[0], capsys)
            flags = {word.partition("=")[0] for word in script if word.startswith("--")}
            assert {flag for flag in flags if "." not in flag and flag not in known} == set()
        elif "-m" in words:
            read_module_flags(*words[words.index("-m") + 1 :])


def read_module_flags(module, *arguments):
    """Let a command read its flags, and its config if one is named."""
    if not module.startswith(("bert_jax.", "data_pipeline.")):
        path = ROOT / f"{module.replace('.', '/')}.py"
        assert module in ("pip", "venv") or path.is_file(), module
        return
    flags = importlib.import_module(module).COMMAND.read(arguments)
    for value in vars(flags).values():
        if isinstance(value, GivenConfig) and value.place:
            value.load()


def describe_script(path, capsys):
    """Return what --help of a script of launch/ prints."""
    name = pathlib.Path(path).stem
    if name not in COMMANDS:
        return (ROOT / path).read_text()
    with pytest.raises(SystemExit, match="0"):
        COMMANDS[name](["--help"])
    return capsys.readouterr().out


def test_every_setting_that_is_named_exists():
    configs = [to_config_dict(config) for config in (Config(), FinetuneConfig(), StudyConfig())]
    for page in [pages.README, *PAGES]:
        for path in pages.settings_in(text_of(page)):
            is_placeholder = path.isupper()  # --config.KEY=VALUE
            known = is_placeholder or any(has_field(config, path) for config in configs)
            assert known, (page.name, path)


def test_every_flag_of_others_has_a_setting_or_a_flag_of_ours():
    rows = pages.tables_in(text_of(DOCS / "guide" / "coming_from.md"))
    assert len(rows) > 50
    configs = [to_config_dict(config) for config in (Config(), FinetuneConfig())]
    for theirs, ours, difference in rows:
        assert re.fullmatch(r"`--\w+`(, `--\w+`)*", theirs), theirs
        for name in re.findall(r"`(.+?)`", ours):
            command, _, flag = name.partition(" ")
            key = name.removeprefix("config.").replace("[i]", "[0]")
            known = flag in pages.read_flags(command) if flag else None
            assert known or any(has_field(config, key) for config in configs), name
        assert "`" in ours or (ours == "none" and difference), theirs


def has_field(value, path):
    """Whether a config has the field that a path of names and indices leads to."""
    for name, index in re.findall(r"(\w+)(?:\[(\d)\])?", path):
        if name not in value:
            return False
        value = value[name]
        if index and len(value):
            value = value[int(index)]
    return True


def test_every_config_file_has_a_row_in_the_guide():
    training = text_of(DOCS / "guide" / "training.md")
    for path in (ROOT / "configs").glob("*.py"):
        assert path.name == "__init__.py" or f"| `configs/{path.name}` |" in training


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_a_how_to_page_asks_one_question_and_opens_with_a_command(page):
    lines = [line for line in text_of(page).splitlines() if line]
    assert lines[0].startswith("# ") and lines[0].endswith("?")
    assert pages.is_command(lines[1])


def test_every_trial_has_its_command_device_date_and_commit():
    text = text_of(DOCS / "experiments.md")
    rows = [line for line in text.splitlines() if re.search(r"\| 2026-", line)]
    assert rows
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 7 and all(cells), row


def test_every_measurement_has_its_command_device_date_and_commit():
    rows = pages.results()
    keys = {"what", "figure", "command", "device", "date", "commit", "runs"}
    for row in rows:
        assert set(row) - {"name", "headline"} == keys and all(row.values()), row
        assert re.fullmatch(r"2026-\d\d-\d\d", row["date"]), row
        assert not any("|" in value for value in row.values()), row  # it would end a cell
    names = [row["name"] for row in rows if "name" in row]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("page", [pages.README, DOCS / "results.md"], ids=lambda page: page.name)
def test_each_figure_of_a_headline_stands_in_its_row(page):
    rows = {row["name"]: row for row in pages.results() if "name" in row}
    results = text_of(page).partition("# Results\n")[2].partition("## Commands")[0]
    marked = re.findall(r"^- (.*) <!-- row: (\w+) -->$", results, re.MULTILINE)
    assert len(marked) == results.count("<!--") > 5
    for sentence, name in marked:
        row = rows[name]
        measured = pages.numbers_in(" ".join(row[key] for key in ("what", "figure", "device")))
        figures = pages.numbers_in(sentence)
        assert figures, sentence
        for figure in figures:
            assert any(is_rounded(number, figure) for number in measured), (figure, row["figure"])
    unmarked = re.sub(r"^- .*-->$|\]\(\S+\)", "", results, flags=re.MULTILINE)
    assert pages.numbers_in(unmarked) == []


def is_rounded(number, figure):
    """Whether a figure is a number as it is or with fewer digits."""
    return round(number, -figure.as_tuple().exponent) == figure


def test_the_results_have_600_words_at_most():
    assert len(text_of(DOCS / "results.md").split()) <= 600


def test_decisions_are_numbered_without_a_gap():
    numbers = sorted(
        int(number)
        for page in (DOCS / "design").glob("*.md")
        for number in re.findall(r"^## Decision (\d+): ", text_of(page), re.MULTILINE)
    )
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_page_is_in_the_navigation():
    class Loader(yaml.SafeLoader):
        """Reads what MkDocs adds to YAML as None."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    site = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = set(re.findall(r"[\w/]+\.md", str(site["nav"])))
    assert {str(page.relative_to(DOCS)) for page in PAGES} == listed


CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_config_says_what_was_measured_with_it_as_its_row_does(path):
    about = " ".join(ast.get_docstring(ast.parse(text_of(path))).split())
    measured = re.findall(r"Measured \(row (\w+) of docs/results/\w+\.json\)(.*)", about)
    assert len(measured) + len(re.findall(r"\b[Nn]ot measured with this code\.", about)) == 1
    for name, sentence in measured:
        (row,) = (row for row in pages.results() if row.get("name") == name)
        stated = sentence.partition(". ")[0]
        assert pages.numbers_in(stated)
        assert set(pages.numbers_in(stated)) <= set(pages.numbers_in(" ".join(row.values())))
