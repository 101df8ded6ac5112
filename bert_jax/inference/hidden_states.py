"""Select the feature vectors of a row: from which layers, pooled or one per token.

Dimensions: B rows of a batch, S sequence, K chosen layers, D width; T tokens and R rows of a group.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import Bert
from data_pipeline.labelled.rows import EncodedRows

CLS, MEAN = "cls", "mean"
POOLS = (CLS, MEAN)
VECTORS = "vectors"
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")
_NUMBERS = re.compile(r"-?\d+(,-?\d+)*")
_SMALLEST_NORM = 1e-12  # a vector of zeros stays one


@dataclasses.dataclass(frozen=True)
class Layers:
    """Some of the L + 1 arrays of hidden vectors of a model: its embeddings and each layer's."""

    numbers: tuple[int, ...]  # as given: -1 is the last layer, 0 the embeddings
    is_single: bool  # a number was asked for, not a list: the vectors have no dimension K


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows with their vectors, in the order of the lines."""

    first_line: int  # of all lines, from 0
    rows: EncodedRows
    vectors: np.ndarray  # float32[T,D] or [T,K,D]; pooled: float32[R,D] or [R,K,D]


def choose_layers(text: str, layers: int) -> Layers:
    """Read --layers as Python reads an index: "-1", "-2,-1", "-4:" or "0:3" of L + 1.

    Raises:
      ValueError: something else, a number that no layer has, or no layer at all.
    """
    known = (
        f"the checkpoint has {layers} layers: 0 is the embeddings, 1 to {layers} and -{layers} to "
        f"-1 are the layers, -4: the last four, -2,-1 a list"
    )
    text = text.replace(" ", "")
    if bounds := _SLICE.fullmatch(text):
        start, end = (None if bound is None else int(bound) for bound in bounds.groups())
        first = -layers - 1 if text.startswith("-") else 0
        numbers = list(range(first, first + layers + 1))[start:end]
        if start is not None and not -layers - 1 <= start <= layers:
            numbers = []
    elif _NUMBERS.fullmatch(text):
        numbers = [int(number) for number in text.split(",")]
    else:
        raise ValueError(f"--layers is {text!r}, which is no number, list or range; {known}")
    if not numbers or any(not -layers - 1 <= number <= layers for number in numbers):
        raise ValueError(f"--layers is {text!r}, but {known}")
    return Layers(tuple(numbers), is_single=bool(re.fullmatch(r"-?\d+", text)))


def compute_vectors(
    bert: Bert, batch: Mapping[str, jax.Array], layers: Layers, pool: str | None, normalize: bool
) -> dict[str, jax.Array]:
    """Return the vectors of a batch: float32[B,S,D], pooled [B,D]; K before D for several layers.

    The pool "cls" takes the layer's vector of [CLS], not the pooler's; "mean" averages the vectors
    of all tokens, [CLS] and [SEP] included. normalize divides each vector by its length.

    Source of mean and normalize: sentence-transformers, models/Pooling.py and Normalize.py.
    """
    mask_BS = batch["input_mask"]
    hidden = bert.encode_layers(batch["input_ids"], batch["segment_ids"], hide_padding(mask_BS))
    kept = [_pool(hidden[number], mask_BS, pool) for number in layers.numbers]
    vectors = kept[0] if layers.is_single else jnp.stack(kept, axis=-2)
    if normalize:
        length = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / jnp.maximum(length, _SMALLEST_NORM)
    return {VECTORS: vectors}


def _pool(hidden_BSD: jax.Array, mask_BS: jax.Array, pool: str | None) -> jax.Array:
    hidden_BSD = hidden_BSD.astype(jnp.float32)
    if pool == CLS:
        return hidden_BSD[:, 0]
    if pool == MEAN:
        tokens_B1 = jnp.sum(mask_BS, axis=1, keepdims=True)
        return jnp.sum(hidden_BSD * mask_BS[:, :, None], axis=1) / tokens_B1
    return hidden_BSD


def collect_vectors(
    results: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
    rows: EncodedRows,
    is_pooled: bool,
) -> np.ndarray:
    """Return the vectors of a group of rows in their own order, without padding, as in Group."""
    lengths_R = np.diff(rows.offsets)
    vectors = np.empty(0, np.float32)
    for index_B, outputs in results:
        batch = outputs[VECTORS]
        if not vectors.size:
            count = rows.examples if is_pooled else int(rows.offsets[-1])
            vectors = np.empty((count, *batch.shape[1 if is_pooled else 2 :]), np.float32)
        if is_pooled:
            vectors[index_B] = batch
            continue
        for row, row_vectors in zip(index_B, batch, strict=True):
            start, length = rows.offsets[row], lengths_R[row]
            vectors[start : start + length] = row_vectors[:length]
    return vectors
