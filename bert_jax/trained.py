"""A trained model read back from the workdir of its run, with the vocabulary it was trained on."""

import dataclasses
import pathlib
import tempfile

import jax

from bert_jax import checkpoint_reading, checkpoint_vocabulary, receipt
from bert_jax import mesh as mesh_lib
from bert_jax import workdir as workdir_lib
from bert_jax.checkpoint_reading import newest_step, param_dims, restore_params
from bert_jax.config import MeshConfig
from bert_jax.models import bert
from bert_jax.named_tensors import OPTIONAL_PARTS, check_layers
from bert_jax.receipt import Receipt
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class Trained:
    """A model with parameters on one device."""

    receipt: Receipt
    model: bert.Model
    mesh: jax.sharding.Mesh
    params: bert.Params

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary it was trained on."""
        return self.receipt.vocabulary


def load(workdir: pathlib.Path | str) -> Trained:
    """Read the newest checkpoint of a run, of a folder or of gs://; sets the mesh of one device.

    Raises:
      ValueError: the folder holds no run, or a run without a checkpoint.
      OSError: the bucket refuses, or does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        place = workdir_lib.fetched(str(workdir), pathlib.Path(folder))
        found = receipt.read(place.home)
    step = newest_step(place.checkpoints)
    if step is None:
        raise ValueError(
            f"{workdir} holds a run that has not saved a checkpoint yet; wait until step "
            f"{found.config.checkpoint.every_steps:,}, or start its command again"
        )
    made = checkpoint_reading.run_metadata(place.checkpoints, step)
    source = f"checkpoint {step} of {workdir}"
    checkpoint_vocabulary.check_pinned(found.vocabulary, made, source)
    dims = param_dims(place.checkpoints, step)
    check_layers(dims, found.config.model, f"checkpoint {step} of {workdir}")
    parts = {path.split("/")[0] for path in dims}
    lacking = [part for part in OPTIONAL_PARTS if part not in parts]
    if lacking:  # of a converted checkpoint; a run has them all
        raise ValueError(
            f"{workdir} holds a checkpoint of {found.converted_from} with no "
            f"{' and no '.join(lacking)} head; convert it again with --initialize_missing=true, or "
            "give a run of pre-training"
        )
    mesh = mesh_lib.make(MeshConfig(), jax.devices()[:1])
    jax.set_mesh(mesh)
    model = bert.build(found.config.model, jax.default_backend())
    params = restore_params(place.checkpoints, step, model, mesh)
    return Trained(found, model, mesh, params)
