"""Export a checkpoint to another format; keep the export only if its copy computes the same.

An export to orbax: looks like a run before its first step: a run record and checkpoint 0. Every
command that reads a trained model can read it, as can config.init, but training cannot resume from
it, as its record states.

Dimensions: B rows, S sequence, T tokens.
"""

import contextlib
import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config import CheckpointConfig, ComputeConfig, Config, MeshConfig
from bert_jax.interop import huggingface, load, model_card, tf1, transformers_class, vocabulary
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.load import GOOGLE, HF, SCHEMES
from bert_jax.interop.pretrained import (
    Pretrained,
    build_model_of_parts,
    copy_to_host,
    place_model,
    place_params,
)
from bert_jax.interop.tensor_names import OPTIONAL_PARTS
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.train_step.state import TrainState
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import Destination, check_new_folder, new_folder, write_json
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import build_rows
from data_pipeline.vocab import Vocabulary, split_ids
from data_pipeline.vocab.wordpiece import join_pieces


def write_run(checkpoint: Pretrained, folder: pathlib.Path) -> None:
    """Write run.json, the vocabulary and checkpoints/0 into an empty folder."""
    vocabulary = checkpoint.vocabulary
    name = vocabulary.file_name
    (folder / name).write_bytes(vocabulary.file_bytes)
    settings = Config(phases=(), model=checkpoint.config, compute=checkpoint.compute)
    pinned = run_record.make_vocabulary_record(vocabulary, name)
    record = run_record.describe_converted(checkpoint.address, settings, pinned)
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(mesh):
        dims = {path: leaf.shape for path, leaf in name_leaves(checkpoint.params).items()}
        model = build_model_of_parts(checkpoint.config, dims)
        params, _ = place_params(checkpoint, model, mesh, seed=0)
        checkpoints = folder / run_record.CHECKPOINTS
        with contextlib.closing(
            Checkpoints(checkpoints, CheckpointConfig(), model, record)
        ) as saving:
            saving.save(0, TrainState(jnp.int32(0), params, (), ()), {})
    write_json(folder / run_record.FILE, record)


CHECKPOINT = "bert_model.ckpt"  # Google's name
CARD = "README.md"
# Written last: a folder without it is not a model.
_LAST = {HF: huggingface.CONFIG, GOOGLE: tf1.CONFIG, load.ORBAX: run_record.FILE}


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
            f"--to is {address!r}; an export is written to a local folder: give one, then copy it "
            "to the bucket"
        )
    folder, prefix = pathlib.Path(place), ""
    if scheme == GOOGLE:
        is_folder = place.endswith("/") or folder.is_dir()
        folder, prefix = (folder, CHECKPOINT) if is_folder else (folder.parent, folder.name)
    target = Target(scheme, folder, prefix)
    if scheme == load.ORBAX:
        workdir_lib.open_local_workdir(folder)  # refuses a name that JAX cannot open
    check_new_folder(target.destination)
    return target


def keep_supported(checkpoint: Pretrained, target: Target) -> Pretrained:
    """Drop the heads that a format does not support.

    Hugging Face's format keeps a task's layer and drops parts that its class lacks; Google's drops
    the layer too. The mean and deviation of a regression are folded into its layer, which then
    outputs unscaled values.

    Raises:
      Refused: no class of transformers has the encoder, or only our own format has its LSTMs.
    """
    config = checkpoint.config
    if "mlm" not in checkpoint.params or config.mlm_act == config.hidden_act:
        config = dataclasses.replace(config, head_act="")  # head_act has no effect
    if config.bilstm_units and target.scheme != load.ORBAX:
        raise Refused(
            f"{checkpoint.address} was fine-tuned with config.model.bilstm_units = "
            f"{config.bilstm_units}, and no class of transformers or of Google's code has LSTMs on "
            "its encoder; predict from the run itself, or export a fine-tuning without them"
        )
    if checkpoint.heads.rtd and target.scheme == HF:
        # ELECTRA's config.json always states the width of the embeddings.
        sized = dataclasses.replace(config, embedding_size=config.embedding_width)
        config = sized if FAMILIES["electra"].fits(sized) else config
    params, task = checkpoint.params, checkpoint.task
    if target.scheme != HF or task is None:
        dropped = {"bilstm", "classifier"}
        if target.scheme == GOOGLE:
            dropped.add("rtd")
        if not checkpoint.heads.mlm:
            dropped.add("mlm")  # only the transform, which belongs to the task's layer
        params = {name: part for name, part in params.items() if name not in dropped}
        config, task = dataclasses.replace(config, bilstm_units=0), None
    elif (task.mean, task.deviation) != (0.0, 1.0):
        layer, deviation = params["classifier"], np.float32(task.deviation)
        scaled = {"kernel": layer["kernel"] * deviation, "bias": layer["bias"] * deviation}
        scaled["bias"] += np.float32(task.mean)
        params = params | {"classifier": scaled}
        task = dataclasses.replace(task, mean=0.0, deviation=1.0)
    kept = dataclasses.replace(checkpoint, config=config, params=params, task=task)
    return transformers_class.drop_unnamed(kept) if target.scheme == HF else kept


