"""What a later start set otherwise is kept with the step it holds from, and said."""

import dataclasses
import json

import pytest

from bert_jax import receipt
from bert_jax.changes import Change, changed
from bert_jax.config import CheckpointConfig, Config, MeshConfig, OptimConfig, Phase
from bert_jax.feed import Feed, open_store
from data_pipeline.options import PretrainOptions

FIRST = Config(phases=(Phase(64, 10, 16, 9), Phase(128, 10, 16, 20)))


def as_json(config):
    return json.loads(json.dumps(dataclasses.asdict(config)))


def slower(rate):
    return dataclasses.replace(FIRST, optim=OptimConfig(learning_rate=rate))


def test_the_same_config_changes_nothing():
    assert changed([], as_json(FIRST), FIRST, 500) == []


def test_each_setting_is_named_as_its_flag_with_both_values():
    phases = (FIRST.phases[0], dataclasses.replace(FIRST.phases[1], steps=30))
    now = dataclasses.replace(slower(5e-5), phases=phases, mesh=MeshConfig(preset="dp"))
    words = {one.in_words() for one in changed([], as_json(FIRST), now, 1500)}
    assert words == {
        "optim.learning_rate 0.0001 -> 5e-05 since step 1,500",
        "phases[1].steps 10 -> 30 since step 1,500",
        "mesh.preset zero1 -> dp since step 1,500",
    }


def test_changes_add_up_over_starts():
    first = changed([], as_json(FIRST), slower(5e-5), 500)
    second = changed(first, as_json(slower(5e-5)), slower(2e-5), 900)
    assert [(one.since_step, one.before, one.now) for one in second] == [
        (500, 1e-4, 5e-5),
        (900, 5e-5, 2e-5),
    ]


def test_starts_after_the_same_step_count_as_one():
    first = changed([], as_json(FIRST), slower(5e-5), 500)
    (one,) = changed(first, as_json(slower(5e-5)), slower(2e-5), 500)
    assert one == Change(500, "optim.learning_rate", 1e-4, 2e-5)
    assert changed(first, as_json(slower(5e-5)), FIRST, 500) == []


def test_a_setting_younger_than_the_run_is_no_change():
    before = as_json(FIRST)
    del before["guard"], before["checkpoint"]["keep_every_steps"]
    assert changed([], before, FIRST, 500) == []


def record(workdir):
    return receipt.find(workdir, dict)[0]


@pytest.mark.fault(15, "rates, mesh and what is kept are set otherwise")
def test_a_receipt_keeps_them(tiny_store, tmp_path):
    data = PretrainOptions(store=str(tiny_store))
    first = dataclasses.replace(FIRST, data=data)
    store = open_store(data)
    assert receipt.changes(None, first, 0) == []
    receipt.write(tmp_path, Feed(store, first))
    now = dataclasses.replace(first, checkpoint=CheckpointConfig(keep=7))
    receipt.check(tmp_path, Feed(store, now))
    found = receipt.changes(record(tmp_path), now, 500)
    assert found == [Change(500, "checkpoint.keep", 3, 7)]
    receipt.write(tmp_path, Feed(store, now), found)
    assert receipt.changes(record(tmp_path), now, 800) == found
    assert receipt.read(tmp_path).config.checkpoint.keep == 7
