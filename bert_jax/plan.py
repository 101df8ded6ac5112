"""Plan a run on TPUs without having any.

Compiles the real step of every phase with the TPU's own compiler. The compiler's count of memory
decides whether a phase fits; its times are estimates. Needs libtpu, on x86-64 Linux: `pip install
'.[plan]'` in a clone of bert_jax.
"""

import os
import sys

from data_pipeline.io import Refused

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
import math
import pathlib
import shlex
from collections.abc import Sequence

from absl import logging

from bert_jax.config import Config
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag(
        about=", such as configs/base.py; its config.data.store gives the vocabulary, the "
        "schedule's fit to the text, and epochs"
    )
    topology: str = flag(
        "",
        "slice to plan for, or gcloud's name for one, such as v5e:8x8 or v5litepod-64",
        metavar="SLICE",
        is_required=True,
    )
    prices: str = flag(
        "",
        "your dollars per chip-hour, on demand and spot: a file like bert_jax/planning/prices.json",
        metavar="FILE",
    )
    json_out: str = flag(
        "", "file for all numbers; docs/reference/files.md explains them", metavar="FILE"
    )
    config_out: str = flag(
        "", "file for the config that config.budget chooses for the slice", metavar="FILE.py"
    )
    hlo_out: str = flag(
        "", "file for the compiled text of the first phase that fits", metavar="FILE"
    )
    plot_out: str = flag(
        "", "file for a picture of the rate, or of loss against dollars", metavar="FILE.png"
    )
    seq_len: int | None = flag(None, "plan one phase only, of this length", "what if", minimum=1)
    per_chip_batch: int | None = flag(
        None, "plan one phase only, with this many rows per chip at once", "what if", minimum=1
    )
    scale: str = flag(
        "",
        "also plan slices of these numbers of chips, with the same rows per chip",
        "what if",
        metavar="16,64,256",
    )
    budget: float | None = flag(
        None, "dollars to spend: which size to train and what loss to expect", "a budget", above=0
    )
    days: float | None = flag(
        None, "days of the slice to spend, instead of --budget", "a budget", above=0
    )
    chip_hours: float | None = flag(
        None, "chip-hours to spend, instead of --budget", "a budget", above=0
    )
    spot: bool = flag(
        False, "spend the budget on spot chips; preemptions are not counted", "a budget"
    )
    ladder: str = flag(
        "",
        "folder of bert_jax.ladder: predict by its law, not by BERT's paper",
        "a budget",
        metavar="DIR",
    )

    @property
    def price_list(self) -> pathlib.Path:
        """Return the file of prices, ours without --prices."""
        return pathlib.Path(self.prices or FILE)

    @property
    def budgets(self) -> dict[str, float]:
        """Return the budget that is given, by its flag; several are refused."""
        values = {"budget": self.budget, "days": self.days, "chip_hours": self.chip_hours}
        return {name: value for name, value in values.items() if value is not None}

    def __post_init__(self) -> None:
        names = [f"--{name}" for name in self.budgets]
        names += [
            f"--config.{each.path}" for each in self.config.overrides if each.path == "budget"
        ]
        if len(names) > 1:
            raise Refused(f"{', '.join(names)} say the same thing; give one of them")
        if self.budget == 0:
            raise Refused(
                "--budget is 0; a shell expands $ and the digit after it: write $40 as 40"
            )
        sizes = self.scale.split(",") if self.scale else ()
        if not all(size.strip().isdecimal() for size in sizes):
            raise Refused(f"--scale is {self.scale}; give chips, such as --scale=16,64,256")
        others = ("scale", "hlo_out", "seq_len", "per_chip_batch")
        for name in others if self.budgets else ("spot", "ladder"):
            if getattr(self, name):
                problem = "is not for a budget; leave it out"
                alone = "is for a budget; add --budget, or leave it out"
                raise Refused(f"--{name} {problem if self.budgets else alone}")


