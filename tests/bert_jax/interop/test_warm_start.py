"""Runs that go on from a checkpoint: sizes, rows for new pieces by hand, and what is refused."""

import dataclasses
import json
import shutil
import sys

import jax
import numpy as np
import pytest
import tokenizers
import yaml

from bert_jax import train
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import (
    CheckpointConfig,
    Config,
    DistillConfig,
    EvalConfig,
    ModelConfig,
    OptimConfig,
    Phase,
    StoreFacts,
    overrides,
)
from bert_jax.config.resolve import enlarge, merge_sizes, resolve
from bert_jax.config.schema import PARTS
from bert_jax.interop import load, pretrained, warm_start
from bert_jax.interop.warm_start import fit_vocabulary
from bert_jax.model import bert
from bert_jax.trainer import loop
from bert_jax.trainer.setup import build_setup
from data_pipeline.io import Refused
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.vocab import BYTE_LEVEL, load_vocabulary
from data_pipeline.vocab.wordpiece import make_wordpiece_tokenizer
from tests.bert_jax import small_checkpoints
from tests.bert_jax.tiny_models import MODEL
from tests.data_pipeline.vocab.test_byte_level import make_file
from tests.data_pipeline.vocab.test_documents import TOKENIZERS
from tests.faults.runs import ROOT

