"""A run whose phases turn by other rotary bases, as ModernBERT's and Ettin's long rows do."""

import dataclasses

import pytest

from bert_jax.config import CheckpointConfig, EvalConfig, OptimConfig, Phase
from bert_jax.interop import load
from tests.bert_jax.small_runs import (  # noqa: F401 (a fixture)
    compiled_once,
    lines_of,
    prepare,
    score_heldout,
    small_config,
    train,
)

pytestmark = pytest.mark.slow
SIZES = {"seq_len": 16, "batch_size": 16, "max_predictions_per_seq": 3}
THETAS = (40.0, 9000.0)


@pytest.fixture(scope="module")
def config(tiny_store):
    config = small_config(
        tiny_store,
        phases=(Phase(steps=2, **SIZES), Phase(steps=2, global_rope_theta=THETAS[1], **SIZES)),
        optim=OptimConfig(learning_rate=3e-3, warmup_steps=1),
        eval=EvalConfig(every_steps=2, examples=21),
        checkpoint=CheckpointConfig(keep_every_steps=2),
        objective="mlm",
    )
    model = dataclasses.replace(
        config.model,
        position_embedding_type="rotary",
        global_rope_theta=THETAS[0],
        initializer_range=0.5,  # attention that looks at places from the start
    )
    return dataclasses.replace(config, model=model)


@pytest.fixture(scope="module")
def workdir(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("whole") / "run"
    train(config, workdir)
    return workdir


@pytest.mark.parametrize(("step", "index"), [(2, 0), (4, 1)])
def test_a_checkpoint_is_read_with_the_base_it_was_trained_with(config, workdir, step, index):
    saved = load.load(f"orbax:{workdir}@{step}")
    assert saved.config.global_rope_theta == THETAS[index]
    (line,) = [
        line for line in lines_of(workdir) if (line["split"], line["step"]) == ("heldout", step)
    ]
    assert score_heldout(config, saved)["mlm_loss"] == pytest.approx(line["mlm_loss"], rel=1e-5)
    other = dataclasses.replace(saved.config, global_rope_theta=THETAS[1 - index])
    turned = score_heldout(config, dataclasses.replace(saved, config=other))
    assert abs(turned["mlm_loss"] / line["mlm_loss"] - 1) > 1e-3
