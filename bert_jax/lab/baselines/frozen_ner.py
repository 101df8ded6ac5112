"""Find named entities from the vectors of a frozen model, computed once, with a BiLSTM.

Dimensions: B rows of a batch, S sequence, K layers, D width, T tokens of a split.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config.finetune_schema import TaskOptions, with_length
from bert_jax.inference import batches
from bert_jax.inference.hidden_states import VECTORS, choose_layers
from bert_jax.interop import load
from bert_jax.lab.baselines import bilstm
from bert_jax.lab.baselines.settings import Training
from bert_jax.lab.baselines.training import build_optimizer, compile_step
from bert_jax.lab.baselines.vectors import Encoder, open_layers
from bert_jax.logging.console import Screen
from bert_jax.tasks.ner import task as ner
from bert_jax.tasks.task import Scores, Task
from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_json
from data_pipeline.labeled.rows import EncodedRows, ExampleStream, choose_seq_len

# Table 7 of the paper: the layers (as --layers of features.py) and whether they are concatenated.
FEATURES = {
    "embeddings": ("0:1", False),
    "second_to_last": ("-2:-1", False),
    "last": ("-1:", False),
    "weighted_last_four": ("-4:", False),
    "concatenated_last_four": ("-4:", True),
    "weighted_all": ("1:", False),
}
Vectors = Mapping[str, np.ndarray]  # float32[T,K,D] by split


@dataclasses.dataclass(frozen=True)
class Features:
    """Select which of the arrays of a token the BiLSTM reads, mixed or joined."""

    name: str  # a name on the screen
    layers: tuple[int, ...]  # numbers of arrays; -1 is the last
    is_joined: bool


def parse_features(text: str) -> list[str]:
    """Return the kinds of FEATURES in --features, separated by commas or all, each once."""
    kinds = list(FEATURES) if text == "all" else list(dict.fromkeys(text.split(",")))
    for kind in kinds:
        if kind not in FEATURES:
            raise Refused(
                f"--features is {text!r}; {kind!r} is none of {', '.join(FEATURES)}; give some of "
                "them separated by commas, or all"
            )
    return kinds


def open_task(
    address: str, data_dir: str, max_seq_length: int, kinds: Sequence[str]
) -> tuple[Encoder, Task]:
    """Open the vectors of a checkpoint, of all layers, and the files of named entities.

    Raises:
      Refused: they do not fit together, or the vectors do not fit on the disk.
    """
    checkpoint = load.load(address)
    model = checkpoint.config
    positions = model.max_position_embeddings
    if max_seq_length > positions:
        raise Refused(
            f"--max_seq_length is {max_seq_length}; the checkpoint has {positions} positions: give "
            "that or less"
        )
    if model.num_hidden_layers < 4 and any("four" in kind for kind in kinds):
        raise Refused(
            f"--features is {','.join(kinds)!r}, but {address} has {model.num_hidden_layers} "
            f"layers, not four; give others of "
            f"{', '.join(kind for kind in FEATURES if 'four' not in kind)}"
        )
    options = TaskOptions(task="ner", dir=data_dir, max_seq_length=max_seq_length)
    task = ner.open_task(with_length(options, positions), checkpoint.vocabulary)
    encoder = open_layers(checkpoint, ":")
    check_room(task, encoder)
    return encoder, task


def find_entities(
    encoder: Encoder,
    task: Task,
    kinds: Sequence[str],
    training: Training,
    output: pathlib.Path,
    screen: Screen,
) -> None:
    """Train on each kind of features; write scores.json and the predictions into a new folder."""
    output.mkdir(parents=True)
    screen.table("named entities on frozen vectors", task.describe_files(screen.text_width))
    scores_by_kind = {}
    with cache_vectors(encoder, task, screen) as vectors:
        for kind in kinds:
            features = choose_features(kind, encoder.arrays - 1)
            epoch, scores, logits = train_tagger(task, vectors, features, training, screen)
            scores_by_kind[kind] = {"epoch": epoch, **scores}
            (output / kind).mkdir()
            for split, logits_NSC in logits.items():
                task.write_predictions(split, logits_NSC, output / kind)
            write_json(output / "scores.json", scores_by_kind)
    rows = [
        (kind, f"{task.main_score} {scores[task.main_score]:.4f} on dev, epoch {scores['epoch']}")
        for kind, scores in scores_by_kind.items()
    ]
    screen.table("done", [*rows, ("written to", str(output))])


def choose_features(kind: str, layers: int) -> Features:
    """Select what a kind of FEATURES takes of a model's layers."""
    text, is_joined = FEATURES[kind]
    return Features(kind, choose_layers(text, layers).numbers, is_joined)


def check_room(task: Task, encoder: Encoder) -> None:
    """Refuse to start if the disk of temporary files cannot hold the vectors.

    A full disk under a memory-mapped file kills the process without a message.
    """
    tokens = sum(len(rows.token_ids) for rows in task.splits.values())
    needed_bytes = 4 * tokens * encoder.arrays * encoder.width
    folder = tempfile.gettempdir()
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise Refused(
            f"{folder} has {free_bytes / 1e9:,.2f} GB free, and the vectors of all layers take "
            f"{needed_bytes / 1e9:,.2f} GB until the end; free space, or name a folder on another "
            "disk by the environment variable TMPDIR"
        )


