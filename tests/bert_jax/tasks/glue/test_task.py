"""GLUE in the layouts of its published files, its real files, and predictions as uploaded."""

import pathlib
import weakref

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks.glue import task as glue
from bert_jax.tasks.glue.specs import TASKS
from bert_jax.tasks.glue.task import read_files
from data_pipeline.vocab import load_vocabulary
from tests.bert_jax.tasks.glue_layouts import FOLDERS, stsb_rows, vocabulary, write_glue

__all__ = ["vocabulary"]  # a fixture

# Of each task by hand: labels of the training split, of the first development set, and the majority
# (for STS-B none) scored on the latter, the main score first.
EXPECTED = {
    "cola": ([1, 0, 1], [1, 0], {"matthews_correlation": 0.0, "accuracy": 0.5}),
    "sst2": ([1, 0, 0], [1, 0], {"accuracy": 0.5}),
    "mrpc": ([1, 0], [1, 1], {"f1": 0.0, "accuracy": 0.0}),  # a tie: class 0
    "qqp": ([1, 0, 0], [0, 1], {"f1": 0.0, "accuracy": 0.5}),
    "stsb": ([4.75, 0.25], [5.0, 1.0], {"spearman": 0.0, "pearson": 0.0}),
    "mnli": ([1, 0, 2, 1], [2, 2], {"matched_accuracy": 0.0}),
    "qnli": ([0, 1], [0, 1], {"accuracy": 0.5}),
    "rte": ([0, 1], [1, 0], {"accuracy": 0.5}),
    "wnli": ([1, 0, 0], [0, 1], {"accuracy": 0.5}),
}
WORDS_UPLOADED = {
    "mnli": ["contradiction", "entailment", "neutral"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


def options(name: str, folder: pathlib.Path, **changed: object) -> TaskOptions:
    return TaskOptions(task=name, dir=str(folder), max_seq_length=128, **changed)


def label_array(rows) -> list[float]:
    (array,) = rows.labels.values()
    return array.tolist()


@pytest.mark.parametrize("name", EXPECTED)
def test_each_task_is_read_from_its_published_layout(folder, vocabulary, name):
    task = glue.open_task(options(name, folder), vocabulary)
    train, dev, baseline = EXPECTED[name]
    assert task.name == FOLDERS[name]
    assert label_array(task.splits["train"]) == train
    assert label_array(task.splits[task.dev_splits[0]]) == dev
    assert task.baseline == baseline and task.main_score == next(iter(baseline))
    field = "label_values" if name == "stsb" else "label_ids"
    assert list(task.splits["train"].labels) == [field]
    assert task.classes == (3 if name == "mnli" else 1 if name == "stsb" else 2)
    tests = [split for split in task.splits if split.startswith("test")]
    assert len(tests) == (2 if name == "mnli" else 1)
    assert all(not task.splits[split].labels for split in tests)
    # The task's own folder does as well as the one around it.
    alone = glue.open_task(options(name, folder / FOLDERS[name]), vocabulary)
    for split, rows in task.splits.items():
        assert np.array_equal(rows.token_ids, alone.splits[split].token_ids)


def test_texts_stand_in_the_rows_in_order(folder, vocabulary):
    for name, split, row, text in (
        ("cola", "train", 0, '[CLS] the " cat sat . [SEP]'),
        ("qnli", "train", 0, "[CLS] a cat ? [SEP] the cat sat . [SEP]"),
        ("mnli", "train", 1, "[CLS] the cat sat [SEP] no cat sat [SEP]"),
        ("mrpc", "train", 1, "[CLS] a dog . [SEP] no mat . [SEP]"),
        ("qqp", "train", 1, "[CLS] a dog ? [SEP] no mat ? [SEP]"),
        ("stsb", "test", 0, "[CLS] the cat [SEP] the dog [SEP]"),
    ):
        rows = glue.open_task(options(name, folder), vocabulary).splits[split]
        ids = rows.token_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        assert vocabulary.decode(ids) == text


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != "stsb"])
def test_predictions_are_what_the_leaderboard_takes(folder, vocabulary, tmp_path, name):
    task = glue.open_task(options(name, folder), vocabulary)
    words = WORDS_UPLOADED.get(name, ["0", "1"])
    logits = np.eye(task.classes, dtype=np.float32)[[task.classes - 1, 0]]
    split, file = ("test_matched", "MNLI-m") if name == "mnli" else ("test", FOLDERS[name])
    (path,) = task.write_predictions(split, logits, tmp_path / "predictions")
    assert path == tmp_path / "predictions" / f"{file}.tsv"
    assert path.read_text() == f"index\tprediction\n0\t{words[-1]}\n1\t{words[0]}\n"
    dev_split = task.dev_splits[0]
    (of_dev,) = task.write_predictions(dev_split, logits, tmp_path / "predictions")
    assert of_dev.name == f"{FOLDERS[name]}-{dev_split}.tsv"


def test_similarities_are_clipped_with_three_decimals(folder, vocabulary, tmp_path):
    task = glue.open_task(options("stsb", folder), vocabulary)
    logits = np.array([[5.2], [3.14159]], np.float32)
    (path,) = task.write_predictions("test", logits, tmp_path)
    assert path.name == "STS-B.tsv"
    assert path.read_text() == "index\tprediction\n0\t5.000\n1\t3.142\n"
    (path,) = task.write_predictions("test", np.array([[-0.0001], [0.5]], np.float32), tmp_path)
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t0.500\n"
    expected = {"pearson": pytest.approx(1.0), "spearman": pytest.approx(1.0)}
    assert task.score("dev", np.array([[9.0], [3.0]])) == expected


