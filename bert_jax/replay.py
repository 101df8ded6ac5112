"""Show the text of any step of a run.

Steps count from 1 over all phases, as in metrics.jsonl. A token to predict stands as
[seen->answer]: [MASK->cat] is hidden, [dog->cat] replaced, [cat->cat] left as it was. Causal
phases have no masks. Needs no devices and no model.
"""

import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused


@dataclasses.dataclass(frozen=True)
class ReplayFlags:
    """Declare the flags."""

    workdir: str = flag(
        "", "folder of a run of bert_jax.train, or gs://", metavar="DIR", is_required=True
    )
    step: int | None = flag(None, "step of the run, counted from 1 over all phases")
    rows: str = flag("3", "rows of the step's global batch to show, or all", metavar="N")
    bad: bool = flag(
        False, "show the bad steps that the run recorded, and the steps it skipped, instead"
    )
    store: str = flag("", "new place of the run's store, if it was moved", metavar="STORE")

    def __post_init__(self) -> None:
        if self.rows != "all" and (not self.rows.isdecimal() or int(self.rows) < 1):
            raise Refused(f"--rows is {self.rows!r}; it must be 1 or more, or all")


COMMAND = Command(
    "bert_jax.replay",
    __doc__,
    ReplayFlags,
    "python -m bert_jax.replay --workdir=runs/base --step=1000 --rows=all",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

import rich.text
from rich.console import Console

from bert_jax import config as config_lib
from bert_jax.runtime import run_record
from bert_jax.runtime import workdir as workdir_lib
from bert_jax.trainer import bad_steps
from bert_jax.trainer.feed import StoreFeed, join_digests, open_stores
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.cli.terminal import make_console
from data_pipeline.report.rows import ShownExample, show_row
from data_pipeline.sampling.masking import restore_masked
from data_pipeline.vocab import Vocabulary

ROWS_A_CALL = 1024


@dataclasses.dataclass(frozen=True)
class ReplayedRow:
    """Hold a row of a global batch, and its place in the stream of its phase."""

    position: int  # place in the phase's stream
    store: str  # short name of the row's store; "" where there is one store
    epoch: int  # epoch of that store's stream
    index: int  # place within the epoch
    examples: tuple[ShownExample, ...]


def replay_rows(
    feed: StoreFeed, vocabulary: Vocabulary, step: int, most: int | None
) -> Iterator[ReplayedRow]:
    """Yield the first `most` rows (None: all) of a step's global batch; steps count from 1."""
    phase, step_rows = config_lib.phase_of_step(feed.config, step), feed.locate_step(step)
    positions_B, pieces = step_rows.positions_B[:most], vocabulary.pieces()
    objective = config_lib.list_objectives(feed.config)[phase]
    names = feed.config.data.store_names
    for start in range(0, len(positions_B), ROWS_A_CALL):
        batch = feed.open_source(phase).rows(positions_B[start : start + ROWS_A_CALL])
        if objective == config_lib.CAUSAL:
            batch = restore_masked(batch)
        for number in range(start, min(start + ROWS_A_CALL, len(positions_B))):
            row = {name: array[number - start] for name, array in batch.items()}
            epoch, index = step_rows.epoch_B[number], step_rows.index_B[number]
            store = names[step_rows.store_B[number]] if len(names) > 1 else ""
            examples = show_row(row, vocabulary, pieces)
            yield ReplayedRow(int(positions_B[number]), store, int(epoch), int(index), examples)


def segment_texts(example: ShownExample) -> list[str]:
    """Join the tokens of segment A, and of B if there is one; masked ones are [seen->answer]."""
    texts = []
    for segment in (0, 1):
        tokens = [token for token in example.tokens if token.segment == segment]
        text = ""
        for token in tokens:
            words = token.text
            if token.original is not None:
                words = f"[{token.piece.strip('[]')}->{token.original}]"
            text += " " * (token.starts_word or not text) + words
        if tokens:
            texts.append(text.strip())
    return texts


def _main(log: LibraryLog, flags: ReplayFlags) -> int:
    console = make_console(highlight=False, soft_wrap=True, markup=False)
    with cli.preparing():
        workdir = flags.workdir
        with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
            home = workdir_lib.fetch_workdir(workdir, pathlib.Path(folder)).home
            run = run_record.read(home)
            if flags.bad:
                return _show_bad(console, bad_steps.read(home), bad_steps.read_left_out(home))
        most = None if flags.rows == "all" else int(flags.rows)
        total = config_lib.total_steps(run.config)
        if flags.step is None or not 1 <= flags.step <= total:
            given = "missing" if flags.step is None else flags.step
            raise Refused(
                f"--step is {given}; give a step from 1 to {total:,}, which the run of {workdir} "
                "has, or --bad"
            )
        log.hold()
        data = dataclasses.replace(run.config.data, store=flags.store or run.config.data.store)
        stores = open_stores(data)
        if join_digests(stores) != run.store_digest:
            places = ", ".join(str(store.directory) for store in stores)
            raise Refused(
                f"{places} is not the store that the run of {workdir} was trained on; give that "
                "store as --store, or if several, all in their order"
            )
        feed = StoreFeed(stores, dataclasses.replace(run.config, data=data))
    return _show_step(console, feed, run.vocabulary, flags.step, most)


def _show_step(
    console: Console, feed: StoreFeed, vocabulary: Vocabulary, step: int, most: int | None
) -> int:
    index = config_lib.phase_of_step(feed.config, step)
    positions = feed.locate_step(step).positions_B
    phase, total = feed.config.phases[index], config_lib.total_steps(feed.config)
    console.print(
        f"step {step:,} of {total:,}: phase {index}, {phase.batch_size:,} rows of {phase.seq_len}, "
        f"{positions[0]:,} to {positions[-1]:,} of its stream",
        style="bold",
    )
    swaps = feed.config.data.segments == "sop"
    has_label = feed.config.data.has_next_sentences
    for row in replay_rows(feed, vocabulary, step, most):
        store = f"store {row.store}, " if row.store else ""
        place = f"row {row.position:,}: {store}epoch {row.epoch}, index {row.index:,}"
        for number, example in enumerate(row.examples, 1):
            count = f", example {number} of {len(row.examples)}" if len(row.examples) > 1 else ""
            label = ""
            if has_label:
                elsewhere = "B and A are swapped" if swaps else "B is from elsewhere"
                label = f"; label 1, {elsewhere}" if example.is_random else "; label 0, B follows A"
            console.print(f"{place}{count}{label}", style="cyan")
            for name, text in zip("AB", segment_texts(example), strict=False):
                console.print(rich.text.Text(f"  {name}  {text}"))
    return 0


def _show_bad(
    console: Console, lines: list[dict[str, Any]], ranges: list[bad_steps.LeftOutRange]
) -> int:
    for line in lines:
        rows = line["rows"]
        console.print(
            f"step {line['step']:,}: {line['reason']}; rows {rows['first']:,} to {rows['last']:,} "
            f"of phase {line['phase']}'s stream, {json.dumps(rows['epochs'])}"
        )
    for left in ranges:
        steps = f"steps {left.after_step + 1:,} to {left.through_step:,}"
        console.print(f"{steps} were skipped: {left.reason}")
    if not lines and not ranges:
        console.print("no step was bad")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run(COMMAND, _main, "nothing was changed", argv)


if __name__ == "__main__":
    sys.exit(main())
