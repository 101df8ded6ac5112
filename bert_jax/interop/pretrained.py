"""Hold a checkpoint of any format on the host under bert_jax's names; place it on devices."""

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import ComputeConfig, MeshConfig, ModelConfig
from bert_jax.config.schema import GENERATOR, PARTS
from bert_jax.interop import tensor_names
from bert_jax.model import bert, ops
from bert_jax.model.bert import Heads, Model, Params
from bert_jax.model.layers import Declared, init_param
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import Refused
from data_pipeline.spec.schema import GOOGLE
from data_pipeline.vocab import Vocabulary


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Hold a checkpoint in host memory."""

    address: str  # the address that the user gave
    config: ModelConfig  # vocab_size counts rows of the word table, which may exceed the tokens
    # Nested dict of NumPy float32 arrays, named as in model/bert.py, unpadded.
    params: Params = dataclasses.field(repr=False)
    vocabulary: Vocabulary
    task: TaskLayer | None = None  # meaning of `classifier`; None unless one of our runs wrote it
    compute: ComputeConfig = ComputeConfig()  # has the compute_dtype of a run of ours
    pair_truncation: str = GOOGLE  # whose rule truncates pairs of texts
    unread: tuple[str, ...] = ()  # names of third-party arrays that belong to no part of a BERT

    @property
    def heads(self) -> Heads:
        """Return the heads that the checkpoint has."""
        classes = len(self.params["classifier"]["bias"]) if "classifier" in self.params else 0
        has_mlm = "output_bias" in self.params.get("mlm", {})  # else the transform is a pooler
        return dataclasses.replace(_list_heads(self.params, classes), mlm=has_mlm)

    @property
    def parameter_count(self) -> int:
        """Return the total number of parameters."""
        return sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))

    def change(self, parts: Params, **settings: Any) -> "Pretrained":
        """Return the checkpoint with these parts and these settings of its model replaced."""
        config = dataclasses.replace(self.config, **settings)
        return dataclasses.replace(self, config=config, params=self.params | parts)


def _list_heads(parts: Collection[str], classes: int) -> Heads:
    """Return the heads among the parts of a model."""
    names = ("mlm", "nsp", "rtd", "generator")
    return Heads(classes=classes, **{name: name in parts for name in names})


_EMBEDDING_PARTS = ("word", "position", "segment", "layer_norm")


def select_part(checkpoint: Pretrained, part: str) -> Pretrained:
    """Return one of the two models of replaced-token detection as a checkpoint of its own.

    The discriminator of any other checkpoint is the checkpoint itself.

    Raises:
      Refused: the generator is asked for, and there is none; there is no such part.
    """
    if part not in PARTS:
        raise Refused(f"part is {part!r:.80}; it must be {' or '.join(PARTS)}")
    params, config = checkpoint.params, checkpoint.config
    if "generator" not in params or config.generator is None:
        if part == GENERATOR:
            raise Refused(
                f"{checkpoint.address} has no generator, which only a run of bert_jax with "
                "config.objective=rtd has; leave --part=generator out"
            )
        return checkpoint
    own, tables = params["generator"].get("embeddings", {}), params["embeddings"]
    is_shared = config.generator_embeddings == "shared"
    if part == GENERATOR:
        shared = {name: tables[name] for name in _EMBEDDING_PARTS if is_shared and name in tables}
        chosen = params["generator"] | {"embeddings": own | shared}
        return dataclasses.replace(checkpoint, config=config.generator, params=chosen)
    chosen = {name: tree for name, tree in params.items() if name != "generator"}
    if not is_shared:  # its tables are differences to the generator's
        chosen["embeddings"] = {
            name: {"embedding": own[name]["embedding"] + tree["embedding"]}
            if "embedding" in tree
            else tree
            for name, tree in chosen["embeddings"].items()
        }
    return dataclasses.replace(checkpoint, config=config.encoder_alone, params=chosen)


@dataclasses.dataclass(frozen=True)
class PlacedModel:
    """Hold a model and its parameters on the devices of a mesh."""

    checkpoint: Pretrained
    mesh: jax.sharding.Mesh
    model: Model = dataclasses.field(repr=False)
    params: Params = dataclasses.field(repr=False)

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that the checkpoint was trained on."""
        return self.checkpoint.vocabulary


def place_model(
    checkpoint: Pretrained,
    heads: Heads,
    devices: Sequence[jax.Device] | None = None,
    compute: ComputeConfig | None = None,
    is_int8: bool = False,
) -> PlacedModel:
    """Place a checkpoint with some heads, a copy on every device.

    The devices are all local ones and compute is the checkpoint's unless given. The caller's mesh
    stays current: run steps in jax.set_mesh of the model's, as run_rows does. A missing pooler
    is initialized from seed 0; the caller must not read it then. `is_int8` converts the kernels of
    the layers to int8, as quantize_layers does.

    Raises:
      Refused: the checkpoint lacks one of the heads.
    """
    own = vars(checkpoint.heads)
    lacking = [name for name, value in vars(heads).items() if value and not own[name]]
    if lacking:
        raise Refused(
            f"the checkpoint {checkpoint.address} lacks the heads {', '.join(lacking)}, which "
            f"would be random; leave them out of {heads}"
        )
    mesh = mesh_lib.make_mesh(MeshConfig(preset="dp"), devices or jax.local_devices())
    compute = compute or checkpoint.compute
    model = bert.build(checkpoint.config, jax.default_backend(), 1, compute, heads)
    params, _ = place_params(checkpoint, model, mesh, seed=0)
    with jax.set_mesh(mesh):
        params = quantize_layers(params) if is_int8 else params
    return PlacedModel(checkpoint, mesh, model, params)


