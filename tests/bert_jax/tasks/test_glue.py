"""GLUE in the layouts of its published files, its real files, and predictions as uploaded."""

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.finetune_config import TaskOptions
from bert_jax.tasks import glue
from bert_jax.tasks.glue_files import read_files
from bert_jax.tasks.glue_tasks import TASKS
from data_pipeline.vocab import Vocabulary, load_vocabulary
from tests.bert_jax.tasks.glue_layouts import FOLDERS, small_vocabulary, write_glue

# Of each task by hand: labels of the training split, of the first development set, and the majority
# (for STS-B none) scored on the latter.
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
MAIN_SCORES = {
    "cola": "matthews_correlation",
    "mrpc": "f1",
    "qqp": "f1",
    "stsb": "spearman",
    "mnli": "matched_accuracy",
}
WORDS_UPLOADED = {
    "mnli": ["contradiction", "entailment", "neutral"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory) -> Vocabulary:
    return small_vocabulary(tmp_path_factory.mktemp("vocabulary"))


def options(name: str, folder: pathlib.Path, **changed: object) -> TaskOptions:
    return dataclasses.replace(
        TaskOptions(task=name, dir=str(folder), max_seq_length=128), **changed
    )


def label_array(rows) -> list[float]:
    (array,) = rows.labels.values()
    return array.tolist()


@pytest.mark.parametrize("name", list(FOLDERS))
def test_each_task_is_read_from_its_published_layout(folder, vocabulary, name):
    task = glue.open_task(options(name, folder), vocabulary)
    train, dev, baseline = EXPECTED[name]
    assert task.name == FOLDERS[name]
    assert label_array(task.splits["train"]) == train
    assert label_array(task.splits[task.dev_splits[0]]) == dev
    assert task.baseline == baseline and task.main_score == MAIN_SCORES.get(name, "accuracy")
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
    def shown(name: str, split: str, row: int) -> str:
        rows = glue.open_task(options(name, folder), vocabulary).splits[split]
        return vocabulary.decode(rows.token_ids[rows.offsets[row] : rows.offsets[row + 1]].tolist())

    assert shown("cola", "train", 0) == '[CLS] the " cat sat . [SEP]'
    assert shown("qnli", "train", 0) == "[CLS] a cat ? [SEP] the cat sat . [SEP]"
    assert shown("mnli", "train", 1) == "[CLS] the cat sat [SEP] no cat sat [SEP]"
    assert shown("mrpc", "train", 1) == "[CLS] a dog . [SEP] no mat . [SEP]"
    assert shown("qqp", "train", 1) == "[CLS] a dog ? [SEP] no mat ? [SEP]"
    assert shown("stsb", "test", 0) == "[CLS] the cat [SEP] the dog [SEP]"


@pytest.mark.parametrize("name", [name for name in FOLDERS if name != "stsb"])
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
    (tmp_path / "test.tsv").write_text("index\tsentence\n7\tthe cat\n11\tthe mat\n")
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text((folder / "SST-2" / f"{split}.tsv").read_text())
    task = glue.open_task(options("sst2", tmp_path), vocabulary)
    (path,) = task.write_predictions("test", np.eye(2), tmp_path)
    assert path.read_text() == "index\tprediction\n7\t0\n11\t1\n"


def test_rows_of_qqp_that_are_cut_short_are_left_out_of_training_and_told(folder, vocabulary):
    assert glue.open_task(options("qqp", folder), vocabulary).notes == (
        "train: 1 rows are cut short in the file and left out (row 3)",
    )
    with pytest.raises(ValueError, match=r"dev_short\.tsv row 2 has 2 fields and not 6"):
        path = folder / "QQP" / "dev_short.tsv"
        path.write_text((folder / "QQP" / "dev.tsv").read_text().split("\n")[0] + "\n1\t2\n")
        glue.open_task(options("qqp", folder, dev_file="dev_short.tsv"), vocabulary)


def test_the_first_training_examples(folder, vocabulary):
    task = glue.open_task(options("cola", folder, train_examples=2), vocabulary)
    assert label_array(task.splits["train"]) == [1, 0] and task.splits["dev"].examples == 2


def refused(tmp_path, vocabulary, name: str, sentence: str, **files: str) -> None:
    """Open a task of which some files have other text, and be told so."""
    write_glue(tmp_path)
    for split, text in files.items():
        (tmp_path / FOLDERS[name] / f"{split}.tsv").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        glue.open_task(options(name, tmp_path), vocabulary)


def test_labels_outside_the_task_are_named_by_row_and_file(tmp_path, vocabulary):
    header = "index\tsentence1\tsentence2\tlabel\n"
    refused(
        *(tmp_path, vocabulary, "rte"),
        r"RTE/dev\.tsv row 3 has the label 'neutral'; RTE has entailment, not_entailment",
        dev=f"{header}0\ta\tb\tentailment\n1\ta\tb\tneutral\n",
    )
    # A file of another task whose rows have as many fields as CoLA's.
    refused(
        *(tmp_path, vocabulary, "cola"),
        r"CoLA/train\.tsv row 1 has the label 'sentence1'; CoLA has 0, 1",
        train=f"{header}0\ta\tb\tentailment\n",
    )
    for score in ("5.2", "nan", "high", ""):
        row = f"0\tm\tM\t2012\t1\tn\tn\ta\tb\t{score}\n"
        first = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
        refused(
            *(tmp_path, vocabulary, "stsb"),
            rf"STS-B/train\.tsv row 2 has the score '{score}'; it must be a number from 0 to 5",
            train=f"{first}\tscore\n{row}",
        )


def test_files_and_columns_that_are_missing_are_named(tmp_path, vocabulary):
    refused(
        *(tmp_path, vocabulary, "sst2"),
        r"SST-2/dev\.tsv has no column 'sentence'; its columns are text, label",
        dev="text\tlabel\nyes\t1\n",
    )
    (tmp_path / "RTE" / "dev.tsv").unlink()
    with pytest.raises(ValueError, match=r"RTE/dev\.tsv is missing, the dev set of RTE"):
        glue.open_task(options("rte", tmp_path), vocabulary)
    with pytest.raises(ValueError, match=r"dir is .*/none, and there is no .*/none/train\.tsv and"):
        glue.open_task(options("rte", tmp_path / "none"), vocabulary)
    (tmp_path / "diagnostic" / "diagnostic.tsv").unlink()
    with pytest.raises(ValueError, match=r"diagnostic\.tsv is missing, the diagnostic set that th"):
        glue.open_task(options("ax", tmp_path), vocabulary)
    assert "ax" not in glue.open_task(options("mnli", tmp_path), vocabulary).splits


def test_what_is_no_task_or_source_is_refused(folder, vocabulary):
    with pytest.raises(ValueError, match=r"config\.data\.task is 'snli'; the tasks of GLUE are c"):
        glue.open_task(options("snli", folder), vocabulary)
    with pytest.raises(ValueError, match=r"config\.data\.source is 'hub'; it must be files or tf"):
        glue.open_task(options("rte", folder, source="hub"), vocabulary)
    with pytest.raises(ValueError, match=r"config\.data\.dir is empty; it must be the folder of R"):
        glue.open_task(TaskOptions(task="rte"), vocabulary)


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
    assert tuple(len(found[split].texts) for split in ("train", "dev", "test")) == rows
    last = TASKS[name].labels[-1]
    counts = [(found[split].labels or []).count(last) for split in ("train", "dev")]
    assert tuple(counts) == of_last_class


def test_the_samples_of_hugging_face_are_read(shared_data, uncased):
    vocabulary = load_vocabulary(uncased)
    samples = shared_data / "golden" / "hf_tests_samples"
    changed = {"train_file": "dev.tsv", "dev_file": "dev.tsv"}
    mrpc = glue.open_task(options("mrpc", samples, **changed), vocabulary)
    assert label_array(mrpc.splits["dev"]) == [1, 0, 0, 1, 0, 1]
    stsb = glue.open_task(options("stsb", samples, **changed), vocabulary)
    expected = [5.0, 4.75, 5.0, 2.4, 2.75, 2.615, 5.0, 2.333, 3.75]
    assert label_array(stsb.splits["dev"]) == pytest.approx(expected)


@pytest.mark.usefixtures("killed_while_writing")
def test_no_half_of_a_file_to_upload_is_left(folder, vocabulary, tmp_path):
    task = glue.open_task(options("rte", folder), vocabulary)
    with pytest.raises(RuntimeError, match="killed"):
        task.write_predictions("test", np.eye(2, dtype=np.float32), tmp_path)
    assert not (tmp_path / "RTE.tsv").exists()
