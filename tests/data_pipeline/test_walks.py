"""Walks are counted once, kept in a sidecar that cannot lie, and built ahead of their use."""

import json
import pathlib
import re
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest

from data_pipeline import walks
from data_pipeline.chunks import walk_corpus, walk_rules
from data_pipeline.label_balance import balanced_random_share
from data_pipeline.options import PretrainOptions
from tests.data_pipeline.corpora import split_of, varied

SPLIT = split_of(varied(31, seed=5))
OPTIONS = PretrainOptions(dupe_factor=3)


DIGEST = "of the corpus"


def counted(options: PretrainOptions = OPTIONS, seq_len: int = 32) -> walks.WalkFacts:
    """The facts as they are found without a sidecar, by walking here."""
    share = 0.5
    if not options.exact:
        share = balanced_random_share(SPLIT, walk_rules(options, seq_len, 0))
    counts = tuple(
        len(walk_corpus(SPLIT, walk_rules(options, seq_len, number, share)))
        for number in range(options.dupe_factor)
    )
    return walks.WalkFacts(share, counts, counts)


def more(facts: walks.WalkFacts, number: int) -> walks.WalkFacts:
    """The facts with one example more in a walk."""
    counts = list(facts.examples_K)
    counts[number] += 1
    return replace(facts, examples_K=tuple(counts))


def kept(folder: pathlib.Path, digest: str = DIGEST) -> walks.Sidecar:
    return walks.Sidecar(folder / walks.SIDECAR_FOLDER, digest)


def refuse_to_count(*_arguments: object) -> None:
    raise AssertionError("counted although a sidecar was there")


def test_counts_are_read_from_the_sidecar_the_second_time(tmp_path, monkeypatch):
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path)) == counted()
    monkeypatch.setattr(walks, "_count", refuse_to_count)
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path)) == counted()
    files = [path.name for path in (tmp_path / "walks").iterdir()]
    assert len(files) == 1 and len(files[0]) == 64 + len(".json")


def test_everything_that_the_counts_depend_on_has_a_sidecar_of_its_own(tmp_path):
    for changed in (
        OPTIONS,
        replace(OPTIONS, random_seed=7),
        replace(OPTIONS, short_seq_prob=0.5),
        replace(OPTIONS, dupe_factor=2),
        replace(OPTIONS, exact=True),
    ):
        assert walks.walk_facts(SPLIT, changed, 32, kept(tmp_path)) == counted(changed)
    assert walks.walk_facts(SPLIT, OPTIONS, 48, kept(tmp_path)) == counted(seq_len=48)
    shifted = split_of(varied(31, seed=6))
    walks.walk_facts(shifted, OPTIONS, 32, kept(tmp_path))
    walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path, "of another corpus"))
    walks.walk_facts(SPLIT, replace(OPTIONS, segments="sop"), 32, kept(tmp_path))
    walks.walk_facts(SPLIT, replace(OPTIONS, packed_examples=3), 32, kept(tmp_path))
    assert len(list((tmp_path / "walks").iterdir())) == 10
    # What the counts do not depend on shares the sidecar.
    walks.walk_facts(SPLIT, replace(OPTIONS, masked_lm_prob=0.3), 32, kept(tmp_path))
    assert len(list((tmp_path / "walks").iterdir())) == 10


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[1, 2, 3]",
        '{"examples": [9, 9, 9], "rows": [9, 9, 9]}',
        '{"random_share": 0.4, "examples": [9, 9], "rows": [9, 9]}',
        '{"random_share": 0.4, "examples": [9, 9, 0], "rows": [9, 9, 9]}',
        '{"random_share": 0.4, "examples": [9, 9, 9], "rows": 3}',
        '{"random_share": 4.0, "examples": [9, 9, 9], "rows": [9, 9, 9]}',
    ],
)
def test_a_damaged_sidecar_is_written_anew(tmp_path, damage):
    walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path))
    (path,) = (tmp_path / "walks").iterdir()
    path.write_text(damage, encoding="utf-8")
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path)) == counted()
    facts = counted()
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "random_share": facts.random_share,
        "examples": list(facts.examples_K),
        "rows": list(facts.rows_K),
    }


