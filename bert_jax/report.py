"""Report on a run, or compare runs.

Prints a run's progress, scores, problems, time by activity, and cost; the run may be live or
killed. For several runs it shows which settings differ, and which differences in loss are larger
than noise.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence

from bert_jax.runtime import cli
from data_pipeline.cli.flags import Command, flag
from data_pipeline.io import Refused


@dataclasses.dataclass(frozen=True)
class ReportFlags:
    """Declare the flags."""

    runs: tuple[str, ...] = flag(
        (), "workdir of a run", metavar="RUN", is_positional=True, is_required=True
    )
    output: str = flag("", "file for the report, a self-contained HTML page", metavar="FILE.html")
    guesses: int = flag(
        0,
        "held-out sentences per store in which a run's newest checkpoint guesses a hidden word",
        minimum=0,
    )


COMMAND = Command(
    "bert_jax.report",
    __doc__,
    ReportFlags,
    "python -m bert_jax.report runs/base runs/other --output=report.html --guesses=5",
)

if __name__ == "__main__":
    cli.check_command_line(COMMAND)

from bert_jax.logging.console import Screen
from bert_jax.monitoring import run_report
from bert_jax.monitoring.run_state import RunState, read_run
from bert_jax.planning.chip_prices import read_prices
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.main import DONE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_file_paths, write_file

_TOP_GUESSES = 3


def _main(log: LibraryLog, flags: ReportFlags) -> int:
    with cli.preparing():
        if buckets := [run for run in flags.runs if is_address(run)]:
            raise Refused(f"{buckets[0]} is in a bucket; copy its small files to this machine")
        output = pathlib.Path(flags.output) if flags.output else None
        check_file_paths(output=flags.output)
        runs = [read_run(pathlib.Path(run)) for run in flags.runs]
        usd_per_chip_hour = {
            chip: price.usd_on_demand for chip, price in read_prices().by_chip.items()
        }
        log.hold()
    screen = Screen(is_writer=True)
    samples = []
    for run in runs:
        _print(run, usd_per_chip_hour, screen)
        samples.append(_guess(run, flags.guesses, screen) if flags.guesses else [])
    if len(runs) > 1:
        for line in run_report.draw_tree(runs):
            screen.print(line)
        for sentence in (*run_report.describe_settings(runs), *run_report.compare(runs)):
            screen.print(sentence)
    if output is not None:
        page = run_report.render_page(runs, usd_per_chip_hour, samples)
        write_file(output, page.encode(errors="backslashreplace"))  # names may not be UTF-8
        screen.print(f"wrote {output}")
    return DONE


def _print(run: RunState, usd_per_chip_hour: Mapping[str, float], screen: Screen) -> None:
    facts = run_report.list_facts(run, usd_per_chip_hour)
    screen.table(run_report.describe_verdict(run), [])
    for finding in run.findings:
        screen.finding(*(str(finding.get(key, "")) for key in ("rule", "sentence", "try")))
    screen.table("", facts)
    for sentence in run.missing:
        screen.print(sentence)


def _guess(run: RunState, count: int, screen: Screen) -> list[run_report.Sample]:
    """Print sentences with a hidden word and the guesses for it; return them for the page.

    A run that cannot guess, such as one without a checkpoint, says why.
    """
    from bert_jax.inference.fill_mask import guess_heldout_words  # loads jax

    try:
        with LINE.doing(f"guessing words by {run.folder}"):
            answered = guess_heldout_words(str(run.folder), count, _TOP_GUESSES)
    except (OSError, Refused) as error:
        screen.print(f"no guesses: {error}")
        return []
    for sentence, guesses in answered:
        screen.print(sentence)
        screen.print(guesses)
    return answered


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return cli.run(COMMAND, _main, "run the same command again", argv)


if __name__ == "__main__":
    sys.exit(main())
