"""A BERT of anybody's, read from disk: its sizes, its arrays under our names, its vocabulary.

`load` takes the address of one: hf:DIR (Hugging Face: config.json, model.safetensors, vocab.txt or
tokenizer.json), hf:NAME (the same, downloaded from its hub), google:PREFIX (Google's TF1
checkpoint, bert_config.json and vocab.txt beside it) or orbax:DIR (the workdir of a run of
bert_jax: its newest checkpoint, or that of orbax:DIR@STEP).
Without such a word what lies there decides.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping

import jax
import numpy as np

from bert_jax import (
    bert_config,
    checkpoint_folder,
    checkpoint_reading,
    checkpoint_vocabulary,
    hf,
    hub,
    named_tensors,
    receipt,
    tf1,
)
from bert_jax import mesh as mesh_lib
from bert_jax import workdir as workdir_lib
from bert_jax.checkpoint_reading import folders, newest_step, param_dims, restore_params
from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.models import bert
from bert_jax.models.bert import Declared, Heads, Model, Params
from bert_jax.task_layer import TaskLayer
from data_pipeline.files import is_address
from data_pipeline.vocab import Vocabulary

HF, GOOGLE, ORBAX = "hf", "google", "orbax"
SCHEMES = (HF, GOOGLE, ORBAX)
_WAYS = (
    "give hf:DIR (a folder of Hugging Face's), google:PREFIX (a checkpoint of Google's TF1 code) "
    "or orbax:DIR (the workdir of a run of bert_jax)"
)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A checkpoint on the host."""

    address: str  # as it was given
    config: ModelConfig  # vocab_size is filled in: rows of the word table, maybe more than pieces
    params: Params  # nested dict of NumPy float32 arrays, named as models/bert.py does, unpadded
    vocabulary: Vocabulary
    task: TaskLayer | None = None  # what `classifier` means, of a fine-tuned run of ours
    unread: tuple[str, ...] = ()  # names of other code's arrays that are no part of a BERT's

    @property
    def heads(self) -> Heads:
        """The heads that it has."""
        return Heads(mlm="mlm" in self.params, nsp="nsp" in self.params, classes=self._classes)

    @property
    def _classes(self) -> int:
        return len(self.params["classifier"]["bias"]) if "classifier" in self.params else 0

    @property
    def parameter_count(self) -> int:
        """Numbers in all its arrays."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))


def load(address: str) -> Pretrained:
    """Read a checkpoint and the vocabulary beside it: encoder, and pooler and heads if it has them.

    Raises:
      ValueError: there is none; a file is missing or damaged; an array is missing or of another
        shape than its config says; the vocabulary has pieces that the word table has no row for.
      OSError: a disk or a bucket refuses, or does not answer.
    """
    scheme, where = split(address)
    if scheme == ORBAX:
        return _of_a_run(address, where)
    if scheme == HF:
        place = pathlib.Path(where)
        _refuse_absent(address, place)
        config, params, unread = hf.read(place)
    else:
        prefix = tf1.prefix_of(where)
        config, params, unread = tf1.read(prefix)
        place = prefix.parent
    vocabulary = checkpoint_vocabulary.read(place)
    checkpoint_vocabulary.check_size(vocabulary, config.vocab_size, address)
    return Pretrained(address, config, params, vocabulary, unread=unread)


def split(address: str) -> tuple[str, str]:
    """The kind of checkpoint at an address, one of SCHEMES, and its place.

    Raises:
      ValueError: nothing there is a checkpoint.
    """
    scheme, colon, where = address.partition(":")
    if colon and scheme in SCHEMES:
        if not where:
            raise ValueError(f"the checkpoint {address!r} names no place; {_WAYS}")
        if scheme == HF and not pathlib.Path(where).exists() and hub.is_name(where):
            where = str(hub.fetch(where))
        return scheme, where
    if is_address(address):
        return ORBAX, address
    place = pathlib.Path(address)
    if pathlib.Path(f"{address}.index").is_file() or address.endswith(".index"):
        return GOOGLE, address
    _refuse_absent(address, place)
    if (place / tf1.CONFIG).is_file() and any(place.glob("*.index")):
        return GOOGLE, address
    if (place / hf.CONFIG).is_file():  # a run of bert_jax has a file of that name too
        is_run = "fixed" in bert_config.read_json(place / hf.CONFIG)
        return (ORBAX if is_run else HF), address
    raise ValueError(f"{address} holds no checkpoint; {_WAYS}")


def _refuse_absent(address: str, place: pathlib.Path) -> None:
    if not place.is_dir():
        raise ValueError(
            f"the checkpoint {address!r} is not a folder of this machine; {_WAYS}, or hf:NAME (a "
            "model of the Hugging Face hub, which is downloaded)"
        )


def _of_a_run(address: str, where: str) -> Pretrained:
    """A checkpoint of a run, the newest one unless its step is given, read on one device."""
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        place, step = place_and_step(where)
        storage = workdir_lib.fetched(place, pathlib.Path(folder))
        found = receipt.read_model(storage.home)
        if step is None:
            step = newest_step(storage.checkpoints)
        elif step not in (there := folders(checkpoint_folder.absolute(storage.checkpoints))):
            raise ValueError(
                f"{address}: {place} has no checkpoint of step {step}; it has those of "
                f"{', '.join(map(str, there)) or 'none'}"
            )
        if step is None:
            raise ValueError(
                f"{address} holds a run that has not saved a checkpoint yet; wait for the first "
                "one, or start its command again"
            )
        made = checkpoint_reading.run_metadata(storage.checkpoints, step)
        source = f"checkpoint {step} of {place}"
        checkpoint_vocabulary.check_pinned(found.vocabulary, made, source)
        checkpoint_vocabulary.check_size(found.vocabulary, found.config.vocab_size, address)
        on = mesh_lib.make(MeshConfig(), jax.local_devices()[:1])
        with jax.set_mesh(on):
            dims = param_dims(storage.checkpoints, step)
            named_tensors.check_layers(dims, found.config, f"checkpoint {step} of {place}")
            model = _with_parts(found.config, dims)
            held = restore_params(storage.checkpoints, step, model, on)
            params = jax.tree.map(on_host, held, model.declared)
    trained = {name: part for name, part in params.items() if name not in found.untrained}
    return Pretrained(address, found.config, trained, found.vocabulary, found.task)


def model_of(held: Pretrained) -> Model:
    """The model of just what a checkpoint has; without a pooler it cannot be bound."""
    flat = named_tensors.by_path(held.params)
    return _with_parts(held.config, {path: leaf.shape for path, leaf in flat.items()})


def _with_parts(config: ModelConfig, dims: Mapping[str, tuple[int, ...]]) -> Model:
    """The model of the arrays with these paths and sizes."""
    parts = {path.split("/")[0] for path in dims}
    classes = dims.get("classifier/kernel", (0, 0))[-1] if "classifier" in parts else 0
    heads = Heads("mlm" in parts, "nsp" in parts, classes)
    model = bert.build(config, jax.default_backend(), heads=heads)
    declared = {part: of for part, of in model.declared.items() if part in parts}
    return dataclasses.replace(model, declared=declared)


def place_and_step(where: str) -> tuple[str, int | None]:
    """The workdir at orbax:WHERE, and the step that is meant where it is not the newest.

    DIR@400 is step 400 of the run in DIR, unless there is a folder of that very name.
    """
    place, at, step = where.rpartition("@")
    if at and step.isdecimal() and not pathlib.Path(where).exists():
        return place, int(step)
    return where, None


def on_host(leaf: jax.Array, of: Declared) -> np.ndarray:
    """An array of a model on the mesh, without the rows that pad the vocabulary."""
    return np.asarray(leaf)[tuple(slice(0, size) for size in of.logical_dims)]


def placed(
    pretrained: Pretrained, model: Model, on: jax.sharding.Mesh, seed: int
) -> tuple[Params, list[str]]:
    """The parameters of a model on a mesh: the checkpoint's, and drawn where it has none.

    Gives the paths of those that were drawn, as model.init draws them from the seed. What the
    checkpoint has and the model has not is left.

    Raises:
      ValueError: arrays of another shape, named with both shapes.
    """
    held = named_tensors.by_path(pretrained.params)
    wanted = named_tensors.by_path(model.declared)
    wrong = [
        f"{path} is {list(held[path].shape)} there and {list(of.logical_dims)} here"
        for path, of in wanted.items()
        if path in held and held[path].shape != of.logical_dims
    ]
    if wrong:
        raise ValueError(
            f"the checkpoint {pretrained.address} is not one of this model: "
            f"{named_tensors.listed(wrong)}; leave config.model to the checkpoint, or give one of "
            "these sizes"
        )
    key = jax.random.key(seed)

    def leaf(path: tuple[object, ...], of: Declared) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return _padded(held[name], of, on) if name in held else bert.drawn(key, path, of)

    with jax.set_mesh(on):
        params = jax.tree_util.tree_map_with_path(leaf, model.declared)
    return params, [path for path in wanted if path not in held]


def _padded(leaf: np.ndarray, of: Declared, on: jax.sharding.Mesh) -> jax.Array:
    """An array laid out on a mesh, with rows of zeros where the model pads the vocabulary."""
    padding = [(0, held - real) for held, real in zip(of.dims, leaf.shape, strict=True)]
    whole = np.pad(leaf, padding)
    return jax.make_array_from_callback(
        of.dims, jax.NamedSharding(on, of.spec), lambda index: whole[index]
    )
