"""New rows get what the run itself writes for the same rows: of every task, from run and export."""

import csv
import dataclasses
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet
import pytest
import safetensors.numpy

from bert_jax import finetune, predict
from bert_jax.checkpoint.manager import Checkpoints
from bert_jax.config.finetune_schema import FinetuneConfig, TaskOptions
from bert_jax.finetuning import setup as finetuning
from bert_jax.interop import export as conversion
from bert_jax.interop import huggingface, load, pretrained
from bert_jax.model.bert import Heads
from bert_jax.tasks import table_pieces
from bert_jax.tasks.ner.predict import TagPredictor
from bert_jax.tasks.predict_table import TablePredictor
from bert_jax.tasks.predicting import PredictRequest
from bert_jax.tasks.squad.predict import AnswerPredictor
from bert_jax.tasks.task_layer import TaskLayer
from bert_jax.train_step.state import TrainState
from tests.bert_jax.small_checkpoints import tensors, write
from tests.bert_jax.tasks.tiny_vocabulary import vocabulary_of

WORDS = ("a", "cat", "dog", "sees", "cats", ".")
ROWS = 23
KINDS = {"tag": TagPredictor, "span": AnswerPredictor}


def text(rng, most=12):
    return " ".join(rng.choice(WORDS, rng.integers(1, most)))


def write_table(path, rng, rows, columns):
    lines = ["\t".join(columns)]
    lines += ["\t".join(str(make(rng)) for make in columns.values()) for _ in range(rows)]
    path.write_text("\n".join(lines) + "\n")


def class_(rng):
    return rng.choice(["no", "yes", "so"])


COLUMNS = {
    "table": {"id": text, "text": text, "label": class_},
    "regression": {"text": text, "label": lambda rng: rng.normal(300.0, 40.0)},
    "rte": {
        "index": lambda rng: rng.integers(10**6),
        "sentence1": text,
        "sentence2": text,
        "label": lambda rng: rng.choice(["entailment", "not_entailment"]),
    },
}


def write_ner(path, rng, rows):
    sentences = [
        "".join(f"{word} {rng.choice(['O', 'B-X', 'B-Y'])}\n" for word in text(rng).split())
        for _ in range(rows)
    ]
    path.write_text("\n".join([*sentences, "cat B-X\ndog B-Y\n"]))


def write_squad(path, rng, rows):
    paragraphs = []
    for number in range(rows):
        context = text(rng, 30)
        answers = [{"text": context.split()[0], "answer_start": 0}] * (number % 3 > 0)
        qa = {"id": f"q{number}", "question": text(rng, 4), "answers": answers}
        paragraphs.append({"context": context, "qas": [qa | {"is_impossible": not answers}]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))


def write_codah(path, rng, rows):
    lines = [
        "\t".join(["c", text(rng), *(text(rng, 6) for _ in range(4)), str(rng.integers(4))])
        for _ in range(rows)
    ]
    path.write_text("\n".join(lines) + "\n")


WRITERS = {"ner": write_ner, "squad": write_squad, "codah": write_codah}


FILES = {"squad": "{}-v2.0.json", "ner": "{}.txt"}
OPTIONS = {
    # Texts of up to 11 tokens in windows of 8.
    "regression": {
        "task": "table",
        "is_regression": True,
        "max_seq_length": 10,
        "window_stride": 5,
    },
    "squad": {"has_unanswerable": True, "max_query_length": 4, "doc_stride": 5},
}


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(task, marks=pytest.mark.slow) for task in ("table", "ner")),
        *(
            pytest.param(task, marks=pytest.mark.long)
            for task in ("squad", "codah", "regression", "rte")
        ),
    ],
)
def run(request, tmp_path_factory):
    """Task, workdir of a run that has saved a checkpoint, its dev file, what it predicts for it."""
    return small_run(request.param, tmp_path_factory.mktemp(request.param))


