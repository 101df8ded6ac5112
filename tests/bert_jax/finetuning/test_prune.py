"""Neurons that leave in the middle of a fine-tuning: which, from every array, and once for all."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import finetune
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.reader import read_arrays
from bert_jax.config.finetune_schema import FinetunePhase, FinetuneRun, PruneConfig
from bert_jax.config.phases import split_into_rounds
from bert_jax.config.schema import MeshConfig
from bert_jax.finetuning.prune import choose_neurons, keep_neurons, score_neurons
from bert_jax.interop import export, load
from bert_jax.parallel.mesh import check_divides
from bert_jax.train_step.objectives import Objective, Term, encode_batch
from data_pipeline.io import Refused
from tests.bert_jax.finetuning.test_setup import build, config, lines, run, run_until_cut_off
from tests.bert_jax.tiny_models import CONFIG, MODEL, random_batch, setting
from tests.bert_jax.train_step.gradients import draw, on_mesh

__all__ = ["config"]  # a fixture

GATED = dataclasses.replace(
    CONFIG,
    model=dataclasses.replace(MODEL, num_hidden_layers=1, gated_mlp=True, hidden_act="silu"),
)


def normalize(x, norm):
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + MODEL.layer_norm_eps)
    return scaled * norm["scale"] + norm["bias"]


def compute_loss(params, batch, reader_D, gate_F):
    """The model in NumPy, each neuron's output times its gate; its attention puts out a bias."""
    embeddings, layer = params["embeddings"], params["layers"]["00"]
    x = embeddings["word"]["embedding"][batch["input_ids"]]
    x = x + embeddings["position"]["embedding"][: x.shape[1]]
    x = x + embeddings["segment"]["embedding"][batch["segment_ids"]]
    x = normalize(x, embeddings["layer_norm"])
    x = normalize(x + layer["attention"]["output"]["bias"], layer["attention"]["layer_norm"])
    mlp = layer["mlp"]
    units, gated = (
        x @ mlp[name]["kernel"] + mlp[name]["bias"] for name in ("intermediate", "gated")
    )
    units = units / (1 + np.exp(-units)) * gated * gate_F
    x = normalize(x + units @ mlp["output"]["kernel"] + mlp["output"]["bias"], mlp["layer_norm"])
    return np.mean((x @ reader_D) * batch["input_mask"])


@pytest.mark.slow
def test_importance_is_the_square_of_the_slope_of_each_neurons_gate():
    tiny = setting(GATED, 1)
    rng = np.random.default_rng(3)
    params = jax.tree.map(np.float64, draw(tiny.model, 0.2))
    output = params["layers"]["00"]["attention"]["output"]
    output["kernel"] = np.zeros_like(output["kernel"])
    reader_D = rng.normal(0, 1, MODEL.hidden_size)
    batches = [random_batch(seed, batch_size=4) for seed in (1, 2)]

    def slope(batch, neuron):
        ends = []
        for step in (1e-5, -1e-5):
            gate_F = np.ones(MODEL.intermediate_size)
            gate_F[neuron] += step
            ends.append(compute_loss(params, batch, reader_D, gate_F))
        return (ends[0] - ends[1]) / 2e-5

    expected_F = [
        np.mean([slope(batch, neuron) ** 2 for batch in batches])
        for neuron in range(MODEL.intermediate_size)
    ]
    objective = Objective(
        lambda batch: {"read": jnp.float32(batch["input_mask"].size)},
        lambda bert, batch, dropout: {
            "read": Term(
                jnp.sum(encode_batch(bert, batch, dropout) @ reader_D * batch["input_mask"]), None
            )
        },
    )
    placed = on_mesh(jax.tree.map(np.float32, params), tiny)
    scores = score_neurons(tiny.model, objective, placed, batches)
    np.testing.assert_allclose(scores["00"], expected_F, rtol=1e-3, atol=1e-9)
    best_F = choose_neurons(scores["00"], 40)
    assert best_F.tolist() == sorted(np.argsort(expected_F)[-40:])


@pytest.mark.slow
def test_parameters_and_moments_lose_the_same_neurons_on_a_mesh():
    """The mesh cuts neurons in two, and weights over the batch axis as well."""
    whole = setting(GATED, 4, preset="zero1+tp")
    numbers = itertools.count(1)
    filled = jax.tree.map(
        lambda leaf: np.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape) * next(numbers),
        jax.eval_shape(whole.init_state),
    )
    kept = {"00": np.array([1, 2, 50, 87])}
    fewer = dataclasses.replace(GATED.model, intermediate_size=4)
    small = setting(dataclasses.replace(GATED, model=fewer), 4, preset="zero1+tp")
    placed = jax.device_put(filled, whole.where)
    found = keep_neurons(placed, whole.model.declared, kept, small.where)
    assert jax.tree.map(lambda leaf: leaf.sharding, found) == small.where
    axes = {"intermediate/kernel": 1, "intermediate/bias": 0, "gated/kernel": 1, "gated/bias": 0}
    cut = 0
    before = name_leaves(filled)
    for path, leaf in name_leaves(found).items():
        part = path.partition("/mlp/")[2]
        axis = axes | {"output/kernel": 0}
        expected = before[path]
        if part in axis:
            expected, cut = expected.take(kept["00"], axis[part]), cut + 1
        np.testing.assert_array_equal(leaf, expected, err_msg=path)
    assert cut == 3 * 5  # parameters, means and squares


