"""A checkpoint with the head of its masked language model, on the devices of this process."""

import dataclasses
from collections.abc import Sequence

import jax

from bert_jax import mesh as mesh_lib
from bert_jax import pretrained
from bert_jax.config import ComputeConfig, MeshConfig
from bert_jax.models import bert
from bert_jax.models.bert import Heads
from bert_jax.pretrained import Pretrained
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class MaskedLm:
    """A model that can be asked for the words at some positions."""

    checkpoint: Pretrained
    mesh: jax.sharding.Mesh
    model: bert.Model
    params: bert.Params

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary it was trained on."""
        return self.checkpoint.vocabulary


def check(checkpoint: Pretrained) -> None:
    """Raise if a checkpoint predicts no words.

    Raises:
      ValueError: it has no head of a masked language model.
    """
    if not checkpoint.heads.mlm:
        raise ValueError(
            f"the checkpoint {checkpoint.address} has no masked language model's head, so it "
            "predicts no words; give one that was exported with its pre-training heads, or train "
            f"one: python -m bert_jax.train --config.init={checkpoint.address}"
        )


def load(address: str) -> MaskedLm:
    """Read a checkpoint and place it on one device, whose mesh becomes the current one.

    Raises:
      ValueError: as pretrained.load and check do.
      OSError: a disk or a bucket refuses, or does not answer.
    """
    checkpoint = pretrained.load(address)
    check(checkpoint)
    return on_devices(checkpoint, jax.local_devices()[:1])


def on_devices(checkpoint: Pretrained, devices: Sequence[jax.Device] | None = None) -> MaskedLm:
    """Place a checkpoint, a copy on every device, and make their mesh the current one.

    The devices are all local ones unless given.

    The next sentence's head comes along where there is one. Logits are float32 everywhere.

    Raises:
      ValueError: as check does.
    """
    check(checkpoint)
    of = mesh_lib.make(MeshConfig(preset="dp"), devices or jax.local_devices())
    jax.set_mesh(of)
    compute = ComputeConfig(mlm_logits_dtype="float32")
    heads = Heads(mlm=True, nsp=checkpoint.heads.nsp)
    model = bert.build(checkpoint.config, jax.default_backend(), 1, compute, heads)
    params, _ = pretrained.placed(checkpoint, model, of, seed=0)
    return MaskedLm(checkpoint, of, model, params)
