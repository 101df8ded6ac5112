"""Find named entities on a frozen BERT: python -m bert_jax.feature_ner --checkpoint=CK ...

    --features=concatenated_last_four   or embeddings, second_to_last, last, weighted_last_four,
                                        weighted_all; several separated by commas, or all

DIR has the files of configs/finetune/ner.py. The vectors of all layers are computed once; two
bidirectional LSTMs of --units=768 in each direction and a linear map are trained on them, and the
epoch that is best on dev counts. OUT gets scores.json and, by kind of features, the predictions.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from bert_jax.lab.baselines.settings import Training
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

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

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.config.schema import TaskOptions, with_length
from bert_jax.interop import load
from bert_jax.interop.pretrained import Pretrained
from bert_jax.lab.baselines import frozen_ner
from bert_jax.lab.baselines.frozen_ner import FEATURES
from bert_jax.logging.console import Screen
from bert_jax.tasks.ner import task as ner
from bert_jax.tasks.task import Task
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import write_file


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        cli.refuse_arguments(arguments, USAGE)
        kinds = _check_flags()
        log.hold()
        checkpoint, task = _open(kinds)
    return _train(checkpoint, task, kinds, pathlib.Path(_OUTPUT.value))


def _check_flags() -> list[str]:
    """Refuse flags out of their range; return the kinds of features."""
    for flag in (_CHECKPOINT, _DATA_DIR, _OUTPUT):
        if not flag.value:
            raise Refused(f"--{flag.name} is missing; {USAGE}")
    kinds = list(FEATURES) if _FEATURES.value == "all" else _FEATURES.value.split(",")
    for kind in kinds:
        if kind not in FEATURES:
            raise Refused(
                f"--features is {_FEATURES.value!r}; {kind!r} is none of {', '.join(FEATURES)}; "
                "give some of them separated by commas, or all"
            )
    for count in (_UNITS, _EPOCHS, _BATCH_SIZE):
        if count.value < 1:
            raise Refused(f"--{count.name} is {count.value}; it must be 1 or more")
    if not _RATE.value > 0.0:
        raise Refused(f"--learning_rate is {_RATE.value}; it must be above 0")
    if pathlib.Path(_OUTPUT.value).exists():
        raise Refused(f"--output is {_OUTPUT.value}, which exists already; give a new folder")
    return kinds


def _open(kinds: list[str]) -> tuple[Pretrained, Task]:
    """Read the checkpoint and the files; refuse what does not fit together."""
    checkpoint = load.load(_CHECKPOINT.value)
    model = checkpoint.config
    positions = model.max_position_embeddings
    if _MAX_SEQ_LENGTH.value > positions:
        raise Refused(
            f"--max_seq_length is {_MAX_SEQ_LENGTH.value}; the checkpoint has {positions} "
            "positions: give that or less"
        )
    if model.num_hidden_layers < 4 and any("four" in kind for kind in kinds):
        raise Refused(
            f"--features is {_FEATURES.value!r}, but {_CHECKPOINT.value} has "
            f"{model.num_hidden_layers} layers, not four; give others of "
            f"{', '.join(kind for kind in FEATURES if 'four' not in kind)}"
        )
    options = TaskOptions(task="ner", dir=_DATA_DIR.value, max_seq_length=_MAX_SEQ_LENGTH.value)
    task = ner.open_task(with_length(options, positions), checkpoint.vocabulary)
    frozen_ner.check_room(task, *_dims(checkpoint))
    return checkpoint, task


def _dims(checkpoint: Pretrained) -> tuple[int, int]:
    """Return how many vectors a token has, and their width."""
    return checkpoint.config.num_hidden_layers + 1, checkpoint.config.hidden_size


def _train(checkpoint: Pretrained, task: Task, kinds: list[str], output: pathlib.Path) -> int:
    screen = Screen(is_writer=True)
    training = Training(_UNITS.value, _EPOCHS.value, _BATCH_SIZE.value, _RATE.value, _SEED.value)
    output.mkdir(parents=True)
    layers = checkpoint.config.num_hidden_layers
    screen.table("named entities on frozen vectors", task.describe_files(screen.text_width))
    scores_by_kind = {}
    run = frozen_ner.compile_layers(checkpoint)
    with frozen_ner.cache_vectors(run, _dims(checkpoint), task, screen) as vectors:
        for kind in kinds:
            features = frozen_ner.choose_features(kind, layers)
            best = frozen_ner.train_tagger(task, vectors, features, training, screen)
            scores_by_kind[kind] = {"epoch": best.epoch, **best.scores}
            (output / kind).mkdir()
            for split, logits in best.logits.items():
                task.write_predictions(split, logits, output / kind)
            content = json.dumps(scores_by_kind, indent=1) + "\n"
            write_file(output / "scores.json", content.encode())
    rows = [
        (kind, f"{task.main_score} {scores[task.main_score]:.4f} on dev, epoch {scores['epoch']}")
        for kind, scores in scores_by_kind.items()
    ]
    screen.table("done", [*rows, ("written to", str(output))])
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "start it again with a new --output"
    return cli.run(_main, USAGE, how_to_resume, argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
