"""Fine-tuning in process: it learns, its record, what it is read back as, what is refused."""

import dataclasses
import itertools
import json
import pathlib
import shlex
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from bert_jax import finetune
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.checkpoint.reader import read_arrays
from bert_jax.config import CheckpointConfig, ComputeConfig, MeshConfig, ModelConfig, OptimConfig
from bert_jax.config.finetune_schema import FinetuneConfig, PruneConfig, TaskOptions, with_length
from bert_jax.finetuning import setup as finetuning
from bert_jax.finetuning.feed import TaskFeed, describe_phases
from bert_jax.finetuning.objectives import TERM
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import Pretrained
from bert_jax.model.bert import Heads
from bert_jax.parallel import processes
from bert_jax.runtime import resume, run_record
from bert_jax.runtime.workdir import open_local_workdir
from bert_jax.tasks.registry import open_task
from bert_jax.train_step.objectives import Term
from bert_jax.trainer import loop
from data_pipeline.io import Refused
from data_pipeline.spec.schema import GOOGLE, TRANSFORMERS
from tests.bert_jax.small_checkpoints import tensors, write
from tests.bert_jax.tasks.glue_layouts import small_vocabulary, write_glue

TRANSFORMED = ModelConfig(pooler_type="mlm_transform")
WORDS = {"yes": ("a", "cat", "sees"), "no": ("a", "dog", "sees")}


def table(folder, name, rows, seed):
    """Texts of cats that see are of class yes, of dogs no."""
    rng = np.random.default_rng(seed)
    lines = ["text,label"]
    for _ in range(rows):
        label = rng.choice(["yes", "no"])
        words = rng.choice(WORDS[label], rng.integers(2, 9))
        lines.append(f"{' '.join(words)},{label}")
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    table(folder, "train.csv", 210, seed=1)
    table(folder, "dev.csv", 61, seed=2)
    checkpoint = write(folder / "checkpoint", tensors(has_heads=False))
    return FinetuneConfig(
        init=f"hf:{checkpoint}",
        data=TaskOptions(
            task="table",
            dir=str(folder),
            train_file="train.csv",
            dev_file="dev.csv",
            text_column="text",
            label_column="label",
            max_seq_length=19,
        ),
        epochs=8.0,
        batch_size=16,
        model=ModelConfig(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0),
        optim=OptimConfig(name="adamw", learning_rate=2e-2, warmup_steps=0),
        checkpoint=CheckpointConfig(keep_every_steps=20),
        log_every_steps=10,
    )


def build(config, workdir, devices=1, **data):
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **data))
    return finetuning.build_finetuning(config, workdir, jax.devices()[:devices])


def run(config, workdir, devices=1):
    setup = build(config, workdir, devices)
    return setup, loop.train(setup)


def run_until_cut_off(config, workdir, monkeypatch, step):
    """End a run right after it has saved this step."""
    save = loop.TrainingRun._save

    def save_and_die(self):
        save(self)
        if self.step == step:
            raise RuntimeError("cut off")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="cut off"):
        patch.setattr(loop.TrainingRun, "_save", save_and_die)
        run(config, workdir)


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    return (*run(config, workdir), workdir)


def lines(workdir, split):
    text = (workdir / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["split"] == split]


@pytest.mark.slow
def test_the_seed_draws_the_layer_of_the_task(config, tmp_path):
    drawn = []
    for number, seed in enumerate((0, 1, 1)):
        setup = build(dataclasses.replace(config, seed=seed), tmp_path / str(number))
        drawn.append(name_leaves(setup.initial_params()))
    (layer,) = (path for path in drawn[0] if path.startswith("classifier") and "kernel" in path)
    assert np.any(drawn[0][layer] != drawn[1][layer])
    for path, array in drawn[1].items():
        np.testing.assert_array_equal(array, drawn[2][path])
        np.testing.assert_equal(array.shape, drawn[0][path].shape)


