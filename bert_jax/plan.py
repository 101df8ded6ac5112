"""Plan a run on TPUs without one: python -m bert_jax.plan --config=FILE --topology=v5e:4x4

    --topology=v5litepod-16      the slice: a topology, or gcloud's name for one
    --num_slices=2               as many of them, joined by the data-centre network
    --store=STORE                for the vocabulary, the schedule's fit to the text, and epochs
    --seq_len=128 --per_chip_batch=64    what if: one phase, of this length and so many rows a chip
    --scale=16,64,256            a row for each slice of so many chips, with as many rows a chip
    --prices=FILE                dollars for a chip and an hour, on demand and spot, in place of
    bert_jax/planning/prices.json
    --json_out=FILE --hlo_out=FILE --plot_out=FILE.png
    --budget=300                 which size to train for so many dollars, and what loss to expect;
    or --days=4, or --chip_hours=500
    --spot                       of a budget: spend it on spot chips; preemptions are not counted
    --ladder=DIR                 of a budget: the law that bert_jax.ladder has fitted on your text

Compiles the real step of every phase with the TPU's own compiler: what it says of memory decides
whether the phase fits; what it expects of time is an estimate, and is called so. Needs libtpu,
which `pip install '.[plan]'` in a clone of bert_jax brings, on Linux on x86-64.
"""

import os
import sys

from data_pipeline.io.refused import Refused

# Set up libtpu as a compiler only, before jax is imported: no search for a TPU, several processes
# at a time, no warnings about either.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# XLA flags for CPUs or GPUs that libtpu does not know would abort the process; flags for TPUs go in
# LIBTPU_INIT_ARGS.
os.environ.pop("XLA_FLAGS", None)

import dataclasses
import json
import math
import pathlib
import shlex
from collections.abc import Sequence

from absl import flags, logging

from bert_jax.runtime import absl_cli as cli

_CONFIG = cli.config_flag()
_TOPOLOGY = flags.DEFINE_string("topology", None, "such as v5e:8x8 or v5litepod-64")
_NUM_SLICES = flags.DEFINE_integer("num_slices", 0, "the same as --config.mesh.num_slices")
_STORE = flags.DEFINE_string("store", None, "the same as --config.data.store")
_SEQ_LEN = flags.DEFINE_integer(
    "seq_len", None, "plan one phase only, of this length", lower_bound=1
)
_PER_CHIP_BATCH = flags.DEFINE_integer(
    "per_chip_batch",
    None,
    "plan one phase only, with so many rows a chip, all at once",
    lower_bound=1,
)
_SCALE = flags.DEFINE_list("scale", [], "chips of slices to compare, such as 16,64,256")
_PRICES = flags.DEFINE_string(
    "prices", None, "price list, in the form of the default, bert_jax/planning/prices.json"
)
_JSON_OUT = flags.DEFINE_string("json_out", None, "file for every number: docs/guide/plan.md")
_HLO_OUT = flags.DEFINE_string(
    "hlo_out", None, "file for the compiled text of the first phase that fits"
)
_PLOT_OUT = flags.DEFINE_string(
    "plot_out", None, "file for a picture of the rate, or of loss against dollars, a .png"
)
_BUDGET = flags.DEFINE_float(
    "budget", None, "dollars to spend: which size to train, and the loss to expect"
)
_DAYS = flags.DEFINE_float("days", None, "days of the slice to spend, in place of --budget")
_CHIP_HOURS = flags.DEFINE_float(
    "chip_hours", None, "hours of a chip to spend, in place of --budget"
)
_SPOT = flags.DEFINE_bool("spot", False, "spend the budget on spot chips")
_LADDER = flags.DEFINE_string(
    "ladder",
    None,
    "folder of python -m bert_jax.ladder, whose law a budget takes in place of our constants",
)

USAGE = "python -m bert_jax.plan --config=configs/base.py --topology=v5e:4x4 [--store=STORE]"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.benchmarking import measure
from bert_jax.config import Config, ResolvedRun
from bert_jax.interop import warm_start
from bert_jax.logging.console import Screen
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import budget as budget_lib
from bert_jax.planning import estimate, plan_report, slices
from bert_jax.planning.aot_compile import Compiled
from bert_jax.planning.budget import Budget, BudgetPlan, BudgetRequest
from bert_jax.planning.candidates import make_compiler
from bert_jax.planning.chip_prices import FILE, Prices, format_dollars, read_prices
from bert_jax.planning.fit import fit_english
from bert_jax.planning.law import read_ladder
from bert_jax.planning.plan import (
    Plan,
    PlanRequest,
    build_plan,
    name_vocabulary_origin,
    read_corpus,
    scale_config,
)
from bert_jax.planning.slices import Slice
from bert_jax.runtime import exit_codes
from bert_jax.train_step import objectives
from bert_jax.train_step.schedule import render_rates_as_text
from bert_jax.trainer import heldout, setup
from data_pipeline.cli.main import find_python
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_file_path

