"""Fine-tune a BERT on a task, or resume a run.

After Ctrl-C, another signal or a crash, the same command resumes the run.
"""

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_jax.config.schema import FinetuneConfig
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig, RunFlags
from data_pipeline.cli.flags import Command


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneFlags:
    """Declare the flags."""

    config: GivenConfig[FinetuneConfig] = cli.config_flag(FinetuneConfig)
    run: RunFlags


COMMAND = Command(
    "bert_jax.finetune",
    __doc__,
    FinetuneFlags,
    "python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte "
    "--config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.config import validate
from bert_jax.finetuning import predict
from bert_jax.finetuning import setup as finetuning
from bert_jax.runtime import profiler
from bert_jax.trainer import run
from bert_jax.trainer.setup import Setup
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog


def _main(log: LibraryLog, flags: FinetuneFlags) -> int:
    with cli.preparing():
        began = time.time()
        logging.set_verbosity(logging.ERROR)
        config = flags.config.load()
        if flags.run.print_config:
            validate.check_finetune(config)
            return cli.print_config(config)
        steps = flags.run.profile_steps
        profiled = profiler.read_window(steps) if steps else None
        with run.prepare_process(flags.run, config.hosts, log) as (workdir, watchdog):
            setup = finetuning.build_finetuning(config, workdir, profiled=profiled, began=began)
    return run.train(setup, watchdog, "bert_jax.finetune", _finish)


def _finish(setup: Setup, summary: dict[str, Any]) -> None:
    rows = predict.score_rows(setup, summary)
    written = predict.write_predictions(setup, summary["steps"])
    rows += [("" if i else "predictions", str(path)) for i, path in enumerate(written)]
    rows += run.describe_result(setup, summary)
    place = shlex.quote(setup.storage.address)
    command = f"{find_python()} -m bert_jax.predict --checkpoint={place} --input=FILE --output=FILE"
    setup.screen.table("done", rows)
    setup.screen.command(command, before="new rows: ")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "the same command resumes from the last save, if there was one"
    return cli.run(COMMAND, _main, how_to_resume, argv, run.leave, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
