"""Settings: the way through a ConfigDict, and meshes that fit."""

import dataclasses
import importlib
import re
import sys

import pytest
from jax.sharding import PartitionSpec

from bert_jax import config as config_lib
from bert_jax.config import (
    Config,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    StoreFacts,
    validate,
)
from bert_jax.config.finetune_schema import FinetunePhase, FinetuneRun
from bert_jax.model import bert
from bert_jax.model.bert import Heads
from bert_jax.parallel import mesh
from bert_jax.train_step import objectives
from bert_jax.trainer.setup import build_setup
from tests.bert_jax.config.test_validate import changed
from tests.bert_jax.tiny_models import with_setting
from tests.faults.runs import ROOT

CONFIGS = {
    path.stem: importlib.import_module(f"configs.{path.stem}")
    for path in sorted((ROOT / "configs").glob("[a-z]*.py"))
}
EVERY_CONFIG = [
    *((name,) for name in CONFIGS),
    *((name, f"size={size}") for name in CONFIGS for size in getattr(CONFIGS[name], "SIZES", ())),
    *(("electra", f"size={size},embeddings=gdes") for size in CONFIGS["electra"].SIZES),
    *(("quickstart", f"model={model}") for model in CONFIGS["quickstart"].MODELS),
    *((name, f"recipe={recipe}") for name in ("base", "large") for recipe in ("paper", "tokens")),
    *(("large", "recipe=lamb64k"), ("left_to_right", "recipe=no_nsp")),
    *(("modernbert", "masks=falling"), ("auto", "shape=modernbert")),
    *(("continue", f"family={family}") for family in CONFIGS["continue"].RECIPES),
    ("continue", "family=mmbert,first=causal,tokens=1_000_000"),
]


def read(name, *arguments):
    return config_lib.settings_from(Config, CONFIGS[name].get_config(*arguments))


@pytest.mark.parametrize("given", EVERY_CONFIG)
def test_every_config_resolves_and_is_consistent(given):
    config = dataclasses.replace(read(*given), budget="")  # a training resolves its choice
    objectives.find_each(config_lib.resolve(config))
    assert config_lib.settings_from(Config, config_lib.to_config_dict(config)) == config


@pytest.mark.parametrize("given", EVERY_CONFIG)
def test_every_batch_divides_over_the_slice_that_its_config_names(given):
    named, config = CONFIGS[given[0]].__doc__.partition("Slice: ")[2], read(*given)
    for chips in re.findall(r"(\d+)(?: or (\d+))? chips", named.partition("\nCorpus:")[0]):
        for count in filter(None, chips):
            mesh.check_divides(config, int(count))


