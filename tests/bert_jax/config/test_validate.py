"""Settings out of their range, of another type, or in contradiction to each other."""

import dataclasses
import math
import typing

import pytest

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    Config,
    DistillConfig,
    FinetuneConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    StoreFacts,
    TaskOptions,
    flatten,
    model_in_phase,
    resolve,
    settings_from,
    to_config_dict,
    validate,
)
from data_pipeline.spec.fields import describe_setting, get_setting
from data_pipeline.spec.options import PretrainOptions

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


def related(**settings):
    return changed(
        objective="relation_distillation",
        teacher="hf:DIR",
        data=NO_PAIRS,
        distill=DistillConfig(**settings),
    )


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


def with_setting(config, path, value):
    """The config with the setting at a path changed, whatever its type."""
    name, _, rest = path.partition(".")
    name, _, index = name.partition("[")
    part = getattr(config, name)
    if index:
        parts = list(part)
        parts[int(index[:-1])] = with_setting(parts[int(index[:-1])], rest, value)
        return dataclasses.replace(config, **{name: tuple(parts)})
    return dataclasses.replace(config, **{name: with_setting(part, rest, value) if rest else value})


def out_of_range(setting):
    if setting.choices is not None:
        yield "no such choice"
    for bound, beyond in ((setting.minimum, -1), (setting.maximum, 1)):
        if bound is not None:
            yield bound + beyond
    yield from (bound for bound in (setting.above, setting.below) if bound is not None)


FIELDS = [(kind, *field) for kind, config in EXAMPLES.items() for field in fields(config)]


