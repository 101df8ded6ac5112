"""Plan a run on TPUs without one: python -m bert_jax.plan --config=FILE --topology=v5e:4x4

    --topology=v5litepod-16      the slice: a topology, or gcloud's name for one
    --num_slices=2               as many of them, joined by the data-centre network
    --store=STORE                for the vocabulary, the schedule's fit to the text, and epochs
    --seq_len=128 --per_chip_batch=64    what if: one phase, of this length and so many rows a chip
    --scale=16,64,256            a row for each slice of so many chips, with as many rows a chip
    --prices=FILE                dollars for a chip and an hour, in place of bert_jax/prices.json
    --json_out=FILE --hlo_out=FILE --plot_out=FILE.png

Compiles the real step of every phase with the TPU's own compiler: what it says of memory decides
whether the phase fits; what it expects of time is an estimate, and is called so. Needs libtpu,
which `pip install '.[plan]'` in a clone of bert_jax brings, on Linux on x86-64.
"""

import os

# For the TPU's compiler, before jax is imported: no search for a TPU, several processes at a time,
# and no word about either.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# What is there for a CPU or a GPU ends the process where libtpu does not know it; flags for TPUs
# stand in LIBTPU_INIT_ARGS.
os.environ.pop("XLA_FLAGS", None)

import dataclasses
import functools
import importlib.metadata
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator

from absl import flags, logging

from bert_jax import (
    budget,
    command_line,
    config_check,
    corpus_rows,
    exit_codes,
    feed,
    initial_weights,
    objectives,
    past_times,
    phase_plan,
    plan_report,
    rate_plot,
    slices,
    timed_phase,
    tpu_step,
)
from bert_jax import config as config_lib
from bert_jax import mesh as mesh_lib
from bert_jax.budget import Prices
from bert_jax.config import Config
from bert_jax.feed import Feed
from bert_jax.objectives import Objective
from bert_jax.phase_plan import PhasePlan
from bert_jax.plan_report import Corpus, Plan, ScaleRow
from bert_jax.screen import Screen, duration
from bert_jax.slices import Slice
from bert_jax.tpu_step import Compiled, TooLarge
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag()
_TOPOLOGY = flags.DEFINE_string("topology", None, "such as v5e:8x8 or v5litepod-64")
_NUM_SLICES = flags.DEFINE_integer("num_slices", 0, "the same as --config.mesh.num_slices")
_STORE = flags.DEFINE_string("store", None, "the same as --config.data.store")
_SEQ_LEN = flags.DEFINE_integer("seq_len", None, "plan one phase only, of this length")
_PER_CHIP_BATCH = flags.DEFINE_integer(
    "per_chip_batch", None, "plan one phase only, with so many rows a chip, all at once"
)
_SCALE = flags.DEFINE_list("scale", [], "chips of slices to compare, such as 16,64,256")
_PRICES = flags.DEFINE_string("prices", str(budget.FILE), "table of prices")
_JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every number to: docs/plan.md")
_HLO_OUT = flags.DEFINE_string(
    "hlo_out", None, "file for the compiled text of the first phase that fits"
)
_PLOT_OUT = flags.DEFINE_string("plot_out", None, "file for a picture of the rate, a .png")

