"""Which layers are chosen, how rows are pooled, and where the vectors of a line end up."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference.hidden_states import Layers, choose_layers, collect_vectors, compute_vectors
from data_pipeline.labelled.rows import build_rows

ONE_TO_SIX = "has 6 layers: 0 is the embeddings, 1 to 6 and -6 to -1 are the layers"


@pytest.mark.parametrize(
    "text", ["-1", "0", "6", "-7", "-4:", "-2,-1", "0:3", ":", ":2", "-3:-1", "2,0", "-1:"]
)
def test_layers_are_chosen_as_python_indexes_a_list(text):
    every = [f"layer {place}" for place in range(7)]
    wanted = eval(f"every[{text}]") if "," not in text else [every[int(i)] for i in text.split(",")]
    layers = choose_layers(text, 6)
    assert layers.is_single == isinstance(wanted, str)
    assert [every[number] for number in layers.numbers] == (
        [wanted] if layers.is_single else wanted
    )


def test_layers_keep_the_numbers_that_they_were_asked_by():
    assert choose_layers("-4:", 6).numbers == (-4, -3, -2, -1)
    assert choose_layers("0:2", 6).numbers == (0, 1)
    assert choose_layers("-1, 0", 6).numbers == (-1, 0)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("7", "-8", "-1,7", "3:3", "-9:", "7:"), "--layers is '{}', but the checkpoint "),
        (("", "last", "1.5", "::2", "1;2", "-"), "no number, list or range; the checkpoint "),
    ],
)
def test_layers_that_are_not_there_are_refused(texts, words):
    for text in texts:
        with pytest.raises(ValueError, match=words.format(text) + ONE_TO_SIX):
            choose_layers(text, 6)


class Spoken:
    """A model that says what it is told to: L + 1 arrays of B rows."""

    def __init__(self, hidden_LBSD):
        self.hidden_LBSD = hidden_LBSD

    def encode_layers(self, input_ids_BS, segment_ids_BS, visible):
        return list(jnp.asarray(self.hidden_LBSD))


@pytest.fixture
def spoken():
    hidden_LBSD = np.random.default_rng(2).normal(size=(4, 3, 5, 7)).astype(np.float32)
    mask_BS = (np.arange(5) < np.array([[5], [2], [1]])).astype(np.int32)
    batch = dict.fromkeys(("input_ids", "segment_ids", "input_mask"), jnp.asarray(mask_BS))
    return hidden_LBSD, mask_BS, batch


def test_pooled_vectors_are_those_of_numpy(spoken):
    hidden_LBSD, mask_BS, batch = spoken
    last_two = choose_layers("-2:", 3)

    def vectors(layers, pool, normalize):
        return compute_vectors(Spoken(hidden_LBSD), batch, layers, pool, normalize)["vectors"]

    lengths_B = mask_BS.sum(axis=1)
    means_BKD = np.stack([hidden_LBSD[2:, b, : lengths_B[b]].mean(axis=1) for b in range(3)])
    np.testing.assert_allclose(vectors(last_two, "mean", False), means_BKD, atol=1e-6)
    unit_BKD = means_BKD / np.sqrt((means_BKD**2).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(vectors(last_two, "mean", True), unit_BKD, atol=1e-6)
    first = Layers((0,), is_single=True)
    np.testing.assert_allclose(vectors(first, "cls", False), hidden_LBSD[0, :, 0], atol=1e-6)
    tokens_BSKD = hidden_LBSD[2:].transpose(1, 2, 0, 3)
    np.testing.assert_array_equal(vectors(last_two, None, False), tokens_BSKD)
    # A vector of zeros has no direction, and no NaN.
    found = compute_vectors(Spoken(0 * hidden_LBSD), batch, first, "mean", True)["vectors"]
    np.testing.assert_array_equal(found, np.zeros((3, 7)))


@pytest.mark.parametrize("dims", [(3,), (2, 3)])
def test_vectors_stand_in_the_order_of_the_lines(dims):
    rows = build_rows([([2, 3], 2), ([2, 8, 9, 3], 4), ([2, 5, 3], 3)])
    number_of = np.arange(9, dtype=np.float32)

    def spread(numbers):
        return np.broadcast_to(
            np.asarray(numbers)[(..., *[None] * len(dims))], (*np.shape(numbers), *dims)
        )

    batches = [
        (np.array([1, 2]), {"vectors": spread([[2.0, 3, 4, 5], [6, 7, 8, 99]])}),
        (np.array([0]), {"vectors": spread([[0.0, 1, 99]])}),
    ]
    np.testing.assert_array_equal(
        collect_vectors(batches, rows, is_pooled=False), spread(number_of)
    )
    pooled = [
        (np.array([1, 2]), {"vectors": spread([11.0, 12.0])}),
        (np.array([0]), {"vectors": spread([10.0])}),
    ]
    np.testing.assert_array_equal(
        collect_vectors(pooled, rows, is_pooled=True), spread([10.0, 11, 12])
    )