def test_the_batch_of_a_step_has_the_examples_that_its_record_names(config, tmp_path):
    """Step 14 ends the first epoch of 210 examples: 208 to 223 are of both."""
    feed = build(config, tmp_path / "run").feed
    rows = feed.task.splits["train"]
    for step in (1, 14, 105):
        located = feed.locate_step(step)
        positions = np.arange(16 * (step - 1), 16 * step)
        np.testing.assert_array_equal(located.positions_B, positions)
        np.testing.assert_array_equal(located.epoch_B, positions // 210)
        batch = next(feed.train_batches(0, step - 1, np.arange(feed.config.phases[0].batch_size)))
        given = [rows.row(number).token_ids for number in located.index_B]
        tokens = batch["input_ids"][batch["input_mask"] > 0]
        assert sorted(tokens) == sorted(itertools.chain(*given))
    # The order is that of its own seed, whatever that of the weights is.
    orders = []
    for seed, order_seed in ((1, 5), (2, 5), (1, 6)):
        seeded = dataclasses.replace(config, seed=seed)
        other = build(seeded, tmp_path / f"{seed}_{order_seed}", order_seed=order_seed).feed
        orders.append(other.locate_step(3).index_B.tolist())
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.slow
def test_it_learns_and_says_how_far(finished):
    setup, summary, workdir = finished
    assert summary["steps"] == int(210 / 16 * 8.0) == 105
    scores = lines(workdir, "heldout")
    assert [line["step"] for line in scores] == [*range(14, 105, 14), 105]
    last = scores[-1]
    assert last["dev_accuracy"] > last["majority_dev_accuracy"] + 0.1
    assert summary["heldout_dev_accuracy"] == last["dev_accuracy"]
    assert lines(workdir, "train")[-1]["task_loss"] < lines(workdir, "train")[0]["task_loss"]
    assert setup.config.optim.warmup_steps == 10


@pytest.mark.slow
def test_predictions_are_of_the_last_checkpoint_and_score_as_the_run_says(finished, config):
    setup, summary, workdir = finished
    (path,) = finetune.write_predictions(setup, summary["steps"])
    assert path.parent == workdir / "predictions"
    given = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    dev = pathlib.Path(setup.config.data.dir, "dev.csv").read_text()
    labels = [line.rpartition(",")[2] for line in dev.splitlines()[1:]]
    assert len(given) == len(labels) == 61
    right = np.mean([one == other for one, other in zip(given, labels, strict=True)])
    assert right == pytest.approx(summary["heldout_dev_accuracy"])
    text = path.read_bytes()
    path.unlink()
    fresh = build(config, workdir)
    assert finetune.write_predictions(fresh, summary["steps"]) == [path]
    assert path.read_bytes() == text

    class Unwritable(str):
        def encode(self):
            raise OSError("no space left")

    def half(split, logits):
        return {"half.tsv": "half", "other.tsv": Unwritable()}

    fresh.feed.task = dataclasses.replace(fresh.feed.task, format_predictions=half)
    with pytest.raises(OSError, match="no space left"):
        finetune.write_predictions(fresh, summary["steps"])
    assert list(path.parent.iterdir()) == [path] and path.read_bytes() == text


@pytest.fixture
def lstm_config(config):
    return dataclasses.replace(
        config,
        epochs=4.0,
        model=dataclasses.replace(config.model, bilstm_units=12),
        optim=dataclasses.replace(config.optim, learning_rate=1e-2),
    )


@pytest.mark.long
def test_lstms_have_no_place_elsewhere(lstm_config, tmp_path):
    setup = build(lstm_config, tmp_path / "run")
    with pytest.raises(ValueError, match=r"bilstm_units = 12, this"):
        build(
            dataclasses.replace(lstm_config, model=ModelConfig(bilstm_units=13)), tmp_path / "run"
        )
    params, words = setup.initial_params(), setup.feed.vocabulary
    assert "bilstm" in params and "pooler" not in params
    checkpoint = Pretrained("orbax:run", setup.parts.models[0].config, params, words)
    for scheme in ("hf", "google"):
        target = export.parse_target(f"{scheme}:{tmp_path / scheme}/")
        with pytest.raises(ValueError, match=r"config\.model\.bilstm_units = 12"):
            export.keep_supported(checkpoint, target)
    encoder = export.keep_supported(checkpoint, export.parse_target(f"orbax:{tmp_path / 'own'}"))
    assert encoder.params.keys() == {"embeddings", "layers"} and encoder.config.bilstm_units == 0


@pytest.mark.long  # that a run resumes is seen in test_prune.py
def test_a_run_with_lstms_resumes_and_is_read_back(lstm_config, tmp_path, monkeypatch):
    config, workdir = lstm_config, tmp_path / "run"
    run_until_cut_off(config, workdir, monkeypatch, step=20)
    setup, summary = run(config, workdir)
    assert summary["heldout_dev_accuracy"] > lines(workdir, "heldout")[-1]["majority_dev_accuracy"]
    (path,) = finetune.write_predictions(setup, summary["steps"])
    given = path.read_bytes()
    path.unlink()
    assert finetune.write_predictions(build(config, workdir), summary["steps"]) == [path]
    assert path.read_bytes() == given
    # As predict reads it, and as the checkpoint to begin with.
    checkpoint, _ = load.load_fine_tuned(str(workdir))
    assert "bilstm" in checkpoint.params and "pooler" not in checkpoint.params
    for units in (0, 12):
        again = dataclasses.replace(
            config, init=str(workdir), model=ModelConfig(bilstm_units=units)
        )
        fresh = build(again, tmp_path / f"again-{units}").initial_params()
        assert ("bilstm" in fresh, "pooler" in fresh) == (units > 0, units == 0)
        if units:
            kernel = fresh["bilstm"]["00"]["forward"]["input"]
            assert np.any(kernel != checkpoint.params["bilstm"]["00"]["forward"]["input"])
    target = export.parse_target(f"orbax:{tmp_path / 'encoder'}")
    export.write(export.keep_supported(checkpoint, target), target, ())
    encoder = load.load(str(target.folder))
    assert encoder.params.keys() == {"embeddings", "layers"} and encoder.config.bilstm_units == 0


@pytest.mark.slow
def test_the_record_names_the_task_and_refuses_another(finished, config, tmp_path):
    setup, _, workdir = finished
    recorded = json.loads((workdir / "run.json").read_text())
    assert recorded["learns"] == setup.feed.provenance.learns
    assert recorded["task"]["kind"] == "classify" and recorded["task"]["labels"] == ["no", "yes"]
    with pytest.raises(ValueError, match=r"holds a run with config\.data\.order_seed = 0, this"):
        build(config, workdir, order_seed=1)
    with pytest.raises(ValueError, match="fine-tun"):
        run_record.read(workdir)
    # The units of predicted numbers are kept too.
    task = dataclasses.replace(setup.feed.task, kind="regress", mean=300.0, deviation=40.0)
    of_numbers = TaskFeed(task, setup.feed.vocabulary, setup.config)
    shutil.copy(workdir / "vocab.txt", tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(recorded | of_numbers.provenance.details))
    read = run_record.read_model(tmp_path).task
    assert (read.kind, read.mean, read.deviation) == ("regress", 300.0, 40.0)
    # A run of pre-training is refused with the way to begin with it.
    again = shutil.copytree(workdir, tmp_path / "run")
    del recorded["task"], recorded["config"]["data"]["pair_truncation"]  # which tasks alone have
    (again / "run.json").write_text(json.dumps(recorded | {"learns": "pre-training"}))
    with pytest.raises(ValueError, match="holds a run of pre-training") as refused:
        build(config, again)
    assert f"--config.init=orbax:{again}" in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.slow
def test_a_test_file_given_after_the_end_gets_its_predictions(finished, config, tmp_path):
    _, summary, workdir = finished
    again = shutil.copytree(workdir, tmp_path / "run")
    shutil.copy(pathlib.Path(config.data.dir, "dev.csv"), pathlib.Path(config.data.dir, "new.csv"))
    setup = build(config, again, test_file="new.csv")
    assert loop.train(setup)["steps"] == summary["steps"]
    dev, test = finetune.write_predictions(setup, summary["steps"])
    assert (dev.name, test.name) == ("dev.tsv", "test.tsv")
    assert test.read_bytes() == dev.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"init": ""}, "config.init is ''; give the checkpoint"),
        ({"epochs": 0.01}, "210 examples, in config.epochs = 0.01 fewer than one batch"),
        ({"micro_batches": 3}, "config.micro_batches is 3; it must divide batch_size = 16"),
        ({"optim": OptimConfig(warmup_steps=5)}, "warmup_steps is 5; .*warmup_share"),
        ({"model": ModelConfig(hidden_size=96)}, "config.model.hidden_size is 96, but .* has 14"),
        ({"model": ModelConfig(bilstm_units=8, pooler_type="relu")}, "pooler_type is 'relu'"),
        ({"data": {"max_seq_length": 20}}, "max_seq_length is 20, and .* has 19 positions"),
        ({"data": {"task": "tabel"}}, "config.data.task is 'tabel'; it must be one of "),
        ({"data": {"dir": ""}}, "config.data.dir is missing: the folder with the files of table"),
        ({"init_layers": "0,2"}, r"init_layers is '0,2', and .* has 2 layers"),
        ({"init_layers": "1,"}, r"init_layers is '1,'"),
        ({"prune": PruneConfig(intermediate_size=44)}, r"prune\.intermediate_size is 44"),
        ({"prune": PruneConfig(intermediate_size=11), "mesh": MeshConfig(preset="tp")}, "is 11, "),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(config, tmp_path, changes, words):
    data = changes.get("data", {})
    changed = {name: value for name, value in changes.items() if name != "data"}
    with pytest.raises(ValueError, match=words):
        build(dataclasses.replace(config, **changed), tmp_path / "run", devices=2, **data)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_from_scratch_has_the_sizes_of_the_checkpoint_and_none_of_its_weights(config, tmp_path):
    def first_weights(name, **changes):
        setup = build(dataclasses.replace(config, **changes), tmp_path / name)
        return name_leaves(setup.initial_params())

    known = name_leaves(load.load(config.init).params)
    given, new = first_weights("given"), first_weights("new", from_scratch=True)
    other = first_weights("other", from_scratch=True, seed=1)
    # A pooler of another kind is left out of the checkpoint, and everything else too.
    relu = dataclasses.replace(config.model, pooler_type="relu")
    jax.tree.map(
        np.testing.assert_array_equal, first_weights("relu", from_scratch=True, model=relu), new
    )
    assert given.keys() == new.keys() > {"embeddings/word/embedding", "pooler/kernel"}
    np.testing.assert_array_equal(given["pooler/kernel"], known["pooler/kernel"])
    for path, weights in new.items():
        assert weights.shape == given[path].shape
        if path.endswith(("kernel", "embedding")):
            assert np.any(weights != given[path]) == (path != "classifier/kernel"), path
            assert np.any(weights != other[path]), path
            assert abs(weights).max() <= 2 * 0.02 + 1e-6, path  # two deviations of BERT's 0.02


