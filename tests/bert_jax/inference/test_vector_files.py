"""The same vectors in three formats, read back by NumPy, pyarrow and json."""

import json
import pathlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from bert_jax.inference.hidden_states import Group, choose_layers
from bert_jax.inference.vector_files import choose_format, open_writer
from data_pipeline.labeled.rows import build_rows

PIECES = ["[CLS]", "[SEP]", "caf\u00e9", "##s", "\u732b"]
ROWS = [build_rows([([0, 2, 3, 1], 4), ([0, 1], 2)]), build_rows([([0, 4, 1, 3, 1], 3)])]
TOKENS = [["[CLS]", "caf\u00e9", "##s", "[SEP]"], ["[CLS]", "[SEP]"]]
TOKENS.append(["[CLS]", "\u732b", "[SEP]", "##s", "[SEP]"])


@pytest.fixture(params=["-1", "-2:"])
def layers(request):
    return choose_layers(request.param, 2)


@pytest.fixture(params=[False, True], ids=["tokens", "pooled"])
def is_pooled(request):
    return request.param


@pytest.fixture
def vectors(layers, is_pooled):
    """float32[N or T, 7], or with two layers before the seven."""
    count = 3 if is_pooled else 11
    dims = (7,) if layers.is_single else (2, 7)
    return np.random.default_rng(1).normal(size=(count, *dims)).astype(np.float32)


@pytest.fixture
def written(layers, is_pooled, vectors, tmp_path):
    def write_as(kind):
        path = tmp_path / "out"
        cut = 2 if is_pooled else 6
        with open_writer(path, kind, PIECES, layers, is_pooled) as write:
            write(Group(0, ROWS[0], vectors[:cut]))
            write(Group(2, ROWS[1], vectors[cut:]))
        return path

    return write_as


def of_lines(array):
    return np.split(array, [4, 6])


def test_npz_has_vectors_tokens_and_where_each_line_begins(written, vectors, is_pooled):
    with np.load(written("npz")) as found:
        assert found.files == (["vectors"] if is_pooled else ["vectors", "tokens", "offsets"])
        assert found["vectors"].dtype == np.float32
        np.testing.assert_array_equal(found["vectors"], vectors)
        if not is_pooled:
            assert found["tokens"].tolist() == [token for line in TOKENS for token in line]
            assert found["offsets"].dtype == np.int64
            assert found["offsets"].tolist() == [0, 4, 6, 11]


def test_parquet_has_a_row_a_line(written, vectors, layers, is_pooled):
    table = pq.read_table(written("parquet"))
    assert table["line"].to_pylist() == [0, 1, 2]
    assert table.schema.metadata[b"layers"] == (b"-1" if layers.is_single else b"-2,-1")
    if is_pooled:
        np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), vectors)
        return
    assert table["tokens"].to_pylist() == TOKENS
    for got, wanted in zip(table["vectors"].to_pylist(), of_lines(vectors), strict=True):
        np.testing.assert_array_equal(np.array(got, np.float32), wanted)


def test_json_lines_have_googles_names(written, vectors, layers, is_pooled):
    lines = [json.loads(line) for line in written("jsonl").read_text("utf-8").splitlines()]
    assert [line["linex_index"] for line in lines] == [0, 1, 2]

    def values(layers_of_one):
        assert [layer["index"] for layer in layers_of_one] == list(layers.numbers)
        found = [layer["values"] for layer in layers_of_one]
        return found[0] if layers.is_single else found

    if is_pooled:
        np.testing.assert_allclose([values(line["layers"]) for line in lines], vectors, atol=6e-7)
        return
    assert [[f["token"] for f in line["features"]] for line in lines] == TOKENS
    for line, wanted in zip(lines, of_lines(vectors), strict=True):
        assert line.keys() == {"linex_index", "features"}
        got = [values(feature["layers"]) for feature in line["features"]]
        np.testing.assert_allclose(got, wanted, atol=6e-7)


def test_the_format_is_the_outputs_end():
    assert choose_format(pathlib.Path("a/b.NPZ")) == "npz"
    with pytest.raises(ValueError, match=r"--output is b\.csv, which has no known ext.* jsonl$"):
        choose_format(pathlib.Path("b.csv"))