def test_to_continue_is_to_begin_with_a_checkpoint(tiny_store, tmp_path, monkeypatch):
    config = read("continue")
    assert config.init == "hf:google-bert/bert-base-uncased"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    given = dataclasses.replace(
        config, data=dataclasses.replace(config.data, store=str(tiny_store))
    )
    with pytest.raises(ValueError, match=f"'{config.init}' .*pip install huggingface_hub"):
        build_setup(given, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_continuation_is_as_long_as_its_tokens_and_replays_its_share():
    config = read("continue", "family=mmbert,tokens=262_144_000,first=causal,replay=0.25")
    _, masked, decayed = config.phases
    assert [phase.steps for phase in config.phases] == [900, 900, 200]  # a fifth of 10,000
    assert config_lib.list_objectives(config) == ["causal", "mlm", "mlm"]
    assert (masked.masked_lm_prob, decayed.masked_lm_prob) == (0.15, 0.05)
    assert decayed.restart_learning_rate == config.optim.learning_rate
    assert (config.optim.warmup_steps, config.data.store_weights) == (100, "0.75,0.25")
    for argument in ("family=gpt", "first=left", "tokens=many", "replay=half"):
        with pytest.raises(ValueError, match=argument.split("=")[1]):
            read("continue", argument)


def test_recipes_are_those_of_their_papers():
    config = read("base")
    assert [(p.seq_len, p.steps, p.batch_size) for p in config.phases] == [
        (128, 900_000, 256),
        (512, 100_000, 256),
    ]
    assert (config.optim.learning_rate, config.optim.warmup_steps) == (1e-4, 10_000)
    assert config_lib.total_steps(config) == 1_000_000
    # As many tokens in every step.
    assert {p.seq_len * p.batch_size for p in read("large", "recipe=tokens").phases} == {131_072}
    config = read("large", "recipe=lamb64k")  # NVIDIA's
    first, second = config.phases
    assert (first.batch_size, first.steps) == (65_536, 7038)
    assert (second.batch_size, second.steps) == (32_768, 1563)
    assert second.max_predictions_per_seq == 80
    assert config.optim.warmup_steps / first.steps == pytest.approx(0.2843, abs=1e-4)
    assert second.restart_warmup_steps / second.steps == pytest.approx(0.128, abs=1e-3)


def test_recipes_of_other_encoders_are_those_of_their_papers():
    for size, rate, warmup_steps in (("base", 6e-4, 24_000), ("large", 4e-4, 30_000)):
        config = read("roberta", f"size={size}")  # table 9
        (phase,) = config.phases
        assert (phase.seq_len, phase.steps, phase.batch_size) == (512, 500_000, 8192)
        optim = config.optim
        assert (optim.learning_rate, optim.warmup_steps) == (rate, warmup_steps)
        assert (optim.beta1, optim.beta2, optim.epsilon) == (0.9, 0.98, 1e-6)
        assert (optim.clip_norm, optim.weight_decay) == (0.0, 0.01)
        assert config.data.segments == "full_sentences" and config.data.new_masks_each_epoch
    config = read("albert")
    (phase,) = config.phases
    assert (phase.seq_len, phase.steps, phase.batch_size) == (512, 125_000, 4096)
    assert (config.optim.name, config.optim.learning_rate) == ("lamb", 0.00176)
    assert config.optim.warmup_steps == 3125
    assert (config.data.segments, config.data.masking) == ("sop", "ngram")
    assert config.objective == "mlm_nsp"
    # The rate does not step down after warm-up.
    for name in ("roberta", "distilbert", "minilm", "xlnet"):
        assert not read(name).optim.decay_counts_warmup
    assert config_lib.list_objectives(read("left_to_right")) == ["causal"] * 2
    assert config_lib.list_objectives(read("left_to_right", "recipe=no_nsp")) == ["mlm"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "vocab_size", "heads", "counts"),
    # From transformers' AlbertModel and ModernBertForMaskedLM with these sizes, 5.23; ALBERT's Base
    # by hand: tables 3,906,048 with their norm, their map 99,072, the layer 7,087,872, the pooler
    # 590,592.
    [
        ("albert", 30_000, Heads(mlm=False, nsp=False), [11683584, 17683968, 58724864, 222595584]),
        ("modernbert", 50_368, Heads(mlm=True, nsp=False), [149655232, 395881664]),
        (
            *("ettin", 50_368, Heads(mlm=True, nsp=False)),
            [16913600, 32081344, 68457664, 149655232, 395881664, 1031314112],
        ),
    ],
)
def test_each_size_of_its_vocabulary_has_the_parameters_of_the_original(
    name, vocab_size, heads, counts
):
    for size, count in zip(CONFIGS[name].SIZES, counts, strict=True):
        model = dataclasses.replace(read(name, f"size={size}").model, vocab_size=vocab_size)
        assert bert.build(model, "tpu", heads=heads).parameter_count == count


@pytest.mark.parametrize("tokens", [2_000 * 10**9, 20 * 10**9])
def test_ettins_phases_have_its_tokens_masks_and_rates(tokens):
    """Source: JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard/base."""
    config = read("ettin", f"size=150m,tokens={tokens}")
    *short, long, decayed = config.phases
    seen = [each.steps * each.batch_size * each.seq_len for each in config.phases]
    slack = 0.02 if tokens < 10**12 else 1e-3  # a step of long rows has 38 million tokens
    assert sum(seen) == pytest.approx(tokens, rel=slack)
    assert sum(seen[:-2]) / tokens == pytest.approx(1700 / 2000, rel=slack)
    assert sum(seen[:-3]) / tokens == pytest.approx(50 / 2000, rel=0.02)
    assert [each.masked_lm_prob for each in (short[0], long, decayed)] == [0.3, 0.3, 0.15]
    for each in (long, decayed):  # FlexBertConfig's local_attn_rotary_emb_base of -1 is the other
        assert each.global_rope_theta == each.local_rope_theta == 160_000.0
    _, smallest, _ = read("ettin", f"size=17m,tokens={tokens}").phases[-3:]
    assert (smallest.global_rope_theta, smallest.local_rope_theta) == (160_000.0, 0.0)
    rates = [(p.restart_learning_rate, p.restart_end_learning_rate) for p in (long, decayed)]
    assert rates == [(8e-4, 4e-4), (4e-4, pytest.approx(1.6e-5))]
    assert {each.restart_decay for each in (long, decayed)} == {"one_minus_sqrt"}


