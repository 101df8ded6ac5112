"""Two runs do the same up to a step, or the first step and setting that differ are named."""

import copy
import dataclasses
import functools
import json

import pytest

from bert_jax.config import EvalConfig, GuardConfig, MeshConfig, OptimConfig, Phase
from bert_jax.runtime import code_version, history, run_record
from bert_jax.trainer.feed import StoreFeed, open_stores
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.small_runs import small_config
from tests.bert_jax.tiny_models import resolved, with_setting

CONSTANT = OptimConfig(learning_rate=3e-3, warmup_steps=4, decay="constant")
LATE = dataclasses.replace(CONSTANT, decay="one_minus_sqrt", decay_steps=5)
PHASE = Phase(seq_len=16, steps=40, batch_size=16, max_predictions_per_seq=3)
STEP = 20


def phases(*steps, **last):
    cut = [dataclasses.replace(PHASE, steps=count) for count in steps]
    return {"phases": (*cut[:-1], dataclasses.replace(cut[-1], **last))}


@pytest.fixture(autouse=True)
def no_commit(monkeypatch):
    """Records without the code that made them: git is not asked."""
    monkeypatch.setattr(code_version, "describe_code", dict)


@pytest.fixture(scope="module")
def config(tiny_store):
    return small_config(tiny_store, phases=(PHASE,), optim=CONSTANT, seed=3)


@functools.cache
def open_once(store):
    return open_stores(PretrainOptions(store=store))


def record_of(config):
    feed = StoreFeed(open_once(config.data.store), resolved(config))
    return json.loads(json.dumps(run_record.build_record(feed.config, feed.provenance)))


@pytest.fixture(scope="module")
def trunk(config):
    return record_of(config)


def compare(trunk, record, has_bad_steps=False):
    both = (history.read_history(each, "a record") for each in (trunk, record))
    return history.find_first_difference(*both, STEP, has_bad_steps)


@pytest.mark.parametrize(
    "settings",
    [
        phases(25) | {"optim": LATE},
        phases(30, 10),
        phases(20, 10, seq_len=24, max_predictions_per_seq=0, restart_learning_rate=1e-3),
        phases(10, 30),  # the guard's window is counted anew
        phases(40, masked_lm_prob=0.15) | {"eval": EvalConfig(every_steps=7)},
        {"log_every_steps": 7, "optim": dataclasses.replace(CONSTANT, decay_power=2.0)},
    ],
)
def test_what_comes_after_the_step_may_differ(config, trunk, settings):
    assert compare(trunk, record_of(dataclasses.replace(config, **settings))) is None


@pytest.mark.parametrize(
    ("settings", "step", "key", "values"),
    [
        ({"seed": 4}, 1, "config.seed", (3, 4)),
        ({"rtd_weight": 2.0}, 1, "config.rtd_weight", (50.0, 2.0)),
        ({"guard": GuardConfig(spike_sigmas=6.0)}, 1, "config.guard.spike_sigmas", (0.0, 6.0)),
        ({"mesh": MeshConfig(preset="dp")}, 1, "config.mesh.preset", ("zero1", "dp")),
        (
            {"optim": dataclasses.replace(CONSTANT, beta2=0.9)},
            *(1, "config.optim.beta2", (0.999, 0.9)),
        ),
        ({"objective": "mlm"}, 1, "config.phases[0].objective", ("mlm_nsp", "mlm")),
        (phases(12, 20, batch_size=8), 13, "config.phases[1].batch_size", (16, 8)),
        (phases(12, 20, masked_lm_prob=0.1), 13, "config.phases[1].masked_lm_prob", (0.15, 0.1)),
        (phases(23) | {"optim": LATE}, 20, "config.optim.decay", ("constant", "one_minus_sqrt")),
        (phases(15, 9, restart_learning_rate=1e-3), 16, "config.phases[0].steps", (40, 15)),
        (  # the late decay is allowed, the early restart is not
            phases(15, 25, restart_learning_rate=1e-3, restart_decay="one_minus_sqrt")
            | {"optim": dataclasses.replace(CONSTANT, decay_steps=5)},
            *(16, "config.phases[0].steps", (40, 15)),
        ),
    ],
)
def test_the_first_step_and_the_setting_that_differ_are_named(
    config, trunk, settings, step, key, values
):
    found = compare(trunk, record_of(dataclasses.replace(config, **settings)))
    assert (found.step, found.key, (found.before, found.now)) == (step, key, values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fixed/walks_version (of this bert_jax)", 1),
        ("fixed/hash_version (of this bert_jax)", 0),
        ("fixed/dropout_hash_version (of this bert_jax)", 1),
        ("store/digest", "f" * 64),
        ("devices", "8 x cpu"),
        ("devices", "1 x TPU v4"),  # matmuls in bfloat16
    ],
)
def test_another_store_sampler_dropout_or_device_count_is_a_difference(trunk, key, value):
    ours = copy.deepcopy(trunk) | {"devices": "1 x cpu"}
    theirs = copy.deepcopy(ours)
    *parts, last = key.split("/")
    entry = theirs
    for part in parts:
        entry = entry[part]
    entry[last] = value
    expected = {"digest": "config.data.store", "devices": "devices"}.get(last, last)
    expected = "config.compute.compute_dtype" if "TPU" in str(value) else expected
    found = compare(theirs, ours)
    assert found is not None and (found.step, found.key) == (1, expected)


def test_a_phase_that_begins_in_one_run_alone_matters_where_the_guard_judges(config, trunk):
    cut = dataclasses.replace(config, **phases(10, 30))
    found = compare(trunk, record_of(cut), has_bad_steps=True)
    assert found is not None and found.step == 11
    judged = with_setting(config, "guard.spike_sigmas", 6.0)
    cut = with_setting(cut, "guard.spike_sigmas", 6.0)
    found = compare(record_of(judged), record_of(cut))
    assert found is not None and (found.step, found.key) == (11, "config.phases[0].steps")
    starts = [history.count_phase_steps(cut, step) for step in (0, 1, 10, 11, 40)]
    assert starts == [0, 1, 10, 1, 30]


def test_a_store_without_rows_may_be_added(config, trunk):
    """Records say which stores there are; that the rows stay is tested in test_mixture."""
    theirs, ours = copy.deepcopy(trunk), copy.deepcopy(trunk)
    digest = theirs["store"]["digest"]
    ours["store"]["digest"] = f"{'0' * 64},{digest}"
    key = "phases[0].store_weights (of each store)"
    ours["fixed"][key] = [0.0, 1.0]
    assert compare(theirs, ours) is None
    ours["fixed"][key] = [0.1, 0.9]
    assert compare(theirs, ours).key == "config.data.store"
    theirs["store"]["digest"] = ours["store"]["digest"]
    theirs["fixed"][key] = [0.2, 0.8]
    found = compare(theirs, ours)
    assert (found.step, found.key) == (1, "config.phases[0].store_weights")


def test_a_setting_that_an_earlier_commit_lacked_has_its_default(trunk):
    theirs = copy.deepcopy(trunk)
    del theirs["config"]["init_tile"], theirs["config"]["model"]["bilstm_units"]
    del theirs["fixed"]["model.bilstm_units"]
    assert compare(theirs, trunk) is None


def test_options_of_sampling_are_compared(config, trunk):
    other = dataclasses.replace(
        config, data=PretrainOptions(store=config.data.store, short_seq_prob=0.2)
    )
    assert compare(trunk, record_of(other)).key == "config.data.short_seq_prob"