USAGE = "python -m bert_jax.plan --config=configs/base.py --topology=v5e:4x4 [--store=STORE]"
VOCAB_SIZE = 30_522  # BERT's, where no store and no config tells
CURVE_WIDTH, CURVE_HEIGHT = 60, 4  # of the learning rate on the screen, in letters
RATE_POINTS = 200  # of it in the file


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be planned."""

    config: Config
    objective: Objective
    of: Slice
    prices: Prices
    sizes: list[Slice]  # of --scale
    corpus: Corpus
    screen: Screen


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    config = initial_weights.with_sizes(command_line.resolved(_CONFIG))
    if not _TOPOLOGY.value:
        raise ValueError(f"--topology is missing: the slice to plan for; {USAGE}")
    if _NUM_SLICES.present:
        mesh = dataclasses.replace(config.mesh, num_slices=_NUM_SLICES.value)
        config = dataclasses.replace(config, mesh=mesh)
    of = slices.find(_TOPOLOGY.value, config.mesh.num_slices)
    sizes = [slices.of_chips(of, size) for size in _sizes()]
    if _STORE.value:
        data = dataclasses.replace(config.data, store=_STORE.value)
        config = dataclasses.replace(config, data=data)
    config = config_lib.with_predictions(_what_if(config, of))
    config_check.check(config)
    objective = objectives.find(config.objective)
    mesh_lib.check(config, of.devices)
    for index in range(len(config.phases)):
        phase_plan.attention_words(config, index, of)  # refuses a kernel that does not fit
    for size in sizes:
        mesh_lib.check(_on(config, of, size), size.devices)
    prices = budget.read_prices(pathlib.Path(_PRICES.value))
    _check_outputs()
    log.hold()
    screen = Screen(is_writer=True)
    with screen.spinning("starting the TPU's compiler"):
        slices.open_devices(of)
    config, corpus = _with_store(config, screen)
    task = Task(config, objective, of, prices, sizes, corpus, screen)
    return functools.partial(_plan, task)


def _sizes() -> list[int]:
    if not all(size.strip().isdigit() for size in _SCALE.value):
        raise ValueError(f"--scale={','.join(_SCALE.value)}: give chips, such as --scale=16,64,256")
    return [int(size) for size in _SCALE.value]


def _on(config: Config, of: Slice, other: Slice) -> Config:
    """Its first phase with as many rows a chip on another slice as on this one."""
    phase = config.phases[0]
    rows = phase.batch_size * other.chips // of.chips
    return dataclasses.replace(config, phases=(dataclasses.replace(phase, batch_size=rows),))


def _what_if(config: Config, of: Slice) -> Config:
    """One phase, where a flag asks for its length or its rows a chip."""
    for flag in (_SEQ_LEN, _PER_CHIP_BATCH):
        if flag.value is not None and flag.value < 1:
            raise ValueError(f"--{flag.name} is {flag.value}; it must be 1 or more")
    if _SEQ_LEN.value is None and _PER_CHIP_BATCH.value is None:
        return config
    phase = timed_phase.phase_of(config, _SEQ_LEN.value or 0)
    phase = dataclasses.replace(phase, restart_learning_rate=0.0, restart_warmup_steps=0)
    if _PER_CHIP_BATCH.value is not None:
        rows = _PER_CHIP_BATCH.value * of.chips
        phase = dataclasses.replace(phase, batch_size=rows, micro_batches=1)
    return dataclasses.replace(config, phases=(phase,))


def _check_outputs() -> None:
    for flag in (_JSON_OUT, _HLO_OUT, _PLOT_OUT):
        if flag.value and not pathlib.Path(flag.value).absolute().parent.is_dir():
            raise ValueError(f"--{flag.name}={flag.value}: there is no such folder; make it first")


def _with_store(config: Config, screen: Screen) -> tuple[Config, Corpus]:
    """The config with its vocabulary's size, and what the store tells, if there is one."""
    if not config.data.store:
        stated = config.model.vocab_size
        config = config_lib.with_vocab_size(config, stated or VOCAB_SIZE)
        is_packed = config.data.packed_examples > 1
        each_alone = None if is_packed else [1.0] * len(config.phases)
        return config, Corpus("config" if stated else "assumed", None, each_alone)
    with screen.copying(config.data.store) as advance:
        store = feed.open_store(config.data, advance)
    config = config_lib.with_vocab_size(config, store.vocab_size)
    source = Feed(store, config)
    with screen.spinning("counting the examples of the store"):
        source.check()
        numbered = list(enumerate(config.phases))
        epochs = [of.steps * of.batch_size / source.mean_epoch_rows(i) for i, of in numbered]
        sequences = [source.mean_examples_in_row(i) for i, _ in numbered]
    return config, Corpus("store", epochs, sequences)


def _plan(task: Task) -> int:
    with task.screen.spinning("planning"):
        plan, curve = _made(task)
    _show(task, plan, curve)
    if _JSON_OUT.value:
        text = json.dumps(dataclasses.asdict(plan), indent=2)
        pathlib.Path(_JSON_OUT.value).write_text(text + "\n", encoding="utf-8")
    return 0 if all(phase.fits for phase in plan.phases) else exit_codes.FAILED


