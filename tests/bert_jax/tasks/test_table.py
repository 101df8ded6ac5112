"""A table of one's own in each of its formats, and what is refused in it."""

import json
import pathlib
import weakref

import numpy as np
import pytest

from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.tasks import table
from tests.bert_jax.tasks.glue_layouts import vocabulary
from tests.bert_jax.tasks.tables import write_table

__all__ = ["vocabulary"]  # a fixture

TRAIN = [
    {"claim": "the cat sat", "about": "a dog", "verdict": "no", "stars": 30},
    {"claim": 'yes, "cat"', "about": "", "verdict": "yes", "stars": 10},
    {"claim": "a dog", "about": "the mat", "verdict": "no", "stars": 50},
    {"claim": "big mat", "about": "the cat", "verdict": "no", "stars": 30},
]
DEV = [
    {"claim": "no cat", "about": "a", "verdict": "yes", "stars": 20},
    {"claim": "a cat", "about": "dog", "verdict": "no", "stars": 40},
]


def options(folder: pathlib.Path, **changed: object) -> TaskOptions:
    columns = {"text_column": "claim", "second_text_column": "about", "label_column": "verdict"}
    given = {"max_seq_length": 128} | columns | changed
    return TaskOptions(task="table", dir=str(folder), **given)


def write_both(folder: pathlib.Path, suffix: str = ".csv") -> pathlib.Path:
    write_table(folder / f"train{suffix}", TRAIN)
    write_table(folder / f"dev{suffix}", DEV)
    return folder


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet", ".jsonl"])
def test_every_format_gives_the_same_rows(tmp_path, vocabulary, suffix):
    task = table.open_task(options(write_both(tmp_path, suffix)), vocabulary)
    rows = task.splits["train"]
    shown = [
        vocabulary.decode(rows.token_ids[start:end].tolist())
        for start, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    ]
    assert shown == [
        "[CLS] the cat sat [SEP] a dog [SEP]",
        '[CLS] yes [UNK] " cat " [SEP] [SEP]',
        "[CLS] a dog [SEP] the mat [SEP]",
        "[CLS] big mat [SEP] the cat [SEP]",
    ]
    assert rows.labels["label_ids"].tolist() == [0, 1, 0, 0]
    assert task.splits["dev"].labels["label_ids"].tolist() == [1, 0]
    assert task.labels == ("no", "yes") and task.classes == 2 and "test" not in task.splits
    # Always "no": one of two right; F1 of "no" 2/3, of "yes" 0.
    assert task.baseline == {"accuracy": 0.5, "macro_f1": pytest.approx(1 / 3)}
    assert task.score("dev", np.array([[0.0, 1.0], [1.0, 0.0]])) == {
        "accuracy": 1.0,
        "macro_f1": 1.0,
    }
    assert task.notes == (
        "2 classes of verdict: no (3), yes (1)",
        "train: 1 row with a text without a token: an empty segment",
    )


def test_the_texts_of_the_files_are_not_kept(tmp_path, vocabulary, monkeypatch):
    read, texts = table.read_columns, []

    def spied(*of_file):
        columns = read(*of_file)
        texts.append(weakref.ref(columns))
        return columns

    monkeypatch.setattr(table, "read_columns", spied)
    task = table.open_task(options(write_both(tmp_path)), vocabulary)
    assert task.labels and texts and not any(columns() for columns in texts)


def test_predictions_name_rows_and_classes_and_how_sure_they_are(tmp_path, vocabulary):
    write_both(tmp_path)
    (tmp_path / "questions.csv").write_text('claim,about\n"the\ncat",a\n\na dog,"a ""mat"""\n')
    task = table.open_task(options(tmp_path, test_file="questions.csv"), vocabulary)
    assert task.splits["test"].labels == {}
    logits = np.array([[0.0, np.log(3.0)], [np.log(9.0), 0.0]], np.float32)
    (path,) = task.write_predictions("test", logits, tmp_path / "predictions")
    # The first text goes on over two lines and a blank one follows.
    expected = "row\tprediction\tprobability\n2\tyes\t0.7500\n5\tno\t0.9000\n"
    assert path.name == "test.tsv" and path.read_text() == expected


