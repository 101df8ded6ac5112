"""A newcomer's questions: each has a page and a heading, two clicks from README or the home."""

import functools
import pathlib

import pytest

from tests.docs import pages

DOCS = pages.DOCS
HOMES = (pages.README, DOCS / "index.md")
CLICKS = 2
ANSWERS = {
    "How do I install it on GPUs?": "start/install.md",
    "How do I get from my own text to a model?": "guide/data.md",
    "Which config for how much text?": "guide/training.md#which-config",
    "How do I change the masking rate?": "guide/rows.md#masking-and-sampling",
    "What will it cost?": "guide/plan.md",
    "How do I resume?": "guide/runs.md",
    "How do I use it in transformers?": "guide/checkpoints.md#what-an-export-guarantees",
    "How do I predict new rows?": "guide/finetune.md#predict-new-rows",
    "How do I use several GPUs in one machine?": "start/install.md#one-process-or-several",
    "How do I use several machines?": "guide/multihost.md",
    "How do I continue a published model?": "guide/continue.md#recipes",
    "How do I add words of my field?": "guide/continue.md#add-words-of-a-field",
    "How much memory does Base need at 512?": "guide/memory.md#on-tpu-chips",
    "What do I do when memory runs out?": "guide/troubleshooting.md#it-runs-out-of-memory",
    "What do I do about a loss of NaN?": "guide/troubleshooting.md#the-loss-is-wrong",
    "What is a store?": "reference/glossary.md#data",
    "How does my score compare?": "guide/faq.md#how-does-my-score-compare-with-berts",
    "Which loss should I see?": "guide/on_track.md#reference-lines",
    "What became of --mlm_probability?": "guide/coming_from.md#hugging-faces-run_mlmpy",
    "How do I get vectors in Python?": "reference/api.md#features",
    "How do I train on code or DNA?": "guide/recipes.md#dna-logs-and-other-codes",
    "What has not been shown?": "results.md#what-has-not-been-shown",
}


@functools.cache
def read(page: pathlib.Path) -> str:
    return page.read_text(encoding="utf-8")


@functools.cache
def follow_links(page: pathlib.Path) -> set[pathlib.Path]:
    """List the pages that a page links to."""
    targets = (link.partition("#")[0] for link in pages.links_in(read(page)))
    found = {(page.parent / target).resolve() for target in targets if target.endswith(".md")}
    return {target for target in found if target.is_file()}


@functools.cache
def reach(home: pathlib.Path) -> set[pathlib.Path]:
    """List the pages that are at most CLICKS clicks away from a page."""
    reached = {home}
    for _ in range(CLICKS):
        reached = reached.union(*map(follow_links, reached))
    return reached


@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_has_an_answer_in_two_clicks(question):
    name, _, anchor = ANSWERS[question].partition("#")
    page = DOCS / name
    assert not anchor or anchor in pages.anchors_in(read(page))
    assert any(page in reach(home) for home in HOMES)


def test_every_page_is_two_clicks_from_the_home():
    assert sorted(set(DOCS.rglob("*.md")) - reach(DOCS / "index.md")) == []


def test_a_frequent_question_links_to_a_page():
    _, *answers = read(DOCS / "guide" / "faq.md").split("\n## ")
    assert len(answers) >= 15
    for answer in answers:
        question, text = answer.split("\n", 1)
        assert question.endswith("?") and pages.links_in(text), question
        assert len(text.split()) <= 60, question
