"""Define what fine-tuning needs of a task: its rows, the kind of its layer, how it is scored."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Mapping

import numpy as np

from data_pipeline.io.atomic import write_file
from data_pipeline.labeled.rows import EncodedRows

# Kinds of a task's layer; bert_jax/finetuning/objectives.py has the loss of each.
# Shapes of the logits of N examples, C classes, S positions:
CLASSIFY = "classify"  # [CLS] of a row -> float32[N,C]; labels: label_ids int32[N]
REGRESS = "regress"  # [CLS] of a row -> float32[N,1]; labels: label_values float32[N]
CHOOSE = "choose"  # [CLS] of each of an example's rows -> float32[N,C]; labels: label_ids int32[N]
SPAN = "span"  # every token -> float32[N,S,2]; labels: start_positions, end_positions int32[N]
TAG = "tag"  # every token -> float32[N,S,C]; token labels: label_ids int32, label_weights float32
# With its predictions, a run of SQuAD 2.0 keeps the null odds above which no answer is given.
THRESHOLD_FILE, THRESHOLD = "null_threshold.json", "null_threshold"

Scores = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Example:
    """Hold the first example of a training file as it was read: its texts and its label."""

    texts: tuple[str, ...]
    label: str

    def describe(self, width: int) -> str:
        """Write "'a text' | 'its second text' -> label" in `width` characters."""
        parts = [f"{text[:width]!r}" for text in self.texts]
        parts.append(self.label[:width] if self.label.isprintable() else f"{self.label[:width]!a}")
        room = max(width - 3 * len(parts), len(parts))
        for done, part in enumerate(sorted(parts, key=len)):
            most = room // (len(parts) - done)
            room -= min(len(part), most)
            if len(part) > most:
                parts[parts.index(part)] = part[: most - 1] + "…"
        return f"{' | '.join(parts[:-1])} -> {parts[-1]}"


@dataclasses.dataclass(frozen=True)
class Task:
    """Hold a task whose files were read and encoded with a vocabulary.

    `splits` has "train", "dev" (or what the task calls its development sets, as MNLI's
    "dev_matched" and "dev_mismatched") and, if their files exist, test sets, whose rows have no
    labels. Logits of SPAN and TAG are as long as the longest row; those past a row's end are
    undefined.
    """

    name: str  # the usual spelling: "CoLA"
    kind: str  # one of the five above
    classes: int  # C: CLASSIFY and TAG, classes; CHOOSE, choices; REGRESS 1; SPAN 2
    splits: Mapping[str, EncodedRows]
    dev_splits: tuple[str, ...]  # evaluated while training; the first one decides
    # Scores a development split from its logits; each score is from 0 to 1 or from -1 to 1.
    score: Callable[[str, np.ndarray], Scores]
    main_score: str  # the score by which "best on dev" is chosen
    baseline: Scores  # scores on the first development split without reading the text
    # Formats the predictions for a split, from its logits, as the task's own files: name -> text.
    format_predictions: Callable[[str, np.ndarray], Mapping[str, str]]
    labels: tuple[str, ...] = ()  # names of the classes of CLASSIFY and TAG, by their ids
    # For REGRESS: logit * deviation + mean is the predicted number.
    mean: float = 0.0
    deviation: float = 1.0
    notes: tuple[str, ...] = ()  # lines for the screen: counts, truncations, skipped rows
    warnings: tuple[str, ...] = ()  # sentences on what looks wrong in the files
    example: Example | None = None  # None: tests' tasks have no texts

    @property
    def main_record(self) -> str:
        """Return the main score's name in a run's metrics, as dev_matched_accuracy."""
        return f"dev_{self.main_score}"

    def describe_files(self, width: int) -> list[tuple[str, str]]:
        """Return labels and lines of at most `width` characters for the screen."""
        rows = [("" if i else "files", note) for i, note in enumerate(self.notes)]
        if self.example is not None:
            rows.append(("first row", self.example.describe(width)))
        return [*rows, *(("! files", warning) for warning in self.warnings)]

    @property
    def head_width(self) -> int:
        """Return how many logits the task's layer computes from a vector."""
        return 1 if self.kind == CHOOSE else self.classes

    def write_predictions(
        self, split: str, logits: np.ndarray, folder: pathlib.Path
    ) -> list[pathlib.Path]:
        """Write the predictions for a split into a folder; return the files."""
        texts = self.format_predictions(split, logits)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / name, text.encode())
        return [folder / name for name in texts]


def write_splits(
    task: Task, logits: Mapping[str, np.ndarray], folder: pathlib.Path
) -> list[pathlib.Path]:
    """Write the predictions for all splits that have logits as a folder; return the files.

    An earlier folder stays until the new one is complete: with it, a run of a grid has finished.
    """
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    written = [
        path
        for split in task.splits  # a test set follows dev, whose threshold it uses
        if split in logits
        for path in task.write_predictions(split, logits[split], unfinished)
    ]
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return [folder / path.relative_to(unfinished) for path in written]
