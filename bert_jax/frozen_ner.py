"""Named entities from the vectors of a frozen model: computed once, then a BiLSTM learns on them.

Dimensions: B rows of a batch, S sequence, K layers, D width, T tokens of a split.
"""

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax import inference, pretrained
from bert_jax import mesh as mesh_lib
from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.feature_vectors import VECTORS, Layers, asked, chosen_layers
from bert_jax.models import bert, bilstm
from bert_jax.models.bert import Heads
from bert_jax.pretrained import Pretrained
from bert_jax.screen import Screen
from bert_jax.tasks.task import Scores, Task
from data_pipeline.finetune import EncodedRows, ExampleStream, seq_len_for

# Table 7 of the paper: what --layers of features.py calls them, and whether they are side by side.
FEATURES = {
    "embeddings": ("0:1", False),
    "second_to_last": ("-2:-1", False),
    "last": ("-1:", False),
    "weighted_last_four": ("-4:", False),
    "concatenated_last_four": ("-4:", True),
    "weighted_all": ("1:", False),
}
_CLIP_NORM = 1.0
Vectors = Mapping[str, np.ndarray]  # float32[T,K,D] by split


@dataclasses.dataclass(frozen=True)
class Training:
    """How the BiLSTM learns; the paper gives its layers and its width alone."""

    units: int = 768  # of each direction
    epochs: int = 10
    batch_size: int = 32  # rows
    learning_rate: float = 1e-3  # Adam's, falling linearly to 0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Result:
    """The best epoch on dev."""

    features: str
    epoch: int  # from 1
    scores: Scores
    logits: Mapping[str, np.ndarray]  # float32[N,S,C] of every split but train


def check_room(task: Task, model: ModelConfig) -> None:
    """Raise if the disk of temporary files cannot hold the vectors of every_layer.

    A mapped file for which a disk has no room ends the process without a word.

    Raises:
      ValueError: names the folder, what is free and what is needed.
    """
    tokens = sum(len(rows.token_ids) for rows in task.splits.values())
    needed_bytes = 4 * tokens * (model.num_hidden_layers + 1) * model.hidden_size
    folder = tempfile.gettempdir()
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise ValueError(
            f"{folder} has {free_bytes / 1e9:,.2f} GB free, and the vectors of all layers take "
            f"{needed_bytes / 1e9:,.2f} GB until the end; free space, or name a folder on another "
            "disk by the environment variable TMPDIR"
        )


@contextlib.contextmanager
def every_layer(checkpoint: Pretrained, task: Task, screen: Screen) -> Iterator[Vectors]:
    """Yield the vectors of all L + 1 layers of all splits, in files that are gone afterwards.

    Source: Devlin et al. 2019, section 5.3.
    """
    of = mesh_lib.make(MeshConfig(preset="dp"))
    model = bert.build(checkpoint.config, jax.default_backend(), heads=Heads(mlm=False, nsp=False))
    layers = chosen_layers(":", checkpoint.config.num_hidden_layers)
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        vectors = {}
        with jax.set_mesh(of):
            params, _ = pretrained.placed(checkpoint, model, of, seed=0)
            ask = functools.partial(asked, layers=layers, pool="", normalize=False)
            step = inference.step(model, ask)
            for split, rows in task.splits.items():
                results = inference.each_batch(
                    step,
                    params,
                    of,
                    rows,
                    32,
                    checkpoint.vocabulary.special_ids["pad"],
                    checkpoint.config.max_position_embeddings,
                )
                shown = inference.shown(results, rows.examples, f"vectors of {split}", screen)
                place = pathlib.Path(folder) / f"{split}.npy"
                dims = (len(rows.token_ids), len(layers.places), checkpoint.config.hidden_size)
                vectors[split] = _in_a_file(shown, rows, place, dims)
        yield vectors


def _in_a_file(
    results: inference.Results, rows: EncodedRows, place: pathlib.Path, dims: tuple[int, ...]
) -> np.ndarray:
    held = np.lib.format.open_memmap(place, "w+", np.float32, dims)
    for index_B, outputs in results:
        for row, of_row in zip(index_B, outputs[VECTORS], strict=True):
            start, end = rows.offsets[row : row + 2]
            held[start:end] = of_row[: end - start]
    return held


