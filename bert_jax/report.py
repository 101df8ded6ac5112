"""Report on a run, or compare runs: python -m bert_jax.report RUN [RUN ...] --output=FILE.html

Prints how far a run is, how good, what looks wrong, where its time went and what it took. RUN is a
workdir; a live or a killed run will do. With --output, also one HTML file that loads nothing. Of
several runs it says which settings differ, and which differences are larger than noise.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from absl import flags

from bert_jax.diagnosis import comparison, run_report
from bert_jax.diagnosis.run_state import RunState, read_run
from bert_jax.perf.prices import read_prices
from bert_jax.reporting.console import Screen
from bert_jax.runtime import cli
from bert_jax.runtime.exit_codes import DONE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_file_path, write_file

_OUTPUT = flags.DEFINE_string("output", None, "file for the page, such as report.html")

USAGE = "python -m bert_jax.report RUN [RUN ...] [--output=FILE.html]"


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        if not arguments:
            raise ValueError(f"RUN is missing: the workdir of a run; {USAGE}")
        if buckets := [run for run in arguments if is_address(run)]:
            raise ValueError(f"{buckets[0]} is in a bucket; copy its small files to this machine")
        output = pathlib.Path(_OUTPUT.value) if _OUTPUT.value else None
        if output is not None:
            check_file_path(output, "--output")
        runs = [read_run(pathlib.Path(run)) for run in arguments]
        usd_per_chip_hour = {
            chip: price.usd_on_demand for chip, price in read_prices().by_chip.items()
        }
        log.hold()
    screen = Screen(is_writer=True)
    for run in runs:
        _print(run, usd_per_chip_hour, screen)
    if len(runs) > 1:
        for sentence in (*comparison.describe_settings(runs), *comparison.compare(runs)):
            screen.print(sentence)
    if output is not None:
        write_file(output, run_report.render_page(runs, usd_per_chip_hour).encode())
        screen.print(f"wrote {output}")
    return DONE


def _print(run: RunState, usd_per_chip_hour: Mapping[str, float], screen: Screen) -> None:
    screen.table(run_report.describe_verdict(run), run_report.list_facts(run, usd_per_chip_hour))
    for finding in run.findings:
        screen.finding(*(str(finding.get(key, "")) for key in ("rule", "sentence", "try")))
    for sentence in run.missing:
        screen.print(sentence)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return cli.run(_main, USAGE, "run the same command again", argv)


if __name__ == "__main__":
    sys.exit(main())