CURVE_WIDTH, CURVE_HEIGHT = 60, 4  # of the learning-rate plot on the screen, in characters


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        if _asks_for_budget():
            return _spend(log)
        request, screen = _read_request(log)
    with screen.spinning("planning"):
        plan, compiled = build_plan(request, screen)
        _write_pictures(request.config, compiled, screen)
    _show(request, plan, screen)
    _write_json(plan)
    return 0 if all(phase.fits for phase in plan.phases) else exit_codes.FAILED


def _write_json(plan: Plan | BudgetPlan) -> None:
    if _JSON_OUT.value:
        text = json.dumps(dataclasses.asdict(plan), indent=2)
        pathlib.Path(_JSON_OUT.value).write_text(text + "\n", encoding="utf-8")


def _read_config() -> tuple[ResolvedRun, Slice, str]:
    """Read the config, the slice and the vocabulary's origin; one must divide over the other."""
    config = cli.load_config(Config, _CONFIG)
    if not _TOPOLOGY.value:
        raise Refused(f"--topology is missing: the slice to plan for; {USAGE}")
    if _NUM_SLICES.present:
        mesh = dataclasses.replace(config.mesh, num_slices=_NUM_SLICES.value)
        config = dataclasses.replace(config, mesh=mesh)
    tpu_slice = slices.find_slice(_TOPOLOGY.value, config.mesh.num_slices)
    if _STORE.value:
        data = dataclasses.replace(config.data, store=_STORE.value)
        config = dataclasses.replace(config, data=data)
    vocabulary_from = name_vocabulary_origin(config)
    config = setup.resolve_alone(_apply_what_if(config, tpu_slice))
    mesh_lib.check_divides(config, tpu_slice.devices)
    for index in range(len(config.phases)):
        estimate.describe_attention(config, index, tpu_slice)  # refuses a kernel that does not fit
    for flag in (_JSON_OUT, _HLO_OUT, _PLOT_OUT):
        if flag.value:
            check_file_path(pathlib.Path(flag.value), f"--{flag.name}")
    return config, tpu_slice, vocabulary_from


def _start(log: LibraryLog, tpu_slice: Slice) -> Screen:
    """Start the TPU's compiler, with a screen."""
    log.hold()
    screen = Screen(is_writer=True)
    with screen.spinning("starting the TPU's compiler"):
        slices.open_devices(tpu_slice)
    return screen


def _read_request(log: LibraryLog) -> tuple[PlanRequest, Screen]:
    config, tpu_slice, vocabulary_from = _read_config()
    for flag in (_SPOT, _LADDER):
        if flag.value:
            raise Refused(f"--{flag.name} is for a budget; add --budget, or leave it out")
    if not all(size.strip().isdigit() for size in _SCALE.value):
        raise Refused(f"--scale={','.join(_SCALE.value)}: give chips, such as --scale=16,64,256")
    others = [slices.resize_slice(tpu_slice, int(chips)) for chips in _SCALE.value]
    for other in others:
        mesh_lib.check_divides(scale_config(config, tpu_slice, other), other.devices)
    prices = read_prices(pathlib.Path(_PRICES.value or FILE))
    learned = objectives.find_each(config)
    screen = _start(log, tpu_slice)
    corpus = read_corpus(config, vocabulary_from, screen)
    teacher = warm_start.read_teacher_sizes(config)
    request = PlanRequest(config, learned, tpu_slice, prices, others, corpus, teacher)
    return request, screen


_BUDGETS = (_BUDGET, _DAYS, _CHIP_HOURS)


def _asks_for_budget() -> bool:
    return any(flag.value is not None for flag in _BUDGETS)


def _read_budget(log: LibraryLog) -> tuple[BudgetRequest, Screen]:
    """Read what may be spent, on which text and by which law."""
    config, tpu_slice, _ = _read_config()
    budget = _make_budget(read_prices(pathlib.Path(_PRICES.value or FILE)), tpu_slice)
    for flag in (_SCALE, _HLO_OUT, _SEQ_LEN, _PER_CHIP_BATCH):
        if flag.value:
            raise Refused(f"--{flag.name} is not for a budget; leave it out")
    budget_lib.check(config)
    law = read_ladder(pathlib.Path(_LADDER.value)) if _LADDER.value else fit_english()
    screen = _start(log, tpu_slice)
    source = setup.open_feed(config, screen)
    if source is None:
        raise Refused("a budget needs the text that is trained on: give --store=STORE")
    corpus = budget_lib.count_corpus(source)
    return BudgetRequest(config, tpu_slice, budget, corpus, law, _SPOT.value), screen


