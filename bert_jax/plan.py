"""Plan a run on TPUs without one: python -m bert_jax.plan --config=FILE --topology=v5e:4x4

    --topology=v5litepod-16      the slice: a topology, or gcloud's name for one
    --num_slices=2               as many of them, joined by the data-centre network
    --store=STORE                for the vocabulary, the schedule's fit to the text, and epochs
    --seq_len=128 --per_chip_batch=64    what if: one phase, of this length and so many rows a chip
    --scale=16,64,256            a row for each slice of so many chips, with as many rows a chip
    --prices=FILE                dollars for a chip and an hour, on demand and spot, in place of
    bert_jax/perf/prices.json
    --preemption_hours=16.1      mean time between two preemptions of the slice on spot chips
    --json_out=FILE --hlo_out=FILE --plot_out=FILE.png

Compiles the real step of every phase with the TPU's own compiler: what it says of memory decides
whether the phase fits; what it expects of time is an estimate, and is called so. Needs libtpu,
which `pip install '.[plan]'` in a clone of bert_jax brings, on Linux on x86-64.
"""

import os
import sys

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
import pathlib
from collections.abc import Sequence

from absl import flags, logging

from bert_jax import config as config_lib
from bert_jax.config import Config, validate
from bert_jax.interop import warm_start
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.perf import estimate, measure, plan_report, preemptions, slices
from bert_jax.perf.aot_compile import Compiled
from bert_jax.perf.plan import Plan, PlanRequest, build_plan, read_corpus, scale_config
from bert_jax.perf.prices import FILE, read_prices
from bert_jax.perf.slices import Slice
from bert_jax.reporting import plots
from bert_jax.reporting.console import Screen
from bert_jax.runtime import cli, exit_codes
from bert_jax.train_step import objectives
from bert_jax.trainer import heldout
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_file_path

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
_PRICES = flags.DEFINE_string("prices", str(FILE), "price list, in the form of the default")
_PREEMPTION_HOURS = flags.DEFINE_float(
    "preemption_hours",
    preemptions.PREEMPTION_HOURS,
    "mean time between two preemptions of the slice on spot chips; the default is of small slices "
    "of v2 and v3 in 2022",
    lower_bound=0.01,
)
_JSON_OUT = flags.DEFINE_string("json_out", None, "file for every number: docs/guide/plan.md")
_HLO_OUT = flags.DEFINE_string(
    "hlo_out", None, "file for the compiled text of the first phase that fits"
)
_PLOT_OUT = flags.DEFINE_string("plot_out", None, "file for a picture of the rate, a .png")

USAGE = "python -m bert_jax.plan --config=configs/base.py --topology=v5e:4x4 [--store=STORE]"
CURVE_WIDTH, CURVE_HEIGHT = 60, 4  # of the learning-rate plot on the screen, in characters


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        cli.refuse_arguments(arguments, USAGE)
        request, screen = _read_request(log)
    with screen.spinning("planning"):
        plan, compiled = build_plan(request, screen)
        _write_pictures(request.config, compiled, screen)
    _show(request, plan, screen)
    if _JSON_OUT.value:
        text = json.dumps(dataclasses.asdict(plan), indent=2)
        pathlib.Path(_JSON_OUT.value).write_text(text + "\n", encoding="utf-8")
    return 0 if all(phase.fits for phase in plan.phases) else exit_codes.FAILED


def _read_request(log: LibraryLog) -> tuple[PlanRequest, Screen]:
    config = warm_start.resolve_sizes(cli.resolve_config(Config, _CONFIG))
    if not _TOPOLOGY.value:
        raise ValueError(f"--topology is missing: the slice to plan for; {USAGE}")
    if _NUM_SLICES.present:
        mesh = dataclasses.replace(config.mesh, num_slices=_NUM_SLICES.value)
        config = dataclasses.replace(config, mesh=mesh)
    tpu_slice = slices.find_slice(_TOPOLOGY.value, config.mesh.num_slices)
    if not all(size.strip().isdigit() for size in _SCALE.value):
        raise ValueError(f"--scale={','.join(_SCALE.value)}: give chips, such as --scale=16,64,256")
    others = [slices.resize_slice(tpu_slice, int(chips)) for chips in _SCALE.value]
    if _STORE.value:
        data = dataclasses.replace(config.data, store=_STORE.value)
        config = dataclasses.replace(config, data=data)
    config = config_lib.resolve_phases(_apply_what_if(config, tpu_slice))
    validate.check(config)
    mesh_lib.check_divides(config, tpu_slice.devices)
    for index in range(len(config.phases)):
        estimate.describe_attention(config, index, tpu_slice)  # refuses a kernel that does not fit
    for other in others:
        mesh_lib.check_divides(scale_config(config, tpu_slice, other), other.devices)
    prices = read_prices(pathlib.Path(_PRICES.value))
    for flag in (_JSON_OUT, _HLO_OUT, _PLOT_OUT):
        if flag.value:
            check_file_path(pathlib.Path(flag.value), f"--{flag.name}")
    learned = objectives.find_each(config)
    log.hold()
    screen = Screen(is_writer=True)
    with screen.spinning("starting the TPU's compiler"):
        slices.open_devices(tpu_slice)
    config, corpus = read_corpus(config, screen)
    teacher = warm_start.read_teacher_sizes(config)
    hours = _PREEMPTION_HOURS.value
    request = PlanRequest(config, learned, tpu_slice, prices, others, corpus, teacher, hours)
    return request, screen


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
        plots.draw_rates(config, pathlib.Path(_PLOT_OUT.value))
    if _HLO_OUT.value and compiled and compiled.text is not None:
        pathlib.Path(_HLO_OUT.value).write_text(compiled.text, encoding="utf-8")
    elif _HLO_OUT.value:
        why = "no text of the program" if compiled else "no phase fits"
        screen.print(f"{_HLO_OUT.value} is not written: {why}")


def _show(request: PlanRequest, plan: Plan, screen: Screen) -> None:
    screen.table("plan", plan_report.format_slice(plan, request.tpu_slice))
    sequences = request.corpus.sequences_per_row
    for index, phase in enumerate(plan.phases):
        rows = plan_report.format_phase(phase, sequences[index] if sequences else None)
        screen.table(plan_report.format_phase_title(phase, index), rows)
    curve = plots.render_rates_as_text(request.config, CURVE_WIDTH, CURVE_HEIGHT)
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
