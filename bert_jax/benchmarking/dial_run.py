"""Measure this machine, choose the run of config.budget for it, and write that run to its workdir.

A workdir that has a chosen run keeps it: nothing is measured or chosen again.
"""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.benchmarking import measure as measure_lib
from bert_jax.benchmarking.dial import DialChoice, Measure, StepTime, choose_run
from bert_jax.benchmarking.dial_settings import (
    ADAMW,
    MUON,
    DialRequest,
    RowCounts,
    TimeBudget,
    find_tuned,
    parse_budget,
)
from bert_jax.config import (
    Config,
    ResolvedRun,
    data_in_evaluations,
    data_in_phase,
    list_objectives,
    overrides,
    resolve,
    set_fields,
)
from bert_jax.logging.console import Rows, Screen, duration
from bert_jax.parallel import chips
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.planning import budget as budget_lib
from bert_jax.planning.candidates import FAMILY, SIZE_FIELDS
from bert_jax.planning.law import count_in_words
from bert_jax.runtime import resume, run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.runtime.cli import GivenConfig
from bert_jax.train_step.objectives import find_each
from bert_jax.trainer import compile as compile_lib
from bert_jax.trainer import feed as feed_lib
from bert_jax.trainer.heldout import MANY_EPOCHS, check_next_sentences, count_phase
from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_file
from data_pipeline.store import HELDOUT, Store

CHOSEN = "chosen_config.py"  # file of the workdir
_MEASURED_SECS, _MEASURED_BATCHES, _ROWS_COUNTED = 2.0, 4, 512


def _check_devices(budget: TimeBudget) -> None:
    """Raise Refused if the budget is in dollars of another slice than the devices here."""
    if budget.tpu_slice is None:
        return
    device, count = jax.devices()[0].device_kind, jax.device_count()
    name = budget.tpu_slice.name
    if chips.find_chip(device) != budget.tpu_slice.chip or count != budget.tpu_slice.devices:
        usd = budget.text.partition("usd")[0]
        raise Refused(
            f"config.budget is {budget.text}, and this machine has {count} x {device}; run it on "
            f"{name}, or ask what it buys: python -m bert_jax.plan --config=configs/auto.py "
            f"--config.data.store=STORE --topology={name} --budget={usd}"
        )