def test_mnli_has_two_development_sets_and_the_diagnostic_set(folder, vocabulary, tmp_path):
    task = glue.open_task(options("ax", folder), vocabulary)
    assert task.dev_splits == ("dev_matched", "dev_mismatched", "dev_diagnostic")
    contradiction_entailment = np.eye(3, dtype=np.float32)[[0, 1]]
    assert task.score("dev_matched", contradiction_entailment) == {"matched_accuracy": 0.0}
    assert task.score("dev_mismatched", contradiction_entailment) == {"mismatched_accuracy": 1.0}
    right = np.eye(3, dtype=np.float32)[[2, 0]]
    assert task.score("dev_diagnostic", right) == {"ax_matthews_correlation": 1.0}
    for split, name in (("test_mismatched", "MNLI-mm"), ("ax", "AX")):
        (path,) = task.write_predictions(split, right, tmp_path)
        assert path.read_text() == "index\tprediction\n0\tneutral\n1\tcontradiction\n"
        assert path.name == f"{name}.tsv"


def test_numbers_of_predictions_are_those_of_the_file(folder, vocabulary, tmp_path):
    write_glue(tmp_path)
    (tmp_path / "SST-2/test.tsv").write_text("index\tsentence\n7\tthe cat\n11\tthe mat\n")
    task = glue.open_task(options("sst2", tmp_path), vocabulary)
    (path,) = task.write_predictions("test", np.eye(2), tmp_path)
    assert path.read_text() == "index\tprediction\n7\t0\n11\t1\n"


def test_short_rows_of_qqp_and_the_examples_behind_the_first_are_left_out(folder, vocabulary):
    (note,) = glue.open_task(options("qqp", folder), vocabulary).notes
    assert "1 rows" in note and "row 3" in note
    task = glue.open_task(options("cola", folder, train_examples=2), vocabulary)
    assert label_array(task.splits["train"]) == [1, 0] and task.splits["dev"].examples == 2


def test_the_texts_of_the_files_are_not_kept(folder, vocabulary, monkeypatch):
    read, texts = glue.read_files, []

    def spied(*of_task):
        splits = read(*of_task)
        texts.extend(map(weakref.ref, splits.values()))
        return splits

    monkeypatch.setattr(glue, "read_files", spied)
    task = glue.open_task(options("cola", folder), vocabulary)
    assert task.labels and texts and not any(columns() for columns in texts)


RTE = "index\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("RTE/dev.tsv", f"{RTE}0\ta\tb\tentailment\n1\ta\tb\tneutral\n", "row 3 .* 'neutral'"),
        # A file of another task whose rows have as many fields as CoLA's.
        ("CoLA/train.tsv", f"{RTE}0\ta\tb\tentailment\n", r"train\.tsv row 1 .* 'sentence1'"),
        (
            "CoLA/train.tsv",
            "gj04\t1\ta cat\n",
            "are gj04, .*: give a file of CoLA, whose rows have 4",
        ),
        *(
            ("STS-B/train.tsv", stsb_rows([f"a\tb\t{score}"], "\tscore"), f"row 2 .* '{score}'")
            for score in ("5.2", "nan", "high", "", "0_5")
        ),
        (
            "QQP/dev.tsv",
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\n",
            r"dev\.tsv row 2 has 2 fields and not 6",
        ),
        ("RTE/dev.tsv", None, r"RTE/dev\.tsv is missing"),
        ("RTE/train.tsv", None, r"dir is .*, and there is no .*/train\.tsv and"),
        ("diagnostic/diagnostic.tsv", None, r"diagnostic\.tsv is missing"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, vocabulary, file, text, words):
    write_glue(tmp_path)
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    name = next((name for name, title in FOLDERS.items() if file.startswith(title)), "ax")
    with pytest.raises(ValueError, match=words):
        glue.open_task(options(name, tmp_path), vocabulary)
    if "diagnostic" in file:
        assert "ax" not in glue.open_task(options("mnli", tmp_path), vocabulary).splits


def test_another_source_is_refused(folder, vocabulary):
    with pytest.raises(ValueError, match=r"data\.source is 'hub'"):
        glue.open_task(options("rte", folder, source="hub"), vocabulary)


# Rows as published, and how many of the training and development sets are of the last class.
@pytest.mark.parametrize(
    ("name", "rows", "of_last_class"),
    [
        ("cola", (8551, 1043, 1063), (6023, 721)),
        ("rte", (2490, 277, 3000), (1241, 131)),
        ("sst2", (67349, 872, 1821), (37569, 444)),
    ],
)
def test_real_files_have_their_published_rows(shared_data, name, rows, of_last_class):
    found = read_files(TASKS[name], options(name, shared_data / "glue"))
    assert tuple(len(found[split].values["text"]) for split in ("train", "dev", "test")) == rows
    last = TASKS[name].labels[-1]
    assert (
        tuple(found[split].values["label"].count(last) for split in ("train", "dev"))
        == of_last_class
    )


def test_the_samples_of_hugging_face_are_read(shared_data, uncased):
    vocabulary = load_vocabulary(uncased)
    samples = shared_data / "golden" / "hf_tests_samples"
    changed = {"train_file": "dev.tsv", "dev_file": "dev.tsv"}
    mrpc = glue.open_task(options("mrpc", samples, **changed), vocabulary)
    assert label_array(mrpc.splits["dev"]) == [1, 0, 0, 1, 0, 1]
    stsb = glue.open_task(options("stsb", samples, **changed), vocabulary)
    expected = [5.0, 4.75, 5.0, 2.4, 2.75, 2.615, 5.0, 2.333, 3.75]
    assert label_array(stsb.splits["dev"]) == pytest.approx(expected)