COMMAND = Command(
    "bert_jax.plan",
    __doc__,
    PlanFlags,
    "python -m bert_jax.plan --config=configs/base.py --config.data.store=STORE "
    "--topology=v5e:4x4 --scale=16,64,256",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.benchmarking import measure
from bert_jax.config import ResolvedRun
from bert_jax.interop.teacher import read_teacher_sizes
from bert_jax.logging.console import Screen
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import budget as budget_lib
from bert_jax.planning import estimate, plan_report, slices
from bert_jax.planning.aot_compile import Compiled, TooLarge
from bert_jax.planning.budget import Budget, BudgetPlan, BudgetRequest
from bert_jax.planning.candidates import EncoderShape, make_compiler
from bert_jax.planning.chip_prices import FILE, format_dollars, read_prices
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
from bert_jax.train_step import objectives
from bert_jax.train_step.schedule import render_rates_as_text
from bert_jax.trainer import heldout, setup
from data_pipeline.cli.main import FAILED, find_python
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_file_paths, write_json

CURVE_WIDTH, CURVE_HEIGHT = 60, 4  # characters of the learning-rate plot


def _main(log: LibraryLog, flags: PlanFlags) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        outputs = ("json_out", "config_out", "hlo_out", "plot_out")
        check_file_paths(**{name: getattr(flags, name) for name in outputs})
        config = flags.config.load()
        log.hold()
        if config.budget:
            return _choose(flags, config)
        if flags.config_out:
            raise Refused(
                "--config_out is for a config with a budget, such as --config=configs/auto.py; "
                "leave it out"
            )
        if flags.budgets:
            return _spend(flags, config)
        request, screen = _read_request(flags, config)
    with screen.spinning("planning"):
        plan, compiled = build_plan(request, screen)
        _write_pictures(flags, request.config, compiled, screen)
    _show(request, plan, screen)
    if flags.json_out:
        write_json(pathlib.Path(flags.json_out), dataclasses.asdict(plan))
    return 0 if all(phase.fits for phase in plan.phases) else FAILED


def _resolve(flags: PlanFlags, given: Config) -> tuple[ResolvedRun, Slice]:
    """Resolve the config, find the slice, and refuse a config that does not divide over it."""
    tpu_slice = slices.find_slice(flags.topology, given.mesh.num_slices)
    config = setup.resolve_alone(_apply_what_if(flags, given, tpu_slice))
    _check_per_chip_batch(flags, config, tpu_slice)
    mesh_lib.check_divides(config, tpu_slice.devices)
    for index in range(len(config.phases)):
        estimate.describe_attention(config, index, tpu_slice)  # refuses a kernel that does not fit
    return config, tpu_slice


def _start(tpu_slice: Slice) -> Screen:
    """Start the TPU's compiler, with a screen."""
    screen = Screen(is_writer=True)
    with screen.spinning("starting the TPU's compiler"):
        slices.open_devices(tpu_slice)
    return screen


def _read_request(flags: PlanFlags, given: Config) -> tuple[PlanRequest, Screen]:
    config, tpu_slice = _resolve(flags, given)
    sizes = flags.scale.split(",") if flags.scale else ()
    others = [slices.resize_slice(tpu_slice, int(chips)) for chips in sizes]
    for other in others:
        mesh_lib.check_divides(scale_config(config, tpu_slice, other), other.devices)
    prices = read_prices(flags.price_list)
    objectives.find_each(config)  # refuses an unknown name before the compiler starts
    screen = _start(tpu_slice)
    corpus, origin = read_corpus(config, screen), name_vocabulary_origin(given)
    teacher = read_teacher_sizes(config)
    return PlanRequest(config, tpu_slice, prices, others, corpus, origin, teacher), screen


def _read_budget(flags: PlanFlags, given: Config) -> tuple[BudgetRequest, Screen]:
    """Read what may be spent, on which text and by which law."""
    config, tpu_slice = _resolve(flags, given)
    budget = _make_budget(flags, tpu_slice)
    budget_lib.check(config)
    law = read_ladder(pathlib.Path(flags.ladder)) if flags.ladder else fit_english()
    screen = _start(tpu_slice)
    source = setup.open_feed(config, screen)
    if source is None:
        raise Refused("a budget needs the text that is trained on: give --config.data.store=STORE")
    corpus = budget_lib.count_corpus(source)
    return BudgetRequest(config, tpu_slice, budget, corpus, law, flags.spot), screen


def _make_budget(flags: PlanFlags, tpu_slice: Slice) -> Budget:
    """Turn the flag that was given into dollars of the slice."""
    ((name, value),) = flags.budgets.items()
    prices, chip = read_prices(flags.price_list), tpu_slice.chip.name
    price = prices.by_chip.get(chip)
    on_demand, spot = (price.usd_on_demand, price.usd_spot) if price else (None, None)
    usd_per_chip_hour = spot if flags.spot else on_demand
    if price is None or not usd_per_chip_hour:
        raise Refused(prices.missing(chip, "spot" if flags.spot else "on_demand"))
    chip_hours = {
        "budget": value / usd_per_chip_hour,
        "days": value * 24 * tpu_slice.chips,
        "chip_hours": value,
    }[name]
    usd = chip_hours * usd_per_chip_hour
    return Budget(usd, usd_per_chip_hour, tpu_slice.chips, price)


def _spend(flags: PlanFlags, config: Config) -> int:
    """Choose what the budget buys, and show it."""
    from bert_jax.logging import plots  # imported here: matplotlib takes half a second
    from bert_jax.planning import budget_report

    request, screen = _read_budget(flags, config)
    plan = budget_lib.choose(request, make_compiler(request.tpu_slice, screen))
    money = format_dollars(request.budget.usd)
    title = f"what {money} buys on {plan.topology}"
    screen.table(title, budget_report.format_choice(plan))
    screen.table("the bill", budget_report.format_bill(plan))
    screen.table("sizes, the best first", budget_report.format_sizes(plan))
    screen.table("half and twice as much", budget_report.format_neighbors(plan))
    screen.command(_write_command(flags.config, request, plan), "to train it: ")
    if flags.plot_out:
        plots.save(pathlib.Path(flags.plot_out), lambda: budget_report.draw_figure(plan))
    if flags.json_out:
        write_json(pathlib.Path(flags.json_out), dataclasses.asdict(plan))
    return 0


def _choose(flags: PlanFlags, config: Config) -> int:
    """Show the run that config.budget, or the flag in its place, chooses for the slice."""
    from bert_jax.benchmarking import dial, dial_run, dial_settings

    for name in ("json_out", "hlo_out", "plot_out", "scale", "seq_len", "per_chip_batch", "ladder"):
        if getattr(flags, name):
            raise Refused(f"--{name} is not for a config that a budget chooses; leave it out")
    tpu_slice = slices.find_slice(flags.topology, config.mesh.num_slices)
    if flags.budgets:
        money = _make_budget(flags, tpu_slice)
        budget = dial_settings.TimeBudget(format_dollars(money.usd), money.secs, tpu_slice)
    else:
        budget = dial_settings.parse_budget(config.budget, config.mesh.num_slices, flags.price_list)
    if budget.tpu_slice not in (None, tpu_slice):
        raise Refused(
            f"config.budget is {budget.text}, and --topology={flags.topology} is another slice; "
            "give the same one"
        )
    if not config.data.store:
        raise Refused("a budget needs the text that is trained on: give --config.data.store=STORE")
    screen = _start(tpu_slice)
    compile_all, unpriced = make_compiler(tpu_slice, screen), set[EncoderShape]()

    def measure(config: ResolvedRun, index: int) -> dial.StepTime:
        (result,) = compile_all([(config, index)])
        if isinstance(result, TooLarge):
            rows, needed, available = config.phases[index], result.needed, result.available
            raise MemoryError(
                f"a step of {rows.batch_size:,} rows of {rows.seq_len} needs "
                f"{needed / 2**30:.2f} GiB per chip, and one of {tpu_slice.name} has "
                f"{available / 2**30:.2f}; take a larger slice"
            )
        step = estimate.estimate_step(config, index, tpu_slice, result)
        if step.unpriced_kernels:
            unpriced.add(EncoderShape(config.model.num_hidden_layers, config.model.hidden_size))
        return dial.StepTime(step.step_secs, setup_secs=0.0)

    request, _ = dial_run.read_request(flags.config, budget, tpu_slice.devices, screen)
    choice = dial.choose_run(request, measure, lambda: budget_lib.START_SECS)
    reasons = dial_run.explain(request, choice, "compiler estimate", "to start, which is assumed")
    if choice.size.shape in unpriced:
        reasons.append(("note", budget_lib.describe_unpriced(choice.size.shape)))
    screen.table(f"the choice for {budget.text} on {tpu_slice.name}", reasons)
    if flags.config_out:
        text = dial_run.write_config(choice.written, budget, reasons)
        pathlib.Path(flags.config_out).write_text(text, encoding="utf-8")
        place = shlex.quote(flags.config_out)
        command = f"{find_python()} -m bert_jax.train --config={place} --workdir=DIR"
        screen.command(command, "to train it: ")
    return 0


def _write_command(config: GivenConfig[Config], request: BudgetRequest, plan: BudgetPlan) -> str:
    """Write the command that trains the chosen run."""
    settings = {**plan.settings, "config.data.store": request.config.data.store}
    given = [
        word
        for word in config.list_arguments()
        if word.partition("=")[0].removeprefix("--") not in settings
    ]
    flags_set = [f"--{name}={value}" for name, value in settings.items()]
    words = ["-m", "bert_jax.train", *given, *flags_set, "--workdir=DIR"]
    return f"{find_python()} {shlex.join(words)}"


def _apply_what_if(flags: PlanFlags, config: Config, tpu_slice: Slice) -> Config:
    """Keep one phase, if a flag asks for its length or its rows per chip; warm-ups fit into it."""
    if flags.seq_len is None and flags.per_chip_batch is None:
        return config
    phase = measure.drop_restart(measure.choose_phase(config, flags.seq_len or 0))
    if flags.per_chip_batch is not None:
        rows = flags.per_chip_batch * tpu_slice.chips
        phase = dataclasses.replace(phase, batch_size=rows, micro_batches=1)
    optim, most = config.optim, phase.steps - 1
    optim = dataclasses.replace(
        optim,
        warmup_steps=min(optim.warmup_steps, most),
        warmup_tokens=min(optim.warmup_tokens, most * phase.batch_size * phase.seq_len),
    )
    return dataclasses.replace(config, phases=(phase,), optim=optim)


def _check_per_chip_batch(flags: PlanFlags, config: Config, tpu_slice: Slice) -> None:
    """Raise Refused if --per_chip_batch does not divide over the devices of a chip."""
    unit = mesh_lib.batch_unit(config.mesh, tpu_slice.devices, micro_batches=1)
    if flags.per_chip_batch is not None and flags.per_chip_batch * tpu_slice.chips % unit:
        raise Refused(
            f"--per_chip_batch is {flags.per_chip_batch}, and {tpu_slice.name} divides a batch "
            f"among {unit} devices, several on a chip; give a multiple of "
            f"{unit // math.gcd(unit, tpu_slice.chips)}"
        )


def _write_pictures(
    flags: PlanFlags, config: Config, compiled: Compiled | None, screen: Screen
) -> None:
    """Write the files of --plot_out and --hlo_out."""
    if flags.plot_out:
        from bert_jax.logging import plots  # imported here: matplotlib takes half a second

        plots.draw_rates(config, pathlib.Path(flags.plot_out))
    if flags.hlo_out and compiled:
        pathlib.Path(flags.hlo_out).write_text(compiled.text, encoding="utf-8")
    elif flags.hlo_out:
        screen.print(f"{flags.hlo_out} is not written: no phase fits")


def _show(request: PlanRequest, plan: Plan, screen: Screen) -> None:
    screen.table("plan", plan_report.format_slice(plan, request.tpu_slice))
    sequences = request.corpus.sequences_per_row
    for index, phase in enumerate(plan.phases):
        rows = plan_report.format_phase(phase, sequences[index] if sequences else None)
        screen.table(plan_report.format_phase_title(phase, index), rows)
    curve = render_rates_as_text(request.config, CURVE_WIDTH, CURVE_HEIGHT)
    warnings = heldout.warn_of_repetition(request.config, request.corpus.epochs or [])
    screen.table("the run", plan_report.format_run(plan, request.prices, curve, warnings))
    if plan.scale:
        title = "the same rows per chip on other slices; the rate by the square root of the batch"
        rows = [(f"{row.chips:,} chips", plan_report.format_scaled(row)) for row in plan.scale]
        screen.table(title, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
