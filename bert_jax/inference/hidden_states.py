"""Select the feature vectors of a row: from which layers, pooled or one per token.

A row longer than the model's is computed in windows, whose vectors are joined.

Dimensions: B rows of a batch, S sequence, K chosen layers, D width; T tokens, R rows and W windows
of a group.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.inference import batches
from bert_jax.interop.pretrained import PlacedModel
from bert_jax.model import ops
from bert_jax.model.bert import Bert
from bert_jax.train_step.objectives.objective import make_rows
from data_pipeline.io import Refused
from data_pipeline.labeled.framing import FramedRow, frame
from data_pipeline.labeled.rows import EncodedRows, build_rows
from data_pipeline.labeled.windows import choose_windows, cut_windows
from data_pipeline.vocab.template import Template

VECTORS, LENGTHS = "vectors", "lengths"
CLS, MEAN = "cls", "mean"  # how the vectors of a text become one
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")
_NUMBERS = re.compile(r"-?\d+(,-?\d+)*")
_MIN_NORM = 1e-12  # smallest divisor: a vector of zeros stays zero


@dataclasses.dataclass(frozen=True)
class Layers:
    """Select from the L + 1 arrays of hidden vectors: the embeddings and each layer's output."""

    numbers: tuple[int, ...]  # the given ones: -1 is the last layer, 0 the embeddings
    is_single: bool  # a number was asked for, not a list: the vectors have no dimension K


@dataclasses.dataclass(frozen=True)
class Extraction:
    """Choose the vectors of a text, how the text is cut into rows, and the rows per batch."""

    layers: Layers
    pool: str  # CLS, MEAN, or "" for the vectors of all tokens
    normalize: bool
    max_seq_length: int
    stride: int  # tokens between the starts of windows over a longer text; 0 truncates it
    batch_size: int

    def __post_init__(self) -> None:
        if self.pool not in ("", CLS, MEAN):
            raise Refused(
                f"pool is {self.pool!r}; it must be {MEAN}, {CLS}, or empty for all tokens"
            )
        if self.stride < 0:
            raise Refused(f"stride is {self.stride}; it must be 0 or more")


@dataclasses.dataclass(frozen=True)
class Group:
    """Hold rows with their vectors, in the order of the lines."""

    first_line: int  # counted over all lines from 0
    rows: EncodedRows
    vectors: np.ndarray  # float32[T,D] or [T,K,D]; pooled: float32[R,D] or [R,K,D]


def choose_layers(text: str, layers: int) -> Layers:
    """Read --layers as Python reads an index: "-1", "-2,-1", "-4:" or "0:3" of L + 1.

    Raises:
      Refused: something else, a number that no layer has, or no layer at all.
    """
    known = (
        f"the checkpoint has {layers} layers: 0 is the embeddings, 1 to {layers} and -{layers} to "
        f"-1 are the layers, -4: the last four, -2,-1 a list"
    )
    text = re.sub(r"\s*([,:])\s*", r"\1", text.strip())  # "1 2" is no 12
    if bounds := _SLICE.fullmatch(text):
        start, end = (None if bound is None else int(bound) for bound in bounds.groups())
        first = -layers - 1 if text.startswith("-") else 0
        numbers = list(range(first, first + layers + 1))[start:end]
        if start is not None and not -layers - 1 <= start <= layers:
            numbers = []
    elif _NUMBERS.fullmatch(text):
        numbers = [int(number) for number in text.split(",")]
    else:
        raise Refused(f"--layers is {text!r}, which is not a number, list or range; {known}")
    if not numbers or any(not -layers - 1 <= number <= layers for number in numbers):
        raise Refused(f"--layers is {text!r}, but {known}")
    return Layers(tuple(numbers), is_single=bool(re.fullmatch(r"-?\d+", text)))


def compile_vectors(model: PlacedModel, extraction: Extraction) -> batches.Step:
    """Return the step that computes the chosen vectors; it serves any number of groups."""
    layers, pool, normalize = extraction.layers, extraction.pool, extraction.normalize
    compute = functools.partial(compute_vectors, layers=layers, pool=pool, normalize=normalize)
    return batches.compile_step(model.model, compute)


def compute_groups(
    step: batches.Step,
    model: PlacedModel,
    groups: Iterable[EncodedRows],
    extraction: Extraction,
    advance: Callable[[int], None],
) -> Iterator[Group]:
    """Yield the groups with their vectors; call `advance` with the windows finished so far."""
    first_line = done = 0

    def count(results: batches.Results) -> batches.Results:
        nonlocal done
        for index_B, outputs in results:
            yield index_B, outputs
            done += len(index_B)
            advance(done)

    template = model.vocabulary.template
    for rows in groups:
        windows = slide(rows, extraction.max_seq_length, extraction.stride, template)
        results = batches.run_rows(step, model, windows.rows, extraction.batch_size)
        # No name holds the vectors, so they are freed before the next group is computed.
        yield Group(
            first_line, rows, collect_vectors(count(results), windows, bool(extraction.pool))
        )
        first_line += rows.examples