@pytest.mark.slow
def test_neobert_has_the_sizes_and_masks_of_its_paper():
    """Layers of 4 x 768^2 + 3 x 768 x 2,048 and two norms, a norm, the table, a bias a word."""
    config = read("neobert")
    model = dataclasses.replace(config.model, vocab_size=30_522)
    layers = 28 * (4 * 768**2 + 3 * 768 * 2048 + 2 * 768)
    count = bert.build(model, "tpu", heads=Heads(mlm=True, nsp=False, pooler=False)).parameter_count
    assert count == layers + 768 + 30_522 * 768 + 30_522
    data = config.data
    assert (data.masked_lm_prob, data.mask_token_share, data.random_token_share) == (0.2, 1.0, 0.0)
    assert {each.seq_len * each.batch_size for each in config.phases} == {2**21}


def test_mmberts_masks_fall_from_phase_to_phase():
    constant, falling = (read("modernbert", f"masks={name}") for name in ("constant", "falling"))
    assert [each.masked_lm_prob for each in falling.phases[-3:]] == [0.3, 0.15, 0.05]
    assert [each.store_temperature for each in falling.phases[-3:]] == [0.7, 0.5, 0.3]
    same = {"masked_lm_prob": 0.3, "store_temperature": 0.0}
    phases = [dataclasses.replace(each, **same) for each in falling.phases]
    assert dataclasses.replace(falling, phases=tuple(phases)) == constant


@pytest.mark.parametrize("tokens", [2_019 * 10**9, 20 * 10**9])
def test_modernberts_phases_have_its_tokens_shares_and_rates(tokens):
    """Source: AnswerDotAI/ModernBERT, yamls of pre-training, extension and decay."""
    config = read("modernbert", f"size=base,tokens={tokens}")
    *short, long, decayed = config.phases
    seen = [each.steps * each.batch_size * each.seq_len for each in config.phases]
    assert sum(seen) == pytest.approx(tokens, rel=1e-3)
    assert sum(seen[:-2]) / tokens == pytest.approx(1719 / 2019, rel=1e-3)
    assert sum(seen[:-3]) / tokens == pytest.approx(50 / 2019, rel=0.02)
    assert [each.batch_size for each in short] == [768, 1536, 2304, 3072, 3840, 4608]
    assert {each.global_rope_theta for each in short} == {0.0}  # the model's, 10,000
    assert long.global_rope_theta == decayed.global_rope_theta == 160_000.0
    assert (long.seq_len, long.batch_size, long.restart_learning_rate) == (8192, 576, 3e-4)
    assert decayed.restart_end_learning_rate == pytest.approx(3e-7)
    assert {each.masked_lm_prob for each in config.phases} == {0.3}
    assert config.eval.masked_lm_prob == 0.15


def test_the_vocabulary_size_comes_from_the_store_or_agrees_with_it():
    assert config_lib.resolve(Config(), store=StoreFacts(8192)).model.vocab_size == 8192
    stated = Config(model=ModelConfig(vocab_size=30_522))
    assert config_lib.resolve(stated, store=StoreFacts(30_522)).model == stated.model
    with pytest.raises(ValueError, match="vocab_size is 30522, the store's vocabulary has 8192"):
        config_lib.resolve(stated, store=StoreFacts(8192))


def test_rows_of_phases_of_one_length_follow_each_other():
    config = Config(phases=(Phase(128, 10, 4), Phase(512, 5, 2), Phase(128, 7, 8)))
    assert [config_lib.first_row(config, i) for i in range(3)] == [0, 0, 40]
    assert [config_lib.phase_start(config, i) for i in range(3)] == [0, 10, 15]
    phases = [config_lib.phase_of_step(config, step) for step in range(23)]
    assert phases == [0] * 11 + [1] * 5 + [2] * 7


