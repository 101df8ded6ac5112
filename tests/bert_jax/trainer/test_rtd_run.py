"""A run of replaced-token detection: trained, stopped, resumed, evaluated, drawn, exported."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import CheckpointConfig, EvalConfig, MeshConfig, Phase
from bert_jax.config.schema import GENERATOR
from bert_jax.inference.fill_mask import guess_tokens, read_question
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import place_masked_lm, place_model, place_params
from bert_jax.logging import plots
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step.objectives import RTD
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.small_runs import (
    LOGGED_OFTEN,
    assert_stops_change_nothing,
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


@pytest.fixture(scope="module")
def config(tiny_store):
    plain = small_config(
        tiny_store,
        objective="rtd",
        phases=(Phase(seq_len=16, steps=12, batch_size=16),),
        eval=EvalConfig(every_steps=6, examples=21),
        checkpoint=CheckpointConfig(keep_every_steps=5),
        **LOGGED_OFTEN,
        data=PretrainOptions(
            store=str(tiny_store),
            segments="doc_sentences",
            mask_token_share=0.85,
            random_token_share=0.0,
        ),
    )
    model = dataclasses.replace(
        plain.model,
        embedding_size=24,
        generator_hidden_size=16,
        generator_embeddings="gdes",
        head_act="gelu_erf",  # the only one that an exported generator has
    )
    return dataclasses.replace(plain, model=model)


def test_both_models_are_in_every_record(config, whole):
    detected = {
        f"rtd_{name}" for name in ("loss", "accuracy", "replaced_share", "replaced_accuracy", "auc")
    }
    lines = lines_of(whole.workdir)
    for line in lines:
        assert detected | {"mlm_loss", "mlm_accuracy"} <= line.keys()
        assert line["loss"] == pytest.approx(line["mlm_loss"] + 50 * line["rtd_loss"])
        assert 0.0 < line["rtd_replaced_share"] < 0.3 and 0.0 <= line["rtd_auc"] <= 1.0
    heldout = [line for line in lines if line["split"] == "heldout"]
    for line in heldout:
        assert line["majority_rtd_accuracy"] == pytest.approx(1 - line["rtd_replaced_share"])
        assert "mlm_perplexity" in line and "rtd_perplexity" not in line
    assert whole.summary["heldout_rtd_auc"] == heldout[-1]["rtd_auc"]
    assert whole.summary["unigram_mlm_loss"] > 0
    assert "a generator of 1 layers of 16" in whole.screen.replace("\n", " ")
    last = next(line for line in whole.screen.splitlines() if line.startswith("held-out at 12"))
    assert "(unigram" in last and "(majority" in last and " auc 0." in last
    panels = plots.list_panels(lines)
    assert panels[:5] == ["mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "rtd_auc"]
    assert plots.draw_curves(whole.workdir, config.phases) is not None


def test_a_stopped_run_ends_as_one_never_stopped(config, whole, tmp_path):
    assert_stops_change_nothing(config, whole.workdir, tmp_path / "run", (8,))


def hidden_of(checkpoint, heads, pick=lambda bound: bound):
    """The last hidden vectors of one of a checkpoint's models, for rows of any tokens."""
    placed = place_model(checkpoint, heads, jax.local_devices()[:1])
    rng = np.random.default_rng(0)
    ids = rng.integers(5, checkpoint.vocabulary.size, (4, 11)).astype(np.int32)
    rows = {"ids": ids, "mask": np.ones_like(ids), "segments": np.zeros_like(ids)}
    rows = mesh_lib.place_batch(rows, placed.mesh)

    @jax.jit
    def run(params, rows):
        bound = pick(placed.model.bind(params))
        return bound.encode(EncoderRows(rows["ids"], rows["segments"], hide_padding(rows["mask"])))

    with jax.set_mesh(placed.mesh):
        return np.asarray(run(placed.params, rows))


