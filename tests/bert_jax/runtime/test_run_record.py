"""The record of a run: kept by a resumed run, and what changed since."""

import dataclasses
import json
import re

import pytest

from bert_jax.checkpoint.reader import find_run
from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    MeshConfig,
    OptimConfig,
    Phase,
)
from bert_jax.runtime import resume, run_record
from bert_jax.runtime.run_record import Change
from bert_jax.runtime.workdir import Workdir, open_local_workdir
from data_pipeline.io import Refused, small_files
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import config_and_data, resolved, with_setting
from tests.damages import edit_json


@pytest.fixture
def config(tiny_store):
    return resolved(Config(data=PretrainOptions(store=str(tiny_store))))


@pytest.fixture
def workdir(config, tmp_path):
    """Hold the record of a run."""
    run_record.write(tmp_path, *config_and_data(config))
    return tmp_path


def check(workdir, config):
    """Check whether a run of this config may resume the one in the workdir; return its record."""
    record, problem = find_run(workdir, workdir / "checkpoints")
    assert problem == ""
    resume.can_resume(open_local_workdir(workdir), *config_and_data(config), record)
    return record


def test_a_run_goes_on_with_its_settings(config, workdir):
    check(workdir, config)
    assert run_record.read(workdir).config == config


@pytest.mark.fault(15, "another seed, batch, model, dtype, optimizer or order of the data")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", 1),
        ("objective", "mlm"),
        ("model.hidden_size", 384),
        ("model.num_hidden_layers", 6),
        ("model.vocab_size", 100),
        ("compute.compute_dtype", "bfloat16"),
        ("optim.name", "lamb"),
        ("optim.transfer", "mup"),
        ("optim.transfer_base_width", 256),
        ("data.random_seed", 1),
        ("data.masked_lm_prob", 0.2),
        ("data.dupe_factor", 3),
        ("phases[0].batch_size", 128),
        ("phases[0].seq_len", 64),
        ("phases[0].steps", 5),
        ("phases[1].max_predictions_per_seq", 70),
        ("phases[1].objective", "causal"),
        ("phases[0].global_rope_theta", 7.0),
        ("model.generator_hidden_size", 32),
    ],
)
def test_what_would_be_another_run_is_refused_by_name(config, tmp_path, path, value):
    run_record.write(tmp_path, *config_and_data(config))
    before = eval(f"config.{path}", {}, {"config": config})
    words = f"holds a run with config.{path} = {before!r}, this config says {value!r}; give"
    with pytest.raises(ValueError, match=re.escape(words)):
        check(tmp_path, with_setting(config, path, value))


def test_another_number_of_phases_is_refused_with_the_way_to_add_one(config, workdir):
    for phases in (config.phases[:1], (*config.phases, config.phases[1])):
        other = dataclasses.replace(config, phases=phases)
        words = rf"len\(config.phases\) = 2, this config says {len(phases)}; .* --branch="
        with pytest.raises(ValueError, match=words):
            check(workdir, other)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("rtd_weight", 25.0),
        ("data.prefetch_batches", 9),
        ("data.data_cache", "elsewhere"),
        ("compute", ComputeConfig(attention="plain", mlm_logits_dtype="bfloat16", remat="layer")),
    ],
)
def test_how_data_is_read_and_the_step_computes_may_change(config, workdir, path, value):
    check(workdir, with_setting(config, path, value))


@pytest.mark.fault(20, "a receipt whose vocabulary lies outside of the workdir")
@pytest.mark.parametrize("file", ["../vocab.txt", "/etc/passwd", "a/../../b.txt", 7, None, ""])
def test_a_receipt_names_no_file_elsewhere(workdir, file):
    edit_json(workdir / "run.json", lambda shown: shown["vocabulary"].update(file=file))
    with pytest.raises(small_files.DamagedFile, match=r"run.json|leads out of|not the name"):
        run_record.read(workdir)


@pytest.mark.parametrize("kernels", [5, {"flash attention": 5}])
def test_damaged_verdicts_on_kernels_are_named(workdir, kernels):
    edit_json(workdir / "run.json", lambda shown: shown.update({run_record.KERNELS: kernels}))
    with pytest.raises(small_files.DamagedFile, match=r"run\.json"):
        find_run(workdir, workdir / "checkpoints")


def test_checkpoints_of_nobody_in_a_bucket_are_refused_by_its_address(config, tmp_path):
    (tmp_path / "home").mkdir()
    storage = Workdir(tmp_path / "home", "gs://a/b", tmp_path / "checkpoints", bucket=object())
    assert not resume.can_resume(storage, *config_and_data(config), None)
    storage.checkpoints.mkdir()
    with pytest.raises(ValueError, match=r"^--workdir=gs://a/b holds checkpoints but no run"):
        resume.can_resume(storage, *config_and_data(config), None)


