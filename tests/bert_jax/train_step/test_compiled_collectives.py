"""What the devices of v5e:4x4 and v5e:8x8 exchange in compiled steps, by sums over sizes."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

import jax
import pytest

from tests.bert_jax.compile_collectives import MODEL, ROWS, SEQ_LEN, STEPS

ROOT = pathlib.Path(__file__).resolve().parents[3]
# jax 0.10 forgets how weights and gradients lie on the model axis where they enter and leave a
# shard_map over the other axes, and gathers them; jax 0.12 does not.
FORGETS_THE_MODEL_AXIS = jax.__version_info__ < (0, 12)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="needs the extra [plan]: pip install libtpu",
    ),
]


@functools.cache
def compile_steps():
    """Facts of the steps, by name, from one process."""
    command = [sys.executable, "-m", "tests.bert_jax.compile_collectives", *STEPS]
    settings = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    environment = os.environ | settings | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    facts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {one["name"]: one for one in facts}


def compiled(name):
    return compile_steps()[name]


def params(name, **of):
    """The parameters of which these facts are true."""
    return [
        one
        for one in compiled(name)["parameters"]
        if all(one[fact] == value for fact, value in of.items())
    ]


def found(name, kind, devices=None):
    """Arrays of all collectives of a kind, among so many devices: (dtype, size) -> how many."""
    return Counter(
        (dtype, size)
        for one in compiled(name)["exchanged"]
        if one["kind"] == kind and devices in (None, one["devices"])
        for dtype, size in one["arrays"]
        if size > 1  # sums of losses and weights, and squares of norms
    )


def sizes(of, dtype, parts="model_parts"):
    return Counter((dtype, one["size"] // one[parts]) for one in of)


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_exchanged_in_a_loop(name):
    assert not any(one["in_a_loop"] for one in compiled(name)["exchanged"])


def sent_as_one(name):
    """Sizes of the sharded arrays; the kernels of queries, keys and values of a layer are one."""
    arrays = Counter()
    for one in params(name):
        if one["batch_parts"] > 1:
            arrays[re.sub("query|key|value", "", one["name"])] += one["size"]
    return Counter(("bf16", size) for size in arrays.values())


@pytest.mark.parametrize("name", ["zero1", "slices"])
def test_shards_are_gathered_and_summed_inside_a_slice_beside_the_work(name):
    assert found(name, "all-gather", 16) >= sizes(params(name, batch_parts=16), "bf16")
    assert found(name, "all-to-all", 16) == sent_as_one(name)
    assert not found(name, "reduce-scatter")
    sums = [one for one in compiled(name)["exchanged"] if one["kind"] == "all-to-all"]
    assert all(one["is_asynchronous"] for one in sums)


def test_on_64_chips_matrices_are_gathered_and_summed_beside_the_work():
    """The compiler refuses asynchronous all-to-alls there, and alone gathers as an all-reduce."""
    exchanged = compiled("chips64")["exchanged"]
    beside = [one for one in exchanged if one["is_asynchronous"]]
    sums = [one["arrays"] for one in beside if one["kind"] == "all-reduce"]
    # Gradients of less than a megabyte are joined, and wait.
    matrices = Counter({one: n for one, n in sent_as_one("chips64").items() if one[1] >= 2**19})
    assert Counter(tuple(array) for (array,) in sums) == matrices
    gathered = found("chips64", "all-gather", 64)
    assert gathered == sizes(params("chips64", batch_parts=64), "bf16")
    # Those of the word table and of what the first layer reads first have nothing beside them.
    overlapped = sum(
        size for one in beside if one["kind"] == "all-gather" for _, size in one["arrays"]
    )
    assert overlapped > 0.5 * sum(size for _, size in gathered.elements())
    assert not found("chips64", "all-to-all")
    assert not found("chips64", "reduce-scatter")


def test_between_slices_each_chip_sends_the_part_of_the_gradients_that_it_keeps():
    elements = sum(one["size"] / one["batch_parts"] for one in params("slices"))
    sent = sum(
        size
        for one in compiled("slices")["exchanged"]
        if one["kind"].startswith("network")
        for _, size in one["arrays"]
    )
    assert 0.9 * elements < sent < 1.1 * elements


def test_data_parallel_adds_each_gradient_up_once_for_two_micro_batches():
    assert STEPS["dp"][2] == 2
    matrices, others = (params("dp", is_matrix=kind) for kind in (True, False))
    assert found("dp", "all-reduce", 16) == sizes(matrices, "bf16") + sizes(others, "f32")
    assert {one["kind"] for one in compiled("dp")["exchanged"]} == {"all-reduce"}


def test_tensor_parallel_adds_up_in_float32_on_request_what_it_holds():
    matrices, others = (params("tp", is_matrix=kind) for kind in (True, False))
    of_a_device = sizes(matrices, "f32") + sizes(others, "f32")
    assert found("tp", "all-reduce", 8) == of_a_device


def test_a_model_axis_adds_hidden_vectors_up_in_bfloat16():
    hidden = ("bf16", ROWS * SEQ_LEN * MODEL.hidden_size)
    # Forward: of attention and of the MLP; backward: at the inputs of the MLP, and of the
    # queries, keys and values.
    assert found("tp", "all-reduce", 2)[hidden] == 2 + 4
    table = ("bf16", 1024 * MODEL.hidden_size)  # words are looked up in the whole table
    gathered = found("tp", "all-gather", 2)
    assert gathered[table] == 1
    if FORGETS_THE_MODEL_AXIS:
        del gathered[table]
        assert gathered == sizes(params("tp", model_parts=2), "f32", "batch_parts")
    else:
        assert gathered == {table: 1}
