"""A run of DeBERTa-v3's own pre-training: scored, exported, continued."""

import dataclasses
import json

import numpy as np
import pytest

from bert_jax.config import CheckpointConfig, EvalConfig, Phase
from bert_jax.config.schema import GENERATOR
from bert_jax.inference.fill_mask import guess_tokens, read_question
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import place_masked_lm
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.small_runs import (
    LOGGED_OFTEN,
    begun,
    compiled_once,
    lines_of,
    prepare,
    score_heldout,
    small_config,
    whole,
)

__all__ = ["compiled_once", "whole"]  # fixtures

pytestmark = pytest.mark.long

MODEL = {
    "num_hidden_layers": 2,
    "hidden_act": "gelu_erf",
    "pooler_type": "gelu_erf",
    "type_vocab_size": 0,
    "position_embedding_type": "disentangled",
    "position_buckets": 8,
    "detects_by_cls": True,
    "generator_hidden_size": 32,
    "generator_num_attention_heads": 4,
    "generator_num_hidden_layers": 1,
    "generator_embeddings": "gdes",
    "enhanced_mask_decoder": True,
}


@pytest.fixture(scope="module")
def config(tiny_store):
    plain = small_config(
        tiny_store,
        objective="rtd",
        rtd_weight=10.0,
        rtd_generator_first=True,
        phases=(Phase(seq_len=16, steps=8, batch_size=16, micro_batches=2),),
        eval=EvalConfig(every_steps=4, examples=21),
        checkpoint=CheckpointConfig(every_steps=4),
        **LOGGED_OFTEN,
        data=PretrainOptions(
            store=str(tiny_store),
            segments="full_sentences",
            mask_token_share=1.0,
            random_token_share=0.0,
        ),
    )
    return dataclasses.replace(plain, model=dataclasses.replace(plain.model, **MODEL))


def test_the_generator_alone_scores_and_guesses_as_in_its_run(config, whole):
    generator = load.load(str(whole.workdir), GENERATOR)
    assert "decoder_positions" in generator.params
    last = [line for line in lines_of(whole.workdir) if line["split"] == "heldout"][-1]
    assert score_heldout(config, generator)["mlm_loss"] == pytest.approx(last["mlm_loss"], rel=1e-5)
    words = place_masked_lm(generator)
    question = read_question(words, "The [MASK] is.")
    assert len(guess_tokens(words, [question], 3)[0][0]) == 3


def test_the_encoder_is_exported_and_continued_and_the_generator_kept(config, tmp_path):
    workdir = tmp_path / "first"
    begun(prepare(config, workdir))  # the layout of a run is that of its first weights
    encoder = load.load(str(workdir))
    target = export.parse_target(f"hf:{tmp_path / 'encoder'}")
    differences = export.write(export.keep_supported(encoder, target), target, ())
    assert differences.keys() == {"hidden"} and differences["hidden"] < 1e-6
    settings = json.loads((target.folder / "config.json").read_text())
    assert settings["architectures"] == ["DebertaV2Model"]
    generator = load.load(str(workdir), GENERATOR)
    with pytest.raises(ValueError, match=r"none of transformers' classes .*: orbax:DIR keeps any"):
        export.keep_supported(generator, export.parse_target(f"hf:{tmp_path / 'generator'}"))
    kept = export.parse_target(f"orbax:{tmp_path / 'generator'}")
    export.write(export.keep_supported(generator, kept), kept, ())
    assert load.load(f"orbax:{kept.folder}").config.enhanced_mask_decoder
    again = dataclasses.replace(config, init=f"hf:{target.folder}")
    params = begun(prepare(again, tmp_path / "run")).params
    word = export.keep_supported(encoder, target).params["embeddings"]["word"]["embedding"]
    assert (params["embeddings"]["word"]["embedding"] == 0.0).all()
    table = params[GENERATOR]["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(table[: len(word)], word)
    assert params[GENERATOR]["decoder_positions"]["embedding"].std() > 0.01