def _made(task: Task) -> tuple[Plan, list[str]]:
    """The plan, and a picture of the learning rate in letters."""
    rates = rate_plot.rates(task.config, RATE_POINTS)
    curve = rate_plot.in_letters(task.config, CURVE_WIDTH, CURVE_HEIGHT)
    if _PLOT_OUT.value:
        rate_plot.draw(task.config, pathlib.Path(_PLOT_OUT.value))
    phases, first = _phases(task)
    if _HLO_OUT.value and first and first.text is not None:
        pathlib.Path(_HLO_OUT.value).write_text(first.text, encoding="utf-8")
    elif _HLO_OUT.value:
        why = "no text of the program" if first else "no phase fits"
        task.screen.say(f"{_HLO_OUT.value} is not written: {why}")
    scale = list(_scale(task, phases[0]))
    plan = Plan(
        topology=task.of.name,
        accelerator_type=task.of.accelerator_type,
        num_slices=task.of.num_slices,
        chips=task.of.chips,
        devices=task.of.devices,
        chip=dataclasses.asdict(task.of.chip),
        mesh=first.mesh if first else None,
        config=dataclasses.asdict(task.config),
        parameters=first.parameters if first else None,
        vocabulary_size=task.config.model.vocab_size,
        vocabulary_from=task.corpus.vocabulary_from,
        matmul_dtype=first.matmul_dtype if first else None,
        phases=phases,
        run=plan_report.run_of(task.of, phases, task.prices, task.corpus),
        learning_rate={"steps": rates[0].tolist(), "rates": rates[1].tolist()},
        scale=scale,
        versions=_versions(),
        notes=_notes(task.of),
    )
    return plan, curve


def _phases(task: Task) -> tuple[list[PhasePlan], Compiled | None]:
    """Every phase's plan, and the first step that fits."""
    plans, first = [], None
    for index in range(len(task.config.phases)):
        plan, compiled = _plan_phase(task, task.config, index, task.of, f"phase {index}: ")
        plans.append(plan)
        first = first or compiled
    return plans, first


def _plan_phase(
    task: Task, config: Config, index: int, of: Slice, label: str
) -> tuple[PhasePlan, Compiled | None]:
    devices = slices.open_devices(of)

    doing = ""

    def compiled(changed: Config, number: int) -> Compiled | TooLarge:
        key = _compile_key(changed, number, of)
        secs = past_times.secs_of(key)
        past = "" if secs is None else f", {duration(secs)} last time"
        began = time.perf_counter()
        with task.screen.spinning(doing + past):
            found = tpu_step.compile_step(changed, number, task.objective, of, devices)
        past_times.remember(key, time.perf_counter() - began)
        return found

    def tell(words: str) -> None:
        nonlocal doing
        doing = f"{label}{words}, compiling for {of.name}"
        task.screen.say_without_line(doing)

    return phase_plan.plan_phase(config, index, of, compiled, tell)


def _compile_key(config: Config, index: int, of: Slice) -> str:
    """What the time of a compile depends on."""
    parts = config.model, config.phases[index], config.optim, config.mesh, config.compute
    fields = [dataclasses.asdict(part) for part in parts]
    return past_times.key_of([config.objective, of.name, of.num_slices, _versions(), *fields])


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "libtpu")}


def _scale(task: Task, first: PhasePlan) -> Iterator[ScaleRow]:
    """The first phase on slices of other sizes, with as many rows a chip."""
    for of in task.sizes:
        config, plan = _on(task.config, task.of, of), first
        if of != task.of:
            plan, _ = _plan_phase(task, config, 0, of, "scale: ")
        yield ScaleRow(
            topology=of.name,
            chips=of.chips,
            rows_per_step=config.phases[0].batch_size,
            learning_rate=task.config.optim.learning_rate * math.sqrt(of.chips / task.of.chips),
            fits=plan.fits,
            needed_bytes=plan.needed_bytes,
            estimate=plan.estimate,
        )


def _notes(of: Slice) -> list[str]:
    notes = []
    if of.chip.name in ("v2", "v3"):
        notes.append(plan_report.NEVER_RUN.format(chip=of.chip.name))
    if of.num_slices > 1 and not of.chip.network_bytes_per_sec:
        notes.append(
            f"the network's rate of a {of.chip.name} is not published: traffic between slices "
            "counts no time"
        )
    return notes


def _show(task: Task, plan: Plan, curve: list[str]) -> None:
    say = task.screen.table
    say("plan", plan_report.opening(plan, task.of))
    sequences = task.corpus.sequences_per_row
    for index, phase in enumerate(plan.phases):
        rows = plan_report.phase_rows(phase, sequences[index] if sequences else None)
        say(plan_report.phase_title(phase, index), rows)
    warnings = corpus_rows.too_many_epochs(task.config, task.corpus.epochs or [])
    say("the run", plan_report.run_rows(plan, task.prices, curve, warnings))
    if plan.scale:
        title = "as many rows a chip on other slices; the rate by the square root of the batch"
        say(title, plan_report.scale_rows(plan.scale))


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was changed")


if __name__ == "__main__":
    main()