def quantize_layers(params: Params) -> Params:
    """Return a model's parameters with the kernels of its layers in int8.

    Tables, norms, biases and heads stay in float32, and so do XLNet's maps by head.
    """

    @jax.jit
    def convert(kernel_DE: jax.Array) -> ops.Int8Kernel:
        whole_DE = jax.sharding.reshard(kernel_DE, PartitionSpec(None, None))
        numbers_DE, scale_1E = ops.quantize(whole_DE, axis=0)
        return ops.Int8Kernel(numbers_DE, scale_1E[0])

    def visit(path: tuple[object, ...], leaf: jax.Array) -> jax.Array | ops.Int8Kernel:
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return convert(leaf) if name == "kernel" else leaf

    return params | {"layers": jax.tree_util.tree_map_with_path(visit, params["layers"])}


def place_masked_lm(
    checkpoint: Pretrained,
    devices: Sequence[jax.Device] | None = None,
    is_int8: bool = False,
) -> PlacedModel:
    """Place a checkpoint that predicts words, with its next-sentence head if it has one.

    Logits are float32 on every kind of device.

    Raises:
      Refused: as check_masked_lm does.
    """
    check_masked_lm(checkpoint)
    compute = dataclasses.replace(checkpoint.compute, mlm_logits_dtype="float32")
    heads = Heads(mlm=True, nsp=checkpoint.heads.nsp)
    return place_model(checkpoint, heads, devices, compute, is_int8)


def check_masked_lm(checkpoint: Pretrained) -> None:
    """Raise if a checkpoint has no masked language model head."""
    if checkpoint.heads.rtd and not checkpoint.heads.mlm:
        raise Refused(
            f"the checkpoint {checkpoint.address} is the encoder of replaced-token detection, "
            "which predicts no words; give its generator: the run itself, or what python -m "
            f"bert_jax.convert --part={GENERATOR} wrote of it"
        )
    if not checkpoint.heads.mlm:
        raise Refused(
            f"the checkpoint {checkpoint.address} has no masked language model's head, so it "
            "predicts no words; give one that was exported with its pre-training heads, or train "
            f"one: python -m bert_jax.train --config.init={checkpoint.address}"
        )


def refuse_causal(checkpoint: Pretrained, problem: str) -> None:
    """Raise if a checkpoint reads from left to right; `problem` ends the error, with a way out."""
    if checkpoint.config.is_causal:
        raise Refused(
            f"the checkpoint {checkpoint.address} reads from left to right "
            f"(config.model.is_causal), {problem}"
        )


def place_params(
    checkpoint: Pretrained, model: Model, mesh: jax.sharding.Mesh, seed: int
) -> tuple[Params, list[str]]:
    """Return a model's parameters on a mesh: the checkpoint's, and initialized where it has none.

    The second value has the paths of the initialized arrays, which model.init would give the same
    values from this seed. Arrays that the model does not have are ignored.

    Raises:
      Refused: arrays have another shape; names them with both shapes.
    """
    given = name_leaves(checkpoint.params)
    declared_by_path = name_leaves(model.declared)
    wrong = [
        f"{path} is {list(given[path].shape)} there and {list(declared.logical_dims)} here"
        for path, declared in declared_by_path.items()
        if path in given and given[path].shape != declared.logical_dims
    ]
    if wrong:
        raise Refused(
            f"the checkpoint {checkpoint.address} is not one of this model: "
            f"{tensor_names.list_names(wrong)}; leave config.model to the checkpoint, or give one "
            "of these sizes"
        )
    key = jax.random.key(seed)

    def place(path: tuple[object, ...], declared: Declared) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name not in given:
            return init_param(key, path, declared)
        # Rows of zeros where the model pads the vocabulary.
        padding = np.subtract(declared.dims, given[name].shape)
        padded = np.pad(given[name], [(0, rows) for rows in padding])
        sharding = jax.NamedSharding(mesh, declared.spec)
        return jax.make_array_from_callback(declared.dims, sharding, lambda index: padded[index])

    with jax.set_mesh(mesh):
        params = jax.tree_util.tree_map_with_path(place, model.declared)
    return params, [path for path in declared_by_path if path not in given]


def copy_to_host(leaf: jax.Array, declared: Declared) -> np.ndarray:
    """Copy an array of a model to the host, without the rows that pad the vocabulary."""
    return np.asarray(leaf)[tuple(slice(0, size) for size in declared.logical_dims)]


def hash_for_others(checkpoint: Pretrained) -> str:
    """Return hash_weights, for several processes to compare; "" in a single process."""
    return hash_weights(checkpoint) if jax.process_count() > 1 else ""


def hash_weights(checkpoint: Pretrained) -> str:
    """Return a digest of a checkpoint's arrays by their paths."""
    digest = hashlib.sha256()
    for path, array in sorted(name_leaves(checkpoint.params).items()):
        digest.update(f"{path} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def build_model_of_parts(config: ModelConfig, dims: Mapping[str, tuple[int, ...]]) -> Model:
    """Build the model of the parts that arrays belong to; without a pooler it cannot be bound.

    `dims` has the sizes of the arrays by their paths.
    """
    parts = {path.split("/")[0] for path in dims}
    heads = _list_heads(parts, classes=dims.get("classifier/kernel", (0,))[-1])
    model = bert.build(config, jax.default_backend(), heads=heads)
    declared = {part: tree for part, tree in model.declared.items() if part in parts}
    return dataclasses.replace(model, declared=declared)
