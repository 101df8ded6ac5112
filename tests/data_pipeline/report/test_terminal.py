"""The report on a screen: what it names, its width, and where the answers stand."""

import dataclasses
import io

import numpy as np
import pytest
import rich.console

from data_pipeline.report.health import measure
from data_pipeline.report.lengths import measure_lengths
from data_pipeline.report.repeats import Repeats
from data_pipeline.report.rows import ShownExample, ShownToken
from data_pipeline.report.terminal import (
    draw_blocks,
    lay_out_example,
    list_counts,
    list_health_facts,
    print_health,
)
from data_pipeline.store import open_store
from tests.data_pipeline.stores import healthy_store

pytestmark = pytest.mark.usefixtures("few_trial_walks")


def test_answers_stand_under_what_hides_them():
    tokens = (
        ShownToken("[CLS]", True),
        ShownToken("the", True),
        ShownToken("[MASK]", True, "understanding", "hidden"),
        ShownToken("un", True),
        ShownToken("do", False, "##able", "replaced"),
        ShownToken("狗", True, "狗", "kept"),
        ShownToken("[SEP]", True),
    )
    shown, answers = (line.plain for line in lay_out_example(ShownExample(False, tokens), 80))
    assert shown == "[CLS] the [MASK]        undo     狗 [SEP]"
    assert answers == "          understanding   ##able 狗"
    assert shown.index("[MASK]") == answers.index("understanding")
    assert shown.index("undo") + 2 == answers.index("##able")


def test_neither_markup_nor_control_characters_reach_the_terminal():
    tokens = (
        ShownToken("[bold red]", True),
        ShownToken("\x1b[2Jw\n", True, "\x07", "kept"),
        ShownToken("狗\u200b", True, "[link]", "hidden"),
    )
    console = rich.console.Console(file=io.StringIO(), width=80)
    for line in lay_out_example(ShownExample(False, tokens), 80):
        console.print(line)
    shown, answers = console.file.getvalue().splitlines()
    assert shown == "[bold red] \ufffd[2Jw\ufffd 狗\ufffd"
    assert answers.split() == ["\ufffd", "[link]"]


def test_a_shape_is_as_high_as_what_is_common_and_shows_what_is_rare():
    lengths = measure_lengths([np.array([1, 5, *[4] * 100])], is_even=True)
    assert draw_blocks(lengths, columns=5) == "▁  █▁"
    assert draw_blocks(measure_lengths([np.array([9])]), columns=3) == "███"


@pytest.fixture(scope="module")
def health(tmp_path_factory):
    store = healthy_store(tmp_path_factory.mktemp("words") / "store")
    return measure(open_store(store), 32, 0)


def lines(health, **manifest_changes) -> list[str]:
    changed = dataclasses.replace(health, manifest=health.manifest | manifest_changes)
    return [f"{name}: {value}" for name, value in list_health_facts(changed)]


def test_facts_name_what_the_build_counted_and_leave_out_zeros(health):
    manifest = health.manifest
    found = lines(
        health,
        dropped=manifest["dropped"] | {"documents_without_sentences": 3732, "short_documents": 2},
        changed=manifest["changed"] | {"normalized_documents": 12},
        near_duplicates={"clusters": 1000, "documents": 2345, "documents_given_up": 0},
        build=manifest["build"] | {"normalize": "nfc", "near_duplicates": "drop"},
    )
    counts = "0 sentences without tokens, 3,732 documents without sentences, 2 short documents"
    assert f"dropped: {counts}" in found
    assert "normalized: 12 documents were not in nfc" in found
    kept = "only the first of each is kept"
    assert f"near copies: 2,345 documents in 1,000 clusters; {kept}" in found


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_narrow_screen_has_every_fact_and_a_file_every_sample(health, is_terminal):
    out = io.StringIO()
    console = rich.console.Console(
        file=out, force_terminal=is_terminal, color_system=None, width=40
    )
    print_health(console, health, [])
    shown = " ".join(out.getvalue().split())
    facts = [" ".join(value.split()) for _, value in list_health_facts(health)]
    assert any(len(fact) > 40 for fact in facts) and all(fact in shown for fact in facts)
    frequent = " ".join(piece for piece, _ in health.pieces.most_frequent)
    assert len(frequent) > 40 and (frequent in shown) == (not is_terminal)


def test_a_piece_that_never_occurs_is_not_called_frequent(health):
    console = rich.console.Console(file=io.StringIO(), width=80)
    pieces = dataclasses.replace(health.pieces, most_frequent=(("wab", 3), ("[PAD]", 0)))
    print_health(console, dataclasses.replace(health, pieces=pieces), [])
    assert "  frequent    wab\n" in console.file.getvalue()


def test_a_sample_is_said_to_be_one(health):
    assert f"rows: all {health.rows.epoch_rows:,} of an epoch at 32 tokens" in lines(health)
    rows = dataclasses.replace(health.rows, epoch_rows=10**6, sampled=1000)
    assert "rows: a sample: 1,000 of the 1,000,000 of an epoch at 32 tokens" in lines(
        dataclasses.replace(health, rows=rows)
    )
    copies = dataclasses.replace(health.copies, leaked_sentences=Repeats(500, 4000, 50))
    counts = dict(list_counts(dataclasses.replace(health, copies=copies)))
    assert counts["sentences also in training"] == ["", "10.0% of 500 sampled"]
