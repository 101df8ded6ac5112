"""Fit a scaling law on your own text with small models trained on few tokens.

Trains each width on each number of tokens, with a schedule of its own, and fits the held-out masked
LM loss. The same command resumes: finished runs are not repeated, and widths and tokens may be
added. python -m bert_jax.plan --budget reads the law. Exit code 1: a run failed, or the points
fit no law.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from absl import logging

from bert_jax.config import Config
from bert_jax.lab.study_config import PlannedRunsFlags
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused

# A run is fitted once it has come this share of the way from the unigram loss to the n-gram loss.
# The loss stays on a plateau until attention finds the words that matter, then falls fast (arXiv
# 2309.07311). Before the end of this fall, it depends on when the fall began, not on size and
# tokens. In the quickstart (n-grams 4.6 nats, unigrams 6.4), it falls from 5.6 to 4.7 in 400 steps.
LEARNED = 0.7
# Peak at the narrowest width. Of 1e-3, 2e-3, 4e-3 and 8e-3, the best in short runs was 4e-3 at
# width 64 (2e-3 was less than 0.01 nats worse), and with transfer 2e-3 at width 256
# (docs/results/training.md).
LEARNING_RATE = 3e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class LadderFlags(PlannedRunsFlags):
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag(
        Config, about=" whose first phase is trained, with config.data.store"
    )
    widths: str = flag("64,128,256", "widths of the models", metavar="N,...")
    tokens: str = flag(
        "",
        "tokens to train each width on, as 8M,16M,32M; empty: by the size of the store",
        metavar="N,...",
    )
    learning_rate: float = flag(
        LEARNING_RATE, "peak rate of the narrowest width, transferred to the others"
    )
    predict: tuple[str, ...] = flag(
        (),
        "predict the loss of this run without training it; may be repeated",
        metavar="WIDTH:TOKENS",
    )
    learned: float = flag(
        LEARNED,
        "fit only runs whose loss has covered this share of the way from the unigram loss to the "
        "n-gram loss",
        minimum=-1.0,
        maximum=2.0,
    )
    max_operations: float | None = flag(
        None, "refuse a ladder that takes more operations, such as 5% of the planned run"
    )


COMMAND = Command(
    "bert_jax.ladder",
    __doc__,
    LadderFlags,
    "python -m bert_jax.ladder --config=configs/base.py --config.data.store=stores/mine "
    "--workdir=runs/ladder --predict=384:30M",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.lab import ladder as ladder_lib
from bert_jax.lab import plan
from bert_jax.lab.ladder import Rung
from bert_jax.lab.study import Study
from bert_jax.logging.console import BAD, Screen
from bert_jax.planning.budget import check_stores
from bert_jax.runtime import workdir_lock
from data_pipeline.cli.main import DONE, FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.store import Store, open_store

SHARE = 0.05  # a ladder costs this share of the run that it is for


def _main(log: LibraryLog, flags: LadderFlags) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        store = _open_text(flags.config.load().data.store)
        rungs, asked = _read_rungs(flags, store)
        place = str(store.directory)
        study = Study(ladder_lib.make_study(rungs, place), pathlib.Path(flags.workdir))
        if asked:  # refused now and not after the training
            Study(ladder_lib.make_study(asked, place), study.folder)
        total, most = sum(cost.operations for cost in study.costs), flags.max_operations
        if most is not None and not total <= most:
            raise Refused(
                f"the runs take {total:.3g} operations, more than --max_operations={most:g}; take "
                f"narrower --widths, or --tokens of {most / total:.2g} times as many"
            )
        if not flags.plan:
            workdir_lock.lock_folder(study.folder)
        log.hold()
    screen = Screen(is_writer=True)
    screen.print(f"{total:.3g} operations: {SHARE:.0%} of a run of {total / SHARE:.3g}")
    plan.show(study, flags, screen)
    if flags.plan:
        return DONE
    results = study.run(screen, flags.parallel)
    if any(result.errors for result in results):
        screen.print("no law is fitted while runs fail; the same command resumes", BAD)
        return FAILED
    outcomes = [
        ladder_lib.read_outcome(rung, run.folder, store, cost, flags.learned)
        for rung, run, cost in zip(rungs, study.runs, study.costs, strict=True)
    ]
    # Here, so that a refusal or --help does not wait for matplotlib.
    from bert_jax.lab import ladder_report

    ladder = ladder_lib.fit_ladder(outcomes, asked, store)
    ladder_report.show(ladder, study.folder, screen)
    return DONE if ladder.law else FAILED


def _open_text(address: str) -> Store:
    if not address or "," in address:
        raise Refused(f"config.data.store is {address!r}; give exactly one store")
    store = open_store(address)
    check_stores([store], "a ladder")
    if store.heldout.tokens == 0:
        raise Refused(
            f"config.data.store={address} has no held-out text, whose loss a ladder predicts; "
            "build it with --holdout"
        )
    return store


def _read_rungs(flags: LadderFlags, store: Store) -> tuple[list[Rung], list[Rung]]:
    """Return the rungs to train, and those to predict."""
    widths = ladder_lib.parse_counts(flags.widths, "widths")
    tokens = ladder_lib.choose_tokens(store.train.tokens)
    if flags.tokens:
        tokens = ladder_lib.parse_counts(flags.tokens, "tokens")
    recipe = ladder_lib.make_recipe(flags.config, widths, tokens, flags.learning_rate)
    rungs = [ladder_lib.make_rung(recipe, width, count) for width in widths for count in tokens]
    asked = []
    for text in flags.predict:
        width, colon, count = text.partition(":")
        if not colon:
            raise Refused(f"--predict is {text!r}; it must be WIDTH:TOKENS, as 384:30M")
        sizes = [ladder_lib.parse_counts(part, "predict") for part in (width, count)]
        asked += [ladder_lib.make_rung(recipe, w, n) for w in sizes[0] for n in sizes[1]]
    ladder_lib.refuse_overfitting(rungs, asked, store.train.tokens)
    return rungs, asked


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
