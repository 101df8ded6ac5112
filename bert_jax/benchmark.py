"""Time the training step on this machine.

It times the step that bert_jax.train runs: forward, backward, dropout and optimizer, on batches
already on the devices. The input pipeline, evaluation and saving are not part of it.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from absl import logging

from bert_jax.config import Config
from bert_jax.runtime import cli
from bert_jax.runtime.cli import GivenConfig
from data_pipeline.cli.flags import Command, flag


@dataclasses.dataclass(frozen=True)
class BenchmarkFlags:
    """Declare the flags."""

    config: GivenConfig[Config] = cli.config_flag(
        about=", such as configs/base.py; without a config.data.store, rows are of synthetic tokens"
    )
    seq_len: int = flag(0, "tokens per row; 0: as in the first phase", minimum=0)
    batch_size: int = flag(
        0,
        "rows per step over all devices; 0: the phase's on TPU, else 8,192 tokens per GPU or "
        "2,048 per CPU device",
        minimum=0,
    )
    token_share: float = flag(
        1.0, "share of a synthetic row filled with tokens; the rest is padding", above=0, maximum=1
    )
    steps: int = flag(0, "steps to time; 0: as many as fit into --secs", minimum=0)
    secs: float = flag(
        10.0, "about how long to time, at least five steps; not with --steps", above=0
    )
    json_out: str = flag("", "JSON file for all numbers", metavar="FILE")


COMMAND = Command(
    "bert_jax.benchmark",
    __doc__,
    BenchmarkFlags,
    "python -m bert_jax.benchmark --config=configs/base.py --config.data.store=STORE",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.benchmarking import measure, measure_report
from bert_jax.interop.teacher import read_teacher_sizes
from bert_jax.logging.console import Rows, Screen
from bert_jax.trainer import setup
from bert_jax.trainer.feed import StoreFeed
from bert_jax.trainer.summary import list_model_rows
from data_pipeline.cli.main import FAILED
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.atomic import check_file_paths, write_json

BATCHES = 4  # taken in turn


def _main(log: LibraryLog, flags: BenchmarkFlags) -> int:
    with cli.preparing():
        logging.set_verbosity(logging.ERROR)
        check_file_paths(json_out=flags.json_out)
        config = flags.config.load()
        log.hold()
        screen = Screen(is_writer=True)
        phase = measure.choose_phase(config, flags.seq_len)
        config = setup.resolve_alone(measure.set_rows(config, phase, flags.batch_size))
        source = setup.open_feed(config, screen)
        teacher = read_teacher_sizes(config)
    length = measure.Length(flags.steps, flags.secs)
    try:
        with screen.waiting("compiling the step"):
            program = measure.compile_step(config, teacher=teacher)
        batches = measure.make_batches(program, source, BATCHES, flags.token_share)
        screen.table("the training step", _describe_step(flags, program, source))
        how_long = f"{length.steps:,} steps" if length.steps else f"about {length.secs:g} s"
        screen.print(f"timing {how_long}, after three steps to warm up", "dim")
        with screen.spinning("the first step") as tell:
            timed = measure.measure(program, batches, length, tell)
    except MemoryError as error:
        log.say(f"error: {error}")
        return FAILED
    origin = measure_report.SYNTHETIC if source is None else measure_report.STORE
    report = measure_report.make_report(program, batches, origin, timed)
    screen.table("measured", measure_report.format_report(report))
    if flags.json_out:
        write_json(pathlib.Path(flags.json_out), dataclasses.asdict(report))
    return 0


def _describe_step(
    flags: BenchmarkFlags, program: measure.Program, source: StoreFeed | None
) -> Rows:
    """Describe the model, the batches, and how their size was chosen."""
    phase, platform = program.phase, program.mesh.devices.flat[0].platform
    origin = f"rows of {program.config.data.store}"
    if source is None:
        origin = f"synthetic rows, {flags.token_share:.0%} of each tokens"
    parts = f" in {phase.micro_batches} parts" if phase.micro_batches > 1 else ""
    if flags.batch_size:
        chosen = "by --batch_size"
    elif platform in measure.DEFAULT_POSITIONS:
        chosen = f"our choice for a {platform}; --batch_size sets another"
    else:
        chosen = "the phase's; --batch_size sets another"
    packed = program.config.data.packed_examples
    packing = f", up to {packed} examples in a row" if packed > 1 else ""
    rows = list_model_rows(program.config, program.mesh, program.model)
    if program.teacher is not None:
        size = program.teacher.config
        sizes = f"{size.num_hidden_layers} layers of {size.hidden_size}"
        rows.append(("teacher", f"{sizes} as {program.config.teacher}, with random weights"))
    return [
        *rows,
        ("a step", f"{phase.batch_size:,} rows{parts} of {phase.seq_len}{packing}: {chosen}"),
        ("batches", f"{BATCHES}, taken in turn: {origin}"),
        ("timed", "forward, backward, dropout, optimizer; batches lie on the devices beforehand"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
