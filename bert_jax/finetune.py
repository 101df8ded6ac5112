"""Fine-tune a BERT: python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte ...

    --config.init=CHECKPOINT     hf:DIR, google:PREFIX, or the workdir of a run of pre-training
    --config.data.dir=DIR        the files of the task
    --workdir=DIR                folder of the run: checkpoints, metrics, summary, predictions
    --print_config               resolve, check and print the config, and stop

A run stopped by Ctrl-C, SIGTERM or a crash goes on when the same command is given again.
"""

import dataclasses
import functools
import shlex
import time
from collections.abc import Callable
from typing import Any

import yaml
from absl import flags, logging

from bert_jax import (
    command_line,
    finetune_check,
    finetuning,
    mesh,
    predictions,
    preparation,
    profiling,
    run_flags,
    run_process,
)
from bert_jax.finetune_config import FinetuneConfig
from bert_jax.run_flags import RunFlags
from bert_jax.watchdog import Watchdog
from bert_jax.workdir import Workdir
from data_pipeline.interpreter import python
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag(FinetuneConfig)
_RUN = RunFlags()
flags.adopt_module_key_flags(run_flags)  # or --help leaves them out
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the config and stop")

USAGE = (
    "python -m bert_jax.finetune --config=configs/finetune/glue.py:task=rte "
    "--config.init=CHECKPOINT --config.data.dir=DIR --workdir=DIR"
)


def _show(config: FinetuneConfig) -> int:
    shown = dataclasses.asdict(config)
    shown["phases"] = list(shown["phases"])
    print(yaml.safe_dump(shown, sort_keys=False), end="")
    return 0


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    began = time.time()
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = command_line.resolved_as(FinetuneConfig, _CONFIG)
    finetune_check.check(config)
    mesh.presets(config.mesh)
    if _PRINT_CONFIG.value:
        return functools.partial(_show, config)
    profiled = profiling.read_window(_RUN.profile_steps) if _RUN.profile_steps else None
    place = _RUN.place()
    place.check(USAGE)

    def prepare(workdir: Workdir) -> preparation.Setup:
        return finetuning.prepare(config, workdir, profiled=profiled, began=began)

    setup, watchdog = run_process.prepared(place, config.hosts, log, prepare)
    return functools.partial(_train, setup, watchdog)


def _train(setup: preparation.Setup, watchdog: Watchdog) -> int:
    return run_process.to_exit_code(setup, watchdog, "bert_jax.finetune", _finish)


def _finish(setup: preparation.Setup, summary: dict[str, Any]) -> None:
    """Write the predictions, and show what was reached and where everything is."""
    rows = predictions.score_rows(setup, summary)
    written = predictions.write(setup, summary["steps"])
    labels = ["predictions"] + [""] * len(written)
    rows += [(label, str(path)) for label, path in zip(labels, written, strict=False)]
    rows += run_process.closing_rows(setup, summary)
    place = shlex.quote(setup.storage.address)
    command = f"{python()} -m bert_jax.predict --checkpoint={place} --input=FILE --output=FILE"
    setup.screen.table("done", [*rows, ("new rows", command)])


def main() -> None:
    """Entry point."""
    way_on = "the same command goes on from the last save, if there was one"
    command_line.run(_prepare, USAGE, way_on, run_process.leave)


if __name__ == "__main__":
    main()