@pytest.mark.fault(20, "each setting out of its range or of another type")
@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_setting_out_of_range_or_of_another_type_is_refused_by_its_key(kind):
    checked = 0
    for path, hint, field in fields(EXAMPLES[kind]):
        config = with_setting(EXAMPLES[kind], path, None)
        for value in WRONG_TYPES[hint]:
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


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (phase(seq_len=513), r"phases\[0\].seq_len is 513; the position table ends at .* = 512"),
        (phase(micro_batches=3), r"micro_batches is 3; it must divide batch_size = 16"),
        (phase(max_predictions_per_seq=62), "from 1 to seq_len - 3 = 61"),
        (phase(restart_warmup_steps=3), "needs a restart_learning_rate"),
        (phase(restart_learning_rate=1e-3), "the first phase has nothing to restart"),
        (
            changed(phases=(PHASE, Phase(16, 5, 16, 2, 1, 1e-3, 5))),
            r"phases\[1\].restart_warmup_steps is 5; the schedule has only 5 steps",
        ),
        (
            changed(phases=(PHASE, Phase(16, 5, 16, 2, restart_decay="constant"))),
            r"phases\[1\].restart_decay is 'constant'; it needs a restart_learning_rate",
        ),
        (
            changed(optim=OptimConfig(warmup_steps=0, warmup_tokens=64 * 16 * 10)),
            r"warmup_tokens is 10240; the schedule has only 10,240 tokens",
        ),
        (changed(phases=()), "at least one phase"),
        (
            changed(model=ModelConfig(position_embedding_type="rotary", num_attention_heads=256)),
            "rotates pairs of numbers, and a head has 3: change num_attention_heads",
        ),
        (
            changed(model=ModelConfig(bilstm_units=8)),
            "bilstm_units is 8; LSTMs are a fine-tuning's",
        ),
        (
            changed(model=ModelConfig(local_attention=128)),
            r"local_attention is 128; with global_attn_every_n_layers = 1 no layer has a window",
        ),
        (
            changed(model=ModelConfig(global_attn_every_n_layers=3)),
            r"local_attention is 0; with global_attn_every_n_layers = 3 .* need a window",
        ),
        (
            changed(model=ModelConfig(norm_position="pre", share_layers=True)),
            "share_layers is True; the layers differ",
        ),
        (
            changed(
                model=ModelConfig(norm_position="pre"), compute=ComputeConfig(rolled_layers=True)
            ),
            "rolled_layers is True; the layers differ",
        ),
        (
            changed(model=ModelConfig(type_vocab_size=1)),
            "type_vocab_size is 1; config.data.segments = 'nsp' makes pairs",
        ),
        (
            changed(model=ModelConfig(global_rope_theta=160_000.0)),
            r"model.global_rope_theta is 160000\.0; .*position_embedding_type = 'learned' has none",
        ),
        (changed(model=ModelConfig(hidden_size=100)), "multiple of num_attention_heads = 12"),
        (changed(checkpoint=CheckpointConfig(keep_every_steps=7)), "keep_every_steps is 7"),
        (changed(optim=OptimConfig(warmup_steps=10)), "has only 10 steps"),
        (
            changed(data=PretrainOptions(masked_lm_smoothing=0.7, masking="whole_word")),
            r"data.masked_lm_smoothing is 0\.7 and config.data.masking is 'whole_word'",
        ),
        (
            changed(data=PretrainOptions(masked_lm_smoothing=0.7, exact=True)),
            r"data.masked_lm_smoothing is 0\.7 and config.data.exact is True",
        ),
        (
            changed(
                objective="causal",
                model=ModelConfig(is_causal=True),
                data=PretrainOptions(masked_lm_smoothing=0.7, segments="doc_sentences"),
            ),
            r"data.masked_lm_smoothing is 0\.7; config.objective = 'causal' and config.phases",
        ),
        (changed(data=PretrainOptions(longest_ngram=2)), "masking is 'token', which has no runs"),
        (
            changed(data=PretrainOptions(segments="doc_sentences")),
            "objective is 'mlm_nsp'.*data.segments is 'doc_sentences', which has none; .*=mlm",
        ),
        (
            changed(
                objective="mlm",
                phases=(PHASE, dataclasses.replace(PHASE, objective="mlm_nsp")),
                data=PretrainOptions(segments="doc_sentences"),
            ),
            r"phases\[1\].objective is 'mlm_nsp'.*which has none; set .*phases\[1\].objective=mlm",
        ),
        (
            changed(objective="rtd", data=PretrainOptions(segments="doc_sentences")),
            "objective is 'rtd'; it needs a generator, and config.model.generator_hidden_size is 0",
        ),
        (
            changed(objective="rtd", model=ModelConfig(generator_hidden_size=192)),
            "objective is 'rtd'; it knows no pairs, which config.data.segments = 'nsp' makes",
        ),
        (
            changed(
                objective="rtd",
                model=ModelConfig(generator_hidden_size=192),
                phases=(PHASE, dataclasses.replace(PHASE, objective="mlm")),
            ),
            r"objective is 'rtd'; it trains a generator too, and other phases learn \['mlm'\]",
        ),
        (
            changed(
                objective="rtd",
                init="hf:DIR",
                init_layers="0,2",
                data=PretrainOptions(segments="doc_sentences"),
                model=ModelConfig(generator_hidden_size=192),
            ),
            "init_layers is '0,2'; config.objective=rtd trains a generator too",
        ),
        (
            changed(
                objective="rtd",
                init="hf:DIR",
                init_tile=True,
                data=PretrainOptions(segments="doc_sentences"),
                model=ModelConfig(generator_hidden_size=192),
            ),
            "init_tile is True; config.objective=rtd trains a generator too",
        ),
        (
            changed(
                objective="rtd",
                optim=OptimConfig(layer_rate_decay=0.8),
                data=PretrainOptions(segments="doc_sentences"),
                model=ModelConfig(generator_hidden_size=192),
            ),
            r"optim.layer_rate_decay is 0\.8; config.objective=rtd .* leave it at 1, and set it in",
        ),
        (
            changed(model=ModelConfig(generator_hidden_size=192)),
            "model.generator_hidden_size is 192; no objective trains one: learn rtd",
        ),
        (
            changed(model=ModelConfig(generator_embeddings="gdes")),
            "model.generator_embeddings is 'gdes'; no objective trains one",
        ),
        (
            changed(model=ModelConfig(generator_hidden_size=192, generator_num_attention_heads=5)),
            "model.generator_hidden_size is 192; it must be a multiple of the generator's 5 att",
        ),
        (
            changed(model=ModelConfig(is_causal=True)),
            "objective is 'mlm_nsp'; it needs both sides .*model.is_causal is True: leave that",
        ),
        (
            changed(
                objective="causal", phases=(dataclasses.replace(PHASE, objective="mlm"), PHASE)
            ),
            r"phases\[0\].objective is 'mlm'; .*phases\[1\], which learns causal: put the causal",
        ),
        *(
            (changed(log=LogConfig(wandb=name)), r"config\.log\.wandb is ")
            for name in ("a/b", "a#b", "x" * 129)
        ),
        (
            changed(objective="relation_distillation", data=NO_PAIRS),
            "teacher is ''; the objective relation_distillation learns from it",
        ),
        (changed(teacher="hf:DIR"), "teacher is 'hf:DIR'; no phase learns from it"),
        (
            related(relation_heads=36, query_weight=0.0),
            "distill.relation_heads is 36; it must divide config.model.hidden_size = 768 and",
        ),
        (
            related(query_weight=0.0, key_weight=0.0, value_weight=0.0),
            r"distill.query_weight is 0.0; and so are \['key_weight', 'value_weight'\]",
        ),
        (
            related(cosine_weight=2.0),
            "distill.cosine_weight is 2.0; it belongs to the objective distillation, which no",
        ),
        (changed(init_layers="0,2"), "init_layers is '0,2'; .* config.init names none"),
        (changed(init_tile=True), "init_tile is True; .* config.init names none"),
        (
            changed(init="hf:DIR", init_layers="0,2", init_tile=True),
            "init_layers is '0,2'; config.init_tile takes all layers",
        ),
        *(
            (changed(init="hf:DIR", init_layers=text), "init_layers is .* joined by commas")
            for text in ("0,-1", "0,,2", "0, 2", "(0,2)", "all")
        ),
        (
            changed(data=PretrainOptions(packed_examples=22)),
            r"packed_examples is 22; phases\[0\].seq_len = 64 has room for 21 at most",
        ),
        (
            changed(mesh=MeshConfig(model_size=3)),
            r"config\.mesh\.model_size is 3; config\.mesh\.preset = 'zero1' has no .*, such as tp",
        ),
        (
            changed(mesh=MeshConfig(preset="dp+tp", fsdp_size=2)),
            r"config\.mesh\.fsdp_size is 2; config\.mesh\.preset = 'dp\+tp' has no such axis",
        ),
    ],
)
def test_contradictions_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        validate.check(config)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "squad"}, "window_stride is 64; config.data.task = 'squad' has no windows"),
        ({"second_text_column": "b"}, "window_stride is 64; config.data.second_text_column makes"),
        ({"train_examples": 9}, "window_stride is 64; config.data.train_examples would count"),
    ],
)
def test_windows_are_of_single_texts_in_a_table(changes, words):
    options = TaskOptions(task="table", window_stride=64)
    validate.check_finetune(FinetuneConfig(init="hf:DIR", data=options))
    given = FinetuneConfig(init="hf:DIR", data=dataclasses.replace(options, **changes))
    with pytest.raises(ValueError, match=words):
        validate.check_finetune(given)


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
    causal = resolve(changed(objective="causal"))
    assert causal.model.is_causal


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