def test_the_length_is_that_of_the_checkpoint_where_nobody_says_it(config, tmp_path):
    setup = build(config, tmp_path, max_seq_length=0)
    assert setup.feed.config.data.max_seq_length == 19  # the positions of the checkpoint
    shown = json.loads((tmp_path / "run.json").read_text())
    assert shown["config"]["data"]["max_seq_length"] == 19
    usual = [with_length(TaskOptions(task=name), 512).max_seq_length for name in ("rte", "squad")]
    assert usual == [128, 384]


@pytest.mark.slow
def test_a_fine_tuned_model_is_read_back_and_may_be_fine_tuned_again(finished, config, tmp_path):
    _, summary, workdir = finished
    read = load.load(str(workdir))
    assert read.heads == Heads(mlm=False, nsp=False, classes=2)
    again = dataclasses.replace(config, init=str(workdir), seed=3)
    fresh = build(again, tmp_path).initial_params()
    held = read_arrays(workdir / "checkpoints", summary["steps"])
    word = "embeddings/word/embedding"
    np.testing.assert_array_equal(
        fresh["embeddings"]["word"]["embedding"][:23], held[f"params/{word}"]
    )
    assert np.any(fresh["classifier"]["kernel"] != held["params/classifier/kernel"])


def open_glue(name, tmp_path):
    options = TaskOptions(task=name, dir=str(write_glue(tmp_path / "glue")), max_seq_length=128)
    vocabulary = small_vocabulary(tmp_path)
    config = FinetuneConfig(init="hf:none", data=options, batch_size=2)
    return open_task(options, vocabulary), config, vocabulary


