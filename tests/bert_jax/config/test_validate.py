"""Settings out of their range, of another type, or in contradiction to each other."""

import dataclasses
import math
import re
import typing

import pytest

from bert_jax.config import (
    Config,
    FinetuneConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    StoreFacts,
    TaskOptions,
    flatten,
    model_in_phase,
    model_rules,
    resolve,
    settings_from,
    to_config_dict,
    validate,
)
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.spec.fields import describe_setting, get_setting
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.tiny_models import with_setting

PHASE = Phase(seq_len=64, steps=10, batch_size=16, max_predictions_per_seq=9)
WRONG_TYPES = {
    int: ("5", 1.5, None, True, math.nan),
    float: ("1e-4", None, True, math.nan, math.inf, -math.inf),
    bool: ("yes", 1, None),
    str: (1, None, b""),
}


def changed(**settings):
    return dataclasses.replace(
        Config(phases=(PHASE,), optim=OptimConfig(warmup_steps=2)), **settings
    )


def phase(**settings):
    return changed(phases=(dataclasses.replace(PHASE, **settings),))


NO_PAIRS = PretrainOptions(segments="doc_sentences")


CHECKS = {Config: validate.check, FinetuneConfig: validate.check_finetune}
EXAMPLES = {Config: changed(), FinetuneConfig: FinetuneConfig(init="hf:DIR")}


