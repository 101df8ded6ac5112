"""Fine-tune a BERT: python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte ...

    --config.init=CHECKPOINT     hf:DIR, google:PREFIX, or the workdir of a run of pre-training
    --config.data.dir=DIR        the files of the task
    --workdir=DIR                folder of the run: checkpoints, metrics, summary, predictions
    --print_config               resolve, check and print the config, and stop

A run stopped by Ctrl-C, another signal or a crash resumes when the same command is given again.
"""

import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from bert_jax.config.schema import FinetuneConfig
from bert_jax.runtime import cli, malloc
from bert_jax.runtime.cli import RunFlags

_CONFIG = cli.config_flag(FinetuneConfig)
_RUN = RunFlags()
flags.adopt_module_key_flags(cli)  # or --help leaves them out
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the config and stop")

USAGE = (
    "python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte "
    "--config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR"
)

if __name__ == "__main__":
    cli.check_command_line(USAGE)
    malloc.keep_freed_memory()

from bert_jax.config import validate
from bert_jax.finetuning import predict
from bert_jax.finetuning import setup as finetuning
from bert_jax.runtime import profiler
from bert_jax.trainer import run
from bert_jax.trainer.setup import Setup
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        began = time.time()
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = cli.load_config(FinetuneConfig, _CONFIG)
        if _PRINT_CONFIG.value:
            validate.check_finetune(config)
            return cli.print_config(config)
        profiled = profiler.read_window(_RUN.profile_steps) if _RUN.profile_steps else None
        with run.prepare_process(_RUN.locate(USAGE), config.hosts, log) as (workdir, watchdog):
            setup = finetuning.build_finetuning(config, workdir, profiled=profiled, began=began)
    return run.train(setup, watchdog, "bert_jax.finetune", _finish)


def _finish(setup: Setup, summary: dict[str, Any]) -> None:
    """Write the predictions, and show the scores and where all files are."""
    rows = predict.score_rows(setup, summary)
    written = predict.write_predictions(setup, summary["steps"])
    labels = ["predictions"] + [""] * len(written)
    rows += [(label, str(path)) for label, path in zip(labels, written, strict=False)]
    rows += run.describe_result(setup, summary)
    place = shlex.quote(setup.storage.address)
    command = f"{find_python()} -m bert_jax.predict --checkpoint={place} --input=FILE --output=FILE"
    setup.screen.table("done", [*rows, ("new rows", command)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "the same command resumes from the last save, if there was one"
    return cli.run(_main, USAGE, how_to_resume, argv=argv, leave=run.leave, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
