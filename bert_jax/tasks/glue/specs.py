"""Describe GLUE's nine tasks as published: files, columns, labels in order, official scores.

The diagnostic set is two more splits of MNLI: AX, whose labels are secret, as a test set, and the
version with labels, where it exists, as a development set.

Source: Wang et al. 2019, GLUE, table 1; the columns and the order of labels as in
run_classifier.py@eedf5716ce; scores of Devlin et al. 2019, table 1, come first.
"""

import dataclasses

from bert_jax.tasks.metrics import ACCURACY, F1, MATTHEWS, PEARSON, SPEARMAN

DIAGNOSTIC, DIAGNOSTIC_LABELED = "ax", "dev_diagnostic"
DIAGNOSTIC_FOLDER = "diagnostic"
DIAGNOSTIC_FILES = {DIAGNOSTIC: "diagnostic.tsv", DIAGNOSTIC_LABELED: "diagnostic-full.tsv"}


@dataclasses.dataclass(frozen=True)
class SplitFile:
    """Name a set of examples, its file, and its names in GLUE and TFDS."""

    split: str
    file: str
    tfds_split: str
    predictions: str = ""  # a test set's file on the leaderboard, without .tsv; "": the task's name
    scored_as: str = ""  # prefix of a development set's scores, where there are several sets


TRAIN = SplitFile("train", "train.tsv", "train")


_NO_YES = ("0", "1")
_ENTAILED = ("entailment", "not_entailment")
STSB_MIN, STSB_MAX = 0.0, 5.0


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """Describe a task of GLUE; columns are named as in its files (TFDS differs)."""

    name: str  # also the name of its folder
    text: str
    second: str = ""  # "": single sentences
    label: str = "label"
    labels: tuple[str, ...] = _NO_YES  # labels in the files, class 0 first; (): numbers
    scores: tuple[str, ...] = (ACCURACY,)  # the first one decides
    dev: tuple[SplitFile, ...] = (SplitFile("dev", "dev.tsv", "validation"),)
    test: tuple[SplitFile, ...] = (SplitFile("test", "test.tsv", "test"),)
    headers: tuple[tuple[str, ...], ...] = ()  # columns of train and dev files without a header
    index: str = "index"  # the column that numbers a test set's predictions
    drops_short_rows: bool = False  # the published training file has truncated rows

    @property
    def is_regression(self) -> bool:
        return not self.labels


def _mnli_dev(name: str) -> SplitFile:
    split = f"dev_{name}"
    return SplitFile(split, f"{split}.tsv", f"validation_{name}", scored_as=f"{name}_")


TASKS = {
    "cola": GlueTask(
        "CoLA",
        "sentence",
        scores=(MATTHEWS, ACCURACY),
        headers=(("source", "label", "star", "sentence"),),
    ),
    "sst2": GlueTask("SST-2", "sentence"),
    "mrpc": GlueTask("MRPC", "#1 String", "#2 String", label="Quality", scores=(F1, ACCURACY)),
    "qqp": GlueTask(
        "QQP",
        "question1",
        "question2",
        label="is_duplicate",
        scores=(F1, ACCURACY),
        index="id",
        drops_short_rows=True,
    ),
    "stsb": GlueTask(
        "STS-B", "sentence1", "sentence2", label="score", labels=(), scores=(SPEARMAN, PEARSON)
    ),
    "mnli": GlueTask(
        "MNLI",
        "sentence1",
        "sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        dev=(_mnli_dev("matched"), _mnli_dev("mismatched")),
        test=(
            SplitFile("test_matched", "test_matched.tsv", "test_matched", "MNLI-m"),
            SplitFile("test_mismatched", "test_mismatched.tsv", "test_mismatched", "MNLI-mm"),
        ),
    ),
    "qnli": GlueTask("QNLI", "question", "sentence", labels=_ENTAILED),
    "rte": GlueTask("RTE", "sentence1", "sentence2", labels=_ENTAILED),
    "wnli": GlueTask("WNLI", "sentence1", "sentence2"),
}
