"""Pre-train a BERT: python -m bert_jax.train --config=configs/base.py --workdir=DIR

    --config.data.store=STORE    the corpus, from python -m data_pipeline.build
    --config.optim.learning_rate=5e-5 --config.phases[0].steps=1000    override single fields
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
    config_check,
    feed,
    mesh,
    objectives,
    preparation,
    profiling,
    run_flags,
    run_process,
)
from bert_jax import config as config_lib
from bert_jax.config import Config
from bert_jax.run_flags import RunFlags
from bert_jax.watchdog import Watchdog
from bert_jax.workdir import Workdir
from data_pipeline.files import is_address
from data_pipeline.interpreter import python
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag()
_RUN = RunFlags()
flags.adopt_module_key_flags(run_flags)  # or --help leaves them out
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the resolved config and stop")

USAGE = "python -m bert_jax.train --config=configs/base.py --workdir=DIR"


def _show(config: Config) -> int:
    shown = dataclasses.asdict(config)
    shown["phases"] = list(shown["phases"])
    print(yaml.safe_dump(shown, sort_keys=False), end="")
    return 0


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    began = time.time()
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = command_line.resolved(_CONFIG)
    config_check.check(config)
    objective = objectives.find(config.objective)
    mesh.presets(config.mesh)
    if _PRINT_CONFIG.value:
        if config.data.store and not is_address(config.data.store):
            vocab_size = feed.open_store(config.data).vocab_size
            config = config_lib.with_vocab_size(config, vocab_size)
        return functools.partial(_show, config_lib.with_predictions(config))
    profiled = profiling.read_window(_RUN.profile_steps) if _RUN.profile_steps else None
    place = _RUN.place()
    place.check(USAGE)

    def prepare(workdir: Workdir) -> preparation.Setup:
        return preparation.prepare(config, objective, workdir, profiled=profiled, began=began)

    setup, watchdog = run_process.prepared(place, config.hosts, log, prepare)
    return functools.partial(_train, setup, watchdog)


def _train(setup: preparation.Setup, watchdog: Watchdog) -> int:
    return run_process.to_exit_code(setup, watchdog, "bert_jax.train", _finish)


def _finish(setup: preparation.Setup, summary: dict[str, Any]) -> None:
    """Show what was reached, where everything is, and what to try."""
    rows = [*_heldout_rows(summary), *run_process.closing_rows(setup, summary)]
    setup.screen.table("done", rows)
    setup.screen.command(
        f"{python()} -m bert_jax.fill_mask --checkpoint={shlex.quote(setup.storage.address)} "
        "'A sentence with one [MASK] in it.'",
        before="try it: ",
    )


def _heldout_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    if "heldout_mlm_loss" not in summary:
        return []
    loss, unigram = summary["heldout_mlm_loss"], summary["unigram_mlm_loss"]
    side = "under" if loss < unigram else "over"
    verdict = f"{abs(unigram - loss):.2f} {side} the {unigram:.2f} of a model without context"
    return [("held out", f"MLM loss {loss:.2f}, {verdict}")]


def main() -> None:
    """Entry point."""
    way_on = "the same command goes on from the last save, if there was one"
    command_line.run(_prepare, USAGE, way_on, run_process.leave)


if __name__ == "__main__":
    main()