def compute_vectors(
    bert: Bert, batch: Mapping[str, jax.Array], layers: Layers, pool: str, normalize: bool
) -> dict[str, jax.Array]:
    """Return the vectors of a batch: float32[B,S,D], pooled [B,D]; K before D for several layers.

    With normalize, also returns the lengths before the division: [B,1] or [B,K,1].

    The pool "cls" takes a layer's vector of [CLS], not the pooler's output; "mean" averages the
    vectors of all tokens, [CLS] and [SEP] included. normalize divides each vector by its length.

    Source of mean and normalize: sentence-transformers, models/Pooling.py and Normalize.py.
    """
    mask_BS = batch["input_mask"]
    hidden = bert.encode_layers(make_rows(batch, None))
    cls_positions = batch.get("cls_positions")
    kept = [_pool(hidden[number], mask_BS, cls_positions, pool) for number in layers.numbers]
    vectors = kept[0] if layers.is_single else jnp.stack(kept, axis=-2)
    if normalize:
        length = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        return {VECTORS: vectors / jnp.maximum(length, _MIN_NORM), LENGTHS: length}
    return {VECTORS: vectors}


def _pool(
    hidden_BSD: jax.Array, mask_BS: jax.Array, cls_positions_B: jax.Array | None, pool: str
) -> jax.Array:
    hidden_BSD = hidden_BSD.astype(jnp.float32)
    if pool == CLS:
        return ops.read_positions(hidden_BSD, cls_positions_B)
    if pool == MEAN:
        tokens_B1 = jnp.sum(mask_BS, axis=1, keepdims=True)
        return jnp.sum(hidden_BSD * mask_BS[:, :, None], axis=1) / tokens_B1
    return hidden_BSD


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Hold the rows of a group, each as one or more windows, in the order of the rows.

    The group's tokens start_W[w] to end_W[w] - 1 take the vectors of window w from its position
    place_W[w] on; weight_W[w] is the window's share in the pooled vector of its row.
    """

    rows: EncodedRows  # W rows
    row_W: np.ndarray  # int64
    start_W: np.ndarray  # int64
    end_W: np.ndarray  # int64
    place_W: np.ndarray  # int64
    weight_W: np.ndarray  # float32: the window's tokens over the tokens of all windows of its row


def slide(rows: EncodedRows, most_tokens: int, stride: int, template: Template) -> TextWindows:
    """Cut rows of more than most_tokens tokens into windows, whose starts are `stride` apart.

    Each window has its own special tokens. A token's vector comes from the window in which the
    token has most context; special tokens before the text take theirs from the first window,
    special tokens after it from the last. Without a stride, and for pairs, a row is one window.
    """
    lengths_R = np.diff(rows.offsets)
    is_single_R = rows.second_starts == lengths_R
    if not stride or not np.any(is_single_R & (lengths_R > most_tokens)):
        numbers = np.arange(rows.examples)
        starts, ends, zeros = rows.offsets[:-1], rows.offsets[1:], np.zeros_like(numbers)
        return TextWindows(rows, numbers, starts, ends, zeros, np.ones(rows.examples, np.float32))
    before, after = template.margins(is_pair=False)
    framed: list[FramedRow] = []
    facts: list[tuple[int, int, float]] = []  # row, first token, weight
    window_T: list[np.ndarray] = []
    for row in range(rows.examples):
        start, end = rows.offsets[row : row + 2]
        if not is_single_R[row]:
            framed.append(rows.row(row))
            window_T.append(np.full(end - start, len(facts)))
            facts.append((row, 0, 1.0))
            continue
        text = rows.token_ids[start + before : end - after].tolist()
        spans = cut_windows(len(text), most_tokens - before - after, stride)
        best_T = choose_windows(spans, len(text))
        nearest = [np.zeros(before, np.int64), best_T, np.full(after, len(spans) - 1)]
        window_T.append(np.concatenate(nearest) + len(facts))
        total = sum(length + before + after for _, length in spans)
        for first, length in spans:
            framed.append(frame(text[first : first + length], None, template, most_tokens))
            facts.append((row, first, (length + before + after) / total))
    row_W, first_W, weight_W = (np.array(column) for column in zip(*facts, strict=True))
    # The windows of a row take turns: each has the most context for one stretch of the row.
    numbers = np.arange(len(facts))
    start_W, end_W = (
        np.searchsorted(np.concatenate(window_T), numbers, s) for s in ("left", "right")
    )
    place_W = start_W - rows.offsets[row_W] - first_W
    weight_W = weight_W.astype(np.float32)
    return TextWindows(build_rows(framed), row_W, start_W, end_W, place_W, weight_W)


def collect_vectors(results: batches.Results, windows: TextWindows, is_pooled: bool) -> np.ndarray:
    """Return the vectors of a group of rows in their own order, without padding, as in Group.

    `results` are the outputs of windows. The pooled vector of a row of several windows is their
    mean weighted by tokens, normalized if the windows' vectors are.
    """
    vectors = np.empty(0, np.float32)
    is_normalized = False
    for index_B, outputs in results:
        batch = outputs[VECTORS]
        if not vectors.size:
            count = windows.row_W[-1] + 1 if is_pooled else windows.end_W[-1]
            vectors = np.zeros((count, *batch.shape[1 if is_pooled else 2 :]), np.float32)
        if is_pooled:
            weight_B = windows.weight_W[index_B].reshape(-1, *[1] * (batch.ndim - 1))
            is_normalized = LENGTHS in outputs
            if is_normalized:
                batch = np.where(weight_B < 1, batch * outputs[LENGTHS], batch)
            np.add.at(vectors, windows.row_W[index_B], batch * weight_B)
            continue
        for window, window_vectors in zip(index_B, batch, strict=True):
            start, end, place = (
                array[window] for array in (windows.start_W, windows.end_W, windows.place_W)
            )
            vectors[start:end] = window_vectors[place : place + end - start]
    if is_normalized:
        joined = np.flatnonzero(np.bincount(windows.row_W) > 1)
        length = np.linalg.norm(vectors[joined], axis=-1, keepdims=True)
        vectors[joined] /= np.maximum(length, _MIN_NORM)
    return vectors