@pytest.mark.parametrize(
    ("preset", "sizes", "shape"),
    [
        ("dp", {}, (1, 8, 1, 1)),
        ("zero1", {}, (1, 8, 1, 1)),
        ("fsdp", {}, (1, 1, 8, 1)),
        ("fsdp", {"fsdp_size": 4}, (1, 2, 4, 1)),
        ("tp", {}, (1, 4, 1, 2)),
        ("fsdp+tp", {"model_size": 4}, (1, 1, 2, 4)),
        ("zero1+tp", {}, (1, 4, 1, 2)),
    ],
)
def test_mesh_shapes(preset, sizes, shape):
    assert mesh.mesh_shape(MeshConfig(preset=preset, **sizes), 8) == shape


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"mesh.preset": "ddp"}, "dp, zero1, fsdp, tp"),
        ({"mesh.model_size": 3, "mesh.preset": "tp"}, "try one of [1, 2, 4, 8]"),
        ({"mesh.model_size": 16, "mesh.preset": "tp"}, "devices, 8; try one of"),
        ({"mesh.fsdp_size": 3, "mesh.preset": "fsdp"}, "8 devices left"),
        ({"mesh.num_slices": 3}, "the 8 devices"),
        ({"mesh.model_size": 4, "mesh.preset": "tp", "mesh.num_slices": 4}, "slice, 2; try"),
        ({"phases[0].batch_size": 250}, "try 248 or 256"),
        ({"phases[0].batch_size": 16, "phases[0].micro_batches": 4}, "try 32"),
        ({"model.num_attention_heads": 12, "mesh.preset": "tp", "mesh.model_size": 8}, "8 devices"),
        (
            {
                "model.generator_num_attention_heads": 1,
                **{"model.generator_hidden_size": 64, "mesh.preset": "tp"},
            },
            "2 devices",
        ),
        ({"model.generator_hidden_size": 100, "mesh.preset": "fsdp"}, "8 devices"),
        (
            {
                "distill.relation_heads": 6,
                "objective": "relation_distillation",
                **{"mesh.preset": "tp", "mesh.model_size": 4},
            },
            "4 devices",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_by_the_key_named_first(settings, way_out):
    config = changed()
    for path, value in settings.items():
        config = with_setting(config, path, value)
    key, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=re.escape(way_out)) as refused:
        mesh.check_divides(config, 8)
    assert f"config.{key} is {value!r}" in str(refused.value)


def test_rows_of_a_fine_tuning_are_named_by_its_own_setting():
    config = FinetuneRun(phases=(FinetunePhase(seq_len=19, steps=9, batch_size=12),))
    with pytest.raises(ValueError, match=r"^config\.batch_size is 12, .* try 8 or 16$"):
        mesh.check_divides(config, 8)


def test_lstms_that_do_not_fit_the_mesh_are_refused():
    phases = (FinetunePhase(seq_len=19, steps=9, batch_size=8),)
    config = FinetuneRun(phases=phases, mesh=MeshConfig(preset="fsdp"))
    mesh.check_divides(config, 8)
    config = with_setting(config, "model.bilstm_units", 100)
    with pytest.raises(
        ValueError, match=r"^config\.model\.bilstm_units is 100, .* divisor of 100$"
    ):
        mesh.check_divides(config, 8)


def test_a_teacher_that_does_not_fit_the_mesh_is_refused():
    config = changed(mesh=MeshConfig(preset="tp", model_size=4))
    words = "config.teacher's num_attention_heads is 6, not a multiple of the 4 devices"
    with pytest.raises(ValueError, match=words):
        mesh.check_divides(config, 8, ModelConfig(num_attention_heads=6))


def test_the_state_is_cut_along_the_first_whole_dimension_that_divides():
    cut, sizes = PartitionSpec, {"data": 8, "fsdp": 1, "model": 2}
    assert mesh.shard_over_data(cut(None, "model"), (64, 12), sizes) == cut("data", "model")
    assert mesh.shard_over_data(cut("model", None), (64, 24), sizes) == cut("model", "data")
    assert mesh.shard_over_data(cut(None, None), (12, 64), sizes) == cut(None, "data")
    assert mesh.shard_over_data(cut("fsdp", "model"), (64, 12), sizes) == cut("data", "model")
    assert mesh.shard_over_data(cut(None), (7,), sizes) == cut(None)  # nothing to cut evenly
    assert mesh.shard_over_data(cut(None), (8,), sizes | {"data": 1}) == cut(None)


@pytest.mark.parametrize(
    ("seq_len", "prob", "slots"),
    [
        (32, 0.15, 5),  # what our configs said by hand, and Google's README for 128 and 512
        (64, 0.15, 10),
        (128, 0.15, 20),
        (512, 0.15, 77),
        (128, 0.4, 52),
        (140, 0.15, 21),
        (8, 0.01, 1),
        (8, 0.99, 5),
    ],
)
def test_slots_follow_from_length_and_masking_rate(seq_len, prob, slots):
    assert config_lib.predictions_for(seq_len, prob) == slots
    # Source: create_pretraining_data.py@eedf5716ce: no row of text wants more.
    most_text = seq_len - 3
    assert slots >= min(most_text, max(1, round(most_text * prob)))


