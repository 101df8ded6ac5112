"""A BERT written as a run of bert_jax that has not made a step: a receipt and a checkpoint 0.

Whatever reads a trained model reads it: fill_mask, features, config.init. It is no run that
training could go on with, and its receipt says so.
"""

import json
import pathlib

import jax
import jax.numpy as jnp

from bert_jax import checkpoint_vocabulary, pretrained, receipt
from bert_jax import mesh as mesh_lib
from bert_jax.checkpoint import Checkpoints
from bert_jax.config import CheckpointConfig, Config, MeshConfig
from bert_jax.pretrained import Pretrained
from bert_jax.state import TrainState
from data_pipeline.vocab import FILE_NAMES

LAST = receipt.FILE


def write(held: Pretrained, folder: pathlib.Path) -> None:
    """Write config.json, the vocabulary and checkpoints/0 into an empty folder.

    Raises:
      OSError: the disk refuses.
    """
    vocabulary = held.vocabulary
    name = FILE_NAMES[vocabulary.kind]
    (folder / name).write_bytes(vocabulary.file_bytes)
    settings = Config(phases=(), model=held.config)
    pinned = checkpoint_vocabulary.record(vocabulary, name)
    shown = receipt.converted(held.address, settings, pinned)
    on = mesh_lib.make(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(on):
        model = pretrained.model_of(held)
        params, _ = pretrained.placed(held, model, on, seed=0)
        saving = Checkpoints(folder / receipt.CHECKPOINTS, CheckpointConfig(), model, shown)
        try:
            saving.save(0, TrainState(jnp.int32(0), params, (), ()), {})
        finally:
            saving.close()
    text = json.dumps(shown, indent=2) + "\n"
    (folder / receipt.FILE).write_text(text, encoding="utf-8")
