"""The receipt of a run by a version that had fewer settings, or others."""

import dataclasses
import json
import re

import pytest

from bert_jax import receipt
from bert_jax.config import ComputeConfig, Config, with_predictions
from bert_jax.feed import Feed, open_store
from data_pipeline import small_files
from data_pipeline.options import PretrainOptions

YOUNGER = ("segments", "masking", "packed_examples", "mask_token_share")


@pytest.fixture
def config(tiny_store):
    return with_predictions(Config(data=PretrainOptions(store=str(tiny_store))))


@pytest.fixture
def workdir(config, tmp_path):
    """Holds the receipt of a run before there were some of the settings."""
    receipt.write(tmp_path, Feed(open_store(config.data), config))
    rewrite(tmp_path, lambda shown: [shown["fixed"].pop(f"data.{name}") for name in YOUNGER])
    rewrite(tmp_path, lambda shown: [shown["config"]["data"].pop(name) for name in YOUNGER])
    return tmp_path


def rewrite(workdir, change):
    shown = json.loads((workdir / "config.json").read_text())
    change(shown)
    (workdir / "config.json").write_text(json.dumps(shown))


def test_a_younger_setting_at_its_default_goes_on_with_the_run(config, workdir):
    receipt.check(workdir, Feed(open_store(config.data), config))
    assert receipt.read(workdir).config.data == config.data


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("packed_examples", 8, "config.data.packed_examples = 1, this config says 8"),
        ("segments", "sop", "config.data.segments = 'nsp', this config says 'sop'"),
    ],
)
def test_a_younger_setting_at_another_value_is_another_run(config, workdir, name, value, words):
    data = dataclasses.replace(config.data, **{name: value})
    with pytest.raises(ValueError, match=words):
        receipt.check(
            workdir, Feed(open_store(config.data), dataclasses.replace(config, data=data))
        )


@pytest.mark.fault(15, "another seed, batch, model, dtype, optimiser or order of the data")
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("", "seed", 1),
        ("", "objective", "mlm"),
        ("model", "hidden_size", 384),
        ("model", "num_hidden_layers", 6),
        ("model", "vocab_size", 100),
        ("model", "compute_dtype", "bfloat16"),
        ("optim", "name", "lamb"),
        ("data", "random_seed", 1),
        ("data", "masked_lm_prob", 0.2),
        ("data", "dupe_factor", 3),
        ("phases[0]", "batch_size", 128),
        ("phases[0]", "seq_len", 64),
        ("phases[0]", "steps", 5),
        ("phases[1]", "max_predictions_per_seq", 70),
    ],
)
def test_what_would_be_another_run_is_refused_by_name(config, tmp_path, part, name, value):
    store = open_store(config.data)
    receipt.write(tmp_path, Feed(store, config))
    if part.startswith("phases"):
        phases = list(config.phases)
        index = int(part[-2])
        phases[index] = dataclasses.replace(phases[index], **{name: value})
        other = dataclasses.replace(config, phases=tuple(phases))
        before = getattr(config.phases[index], name)
    elif part:
        before = getattr(getattr(config, part), name)
        changed = dataclasses.replace(getattr(config, part), **{name: value})
        other = dataclasses.replace(config, **{part: changed})
    else:
        before, other = getattr(config, name), dataclasses.replace(config, **{name: value})
    setting = f"{part}.{name}" if part else name
    words = f"holds a run with config.{setting} = {before!r}, this config says {value!r}; give"
    with pytest.raises(ValueError, match=re.escape(words)):
        receipt.check(tmp_path, Feed(store, other))


@pytest.mark.fault(20, "a receipt whose vocabulary lies outside of the workdir")
@pytest.mark.parametrize("file", ["../vocab.txt", "/etc/passwd", "a/../../b.txt", 7, None, ""])
def test_a_receipt_names_no_file_elsewhere(workdir, file):
    rewrite(workdir, lambda shown: shown["vocabulary"].update(file=file))
    with pytest.raises(small_files.DamagedFile, match=r"config.json|leads out of|not the name"):
        receipt.read(workdir)


def test_how_fast_a_store_is_read_may_change(config, workdir):
    data = dataclasses.replace(config.data, prefetch_batches=9, data_cache="elsewhere")
    receipt.check(workdir, Feed(open_store(config.data), dataclasses.replace(config, data=data)))


def test_how_the_step_computes_may_change(config, workdir):
    compute = ComputeConfig(attention="plain", mlm_logits_dtype="bfloat16", remat="layer")
    receipt.check(
        workdir, Feed(open_store(config.data), dataclasses.replace(config, compute=compute))
    )


def test_a_setting_that_is_no_more_is_said_to_be_of_another_version(workdir):
    rewrite(workdir, lambda shown: shown["config"]["data"].update(whole_words=True))
    with pytest.raises(ValueError, match="was written by another version of bert_jax"):
        receipt.read(workdir)


def test_a_run_keeps_the_slots_that_its_config_once_left_at_20(config, tmp_path):
    """The default was 20 at any length before it followed from the masking rate."""
    first = dataclasses.replace(config.phases[0], max_predictions_per_seq=20)
    before = dataclasses.replace(config, phases=(first, *config.phases[1:]))
    store = open_store(config.data)
    receipt.write(tmp_path, Feed(store, before))
    open_first = dataclasses.replace(first, max_predictions_per_seq=0)
    now = dataclasses.replace(config, phases=(open_first, *config.phases[1:]))
    kept = receipt.with_kept_predictions(tmp_path, now)
    assert kept == before
    receipt.check(tmp_path, Feed(store, kept))
    data = dataclasses.replace(config.data, masked_lm_prob=0.3)
    other = dataclasses.replace(now, data=data)
    assert receipt.with_kept_predictions(tmp_path, other) == other
    assert receipt.with_kept_predictions(tmp_path / "new", now) == now