def test_the_score_that_decides_has_the_name_that_it_is_recorded_under(tmp_path):
    task, config, vocabulary = open_glue("mnli", tmp_path)  # it has several development sets
    feed = TaskFeed(task, vocabulary, finetuning.resolve_config(config, task, ModelConfig()))
    (phase,) = describe_phases(feed)
    sums = {"terms": {TERM: Term(jnp.float32(1.0), jnp.float32(1.0))}, "weights": {TERM: 2.0}}
    results = [
        sums | {"outputs": np.zeros((len(batch["label_ids"]), 3), np.float32)}
        for batch in phase.heldout_batches
    ]
    assert task.main_record == "dev_matched_accuracy"
    assert task.main_record in phase.score(results)


def test_the_score_of_a_type_that_is_named_a_loss_is_shown(monkeypatch):
    task = types.SimpleNamespace(dev_splits=("dev",), baseline={"f1": 0.0})
    feed = types.SimpleNamespace(task=task)
    monkeypatch.setattr(finetune, "task_feed", lambda setup: feed)
    scores = {"dev_loss": 0.5, "dev_f1": 0.8, "dev_f1_blood_loss": 0.25}
    summary = {"steps": 3, **{f"heldout_{name}": value for name, value in scores.items()}}
    rows = finetune.score_rows(None, summary)
    assert rows == [("scores", "f1 0.8000 (majority 0.000)"), ("", "f1_blood_loss 0.2500")]


