"""Saving: what stays, what fails is raised, nothing is called saved before it is committed.

And a checkpoint whose parameters have the shapes of another version is refused by a sentence.
"""

import contextlib
import dataclasses
import json
import os
import re
import threading
import time

import jax
import numpy as np
import pytest

from bert_jax.checkpoint import arrays, directory, reader
from bert_jax.checkpoint.directory import check_space
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, OptimConfig
from bert_jax.train_step import state
from data_pipeline.io import Refused
from tests.bert_jax.checkpoint.states import draw_state
from tests.bert_jax.tiny_models import SMALL, setting


@pytest.fixture(scope="module")
def fresh():
    of = setting(SMALL, 1)
    return of, draw_state(of, seed=1)


def fill_disk(monkeypatch):
    """From now on there is no room for a receipt."""

    def full(content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "seal", full)


def open_in(folder, fresh, *record):
    """Checkpoints of the model, closed at the end of a with."""
    return contextlib.closing(Checkpoints(folder, CheckpointConfig(), fresh[0].model, *record))


def steps_in(folder):
    return sorted(int(path.name) for path in folder.iterdir())


def saved(folder, fresh, steps, config):
    of, held = fresh
    with contextlib.closing(Checkpoints(folder, config, of.model, {"made": "here"})) as saving:
        for step in steps:
            saving.save(step, held, {"loss": 1.5})


@pytest.mark.slow
def test_the_newest_stay_and_every_kth_for_good_but_not_the_fresh_one(tmp_path, fresh):
    config = CheckpointConfig(every_steps=3, keep_every_steps=6)
    saved(tmp_path, fresh, (0, 3, 6, 9), config)
    assert steps_in(tmp_path) == [6, 9]
    saved(tmp_path, fresh, (12, 15, 18), config)
    assert steps_in(tmp_path) == [6, 12, 15, 18]


def test_room_for_those_kept_for_good_is_asked_for(tmp_path, fresh):
    of, _ = fresh
    one = 12 * of.model.parameter_count
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    config = CheckpointConfig(keep_every_steps=1)
    check_space(tmp_path, config, of.model, done_steps=0, total_steps=5)
    (tmp_path / "1").mkdir()
    steps = 2 * free // one
    words = f"keeps {steps + 2} checkpoints .* the {steps + 2} not there yet take "
    with pytest.raises(Refused, match=words + re.escape(f"{(steps + 2) * one / 1e9:,.2f} GB")):
        check_space(tmp_path, config, of.model, done_steps=1, total_steps=steps)
    # Of a resumed run, or a branch, those before its step are not saved again.
    check_space(tmp_path, config, of.model, done_steps=steps, total_steps=steps)


@pytest.mark.slow
@pytest.mark.fault(7, "the loop fails, or leaves by sys.exit, just after a save began")
@pytest.mark.parametrize("raised", [RuntimeError("mine"), SystemExit(5), KeyboardInterrupt()])
def test_a_save_under_way_is_finished_whatever_ends_the_run(raised, tmp_path, fresh):
    of, held = fresh
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), of.model)
    with (
        pytest.raises(type(raised), match=f"^{raised}$"),
        checkpoints.closed_after(contextlib.nullcontext()),
    ):
        checkpoints.save(4, held, {})
        raise raised
    assert reader.find_newest_step(tmp_path) == 4


@pytest.mark.slow
@pytest.mark.fault(6, "there is no room for the receipt of a save under way")
def test_a_save_that_failed_is_said_at_the_next_and_tried_again(tmp_path, fresh, monkeypatch):
    of, held = fresh
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), of.model)
    checkpoints.save(4, held, {})
    checkpoints.wait()

    fill_disk(monkeypatch)
    checkpoints.save(8, held, {})
    time.sleep(0.2)
    # The next save removes what this one left behind, and a thread of Orbax may still write there.
    for thread in threading.enumerate():
        if thread.name == "write_metadata_after_commits":
            thread.join(30)
    said = []
    words = (
        r"the checkpoint of step {} failed, no space is left on the disk .* GB free.*step 4 is safe"
    )
    with pytest.raises(OSError, match=words.format(12)):
        checkpoints.save(12, held, {}, said.append)
    assert len(said) == 1 and re.search(words.format(8), said[0])
    with contextlib.suppress(OSError):
        checkpoints.close()
    assert reader.find_newest_step(tmp_path) == 4


