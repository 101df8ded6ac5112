"""The language of the manual and the screens: American English, rates with per, short pages."""

import ast
import re
import tokenize

import pytest

from tests.docs import pages

ROOT, DOCS = pages.ROOT, pages.DOCS
MAX_WORDS, MAX_COLUMNS = 1500, 78
# Tables to look things up, decisions, trials and the rows of measurements may be long.
LONG = {DOCS / folder for folder in ("reference", "design", "results")}
LONG_PAGES = {DOCS / "experiments.md"}
MANUAL = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
READ = [page for page in MANUAL if page not in LONG_PAGES]  # trials are in the words of their time

_COUNTED = (
    r"rows/s|\d(?:[\d,.]*\d)?|[kMGT]i?B|once|twice|bytes|rows?|tokens?|words?|sequences|examples?"
    r"|texts|positions|predictions|steps|lines?|files?|vectors|dollars|hours|minutes|seconds|operations"
    r"|multiplications|keys|queries|heads|experts|scores?|pieces|slots|masks|passes|factors?"
    r"|vector|piece|sentences?|sequence|prediction|runs|rungs|documents|pairs|chips|devices"
    r"|collectives|programs|checkpoints"
)
_UNIT = (
    r"second|minute|hour|day|week|month|year|step|chip|device|host|core|row|token|word|sentence"
    r"|document|epoch|phase|process|layer|head|batch|worker|seed|slice|pod|node|channel|micro-batch"
    r"|GPU|TPU|CPU|run|file|text|example|line|query|class|label"
)
RATE = re.compile(rf"(?<![=\w])(?:{_COUNTED}) an? (?:CPU |chip[- ])?(?:{_UNIT})\b")
OLD = re.compile(
    r"\b(?:besides?|th(?:at|ose) of|mend(?:s|ed|ing)?|whilst|amongst|thereof|hitherto|oftener)\b",
    re.I,
)
BRITISH = re.compile(
    r"(?:behaviour|colour|favour|honour|labour|neighbour|flavour|analys(?:ed?|ing)\b"
    r"|(?:optim|initial|normal|token|recogn|organ|summar|visual|util|serial|parallel|general"
    r"|regular|quant|random|minim|maxim|real|special|categor|custom|character|penal|synchron"
    r"|standard|vector|factor|capital|emphas|local|central)is(?:e|ed|es|er|ers|ing|ation|ations)\b"
    r"|centre|metre\b|fibre|labelled|labelling|modelled|modelling|cancelled|cancelling|travell"
    r"|signalled|catalogue|artefact|licence|defence|judgement|learnt|spelt|programme\b|\bgrey\b"
    r"|towards|afterwards|per cent\b|fulfil\b|sceptic|\bageing)",
    re.I,
)


def list_faults(text):
    """List the words and rates of a text that an American engineer would not write."""
    plain = re.sub(r"`[^`\n]*`|\]\([^)]*\)|https?://\S+", " ", text)
    return [found.group() for rule in (RATE, OLD, BRITISH) for found in rule.finditer(plain)]


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_american_english_with_per_in_rates(page):
    text = re.sub(r"^```.*?^```$|^    [^\n]*$", "", page.read_text("utf-8"), flags=re.M | re.S)
    assert list_faults(" ".join(text.split())) == []


PACKAGES = ["bert_jax", "data_pipeline", "launch", "configs", "examples", "benchmarks", "docs"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_screens_are_in_american_english_with_per_in_rates(package):
    faults = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        if found := list_faults("\n".join(list_texts(path))):
            faults[str(path.relative_to(ROOT))] = found
    assert faults == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_are_in_american_english(package):
    faults = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        text = re.sub(r"\w*[_.]\w+", " ", "\n".join(list_remarks(path)))
        if found := [match.group() for rule in (OLD, BRITISH) for match in rule.finditer(text)]:
            faults[str(path.relative_to(ROOT))] = found
    assert faults == {}


def list_remarks(path):
    """List the docstrings and comments of a module, without what is in back quotes."""
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    kinds = [token for token in tokens if token.type == tokenize.COMMENT or '"""' in token.string]
    return [re.sub(r"`[^`\n]*`|https?://\S+", " ", token.string) for token in kinds]


def list_texts(path):
    """List the texts of a module that are no docstrings, with 1 for each value of an f-string."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
    ]
    texts += [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in docstrings
    ]
    return [text for text in texts if " " in text]


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_code_block_is_wider_than_a_screen(page):
    text = page.read_text("utf-8")
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += re.findall(r"^    (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


def test_no_page_has_more_than_1500_words():
    short = [page for page in MANUAL if page.parent not in LONG and page not in LONG_PAGES]
    counts = {page.name: len(page.read_text("utf-8").split()) for page in short}
    assert {name: count for name, count in counts.items() if count > MAX_WORDS} == {}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("64 rows a chip at 2.5 dollars an hour", ["rows a chip", "dollars an hour"]),
        ("6.4 MB a CPU second, once a step", ["MB a CPU second", "once a step"]),
        ("The rate is that of the layer beside it.", ["that of", "beside"]),
        ("Its behaviour is optimised towards `colour`.", ["behaviour", "optimised", "towards"]),
        ("64 rows per chip; a row a reader sees", []),
    ],
)
def test_the_rules_find_what_they_are_for(text, faults):
    assert sorted(list_faults(text)) == sorted(faults)
