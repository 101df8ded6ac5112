"""Time the training step on this machine: python -m bert_jax.benchmark --config=configs/base.py

    --config.data.store=STORE    rows of a store; without one, rows of made-up tokens
    --token_share=0.6            how much of a made-up row holds tokens; the rest is padding
    --seq_len=512                another length than that of the first phase
    --batch_size=64              rows of a step, over all devices
    --steps=100 or --secs=10     how long to measure
    --json_out=FILE              every number

It times the step that bert_jax.train runs: forward, backward, dropout and optimiser, on batches
that lie on the devices beforehand. The input pipeline, evaluation and saving are not part of it.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable

import jax
import numpy as np
from absl import flags, logging

from bert_jax import (
    command_line,
    config_check,
    exit_codes,
    feed,
    initial_weights,
    objectives,
    synthetic,
    timed_phase,
    timing,
    timing_report,
)
from bert_jax import config as config_lib
from bert_jax import mesh as mesh_lib
from bert_jax.config import Config
from bert_jax.feed import Feed
from bert_jax.models import bert
from bert_jax.opening import attention_in_words
from bert_jax.screen import Screen
from data_pipeline.library_log import LibraryLog

_CONFIG = command_line.config_flag()
_SEQ_LEN = flags.DEFINE_integer("seq_len", 0, "positions of a row; 0: those of the first phase")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    0,
    "rows of a step over all devices; 0: the phase's on TPU, else 8,192 positions a GPU or 2,048 a "
    "CPU device",
)
_TOKEN_SHARE = flags.DEFINE_float("token_share", 1.0, "share of a made-up row that holds tokens")
_STEPS = flags.DEFINE_integer("steps", 0, "steps to time; 0: as many as --secs has room for")
_SECS = flags.DEFINE_float(
    "secs", 10.0, "seconds to time, about, and five steps at least; not with --steps"
)
_JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every number to")

USAGE = "python -m bert_jax.benchmark --config=configs/base.py [--config.data.store=STORE]"
BATCHES = 4  # taken in turn
VOCAB_SIZE = 30_522  # BERT's, where no store and no config tells

Batches = list[dict[str, np.ndarray]]


def _check_flags() -> None:
    for flag in (_SEQ_LEN, _BATCH_SIZE, _STEPS):
        if flag.value < 0:
            raise ValueError(f"--{flag.name} is {flag.value}; it must be 1 or more")
    if not _SECS.value > 0 or not math.isfinite(_SECS.value):
        raise ValueError(f"--secs is {_SECS.value}; it must be above 0")
    if not 0 < _TOKEN_SHARE.value <= 1:
        raise ValueError(
            f"--token_share is {_TOKEN_SHARE.value}; it must be above 0, and 1 at most"
        )
    if _JSON_OUT.value and not pathlib.Path(_JSON_OUT.value).absolute().parent.is_dir():
        raise ValueError(f"--json_out={_JSON_OUT.value}: there is no such folder; make it first")


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    logging.set_verbosity(logging.ERROR)
    command_line.refuse_arguments(arguments, USAGE)
    _check_flags()
    config = initial_weights.with_sizes(command_line.resolved(_CONFIG))
    config_check.check(config)
    objective = objectives.find(config.objective)
    log.hold()
    screen = Screen(is_writer=True)
    shards = mesh_lib.batch_shards(mesh_lib.make(config.mesh))
    phase = timed_phase.with_rows(
        timed_phase.phase_of(config, _SEQ_LEN.value),
        _BATCH_SIZE.value,
        jax.default_backend(),
        shards,
    )
    config = dataclasses.replace(config, phases=(phase,))
    config_check.check(config)
    source = None
    if config.data.store:
        with screen.copying(config.data.store) as advance:
            store = feed.open_store(config.data, advance)
        config = config_lib.with_vocab_size(config, store.vocab_size)
        source = Feed(store, config)
        config = source.config
        with screen.spinning("counting the examples of the store"):
            source.check()
    else:
        config = config_lib.with_vocab_size(config, config.model.vocab_size or VOCAB_SIZE)
        config = config_lib.with_predictions(config)
    mesh_lib.check(config, jax.device_count())
    mesh = mesh_lib.make(config.mesh)
    model = bert.build(config.model, jax.default_backend(), mesh.shape["model"], config.compute)
    attention = attention_in_words(config, mesh, model)  # refuses a kernel that does not fit
    return functools.partial(_run, log, screen, config, objective, source, attention)


def _run(
    log: LibraryLog,
    screen: Screen,
    config: Config,
    objective: objectives.Objective,
    source: Feed | None,
    attention: str,
) -> int:
    length = timing.Length(_STEPS.value, _SECS.value)
    try:
        with screen.waiting("compiling the step"):
            program = timing.compile_step(config, objective)
        batches = _batches(program, source)
        screen.table("the training step", _opening(program, source, attention))
        how_long = f"{length.steps:,} steps" if length.steps else f"about {length.secs:g} s"
        screen.say(f"timing {how_long}, after three steps to warm up", "dim")
        with screen.spinning("the first step") as tell:
            timed = timing.measure(program, batches, length, tell)
    except MemoryError as error:
        log.say(f"error: {error}")
        return exit_codes.FAILED
    origin = timing_report.MADE_UP if source is None else timing_report.STORE
    report = timing_report.report(program, batches, origin, timed)
    screen.table("measured", timing_report.in_words(report))
    if _JSON_OUT.value:
        text = json.dumps(dataclasses.asdict(report), indent=2)
        pathlib.Path(_JSON_OUT.value).write_text(text + "\n", encoding="utf-8")
    return 0


def _batches(program: timing.Program, source: Feed | None) -> Batches:
    phase = program.phase
    if source is None:
        return [
            synthetic.made_up_batch(
                program.row_shape,
                phase.batch_size,
                program.config.model.vocab_size,
                _TOKEN_SHARE.value,
                seed,
            )
            for seed in range(BATCHES)
        ]
    rows = source.first_rows(0, BATCHES * phase.batch_size)
    # A store of fewer rows gives them again.
    numbers = np.arange(BATCHES * phase.batch_size) % len(rows["input_ids"])
    return [
        {name: array[chosen] for name, array in rows.items()}
        for chosen in np.split(numbers, BATCHES)
    ]


def _opening(program: timing.Program, source: Feed | None, attention: str) -> list[tuple[str, str]]:
    """Devices, model and batch, and who chose its size."""
    phase, shape, mesh = program.phase, program.config.model, program.mesh
    axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    platform = mesh.devices.flat[0].platform
    origin = f"rows of {program.config.data.store}"
    if source is None:
        origin = f"made-up rows, {_TOKEN_SHARE.value:.0%} of each tokens"
    parts = f" in {phase.micro_batches} parts" if phase.micro_batches > 1 else ""
    if _BATCH_SIZE.value:
        chosen = "by --batch_size"
    elif platform in timed_phase.DEFAULT_POSITIONS:
        chosen = f"our choice for a {platform}; --batch_size sets another"
    else:
        chosen = "the phase's; --batch_size sets another"
    packed = program.config.data.packed_examples
    packing = f", up to {packed} examples in a row" if packed > 1 else ""
    return [
        ("devices", f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}"),
        (
            "model",
            f"{program.model.parameter_count:,} parameters: {shape.num_hidden_layers} layers of "
            f"{shape.hidden_size}, {shape.vocab_size:,} pieces; matmuls in {program.model.dtype}",
        ),
        ("attention", attention),
        ("a step", f"{phase.batch_size:,} rows{parts} of {phase.seq_len}{packing}: {chosen}"),
        ("batches", f"{BATCHES}, taken in turn: {origin}"),
        ("timed", "forward, backward, dropout, optimiser; batches lie on the devices beforehand"),
    ]


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was changed")


if __name__ == "__main__":
    main()