def batch_of(
    rows: EncodedRows, vectors_TKD: np.ndarray, index_B: np.ndarray, layers: Layers
) -> dict[str, np.ndarray]:
    """The vectors of some rows, zeros behind each, with its length and the labels."""
    starts, ends = rows.offsets[index_B], rows.offsets[index_B + 1]
    seq_len = seq_len_for(int((ends - starts).max()))
    places = list(layers.places)
    dims = (len(index_B), seq_len, len(places), vectors_TKD.shape[2])
    vectors_BSKD = np.zeros(dims, np.float32)
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        vectors_BSKD[row, : end - start] = vectors_TKD[start:end][:, places]
    fields = rows.batch(index_B, seq_len, 0)
    labels = {name: fields[name] for name in rows.token_labels}
    return {"vectors": vectors_BSKD, "lengths": (ends - starts).astype(np.int32), **labels}


def _logits(params: bilstm.Params, batch: Mapping[str, jax.Array], is_joined: bool) -> jax.Array:
    vectors = batch["vectors"]
    if is_joined:  # side by side: one layer, K times as wide
        vectors = vectors.reshape(*vectors.shape[:2], 1, -1)
    return bilstm.logits(params, vectors, batch["lengths"])


def learn(
    task: Task, vectors: Vectors, features: str, layers: int, training: Training, screen: Screen
) -> Result:
    """Train on one kind of FEATURES, and keep the epoch that is best on dev."""
    text, is_joined = FEATURES[features]
    chosen = chosen_layers(text, layers)
    rows, held = task.splits["train"], vectors["train"]
    steps_per_epoch = -(-rows.examples // training.batch_size)
    steps = steps_per_epoch * training.epochs
    rate = optax.linear_schedule(training.learning_rate, 0.0, steps)
    tx = optax.chain(optax.clip_by_global_norm(_CLIP_NORM), optax.adam(rate))
    mixed, width = len(chosen.places), held.shape[2]
    if is_joined:
        mixed, width = 1, mixed * width
    key = jax.random.key(training.seed)
    params: Any = bilstm.init(key, mixed, width, training.units, task.classes)
    opt_state = tx.init(params)
    step, forward = _compiled(tx, is_joined)
    stream = ExampleStream(rows, training.seed, training.batch_size, 0)
    best, main = Result(features, 0, {task.main_score: -1.0}, {}), task.main_score
    dev = task.dev_splits[0]
    with screen.spinning(f"{features}: compiling") as show:
        for number in range(steps):
            positions = number * training.batch_size + np.arange(training.batch_size)
            batch = batch_of(rows, held, stream.locate(positions)[1], chosen)
            params, opt_state, loss = step(params, opt_state, batch)
            show(f"{features}: step {number + 1:,} of {steps:,}")
            epoch, left = divmod(number + 1, steps_per_epoch)
            if left:
                continue
            logits = {dev: _of_split(forward, params, task.splits[dev], vectors[dev], chosen)}
            scores = task.score(dev, logits[dev])
            screen.say(f"{features}  epoch {epoch}  loss {loss:.3f}  {main} {scores[main]:.4f}")
            if scores[main] > best.scores[main]:
                for split in task.splits.keys() - {"train", dev}:
                    of = task.splits[split], vectors[split]
                    logits[split] = _of_split(forward, params, *of, chosen)
                best = Result(features, epoch, scores, logits)
    return best


def _compiled(
    tx: optax.GradientTransformation, is_joined: bool
) -> tuple[jax.stages.Wrapped, jax.stages.Wrapped]:
    """A step of training, (params, opt_state, batch) -> the same and the loss; and the logits."""

    def loss(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        found = _logits(params, batch, is_joined)
        nll = optax.softmax_cross_entropy_with_integer_labels(found, batch["label_ids"])
        weights = batch["label_weights"]
        return jnp.sum(nll * weights) / jnp.maximum(jnp.sum(weights), 1.0)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any, batch: Mapping[str, jax.Array]) -> tuple[Any, Any, Any]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step, jax.jit(functools.partial(_logits, is_joined=is_joined))


def _of_split(
    forward: jax.stages.Wrapped,
    params: bilstm.Params,
    rows: EncodedRows,
    vectors_TKD: np.ndarray,
    layers: Layers,
) -> np.ndarray:
    """float32[N,S,C], the longest rows first through the model."""
    order = np.argsort(-rows.lengths_N, kind="stable")

    def results() -> inference.Results:
        for start in range(0, len(order), 64):
            index_B = order[start : start + 64]
            batch = batch_of(rows, vectors_TKD, index_B, layers)
            inputs = {name: batch[name] for name in ("vectors", "lengths")}
            yield index_B, {"logits": np.asarray(forward(params, inputs))}

    return inference.collected(results(), rows.examples)["logits"]
