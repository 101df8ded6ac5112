"""Export a checkpoint to another format; keep the export only if verification succeeds.

An export to orbax: looks like a run before its first step: a run record and checkpoint 0. Every
command that reads a trained model can read it, as can config.init, but training cannot resume from
it, as its record states.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, Config, MeshConfig
from bert_jax.interop import (
    huggingface,
    load,
    model_card,
    model_json,
    tf1,
    verify_export,
    vocabulary,
)
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.load import GOOGLE, HF, SCHEMES
from bert_jax.interop.pretrained import Pretrained, build_model_of_parts, copy_to_host, place_params
from bert_jax.interop.tensor_names import OPTIONAL_PARTS
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.train_step.state import TrainState
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import Destination, check_new_folder, new_folder
from data_pipeline.io.refused import Refused


def write_run(checkpoint: Pretrained, folder: pathlib.Path) -> None:
    """Write run.json, the vocabulary and checkpoints/0 into an empty folder."""
    vocabulary = checkpoint.vocabulary
    name = vocabulary.file_name
    (folder / name).write_bytes(vocabulary.file_bytes)
    settings = Config(phases=(), model=checkpoint.config, compute=checkpoint.compute)
    pinned = run_record.make_vocabulary_record(vocabulary, name)
    record = run_record.converted(checkpoint.address, settings, pinned)
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(mesh):
        dims = {path: leaf.shape for path, leaf in name_leaves(checkpoint.params).items()}
        model = build_model_of_parts(checkpoint.config, dims)
        params, _ = place_params(checkpoint, model, mesh, seed=0)
        saving = Checkpoints(folder / run_record.CHECKPOINTS, CheckpointConfig(), model, record)
        try:
            saving.save(0, TrainState(jnp.int32(0), params, (), ()), {})
        finally:
            saving.close()
    model_json.write_json(folder / run_record.FILE, record)


CHECKPOINT = "bert_model.ckpt"  # Google's name
CARD = "README.md"
_LAST = {HF: huggingface.LAST, GOOGLE: tf1.LAST, load.ORBAX: run_record.FILE}


@dataclasses.dataclass(frozen=True)
class Target:
    """Hold the format and destination of an export."""

    scheme: str  # one of load.SCHEMES
    folder: pathlib.Path
    prefix: str = ""  # file name prefix of a checkpoint of Google's, within the folder

    @property
    def destination(self) -> Destination:
        """Return the folder to create, and the file that is moved last to complete it."""
        return Destination(self.folder, _LAST[self.scheme], flag="--to")


def parse_target(address: str) -> Target:
    """Read the format and the folder of an export from --to.

    Raises:
      Refused: it names no format, no folder of this machine, or a folder that is not empty.
    """
    scheme, _, place = address.partition(":")
    if scheme not in SCHEMES or not place:
        raise Refused(
            f"--to is {address!r}; it must name the format: hf:DIR, google:DIR/{CHECKPOINT} or "
            "orbax:DIR"
        )
    if is_address(place):
        raise Refused(
            f"--to is {address!r}; an export is written to a folder of this machine: give one, and "
            "copy it to the bucket then"
        )
    folder, prefix = pathlib.Path(place), ""
    if scheme == GOOGLE:
        is_folder = place.endswith("/") or folder.is_dir()
        folder, prefix = (folder, CHECKPOINT) if is_folder else (folder.parent, folder.name)
    target = Target(scheme, folder, prefix)
    check_new_folder(target.destination)
    return target


def keep_supported(checkpoint: Pretrained, target: Target) -> Pretrained:
    """Drop the heads that a format does not know.

    Hugging Face's keeps the layer of a known task and drops the parts that the class does not
    have, Google's keeps neither. A regression's mean and deviation go into its layer, which then
    outputs unscaled values.

    Raises:
      Refused: no class of Hugging Face has the encoder, no format but our own the LSTMs on it.
    """
    task, config = checkpoint.task, checkpoint.config
    has_other_act = "mlm" in checkpoint.params and config.mlm_act != config.hidden_act
    if config.head_act and not has_other_act:
        config = dataclasses.replace(config, head_act="")  # it has no effect
        checkpoint = dataclasses.replace(checkpoint, config=config)
    if config.bilstm_units and target.scheme != load.ORBAX:
        raise Refused(
            f"{checkpoint.address} was fine-tuned with config.model.bilstm_units = "
            f"{config.bilstm_units}, and no class of transformers or of Google's code has LSTMs on "
            "its encoder; predict from the run itself, or export a fine-tuning without them"
        )
    if checkpoint.heads.rtd and target.scheme == HF:
        # ELECTRA's config.json states the width of the embeddings always.
        sized = dataclasses.replace(config, embedding_size=config.embedding_width)
        if FAMILIES["electra"].fits(sized):
            checkpoint = dataclasses.replace(checkpoint, config=sized)
    if target.scheme == GOOGLE:
        checkpoint = _drop(checkpoint, "rtd")
    if target.scheme != HF or task is None:
        dropped = {"bilstm", "classifier"}
        if not checkpoint.heads.mlm:
            dropped.add("mlm")  # its transform alone, which belongs to the layer
        params = {name: part for name, part in checkpoint.params.items() if name not in dropped}
        config = dataclasses.replace(checkpoint.config, bilstm_units=0)
        encoder = dataclasses.replace(checkpoint, config=config, params=params, task=None)
        return huggingface.drop_unnamed(encoder) if target.scheme == HF else encoder
    checkpoint = huggingface.drop_unnamed(checkpoint)
    if (task.mean, task.deviation) == (0.0, 1.0):
        return checkpoint
    mean, deviation = np.float32(task.mean), np.float32(task.deviation)
    layer = checkpoint.params["classifier"]
    scaled = {"kernel": layer["kernel"] * deviation, "bias": layer["bias"] * deviation + mean}
    plain = dataclasses.replace(task, mean=0.0, deviation=1.0)
    return dataclasses.replace(
        checkpoint, params=checkpoint.params | {"classifier": scaled}, task=plain
    )


def _drop(checkpoint: Pretrained, head: str) -> Pretrained:
    params = {name: part for name, part in checkpoint.params.items() if name != head}
    return dataclasses.replace(checkpoint, params=params)


def find_missing(checkpoint: Pretrained, target: Target) -> tuple[str, ...]:
    """Return the parts of a pre-trained model in a format that a checkpoint lacks.

    They are none if it has the layer of a task or the head of replaced-token detection.
    """
    if checkpoint.task is not None or checkpoint.heads.rtd:
        return ()
    parts = set(OPTIONAL_PARTS)
    if target.scheme == HF:
        parts = huggingface.list_parts(checkpoint)
    elif checkpoint.config.pooler_type == "mlm_transform":
        parts.remove("pooler")
    return tuple(part for part in OPTIONAL_PARTS if part in parts - checkpoint.params.keys())


def initialize_missing(checkpoint: Pretrained, missing: Sequence[str], seed: int) -> Pretrained:
    """Add parts that a checkpoint lacks, initialized as before a model's first step."""
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(mesh):
        model = bert.build(checkpoint.config, jax.default_backend())
        params, _ = place_params(checkpoint, model, mesh, seed)
        initialized = {
            part: jax.tree.map(copy_to_host, params[part], model.declared[part]) for part in missing
        }
    return dataclasses.replace(checkpoint, params=checkpoint.params | initialized)