def test_next_tokens_are_not_learned_by_a_model_that_sees_them(config, tmp_path):
    given = dataclasses.replace(config, causal_weight=0.5)
    with pytest.raises(Refused, match=r"causal_weight is 0\.5"):
        finetuning.build_finetuning(given, tmp_path)


def test_a_resumed_run_keeps_the_weight_of_next_tokens(tmp_path):
    """It decides whether the model has a head for them."""
    task, config, vocabulary = open_glue("cola", tmp_path)
    before, now = (
        TaskFeed(task, vocabulary, dataclasses.replace(resolved, causal_weight=weight))
        for resolved in [finetuning.resolve_config(config, task, ModelConfig(is_causal=True))]
        for weight in (0.0, 0.5)
    )
    record = run_record.build_record(before.config, before.provenance)
    storage = open_local_workdir(tmp_path / "run")
    words = r"config\.causal_weight = 0\.0, this config says 0\.5"
    with pytest.raises(Refused, match=words):
        resume.can_resume(storage, now.config, now.provenance, record)


@pytest.mark.parametrize(
    ("checkpoint", "changes", "words"),
    [
        (
            {"embedding_size": 128},
            {"model": TRANSFORMED},
            r"pooler_type is 'mlm_transform'; .* 128",
        ),
        ({"mlm_transform": False}, {"model": TRANSFORMED}, r"pooler_type is 'mlm_transform'"),
        (
            {"local_attention": 8, "global_attn_every_n_layers": 3},
            {"compute": ComputeConfig(rolled_layers=True)},
            r"rolled_layers is True; layers differ",
        ),
    ],
)
def test_what_the_checkpoint_cannot_do_is_refused(tmp_path, checkpoint, changes, words):
    task, config, _ = open_glue("cola", tmp_path)
    config = dataclasses.replace(config, **changes)
    with pytest.raises(Refused, match=words):
        finetuning.resolve_config(config, task, ModelConfig(**checkpoint))


def test_a_causal_checkpoint_stays_causal(tmp_path):
    task, config, _ = open_glue("cola", tmp_path)
    for is_causal in (False, True):
        resolved = finetuning.resolve_config(config, task, ModelConfig(is_causal=is_causal))
        assert resolved.model.is_causal == is_causal


def test_rows_are_made_as_the_checkpoint_or_the_run_that_is_resumed_makes_them(config, tmp_path):
    assert build(config, tmp_path / "new").config.data.pair_truncation == TRANSFORMERS
    given = build(config, tmp_path / "given", pair_truncation=GOOGLE)
    assert given.config.data.pair_truncation == GOOGLE
    path = tmp_path / "new" / "run.json"
    record = json.loads(path.read_text())
    assert record["vocabulary"]["template"]["single"] == [[2, 0], ["A", 0], [3, 0]]
    with pytest.raises(Refused, match="pair_truncation"):
        build(config, tmp_path / "new", pair_truncation=GOOGLE)