def test_a_quotation_mark_in_a_label_is_written_as_tsv_has_it(tmp_path, vocabulary):
    rows = [{"claim": "a cat", "about": "", "verdict": label} for label in ('5" tall', "no")]
    for split in ("train", "dev"):
        write_table(tmp_path / f"{split}.csv", rows)
    task = table.open_task(options(tmp_path), vocabulary)
    (path,) = task.write_predictions("dev", np.eye(2, dtype=np.float32), tmp_path / "predictions")
    written = [line.split("\t")[1] for line in path.read_text().splitlines()]
    assert written == ["prediction", '5" tall', "no"]


def test_long_texts_are_scored_and_predicted_by_all_their_windows(tmp_path, vocabulary):
    """Rows of 8 hold 6 words: of 9 words the windows have 6 and 5, of two words one has both."""
    long = "the big cat sat on the mat . yes"
    rows = [{"claim": text, "verdict": label} for text, label in ((long, "no"), ("a cat", "yes"))]
    for split in ("train", "dev"):
        write_table(tmp_path / f"{split}.csv", rows)
    given = options(tmp_path, second_text_column="", max_seq_length=8, window_stride=4)
    task = table.open_task(given, vocabulary)
    train = task.splits["train"]
    assert np.diff(train.offsets).tolist() == [8, 7, 4]
    assert train.labels["label_ids"].tolist() == [0, 0, 1]
    # The first window is for yes by ln 2, the second for no by ln 8: the text is no, 2 to 1.
    logits = np.log(np.array([[1, 2], [8, 1], [1, 3]], np.float32))
    assert task.score("dev", logits)["accuracy"] == 1.0
    (path,) = task.write_predictions("dev", logits, tmp_path / "predictions")
    assert path.read_text() == "row\tprediction\tprobability\n2\tno\t0.6667\n3\tyes\t0.7500\n"


def test_numbers_are_learned_in_deviations_and_predicted_in_their_own_units(tmp_path, vocabulary):
    write_both(tmp_path, ".parquet")
    of_stars = options(tmp_path, label_column="stars", is_regression=True)
    task = table.open_task(of_stars, vocabulary)
    deviation = np.sqrt((0 + 20**2 + 20**2 + 0) / 4)  # around 30
    expected = np.array([0.0, -20.0, 20.0, 0.0]) / deviation
    np.testing.assert_allclose(
        task.splits["train"].labels["label_values"], expected.astype(np.float32), rtol=1e-6
    )
    assert task.classes == 1 and task.labels == ()
    assert (task.mean, task.deviation) == (30.0, pytest.approx(deviation))
    assert task.baseline == {"pearson": 0.0, "spearman": 0.0}
    scores = task.score("dev", np.array([[-1.0], [2.0]], np.float32))
    assert scores == {"pearson": pytest.approx(1.0), "spearman": pytest.approx(1.0)}
    (path,) = task.write_predictions("dev", np.array([[0.0], [1.0]], np.float32), tmp_path)
    assert path.read_text() == f"row\tprediction\n1\t30\n2\t{30 + deviation:.6g}\n"


@pytest.mark.parametrize(
    ("mean", "deviation", "texts"),
    [
        (300.0, 40.0, ["300", "326.667"]),
        (-0.002, 0.001, ["-0.002", "-0.00133333"]),
        (1.7e9, 60.0, ["1700000000", "1700000040"]),
        (1.7e9, -60.0, ["1700000000", "1699999960"]),
        (5.0, 0.0, ["5", "5"]),  # a model of others
    ],
)
def test_numbers_are_written_as_finely_as_they_are_learned(mean, deviation, texts):
    logits = np.array([[0.0], [2 / 3]], np.float32)
    assert table.format_numbers(logits, mean, deviation) == texts