def check_exportable(checkpoint: Pretrained, target: Target) -> None:
    """Raise if a checkpoint cannot be written in a format."""
    leaves = name_leaves(checkpoint.params)
    if bad := [path for path, leaf in leaves.items() if not np.all(np.isfinite(leaf))]:
        raise Refused(
            f"{checkpoint.address} holds numbers that are not finite in {bad[0]} and "
            f"{len(bad) - 1} more arrays; give an earlier checkpoint"
        )
    if target.scheme == GOOGLE:
        tf1.check_supported(checkpoint.config, checkpoint.address)
    if target.scheme == HF:
        huggingface.check_supported(checkpoint)


def write(checkpoint: Pretrained, target: Target, initialized: tuple[str, ...]) -> dict[str, float]:
    """Write a checkpoint and read it back; return the largest difference of each kind of output.

    `initialized` are the parts that were initialized for the export.

    Raises:
      Refused: the copy differs (and is deleted), or another process writes there.
    """
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(new_folder(target.destination))
        if target.scheme == HF:
            huggingface.write(checkpoint, files)
            has_tokenizer = (files / vocabulary.TOKENIZER).exists()
            card = model_card.render(checkpoint, target.folder.name, initialized, has_tokenizer)
            (files / CARD).write_text(card, encoding="utf-8")
        elif target.scheme == GOOGLE:
            tf1.write(checkpoint, files / target.prefix)
        else:
            write_run(checkpoint, files)
        try:
            copy = load.load(f"{target.scheme}:{files / target.prefix}")
            written = huggingface.read_back(checkpoint) if target.scheme == HF else checkpoint
            largest = verify_export.compare(written, copy)
        except Refused as error:
            raise Refused(
                f"what was written cannot be read back, and nothing was kept: {error}; check the "
                "disk, and report this"
            ) from error
        for kind, difference in largest.items():
            if not difference <= verify_export.TOLERANCE:
                raise Refused(
                    f"the {kind} of what was written differ from those of {checkpoint.address} by "
                    f"up to {difference:.1e}, more than {verify_export.TOLERANCE:g}: nothing was "
                    "kept; check the disk, and report this"
                )
        return largest