def fields(config, path=""):
    """Path, type and declaration of each single setting of a config."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), f"{path}{field.name}"
        if isinstance(value, tuple):
            for index, part in enumerate(value):
                yield from fields(part, f"{name}[{index}].")
        elif dataclasses.is_dataclass(value):
            yield from fields(value, f"{name}.")
        else:
            yield name, hints[field.name], field


def out_of_range(setting):
    if setting.choices is not None:
        yield "no such choice"
    for bound, beyond in ((setting.minimum, -1), (setting.maximum, 1)):
        if bound is not None:
            yield bound + beyond
    yield from (bound for bound in (setting.above, setting.below) if bound is not None)


FIELDS = [(kind, *field) for kind, config in EXAMPLES.items() for field in fields(config)]


@pytest.mark.slow
@pytest.mark.fault(20, "each setting out of its range or of another type")
@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_setting_out_of_range_or_of_another_type_is_refused_by_its_key(kind):
    """Every wrong value for the first field of a type, a value in turn for each other one."""
    checked, seen = 0, set()
    for number, (path, hint, field) in enumerate(fields(EXAMPLES[kind])):
        config, wrong = with_setting(EXAMPLES[kind], path, None), WRONG_TYPES[hint]
        for value in [wrong[number % len(wrong)]] if hint in seen else wrong:
            shown = to_config_dict(with_setting(config, path, value))
            with pytest.raises(ValueError, match="must be") as refused:
                settings_from(kind, shown)
            assert f"config.{path} is {value!r}" in str(refused.value)
        for value in out_of_range(get_setting(field)) if get_setting(field) else ():
            wrong = with_setting(config, path, hint(value))
            with pytest.raises(ValueError, match="must be") as refused:
                CHECKS[kind](wrong)
            assert f"config.{path} is {hint(value)!r}" in str(refused.value)
            checked += 1
        seen.add(hint)
    assert checked > 40


def test_every_setting_says_what_it_is():
    assert all(
        len(describe_setting(field)) > 10 for *_, field in FIELDS if get_setting(field) is not None
    )
    undeclared = {path for _, path, _, field in FIELDS if get_setting(field) is None}
    assert undeclared <= {path for path in flatten(changed()) if path.startswith("data.")}


def test_the_settings_are_all_there():
    assert len(FIELDS) > 120
    for config in EXAMPLES.values():
        CHECKS[type(config)](config)
        assert set(flatten(config)) == {path for path, _, _ in fields(config)}


RTD = {"objective": "rtd", "data": NO_PAIRS, "model.generator_hidden_size": 192}
DECODED = {"model.position_embedding_type": "disentangled", **RTD}
RELATIVE = {"model.position_embedding_type": "relative", "model.type_vocab_size": 0}
MUP = {"optim.transfer": "mup", "optim.transfer_base_width": 256}
NOT_MUP = {
    **{"optim.name": "lamb", "init": "hf:DIR", "model.mlm_transform": False},
    **{"model.embedding_size": 128, "model.embedding_projection": True, "model.share_layers": True},
}
RELATED = {"objective": "relation_distillation", "teacher": "hf:DIR", "data": NO_PAIRS}


@pytest.mark.parametrize(
    "settings",
    [
        {"phases[0].seq_len": 513},
        {"phases[0].micro_batches": 3},
        {"phases[0].max_predictions_per_seq": 62},
        {"phases[0].restart_warmup_steps": 3},
        {"phases[0].restart_learning_rate": 1e-3},
        {"phases[1].restart_warmup_steps": 5, "phases": (PHASE, Phase(16, 5, 16, 2, 1, 1e-3))},
        {"phases[1].restart_decay": "constant", "phases": (PHASE, PHASE)},
        {"optim.warmup_tokens": 64 * 16 * 10, "optim.warmup_steps": 0},
        {"optim.warmup_steps": 10},
        {"optim.weight_decay": 0.01, "optim.name": "stable_adamw"},
        {"phases": ()},
        {
            "model.hidden_size": 768,
            **{"model.position_embedding_type": "rotary", "model.num_attention_heads": 256},
        },
        {"model.hidden_size": 769, "model.num_attention_heads": 1, **RELATIVE},
        {"model.embedding_size": 128, **RELATIVE},
        {"model.embedding_projection": True, **RELATIVE},
        {"model.position_buckets": 8},
        {"model.position_buckets": 1, "model.position_embedding_type": "disentangled"},
        {
            **{"model.position_buckets": 16, "model.max_relative_positions": 9},
            "model.position_embedding_type": "disentangled",
        },
        {"model.is_causal": True, **RELATIVE},
        {"model.mlm_transform": False, "model.embedding_size": 128},
        {"model.mlm_transform": False, **RTD},
        {"model.bilstm_units": 8},
        {"model.local_attention": 128},
        {"model.local_attention": 0, "model.global_attn_every_n_layers": 3},
        {"model.share_layers": True, "model.norm_position": "pre"},
        {**RELATIVE, "objective": "permutation", **MUP},
        *({key: value, **MUP} for key, value in NOT_MUP.items()),
        {"compute.rolled_layers": True, "model.norm_position": "pre"},
        {"model.type_vocab_size": 1},
        {"model.global_rope_theta": 160_000.0},
        {"model.hidden_size": 100},
        {"data.masked_lm_smoothing": 0.7, "data.masking": "whole_word"},
        {"data.exact": True, "data.masked_lm_smoothing": 0.7},
        {"data.masked_lm_smoothing": 0.7, "data.segments": "doc_sentences", "objective": "causal"},
        {"data.longest_ngram": 2},
        {"objective": "mlm_nsp", "data": NO_PAIRS},
        {
            "phases[1].objective": "mlm_nsp",
            **{"objective": "mlm", "phases": (PHASE, PHASE), "data": NO_PAIRS},
        },
        {"objective": "rtd", "data": NO_PAIRS},
        {"objective": "rtd", "model.generator_hidden_size": 192},
        {**RTD, "phases": (PHASE, dataclasses.replace(PHASE, objective="mlm"))},
        {"init_layers": "0,2", "init": "hf:DIR", **RTD},
        {"init_tile": True, "init": "hf:DIR", **RTD},
        {"optim.layer_rate_decay": 0.8, **RTD},
        {"rtd_generator_first": True, **RTD},
        {"rtd_generator_first": True},
        {"model.enhanced_mask_decoder": True},
        {"model.enhanced_mask_decoder": True, "model.position_embedding_type": "disentangled"},
        {"model.enhanced_mask_decoder": True, **RTD},
        {"model.enhanced_mask_decoder": True, "model.position_biased_input": True, **DECODED},
        {"model.enhanced_mask_decoder": True, "model.norm_position": "pre", **DECODED},
        {"model.generator_hidden_size": 192},
        {"model.generator_embeddings": "gdes"},
        {"model.generator_hidden_size": 192, "model.generator_num_attention_heads": 5},
        {"objective": "mlm_nsp", "model.is_causal": True},
        {"optim.end_learning_rate": 1e-2},
        {"optim.decay_steps": 5, "optim.decay": "constant"},
        {"distill.temperature": 4.0},
        *(
            {"phases[1].restart_learning_rate": 2e-5, end: 3e-5, "phases": (PHASE, PHASE)}
            for end in ("phases[1].restart_end_learning_rate", "optim.end_learning_rate")
        ),
        {"phases[0].objective": "mlm", "phases": (PHASE, PHASE), "objective": "causal"},
        *({"log.wandb": name} for name in ("a/b", "a#b", "x" * 129)),
        {"teacher": "", "objective": "relation_distillation", "data": NO_PAIRS},
        {"teacher": "hf:DIR"},
        {"distill.relation_heads": 36, "distill.query_weight": 0.0, **RELATED},
        {
            **{f"distill.{name}_weight": 0.0 for name in ("query", "key", "value")},
            **RELATED,
        },
        {"distill.cosine_weight": 2.0, **RELATED},
        {"init_layers": "0,2"},
        {"init_tile": True},
        {"init_tile": True, "init": "hf:DIR", "init_layers": "0,2"},
        *(
            {"init_layers": text, "init": "hf:DIR"}
            for text in ("0,-1", "0,,2", "0, 2", "(0,2)", "all")
        ),
        {"data.packed_examples": 22},
        {"mesh.model_size": 3},
        {"mesh.fsdp_size": 2, "mesh.preset": "dp+tp"},
        *(
            {"data.store_weights": shares, "data.store": "a,b"}
            for shares in ("0.7,0.2", "0.7,0.2,0.1", "0.7;0.3", "1.5,-0.5", "nan,1")
        ),
        {"data.store_weights": "1.0", "data.store": "a"},
        {"data.store": "a,,b"},
        {"data.store_weights": ".5,.5", "data.store_temperature": 0.5, "data.store": "a,b"},
        {"phases[0].store_weights": "1,1", "data.store": "a,b"},
        {
            "phases[0].store_weights": ".5,.5",
            **{"phases[0].store_temperature": 0.5, "data.store": "a,b"},
        },
        {"phases[0].store_weights": "1", "data.store": "a"},
        {"data.window_stride": 64, "data": TaskOptions(task="squad")},
        {"data.window_stride": 64, "data": TaskOptions(task="table", second_text_column="b")},
        {"data.window_stride": 64, "data": TaskOptions(task="table", train_examples=9)},
        {"prune.rounds": 2},
        {"optim.warmup_tokens": 100, "init": "hf:DIR", "batch_size": 8},
    ],
)
def test_contradictions_are_refused_by_the_key_named_first(settings):
    is_finetuning = {"data.window_stride", "prune.rounds", "batch_size"} & settings.keys()
    kind = FinetuneConfig if is_finetuning else Config
    config = EXAMPLES[kind]
    for path, value in reversed(settings.items()):
        config = with_setting(config, path, value)
    key, value = next(iter(settings.items()))
    with pytest.raises(ValueError, match=rf"^config\.{re.escape(f'{key} is {value!r}')}"):
        CHECKS[kind](config)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_hidden_layers", 1 << 11), ("global_attn_every_n_layers", 0), ("hidden_act", "tanh")],
)
def test_a_file_whose_model_no_config_allows_is_damaged(name, value):
    model = dataclasses.replace(ModelConfig(), **{name: value})
    with pytest.raises(DamagedFile, match=rf"^run\.json has {name} = {value!r}; it must be"):
        model_rules.check_sizes(model, "run.json")


@pytest.mark.parametrize(
    ("kind", "width", "heads", "odd"), [("rotary", 14, 2, 7), ("relative", 15, 3, 15)]
)
def test_a_file_whose_positions_would_pair_an_odd_width_is_damaged(kind, width, heads, odd):
    sizes = {"hidden_size": width, "num_attention_heads": heads}
    model_rules.check_sizes(ModelConfig(**sizes), "config.json")
    paired = ModelConfig(**sizes, position_embedding_type=kind)
    words = rf"^config\.json has hidden_size = {width}; .*{kind} positions .* not {odd}:"
    with pytest.raises(DamagedFile, match=words):
        model_rules.check_sizes(paired, "config.json")


def test_windows_are_of_single_texts_in_a_table():
    options = TaskOptions(task="table", window_stride=64)
    validate.check_finetune(FinetuneConfig(init="hf:DIR", data=options))


@pytest.mark.parametrize("segments", ["nsp", "sop", "full_sentences", "doc_sentences"])
def test_mlm_alone_goes_with_all_segments_and_mlm_nsp_with_pairs(segments):
    """With nsp and mlm alone it is the paper's "No NSP"."""
    validate.check(changed(objective="mlm", data=PretrainOptions(segments=segments)))
    if segments in ("nsp", "sop"):
        validate.check(changed(data=PretrainOptions(segments=segments, packed_examples=8)))


