"""What fine-tuning knows of a task: its rows, what its layer gives, how logits are scored."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from data_pipeline.finetune import EncodedRows

# What the task's layer reads and gives; bert_jax/tasks/objectives.py has the loss of each.
# Shapes of the logits, of N examples, C classes, S positions:
CLASSIFY = "classify"  # [CLS] of a row -> float32[N,C]; labels: label_ids int32[N]
REGRESS = "regress"  # [CLS] of a row -> float32[N,1]; labels: label_values float32[N]
CHOOSE = "choose"  # [CLS] of each of an example's rows -> float32[N,C]; labels: label_ids int32[N]
SPAN = "span"  # every token -> float32[N,S,2]; labels: start_positions, end_positions int32[N]
TAG = "tag"  # every token -> float32[N,S,C]; token labels: label_ids int32, label_weights float32
# Kept by a run of SQuAD 2.0 beside its predictions: the null odds above which none is given.
THRESHOLD_FILE, THRESHOLD = "null_threshold.json", "null_threshold"

Scores = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Task:
    """A task opened on its files with one vocabulary.

    `splits` has "train", and "dev" or what the task calls its development sets (MNLI: "dev_matched"
    and "dev_mismatched"), and, where the files are there, test sets, whose rows have no labels.
    Logits of SPAN and TAG are cut to the rows' longest; what stands past a row's end means nothing.
    """

    name: str  # as people write it: "CoLA"
    kind: str  # one of the five above
    classes: int  # C: CLASSIFY and TAG, classes; CHOOSE, choices; REGRESS 1; SPAN 2
    splits: Mapping[str, EncodedRows]
    dev_splits: tuple[str, ...]  # evaluated while training; the first one decides
    # Scores of a development split from its logits, each from 0 to 1 or -1 to 1.
    score: Callable[[str, np.ndarray], Scores]
    main_score: str  # of them the one that "best on dev" goes by
    baseline: Scores  # what knowing nothing of the text scores on the first development split
    # Writes the predictions for a split in the task's own format into a folder; their paths.
    write_predictions: Callable[[str, np.ndarray, pathlib.Path], list[pathlib.Path]]
    labels: tuple[str, ...] = ()  # of CLASSIFY and TAG, by their ids
    # Of REGRESS: a logit counts deviations from the mean; 0 and 1 where it is the number itself.
    mean: float = 0.0
    deviation: float = 1.0
    notes: tuple[str, ...] = ()  # what was found in the files, a line each: counts, truncations

    @property
    def main_record(self) -> str:
        """What a run calls the main score: MNLI's dev_matched_accuracy."""
        return f"dev_{self.main_score}"

    @property
    def head_width(self) -> int:
        """Logits that the task's layer gives for a vector."""
        return 1 if self.kind == CHOOSE else self.classes
