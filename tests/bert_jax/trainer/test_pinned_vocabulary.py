"""A vocabulary that was changed after the checkpoint was written, wherever it is read."""

import dataclasses
import re
import shutil

import pytest

from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig
from bert_jax.interop import export, load, pretrained
from bert_jax.interop import vocabulary as checkpoint_vocabulary
from bert_jax.runtime import run_record
from bert_jax.train_step import state
from bert_jax.trainer.feed import open_store
from data_pipeline.io import Refused
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.small_checkpoints import PIECES, tensors, write
from tests.bert_jax.small_runs import prepare
from tests.damages import edit_json


@pytest.fixture
def workdir(first_saved, tmp_path):
    return shutil.copytree(first_saved, tmp_path / "run")


def exchanged(lines):
    return [*lines[:-2], lines[-1], lines[-2]]


def removed(lines):
    return lines[:-1]


def rewrite_list(path, change):
    lines = path.read_text().splitlines()
    path.write_text("".join(f"{line}\n" for line in change(lines)))


def merge(content, change):
    for key, value in change.items():
        if isinstance(value, dict):
            merge(content[key], value)
        else:
            content[key] = value


READERS = {
    "a checkpoint by its address": lambda workdir: load.load(f"orbax:{workdir}"),
    "a checkpoint of a step": lambda workdir: load.load(f"orbax:{workdir}@0"),
    "what fill_mask reads": lambda workdir: pretrained.place_masked_lm(load.load(str(workdir))),
    "what a probe and a replay read": run_record.read,
    "what evaluate reads": lambda workdir: load.read_run(f"orbax:{workdir}"),
}


@pytest.mark.parametrize("change", [exchanged, removed])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_changed_list_is_refused_by_name(workdir, reader, change):
    rewrite_list(workdir / "vocab.txt", change)
    with pytest.raises(ValueError, match=r"/vocab\.txt is not the vocabulary of .*put back"):
        reader(workdir)


@pytest.mark.parametrize("change", [exchanged, removed])
def test_a_list_changed_with_its_record_is_not_the_checkpoints(workdir, change):
    """The metadata of the checkpoint is what was trained; run.json may have been mended too."""
    rewrite_list(workdir / "vocab.txt", change)
    edit_json(
        workdir / "run.json",
        lambda shown: [shown["vocabulary"].pop(name) for name in ("sha256", "size")],
    )
    with pytest.raises(ValueError, match=r"is not the vocabulary of checkpoint 0 of"):
        load.load(str(workdir))


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"layer_norm_eps": 0.5}])
def test_a_record_of_another_model_is_not_the_checkpoints(workdir, change):
    """Its arrays fit as well, and would compute something else."""
    edit_json(workdir / "run.json", lambda shown: merge(shown["config"]["model"], change))
    ((name, value),) = change.items()
    words = (
        rf"run\.json has config\.model\.{name} = {value!r}, but checkpoint 0 of .* was saved with"
    )
    with pytest.raises(Refused, match=words):
        load.load(str(workdir))


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        (
            "vocabulary",
            {"lowercase": False},
            r"checkpoint 0 of .*: its lowercase is False, not True",
        ),
        ("config", 1000, r"num_hidden_layers = 1000, and it has arrays of 1;"),
        ("config", 200_000_000, r"run\.json has num_hidden_layers = 200000000"),
    ],
)
def test_another_case_or_size_is_refused_before_anything_is_built(workdir, part, change, words):
    if part == "config":
        change = {"model": {"num_hidden_layers": change}}
    edit_json(workdir / "run.json", lambda shown: merge(shown[part], change))
    with pytest.raises(ValueError, match=words):
        load.load(str(workdir))


def test_a_newest_checkpoint_that_cannot_be_read_is_named(workdir, capsys):
    """As of a copy that was made while the run was saving."""
    shutil.copytree(workdir / "checkpoints" / "0", workdir / "checkpoints" / "4")
    assert load.load(str(workdir)).address == str(workdir)
    said = capsys.readouterr().out
    assert re.search(r"note: .*/4/receipt/\S+ is of step 0; the checkpoint of step 0 is read", said)


def test_a_carriage_return_is_no_change(workdir):
    before = load.load(str(workdir)).vocabulary.digest
    path = workdir / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert load.load(str(workdir)).vocabulary.digest == before


@pytest.mark.parametrize("change", [exchanged, removed])
def test_a_run_does_not_resume_over_a_changed_list(first_config, workdir, change):
    rewrite_list(workdir / "vocab.txt", change)
    changed = (workdir / "vocab.txt").read_bytes()
    with pytest.raises(ValueError, match=r"run/vocab\.txt differs from .*; remove the copy"):
        prepare(first_config, workdir)
    assert (workdir / "vocab.txt").read_bytes() == changed
    (workdir / "vocab.txt").unlink()
    prepare(first_config, workdir)
    assert run_record.read(workdir).vocabulary.size == open_store(first_config.data).vocab_size


def test_a_checkpoint_of_another_vocabulary_is_not_resumed(first_config, workdir):
    setup = prepare(first_config, workdir)
    made = run_record.build_record(setup.config, setup.feed.provenance)
    made["vocabulary"]["sha256"] = "0" * 64
    checkpoints = Checkpoints(workdir / "checkpoints", CheckpointConfig(), setup.parts.model, made)
    abstract = state.make_abstract_state(setup.parts.model, setup.parts.tx, setup.parts.shardings)
    with pytest.raises(Refused, match=r"vocabulary\.sha256 = .*, this run says '0000"):
        checkpoints.restore(lambda step: abstract)
    checkpoints.close()


@pytest.mark.long
def test_a_converted_checkpoint_has_it_too(tmp_path):
    held = load.load(str(write(tmp_path / "hf", tensors())))
    to = export.parse_target(f"orbax:{tmp_path / 'ours'}")
    export.write(held, to, ())
    assert load.load(str(tmp_path / "ours")).vocabulary.digest == held.vocabulary.digest
    rewrite_list(tmp_path / "ours" / "vocab.txt", exchanged)
    edit_json(tmp_path / "ours" / "run.json", lambda shown: shown["vocabulary"].pop("sha256"))
    with pytest.raises(ValueError, match="not the vocabulary of checkpoint 0"):
        load.load(str(tmp_path / "ours"))


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
def test_rows_without_a_piece_are_bounded(tmp_path, rows, pieces, is_taken):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    vocabulary = load_vocabulary(tmp_path / "vocab.txt", checks_case=False)
    vocabulary = dataclasses.replace(vocabulary, _pieces=("x",) * pieces)
    try:
        checkpoint_vocabulary.check_size(vocabulary, rows, "hf:DIR")
    except ValueError as error:
        assert not is_taken
        assert f"{pieces:,} pieces" in str(error)
        assert f"{rows:,} rows" in str(error)
    else:
        assert is_taken
