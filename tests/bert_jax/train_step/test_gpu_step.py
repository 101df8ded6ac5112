"""The training step lowered for NVIDIA GPUs without one: its attention and its collectives."""

import dataclasses
import re
import types
from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from bert_jax.config import ComputeConfig, Config, MeshConfig, ModelConfig
from bert_jax.model import bert
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step import mup, objectives, optimizers, schedule, state, step
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import row_shape

LAYERS, SEQ_LEN, ROWS, PREDICTIONS = 2, 128, 16, 20
MODEL = ModelConfig(
    hidden_size=128,
    num_hidden_layers=LAYERS,
    num_attention_heads=2,
    intermediate_size=256,
    vocab_size=999,
    attention_probs_dropout_prob=0.0,
)
A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"


def count_operations(card, devices, setting="auto"):
    """Count the kernels and collectives of a step for these GPUs of a host."""
    config = Config(
        model=MODEL, mesh=MeshConfig(preset="zero1"), compute=ComputeConfig(attention=setting)
    )
    phase = dataclasses.replace(
        config.phases[0],
        seq_len=SEQ_LEN,
        batch_size=ROWS,
        micro_batches=1,
        max_predictions_per_seq=PREDICTIONS,
    )
    config = dataclasses.replace(config, phases=(phase,))
    (objective,) = objectives.find_each(config)
    gpus = AbstractMesh(
        mesh_lib.mesh_shape(config.mesh, devices),
        mesh_lib.AXES,
        axis_types=(AxisType.Explicit,) * len(mesh_lib.AXES),
        abstract_device=AbstractDevice(card, 108, "gpu"),
    )
    # As many CPU devices, since an abstract mesh may not change the size of the one that is set.
    stand_ins = mesh_lib.make_mesh(config.mesh, jax.devices()[:devices])
    with jax.set_mesh(stand_ins), jax.sharding.use_abstract_mesh(gpus):
        model = bert.build(MODEL, "gpu", 1, config.compute, objective.heads)
        tx = optimizers.make_optimizer(config.optim, mup.find_scales(config))
        shardings = state.make_shardings(model, tx, gpus, config.mesh)
        take_step = step.make_train_step(model, objective, tx, config, phase, shardings)
        batch = row_shape(PretrainOptions(), SEQ_LEN, PREDICTIONS).arrays(ROWS)
        arguments = (
            state.make_abstract_state(model, tx, shardings),
            mesh_lib.abstract_batch(batch, gpus),
            schedule.Pace(np.float32(0.0), np.bool_(True)),
        )
        lowered = take_step.trace(*arguments).lower(lowering_platforms=("cuda",))
    collectives = "all_to_all|all_reduce|all_gather|reduce_scatter"
    return Counter(
        re.findall(rf"stablehlo\.({collectives})|@(__cudnn\$fmha\w+)", lowered.as_text())
    )


@pytest.fixture(autouse=True)
def cudnn_is_installed(monkeypatch):
    """Give jax a version of cuDNN to lower for, which it would ask the library."""
    version = types.SimpleNamespace(cudnn_get_version=lambda: 91_000)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", version)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(n, marks=pytest.mark.long) for n in (1, 2)] + [8])
def test_each_layer_has_the_kernel_both_ways_and_gradients_are_scattered(devices):
    """Of a mesh of GPUs the step reduce-scatters gradients, whatever this process runs on."""
    counts = count_operations(A100, devices)
    forward, backward = "__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"
    assert counts["", forward] == counts["", backward] == LAYERS
    assert (counts["reduce_scatter", ""] > 0) == (devices > 1)
    assert counts["all_to_all", ""] == 0


@pytest.mark.long
@pytest.mark.parametrize(("card", "setting"), [(V100, "auto"), (A100, "plain")])
def test_older_cards_and_plain_attention_have_no_kernel(card, setting):
    assert not any(kernel for _, kernel in count_operations(card, 1, setting))