def find_missing(checkpoint: Pretrained, target: Target) -> tuple[str, ...]:
    """Return the parts that a format holds for a pre-trained model and a checkpoint lacks.

    A checkpoint with a task's layer or a replaced-token head lacks none.
    """
    if checkpoint.task is not None or checkpoint.heads.rtd:
        return ()
    parts = set(OPTIONAL_PARTS)
    if target.scheme == HF:
        parts = transformers_class.list_parts(checkpoint)
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
    return checkpoint.change(initialized)


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
        transformers_class.check_supported(checkpoint)


def write(
    checkpoint: Pretrained, target: Target, initialized: tuple[str, ...], name: str | None = None
) -> dict[str, float]:
    """Write a checkpoint and read it back; return the largest difference of each kind of output.

    `initialized` are the parts that were initialized for the export; `name` is the model's name in
    its card, by default the folder's name.

    Raises:
      Refused: the copy differs (and is deleted), or another process writes there.
    """
    with new_folder(target.destination) as files:
        if target.scheme == HF:
            huggingface.write(checkpoint, files)
            has_tokenizer = (files / vocabulary.TOKENIZER).exists()
            missing = find_missing(checkpoint, target)
            name = name or target.folder.resolve().name
            card = model_card.render(checkpoint, name, initialized, missing, has_tokenizer)
            (files / CARD).write_text(card, encoding="utf-8", errors="backslashreplace")
        elif target.scheme == GOOGLE:
            tf1.write(checkpoint, files / target.prefix)
        else:
            write_run(checkpoint, files)
        try:
            copy = load.load(f"{target.scheme}:{files / target.prefix}")
            written = (
                transformers_class.read_back(checkpoint) if target.scheme == HF else checkpoint
            )
            largest = compare(written, copy)
        except Refused as error:
            raise Refused(
                f"what was written cannot be read back, and nothing was kept: {error}; check the "
                "disk, and report this"
            ) from error
        for kind, difference in largest.items():
            if not difference <= TOLERANCE:
                raise Refused(
                    f"the {kind} of what was written differ from {checkpoint.address} by "
                    f"up to {difference:.1e}, more than {TOLERANCE:g}: nothing was "
                    "kept; check the disk, and report this"
                )
        return largest


TOLERANCE = 1e-5  # float32 hidden states of the same arrays differ by less, whatever the layout
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 2018 they trained two models on 3.3 billion words (and 16 chips).",
    "Ceci n'est pas une pipe \u2014 \u00fcber, na\u00efve, \u4f60\u597d!",
    "a",
)
HIDDEN, POOLED, MLM, NSP = "hidden", "pooled", "MLM logits", "NSP logits"
REPLACED = "replaced-token logits"
OF_CLS, OF_TOKENS = "[CLS] logits", "token logits"  # a task layer's, computed on both
_RANDOM_ROWS, _TOKENS = 4, 48


