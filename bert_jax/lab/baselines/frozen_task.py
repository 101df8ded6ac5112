"""Learn a task on token counts or frozen vectors, and score it as fine-tuning does.

Classification and regression: a linear model. Tagging: the BiLSTM of frozen_ner.py.

Dimensions: N rows, C classes, K arrays of a token, D width of each, V vocabulary.
"""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from bert_jax.config.finetune_schema import FinetuneConfig, with_length
from bert_jax.inference import batches
from bert_jax.inference.hidden_states import VECTORS
from bert_jax.lab.baselines import frozen_ner
from bert_jax.lab.baselines import training as training_lib
from bert_jax.lab.baselines.frozen_ner import Features
from bert_jax.lab.baselines.settings import Tagger, Training
from bert_jax.lab.baselines.vectors import Encoder, open_encoder
from bert_jax.lab.runs import claim_folder
from bert_jax.logging.console import Screen, duration
from bert_jax.logging.metrics_writer import PREDICTIONS
from bert_jax.tasks.registry import open_task
from bert_jax.tasks.task import CLASSIFY, REGRESS, TAG, Task, write_splits
from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_json
from data_pipeline.labeled.rows import EncodedRows
from data_pipeline.vocab.template import Template

_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_HELDOUT_SHARE = 0.1  # share of the training rows that chooses the penalty
_TOKENS_AT_ONCE = 1 << 14  # vectors read at once from the memory map
_MIN_SIZE = 1e-12  # keeps vectors of zeros at zero
_LOWEST_LOGIT = -1e3  # logit of a class without training rows

Matrix = Any  # float32[N,F], dense or sparse
Logits = dict[str, np.ndarray]  # keys: every split but train


@dataclasses.dataclass(frozen=True)
class Learning:
    """Hold a task and the frozen vectors that it is learned on, in a claimed folder."""

    kind: str
    task: Task
    encoder: Encoder
    training: Training
    folder: pathlib.Path

    def run(self, screen: Screen) -> None:
        """Learn the task unless the folder has its summary; show the scores."""
        task, started = self.task, time.monotonic()
        screen.table(f"{task.name} on {self.kind}", task.describe_files(screen.text_width))
        summary = training_lib.read_summary(self.folder)
        if summary is None:
            logits = learn(task, self.encoder, self.training, screen)
            write_splits(task, logits, self.folder / PREDICTIONS)
            majority = {f"majority_dev_{name}": value for name, value in task.baseline.items()}
            summary = {"kind": self.kind, "task": task.name, **score(task, logits), **majority}
            summary["seconds"] = round(time.monotonic() - started, 1)
            write_json(self.folder / training_lib.SUMMARY, summary)
        guessed = task.baseline[task.main_score]
        baseline = f"{task.main_score} {guessed:.4f} without reading the text"
        hidden = ("seconds", *(name for name in summary if name.startswith("majority_")))
        rows = [(name, str(value)) for name, value in summary.items() if name not in hidden]
        secs = duration(summary["seconds"])
        screen.table(
            "done", [*rows, ("baseline", baseline), ("time", secs), ("in", str(self.folder))]
        )


def open_learning(
    kind: str,
    addresses: Sequence[str],
    config: FinetuneConfig,
    tagger: Tagger,
    folder: pathlib.Path,
) -> Learning:
    """Open the vectors and the files of a task, and claim the folder.

    Raises:
      Refused: they do not fit together, or the folder holds something else.
    """
    encoder = open_encoder(kind, addresses)
    data = with_length(config.data, encoder.positions)
    task = open_task(data, encoder.vocabulary)
    check_task(task, encoder, kind)
    training = Training(**dataclasses.asdict(tagger), seed=config.seed)
    settings = {**dataclasses.asdict(data), **dataclasses.asdict(training)}
    record = {"kind": kind, "from": addresses, "digest": encoder.digest, "settings": settings}
    claim_folder(folder, training_lib.RECORD, record, "baseline")
    return Learning(kind, task, encoder, training, folder)