def split(steps, first, **prune):
    phase = FinetunePhase(seq_len=19, steps=steps, intermediate_size=first)
    rounds = split_into_rounds(phase, PruneConfig(**prune))
    return [(each.steps, each.intermediate_size) for each in rounds]


def test_rounds_are_equally_far_apart_and_all_sizes_divide_alike():
    assert split(100, 3072, intermediate_size=0) == [(100, 3072)]
    sizes = [(25, 3072), (25, 2304), (50, 1536)]
    assert split(100, 3072, intermediate_size=1536, rounds=2) == sizes
    # 22 to 7 in steps of 1, 30 to 10 in steps of 2: a mesh of two devices divides all of them.
    sizes = [(20, 22), (20, 17), (20, 12), (15, 7)]
    assert split(75, 22, intermediate_size=7, rounds=3, share=0.8) == sizes
    assert [size for _, size in split(9, 30, intermediate_size=10, rounds=3)] == [30, 24, 18, 10]


@pytest.mark.parametrize(
    ("steps", "prune", "words"),
    [
        (99, {"intermediate_size": 22}, r"prune\.intermediate_size is 22, .* has 22"),
        (99, {"intermediate_size": 9, "rounds": 14}, r"prune\.rounds is 14, .* 13 rounds"),
        (6, {"intermediate_size": 9, "share": 0.5}, r"prune\.rounds is 4, .* take 3 rounds"),
    ],
)
def test_rounds_that_remove_nothing_are_refused(steps, prune, words):
    with pytest.raises(Refused, match=words):
        split(steps, 22, **prune)


def test_a_round_whose_neurons_a_mesh_does_not_divide_is_refused():
    prune = PruneConfig(intermediate_size=24, rounds=2)
    phases = split_into_rounds(FinetunePhase(seq_len=19, steps=9, intermediate_size=48), prune)
    assert [each.intermediate_size for each in phases] == [48, 40, 24]
    model = dataclasses.replace(MODEL, num_attention_heads=3, intermediate_size=48)
    mesh = MeshConfig(preset="tp", model_size=3)
    pruned = FinetuneRun(model=model, phases=phases, prune=prune, mesh=mesh)
    with pytest.raises(Refused, match=r"prune\.rounds is 2, and 40 neurons .* 3 devices"):
        check_divides(pruned, 3)


@pytest.mark.long
@pytest.mark.parametrize(
    "cut_at", [40, pytest.param(21, marks=pytest.mark.long, id="before neurons leave")]
)
def test_a_pruned_run_resumes_anywhere_and_is_read_back_in_its_size(
    config, tmp_path, monkeypatch, cut_at
):
    pruned = dataclasses.replace(
        config,
        epochs=4.0,
        init_layers="1",
        prune=PruneConfig(intermediate_size=6, rounds=1, share=0.4),
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    setup, summary = run(pruned, whole)
    assert [each.steps for each in setup.config.phases] == [21, 31]
    assert [each.intermediate_size for each in setup.config.phases] == [22, 6]
    run_until_cut_off(pruned, cut, monkeypatch, step=cut_at)
    run(pruned, cut)
    left, right = (read_arrays(of / "checkpoints", summary["steps"]) for of in (whole, cut))
    assert left["params/layers/00/mlp/output/kernel"].shape == (6, 14)
    assert not any("layers/01" in name for name in left)
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)
    rates = [line["learning_rate"] for line in lines(whole, "train")]
    assert all(after < before for before, after in itertools.pairwise(rates[1:]))  # one schedule
    # As predict and an export read it, at its end and where it had more neurons.
    assert finetune.write_predictions(build(pruned, whole), summary["steps"])
    target = export.parse_target(f"hf:{tmp_path / 'hf'}")
    checkpoint = load.load(str(whole))
    export.write(export.keep_supported(checkpoint, target), target, ())
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (written["num_hidden_layers"], written["intermediate_size"]) == (1, 6)
    again = load.load(f"hf:{tmp_path / 'hf'}")
    jax.tree.map(np.testing.assert_array_equal, again.params["layers"], checkpoint.params["layers"])
    assert load.load(f"orbax:{whole}@20").config.intermediate_size == 22
    assert build(config, tmp_path / "not_pruned").resize is None
    with pytest.raises(ValueError, match=r"prune\.rounds = 1, this config says 2"):
        build(dataclasses.replace(pruned, prune=PruneConfig(6, 2, 0.4)), whole)