def small_run(task, folder):
    rng = np.random.default_rng(3)
    name = FILES.get(task, "{}.tsv")
    for split in ("train", "dev"):
        path = folder / name.format(split)
        if task in COLUMNS:
            write_table(path, rng, ROWS, COLUMNS[task])
        else:
            WRITERS[task](path, rng, ROWS)
    options = {"task": task, "dir": str(folder), "max_seq_length": 16} | OPTIONS.get(task, {})
    if options["task"] == "table":
        options |= {"text_column": "text", "label_column": "label"}
    config = FinetuneConfig(
        init=f"hf:{write(folder / 'init', tensors(has_heads=False))}",
        data=TaskOptions(**options),
        batch_size=4,
    )
    setup = finetuning.build_finetuning(config, folder / "run", jax.devices()[:1])
    with jax.set_mesh(setup.parts.mesh):
        params = setup.initial_params()
        params["classifier"]["kernel"] *= 400.0  # or all probabilities are about equal
        if task in COLUMNS:  # or one class has the largest in all rows
            logits = finetune.predict_splits(setup, params, ["dev"])["dev"]
            params["classifier"]["bias"] -= logits.mean(axis=0)
        saving = Checkpoints(folder / "run" / "checkpoints", config.checkpoint, setup.parts.model)
        saving.save(1, TrainState(jnp.int32(1), params, (), ()), {})
        saving.close()
        written = finetune.write_predictions(setup, 1)
    return task, folder / "run", folder / name.format("dev"), written


def predicted(address, source, output, **asked):
    """Predict a file in this process, on one device; what was opened and the rows of its pieces."""
    checkpoint, layer = load.load_fine_tuned(str(address))
    given = PredictRequest(source, output, layer, checkpoint.vocabulary, **asked)
    rows = KINDS.get(layer.kind, TablePredictor)(given, lambda count: None)
    heads = Heads(mlm=False, nsp=False, classes=checkpoint.heads.classes)
    model = pretrained.place_model(checkpoint, heads, jax.devices()[:1])
    logits = predict.prepare_logits(model, layer.kind, rows, lambda words: None, batch_size=8)
    pieces = []

    def spied(of_piece, count):
        pieces.append(of_piece.examples)
        return logits(of_piece, count)

    rows.run(spied)
    return rows, pieces


def table_of(path):
    text = path.read_text()
    delimiter = "\t" if path.suffix == ".tsv" else ","
    return list(csv.DictReader(text.splitlines(), delimiter=delimiter, quoting=csv.QUOTE_NONE))


def output_for(task, folder, stem="out"):
    return folder / f"{stem}{ {'ner': '.conll', 'squad': '.json'}.get(task, '.tsv') }"