def test_a_config_json_of_hugging_face_beside_a_run_is_left_alone(config, workdir):
    theirs = workdir / "config.json"
    theirs.write_text('{"hidden_size": 768}')
    run_record.write(workdir, *config_and_data(config))
    assert run_record.read(workdir).config.data == config.data
    assert theirs.read_text() == '{"hidden_size": 768}'
    (workdir / "run.json").unlink()
    assert find_run(workdir, workdir / "checkpoints") == (None, "")


def test_a_setting_that_is_no_more_is_said_to_be_of_another_version(workdir):
    edit_json(workdir / "run.json", lambda shown: shown["config"]["data"].update(whole_words=True))
    with pytest.raises(ValueError, match="was written by another version of bert_jax"):
        run_record.read(workdir)


FIRST = Config(phases=(Phase(64, 10, 16, 9), Phase(128, 10, 16, 20)))


def changes(known, before, now, step):
    """The changes at a start with the config `now` where the last start had `before`."""
    record = {"config": before, "changes": [dataclasses.asdict(change) for change in known]}
    return resume.list_changes(json.loads(json.dumps(record)), now, step)


def slower(rate):
    return dataclasses.replace(FIRST, optim=OptimConfig(learning_rate=rate))


def as_json(config):
    return dataclasses.asdict(config)


def test_each_changed_setting_is_named_as_its_flag_with_both_values():
    now = dataclasses.replace(slower(5e-5), mesh=MeshConfig(preset="dp"))
    now = with_setting(now, "phases[1].steps", 30)
    words = {change.in_words() for change in changes([], as_json(FIRST), now, 1500)}
    assert words == {
        "optim.learning_rate 0.0001 -> 5e-05 since step 1,500",
        "phases[1].steps 10 -> 30 since step 1,500",
        "mesh.preset zero1 -> dp since step 1,500",
    }


def test_changes_add_up_over_starts_and_starts_after_one_step_count_as_one():
    first = changes([], as_json(FIRST), slower(5e-5), 500)
    rate = "optim.learning_rate"
    assert changes(first, as_json(slower(5e-5)), slower(2e-5), 900) == [
        Change(500, rate, 1e-4, 5e-5),
        Change(900, rate, 5e-5, 2e-5),
    ]
    assert changes(first, as_json(slower(5e-5)), slower(2e-5), 500) == [
        Change(500, rate, 1e-4, 2e-5)
    ]
    assert changes(first, as_json(slower(5e-5)), FIRST, 500) == []


@pytest.mark.fault(15, "rates, mesh and what is kept are set otherwise")
def test_a_receipt_keeps_the_changes(config, tmp_path):
    assert resume.list_changes(None, config, 0) == []
    run_record.write(tmp_path, *config_and_data(config))
    now = dataclasses.replace(config, checkpoint=CheckpointConfig(every_steps=7))
    listed = resume.list_changes(check(tmp_path, now), now, 500)
    assert listed == [Change(500, "checkpoint.every_steps", 1000, 7)]
    run_record.write(tmp_path, *config_and_data(now), listed)
    assert resume.list_changes(check(tmp_path, now), now, 800) == listed
    assert run_record.read(tmp_path).config.checkpoint.every_steps == 7


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (5, "'phases' is a whole number, not a list"),
        ([5], "config.phases has an entry that is not a phase"),
        ([{"seq_len": 8, "steps": "7"}], r"config.phases\[0\].steps is '7'"),
        (
            [{"seq_len": 8, "steps": 7, "global_rope_theta": "x"}],
            r"config.phases\[0\].global_rope_theta is 'x'",
        ),
    ],
)
def test_damaged_phases_are_named_before_a_model_is_built(phases, words, workdir):
    edit_json(workdir / "run.json", lambda shown: shown["config"].update(phases=phases))
    with pytest.raises(Refused, match=words):
        run_record.read_model(workdir)


def test_a_checkpoint_of_a_causal_phase_reads_from_left_to_right():
    """Whatever the run learns after it: the weights have seen no later token."""
    phases = (Phase(64, 7, objective="causal"), Phase(64, 6, objective="mlm"))
    model = run_record.TrainedModel(Config(phases=phases), None, (), None)
    directions = [model.config_at(step).is_causal for step in (0, 7, 8, 13)]
    assert directions == [True, True, False, False]
