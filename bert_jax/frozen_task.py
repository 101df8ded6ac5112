"""Learn a task on frozen vectors or counts: python -m bert_jax.frozen_task KIND --from=... ...

    counts      --from=STORE            tf-idf of the tokens
    skipgram    --from=SKIPGRAM         the skip-gram vectors
    elmo        --from=BILM             all layers of the biLM; for tags, a learned mix of them
    taglm       --from=SKIPGRAM,BILM    skip-gram vectors and the biLM's last layer, concatenated
    bert        --from=CHECKPOINT       the last four layers of a BERT, concatenated

    --config=...     the task, such as configs/finetune/glue.py:task=rte; only config.data and
                     config.seed are read
    --workdir=DIR    a new folder: summary.json, with the names of a fine-tuning's, and predictions

SKIPGRAM and BILM are workdirs of bert_jax.baseline. Classification and regression use a linear
model on the mean vector of a text, tagging the BiLSTM of bert_jax.feature_ner.
"""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

from absl import flags

from bert_jax.config.schema import FinetuneConfig
from bert_jax.lab.baselines.settings import Training
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_CONFIG = cli.config_flag(FinetuneConfig)
_FROM = flags.DEFINE_string("from", "", "the store, workdirs or checkpoint, separated by commas")
_WORKDIR = flags.DEFINE_string("workdir", "", "a new folder")
_UNITS = flags.DEFINE_integer(
    "units", Training.units, "tagging: LSTM units in each direction", lower_bound=1
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", Training.epochs, "tagging: passes over the training files", lower_bound=1
)
_RATE = flags.DEFINE_float(
    "learning_rate", Training.learning_rate, "tagging: initial learning rate of Adam"
)

USAGE = "python -m bert_jax.frozen_task KIND --from=... --config=... --workdir=DIR"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.config.schema import with_length
from bert_jax.lab.baselines import frozen_task, training, vectors
from bert_jax.lab.baselines.vectors import KINDS
from bert_jax.logging.console import Screen, duration
from bert_jax.tasks.registry import open_task
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import write_json

_PREDICTIONS = "predictions"


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        if not arguments or arguments[0] not in KINDS:
            given = repr(arguments[0]) if arguments else "missing"
            raise Refused(f"KIND is {given}; it must be one of {', '.join(KINDS)}; {USAGE}")
        cli.refuse_arguments(arguments[1:], USAGE)
        kind = arguments[0]
        for flag in (_FROM, _WORKDIR):
            if not flag.value:
                raise Refused(f"--{flag.name} is missing; {USAGE}")
        config = cli.load_config(FinetuneConfig, _CONFIG)
        if config.init:
            raise Refused(
                f"config.init is {config.init}; give it as --from, and leave config.init out"
            )
        log.hold()
        addresses = _FROM.value.split(",")
        encoder = vectors.open_encoder(kind, addresses)
        data = with_length(config.data, encoder.positions)
        task = open_task(data, encoder.vocabulary)
        frozen_task.check_task(task, encoder, kind)
        if not _RATE.value > 0.0:
            raise Refused(f"--learning_rate is {_RATE.value}; it must be above 0")
        tagger = Training(
            units=_UNITS.value,
            epochs=_EPOCHS.value,
            learning_rate=_RATE.value,
            seed=config.seed,
        )
        settings = {**dataclasses.asdict(data), **dataclasses.asdict(tagger)}
        if not data.pair_truncation:  # which earlier records lack
            del settings["pair_truncation"]
        folder = pathlib.Path(_WORKDIR.value)
        record = {"kind": kind, "from": addresses, "digest": encoder.digest}
        training.claim_folder(folder, {**record, "settings": settings})
    screen = Screen(is_writer=True)
    screen.table(f"{task.name} on {kind}", task.describe_files(screen.text_width))
    summary = training.read_summary(folder)
    if summary is None:
        started = time.monotonic()
        logits = frozen_task.learn(task, encoder, config.seed, tagger, screen)
        frozen_task.write_predictions(task, logits, folder / _PREDICTIONS)
        scores = frozen_task.score(task, logits)
        secs = round(time.monotonic() - started, 1)
        majority = {f"majority_dev_{name}": value for name, value in task.baseline.items()}
        summary = {"kind": kind, "task": task.name, **scores, **majority, "seconds": secs}
        write_json(folder / training.SUMMARY, summary)
    baseline = f"{task.main_score} {task.baseline[task.main_score]:.4f} without reading the text"
    hidden = ("seconds", *(name for name in summary if name.startswith("majority_")))
    rows = [(name, str(value)) for name, value in summary.items() if name not in hidden]
    rows += [("baseline", baseline), ("time", duration(summary["seconds"])), ("in", str(folder))]
    screen.table("done", rows)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "the same command starts the task again"
    return cli.run(_main, USAGE, how_to_resume, argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
