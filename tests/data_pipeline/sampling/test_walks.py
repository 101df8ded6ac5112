"""Walks are counted once, kept in a sidecar that cannot lie, and built ahead of their use.

Random second segments are half of all, however many chunks have one sentence alone.
"""

import functools
import json
import pathlib
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline.sampling import walks
from data_pipeline.sampling.walk import make_rules, split_chunks, walk_corpus
from data_pipeline.sampling.walks import WalkCache, balance_random_share, find_walk_facts
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split, Store
from tests.data_pipeline.corpora import numbered, split_of, varied
from tests.data_pipeline.sampling.test_walk import rules_of

pytestmark = pytest.mark.usefixtures("few_trial_walks")
SPLIT = split_of(varied(31, seed=5))
OPTIONS = PretrainOptions(dupe_factor=3)


@functools.cache
def counted(options: PretrainOptions = OPTIONS, seq_len: int = 32) -> walks.WalkFacts:
    """The facts as they are found without a sidecar, by walking here."""
    share = 0.5
    if not options.exact:
        share = balance_random_share(SPLIT, make_rules(options, seq_len, 0, 0.5))
    counts = tuple(
        len(walk_corpus(SPLIT, make_rules(options, seq_len, number, share)))
        for number in range(options.dupe_factor)
    )
    return walks.WalkFacts(share, counts, counts)


def find(
    folder: pathlib.Path,
    options: PretrainOptions = OPTIONS,
    seq_len: int = 32,
    split: Split = SPLIT,
    digest: str = "of the corpus",
) -> walks.WalkFacts:
    """The facts with a sidecar in the folder."""
    store = Store(folder, {"digest": digest}, split, split)
    return find_walk_facts(split, options, seq_len, store)


def test_counts_are_read_from_the_sidecar_the_second_time(tmp_path, monkeypatch):
    assert find(tmp_path) == counted()
    monkeypatch.setattr(walks, "_count_walks", None)
    assert find(tmp_path) == counted()
    (path,) = (tmp_path / "walks").iterdir()
    assert len(path.name) == 64 + len(".json")


def test_everything_that_the_counts_depend_on_has_a_sidecar_of_its_own(tmp_path):
    for changed in (
        {},
        {"random_seed": 7},
        {"short_seq_prob": 0.5},
        {"dupe_factor": 2},
        {"exact": True},
    ):
        options = replace(OPTIONS, **changed)
        assert find(tmp_path, options) == counted(options)
    assert find(tmp_path, seq_len=48) == counted(seq_len=48)
    find(tmp_path, split=split_of(varied(31, seed=6)))
    find(tmp_path, digest="of another corpus")
    find(tmp_path, replace(OPTIONS, segments="sop"))
    find(tmp_path, replace(OPTIONS, packed_examples=3))
    assert len(list((tmp_path / "walks").iterdir())) == 10
    # What the counts do not depend on shares the sidecar.
    find(tmp_path, replace(OPTIONS, masked_lm_prob=0.3))
    assert len(list((tmp_path / "walks").iterdir())) == 10


RIGHT = {"random_share": 0.4, "examples": [9, 9, 9], "rows": [9, 9, 9]}
WRONG = [
    *({"random_share": None}, {"random_share": 4.0}, {"examples": [9, 9]}, {"examples": {"a": 1}}),
    *({"examples": [9, 9, last]} for last in (0, -1, 1e30, 1 << 70)),
    *({"rows": 3}, {"rows": [9, 9, "3"]}, {"rows": None}),
]


def test_a_damaged_sidecar_is_written_anew(tmp_path):
    find(tmp_path)
    (path,) = (tmp_path / "walks").iterdir()
    facts = counted()
    right = {"random_share": facts.random_share}
    right |= {"examples": list(facts.examples), "rows": list(facts.rows)}
    for damage in ("", "{", "[1, 2, 3]", *(json.dumps(RIGHT | changed) for changed in WRONG)):
        path.write_text(damage, encoding="utf-8")
        assert find(tmp_path) == facts, damage
        assert json.loads(path.read_text(encoding="utf-8")) == right


def test_a_store_that_cannot_be_written_is_no_error(tmp_path):
    # Stands for a read-only folder, which does not stop a test that runs as root.
    (tmp_path / "walks").write_text("in the way", encoding="utf-8")
    assert find(tmp_path) == find(tmp_path / "absent") == counted()
    assert find_walk_facts(SPLIT, OPTIONS, 32, None) == counted()
    assert [path.name for path in tmp_path.iterdir()] == ["walks"]


