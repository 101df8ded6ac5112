"""A vocabulary that was changed after the checkpoint was written, wherever it is read."""

import dataclasses
import json
import shutil

import jax
import pytest

from bert_jax import (
    checkpoint_vocabulary,
    conversion,
    masked_lm,
    preparation,
    pretrained,
    receipt,
    state,
    store_scores,
)
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig, Config, OptimConfig, Phase
from bert_jax.exit_codes import Refused
from bert_jax.feed import open_store
from bert_jax.objectives import MLM_NSP
from data_pipeline.options import PretrainOptions
from tests.bert_jax.small_checkpoints import tensors, write
from tests.bert_jax.tiny_models import MODEL


@pytest.fixture(scope="module")
def run(tiny_store, tmp_path_factory):
    """A run of one step's length that has saved its first weights, and its settings."""
    workdir = tmp_path_factory.mktemp("pinned") / "run"
    config = Config(
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=16, steps=2, batch_size=8, max_predictions_per_seq=3),),
        optim=OptimConfig(warmup_steps=1),
        data=PretrainOptions(store=str(tiny_store)),
    )
    setup = preparation.prepare(config, MLM_NSP, workdir, jax.devices()[:1])
    checkpoints = _checkpoints(workdir, setup)
    fresh = state.fresh(setup.fresh_params(), setup.tx, setup.where)
    checkpoints.save(0, fresh, {})
    checkpoints.close()
    return workdir, config


def _checkpoints(workdir, setup):
    made = receipt.of_run(setup.feed, setup.objective.untrained)
    return Checkpoints(workdir / "checkpoints", CheckpointConfig(), setup.model, made)


@pytest.fixture
def workdir(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "run")


def exchanged(lines):
    return [*lines[:-2], lines[-1], lines[-2]]


def removed(lines):
    return lines[:-1]


def rewrite_list(path, change):
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in change(lines)))


def rewrite_record(workdir, change):
    shown = json.loads((workdir / "config.json").read_text())
    change(shown)
    (workdir / "config.json").write_text(json.dumps(shown))


READERS = {
    "a checkpoint by its address": lambda workdir: pretrained.load(f"orbax:{workdir}"),
    "a checkpoint of a step": lambda workdir: pretrained.load(f"orbax:{workdir}@0"),
    "what fill_mask reads": lambda workdir: masked_lm.load(str(workdir)),
    "what a probe and a replay read": receipt.read,
    "what evaluate reads": lambda workdir: store_scores.settings_of(f"orbax:{workdir}"),
}


@pytest.mark.parametrize("change", [exchanged, removed])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_changed_list_is_refused_by_name(workdir, reader, change):
    rewrite_list(workdir / "vocab.txt", change)
    with pytest.raises(ValueError, match=r"/vocab\.txt is not the vocabulary of .*put back"):
        reader(workdir)


@pytest.mark.parametrize("change", [exchanged, removed])
def test_a_list_changed_with_its_record_is_not_the_checkpoints(workdir, change):
    """The metadata of the checkpoint is what was trained; config.json may have been mended too."""
    rewrite_list(workdir / "vocab.txt", change)
    rewrite_record(
        workdir, lambda shown: [shown["vocabulary"].pop(name) for name in ("sha256", "size")]
    )
    for read in (pretrained.load, masked_lm.load):
        with pytest.raises(ValueError, match=r"is not the vocabulary of checkpoint 0 of"):
            read(str(workdir))


def test_another_case_is_refused(workdir):
    rewrite_record(workdir, lambda shown: shown["vocabulary"].update(lowercase=False))
    with pytest.raises(ValueError, match="read with lowercase = false, but checkpoint 0"):
        pretrained.load(str(workdir))


def test_more_layers_than_the_checkpoint_has_are_refused_before_they_are_built(workdir):
    rewrite_record(workdir, lambda shown: shown["config"]["model"].update(num_hidden_layers=1000))
    for read in (pretrained.load, masked_lm.load):
        with pytest.raises(ValueError, match=r"num_hidden_layers = 1000, and it has arrays of 1;"):
            read(str(workdir))
    huge = 200_000_000
    rewrite_record(workdir, lambda shown: shown["config"]["model"].update(num_hidden_layers=huge))
    for read in (pretrained.load, masked_lm.load):
        with pytest.raises(ValueError, match=r"config\.json says num_hidden_layers = 200000000"):
            read(str(workdir))