def test_what_ended_the_run_is_told_before_what_fails_in_closing(tmp_path, fresh, monkeypatch):
    of, held = fresh
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), of.model)

    fill_disk(monkeypatch)
    with (
        pytest.raises(RuntimeError, match="mine") as raised,
        checkpoints.closed_after(contextlib.nullcontext()),
    ):
        checkpoints.save(4, held, {})
        raise RuntimeError("mine")
    assert "saving the checkpoint of step 4 failed" in raised.value.__notes__[0]


def test_a_step_before_the_newest_is_not_saved_in_silence(tmp_path, fresh):
    held = fresh[1]
    with open_in(tmp_path, fresh) as checkpoints:
        checkpoints.save(8, held, {})
        checkpoints.save(8, held, {})  # of the end of a phase, and of a stop after it
        with pytest.raises(ValueError, match=r"step 4 cannot be saved .* holds step 8"):
            checkpoints.save(4, held, {})


def test_the_receipt_says_what_is_held_and_what_made_it(tmp_path, fresh):
    saved(tmp_path, fresh, (4,), CheckpointConfig())
    receipt = json.loads((tmp_path / "4" / "receipt" / "receipt.json").read_text())
    assert receipt["step"] == 4 and receipt["run"] == {"made": "here"}
    assert receipt["numbers"] == {"loss": 1.5}
    assert receipt["saved"].endswith("+00:00")
    assert len(receipt["leaves"]) == len(jax.tree.leaves(fresh[1]))
    word = receipt["leaves"]["params/embeddings/word/embedding"]
    assert word.startswith("float32[211,32] ")  # the size without the rows that pad it


KERNEL = ("layers", "00", "attention", "query", "kernel")


def by_heads(path, leaf):
    """The kernel of the queries as earlier versions had it, with what is declared of it."""
    if tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey)) != KERNEL:
        return leaf
    if isinstance(leaf, jax.Array):
        return leaf.reshape(32, 4, 8)  # width, heads, head width
    return dataclasses.replace(leaf, dims=(32, 4, 8), logical_dims=(32, 4, 8))


def test_parameters_of_other_shapes_are_refused(tmp_path, fresh):
    of, held = fresh
    earlier = dataclasses.replace(
        of.model, declared=jax.tree_util.tree_map_with_path(by_heads, of.model.declared)
    )
    params = jax.tree_util.tree_map_with_path(by_heads, held.params)
    with contextlib.closing(Checkpoints(tmp_path, CheckpointConfig(), earlier)) as saving:
        saving.save(3, state.TrainState(held.step, params, (), ()), {})
    words = (
        r"3 holds params/layers/00/attention/query/kernel as float32\[32,4,8\], but this bert_jax "
    )
    with pytest.raises(ValueError, match=words):
        reader.restore_params(tmp_path, 3, of.model, of.mesh)
    with open_in(tmp_path, fresh) as checkpoints, pytest.raises(ValueError, match=words):
        checkpoints.restore(lambda step: state.make_abstract_state(of.model, of.tx, of.where))


@pytest.mark.slow
def test_an_optimizer_for_some_of_the_parameters_is_restored(tmp_path):
    """Muon keeps no second moment of a kernel, and AdamW nothing of it: neither is saved."""
    muon = dataclasses.replace(SMALL, optim=OptimConfig(name="muon"))
    of = setting(muon, 1)
    held = draw_state(of, seed=1)
    leaves = jax.tree.leaves(held.opt_state)
    assert sum(leaf.size for leaf in leaves) < 2 * sum(p.size for p in jax.tree.leaves(held.params))
    marked = [
        jax.device_put(np.full(leaf.shape, number, leaf.dtype), leaf.sharding)
        for number, leaf in enumerate(leaves)
    ]
    structure = jax.tree.structure(held.opt_state)
    held = dataclasses.replace(held, opt_state=jax.tree.unflatten(structure, marked))
    saved(tmp_path, (of, held), [3], CheckpointConfig())
    with open_in(tmp_path, (of, held), {"made": "here"}) as checkpoints:
        found, _ = checkpoints.restore(
            lambda step: state.make_abstract_state(of.model, of.tx, of.where)
        )
    ends = (
        state.map_like_params(arrays.remove_padding, end.opt_state, of.model.declared)
        for end in (found, held)
    )
    jax.tree.map(np.testing.assert_array_equal, *ends)