@contextlib.contextmanager
def cache_vectors(encoder: Encoder, task: Task, screen: Screen) -> Iterator[Vectors]:
    """Compute the vectors of all splits, in files that are deleted at the end.

    Source: Devlin et al. 2019, section 5.3.
    """
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        vectors = {}
        for split, rows in task.splits.items():
            label = f"vectors of {split}"
            results = batches.report_progress(encoder.run(rows), rows.examples, label, screen)
            path = pathlib.Path(folder) / f"{split}.npy"
            dims = (len(rows.token_ids), encoder.arrays, encoder.width)
            vectors_TKD = np.lib.format.open_memmap(path, "w+", np.float32, dims)
            for index_B, outputs in results:
                for row, vectors_SKD in zip(index_B, outputs[VECTORS], strict=True):
                    start, end = rows.offsets[row : row + 2]
                    vectors_TKD[start:end] = vectors_SKD[: end - start]
            vectors[split] = vectors_TKD
        yield vectors


def build_batch(
    rows: EncodedRows, vectors_TKD: np.ndarray, index_B: np.ndarray, features: Features
) -> dict[str, np.ndarray]:
    """Build a batch of some rows: their vectors padded with zeros, their lengths and labels."""
    starts, ends = rows.offsets[index_B], rows.offsets[index_B + 1]
    seq_len = choose_seq_len(int((ends - starts).max()))
    dims = (len(index_B), seq_len, len(features.layers), vectors_TKD.shape[2])
    vectors_BSKD = np.zeros(dims, np.float32)
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        vectors_BSKD[row, : end - start] = vectors_TKD[start:end][:, features.layers]
    if features.is_joined:  # one layer, K times as wide
        vectors_BSKD = vectors_BSKD.reshape(*dims[:2], 1, -1)
    fields = rows.batch(index_B, seq_len, 0)
    labels = {name: fields[name] for name in rows.token_labels}
    return {"vectors": vectors_BSKD, "lengths": (ends - starts).astype(np.int32), **labels}


def train_tagger(
    task: Task, vectors: Vectors, features: Features, training: Training, screen: Screen
) -> tuple[int, Scores, dict[str, np.ndarray]]:
    """Train on some layers' vectors; return the epoch that is best on dev, counted from 1.

    Also returns the scores of that epoch, and its logits float32[N,S,C] of every split but train.
    """
    rows, vectors_TKD = task.splits["train"], vectors["train"]
    steps_per_epoch = -(-rows.examples // training.batch_size)
    steps = steps_per_epoch * training.epochs
    tx = build_optimizer(training.learning_rate, steps)
    example = build_batch(rows, vectors_TKD, np.zeros(1, np.int64), features)["vectors"]
    key, (mixed, width) = jax.random.key(training.seed), example.shape[2:]
    params: Any = bilstm.init_params(key, mixed, width, training.units, task.classes)
    state = params, tx.init(params)
    step = compile_step(_mean_loss, tx)

    def predict_split(split: str) -> np.ndarray:
        return _split_logits(state[0], task.splits[split], vectors[split], features)

    stream = ExampleStream(rows, training.seed, training.batch_size, 0)
    dev, main = task.dev_splits[0], task.main_score
    best: tuple[int, Scores, dict[str, np.ndarray]] = 0, {main: -1.0}, {}
    with screen.spinning(f"{features.name}: compiling") as show:
        for epoch in range(1, training.epochs + 1):
            for number in range((epoch - 1) * steps_per_epoch, epoch * steps_per_epoch):
                (index_B,) = stream.examples_of_steps(number, number + 1)
                state, loss = step(state, build_batch(rows, vectors_TKD, index_B, features))
                show(f"{features.name}: step {number + 1:,} of {steps:,}")
            logits = {dev: predict_split(dev)}
            scores = task.score(dev, logits[dev])
            line = f"{features.name}  epoch {epoch}  loss {loss:.3f}  {main} {scores[main]:.4f}"
            screen.print(line)
            if scores[main] > best[1][main]:
                logits |= {
                    each: predict_split(each) for each in task.splits.keys() - {"train", dev}
                }
                best = epoch, scores, logits
    return best


_compute_logits = jax.jit(bilstm.compute_logits)


def _mean_loss(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    logits_BSC = bilstm.compute_logits(params, batch["vectors"], batch["lengths"])
    nll = optax.softmax_cross_entropy_with_integer_labels(logits_BSC, batch["label_ids"])
    weights = batch["label_weights"]
    return jnp.sum(nll * weights) / jnp.maximum(jnp.sum(weights), 1.0)


def _split_logits(
    params: bilstm.Params, rows: EncodedRows, vectors_TKD: np.ndarray, features: Features
) -> np.ndarray:
    """Compute float32[N,S,C] logits of a split; the longest rows go first."""
    order = np.argsort(-rows.lengths_N, kind="stable")

    def results() -> batches.Results:
        for start in range(0, len(order), 64):
            index_B = order[start : start + 64]
            batch = build_batch(rows, vectors_TKD, index_B, features)
            logits_BSC = _compute_logits(params, batch["vectors"], batch["lengths"])
            yield index_B, {"logits": np.asarray(logits_BSC)}

    return batches.collect(results(), rows.examples)["logits"]