PIECES = [*small_checkpoints.PIECES, "[unused0]", "[unused7]"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """23 rows, of which 13 have a piece; both heads."""
    folder = small_checkpoints.write(tmp_path_factory.mktemp("hf"), small_checkpoints.tensors())
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    return load.load(f"hf:{folder}")


@pytest.fixture
def vocabulary(tmp_path):
    """A function from pieces to a vocabulary of them."""

    def made(pieces):
        (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
        return load_vocabulary(tmp_path / "vocab.txt", True, checks_case=False)

    return made


def test_the_vocabulary_of_the_checkpoint_changes_no_row(checkpoint, vocabulary):
    fitted = fit_vocabulary(checkpoint, vocabulary(PIECES))
    assert fitted.new_tokens == 0 and fitted.checkpoint.config.vocab_size == 13
    before, after = checkpoint.params, fitted.checkpoint.params
    table = before["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(after["embeddings"]["word"]["embedding"], table[:13])
    np.testing.assert_array_equal(after["mlm"]["output_bias"], before["mlm"]["output_bias"][:13])
    for name in ("layers", "pooler", "nsp"):
        assert jax.tree.all(jax.tree.map(lambda old, new: old is new, before[name], after[name]))
    assert fitted.describe() == (f"{fitted.checkpoint.parameter_count:,} from {checkpoint.address}")


def test_rows_of_new_pieces_are_means_of_what_they_were_cut_into(checkpoint, vocabulary):
    """In a slot and at the end; a word that was unknown begins as the unknown piece."""
    pieces = [*PIECES[:11], "cats", "[unused7]", "dogs", "whale", "##cats"]
    fitted = fit_vocabulary(checkpoint, vocabulary(pieces))
    assert fitted.new_tokens == 4
    for path in ("embeddings/word/embedding", "mlm/output_bias"):
        before, after = (name_leaves(each.params)[path] for each in (checkpoint, fitted.checkpoint))
        row = dict(zip(PIECES, before, strict=False))
        cats, dogs = ((row[animal] + row["##s"]) / 2 for animal in ("cat", "dog"))
        expected = [*before[:11], cats, before[12], dogs, row["[UNK]"], cats]
        np.testing.assert_allclose(after, expected, rtol=1e-6)
    assert "; 4 new tokens begin as means of" in fitted.describe()


@pytest.mark.parametrize(
    "name", ["byte fallback", "unigram, always, split True", "roberta", "modernbert"]
)
def test_a_tokenizer_json_of_any_kind_grows_by_added_tokens(checkpoint, tmp_path, name):
    """Rows of the new tokens are the means of the rows of the library's pieces before."""
    text = TOKENIZERS[name].to_str() if name in TOKENIZERS else json.dumps(make_file(name))
    library = tokenizers.Tokenizer.from_str(text)
    words = ["baldem", "na\u00efve", "<term>"]
    before = [library.encode(word, add_special_tokens=False).ids for word in words]
    library.save(str(tmp_path / "known.json"))
    library.add_tokens([*words[:2], tokenizers.AddedToken(words[2], lstrip=True, normalized=False)])
    library.save(str(tmp_path / "grown.json"))
    known = load_vocabulary(tmp_path / "known.json", reads_special_tokens=True)
    table = np.random.default_rng(3).normal(size=(known.size + 4, 5)).astype(np.float32)
    params = {"embeddings": {"word": {"embedding": table}}}
    old = dataclasses.replace(checkpoint, params=params, vocabulary=known)
    fitted = fit_vocabulary(old, load_vocabulary(tmp_path / "grown.json"))
    assert fitted.new_tokens == len(words)
    grown = fitted.checkpoint.params["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(grown[: known.size], table[: known.size])
    expected = [table[ids].mean(axis=0) for ids in before]
    np.testing.assert_allclose(grown[known.size :], expected, rtol=1e-5)


def test_what_is_drawn_is_said(checkpoint, vocabulary):
    params = {name: checkpoint.params[name] for name in ("embeddings", "layers", "pooler")}
    encoder = dataclasses.replace(checkpoint, params=params)
    said = fit_vocabulary(encoder, vocabulary([*PIECES, "cats"])).describe()
    assert "; 1 new token begins as" in said
    assert said.endswith("initialized: MLM head, NSP head")


@pytest.mark.parametrize(
    ("theirs", "ours", "pieces", "words"),
    [
        ({}, {}, [*PIECES[:6], "whale", *PIECES[7:]], "piece 6 of .* 'whale', .* 'cat'"),
        ({}, {}, PIECES[:12], r"after 12 pieces, .* '\[unused7\]'"),
        ({}, {"lowercase": False}, PIECES, "--lowercase=false, .* true"),
        ({"sentencepiece_rules": "albert"}, {}, PIECES, "rules=none, .* albert"),
        ({}, {"kind": BYTE_LEVEL}, PIECES, r"byte_level .* config\.init=.* wordpiece .*--vocab="),
    ],
)
def test_another_vocabulary_is_refused(checkpoint, vocabulary, theirs, ours, pieces, words):
    known = dataclasses.replace(checkpoint.vocabulary, **theirs)
    given = dataclasses.replace(vocabulary(pieces), **ours)
    with pytest.raises(Refused, match=words):
        fit_vocabulary(dataclasses.replace(checkpoint, vocabulary=known), given, "config.init")


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ({"strip_accents": False}, "caf\u00e9 into c ##a ##f ##e, .* into c ##a ##f ##\u00e9"),
        ({"handle_chinese_chars": False}, r"\u4f60\u597d into \u4f60 \u597d, .* into \[UNK\]"),
        ({"digits": True}, r"2024 into 2 ##0 ##2 ##4, .* into 2 0 2 4"),
    ],
)
def test_equal_pieces_cut_by_other_rules_are_refused(checkpoint, vocabulary, tmp_path, rule, word):
    """A German uncased BERT keeps accents; its vocab.txt alone does not say so."""
    letters = [*"acdefnot\u00e90245"]
    pieces = [*PIECES[:5], *letters, *(f"##{letter}" for letter in letters), *"\u4f60\u597d"]
    given = vocabulary(pieces)
    library = make_wordpiece_tokenizer(pieces, "[UNK]", lowercase=True)
    if "digits" in rule:
        steps = [library.pre_tokenizer, tokenizers.pre_tokenizers.Digits(True)]
        library.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    else:
        library.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True, **rule)
    library.save(str(tmp_path / "tokenizer.json"))
    known = load_vocabulary(tmp_path / "tokenizer.json", reads_special_tokens=True)
    with pytest.raises(Refused, match=f"cuts {word}.*--vocab=.*tokenizer.json"):
        fit_vocabulary(dataclasses.replace(checkpoint, vocabulary=known), given)


def test_sizes_are_the_checkpoints_and_dropout_the_configs(checkpoint):
    held = dataclasses.replace(MODEL, hidden_act="gelu_erf", layer_norm_eps=1e-5)
    given = ModelConfig(hidden_dropout_prob=0.3, num_hidden_layers=2)
    merged = merge_sizes(given, held, "hf:DIR")
    assert merged == dataclasses.replace(held, vocab_size=0, hidden_dropout_prob=0.3)
    for other, words in (
        (ModelConfig(hidden_size=96), "config.model.hidden_size is 96, but config.init=A has 32;"),
        (ModelConfig(max_position_embeddings=23), "max_position_embeddings is 23, .* has 24"),
        (ModelConfig(hidden_act="gelu_erf"), "hidden_act is 'gelu_erf', .* has 'gelu_tanh'; leave"),
    ):
        with pytest.raises(ValueError, match=words):
            merge_sizes(other, MODEL, "A")
    # Which way a model reads follows from the run's objectives: either may begin with the other.
    for ours, theirs in ((False, True), (True, False)):
        directed = dataclasses.replace(MODEL, is_causal=theirs)
        assert merge_sizes(ModelConfig(is_causal=ours), directed, "A").is_causal == ours
    # A plan or a benchmark has them too; vocab_size is the store's, if there is one.
    assert warm_start.read_sizes(Config()) is None
    short = Phase(seq_len=16, steps=20_000, batch_size=8)
    from_checkpoint = Config(init=checkpoint.address, phases=(short,))
    sizes = warm_start.read_sizes(from_checkpoint)
    assert resolve(from_checkpoint, sizes).model == checkpoint.config
    larger = StoreFacts(checkpoint.config.vocab_size + 1)
    with_store = resolve(from_checkpoint, sizes, larger)
    assert with_store.model.vocab_size == larger.vocab_size


def test_print_config_has_the_sizes_of_a_checkpoint_that_is_here(checkpoint, monkeypatch, capsys):
    """A checkpoint that would be fetched leaves the sizes as the config has them."""
    monkeypatch.setattr(sys, "argv", ["train"])
    flags = ["--config=configs/base.py", f"--config.init={checkpoint.address}", "--print_config"]
    short = ["--config.phases[0].seq_len=16", "--config.phases[1].seq_len=16"]
    assert train.main([*flags, *short]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["model"]
    assert ModelConfig(**printed).hidden_size == checkpoint.config.hidden_size
    for address in ("", "orbax:gs://b/run@5", "hf:google-bert/bert-base-uncased"):
        assert warm_start.read_local_sizes(Config(init=address)) is None


@pytest.fixture(scope="module")
def config(tiny_store):
    return Config(
        seed=3,
        model=dataclasses.replace(MODEL, vocab_size=0, num_hidden_layers=1),
        phases=(Phase(seq_len=16, steps=9, batch_size=16, max_predictions_per_seq=3),),
        optim=OptimConfig(learning_rate=3e-3, warmup_steps=2),
        data=PretrainOptions(store=str(tiny_store)),
        eval=EvalConfig(examples=21),
    )


def begun(config, workdir):
    """The parameters that a run begins or goes on with, saved; and its setup."""
    setup = build_setup(config, workdir, jax.devices()[:1])
    checkpoints = loop.Checkpoints(workdir / "checkpoints", config.checkpoint, setup.parts.model)
    state, _ = loop.restore_or_initialize(setup, checkpoints)
    checkpoints.close()
    return jax.tree.map(np.asarray, state.params), setup


@pytest.fixture(scope="module")
def begun_first(config, tmp_path_factory):
    """The parameters of a run that has begun, its setup and its workdir."""
    workdir = tmp_path_factory.mktemp("begun") / "first"
    return *begun(config, workdir), workdir


@pytest.fixture
def first(begun_first, tmp_path):
    """Its parameters and its setup; tmp_path/first is its workdir."""
    *made, workdir = begun_first
    shutil.copytree(workdir, tmp_path / "first")
    return made


@pytest.mark.slow
def test_a_run_begins_with_a_checkpoint_and_needs_it_once(config, first, tmp_path):
    """It is another run with another checkpoint, or without."""
    before, setup = first
    going_on = dataclasses.replace(
        config, init=f"orbax:{tmp_path / 'first'}", seed=5, model=ModelConfig()
    )
    after, second = begun(going_on, tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert second.parts.model.config == setup.parts.model.config
    count = second.parts.model.parameter_count
    assert ("weights", f"{count:,} from {second.config.init}") in second.data_rows
    (tmp_path / "first").rename(tmp_path / "gone")
    again, _ = begun(going_on, tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, again, before)
    for init in ("", "hf:other"):
        other = dataclasses.replace(going_on, init=init)
        words = f"config.init = 'orbax:.*, this config says '{init}'"
        with pytest.raises(ValueError, match=words):
            begun(other, tmp_path / "second")


def test_learned_positions_are_repeated_for_longer_rows(checkpoint):
    """19 positions become 45: twice whole, and the first 7; all else is the checkpoint's."""
    longer = warm_start.fit_positions(warm_start.InitialWeights(checkpoint, 0), 45)
    assert longer.checkpoint.config.max_position_embeddings == 45
    before, after = (name_leaves(each.params) for each in (checkpoint, longer.checkpoint))
    table = before.pop("embeddings/position/embedding")
    expected = np.concatenate([table, table, table[:7]])
    np.testing.assert_array_equal(after.pop("embeddings/position/embedding"), expected)
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert longer.describe().endswith("; its 19 learned positions are repeated up to 45")


def test_rotary_positions_are_a_limit_without_a_table(checkpoint):
    rotary = dataclasses.replace(checkpoint.config, position_embedding_type="rotary")
    embeddings = {"word": checkpoint.params["embeddings"]["word"]}
    params = checkpoint.params | {"embeddings": embeddings}
    begins = warm_start.InitialWeights(
        dataclasses.replace(checkpoint, config=rotary, params=params), 0
    )
    longer = warm_start.fit_positions(begins, 8192)
    assert longer.checkpoint.config.max_position_embeddings == 8192
    assert longer.checkpoint.params["embeddings"] == embeddings
    assert longer.describe() == begins.describe()


@pytest.mark.parametrize("family", ["modernbert", "mmbert", "ettin"])
@pytest.mark.parametrize(("saved", "expected"), [(8192, 8192), (64, 1024)])
def test_a_continued_encoder_has_rows_of_1024_and_keeps_more_positions(family, saved, expected):
    """Published ModernBERTs have 8,192 positions; the recipe's rows have 1,024."""
    given = overrides.load(
        Config, f"configs/continue.py:family={family}", lambda name: str(ROOT / name), ()
    )
    theirs = ModelConfig(position_embedding_type="rotary", max_position_embeddings=saved)
    merged = merge_sizes(given.model, theirs, given.init)
    assert merged.max_position_embeddings == expected


def test_relative_positions_end_as_the_run_says():
    """transformers' XLNet names no end, and a run does."""
    saved = ModelConfig(position_embedding_type="relative", max_position_embeddings=1 << 20)
    for positions in (64, 2 << 20):
        given = ModelConfig(max_position_embeddings=positions)
        merged = merge_sizes(given, saved, "hf:xlnet")
        assert merged == dataclasses.replace(saved, max_position_embeddings=positions)


@pytest.mark.slow
@pytest.mark.usefixtures("first")
def test_phases_are_checked_against_the_checkpoints_positions(config, tmp_path):
    phase = Phase(seq_len=64, steps=9, batch_size=16, max_predictions_per_seq=9)
    longer = dataclasses.replace(
        config, init=str(tmp_path / "first"), model=ModelConfig(), phases=(phase,)
    )
    with pytest.raises(
        ValueError, match=r"phases\[0\].seq_len is 64; config\.model\.max_position_embeddings is"
    ):
        begun(longer, tmp_path / "second")


@pytest.mark.parametrize(
    ("numbers", "model", "words"),
    [
        ([0, 3], {}, "init_layers is '0,3', and .* has 3 layers: .* 0 to 2"),
        ([0, 1], {"share_layers": True}, "share their weights"),
        ([0, 1], {"global_attn_every_n_layers": 3, "local_attention": 8}, "differ in window"),
    ],
)
def test_layers_that_cannot_be_taken_are_refused(checkpoint, numbers, model, words):
    """What a run makes of them is seen below."""
    config = dataclasses.replace(checkpoint.config, num_hidden_layers=3, **model)
    deeper = dataclasses.replace(checkpoint, config=config)
    assert warm_start.select_layers(deeper, []) is deeper
    with pytest.raises(ValueError, match=words):
        warm_start.select_layers(deeper, numbers)


def test_layers_are_taken_in_the_order_in_which_they_are_named(checkpoint):
    first, second = checkpoint.params["layers"].values()
    layers = {"00": first, "01": second, "02": {"other": np.ones(3)}}
    config = dataclasses.replace(checkpoint.config, num_hidden_layers=3)
    params = checkpoint.params | {"layers": layers}
    deeper = dataclasses.replace(checkpoint, config=config, params=params)
    taken = warm_start.select_layers(deeper, [2, 0])
    assert taken.config.num_hidden_layers == 2
    assert taken.params["layers"] == {"00": layers["02"], "01": layers["00"]}
    assert taken.params["embeddings"] is checkpoint.params["embeddings"]


def test_both_models_of_gdes_keep_the_first_segment_without_segments(checkpoint, monkeypatch):
    """The encoder's tables are differences to the generator's, so each has a part of the vector."""
    rng = np.random.default_rng(4)
    encoder, generator = (
        {name: {"embedding": rng.normal(size=(3, 4))} for name in ("word", "position", "segment")}
        for _ in range(2)
    )
    params = {"embeddings": encoder, "generator": {"embeddings": generator}}
    model = ModelConfig(generator_hidden_size=64, generator_embeddings="gdes")
    pair = dataclasses.replace(checkpoint, config=model, params=params)
    monkeypatch.setattr(load, "load", lambda address, part: pair)
    config = Config(init="hf:DIR", objective="rtd", model=ModelConfig(type_vocab_size=0))
    read = warm_start.read_checkpoint(config)
    for part in PARTS:
        before, after = (
            pretrained.select_part(each, part).params["embeddings"] for each in (pair, read)
        )
        position = before["position"]["embedding"] + before["segment"]["embedding"][0]
        np.testing.assert_allclose(after["position"]["embedding"], position)
        assert "segment" not in after


@pytest.mark.slow
def test_a_shallow_run_begins_with_layers_of_a_deep_one(config, tmp_path):
    """It has no segments, resumes without the checkpoint, and is another run with other layers."""
    deep = dataclasses.replace(config, model=dataclasses.replace(config.model, num_hidden_layers=3))
    teacher, _ = begun(deep, tmp_path / "deep")
    shallow = dataclasses.replace(
        config,
        init=f"orbax:{tmp_path / 'deep'}",
        init_layers="2,0",
        objective="mlm",
        model=ModelConfig(type_vocab_size=0),
        data=dataclasses.replace(config.data, segments="full_sentences"),
    )
    student, setup = begun(shallow, tmp_path / "shallow")
    assert setup.parts.model.config.num_hidden_layers == 2
    assert setup.parts.model.config.type_vocab_size == 0
    expected, found = name_leaves(teacher), name_leaves(student)
    position, segment = "embeddings/position/embedding", "embeddings/segment/embedding"
    expected[position] = expected[position] + expected[segment][0]  # the same vectors go in
    for path, array in found.items():
        source = path.replace("layers/00/", "layers/02/").replace("layers/01/", "layers/00/")
        np.testing.assert_array_equal(array, expected[source], err_msg=path)
    assert segment in expected.keys() - found.keys()
    assert resolve(shallow, warm_start.read_sizes(shallow)).model.num_hidden_layers == 2
    (tmp_path / "deep").rename(tmp_path / "gone")
    again, _ = begun(shallow, tmp_path / "shallow")
    jax.tree.map(np.testing.assert_array_equal, again, student)
    with pytest.raises(ValueError, match=r"config\.init_layers = '2,0', this config says '0,2'"):
        begun(dataclasses.replace(shallow, init_layers="0,2"), tmp_path / "shallow")


@pytest.mark.long
@pytest.mark.usefixtures("first")
def test_a_teacher_of_another_width_teaches_relations_and_no_cosine(config, tmp_path):
    relations = DistillConfig(relation_heads=16)
    student = dataclasses.replace(
        config,
        teacher=f"orbax:{tmp_path / 'first'}",
        objective="relation_distillation",
        distill=relations,
        model=dataclasses.replace(config.model, hidden_size=48),
        data=dataclasses.replace(config.data, segments="full_sentences"),
    )
    _, setup = begun(student, tmp_path / "student")
    assert "mlm" not in setup.frozen[0] and "mlm" in setup.parts.untrained
    for changes, refused in (
        ({"objective": "distillation", "distill": DistillConfig()}, r"hidden_size is .*cosine_wei"),
        ({"distill": dataclasses.replace(relations, teacher_layer=9)}, "teacher_layer is 9"),
        ({"distill": dataclasses.replace(relations, relation_heads=48)}, r"divide the width of"),
    ):
        with pytest.raises(ValueError, match=refused):
            begun(dataclasses.replace(student, **changes), tmp_path / "refused")


def wrap(array, axis, size):
    """Wrap one axis around its middle, by NumPy's own rule of wrapping."""
    before = (size - array.shape[axis]) // 2
    pads = [(0, 0)] * array.ndim
    pads[axis] = (before, size - array.shape[axis] - before)
    return np.pad(array, pads, mode="wrap")


def wrap_heads(array, axis, size):
    """The same of heads of 7 numbers that lie side by side."""
    apart = np.moveaxis(array, axis, 0)
    apart = apart.reshape(-1, 7, *apart.shape[1:])
    return np.moveaxis(wrap(apart, 0, size // 7).reshape(size, *apart.shape[2:]), 0, axis)


MODERN = {
    "type_vocab_size": 0,
    "position_embedding_type": "rotary",
    "local_attention": 8,
    "global_attn_every_n_layers": 3,
    "norm_position": "pre",
    "norm_bias": False,
    "linear_bias": False,
    "gated_mlp": True,
    "pooler_type": "mlm_transform",
}


@pytest.mark.parametrize("changes", [{}, MODERN], ids=["bert", "modernbert"])
def test_a_larger_model_is_tiled_from_the_middle_of_a_smaller_one(checkpoint, changes):
    """2 layers of 14, 2 heads of 7 and 22 units become 5 of 35, 5 heads and 61 units."""
    small = dataclasses.replace(checkpoint.config, **changes)
    rng = np.random.default_rng(7)
    declared = bert.build(small, "cpu", heads=bert.Heads(nsp=not changes)).declared
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.logical_dims), declared)
    begins = warm_start.InitialWeights(
        dataclasses.replace(checkpoint, config=small, params=params), 0
    )
    sizes = ModelConfig(
        hidden_size=35, num_hidden_layers=5, num_attention_heads=5, intermediate_size=61
    )
    large = merge_sizes(sizes, enlarge(small, sizes, "A"), "A")
    tiled = warm_start.tile_weights(begins, large)
    assert "; tiled from 2 layers of 14" in tiled.describe()
    found, source = name_leaves(tiled.checkpoint.params), name_leaves(params)

    # Layers 0 to 4 are 0, round(.4), round(.8), round(1.2) and round(1.6), but at most 1.
    expected = {}
    for path, array in source.items():
        top, *rest = path.split("/")
        if top != "layers":
            expected[path] = array
            continue
        for number, begins_as in enumerate(("00", "00", "01", "01", "01")):
            if rest[0] == begins_as:
                expected["/".join((top, f"{number:02d}", *rest[1:]))] = array
    for path, array in expected.items():
        name = path.split("/", 2)[-1] if path.startswith("layers/") else path
        if name.startswith(("attention/query", "attention/key", "attention/value")):
            array = wrap_heads(array, array.ndim - 1, 35)
            array = wrap(array, 0, 35) if array.ndim == 2 else array
        elif name == "attention/output/kernel":
            array = wrap(wrap_heads(array, 0, 35), 1, 35)
        else:
            kept = {"mlm/output_bias": (0,), "nsp/bias": (0,), "nsp/kernel": (1,)}
            is_table = name.startswith("embeddings/") and array.ndim == 2
            for axis, size in enumerate(array.shape):
                if axis not in kept.get(name, (0,) if is_table else ()):
                    array = wrap(array, axis, {14: 35, 22: 61}[size])
        np.testing.assert_array_equal(found[path], array, err_msg=path)
    # A second layer that begins as the first, which has no norm, has one of its own.
    missing = name_leaves(bert.build(tiled.checkpoint.config, "cpu").declared).keys() - found.keys()
    if changes:
        assert missing == {"layers/01/attention/layer_norm/scale", "nsp/kernel", "nsp/bias"}
    else:
        assert not missing
    assert found.keys() == expected.keys()


def test_a_head_that_is_tiled_alone_is_that_of_modernberts_base_in_its_large():
    """Their rule counts numbers, not heads: from 12 heads of 64 to 16 both say the same."""
    array = np.arange(768 * 3).reshape(3, 768)
    by_number = np.take(array, (np.arange(1024) - 128) % 768, axis=1)
    np.testing.assert_array_equal(warm_start._tile_axis(array, 1, 1024, 64), by_number)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"hidden_size": 7, "num_attention_heads": 1}, "hidden_size is 7, but .* has 14, and"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1, but .* has 2, and"),
        ({"intermediate_size": 21}, "intermediate_size is 21, but .* has 22, and"),
        (
            {"hidden_size": 28, "num_attention_heads": 2},
            "heads of width 14, but .* has heads of width 7",
        ),
        ({"num_attention_heads": 1}, "num_attention_heads is 1, but .* has 2, and"),
    ],
)
def test_tiles_make_nothing_smaller_and_cut_no_head(checkpoint, sizes, words):
    given = {"hidden_size": 14, "num_hidden_layers": 2, "num_attention_heads": 2}
    given = ModelConfig(**(given | {"intermediate_size": 22} | sizes))
    with pytest.raises(ValueError, match=words):
        enlarge(checkpoint.config, given, "A")


