"""Named entities on a frozen BERT, by a BiLSTM: python -m bert_jax.feature_ner --checkpoint=CK ...

    --features=concatenated_last_four   or embeddings, second_to_last, last, weighted_last_four,
                                        weighted_all; several with commas between, or all

DIR has the files of configs/finetune/ner.py. The vectors of all layers are computed once; two
bidirectional LSTMs of --units=768 each way and one map learn on them, and the epoch that is best on
dev counts. OUT gets scores.json and, by the kind of features, the predictions.
"""

import functools
import json
import pathlib
from collections.abc import Callable

from absl import flags

from bert_jax import command_line, frozen_ner, pretrained
from bert_jax.finetune_config import TaskOptions, with_length
from bert_jax.frozen_ner import FEATURES, Training
from bert_jax.pretrained import Pretrained
from bert_jax.record_files import write_whole
from bert_jax.screen import Screen
from bert_jax.tasks import ner
from bert_jax.tasks.task import Task
from data_pipeline.library_log import LibraryLog

_CHECKPOINT = flags.DEFINE_string("checkpoint", "", "hf:DIR, google:PREFIX or orbax:WORKDIR")
_DATA_DIR = flags.DEFINE_string("data_dir", "", "folder of the training, dev and test files")
_OUTPUT = flags.DEFINE_string("output", "", "a new folder")
_FEATURES = flags.DEFINE_string("features", "concatenated_last_four", "which vectors, or all")
_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "max_seq_length", 0, "tokens of a row at most; 0: 128, or the model's positions if fewer"
)
_UNITS = flags.DEFINE_integer("units", Training.units, "units of an LSTM in each direction")
_EPOCHS = flags.DEFINE_integer("epochs", Training.epochs, "passes over the training files")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", Training.batch_size, "rows of a step")
_RATE = flags.DEFINE_float("learning_rate", Training.learning_rate, "Adam's, at the beginning")
_SEED = flags.DEFINE_integer("seed", Training.seed, "of the BiLSTM and the order of the rows")

USAGE = "python -m bert_jax.feature_ner --checkpoint=CK --data_dir=DIR --output=OUT"


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    address, folder, place = _CHECKPOINT.value, _DATA_DIR.value, _OUTPUT.value
    for name, value in (("checkpoint", address), ("data_dir", folder), ("output", place)):
        if not value:
            raise ValueError(f"--{name} is missing; {USAGE}")
    kinds = list(FEATURES) if _FEATURES.value == "all" else _FEATURES.value.split(",")
    for kind in kinds:
        if kind not in FEATURES:
            raise ValueError(
                f"--features is {_FEATURES.value!r}; {kind!r} is none of {', '.join(FEATURES)}; "
                "give some of them with commas between, or all"
            )
    for name, number in (
        ("units", _UNITS.value),
        ("epochs", _EPOCHS.value),
        ("batch_size", _BATCH_SIZE.value),
    ):
        if number < 1:
            raise ValueError(f"--{name} is {number}; it must be 1 or more")
    if not _RATE.value > 0.0:
        raise ValueError(f"--learning_rate is {_RATE.value}; it must be above 0")
    if pathlib.Path(place).exists():
        raise ValueError(f"--output is {place}, which is there already; give a new folder")
    log.hold()
    checkpoint = pretrained.load(address)
    positions = checkpoint.config.max_position_embeddings
    if _MAX_SEQ_LENGTH.value > positions:
        raise ValueError(
            f"--max_seq_length is {_MAX_SEQ_LENGTH.value}; the checkpoint has {positions} "
            "positions: give that or less"
        )
    if checkpoint.config.num_hidden_layers < 4 and any("four" in kind for kind in kinds):
        raise ValueError(
            f"--features is {_FEATURES.value!r}, but {address} has "
            f"{checkpoint.config.num_hidden_layers} layers, not four; give others of "
            f"{', '.join(kind for kind in FEATURES if 'four' not in kind)}"
        )
    options = TaskOptions(task="ner", dir=folder, max_seq_length=_MAX_SEQ_LENGTH.value)
    options = with_length(options, positions)
    task = ner.open_task(options, checkpoint.vocabulary)
    frozen_ner.check_room(task, checkpoint.config)
    return functools.partial(_learn, checkpoint, task, kinds, pathlib.Path(place))


def _learn(checkpoint: Pretrained, task: Task, kinds: list[str], output: pathlib.Path) -> int:
    screen = Screen(is_writer=True)
    training = Training(_UNITS.value, _EPOCHS.value, _BATCH_SIZE.value, _RATE.value, _SEED.value)
    output.mkdir(parents=True)
    layers = checkpoint.config.num_hidden_layers
    screen.table("named entities on frozen vectors", [("files", note) for note in task.notes])
    found = {}
    with frozen_ner.every_layer(checkpoint, task, screen) as vectors:
        for kind in kinds:
            best = frozen_ner.learn(task, vectors, kind, layers, training, screen)
            found[kind] = {"epoch": best.epoch, **best.scores}
            (output / kind).mkdir()
            for split, logits in best.logits.items():
                task.write_predictions(split, logits, output / kind)
            write_whole(output / "scores.json", (json.dumps(found, indent=1) + "\n").encode())
    rows = [
        (kind, f"{task.main_score} {scores[task.main_score]:.4f} on dev, epoch {scores['epoch']}")
        for kind, scores in found.items()
    ]
    screen.table("done", [*rows, ("written to", str(output))])
    return 0


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="start it again with a new --output")


if __name__ == "__main__":
    main()