def test_causal_phases_come_first_and_the_last_one_makes_the_model_causal():
    first = dataclasses.replace(PHASE, objective="causal")
    mixed = changed(phases=(first, PHASE))
    resolved = resolve(mixed)
    assert [phase.objective for phase in resolved.phases] == ["causal", "mlm_nsp"]
    assert not resolved.model.is_causal
    assert [model_in_phase(resolved, index).is_causal for index in (0, 1)] == [True, False]
    for kind in ("learned", "disentangled"):
        model = ModelConfig(position_embedding_type=kind)
        causal = resolve(changed(objective="causal", model=model))
        assert causal.model.is_causal
        assert resolve(causal) == causal  # run.json is a config too


def test_a_later_schedule_may_decay_over_the_last_steps():
    late = dataclasses.replace(PHASE, restart_learning_rate=1e-5, restart_decay="one_minus_sqrt")
    optim = OptimConfig(warmup_steps=2, decay="constant", decay_steps=5)
    validate.check(changed(phases=(PHASE, late), optim=optim))


def test_slots_that_cannot_hold_the_share_of_masks_are_refused():
    words = r"max_predictions_per_seq is 9; a full row of 64 has 25 predictions at .*prob = 0\.4,"
    store = StoreFacts(vocab_size=40)
    resolve(changed(), store=store)
    with pytest.raises(ValueError, match=words):
        resolve(changed(data=PretrainOptions(masked_lm_prob=0.4)), store=store)
    # 0.4 * 64 = 25.6: 25 slots lose a token of some rows at most, 24 lose one of every full row.
    resolve(phase(max_predictions_per_seq=25, masked_lm_prob=0.4), store=store)
    with pytest.raises(ValueError, match=r"phases\[0\]\.max_predictions_per_seq is 24;"):
        resolve(phase(max_predictions_per_seq=24, masked_lm_prob=0.4), store=store)
