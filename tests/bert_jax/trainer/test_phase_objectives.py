"""A run whose phases learn differently: causal first, then masked words and next sentences.

They turn by other rotary bases, too, as ModernBERT's and Ettin's long rows do.
"""

import dataclasses
import json

import pytest

from bert_jax.config import CheckpointConfig, EvalConfig, Phase
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import refuse_causal
from bert_jax.logging import plots
from bert_jax.train_step.objectives import CAUSAL, MLM_NSP
from tests.bert_jax.small_runs import (
    LOGGED_OFTEN,
    assert_stops_change_nothing,
    compiled_once,
    lines_of,
    prepare,
    score_heldout,
    small_config,
    train,
    whole,
)

__all__ = ["compiled_once", "whole"]  # fixtures

pytestmark = pytest.mark.long
SIZES = {"seq_len": 16, "batch_size": 16, "max_predictions_per_seq": 3}
THETAS = (40.0, 9000.0)


@pytest.fixture(scope="module")
def plain(tiny_store):
    return small_config(
        tiny_store,
        phases=(
            Phase(steps=7, objective="causal", **SIZES),
            Phase(steps=6, global_rope_theta=THETAS[1], **SIZES),
        ),
        eval=EvalConfig(every_steps=4, examples=21),
        checkpoint=CheckpointConfig(keep_every_steps=7),
        **LOGGED_OFTEN,
    )


@pytest.fixture(scope="module")
def config(plain):
    """Rotary positions, and attention that looks at places from the start."""
    changes = {"position_embedding_type": "rotary", "initializer_range": 0.5}
    model = dataclasses.replace(plain.model, global_rope_theta=THETAS[0], **changes)
    return dataclasses.replace(plain, model=model)


def numbers(workdir, split):
    """The lines of metrics, by step, without what depends on the clock."""
    return {line["step"]: line for line in lines_of(workdir) if line["split"] == split}


def test_each_phase_is_trained_and_evaluated_by_its_own_objective(config, whole):
    workdir, summary = whole.workdir, whole.summary
    causal = {"causal_loss", "causal_accuracy"}
    masked = {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    lines = numbers(workdir, "train")
    # Step 7 ends the causal phase: no line averages the losses of two objectives.
    assert list(lines) == [3, 6, 7, 9, 12]
    for step, line in lines.items():
        terms = causal if step <= 7 else masked
        assert {key for key in line if key.endswith(("_loss", "_accuracy"))} == terms
        losses = sum(line[key] for key in terms if key.endswith("_loss"))
        assert line["loss"] == pytest.approx(losses)
    heldout = numbers(workdir, "heldout")
    for step, line in heldout.items():
        assert ("unigram_causal_loss" in line, "unigram_mlm_loss" in line) == (step <= 7, step > 7)
    assert heldout[7]["causal_loss"] > 0 and "heldout_causal_loss" not in summary
    assert summary["heldout_mlm_loss"] == heldout[13]["mlm_loss"]
    panels = plots.list_panels(lines_of(workdir))
    assert panels[:6] == [
        f"{term}_{kind}" for term in ("causal", "mlm", "nsp") for kind in ("loss", "accuracy")
    ]
    assert plots.draw_curves(workdir, config.phases) is not None
    setup = prepare(config, workdir)
    assert list(setup.parts.objectives) == [CAUSAL, MLM_NSP]
    assert setup.parts.untrained == ()
    assert not load.load(str(workdir)).config.is_causal
    assert load.load(f"orbax:{workdir}@7").config.is_causal


@pytest.mark.parametrize(("step", "index", "loss"), [(7, 0, "causal_loss"), (13, 1, "mlm_loss")])
def test_a_checkpoint_is_read_with_the_base_it_was_trained_with(config, whole, step, index, loss):
    saved = load.load(f"orbax:{whole.workdir}@{step}")
    assert saved.config.global_rope_theta == THETAS[index]
    expected = numbers(whole.workdir, "heldout")[step][loss]
    assert score_heldout(config, saved)[loss] == pytest.approx(expected, rel=1e-5)
    other = dataclasses.replace(saved.config, global_rope_theta=THETAS[1 - index])
    turned = score_heldout(config, dataclasses.replace(saved, config=other))
    assert abs(turned[loss] / expected - 1) > 1e-3


def test_a_run_stopped_at_the_change_resumes_bit_for_bit(config, whole, tmp_path):
    assert_stops_change_nothing(config, whole.workdir, tmp_path / "run", (7,))


def test_a_causal_run_is_exported_as_a_decoder_and_refused_as_a_masked_model(plain, tmp_path):
    config = dataclasses.replace(plain, phases=plain.phases[:1])
    summary = train(config, tmp_path / "run")
    assert summary["heldout_causal_loss"] < 5.3
    saved = load.load(str(tmp_path / "run"))
    assert saved.config.is_causal
    target = export.parse_target(f"hf:{tmp_path / 'hf'}")
    assert export.find_missing(saved, target) == ()
    export.write(saved, target, ())
    scores = score_heldout(config, saved)
    for name in ("causal_loss", "causal_accuracy", "causal_perplexity"):
        assert scores[name] == pytest.approx(summary[f"heldout_{name}"], rel=1e-5)
    assert scores["unigram_causal_loss"] == pytest.approx(summary["unigram_causal_loss"])
    with pytest.raises(ValueError, match=r"reads from left to right .*give --store"):
        refuse_causal(saved, "so give --store")
    settings = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert settings["architectures"] == ["BertLMHeadModel"] and settings["is_decoder"] is True
    assert "text-generation" in (tmp_path / "hf" / "README.md").read_text()
    assert load.load(f"hf:{tmp_path / 'hf'}").config == saved.config
    with pytest.raises(ValueError, match="Google's code computes no other"):
        target = export.parse_target(f"google:{tmp_path / 'google'}/")
        export.check_exportable(saved, target)