def test_deleting_what_the_error_names_mends_a_store_with_other_counts(tmp_path):
    find(tmp_path)
    (sidecar,) = tmp_path.glob("*/*.json")
    record = json.loads(sidecar.read_text(encoding="utf-8"))
    record["rows"] = record["examples"] = [count + 1 for count in counted().examples]
    sidecar.write_text(json.dumps(record), encoding="utf-8")
    examples = counted().examples[0]
    with pytest.raises(
        ValueError, match=f"walk 0 over split train has {examples} examples in"
    ) as raised:
        WalkCache(SPLIT, OPTIONS, 32, find(tmp_path)).get(0)
    (folder,) = re.findall(r"delete the folder '(.+)' in the store", str(raised.value))
    shutil.rmtree(tmp_path / folder)
    assert list(tmp_path.iterdir()) == []
    assert find(tmp_path) == counted()


@pytest.fixture
def cache() -> WalkCache:
    return WalkCache(SPLIT, OPTIONS, 32, counted())


def test_a_walk_built_ahead_is_the_walk_and_is_built_once(monkeypatch, cache):
    built: list[int] = []

    def noted(split, rules):
        built.append(rules.key)
        return walk_corpus(split, rules)

    monkeypatch.setattr(walks, "walk_corpus", noted)
    cache.get(0)
    cache.build_ahead(1)
    cache.build_ahead(1)
    made = cache.get(1)
    assert built == [make_rules(OPTIONS, 32, number, 0.5).key for number in (0, 1)]
    expected = walk_corpus(SPLIT, make_rules(OPTIONS, 32, 1, counted().random_share))
    np.testing.assert_array_equal(made.walk.first_sentence_N, expected.first_sentence_N)


def test_what_stops_a_walk_in_the_background_is_raised_where_it_is_needed(
    monkeypatch, cache, capfd
):
    def full(*_arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(walks, "walk_corpus", full)
    cache.build_ahead(1)
    with pytest.raises(MemoryError, match="no room"):
        cache.get(1)
    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    assert cache.get(1) is cache.get(1)


def test_of_a_large_corpus_two_walks_stay_and_of_a_small_one_all(monkeypatch, cache):
    firsts = [cache.get(number) for number in range(3)]
    assert all(cache.get(number) is firsts[number] for number in range(3))

    monkeypatch.setattr(walks, "_KEEP_ALL_BYTES", 10)
    large = WalkCache(SPLIT, OPTIONS, 32, counted())
    first = large.get(0)
    large.build_ahead(1)
    assert large.get(1) is large.get(1)
    # Walk 0 follows walk 2, so it is kept for then, but not beside walk 1.
    large.get(2)
    assert large.get(0) is not first


def test_threads_that_ask_at_once_get_one_walk(cache):
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(id(cache.get(1)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8 and len(set(made)) == 1


def random_share_of(split: Split, share: float, key: int = 5) -> float:
    walk = walk_corpus(split, rules_of(random_share=share, key=key))
    first_N, sentences_N = walk.first_sentence_N, walk.sentences_N.astype(np.int64)
    return float(split_chunks(walk.rules, first_N, sentences_N)[1].mean())


@pytest.mark.slow
def test_half_of_the_pairs_are_random_where_the_corpus_allows(monkeypatch, all_trial_walks):
    split = split_of(varied(3_000, seed=8, most_sentences=9))
    share = balance_random_share(split, rules_of())
    # Chunks of one sentence alone would tip the scales.
    assert random_share_of(split, 0.5) > 0.6 and 0.05 < share < 0.45
    mean = np.mean([random_share_of(split, share, key) for key in range(10)])
    assert abs(mean - 0.5) < 0.01
    # Of a large corpus the share is found on parts.
    monkeypatch.setattr(walks, "_SENTENCES", 4_000)
    assert share != balance_random_share(split, rules_of()) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("lengths", [[[5]] * 30 + [[4, 4, 4]], [[5], [6]]])
def test_where_most_chunks_have_one_sentence_no_other_is_random(lengths):
    assert balance_random_share(split_of(numbered(lengths)), rules_of()) == 0.0
