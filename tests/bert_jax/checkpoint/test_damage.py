"""Damage to the newest checkpoint, file by file: found, named, set aside, the one before taken."""

import dataclasses
import itertools
import json
import os
import re
import shutil

import jax
import numpy as np
import pytest
import zstandard

from bert_jax.checkpoint import arrays, directory, reader
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig
from bert_jax.train_step import state
from data_pipeline.io import Refused
from tests.bert_jax.checkpoint.states import draw_state
from tests.bert_jax.tiny_models import SMALL, setting
from tests.damages import empty, flip_a_bit


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with the checkpoints of steps 4 and 8, and the states that they hold."""
    of = setting(SMALL, 1)
    states = {seed: draw_state(of, seed) for seed in (4, 8)}
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    saving = Checkpoints(folder, CheckpointConfig(), of.model)
    for step, one in states.items():
        saving.save(step, one, {"train_secs": step / 4})
    saving.close()
    return folder, jax.tree.map(np.asarray, states)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(saved[0], tmp_path / "checkpoints")


def abstract_of(of):
    return state.make_abstract_state(of.model, of.tx, of.where)


def restored(folder, wanted=None):
    """Step, numbers and state that a run would go on from, and what it would say."""
    of = setting(SMALL, 1)
    said = []
    checkpoints = Checkpoints(folder, CheckpointConfig(), of.model)
    try:
        found = checkpoints.restore(lambda step: wanted or abstract_of(of), said.append)
    finally:
        checkpoints.close()
    return checkpoints.latest_step, found, said


def assert_is(step, found, saved):
    assert found[1] == {"train_secs": step / 4}
    jax.tree.map(np.testing.assert_array_equal, found[0], saved[1][step])


def flip_a_value(path):
    """Change a bit in the middle of the largest array, far from the headers of Zstandard."""
    content = bytearray(path.read_bytes())
    starts = [found.start() for found in re.finditer(re.escape(zstandard.FRAME_HEADER), content)]
    frames = itertools.pairwise([*starts, len(content)])
    start, end = max(frames, key=lambda frame: frame[1] - frame[0])
    content[(start + end) // 2] ^= 1
    path.write_bytes(content)


def zero_a_page(path):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(len(content[middle : middle + 4096]))
    path.write_bytes(content)


def cut_off(path):
    os.truncate(path, path.stat().st_size // 2)


def lose(path):
    path.unlink()


def largest(folder, pattern):
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


DATA, INDEX = "state/ocdbt.process_0/d/*", "state/d/*"


@pytest.mark.slow
@pytest.mark.fault(4, "each kind of file: a bit flipped, a page zeroed, cut off, emptied, removed")
@pytest.mark.parametrize(
    ("pattern", "damage", "words"),
    [
        (DATA, flip_a_value, "not what was saved"),
        (DATA, zero_a_page, r"not what was saved|array \S+ cannot be read from .*/8/state"),
        (DATA, cut_off, r"array \S+ cannot be read from .*/8/state"),
        (DATA, lose, r"array \S+ cannot be read from .*/8/state"),
        (INDEX, flip_a_bit, r"array \S+ cannot be read from .*/d/"),
        (INDEX, lose, r"array \S+ cannot be read from .*/d/"),
        ("state/manifest.ocdbt", flip_a_bit, r"array \S+ cannot be read from .*/manifest.ocdbt"),
        ("state/manifest.ocdbt", lose, r"array \S+ cannot be read from .*/8/state"),
        ("state/_METADATA", empty, "/8/state/_METADATA is not what was written"),
        ("state/_METADATA", lose, "/8/state/_METADATA is missing"),
        ("state/array_metadatas/*", cut_off, "/process_0 is not what was written"),
        ("receipt/receipt.json", flip_a_bit, "/8/receipt/receipt.json is not what was written"),
        ("receipt/receipt.json", lose, "/8/receipt/receipt.json is missing"),
    ],
)
def test_damage_is_named_set_aside_and_the_checkpoint_before_taken(
    pattern, damage, words, folder, saved
):
    damage(largest(folder / "8", pattern))
    step, found, said = restored(folder)
    assert step == 4
    assert_is(4, found, saved)
    (line,) = said
    aside = folder.with_name("checkpoints_damaged") / "8"
    assert line.endswith(f"; moved to {aside}, the run resumes from step 4")
    assert "\n" not in line
    assert len(line.replace(str(folder.parent), "")) < 300  # the machine's folders may be long
    assert re.search(words, line), line
    assert (aside / "_CHECKPOINT_METADATA").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["4"]


@pytest.mark.slow
def test_a_copy_to_branch_from_is_verified(folder):
    reader.verify_arrays(folder, 8)
    flip_a_value(largest(folder / "8", DATA))
    with pytest.raises(Refused, match=r"/8: \S+ is not what was saved; give another step"):
        reader.verify_arrays(folder, 8)


@pytest.mark.slow
@pytest.mark.fault(4, "control: Orbax alone restores a flipped bit without a word")
def test_without_fingerprints_a_flipped_bit_would_be_restored(folder, saved):
    flip_a_value(largest(folder / "8", DATA))
    of = setting(SMALL, 1)
    wanted = state.map_like_params(arrays.describe_unpadded, abstract_of(of), of.model.declared)
    found = reader.restore_arrays(directory.make_absolute(folder / "8"), wanted)
    held = state.map_like_params(arrays.add_padding, found, of.model.declared)
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), held, saved[1][8])
    assert jax.tree.leaves(same).count(False) == 1


@pytest.mark.fault(4, "files that say nothing about the arrays are lost")
def test_what_orbax_can_do_without_may_be_lost(folder, saved):
    for name in ("_CHECKPOINT_METADATA", "state/_sharding"):
        (folder / "8" / name).unlink()
    step, found, said = restored(folder)
    assert (step, said) == (8, [])
    assert_is(8, found, saved)


@pytest.mark.slow
@pytest.mark.fault(4, "every checkpoint is damaged")
def test_a_run_is_never_begun_anew_where_no_checkpoint_is_whole(folder):
    for step in ("4", "8"):
        flip_a_bit(folder / step / "state" / "manifest.ocdbt")
    before = sorted(folder.rglob("*"))
    for _ in range(2):  # nor when it is started again
        with pytest.raises(Refused, match=r"holds 2 checkpoints and none is intact .*8"):
            restored(folder)
    assert sorted(folder.rglob("*")) == before
    assert reader.find_newest_step(folder) == 8  # both have their receipts


@pytest.mark.slow
@pytest.mark.fault(5, "an empty folder, one with another in it, half a copy, a file, half a save")
@pytest.mark.parametrize("kind", ["empty", "empty inside", "half a copy", "a file", "cut off"])
def test_what_is_no_whole_checkpoint_is_not_taken(kind, folder, saved):
    stray = folder / "12"
    if kind == "empty":
        stray.mkdir()
    elif kind == "empty inside":
        (stray / "default").mkdir(parents=True)
    elif kind == "half a copy":
        shutil.copytree(folder / "8" / "state", stray / "state")
    elif kind == "a file":
        stray.write_text("mine")
    else:
        shutil.copytree(folder / "8", folder / "12.orbax-checkpoint-tmp")
    assert reader.find_newest_step(folder) == 8
    step, found, said = restored(folder)
    assert step == 8
    assert_is(8, found, saved)
    assert len(said) == (kind not in ("a file", "cut off"))  # which Orbax does not look at
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["4", "8"]


@pytest.mark.fault(5, "nothing but an empty folder")
def test_folders_without_a_file_do_not_keep_a_run_from_its_start(tmp_path):
    (tmp_path / "checkpoints" / "9" / "default").mkdir(parents=True)
    assert reader.find_newest_step(tmp_path / "checkpoints") is None
    step, found, said = restored(tmp_path / "checkpoints")
    assert (step, found, len(said)) == (None, None, 1)
    assert (tmp_path / "checkpoints_damaged" / "9").is_dir()


@pytest.mark.fault(5, "a checkpoint copied to the name of a later step")
def test_a_copy_under_another_step_is_not_taken(folder, saved):
    shutil.copytree(folder / "4", folder / "12")
    step, found, (line,) = restored(folder)
    assert step == 8 and "12/receipt/receipt.json is of step 4" in line
    assert_is(8, found, saved)


@pytest.mark.fault(15, "another dtype")
def test_another_dtype_is_refused_and_nothing_set_aside(folder):
    abstract = abstract_of(setting(SMALL, 1))
    half = dataclasses.replace(
        abstract,
        params=jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "bfloat16", sharding=leaf.sharding),
            abstract.params,
        ),
    )
    words = r"8 holds params/\S+ as float32\[\S+\], but this bert_jax has it as bfloat16"
    with pytest.raises(Refused, match=words):
        restored(folder, half)
    assert sorted(path.name for path in folder.iterdir()) == ["4", "8"]


def test_an_array_that_this_version_lacks_is_refused(folder):
    receipt = directory.read_receipt(folder / "8")
    words = r"8 holds \S+ as \S+\[.*\], which this bert_jax does not have; use the version that"
    with pytest.raises(Refused, match=words):
        arrays.check_arrays(folder / "8", receipt, {})


def test_a_disk_that_cannot_be_read_is_no_damage(folder, monkeypatch):
    def refused(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reader, "restore_arrays", refused)
    with pytest.raises(OSError, match="Permission denied"):
        restored(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["4", "8"]


@pytest.mark.slow
@pytest.mark.fault(4, "a bit of the parameters is flipped, which fill_mask then reads")
def test_parameters_alone_are_verified_too(folder, saved):
    of = setting(SMALL, 1)
    params = reader.restore_params(folder, 8, of.model, of.mesh)
    jax.tree.map(np.testing.assert_array_equal, params, saved[1][8].params)
    receipt = json.loads((folder / "8" / "receipt" / "receipt.json").read_text())
    assert receipt["leaves"]["params/nsp/bias"].startswith("float32[2] ")
    cut_off(largest(folder / "8", DATA))
    with pytest.raises(ValueError, match=r"cannot be read from .*; start the training"):
        reader.restore_params(folder, 8, of.model, of.mesh)


def test_a_lack_of_memory_sets_no_checkpoint_aside(folder, monkeypatch):
    def lack(*args):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.")

    monkeypatch.setattr(reader, "restore_arrays", lack)
    with pytest.raises(OSError, match="8: RESOURCE_EXHAUSTED: Out of memory"):
        restored(folder)
    of = setting(SMALL, 1)
    with pytest.raises(OSError, match="8: RESOURCE_EXHAUSTED: Out of memory"):
        reader.restore_params(folder, 8, of.model, of.mesh)
    assert not folder.with_name("checkpoints_damaged").exists()