def test_numbered_classes_are_in_the_order_of_their_numbers(tmp_path, vocabulary):
    write_both(tmp_path, ".jsonl")
    stars = "".join(json.dumps({"t": "a cat", "n": n}) + "\n" for n in (10, 9, 2, 10))
    (tmp_path / "stars.jsonl").write_text(stars)
    files = {"train_file": "stars.jsonl", "dev_file": "stars.jsonl"}
    columns = {"text_column": "t", "second_text_column": "", "label_column": "n"}
    task = table.open_task(options(tmp_path, **files, **columns), vocabulary)
    assert task.labels == ("2", "9", "10")
    assert task.splits["dev"].labels["label_ids"].tolist() == [2, 1, 0, 2]


@pytest.mark.parametrize(
    ("name", "text", "changed", "words"),
    [
        ("dev.csv", "claim,about,label\na,b,no\n", {}, r"dev\.csv has no column 'verdict'"),
        ("dev.csv", "claim,about,verdict\na,b,no\na,b,maybe\n", {}, r"row 3 has the label 'maybe'"),
        ("dev.csv", "claim,about,verdict\na,b,\n", {}, r"row 2 has no label under 'verdict'"),
        ("dev.csv", 'claim,about,verdict\n"a\nb",c\n', {}, r"row 2 has 2 fields and not 3 "),
        ("dev.csv", "claim,claim,verdict\na,b,no\n", {}, r"dev\.csv has 2 columns 'claim'"),
        ("train.csv", "claim,about,verdict\na,b,no\n", {}, r"train\.csv has only the label 'no'"),
        ("dev.jsonl", '{"claim": "a"}\n', {}, r"row 1 has no 'about'; its keys are claim"),
        ("dev.jsonl", "\n[1]\n", {}, r"row 2 holds a list, .*: jq -c '\.\[\]'"),
        ("dev.json", '[\n{"text": "a"}\n]', {}, r"row 1 is not JSON .*; each line is one row's"),
        ("dev.xlsx", "PK", {}, r"dev\.xlsx ends in '\.xlsx'"),
        ("dev.csv", "", {"text_column": ""}, r"both be set; the columns of .* are claim, about"),
        ("dev.csv", "", {"is_regression": True}, r"train\.csv row 2 has the label 'no'"),
        (  # Python's float reads 25
            "train.csv",
            "claim,about,stars\na,b,7\nb,c,2_5\n",
            {"is_regression": True, "label_column": "stars"},
            r"train\.csv row 3 has the label '2_5', which is not a number",
        ),
        (
            "train.csv",
            "claim,about,stars\na,b,7\nb,c,7\n",
            {"is_regression": True, "label_column": "stars"},
            r"train\.csv has the same number under 'stars'",
        ),
        (
            "train.csv",
            "claim,about,stars\na,b,1.797e308\nb,c,2\n",
            {"is_regression": True, "label_column": "stars"},
            r"from 2 to 1\.797e\+308 under 'stars', and their standard deviation comes to inf",
        ),
        (
            "train.csv",
            "claim,about,stars\na,b,1e-200\nb,c,0\n",
            {"is_regression": True, "label_column": "stars"},
            r"from 0 to 1e-200 under 'stars', and their standard deviation comes to 0\.0",
        ),
        (  # whose mean is 0.10000000000000002
            "train.csv",
            "claim,about,stars\na,b,0.1\nb,c,0.1\nc,d,0.1\n",
            {"is_regression": True, "label_column": "stars"},
            r"train\.csv has the same number under 'stars'",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, vocabulary, name, text, changed, words):
    write_both(tmp_path)
    if text:
        (tmp_path / name).write_text(text)
    given = {f"{name.partition('.')[0]}_file": name, **changed}
    with pytest.raises(ValueError, match=words):
        table.open_task(options(tmp_path, **given), vocabulary)


def test_a_text_of_a_csv_may_be_as_long_as_a_book(tmp_path, vocabulary):
    write_both(tmp_path)
    write_table(tmp_path / "train.csv", [{**TRAIN[1], "claim": "cat " * 40_000}, *TRAIN])
    task = table.open_task(options(tmp_path), vocabulary)
    assert task.splits["train"].examples == 5
    assert any(note.startswith("train: 1 row (20.0%) cut to") for note in task.notes)