def test_a_carriage_return_is_no_change(workdir):
    before = pretrained.load(str(workdir)).vocabulary.digest
    path = workdir / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert pretrained.load(str(workdir)).vocabulary.digest == before


def test_what_was_written_before_there_were_digests_is_read(run, workdir):
    rewrite_record(workdir, lambda shown: shown.update(vocabulary=_of_before(shown)))
    assert receipt.read(workdir).vocabulary.size > 0
    setup = preparation.prepare(run[1], MLM_NSP, workdir.with_name("bare"), jax.devices()[:1])
    made = receipt.of_run(setup.feed)
    bare = made | {"vocabulary": _of_before(made)}
    vocabulary = receipt.read(workdir).vocabulary
    checkpoint_vocabulary.check_pinned(vocabulary, bare, "it")
    older = bare | {"store": {"vocabulary_sha256": "0" * 64}}  # such had the digest elsewhere
    with pytest.raises(ValueError, match="not 000000000000"):
        checkpoint_vocabulary.check_pinned(vocabulary, older, "it")


def _of_before(made):
    return {name: made["vocabulary"][name] for name in ("file", "lowercase")}


@pytest.mark.parametrize("change", [exchanged, removed])
def test_a_run_does_not_resume_over_a_changed_list(run, workdir, change):
    rewrite_list(workdir / "vocab.txt", change)
    changed = (workdir / "vocab.txt").read_bytes()
    with pytest.raises(ValueError, match=r"run/vocab\.txt is not .*; remove it"):
        preparation.prepare(run[1], MLM_NSP, workdir, jax.devices()[:1])
    assert (workdir / "vocab.txt").read_bytes() == changed
    (workdir / "vocab.txt").unlink()
    preparation.prepare(run[1], MLM_NSP, workdir, jax.devices()[:1])
    assert receipt.read(workdir).vocabulary.size == open_store(run[1].data).vocab_size


def test_a_checkpoint_of_another_vocabulary_is_not_resumed(run, workdir):
    setup = preparation.prepare(run[1], MLM_NSP, workdir, jax.devices()[:1])
    made = receipt.of_run(setup.feed)
    made["vocabulary"]["sha256"] = "0" * 64
    checkpoints = Checkpoints(workdir / "checkpoints", CheckpointConfig(), setup.model, made)
    abstract = state.abstract(setup.model, setup.tx, setup.where)
    with pytest.raises(Refused, match=r"saved with another vocabulary .sha256 .*, now 0000"):
        checkpoints.restore(abstract)
    checkpoints.close()


def test_a_converted_checkpoint_has_it_too(tmp_path):
    held = pretrained.load(str(write(tmp_path / "hf", tensors())))
    to = conversion.target(f"orbax:{tmp_path / 'ours'}")
    conversion.write(held, to, ())
    assert pretrained.load(str(tmp_path / "ours")).vocabulary.digest == held.vocabulary.digest
    rewrite_list(tmp_path / "ours" / "vocab.txt", exchanged)
    rewrite_record(tmp_path / "ours", lambda shown: shown["vocabulary"].pop("sha256"))
    with pytest.raises(ValueError, match="not the vocabulary of checkpoint 0"):
        pretrained.load(str(tmp_path / "ours"))


@pytest.mark.parametrize(
    ("rows", "pieces", "is_taken"),
    [
        (30522, 30522, True),
        (30528, 30522, True),  # NVIDIA's and MosaicML's: to a multiple of 8 or 64
        (50176, 50101, True),  # GatorTron: to a multiple of 128
        (30522, 28895, True),  # BiomedBERT, as it is published
        (32102, 31102, True),  # dbmdz's Italian XXL
        (30522, 1000, False),
        (50000, 30521, False),  # IndoBERT: add [unusedN]
        (30522, 30523, False),
        (23, 11, True),
    ],
)
def test_rows_without_a_piece_are_bounded(vocabulary_of, rows, pieces, is_taken):
    try:
        checkpoint_vocabulary.check_size(vocabulary_of(pieces), rows, "hf:DIR")
    except ValueError as error:
        assert not is_taken
        assert f"{pieces:,} pieces" in str(error)
        assert f"{rows:,} rows" in str(error)
    else:
        assert is_taken


@pytest.fixture(scope="module")
def vocabulary_of(run):
    vocabulary = receipt.read(run[0]).vocabulary
    return lambda pieces: dataclasses.replace(vocabulary, _pieces=("x",) * pieces)
