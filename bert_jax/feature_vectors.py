"""Which vectors of a row are its features: layers, and how a row's vectors become one.

Dimensions: B rows of a batch, S sequence, K chosen layers, D width; T tokens and R rows of a group.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.attention import unpadded
from bert_jax.models.bert import Bert
from data_pipeline.finetune import EncodedRows

CLS, MEAN = "cls", "mean"
POOLS = (CLS, MEAN)
VECTORS = "vectors"
_SLICE = re.compile(r"(-?\d+)?:(-?\d+)?")
_NUMBERS = re.compile(r"-?\d+(,-?\d+)*")
_SMALLEST_NORM = 1e-12  # a vector of zeros stays one


@dataclasses.dataclass(frozen=True)
class Layers:
    """Some of the L + 1 lists of vectors that a model gives: its embeddings and each layer's."""

    numbers: tuple[int, ...]  # as they are called in the output: -1 is the last, 0 the embeddings
    places: tuple[int, ...]  # the same counted from 0, the embeddings
    is_one: bool  # a number, not a list: the vectors have no dimension K


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows with their vectors, in the order of the lines."""

    first_line: int  # of all lines, from 0
    rows: EncodedRows
    vectors: np.ndarray  # float32[T,D] or [T,K,D]; pooled: float32[R,D] or [R,K,D]


def chosen_layers(text: str, layers: int) -> Layers:
    """Read --layers as Python reads an index: "-1", "-2,-1", "-4:" or "0:3" of L + 1.

    Raises:
      ValueError: something else, a number that no layer has, or no layer at all.
    """
    known = (
        f"the checkpoint has {layers} layers: 0 is the embeddings, 1 to {layers} and -{layers} to "
        f"-1 are the layers, -4: the last four, -2,-1 a list"
    )
    text = text.replace(" ", "")
    if found := _SLICE.fullmatch(text):
        start, end = (None if bound is None else int(bound) for bound in found.groups())
        places = list(range(layers + 1))[start:end]
        from_the_end = text.startswith("-")
        numbers = [place - layers - 1 if from_the_end else place for place in places]
        if start is not None and not -layers - 1 <= start <= layers:
            numbers = []
    elif _NUMBERS.fullmatch(text):
        numbers = [int(number) for number in text.split(",")]
    else:
        raise ValueError(f"--layers is {text!r}, which is no number, list or range; {known}")
    if not numbers or any(not -layers - 1 <= number <= layers for number in numbers):
        raise ValueError(f"--layers is {text!r}, but {known}")
    places = [number % (layers + 1) for number in numbers]
    return Layers(tuple(numbers), tuple(places), bool(re.fullmatch(r"-?\d+", text)))


def asked(
    bert: Bert, batch: Mapping[str, jax.Array], layers: Layers, pool: str, normalize: bool
) -> dict[str, jax.Array]:
    """The vectors of a batch: float32[B,S,D], [B,D] pooled, with K before D for several layers.

    cls is the vector of [CLS] as the layer has it, not the pooler's; mean that of all vectors that
    are not padding, of [CLS] and [SEP] too. normalize divides each by its length.

    Source of mean and normalize: sentence-transformers, models/Pooling.py and Normalize.py.
    """
    mask_BS = batch["input_mask"]
    hidden = bert.hidden_layers(batch["input_ids"], batch["segment_ids"], unpadded(mask_BS))
    kept = [_pooled(hidden[place], mask_BS, pool) for place in layers.places]
    vectors = kept[0] if layers.is_one else jnp.stack(kept, axis=-2)
    if normalize:
        length = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / jnp.maximum(length, _SMALLEST_NORM)
    return {VECTORS: vectors}


def _pooled(hidden_BSD: jax.Array, mask_BS: jax.Array, pool: str) -> jax.Array:
    hidden_BSD = hidden_BSD.astype(jnp.float32)
    if pool == CLS:
        return hidden_BSD[:, 0]
    if pool == MEAN:
        tokens_B1 = jnp.sum(mask_BS, axis=1, keepdims=True)
        return jnp.sum(hidden_BSD * mask_BS[:, :, None], axis=1) / tokens_B1
    return hidden_BSD


def in_order(
    results: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
    rows: EncodedRows,
    is_pooled: bool,
) -> np.ndarray:
    """The vectors of a group of rows as Group has them, without padding."""
    lengths_R = np.diff(rows.offsets)
    vectors = np.empty(0, np.float32)
    for index_B, outputs in results:
        found = outputs[VECTORS]
        if not vectors.size:
            count = rows.examples if is_pooled else int(rows.offsets[-1])
            vectors = np.empty((count, *found.shape[1 if is_pooled else 2 :]), np.float32)
        if is_pooled:
            vectors[index_B] = found
            continue
        for row, of_row in zip(index_B, found, strict=True):
            start, length = rows.offsets[row], lengths_R[row]
            vectors[start : start + length] = of_row[:length]
    return vectors
