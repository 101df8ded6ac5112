"""A trained model read back from the workdir of its run, with the vocabulary it was trained on."""

import dataclasses
import pathlib

import jax

from bert_jax import mesh as mesh_lib
from bert_jax import receipt
from bert_jax.checkpoint import Checkpoints, newest_step
from bert_jax.config import Config, MeshConfig
from bert_jax.models import bert
from bert_jax.receipt import CHECKPOINTS
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model with parameters on one device."""

    config: Config
    vocabulary: Vocabulary
    model: bert.Model
    mesh: jax.sharding.Mesh
    params: bert.Params
    step: int


def load(workdir: pathlib.Path) -> Trained:
    """Read the newest checkpoint of a run; sets the mesh of one device.

    Raises:
      ValueError: the folder holds no run, or a run without a checkpoint.
    """
    config, vocabulary = receipt.read(workdir)
    step = newest_step(workdir / CHECKPOINTS)
    if step is None:
        raise ValueError(
            f"{workdir} holds a run that has not saved a checkpoint yet; wait until step "
            f"{config.checkpoint.every_steps:,}, or start its command again"
        )
    mesh = mesh_lib.make(MeshConfig(), jax.devices()[:1])
    jax.set_mesh(mesh)
    model = bert.build(config.model, jax.default_backend())
    checkpoints = Checkpoints(workdir / CHECKPOINTS, config.checkpoint, model)
    try:
        params = checkpoints.restore_params(mesh)
    finally:
        checkpoints.close()
    return Trained(config, vocabulary, model, mesh, params, step)
