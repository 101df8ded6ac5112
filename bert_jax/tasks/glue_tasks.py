"""GLUE's nine tasks as they are published: files, columns, labels in order, official scores.

The diagnostic set is two more splits of MNLI: AX, whose labels nobody has, as a test set, and the
version with labels, where it lies there too, as a development set.

Source: Wang et al. 2019, GLUE, table 1; the columns and the order of labels as in
run_classifier.py@eedf5716ce; scores of Devlin et al. 2019, table 1, come first.
"""

import dataclasses

from bert_jax.tasks.label_scores import ACCURACY, F1, MATTHEWS, PEARSON, SPEARMAN

DIAGNOSTIC, DIAGNOSTIC_LABELLED = "ax", "dev_diagnostic"
DIAGNOSTIC_FOLDER = "diagnostic"
DIAGNOSTIC_FILES = {DIAGNOSTIC: "diagnostic.tsv", DIAGNOSTIC_LABELLED: "diagnostic-full.tsv"}


@dataclasses.dataclass(frozen=True)
class SplitFile:
    """A set of examples with its file and the names that GLUE and TFDS have for it."""

    split: str
    file: str
    tfds_split: str
    predictions: str = ""  # the leaderboard's file of a test set, without .tsv; "": the task's name
    scored_as: str = (
        ""  # put before the names of a development set's scores, where there are several
    )


TRAIN = SplitFile("train", "train.tsv", "train")
_DEV = (SplitFile("dev", "dev.tsv", "validation"),)
_TEST = (SplitFile("test", "test.tsv", "test"),)


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE; columns are those of its files, which TFDS calls otherwise here and there."""

    name: str  # also its folder's
    text: str
    label: str
    labels: tuple[str, ...]  # of class 0, 1, ... as they stand in files; (): a number is predicted
    scores: tuple[str, ...]  # the first one decides
    second: str = ""  # "": single sentences
    dev: tuple[SplitFile, ...] = _DEV
    test: tuple[SplitFile, ...] = _TEST
    header: tuple[str, ...] = ()  # of train and dev, which then have none of their own
    index: str = "index"  # the column that a test set's predictions are numbered by
    drops_short_rows: bool = False  # as published, the training file has rows that are cut short

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def tfds_config(self) -> str:
        return "glue/" + self.name.lower().replace("-", "")


def _mnli_dev(name: str) -> SplitFile:
    split = f"dev_{name}"
    return SplitFile(split, f"{split}.tsv", f"validation_{name}", scored_as=f"{name}_")


_NO_YES = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
STSB_LEAST, STSB_MOST = 0.0, 5.0

TASKS = {
    "cola": GlueTask(
        name="CoLA",
        text="sentence",
        label="label",
        labels=_NO_YES,
        scores=(MATTHEWS, ACCURACY),
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": GlueTask(
        name="SST-2", text="sentence", label="label", labels=_NO_YES, scores=(ACCURACY,)
    ),
    "mrpc": GlueTask(
        name="MRPC",
        text="#1 String",
        second="#2 String",
        label="Quality",
        labels=_NO_YES,
        scores=(F1, ACCURACY),
    ),
    "qqp": GlueTask(
        name="QQP",
        text="question1",
        second="question2",
        label="is_duplicate",
        labels=_NO_YES,
        scores=(F1, ACCURACY),
        index="id",
        drops_short_rows=True,
    ),
    "stsb": GlueTask(
        name="STS-B",
        text="sentence1",
        second="sentence2",
        label="score",
        labels=(),
        scores=(SPEARMAN, PEARSON),
    ),
    "mnli": GlueTask(
        name="MNLI",
        text="sentence1",
        second="sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        scores=(ACCURACY,),
        dev=(_mnli_dev("matched"), _mnli_dev("mismatched")),
        test=(
            SplitFile("test_matched", "test_matched.tsv", "test_matched", "MNLI-m"),
            SplitFile("test_mismatched", "test_mismatched.tsv", "test_mismatched", "MNLI-mm"),
        ),
    ),
    "qnli": GlueTask(
        name="QNLI",
        text="question",
        second="sentence",
        label="label",
        labels=_ENTAILED,
        scores=(ACCURACY,),
    ),
    "rte": GlueTask(
        name="RTE",
        text="sentence1",
        second="sentence2",
        label="label",
        labels=_ENTAILED,
        scores=(ACCURACY,),
    ),
    "wnli": GlueTask(
        name="WNLI",
        text="sentence1",
        second="sentence2",
        label="label",
        labels=_NO_YES,
        scores=(ACCURACY,),
    ),
}