@pytest.fixture(params=["gdes", "shared"])
def trained(request, config, whole, tmp_path):
    """A run of either sharing; that of shared tables before its first step."""
    if request.param == "gdes":
        return whole.workdir
    shared = dataclasses.replace(config.model, generator_embeddings="shared")
    begun(prepare(dataclasses.replace(config, model=shared), tmp_path / "shared"))
    return tmp_path / "shared"


def test_each_model_is_exported_as_it_was_trained(trained, tmp_path):
    both = load.load(str(trained), part=None)
    for part, kind, pick in (
        ("discriminator", "ElectraForPreTraining", lambda bound: bound),
        (GENERATOR, "ElectraForMaskedLM", lambda bound: bound.generator),
    ):
        expected = hidden_of(both, RTD.heads, pick)
        alone = load.load(str(trained), part)
        np.testing.assert_allclose(hidden_of(alone, alone.heads), expected, atol=1e-6)
        for scheme in ("hf", "orbax"):
            target = export.parse_target(f"{scheme}:{tmp_path / scheme / part}")
            (tmp_path / scheme).mkdir(exist_ok=True)
            kept = export.keep_supported(alone, target)
            export.check_exportable(kept, target)
            differences = export.write(kept, target, ())
            assert ("replaced-token logits" in differences) == (part != GENERATOR)
            assert all(value < 1e-6 for value in differences.values())
            copy = load.load(f"{scheme}:{target.folder}")
            np.testing.assert_equal(name_leaves(copy.params), name_leaves(alone.params))
        settings = json.loads((tmp_path / "hf" / part / "config.json").read_text())
        assert settings["architectures"] == [kind] and settings["embedding_size"] == 24
    with pytest.raises(ValueError, match=r"has no generator, which only a run .*--part=generator"):
        load.load(f"hf:{tmp_path / 'hf' / 'discriminator'}", GENERATOR)
    with pytest.raises(ValueError, match=r"predicts no words; give its generator: .*--part="):
        place_masked_lm(load.load_masked_lm(f"hf:{tmp_path / 'hf' / 'discriminator'}"))


def test_a_task_begins_with_the_discriminator_and_words_are_guessed_by_the_generator(config, whole):
    workdir = str(whole.workdir)
    checkpoint = load.load(workdir)
    mesh = mesh_lib.make_mesh(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(mesh):
        heads = bert.Heads(mlm=False, nsp=False, classes=3)
        model = bert.build(checkpoint.config, "cpu", heads=heads)
        _, initialized = place_params(checkpoint, model, mesh, seed=0)
    assert {path.split("/")[0] for path in initialized} == {"pooler", "classifier"}
    words = place_masked_lm(load.load_masked_lm(workdir), jax.local_devices()[:1])
    assert words.checkpoint.config.hidden_size == 16
    guesses = guess_tokens(words, [read_question(words, "The [MASK] is.")], 3)
    assert len(guesses[0][0]) == 3
    scores = score_heldout(config, load.load(workdir, GENERATOR))
    assert scores["mlm_loss"] == pytest.approx(whole.summary["heldout_mlm_loss"], rel=1e-5)


def test_a_discriminator_of_others_begins_a_run_with_gdes(config, whole, tmp_path):
    target = export.parse_target(f"hf:{tmp_path / 'electra'}")
    export.write(export.keep_supported(load.load(str(whole.workdir)), target), target, ())
    setup = prepare(dataclasses.replace(config, init=f"hf:{target.folder}"), tmp_path / "run")
    params = begun(setup).params
    ours = load.load(f"hf:{target.folder}").params["embeddings"]
    for table in ("word", "position", "segment"):
        assert (params["embeddings"][table]["embedding"] == 0.0).all()
        base = params["generator"]["embeddings"][table]["embedding"]
        np.testing.assert_array_equal(
            base[: len(ours[table]["embedding"])], ours[table]["embedding"]
        )
    np.testing.assert_array_equal(
        params["embeddings"]["layer_norm"]["scale"], ours["layer_norm"]["scale"]
    )