def test_the_rows_of_dev_get_what_the_run_wrote_for_them(run, tmp_path):
    task, workdir, source, written = run
    output = output_for(task, tmp_path)
    rows, _ = predicted(workdir, source, output)
    assert rows.total == ROWS + (task == "ner")
    if task == "ner":
        ours = [line.split("\t") for line in output.read_text().splitlines()]
        theirs = [line.split(" ") for line in written[0].read_text().splitlines()]
        assert [row[:-1] if row != [""] else row for row in ours] == theirs
        assert all(0 < float(row[-1]) <= 1 for row in ours if row != [""])
        return
    if task == "squad":
        threshold, *theirs = [json.loads(path.read_text()) for path in written]
        # The threshold is the odds of a question: that one goes either way by a rounding.
        border = threshold["null_threshold"] + np.array([-1e-2, 1e-2])
        clear = [key for key, odd in theirs[2].items() if not border[0] < odd < border[1]]
        answers = json.loads(output.read_text())
        assert list(answers) == list(theirs[0]) and len(clear) >= ROWS - 1
        assert [answers[key] for key in clear] == [theirs[0][key] for key in clear]
        ours = json.loads(output.with_suffix(".nbest.json").read_text())
        assert [[one["text"] for one in best] for best in ours.values()] == [
            [one["text"] for one in best] for best in theirs[1].values()
        ]
        for best in ours.values():
            assert sum(one["probability"] for one in best) == pytest.approx(1.0)
        odds = json.loads(output.with_suffix(".null_odds.json").read_text())
        assert odds == pytest.approx(theirs[2], rel=1e-4, abs=1e-2)
        assert f"{threshold['null_threshold']:.4g}" in dict(rows.summary_rows())["no answer"]
        every = output.with_name("every.json")
        predicted(workdir, source, every, null_threshold=1e9)
        best = [next(one["text"] for one in texts if one["text"]) for texts in ours.values()]
        assert list(json.loads(every.read_text()).values()) == best
        return
    ours, theirs = table_of(output), table_of(written[0])
    source_rows = source.read_text().splitlines()
    assert len(ours) == len(theirs) == ROWS
    names = list(ours[0])
    own = names[: names.index("prediction")]
    kept = ["\t".join(row[name] for name in own) for row in ours]
    assert kept == source_rows[-ROWS:]
    prediction = "pred" if task == "codah" else "prediction"
    if task == "regression":
        numbers = [[float(row["prediction"]) for row in of_one] for of_one in (ours, theirs)]
        np.testing.assert_allclose(*numbers, rtol=1e-4)
        assert np.std(numbers[0]) > 1
        return
    assert [row["prediction"] for row in ours] == [row[prediction] for row in theirs]
    assert len({row["prediction"] for row in ours}) > 1
    for row, their in zip(ours, theirs, strict=True):
        shares = {name: float(row[name]) for name in names if name.startswith("probability_")}
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
        best = f"probability_{row['prediction']}"
        assert shares[best] == max(shares.values()) == float(row["probability"])
        if task == "table":
            assert float(row["probability"]) == pytest.approx(float(their["probability"]), abs=1e-4)
            assert set(shares) == {"probability_no", "probability_so", "probability_yes"}


def assert_about_equal(task, path, other):
    """Compare two outputs, of SQuAD the odds: the threshold is the odds of a question."""
    if task == "squad":
        path, other = (p.with_suffix(".null_odds.json") for p in (path, other))
    numbers, words = [], []
    for text in (path.read_text(), other.read_text()):
        cells = text.replace(",", " ").split()
        is_number = [re.fullmatch(r"-?\d[\d.]*(e[+-]?\d+)?", cell) is not None for cell in cells]
        numbers.append([float(cell) for cell, yes in zip(cells, is_number, strict=True) if yes])
        words.append([cell for cell, yes in zip(cells, is_number, strict=True) if not yes])
    assert words[0] == words[1] and numbers[0]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-3, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    "run",
    [
        "table",
        "ner",
        *(pytest.param(t, marks=pytest.mark.long) for t in ("squad", "codah", "regression")),
    ],
    indirect=True,
)
def test_an_export_predicts_what_its_run_does(run, tmp_path):
    task, workdir, source, _ = run
    export, alone = tmp_path / "export", output_for(task, tmp_path, "run")
    target = conversion.parse_target(f"hf:{export}")
    conversion.write(conversion.keep_supported(load.load(str(workdir)), target), target, ())
    predicted(workdir, source, alone)
    predicted(f"hf:{export}", source, output_for(task, tmp_path, "export"))
    assert_about_equal(task, alone, output_for(task, tmp_path, "export"))
    config = json.loads((export / huggingface.CONFIG).read_text())
    assert str(source.parent) not in json.dumps(config)
    if task not in ("table", "ner"):
        return
    # As it would come from somebody else: the class and the labels are all that is said.
    del config["bert_jax"]
    (export / huggingface.CONFIG).write_text(json.dumps(config))
    held = safetensors.numpy.load_file(export / huggingface.WEIGHTS)
    if task == "ner":  # a tagger of transformers has no pooler
        held = {name: array for name, array in held.items() if ".pooler." not in name}
    safetensors.numpy.save_file(held, export / huggingface.WEIGHTS, metadata={"format": "pt"})
    theirs = output_for(task, tmp_path, "theirs")
    predicted(f"hf:{export}", source, theirs, **{"text_column": "text"} if task == "table" else {})
    assert theirs.read_text().count("\n") == alone.read_text().count("\n")
    layer = load.load_fine_tuned(f"hf:{export}")[1]
    assert layer.labels == load.load_fine_tuned(str(workdir))[1].labels
    assert layer.options.max_seq_length == 19


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    ["table", *(pytest.param(task, marks=pytest.mark.long) for task in ("ner", "squad"))],
    indirect=True,
)
def test_memory_holds_a_piece_of_the_rows(run, tmp_path, monkeypatch):
    task, workdir, source, _ = run
    whole, cut = (output_for(task, tmp_path, stem) for stem in ("whole", "cut"))
    predicted(workdir, source, whole)
    monkeypatch.setattr(table_pieces, "PIECE_ROWS", 5)
    monkeypatch.setattr("bert_jax.tasks.ner.predict._PIECE_SENTENCES", 5)
    monkeypatch.setattr("bert_jax.tasks.squad.predict._PIECE_QUESTIONS", 5)
    _, pieces = predicted(workdir, source, cut)
    assert len(pieces) == 5
    assert task == "squad" or max(pieces) <= (10 if task == "ner" else 5)  # rows of long sentences
    assert_about_equal(task, whole, cut)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["table", "ner", "squad"], indirect=True)