def test_processes_agree_unless_their_settings_differ(config, tmp_path, monkeypatch):
    first, other = (build(config, tmp_path / name, test_file=name).feed for name in ("", "dev.csv"))
    given = []

    def agree(name, value, limit_secs):
        given.append(value)
        return [given[0], value]

    monkeypatch.setattr(processes, "agree", agree)
    resume.check_processes_agree(first.config, first.provenance, {})
    with pytest.raises(Refused, match=r"data\.test_file = '' process 0 has, process 1 has 'dev"):
        resume.check_processes_agree(other.config, other.provenance, {})


def test_processes_with_other_development_sets_are_refused(config, tmp_path, monkeypatch):
    folder, given = shutil.copytree(config.data.dir, tmp_path / "task"), []

    def agree(name, value, limit_secs):
        if name != "the config and the store":
            return [value]
        given.append(value)
        return [given[0], value]

    monkeypatch.setattr(processes, "agree", agree)
    build(config, tmp_path / "0", dir=str(folder))
    table(folder, "dev.csv", 61, seed=3)
    with pytest.raises(Refused, match=r"data \(digest of dev\) = .* process 1 has"):
        build(config, tmp_path / "1", dir=str(folder))


def test_a_run_keeps_one_file_of_a_vocab_json_and_its_merges(config, tmp_path):
    """Its workdir is read and resumed without the folder that the run began with."""
    checkpoint = tmp_path / "checkpoint"
    library = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    library.train_from_iterator(["a cat sees a dog"] * 9, 270, special_tokens=special)
    rows = library.get_vocab_size()
    held = tensors(has_heads=False)
    held["bert.embeddings.word_embeddings.weight"] = np.zeros((rows, 14), np.float32)
    write(checkpoint, held, vocab_size=rows)
    (checkpoint / "vocab.txt").unlink()
    library.save_model(str(checkpoint))
    (checkpoint / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    config = dataclasses.replace(config, init=f"hf:{checkpoint}")
    began_with = build(config, tmp_path / "run").feed.vocabulary
    read = run_record.read_model(tmp_path / "run").vocabulary
    assert read.path == tmp_path / "run" / "tokenizer.json"
    ids = [words.encode(["a cat sees"])[0].tolist() for words in (began_with, read)]
    assert ids[0] == ids[1] and read.digest == began_with.digest


@pytest.mark.slow
def test_a_run_with_its_own_weights_resumes_without_the_checkpoint(config, tmp_path, monkeypatch):
    """As from a step of another run, which keeps its newest ones alone."""
    checkpoint = shutil.copytree(config.init.removeprefix("hf:"), tmp_path / "checkpoint")
    config = dataclasses.replace(config, init=f"hf:{checkpoint}", epochs=4.0)
    run_until_cut_off(config, tmp_path / "run", monkeypatch, step=20)
    whole, _ = run(config, tmp_path / "whole")
    shutil.rmtree(checkpoint)
    for fresh, workdir in ((False, "new"), (True, "run")):
        again = dataclasses.replace(config.checkpoint, fresh=fresh)
        with pytest.raises(Refused, match=r"'hf:.*checkpoint' is not a folder"):
            build(dataclasses.replace(config, checkpoint=again), tmp_path / workdir)
    resumed, _ = run(config, tmp_path / "run")
    assert "cannot be read now" in resumed.data_rows[0][1]
    last = sum(phase.steps for phase in whole.config.phases)
    arrays = [read_arrays(tmp_path / name / "checkpoints", last) for name in ("whole", "run")]
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])


def test_the_command_that_predicts_new_rows_can_be_pasted(monkeypatch):
    commands = []
    screen = types.SimpleNamespace(
        table=lambda title, rows: None, command=lambda command, before: commands.append(command)
    )
    storage = types.SimpleNamespace(address="runs/a task")
    for module, name in (
        (finetune, "score_rows"),
        (finetune, "write_predictions"),
        (finetune.run, "describe_result"),
    ):
        monkeypatch.setattr(module, name, lambda *_: [])
    finetune._finish(types.SimpleNamespace(screen=screen, storage=storage), {"steps": 3})
    (command,) = commands
    assert "--checkpoint=runs/a task" in shlex.split(command)
