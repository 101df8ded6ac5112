"""Pre-train a BERT on a store, or resume a run.

After Ctrl-C, another signal or a crash, the same command resumes the run.
"""

import dataclasses
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import logging

from bert_jax.config import Config
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig, RunFlags
from data_pipeline.cli.flags import Command, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag()
    run: RunFlags
    branch: str = flag(
        "",
        "checkpoint of another run to continue from, with its optimizer and position; this config "
        "may change only what comes after the step",
        metavar="RUN@STEP",
    )


# When this process started, before the slow imports, which count for config.budget; None if
# imported.
_STARTED = time.time() if __name__ == "__main__" else None

COMMAND = Command(
    "bert_jax.train",
    __doc__,
    TrainFlags,
    "python -m bert_jax.train --config=configs/base.py --config.data.store=STORE --workdir=DIR "
    "--config.optim.learning_rate=5e-5 '--config.phases[0].steps=1000'",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax import config as config_lib
from bert_jax.config import overrides
from bert_jax.runtime import profiler
from bert_jax.trainer import feed, run
from bert_jax.trainer import setup as setup_lib
from bert_jax.trainer.fresh_start import parse_trunk
from bert_jax.trainer.setup import Setup
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io import Refused
from data_pipeline.io.address import is_address


def _main(log: LibraryLog, flags: TrainFlags) -> int:
    with cli.preparing():
        began = time.time()
        logging.set_verbosity(logging.ERROR)
        config = flags.config.load()
        if flags.run.print_config:
            # Imported here: other runs may read no checkpoint.
            from bert_jax.interop import warm_start

            if config.budget:
                raise Refused(
                    f"config.budget is {config.budget}, and --print_config is given: a budget "
                    "chooses the settings when the run starts; print the chosen run with "
                    "--config=WORKDIR/chosen_config.py"
                )
            is_local = config.data.store and not any(map(is_address, config.data.stores))
            facts = feed.read_facts(config.data) if is_local else None
            sizes = warm_start.read_local_sizes(config)
            return cli.print_config(config_lib.resolve(config, sizes, facts))
        steps = flags.run.profile_steps
        profiled = profiler.read_window(steps) if steps else None
        trunk = parse_trunk(flags.branch) if flags.branch else None
        given, budget = flags.config.overrides, None
        if config.budget or any(each.path == "budget" for each in given):
            from bert_jax.benchmarking import dial_run  # imported here: others measure nothing

            budget = dial_run.read_budget(config, flags.run.process.multihost)
        with run.prepare_process(flags.run, config.hosts, log) as (workdir, watchdog):
            if budget:
                home, start = workdir.home, _STARTED or began
                config = dial_run.settle_budget(flags.config, budget, home, start)
            setup = setup_lib.build_setup(config, workdir, None, profiled, began, trunk)
            kept = overrides.find_kept_settings(config, given)
            rows = [*kept, *setup.data_rows]
            setup = dataclasses.replace(setup, data_rows=rows)
    return run.train_to_exit_code(setup, watchdog, "bert_jax.train", _finish)


def _finish(setup: Setup, summary: dict[str, Any]) -> None:
    rows = run.describe_result(setup, summary)
    for term, name in (("mlm", "MLM"), ("causal", "next-token")):
        if f"heldout_{term}_loss" in summary:
            loss, unigram = summary[f"heldout_{term}_loss"], summary[f"unigram_{term}_loss"]
            side = "under" if loss < unigram else "over"
            gap = f"{abs(unigram - loss):.2f} {side} the {unigram:.2f} of a model without context"
            if (ngram := summary.get(f"ngram_{term}_loss")) is not None:
                gap += f"; a two-neighbor count model has {ngram:.2f}"
            rows.insert(0, ("held out", f"{name} loss {loss:.2f}, {gap}"))
    setup.screen.table("done", rows)
    if setup.config.model.is_causal:
        return
    setup.screen.command(
        f"{find_python()} -m bert_jax.fill_mask --checkpoint={shlex.quote(setup.storage.address)} "
        "'A sentence with one [MASK] in it.'",
        before="try it: ",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    how_to_resume = "the same command resumes from the last save, if there was one"
    return cli.run(COMMAND, _main, how_to_resume, argv, run.leave, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
