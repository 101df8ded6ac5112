"""Fit a scaling law on your own text: python -m bert_jax.ladder --config=FILE --workdir=DIR ...

    --config=FILE           the config whose first phase is trained, with --config.FIELD=VALUE
    --config.data.store=STORE   the text
    --workdir=DIR           a folder for each run; ladder.json, ladder.png
    --widths=64,128,256     of the models
    --tokens=8M,16M,32M     that each width reads; a larger store has more by default
    --learning_rate=3e-3    peak, of the narrowest width; the others have it by transfer
    --predict=384:30M       a run of another width and tokens: loss, interval and command
    --learned=0.7           share of the way from the unigram loss to the n-gram loss that a run
                            must have come to be fitted
    --max_operations=1e16   refuse a ladder of more, as 5% of those of the run it is for
    --parallel=1            runs at once, on a GPU or TPU chip each
    --plan                  print tokens, operations and time of each run, and run nothing

Trains each width on each number of tokens, with a schedule of its own, and fits the held-out masked
LM loss. What is finished is not run again, so the same command resumes, and widths and tokens may
be added. python -m bert_jax.plan --budget reads the law. Exit code 1: a run failed, or the points
fit no law.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.config import Config
from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

# A run is fitted once it has come this share of the way from the unigram loss to the n-gram loss.
# Until attention finds the words that matter, the loss stays on a plateau, and then it falls fast:
# it shows when that happens, not what size and tokens bring (arXiv 2309.07311). The quickstart's,
# with 4.6 nats of n-grams and 6.4 of unigrams, falls from 5.6 to 4.7 in 400 steps.
LEARNED = 0.7
# Peak at the narrowest width. Of 1e-3, 2e-3, 4e-3 and 8e-3 the best in short runs was 4e-3 at width
# 64, with 2e-3 less than 0.01 nats behind, and 2e-3 at width 256, by transfer (docs/results.md).
LEARNING_RATE = 3e-3

_CONFIG = cli.config_flag(Config)
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the ladder and of its runs")
_WIDTHS = flags.DEFINE_string("widths", "64,128,256", "widths of the models")
_TOKENS = flags.DEFINE_string(
    "tokens", "", "tokens that each width reads, as 8M,16M,32M; empty chooses by the store"
)
_RATE = flags.DEFINE_float(
    "learning_rate", LEARNING_RATE, "peak of the narrowest width's learning rate"
)
_PREDICT = flags.DEFINE_multi_string(
    "predict", [], "a run to predict and not to train, as WIDTH:TOKENS; may be repeated"
)
_LEARNED = flags.DEFINE_float(
    "learned",
    LEARNED,
    "share of the way from the unigram loss to the n-gram loss, from which a run is fitted",
)
_MAX_OPERATIONS = flags.DEFINE_float(
    "max_operations", None, "refuse a ladder of more operations; take 5% of the run it is for"
)
_PARALLEL = flags.DEFINE_integer(
    "parallel", 1, "runs at once, on a GPU or TPU chip each; on a CPU they share it", lower_bound=1
)
_PLAN = flags.DEFINE_bool("plan", False, "print what the ladder takes, and run nothing")
_MEASURE = flags.DEFINE_bool("measure", True, "of --plan: time steps that are short enough")

USAGE = "python -m bert_jax.ladder --config=configs/base.py --config.data.store=STORE --workdir=DIR"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.config import overrides
from bert_jax.lab import ladder as ladder_lib
from bert_jax.lab import plan
from bert_jax.lab.ladder import Recipe, Rung
from bert_jax.lab.runner import Study
from bert_jax.logging.console import BAD, Screen
from bert_jax.planning.law import LADDER
from bert_jax.runtime.exit_codes import DONE, FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.address import is_address
from data_pipeline.store import TEXT, Store, open_store

SHARE = 0.05  # of the run that a ladder is for


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        config = cli.load_config(Config, _CONFIG)
        if not _WORKDIR.value or is_address(_WORKDIR.value):
            raise Refused(
                f"--workdir is {_WORKDIR.value or 'missing'}; give a folder on this machine for "
                f"the runs of the ladder; {USAGE}"
            )
        if not -1.0 <= _LEARNED.value <= 2.0:
            raise Refused(f"--learned is {_LEARNED.value}; it must be a share, as 0.7")
        store = _open_text(config)
        recipe, rungs, asked = _read_rungs(config, store)
        place = str(store.directory)
        study = Study(ladder_lib.make_study(rungs, place), pathlib.Path(_WORKDIR.value))
        if asked:  # refused now and not after the training
            Study(ladder_lib.make_study(asked, place), study.folder)
        _check_operations(study)
        if not _PLAN.value:
            study.claim()
        log.hold()
    screen = Screen(is_writer=True)
    _show_plan(study, screen)
    if _PLAN.value:
        return DONE
    results = study.run(screen, _PARALLEL.value)
    if any(result.errors for result in results):
        screen.print("no law is fitted while runs fail; the same command resumes", BAD)
        return FAILED
    return _finish(study, recipe, rungs, asked, store, screen)


def _open_text(config: Config) -> Store:
    if not config.data.store or "," in config.data.store:
        raise Refused(
            f"config.data.store is {config.data.store!r}; give the one store to climb on: {USAGE}"
        )
    store = open_store(config.data.store)
    if store.kind != TEXT:
        raise Refused(
            f"config.data.store={config.data.store} holds prebuilt examples, whose unique tokens "
            "are unknown; build a store of the text"
        )
    if store.heldout.tokens == 0:
        raise Refused(
            f"config.data.store={config.data.store} has no held-out text, whose loss a ladder "
            "predicts; build it with --holdout"
        )
    return store


def _read_rungs(config: Config, store: Store) -> tuple[Recipe, list[Rung], list[Rung]]:
    """Return what rungs share, the rungs to train, and those to predict."""
    widths = ladder_lib.parse_counts(_WIDTHS.value, "widths")
    tokens = ladder_lib.choose_tokens(store.train.tokens)
    if _TOKENS.value:
        tokens = ladder_lib.parse_counts(_TOKENS.value, "tokens")
    place, *given = cli.config_arguments(_CONFIG)
    file = place.removeprefix("--config=")
    own, _ = overrides.take(given, Config)
    recipe = ladder_lib.make_recipe(config, file, own, widths, tokens, _RATE.value)
    rungs = [ladder_lib.make_rung(recipe, width, count) for width in widths for count in tokens]
    asked = []
    for text in _PREDICT.value:
        width, colon, count = text.partition(":")
        if not colon:
            raise Refused(f"--predict is {text!r}; it must be WIDTH:TOKENS, as 384:30M")
        sizes = [ladder_lib.parse_counts(part, "predict") for part in (width, count)]
        asked += [ladder_lib.make_rung(recipe, w, n) for w in sizes[0] for n in sizes[1]]
    ladder_lib.refuse_overfitting(rungs, asked, store.train.tokens)
    return recipe, rungs, asked


def _check_operations(study: Study) -> None:
    total, most = sum(cost.operations for cost in study.costs), _MAX_OPERATIONS.value
    if most is not None and not total <= most:
        raise Refused(
            f"the rungs take {total:.3g} operations, more than --max_operations={most:g}; take "
            f"narrower --widths, or --tokens of {most / total:.2g} times as many"
        )


def _show_plan(study: Study, screen: Screen) -> None:
    """Print what each rung takes; only with --plan how long, since that takes the device."""
    rows, store = study.config.rows, study.config.store
    plans = plan.plan_rows(rows, study.costs, 1)
    if _PLAN.value:
        plans = plan.time_rows(plans, rows, 1, store, screen if _MEASURE.value else None)
    make_console(highlight=False).print(plan.make_table(plans, None, None))
    total = sum(cost.operations for cost in study.costs)
    screen.print(f"{total:.3g} operations: {SHARE:.0%} of a run of {total / SHARE:.3g}")
    if _PLAN.value:
        for line in plan.describe_total(plans, None, None):
            screen.print(line)


def _finish(
    study: Study,
    recipe: Recipe,
    rungs: Sequence[Rung],
    asked: Sequence[Rung],
    store: Store,
    screen: Screen,
) -> int:
    """Fit the law, report it, and return the exit code."""
    # Here, so that a refusal or --help does not wait for matplotlib.
    from bert_jax.lab import ladder_report

    outcomes = [
        ladder_lib.read_outcome(rung, study.locate_run(rung.row, 0), store, cost, _LEARNED.value)
        for rung, cost in zip(rungs, study.costs, strict=True)
    ]
    law, error = ladder_lib.fit_outcomes(outcomes, store)
    forecasts = ladder_lib.predict(asked, outcomes, law, recipe, store) if law else []
    ladder = ladder_lib.Ladder(outcomes, law, error, forecasts)
    ladder.write(study.folder)
    ladder_report.draw(ladder, study.folder)
    make_console(highlight=False).print(ladder_report.make_table(ladder))
    for line in [*ladder.notes(), *ladder_report.describe_forecasts(forecasts)]:
        screen.print(line)
    screen.print(f"{study.folder / LADDER}, {ladder_report.PICTURE}")
    return DONE if law else FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "the same command resumes", argv=argv, outlives_reader=True)


if __name__ == "__main__":
    sys.exit(main())