def check_task(task: Task, encoder: Encoder, kind: str) -> None:
    """Refuse a task that these vectors or a linear model cannot learn.

    Raises:
      Refused: the task has choices or spans, or one label; or it has tags and the encoder only
        counts.
    """
    if task.kind not in (CLASSIFY, REGRESS, TAG):
        raise Refused(
            f"{task.name} has choices or spans, which are not learned on frozen vectors; give a "
            "classification, regression or tagging task"
        )
    if task.kind == TAG and not encoder.width:
        raise Refused(
            f"{task.name} has a tag for each word, and {kind} has no vectors of words; give "
            "another kind"
        )
    if task.kind == CLASSIFY and np.ptp(task.splits["train"].labels["label_ids"]) == 0:
        raise Refused(
            f"all training rows of {task.name} have the same label, and a linear model needs two; "
            "add rows of another label"
        )


def learn(task: Task, encoder: Encoder, training: Training, screen: Screen) -> Logits:
    """Train on the training split; return the logits of all other splits for Task.score."""
    if task.kind == TAG:
        return _learn_tags(task, encoder, training, screen)
    has_pairs = bool(np.any(_mark_pairs(task.splits["train"])))
    template = encoder.vocabulary.template
    features = {}
    for split, rows in task.splits.items():
        if encoder.width:
            label = f"vectors of {split}"
            results = batches.report_progress(encoder.run(rows), rows.examples, label, screen)
            features[split] = pool_rows(results, rows, has_pairs, template)
        else:
            size = encoder.vocabulary.size
            features[split] = count_tokens(rows, size, has_pairs, template)
    with screen.spinning("fitting the linear model"):
        return learn_rows(task, features, training.seed, is_counts=not encoder.width)


def _learn_tags(task: Task, encoder: Encoder, training: Training, screen: Screen) -> Logits:
    frozen_ner.check_room(task, encoder)
    features = Features("vectors", tuple(range(encoder.arrays)), is_joined=False)
    with frozen_ner.cache_vectors(encoder, task, screen) as vectors:
        scale_vectors(vectors)
        _, _, logits = frozen_ner.train_tagger(task, vectors, features, training, screen)
    return logits


def scale_vectors(vectors: frozen_ner.Vectors) -> None:
    """Divide each of the K arrays in all splits by its root mean square in train, in place.

    Skip-gram vectors are ten times smaller than a BERT's: unscaled, they learn nothing at the same
    learning rate.
    """
    train_TKD = vectors["train"]
    starts = range(0, len(train_TKD), _TOKENS_AT_ONCE)
    squares = [np.square(train_TKD[i : i + _TOKENS_AT_ONCE]).sum(axis=(0, 2)) for i in starts]
    count = train_TKD.shape[0] * train_TKD.shape[2]
    size_K = np.sqrt(np.sum(squares, axis=0, dtype=np.float64) / count)
    factor_K1 = (1 / np.maximum(size_K, _MIN_SIZE)).astype(np.float32)[:, None]
    for array_TKD in vectors.values():
        for i in range(0, len(array_TKD), _TOKENS_AT_ONCE):
            array_TKD[i : i + _TOKENS_AT_ONCE] *= factor_K1


def _mark_pairs(rows: EncodedRows) -> np.ndarray:
    return rows.second_starts < np.diff(rows.offsets)


def _number_texts(rows: EncodedRows, template: Template) -> np.ndarray:
    """Return the number of each token's text, 0 or 1; -1 for special tokens: int64[T]."""
    lengths_R = np.diff(rows.offsets)
    row_T = np.repeat(np.arange(len(lengths_R)), lengths_R)
    place_T, second_T = np.arange(len(row_T)) - rows.offsets[row_T], rows.second_starts[row_T]
    before, after = template.margins(is_pair=False)
    margins_R3 = np.where(_mark_pairs(rows)[:, None], template.margins(True), (before, 0, after))
    before_T, between_T, after_T = margins_R3[row_T].T
    is_first_T = (before_T <= place_T) & (place_T < second_T - between_T)
    is_text_T = (is_first_T | (place_T >= second_T)) & (place_T < lengths_R[row_T] - after_T)
    return np.where(is_text_T, place_T >= second_T, -1)


