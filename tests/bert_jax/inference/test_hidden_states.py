"""Which layers are chosen, how rows are pooled, and where the vectors of a line end up."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.inference.hidden_states import (
    Extraction,
    Layers,
    choose_layers,
    collect_vectors,
    compute_vectors,
    slide,
)
from data_pipeline.labeled.rows import build_rows
from data_pipeline.vocab.template import make_bert_template

CLS, SEP = 2, 3
BERT = make_bert_template({"cls": CLS, "sep": SEP})

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
    assert choose_layers(" -1 , 0 ", 6).numbers == (-1, 0)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("7", "-8", "-1,7", "3:3", "-9:", "7:"), "--layers is '{}', but the checkpoint "),
        (
            ("", "last", "1.5", "::2", "1;2", "-", "1 2", "-2 -1", "- 1"),
            "not a number, list or range; the checkpoint ",
        ),
    ],
)
def test_layers_that_are_not_there_are_refused(texts, words):
    for text in texts:
        with pytest.raises(ValueError, match=words.format(text) + ONE_TO_SIX):
            choose_layers(text, 6)


def test_another_pool_and_a_negative_stride_are_refused():
    with pytest.raises(ValueError, match="pool is 'max'; it must be mean, cls, or empty"):
        Extraction(Layers((-1,), is_single=True), "max", False, 24, 0, batch_size=4)
    with pytest.raises(ValueError, match="stride is -1; it must be 0 or more"):
        Extraction(Layers((-1,), is_single=True), "mean", False, 24, -1, batch_size=4)


class Spoken:
    """A model that says what it is told to: L + 1 arrays of B rows."""

    def __init__(self, hidden_LBSD):
        self.hidden_LBSD = hidden_LBSD

    def encode_layers(self, rows):
        return list(jnp.asarray(self.hidden_LBSD))


@pytest.fixture
def spoken():
    hidden_LBSD = np.random.default_rng(2).normal(size=(4, 3, 5, 7)).astype(np.float32)
    mask_BS = (np.arange(5) < np.array([[5], [2], [1]])).astype(np.int32)
    batch = dict.fromkeys(("input_ids", "segment_ids", "input_mask"), jnp.asarray(mask_BS))
    return hidden_LBSD, mask_BS, batch


@pytest.mark.slow
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
    np.testing.assert_array_equal(vectors(last_two, "", False), tokens_BSKD)
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
    windows = slide(rows, 9, 3, BERT)
    assert windows.rows is rows
    np.testing.assert_array_equal(
        collect_vectors(batches, windows, is_pooled=False), spread(number_of)
    )
    pooled = [
        (np.array([1, 2]), {"vectors": spread([11.0, 12.0])}),
        (np.array([0]), {"vectors": spread([10.0])}),
    ]
    np.testing.assert_array_equal(
        collect_vectors(pooled, windows, is_pooled=True), spread([10.0, 11, 12])
    )


LONG = [CLS, *range(10, 21), SEP]  # 11 tokens
# Of 11 tokens, 5 at a time and 3 apart: first token, number of tokens.
SPANS = [(0, 5), (3, 5), (6, 5)]


def test_a_long_row_is_cut_into_windows_with_marks_of_their_own():
    """A short row, a long one, a pair that is longer than a window, another short one."""
    pair = ([CLS, 7, 7, 7, SEP, 8, 8, 8, SEP], 5)
    rows = build_rows([([CLS, 5, SEP], 3), (LONG, 13), pair, ([CLS, SEP], 2)])
    windows = slide(rows, 7, 3, BERT)
    parts = np.split(windows.rows.token_ids, windows.rows.offsets[1:-1])
    long = [[CLS, *range(10 + first, 10 + first + length), SEP] for first, length in SPANS]
    expected = [[CLS, 5, SEP], *long, [CLS, 7, 7, 7, SEP, 8, 8, 8, SEP], [CLS, SEP]]
    assert [part.tolist() for part in parts] == expected
    assert windows.rows.second_starts.tolist() == [3, 7, 7, 7, 5, 2]
    assert windows.row_W.tolist() == [0, 1, 1, 1, 2, 3]
    assert slide(rows, 7, 0, BERT).rows is rows and slide(rows, 13, 3, BERT).rows is rows


@pytest.mark.parametrize("is_normalized", [False, True])
def test_the_pooled_vector_of_a_long_row_is_the_mean_by_tokens(is_normalized):
    """Windows of 7, 7 and 5 tokens; the row of one window keeps its vector to the bit."""
    rows = build_rows([([*LONG[:-3], SEP], 11), ([CLS, 5, SEP], 3)])
    windows = slide(rows, 7, 3, BERT)
    rng = np.random.default_rng(4)
    means_WKD = rng.normal(size=(4, 2, 3)).astype(np.float32)
    lengths = np.linalg.norm(means_WKD, axis=-1, keepdims=True)
    unit = means_WKD / lengths
    outputs = {"vectors": unit, "lengths": lengths} if is_normalized else {"vectors": means_WKD}
    order = np.array([3, 0, 2, 1])[: len(windows.row_W)]
    outputs = {name: array[order] for name, array in outputs.items()}
    vectors = collect_vectors([(order, outputs)], windows, is_pooled=True)
    counts = np.diff(windows.rows.offsets)[:-1]
    assert counts.tolist() == [7, 7, 5]
    long = np.einsum("w,wkd->kd", counts / 19, means_WKD[:3].astype(np.float64))
    if is_normalized:
        long /= np.linalg.norm(long, axis=-1, keepdims=True)
    np.testing.assert_allclose(vectors[0], long, rtol=1e-5)
    np.testing.assert_array_equal(vectors[1], (unit if is_normalized else means_WKD)[3])
