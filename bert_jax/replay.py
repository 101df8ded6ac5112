"""Show the text of any step of a run: python -m bert_jax.replay --workdir=DIR --step=N

    --rows=3       rows of the step's global batch that are shown; --rows=all shows every one
    --bad          instead, the bad steps that the run of DIR recorded, and what it left out
    --store=STORE  where the store of the run lies now, if it was moved

Steps count from 1 over all phases, as in metrics.jsonl. A token to predict stands as
[seen->answer]: [MASK->cat] is hidden, [dog->cat] replaced, [cat->cat] left as it was. Needs no
devices and no model.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import rich.console
import rich.text
from absl import flags

from bert_jax import bad_steps, command_line, left_out, receipt, replayed
from bert_jax import config as config_lib
from bert_jax import workdir as workdir_lib
from bert_jax.feed import Feed, open_store, short_digest
from data_pipeline import terminal_console
from data_pipeline.library_log import LibraryLog
from data_pipeline.vocab import Vocabulary

_WORKDIR = flags.DEFINE_string("workdir", None, "of a run of bert_jax.train")
_STEP = flags.DEFINE_integer("step", None, "a step of it, counted from 1 over all phases")
_ROWS = flags.DEFINE_string("rows", "3", "rows to show, or all")
_BAD = flags.DEFINE_bool("bad", False, "show the bad steps of the run instead")
_STORE = flags.DEFINE_string("store", None, "where the run's store lies now, if it was moved")

USAGE = "python -m bert_jax.replay --workdir=DIR --step=N"


def _prepare(log: LibraryLog, arguments: list[str]) -> Callable[[], int]:
    command_line.refuse_arguments(arguments, USAGE)
    if not _WORKDIR.value:
        raise ValueError(f"--workdir is missing: the folder of a run; {USAGE}")
    workdir = _WORKDIR.value
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        home = workdir_lib.fetched(workdir, pathlib.Path(folder)).home
        run = receipt.read(home)
        if _BAD.value:
            lines = bad_steps.read(home)
            return functools.partial(_show_bad, lines, left_out.read(home))
    most, total = _most_rows(), config_lib.total_steps(run.config)
    if _STEP.value is None:
        raise ValueError(f"--step is missing: a step from 1 to {total:,}, or --bad; {USAGE}")
    if not 1 <= _STEP.value <= total:
        raise ValueError(
            f"--step is {_STEP.value}; the run of {workdir} has steps 1 to {total:,}, as in its "
            "metrics.jsonl"
        )
    log.hold()
    data = dataclasses.replace(run.config.data, store=_STORE.value or run.config.data.store)
    store = open_store(data)
    if short_digest(store) != run.store_digest:
        raise ValueError(
            f"{store.directory} is not the store that the run of {workdir} was trained on; give "
            "that one as --store"
        )
    feed = Feed(store, dataclasses.replace(run.config, data=data))
    return functools.partial(_show_step, feed, run.vocabulary, _STEP.value, most)


def _most_rows() -> int | None:
    """Of --rows; None for all.

    Raises:
      ValueError: it is neither a number of rows nor all.
    """
    if _ROWS.value == "all":
        return None
    if not _ROWS.value.isdecimal() or int(_ROWS.value) < 1:
        raise ValueError(f"--rows is {_ROWS.value!r}; it must be 1 or more, or all")
    return int(_ROWS.value)


def _show_step(feed: Feed, vocabulary: Vocabulary, step: int, most: int | None) -> int:
    console = _console()
    index, positions = config_lib.phase_of_step(feed.config, step), feed.positions(step)
    phase, total = feed.config.phases[index], config_lib.total_steps(feed.config)
    console.print(
        f"step {step:,} of {total:,}: phase {index}, {phase.batch_size:,} rows of {phase.seq_len}, "
        f"{positions[0]:,} to {positions[-1]:,} of its stream",
        style="bold",
    )
    swaps = feed.config.data.segments == "sop"
    for row in replayed.rows_of(feed, vocabulary, step, most):
        where = f"row {row.position:,}: epoch {row.epoch}, index {row.index:,}"
        for number, example in enumerate(row.examples, 1):
            of = f", example {number} of {len(row.examples)}" if len(row.examples) > 1 else ""
            console.print(f"{where}{of}{_label(example.label, swaps)}", style="cyan")
            for name, part in zip("AB", example.parts, strict=False):
                console.print(rich.text.Text(f"  {name}  {part}"))
    return 0


def _label(label: int | None, swaps: bool) -> str:
    """What the next-sentence label says, in words."""
    if label is None:
        return ""
    if swaps:
        return "; label 1, B and A are swapped" if label else "; label 0, B follows A"
    return "; label 1, B is from elsewhere" if label else "; label 0, B follows A"


def _show_bad(lines: list[dict[str, Any]], left: list[left_out.LeftOut]) -> int:
    console = _console()
    for line in lines:
        rows = line["rows"]
        console.print(
            f"step {line['step']:,}: {line['reason']}; rows {rows['first']:,} to {rows['last']:,} "
            f"of phase {line['phase']}'s stream, {json.dumps(rows['epochs'])}"
        )
    for one in left:
        console.print(
            f"steps {one.after_step + 1:,} to {one.through_step:,} were left out: {one.reason}"
        )
    if not lines and not left:
        console.print("no step was bad")
    return 0


def _console() -> rich.console.Console:
    return terminal_console.console(highlight=False, soft_wrap=True, markup=False)


def main() -> None:
    """Entry point."""
    command_line.run(_prepare, USAGE, way_on="nothing was changed")


if __name__ == "__main__":
    main()