def test_slots_that_are_said_stay():
    said = Config(
        phases=(Phase(64, 5, max_predictions_per_seq=3), Phase(64, 5), Phase(32, 5)),
        optim=OptimConfig(warmup_steps=1),
    )
    filled = config_lib.resolve(said, store=StoreFacts(9, False, {32: 9}))
    assert [phase.max_predictions_per_seq for phase in filled.phases] == [3, 10, 9]


@pytest.mark.parametrize(
    ("first", "last", "tokens", "multiple"),
    [(768, 4608, 50 * 10**9, 768), (448, 4928, 10 * 10**9, 448), (6, 20, 10**6, 2)],
)
def test_a_ramp_follows_the_line_from_the_first_batch_to_the_last(first, last, tokens, multiple):
    """After each phase the batch of a straight line over the tokens, to within a step."""
    phase = Phase(1024, 70, batch_size=last, masked_lm_prob=0.3)
    *ramp, end = config_lib.ramp_batch(phase, first, tokens, multiple)
    assert end == phase
    trained = 0
    for stage in ramp:
        assert dataclasses.replace(stage, batch_size=last, steps=70) == phase
        on_the_line = first + (last - first) * trained / tokens
        slack = (last - first) * last * 1024 / tokens
        assert stage.batch_size == pytest.approx(on_the_line, abs=slack)
        trained += stage.steps * stage.batch_size * 1024
    assert trained == pytest.approx(tokens, abs=last * 1024 / 2)
    assert len({stage.batch_size for stage in ramp}) == (last - first) // multiple
    validate.check(changed(model=ModelConfig(max_position_embeddings=1024), phases=(*ramp, end)))


def test_a_ramp_restarts_a_schedule_once():
    phase = Phase(64, 9, batch_size=12, restart_learning_rate=1e-3, restart_decay="one_minus_sqrt")
    first, *others = config_lib.ramp_batch(phase, 4, 10**5, 4)
    assert (first.restart_learning_rate, first.restart_decay) == (1e-3, "one_minus_sqrt")
    assert {(later.restart_learning_rate, later.restart_decay) for later in others} == {(0.0, "")}


@pytest.mark.parametrize(
    ("first", "tokens", "multiple", "words"),
    [
        (12, 10**6, 4, "first = 12 to batch_size = 12"),
        (4, 10**6, 3, "by multiple = 3"),
        (0, 10**6, 4, "first = 0"),
        (4, 100, 4, "tokens = 100"),
    ],
)
def test_a_ramp_that_does_not_fit_is_refused(first, tokens, multiple, words):
    with pytest.raises(ValueError, match=words):
        config_lib.ramp_batch(Phase(64, 9, batch_size=12), first, tokens, multiple)


def test_debertas_generators_are_as_wide_and_half_as_deep():
    """rtd_xsmall.json to rtd_large.json of microsoft/DeBERTa@4d7fe0b."""
    for size, *sizes in (("xsmall", 384, 12, 6), ("small", 768, 6, 3), ("large", 1024, 24, 12)):
        model = read("deberta", f"size={size}").model
        generator = model.generator
        assert [model.hidden_size, model.num_hidden_layers, generator.num_hidden_layers] == sizes
        for name in ("hidden_size", "num_attention_heads", "intermediate_size", "embedding_width"):
            assert getattr(generator, name) == getattr(model, name)
        assert generator.enhanced_mask_decoder and not model.encoder_alone.enhanced_mask_decoder


def test_a_generator_that_another_objective_begins_with_is_refused_by_its_checkpoint():
    """The setting is the checkpoint's, so leaving it out of the config is no way out."""
    sizes = config_lib.ModelConfig(
        enhanced_mask_decoder=True,
        position_embedding_type="disentangled",
        position_biased_input=False,
    )
    config = config_lib.Config(phases=(Phase(64, 20000),), init="orbax:generator")
    with pytest.raises(
        ValueError, match=r"only config.objective=rtd trains.*checkpoint than orbax:generator"
    ):
        config_lib.resolve(config, sizes)


def test_electras_generators_are_a_quarter_and_a_third_as_wide():
    for size, width, embedding, heads in (("small", 64, 128, 1), ("base", 256, 768, 4)):
        generator = read("electra", f"size={size}").model.generator
        sizes = generator.hidden_size, generator.embedding_size, generator.num_attention_heads
        assert sizes == (width, embedding, heads)
        assert (generator.intermediate_size, generator.num_hidden_layers) == (4 * width, 12)