def read_request(
    given: GivenConfig[Config], budget: TimeBudget, devices: int, screen: Screen
) -> tuple[DialRequest, Sequence[Store]]:
    """Read what a choice for so many devices depends on; return the opened stores, too.

    Raises:
      Refused: a store holds ready-made examples, or no next sentences to learn.
    """
    config, sizes = given.load(), {f"model.{name}" for name in SIZE_FIELDS}
    others = tuple(override for override in given.overrides if override.path not in sizes)
    facts = feed_lib.read_facts(config.data)
    # Schedule, batch and positions are not chosen yet, and may not fit what the command line sets.
    positions = [config.model.max_position_embeddings, *(each.seq_len for each in config.phases)]
    unchosen: dict[str, Any] = {"budget": "", "model.max_position_embeddings": max(positions)}
    unchosen |= {"optim.warmup_steps": 0, "optim.warmup_tokens": 0}
    for index, phase in enumerate(config.phases):
        unchosen[f"phases[{index}].restart_warmup_steps"] = 0
        unchosen[f"phases[{index}].batch_size"] = phase.micro_batches
    recipe = resolve(set_fields(config, unchosen))
    stores = feed_lib.open_stores(config.data, screen)
    budget_lib.check_stores(stores, "config.budget")
    if "mlm_nsp" in (names := list_objectives(recipe)):
        check_next_sentences(feed_lib.StoreFeed(stores, recipe), names.index("mlm_nsp"))
    examples = max(1, recipe.eval.examples // len(stores))

    @functools.cache
    def count_rows(seq_len: int) -> RowCounts:
        """Count held-out rows, which are few and as full as those to train on."""
        phase = dataclasses.replace(recipe.phases[0], seq_len=seq_len, max_predictions_per_seq=1)
        feed = feed_lib.StoreFeed(stores, dataclasses.replace(recipe, phases=(phase,)))
        sources = [feed.open_split(0, number, HELDOUT) for number in range(len(stores))]
        counts = [source.rows_in_epoch(0) for source in sources]
        fills = [
            source.rows(np.arange(min(rows, _ROWS_COUNTED)))["input_mask"].mean()
            for source, rows in zip(sources, counts, strict=True)
        ]
        fill = recipe.data.packed_examples * float(np.dot(feed.weights(0), fills))
        return RowCounts(min(1.0, fill), sum(min(rows, examples) for rows in counts))

    request = DialRequest(
        config=config,
        proportions=dataclasses.replace(given, overrides=others).load().model,
        given=given.overrides,
        facts=facts,
        unique_tokens=sum(store.train.tokens for store in stores),
        count_rows=count_rows,
        shards=mesh_lib.batch_unit(config.mesh, devices, micro_batches=1),
        budget=budget,
    )
    return request, stores


def _measure_here(stores: Sequence[Store], screen: Screen) -> Measure:
    """Return a function that times a step of a phase on this machine."""

    def measure(config: ResolvedRun, index: int) -> StepTime:
        start = time.monotonic()
        phase = measure_lib.isolate(config.phases[index])
        alone = dataclasses.replace(config, phases=(phase,))
        size = f"{alone.model.num_hidden_layers} x {alone.model.hidden_size}"
        words = f"measuring {size}, {phase.batch_size} rows of {phase.seq_len}"
        with screen.spinning(words) as show:
            program = measure_lib.compile_step(alone)
            source = feed_lib.StoreFeed(stores, alone)
            batches = measure_lib.make_batches(program, source, _MEASURED_BATCHES)
            setup_secs = time.monotonic() - start
            # This takes minutes for a large store, which keeps the result for the run.
            count_phase(source, 0, find_each(alone)[0], show)
            timed = measure_lib.measure(program, batches, measure_lib.Length(0, _MEASURED_SECS))
        return StepTime(float(np.mean(timed.group_step_secs)), setup_secs)

    return measure


def read_budget(config: Config, is_multihost: bool) -> TimeBudget:
    """Parse config.budget; refuse a run of several processes (is_multihost).

    Raises:
      Refused: as parse_budget does; the run has several processes.
    """
    budget = parse_budget(config.budget, config.mesh.num_slices)
    if is_multihost:
        raise Refused(
            f"config.budget is {budget.text}, and --multihost is given: a budget measures the "
            "devices of a single process; choose with python -m bert_jax.plan --config_out instead"
        )
    return budget


def settle_budget(
    given: GivenConfig[Config], budget: TimeBudget, home: pathlib.Path, began: float
) -> Config:
    """Return the run that a budget pays for, and write it to the workdir, or read it from there.

    `home` is the workdir's folder, `began` the start of the command in seconds since 1970.

    Raises:
      Refused: as choose_run does; the workdir has a run that was not chosen so, or is in use.
      OSError: the workdir cannot be written.
    """
    screen, path = Screen(is_writer=True), home / CHOSEN
    others = [override for override in given.overrides if override.path != "budget"]
    if path.is_file():
        words = "nothing is measured again; give another --workdir to choose a new one"
        screen.print(f"budget: the run is the one chosen earlier, {path}; {words}")
        return overrides.load(Config, CHOSEN, lambda name: str(path), others)
    if (home / run_record.FILE).exists():
        raise Refused(
            f"--workdir={home} has a run that no budget chose ({CHOSEN} is missing); give another "
            "--workdir, or the config of that run"
        )
    _check_devices(budget)
    request, stores = read_request(given, budget, jax.device_count(), screen)
    # build_setup would refuse these only after measuring, and a new start might choose another run.
    resume.check_place(home, [store.directory for store in stores])
    workdir_lib.open_local_workdir(home).claim(is_writer=True)
    compile_lib.keep_in(home, is_writer=True)  # the run reads what is compiled for the measurement
    choice = choose_run(request, _measure_here(stores, screen), lambda: time.time() - began)
    reasons = explain(request, choice, "measured", "so far")
    screen.table(f"the choice for {budget.text}", reasons)
    write_file(path, write_config(choice.written, budget, reasons).encode())
    screen.print(f"written to {path}, which runs the same without a budget")
    return overrides.load(Config, CHOSEN, lambda name: str(path), others)


def explain(request: DialRequest, choice: DialChoice, origin: str, spent: str) -> Rows:
    """Return a label and a text for each part of a choice, and its reason.

    `origin` describes the speeds (such as measured), `spent` describes choice.spent_secs.
    """
    return [*_explain_size(request, choice, origin), *_explain_run(request, choice, spent)]


def _explain_size(request: DialRequest, choice: DialChoice, origin: str) -> Rows:
    shape = choice.size.shape
    rows = [
        (
            "speed",
            f"{each.shape.name}: {each.step_secs[0] * 1000:,.1f} ms for "
            f"{each.config.phases[0].batch_size} rows of {each.config.phases[0].seq_len}, {origin}",
        )
        for each in choice.measured
    ]
    if request.is_given(*(f"model.{name}" for name in SIZE_FIELDS)):
        return [*rows, ("size", f"{shape.name}, as given")]
    measured = {each.shape.name for each in choice.measured}
    gaps = {
        other.name: loss - choice.losses[shape]
        for other, loss in choice.losses.items()
        if other != shape
    }
    others = [
        f"{name} would be {gap:.2f} nats worse"
        if gap >= 0
        else f"{name}{'' if name in measured else ', not measured,'} may be {-gap:.2f} nats better"
        for name, gap in gaps.items()
        if gap < math.inf
    ]
    slow = [name for name, gap in gaps.items() if math.isinf(gap)]
    others += [f"{', '.join(slow)} would take fewer than {ADAMW.min_steps} steps"] if slow else []
    by_law = f" by the law of our ladder on English: {'; '.join(others)}" if others else ""
    rows.append(("size", f"{shape.name}, the lowest loss{by_law}"))
    if choice.too_large:
        rows.append(("", f"{choice.too_large.name} and larger do not fit in memory"))
    elif len(choice.losses) < len(FAMILY):
        tokens = count_in_words(request.unique_tokens)
        reason = f"more than ten layer parameters for each of the {tokens} tokens"
        larger = f"{FAMILY[len(choice.losses)].name} and larger"
        rows.append(("", f"{larger} have {reason}, where no law holds"))
    return rows


def _explain_run(request: DialRequest, choice: DialChoice, spent: str) -> Rows:
    config, budget = choice.config, request.budget
    first, second = config.phases
    tokens = sum(phase.steps * request.count_tokens(phase) for phase in config.phases)
    optim = config.optim
    free = [
        phase.batch_size * phase.seq_len
        for index, phase in enumerate(config.phases)
        if not request.is_given(f"phases[{index}].batch_size")
    ]
    scaled = ", scaled to this width by transfer=mup" if optim.transfer == "mup" else ""
    best = "Muon's" if find_tuned(optim.name, choice.size.shape) is MUON else "AdamW's"
    origin = "as given" if request.is_given("optim.learning_rate") else f"{best} best in small runs"
    batch = ["as given"] * (len(free) < 2)
    if free:
        batch.append(f"about {max(free):,} positions: the best batch grows with the tokens read")
    rates = dict.fromkeys(data_in_phase(config, index).masked_lm_prob for index in range(2))
    masks = data_in_evaluations(config).masked_lm_prob
    restart = second.restart_learning_rate or optim.learning_rate
    given = ", as given" * request.is_given("phases[1].restart_learning_rate")
    then = f"; then {restart:g}{given}" if restart != optim.learning_rate else ""
    cheap = ", which are cheap" if first.seq_len < second.seq_len else ""
    rows = [
        ("phases", f"rows of {first.seq_len}{cheap}, then of {second.seq_len}"),
        ("batch", f"{first.batch_size:,} and {second.batch_size:,} rows, {', else '.join(batch)}"),
        (
            "steps",
            f"{first.steps:,} and {second.steps:,}: {count_in_words(tokens)} tokens, "
            f"{tokens / request.unique_tokens:.3g} epochs of the store",
        ),
        ("rate", f"{optim.learning_rate:g}, {origin}{scaled}{then}"),
        (
            "masking",
            f"{' and '.join(f'{rate:.0%}' for rate in rates)} in training, "
            f"{masks:.0%} in evaluations",
        ),
        (
            "time",
            f"{duration(choice.secs)} of {duration(budget.secs)}: {duration(choice.spent_secs)} "
            f"{spent}, {duration(choice.size.rest_secs)} kept for setup, saves and the end",
        ),
    ]
    has_steps = request.is_given("phases[0].steps") and request.is_given("phases[1].steps")
    if choice.secs < 0.9 * budget.secs and not has_steps:
        words = f"reading text more than {MANY_EPOCHS} times is known to cost quality"
        rows.append(("", f"less is better here: {words}; more text would bring more"))
    return rows


_FILE = '''"""The run that config.budget={budget} chose.

{reasons}
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return the chosen run; no arguments."""
    return c.to_config_dict({config})
'''


def write_config(config: Config, budget: TimeBudget, reasons: Sequence[tuple[str, str]]) -> str:
    """Write a chosen run as the text of a config file, with its reasons."""
    lines = "\n".join(f"{label:8}{text}" for label, text in reasons)
    source = _write_source(config, "    ")
    return _FILE.format(budget=budget.text, reasons=lines, config=source)


def _write_source(value: Any, indent: str) -> str:
    """Write a value of a config as Python; of dataclasses the fields that are not the default."""
    if isinstance(value, tuple):
        parts = [_write_source(part, f"{indent}    ") for part in value]
        return "".join(["(", *(f"\n{indent}    {part}," for part in parts), f"\n{indent})"])
    if not dataclasses.is_dataclass(value):
        return repr(value)
    lines = []
    for field in dataclasses.fields(value):
        if (part := getattr(value, field.name)) != field.default:
            lines.append(f"\n{indent}    {field.name}={_write_source(part, f'{indent}    ')},")
    return "".join([f"c.{type(value).__name__}(", *lines, f"\n{indent})" if lines else ")"])