def test_what_is_no_fine_tuned_model_is_named_with_the_command_that_makes_one(run, tmp_path):
    task, workdir, source, _ = run
    encoder = write(tmp_path / "encoder", tensors(has_heads=False))
    with pytest.raises(ValueError, match=r"is not a fine-tuned model.*python -m bert_jax\.finetu"):
        predicted(f"hf:{encoder}", source, tmp_path / "out.tsv")
    with pytest.raises(ValueError, match=r"--output is .*out\.xls, which ends in '\.xls'"):
        predicted(workdir, source, tmp_path / "out.xls")
    empty = tmp_path / ("empty.json" if task == "squad" else "empty.tsv")
    empty.write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.\w+ (is|has) "):
        predicted(workdir, empty, output_for(task, tmp_path))
    assert not list(tmp_path.glob("out*"))


LAYER = {"name": "x", "kind": "tag", "labels": ["O", "B"]}
LAYERS = {
    "id2label": {"0": "no", "1": "yes"},
    "architectures": ["BertForSequenceClassification"],
}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"architectures": ["BertModel"]},
            r"classifier\.weight, which the model of its config\.json or bert_config\.json has",
        ),
        ({"id2label": {"0": "no"}}, "has 2 outputs, but 1 names"),
        ({"id2label": {"0": "no", "2": "yes"}}, "has no label 1"),
        ({"id2label": ["no", "yes"]}, "'id2label' is a list, not an object"),
        ({"problem_type": "multi_label_classification"}, "several labels or numbers"),
        ({"problem_type": "regression"}, "regression', of 2 outputs: several labels or numbers"),
        ({"bert_jax": {"kind": "knit", "labels": []}}, "'kind' is 'knit'; it must be one of"),
        ({"bert_jax": LAYER}, r"tag \('O', 'B'\) under bert_jax, and BertForSequenceCl.* \('no'"),
        (
            {"bert_jax": LAYER | {"kind": "regress", "labels": []}},
            r"regress \(\) under bert_jax, and BertForSeq.* \('no', 'yes'\) elsewhere; remove",
        ),
        ({"bert_jax": LAYER | {"kind": "classify"}}, "remove bert_jax if the model was fine-tuned"),
        ({"bert_jax": LAYER | {"options": {"y": 1}}}, "options of a task that cannot be read"),
        ({"bert_jax": LAYER | {"options": {"doc_stride": 0}}}, "options.doc_stride is 0; it must"),
    ],
)
def test_an_export_that_contradicts_itself_is_refused(tmp_path, config, words):
    held = tensors(has_heads=False) | {
        "classifier.weight": np.zeros((2, 14), np.float32),
        "classifier.bias": np.zeros(2, np.float32),
    }
    place = write(tmp_path / "theirs", held, **LAYERS)
    layer = load.load_fine_tuned(f"hf:{place}")[1]
    assert (layer.name, layer.labels) == ("BertForSequenceClassification", ("no", "yes"))
    write(place, held, **(LAYERS | config))
    with pytest.raises(ValueError, match=words):
        load.load_fine_tuned(f"hf:{place}")