def _make_budget(prices: Prices, tpu_slice: Slice) -> Budget:
    """Turn the flag that was given into dollars of the slice."""
    given = [flag for flag in _BUDGETS if flag.value is not None]
    if len(given) > 1:
        names = ", ".join(f"--{flag.name}" for flag in given)
        raise Refused(f"{names} say the same thing; give one of them")
    name, value = given[0].name, float(given[0].value or 0.0)
    if not 0 < value < math.inf:
        raise Refused(f"--{name} is {value:g}; it must be more than 0")
    chip = tpu_slice.chip.name
    price = prices.by_chip.get(chip)
    usd_per_chip_hour = None
    if price is not None:
        usd_per_chip_hour = price.usd_spot if _SPOT.value else price.usd_on_demand
    if price is None or not usd_per_chip_hour:
        raise Refused(prices.missing(chip, "spot" if _SPOT.value else "on_demand"))
    chip_hours = {
        "budget": value / usd_per_chip_hour,
        "days": value * 24 * tpu_slice.chips,
        "chip_hours": value,
    }[name]
    usd = chip_hours * usd_per_chip_hour
    return Budget(usd, usd_per_chip_hour, tpu_slice.chips, price)


def _spend(log: LibraryLog) -> int:
    """Choose what the budget buys, and show it."""
    from bert_jax.planning import budget_report

    request, screen = _read_budget(log)
    plan = budget_lib.choose(request, make_compiler(request.tpu_slice, screen))
    money = format_dollars(request.budget.usd)
    title = f"what {money} buys on {plan.topology}"
    screen.table(title, budget_report.format_choice(plan))
    screen.table("the bill", budget_report.format_bill(plan))
    screen.table("sizes, the best first", budget_report.format_sizes(plan))
    screen.table("half and twice as much", budget_report.format_neighbors(plan))
    screen.command(_write_command(request, plan), "to train it: ")
    if _PLOT_OUT.value:
        budget_report.draw(plan, pathlib.Path(_PLOT_OUT.value))
    _write_json(plan)
    return 0


def _write_command(request: BudgetRequest, plan: BudgetPlan) -> str:
    """Write the command that trains the chosen run."""
    settings = {**plan.settings, "config.data.store": request.config.data.store}
    given = [
        word
        for word in cli.config_arguments(_CONFIG)
        if word.partition("=")[0].removeprefix("--") not in settings
    ]
    flags_set = [f"--{name}={value}" for name, value in settings.items()]
    words = [find_python(), "-m", "bert_jax.train", *given, *flags_set, "--workdir=DIR"]
    return shlex.join(words)


def _apply_what_if(config: Config, tpu_slice: Slice) -> Config:
    """Keep one phase, if a flag asks for its length or its rows a chip."""
    if _SEQ_LEN.value is None and _PER_CHIP_BATCH.value is None:
        return config
    phase = measure.choose_phase(config, _SEQ_LEN.value or 0)
    phase = dataclasses.replace(phase, restart_learning_rate=0.0, restart_warmup_steps=0)
    if _PER_CHIP_BATCH.value is not None:
        rows = _PER_CHIP_BATCH.value * tpu_slice.chips
        phase = dataclasses.replace(phase, batch_size=rows, micro_batches=1)
    return dataclasses.replace(config, phases=(phase,))


def _write_pictures(config: Config, compiled: Compiled | None, screen: Screen) -> None:
    """Write the files of --plot_out and --hlo_out."""
    if _PLOT_OUT.value:
        from bert_jax.logging import plots  # here: matplotlib takes half a second to import

        plots.draw_rates(config, pathlib.Path(_PLOT_OUT.value))
    if _HLO_OUT.value and compiled:
        pathlib.Path(_HLO_OUT.value).write_text(compiled.text, encoding="utf-8")
    elif _HLO_OUT.value:
        screen.print(f"{_HLO_OUT.value} is not written: no phase fits")


def _show(request: PlanRequest, plan: Plan, screen: Screen) -> None:
    screen.table("plan", plan_report.format_slice(plan, request.tpu_slice))
    sequences = request.corpus.sequences_per_row
    for index, phase in enumerate(plan.phases):
        rows = plan_report.format_phase(phase, sequences[index] if sequences else None)
        screen.table(plan_report.format_phase_title(phase, index), rows)
    curve = render_rates_as_text(request.config, CURVE_WIDTH, CURVE_HEIGHT)
    warnings = heldout.too_many_epochs(request.config, request.corpus.epochs or [])
    screen.table("the run", plan_report.format_run(plan, request.prices, curve, warnings))
    if plan.scale:
        title = "as many rows a chip on other slices; the rate by the square root of the batch"
        rows = [(f"{row.chips:,} chips", plan_report.format_scaled(row)) for row in plan.scale]
        screen.table(title, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(_main, USAGE, "nothing was changed", argv=argv)


if __name__ == "__main__":
    sys.exit(main())