def test_a_store_that_cannot_be_written_is_no_error(tmp_path):
    # Stands for a read-only folder, which does not stop a test that runs as root.
    (tmp_path / "walks").write_text("in the way", encoding="utf-8")
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path)) == counted()
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path / "absent")) == counted()
    assert walks.walk_facts(SPLIT, OPTIONS, 32, None) == counted()
    assert [path.name for path in tmp_path.iterdir()] == ["walks"]


def test_a_sidecar_with_other_counts_stops_the_run():
    facts = counted()
    cache = walks.WalkCache(SPLIT, OPTIONS, 32, more(facts, 0))
    with pytest.raises(
        ValueError, match=f"walk 0 over split train has {facts.examples_K[0]} examples in"
    ):
        cache.get(0)
    assert cache.get(1).rows == facts.rows_K[1]


def test_a_walk_built_ahead_is_the_walk_and_is_built_once(monkeypatch):
    built: list[str] = []

    def noted(split, rules):
        built.append(threading.current_thread().name)
        return walk_corpus(split, rules)

    monkeypatch.setattr(walks, "walk_corpus", noted)
    cache = walks.WalkCache(SPLIT, OPTIONS, 32, counted())
    cache.get(0)
    cache.build_ahead(1)
    cache.build_ahead(1)
    made = cache.get(1)
    assert built == [threading.current_thread().name, "walk-1"]
    expected = walk_corpus(SPLIT, walk_rules(OPTIONS, 32, 1, counted().random_share))
    np.testing.assert_array_equal(made.walk.first_sentence_N, expected.first_sentence_N)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("walk-")]


def test_a_failure_in_the_background_is_raised_where_the_walk_is_needed():
    cache = walks.WalkCache(SPLIT, OPTIONS, 32, more(counted(), 2))
    cache.build_ahead(2)
    with pytest.raises(ValueError, match="walk 2 over split train"):
        cache.get(2)


def test_whatever_stops_a_walk_in_the_background_is_raised_where_it_is_needed(monkeypatch, capfd):
    cache = walks.WalkCache(SPLIT, OPTIONS, 32, counted())

    def full(*_arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(walks, "walk_corpus", full)
    cache.build_ahead(1)
    with pytest.raises(MemoryError, match="no room"):
        cache.get(1)
    assert capfd.readouterr().err == ""


def test_of_a_large_corpus_two_walks_stay_and_of_a_small_one_all(monkeypatch):
    small = walks.WalkCache(SPLIT, OPTIONS, 32, counted())
    firsts = [small.get(number) for number in range(3)]
    assert all(small.get(number) is firsts[number] for number in range(3))

    monkeypatch.setattr(walks, "_KEEP_ALL_BYTES", 10)
    large = walks.WalkCache(SPLIT, OPTIONS, 32, counted())
    first = large.get(0)
    large.build_ahead(1)
    second = large.get(1)
    assert large.get(1) is second
    # Walk 0 follows walk 2, so it is kept for then, but not beside walk 1.
    large.get(2)
    assert large.get(0) is not first


def test_threads_that_ask_at_once_get_one_walk():
    cache = walks.WalkCache(SPLIT, OPTIONS, 32, counted())
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(id(cache.get(1)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


def test_deleting_what_the_error_names_mends_a_store_with_other_counts(tmp_path):
    walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path))
    (sidecar,) = tmp_path.glob("*/*.json")
    record = json.loads(sidecar.read_text(encoding="utf-8"))
    record["rows"] = record["examples"] = [count + 1 for count in counted().examples_K]
    sidecar.write_text(json.dumps(record), encoding="utf-8")
    wrong = walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path))
    with pytest.raises(ValueError) as raised:
        walks.WalkCache(SPLIT, OPTIONS, 32, wrong).get(0)
    (folder,) = re.findall(r"delete the folder '(.+)' in the store", str(raised.value))
    shutil.rmtree(tmp_path / folder)
    assert list(tmp_path.iterdir()) == []
    assert walks.walk_facts(SPLIT, OPTIONS, 32, kept(tmp_path)) == counted()