def test_embeddings_that_would_need_no_map_any_more_are_not_tiled(checkpoint):
    small = dataclasses.replace(checkpoint.config, embedding_size=28)
    given = ModelConfig(hidden_size=28, num_attention_heads=4)
    with pytest.raises(ValueError, match="hidden_size is 28, the width of the embeddings of"):
        enlarge(small, given, "A")
    equal = dataclasses.replace(checkpoint.config, embedding_size=14)
    assert enlarge(equal, given, "A").embedding_size == 0
    mapped = dataclasses.replace(equal, embedding_projection=True)
    assert enlarge(mapped, given, "A").embedding_size == 14


@pytest.mark.long
def test_a_run_begins_tiled_and_resumes_without_the_smaller_one(config, first, tmp_path):
    """It needs config.init_tile, takes longer rows beside, and is another run without it."""
    before, _ = first
    sizes = {"hidden_size": 48, "num_attention_heads": 6, "num_hidden_layers": 3}
    larger = dataclasses.replace(
        config,
        init=f"orbax:{tmp_path / 'first'}",
        init_tile=True,
        model=ModelConfig(**sizes, intermediate_size=99, max_position_embeddings=31),
    )
    without = dataclasses.replace(larger, init_tile=False)
    with pytest.raises(ValueError, match=r"hidden_size is 48, .* has 32; .* config.init_tile=True"):
        begun(without, tmp_path / "second")
    assert resolve(larger, warm_start.read_sizes(larger)).model.hidden_size == 48
    after, setup = begun(larger, tmp_path / "second")
    assert setup.parts.model.config.num_hidden_layers == 3
    words = dict(setup.data_rows)["weights"]
    assert words.endswith("learned positions are repeated up to 31; tiled from 1 layers of 32")
    table = before["embeddings"]["position"]["embedding"]
    expected = wrap(np.concatenate([table, table[:7]]), 1, 48)
    np.testing.assert_array_equal(after["embeddings"]["position"]["embedding"], expected)
    # Without its checkpoints it begins afresh; with them it needs no other.
    shutil.rmtree(tmp_path / "second" / "checkpoints")
    afresh = dataclasses.replace(larger, checkpoint=CheckpointConfig(fresh=True))
    again, _ = begun(afresh, tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, again, after)
    (tmp_path / "first").rename(tmp_path / "gone")
    again, _ = begun(larger, tmp_path / "second")
    jax.tree.map(np.testing.assert_array_equal, again, after)
    with pytest.raises(ValueError, match=r"config.init_tile = True, this config says False"):
        begun(dataclasses.replace(without, model=ModelConfig()), tmp_path / "second")