@pytest.mark.long
def test_the_command_predicts_a_table_and_says_what_it_did(forked, tmp_path):
    _, workdir, source, _ = small_run("table", tmp_path)
    output = tmp_path / "out.parquet"
    given = [f"--checkpoint={workdir}", f"--input={source}", f"--output={output}"]
    said = forked("bert_jax.predict", *given, "--probabilities=best").stdout
    assert "23 rows" in said and str(output) in said
    assert "nothing" not in said and pathlib.Path(output).stat().st_size > 0
    coarse = tmp_path / "coarse.parquet"
    forked("bert_jax.predict", *given[:2], f"--output={coarse}", "--probabilities=best", "--int8")
    exact, moved = (pyarrow.parquet.read_table(path)["probability"] for path in (output, coarse))
    moves = np.abs(np.subtract(exact.to_numpy(), moved.to_numpy()))
    assert 0 < moves.max() < 0.05
    refused = forked("bert_jax.predict", *given, code=2).stderr
    assert "--output is" in refused and refused.count("\n") == 1
    given[1:] = [f"--input={source}", f"--output={tmp_path / 'other.tsv'}", "--text_column=txt"]
    refused = forked("bert_jax.predict", *given, code=2).stderr
    assert "no column 'txt'" in refused and "--text_column" in refused
    assert not list(tmp_path.glob("other*"))


def test_a_sentence_of_several_pieces_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.tasks.ner.predict._PIECE_WORDS", 2)
    source, output = tmp_path / "in.txt", tmp_path / "out.conll"
    source.write_text("a\ncat\nsees\na\ndog\n\na\ncat\n\ndog\n")
    layer = TaskLayer("NER", "tag", ("O", "B-X"), options=TaskOptions(max_seq_length=8))
    given = PredictRequest(source, output, layer, vocabulary_of("a cat dog sees", tmp_path))
    rows, counts = TagPredictor(given, lambda count: None), []

    def compute(of_piece, count):
        counts.append(count)
        return np.zeros((of_piece.examples, 8, 2), np.float32)

    rows.run(compute)
    assert rows.total == sum(counts) == 3
    words = [line.split("\t")[0] for line in output.read_text().splitlines()]
    assert words == [*source.read_text().splitlines(), ""]
    assert dict(rows.summary_rows())["words"] == "8 words"
    assert "2 more rows, because some are longer" in dict(rows.summary_rows())["sentences"]


@pytest.mark.parametrize("kind", ["choose", "span", "tag"])
def test_columns_are_named_for_texts_and_pairs_alone(kind):
    flags = predict.PredictFlags(checkpoint="RUN", second_text_column="b")
    with pytest.raises(
        ValueError, match=r"--second_text_column is for tables .*RUN was fine-tuned"
    ):
        predict._check_columns(flags, TaskLayer("x", kind, ()))


def test_numbers_of_stsb_lie_on_its_scale():
    rows = TablePredictor.__new__(TablePredictor)
    layer = TaskLayer("STS-B", "regress", (), options=TaskOptions(task="stsb"))
    other = dataclasses.replace(layer, options=TaskOptions(task="table"), mean=10.0, deviation=2.0)
    for rows._layer, expected in ((layer, [0.0, 2.5, 5.0]), (other, [8.0, 15.0, 24.0])):
        columns = rows._predict(np.array([[-1.0], [2.5], [7.0]], np.float32))
        assert columns["prediction"].to_pylist() == expected