def make_rows(vocabulary: Vocabulary, max_tokens: int) -> dict[str, np.ndarray]:
    """Return a batch to compare by, int32[B,S]: sentences and random tokens; half is segment 1."""
    seq_len = min(_TOKENS, max_tokens)
    framed = [
        frame(ids.tolist(), None, vocabulary.template, seq_len)
        for ids in split_ids(*vocabulary.encode(SENTENCES))
    ]
    halves = [row._replace(second_start=seq_len // 2, segment_ids=()) for row in framed]
    rng = np.random.default_rng(0)
    halves += [
        FramedRow(rng.integers(vocabulary.size, size=seq_len - number).tolist(), seq_len // 2)
        for number in range(min(_RANDOM_ROWS, seq_len))
    ]
    rows = build_rows(halves)
    batch = rows.batch(np.arange(rows.examples), seq_len, vocabulary.special_ids["pad"])
    shape = batch["input_ids"].shape
    names = ("input_ids", "input_mask", "segment_ids", "cls_positions")
    positions_BS = np.broadcast_to(np.arange(seq_len, dtype=np.int32), shape)
    return {name: batch[name] for name in names if name in batch} | {"positions": positions_BS}


def compute_outputs(
    checkpoint: Pretrained, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what a checkpoint computes from rows in float32: all hidden states, and its heads."""
    compute = ComputeConfig(compute_dtype="float32")
    placed = place_model(checkpoint, checkpoint.heads, jax.local_devices()[:1], compute)

    @jax.jit
    def run(params: bert.Params, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        bound = placed.model.bind(params)
        visible, cls_positions = hide_padding(batch["input_mask"]), batch.get("cls_positions")
        rows = bert.EncoderRows(batch["input_ids"], batch["segment_ids"], visible)
        hidden = bound.encode_layers(rows)
        outputs = {f"{HIDDEN} of layer {i}": layer_BSD for i, layer_BSD in enumerate(hidden)}
        if "pooler" in checkpoint.params:
            outputs[POOLED] = bound.pool(hidden[-1], cls_positions)
        if checkpoint.heads.classes:
            outputs[OF_TOKENS] = bound.compute_class_logits(
                bound.transform_tokens(hidden[-1], batch["input_mask"])
            )
            if "pooler" in checkpoint.params or checkpoint.config.pooler_type == "mlm_transform":
                pooled = bound.pool(hidden[-1], cls_positions, batch["input_mask"])
                outputs[OF_CLS] = bound.compute_class_logits(pooled)
        if checkpoint.heads.nsp:
            outputs[NSP] = bound.compute_nsp_logits(hidden[-1], cls_positions)
        if checkpoint.heads.rtd:
            outputs[REPLACED] = bound.rtd(hidden[-1])
        if checkpoint.heads.mlm:
            outputs[MLM] = bound.compute_mlm_logits(hidden[-1], batch["positions"])
        return outputs

    with jax.set_mesh(placed.mesh):
        arrays = run(placed.params, mesh_lib.place_batch(batch, placed.mesh))
    outputs = {name: np.asarray(array) for name, array in arrays.items()}
    if MLM in outputs:
        outputs[MLM] = outputs[MLM][..., : checkpoint.config.vocab_size]
    return outputs


def _hash_pieces(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(join_pieces(vocabulary.pieces())).hexdigest()[:12]


def compare(before: Pretrained, after: Pretrained) -> dict[str, float]:
    """Return the largest difference of hidden states and of each head's outputs, by name.

    Raises:
      Refused: the copy has other sizes, other heads or another vocabulary.
    """
    for name, fact, copied_fact in (
        ("sizes", before.config, after.config),
        ("parts", sorted(before.params), sorted(after.params)),
        ("the pieces", _hash_pieces(before.vocabulary), _hash_pieces(after.vocabulary)),
        ("case", before.vocabulary.lowercase, after.vocabulary.lowercase),
        ("rules", before.vocabulary.sentencepiece_rules, after.vocabulary.sentencepiece_rules),
    ):
        if fact != copied_fact:
            raise Refused(
                f"the copy has {name} {copied_fact}, the checkpoint {fact}; nothing was kept"
            )
    batch = make_rows(before.vocabulary, before.config.max_position_embeddings)
    expected, actual = compute_outputs(before, batch), compute_outputs(after, batch)
    largest: dict[str, float] = {}
    for name, array in expected.items():
        kind = name.partition(" of layer")[0]
        difference = float(np.max(np.abs(array - actual[name])))
        largest[kind] = max(difference, largest.get(kind, 0.0))
    kinds = (HIDDEN, POOLED, MLM, NSP, REPLACED, OF_CLS, OF_TOKENS)
    return {kind: largest[kind] for kind in kinds if kind in largest}
