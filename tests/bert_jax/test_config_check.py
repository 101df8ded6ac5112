"""One clear sentence for each contradiction between settings."""

import dataclasses

import pytest

from bert_jax import config_check
from bert_jax.config import ComputeConfig, Config, ModelConfig, OptimConfig, Phase
from data_pipeline.options import PretrainOptions

PHASE = Phase(seq_len=64, steps=10, batch_size=16, max_predictions_per_seq=9)


def changed(**settings):
    return dataclasses.replace(
        Config(phases=(PHASE,), optim=OptimConfig(warmup_steps=2)), **settings
    )


def phase(**settings):
    return changed(phases=(dataclasses.replace(PHASE, **settings),))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (phase(seq_len=513), r"phases\[0\].seq_len is 513; the position table ends at .* = 512"),
        (phase(steps=0), r"phases\[0\].steps is 0; it must be 1 or more"),
        (phase(micro_batches=3), r"micro_batches is 3; it must divide batch_size = 16"),
        (phase(max_predictions_per_seq=62), "from 1 to seq_len - 3 = 61"),
        (phase(restart_warmup_steps=3), "needs a restart_learning_rate"),
        (phase(restart_learning_rate=1e-3), "the first phase has nothing to restart"),
        (
            changed(phases=(PHASE, Phase(16, 5, 16, 2, 1, 1e-3, 5))),
            r"phases\[1\].restart_warmup_steps is 5; the schedule has only 5 steps",
        ),
        (changed(phases=()), "at least one phase"),
        (changed(seed=-1), "config.seed is -1"),
        (changed(model=ModelConfig(hidden_size=100)), "multiple of num_attention_heads = 12"),
        (changed(model=ModelConfig(hidden_act="gelu")), "gelu_tanh.*gelu_erf"),
        (changed(model=ModelConfig(hidden_dropout_prob=1.0)), "from 0 to below 1"),
        (changed(model=ModelConfig(compute_dtype="fp8")), "compute_dtype is 'fp8'"),
        (
            changed(compute=ComputeConfig(layer_norm_variance="one_pass")),
            "compute.layer_norm_variance is 'one_pass'; one of .*'single_pass'",
        ),
        (changed(compute=ComputeConfig(remat="attention")), "remat is 'attention'; one of .*layer"),
        (changed(optim=OptimConfig(name="sgd", warmup_steps=1)), "'sgd'; one of .*'lamb'"),
        (changed(optim=OptimConfig(warmup_steps=10)), "has only 10 steps"),
        (changed(optim=OptimConfig(learning_rate=0.0)), "learning_rate is 0.0; above 0"),
        (
            changed(optim=OptimConfig(layer_rate_decay=1.5, warmup_steps=1)),
            "1.5; above 0 and at most",
        ),
        (
            changed(optim=OptimConfig(layer_rate_decay=0.0, warmup_steps=1)),
            "0.0; above 0 and at most",
        ),
        (
            changed(optim=OptimConfig(unfreeze_every_steps=-1, warmup_steps=1)),
            "unfreeze_every_steps is -1; it must be 0 or more",
        ),
        (changed(data=PretrainOptions(masked_lm_prob=1.5)), "masked_lm_prob is 1.5"),
        (changed(data=PretrainOptions(longest_ngram=2)), "masking is 'token', which has no runs"),
        (changed(data=PretrainOptions(masking="ngram", longest_ngram=17)), "must be from 1 to 16"),
        (changed(log_every_steps=0), "log_every_steps is 0"),
        (
            changed(data=PretrainOptions(segments="doc_sentences")),
            "objective is 'mlm_nsp'.*data.segments is 'doc_sentences', which has none; .*=mlm",
        ),
        (
            changed(data=PretrainOptions(packed_examples=22)),
            r"packed_examples is 22; phases\[0\].seq_len = 64 has room for 21 at most",
        ),
    ],
)
def test_contradictions_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        config_check.check(config)


@pytest.mark.parametrize("segments", ["nsp", "sop", "full_sentences", "doc_sentences"])
def test_mlm_alone_goes_with_all_segments(segments):
    """With nsp it is the paper's "No NSP"."""
    config_check.check(changed(objective="mlm", data=PretrainOptions(segments=segments)))


@pytest.mark.parametrize("segments", ["nsp", "sop"])
def test_pairs_are_enough_for_mlm_nsp(segments):
    config_check.check(changed(data=PretrainOptions(segments=segments, packed_examples=8)))


def test_slots_that_cannot_hold_the_share_of_masks_are_refused():
    words = r"max_predictions_per_seq is 9; a full row of 64 has 25 predictions at .*prob = 0\.4,"
    config_check.check_predictions(changed())
    with pytest.raises(ValueError, match=words):
        config_check.check_predictions(changed(data=PretrainOptions(masked_lm_prob=0.4)))