def count_tokens(
    rows: EncodedRows, vocab_size: int, has_pairs: bool, template: Template
) -> scipy.sparse.csr_matrix:
    """Count the tokens of each row: [N,V]; of pairs [N,2V], with the second text in the last V."""
    text_T = _number_texts(rows, template)
    row_T = np.repeat(np.arange(rows.examples), np.diff(rows.offsets))[text_T >= 0]
    column_T = (rows.token_ids + vocab_size * text_T)[text_T >= 0]
    shape = (rows.examples, vocab_size * (2 if has_pairs else 1))
    return scipy.sparse.csr_matrix((np.ones(len(row_T), np.float32), (row_T, column_T)), shape)


def pool_rows(
    results: batches.Results, rows: EncodedRows, has_pairs: bool, template: Template
) -> np.ndarray:
    """Average the vectors of each row's text: float32[N,K*D]; of pairs [N,4*K*D].

    The features of a pair are both means, their absolute difference and their product.

    Source of the pair features: Conneau et al. 2017, InferSent, section 3.1.
    """
    text_T = _number_texts(rows, template)
    pooled: list[np.ndarray] = [np.empty(0)] * rows.examples
    for index_B, outputs in results:
        for row, vectors_SKD in zip(index_B, outputs[VECTORS], strict=True):
            span = slice(*rows.offsets[row : row + 2])
            flat = vectors_SKD.reshape(len(vectors_SKD), -1)[: span.stop - span.start]
            texts = [flat[text_T[span] == number] for number in range(1 + has_pairs)]
            first, *second = (text.sum(axis=0) / max(len(text), 1) for text in texts)
            pooled[row] = np.concatenate(
                [first, *(array for b in second for array in (b, np.abs(first - b), first * b))]
            )
    return np.stack(pooled).astype(np.float32)


def learn_rows(task: Task, features: dict[str, Matrix], seed: int, is_counts: bool) -> Logits:
    """Fit a logistic regression, or for numbers a ridge regression; return the logits.

    features has a matrix for each split. The penalty is chosen on a tenth of the training rows;
    then the model is fitted to all of them. Counts become tf-idf, vectors are standardized.
    """
    # Imported here, so that refusals and --help do not wait for scikit-learn.
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = task.splits["train"].labels["label_values" if task.kind == REGRESS else "label_ids"]
    scale = TfidfTransformer(sublinear_tf=True) if is_counts else StandardScaler()
    if task.kind == REGRESS:
        pipeline, name = make_pipeline(scale, Ridge()), "ridge__alpha"
    else:
        pipeline = make_pipeline(scale, LogisticRegression(max_iter=1000))
        name = "logisticregression__C"
    model = _choose_penalty(pipeline, name, features["train"], labels, seed, task.kind)
    logits = {}
    for split, matrix in features.items():
        if split == "train":
            continue
        if task.kind == REGRESS:
            logits[split] = np.asarray(model.predict(matrix), np.float32)[:, None]
            continue
        scores = np.asarray(model.decision_function(matrix), np.float32)
        if scores.ndim == 1:  # two classes: the score of the second
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        logits[split] = np.full((len(scores), task.classes), _LOWEST_LOGIT, np.float32)
        logits[split][:, model.classes_] = scores
    return logits


def _choose_penalty(
    pipeline: Any, name: str, matrix: Matrix, labels_N: np.ndarray, seed: int, kind: str
) -> Any:
    """Choose the penalty, the parameter `name`, on held-out rows; fit the pipeline to all rows."""
    from sklearn.model_selection import GridSearchCV, ShuffleSplit, StratifiedShuffleSplit

    heldout = int(_HELDOUT_SHARE * len(labels_N))
    counts = np.unique(labels_N, return_counts=True)[1] if kind == CLASSIFY else np.array([2])
    if counts.min() < 2 or heldout < len(counts):  # too few rows to hold some out
        return pipeline.fit(matrix, labels_N)
    split = StratifiedShuffleSplit if kind == CLASSIFY else ShuffleSplit
    folds = split(n_splits=1, test_size=_HELDOUT_SHARE, random_state=seed)
    return GridSearchCV(pipeline, {name: list(_PENALTIES)}, cv=folds).fit(matrix, labels_N)


def score(task: Task, logits: Logits) -> dict[str, float]:
    """Score the development splits, with the names of a fine-tuning's summary."""
    return {
        f"heldout_dev_{name}": value
        for split in task.dev_splits
        for name, value in task.score(split, logits[split]).items()
    }
