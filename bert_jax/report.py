"""Report on a run, or compare runs: python -m bert_jax.report RUN [RUN ...] --output=FILE.html

Prints how far a run is, how good, what looks wrong, where its time went and what it took. RUN is a
workdir; a live or a killed run will do. With --output, also one HTML file that loads nothing. Of
several runs it says which settings differ, and which differences are larger than noise. With
--guesses=5, the newest checkpoint of each run guesses a hidden word of five held-out sentences.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence

from absl import flags

from bert_jax.runtime import absl_cli as cli
from data_pipeline.io.refused import Refused

_OUTPUT = flags.DEFINE_string("output", None, "file for the page, such as report.html")
_GUESSES = flags.DEFINE_integer(
    "guesses", 0, "held-out sentences of each run to hide a word of", lower_bound=0
)
_TOP_GUESSES = 3

USAGE = "python -m bert_jax.report RUN [RUN ...] [--output=FILE.html] [--guesses=N]"

if __name__ == "__main__":
    cli.check_command_line(USAGE)

from bert_jax.logging.console import Screen
from bert_jax.monitoring import comparison, run_report
from bert_jax.monitoring.run_state import RunState, read_run
from bert_jax.planning.chip_prices import read_prices
from bert_jax.runtime.exit_codes import DONE
from data_pipeline.cli.live_line import LINE
from data_pipeline.cli.stderr_log import LibraryLog
from data_pipeline.io.address import is_address
from data_pipeline.io.atomic import check_file_path, write_file


def _main(log: LibraryLog, arguments: list[str]) -> int:
    with cli.preparing():
        if not arguments:
            raise Refused(f"RUN is missing: the workdir of a run; {USAGE}")
        if buckets := [run for run in arguments if is_address(run)]:
            raise Refused(f"{buckets[0]} is in a bucket; copy its small files to this machine")
        output = pathlib.Path(_OUTPUT.value) if _OUTPUT.value else None
        if output is not None:
            check_file_path(output, "--output")
        runs = [read_run(pathlib.Path(run)) for run in arguments]
        usd_per_chip_hour = {
            chip: price.usd_on_demand for chip, price in read_prices().by_chip.items()
        }
        log.hold()
    screen = Screen(is_writer=True)
    samples = []
    for run in runs:
        _print(run, usd_per_chip_hour, screen)
        samples.append(_guess(run, screen) if _GUESSES.value else [])
    if len(runs) > 1:
        for sentence in (*comparison.describe_settings(runs), *comparison.compare(runs)):
            screen.print(sentence)
    if output is not None:
        write_file(output, run_report.render_page(runs, usd_per_chip_hour, samples).encode())
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


def _guess(run: RunState, screen: Screen) -> list[run_report.Sample]:
    """Print sentences with a hidden word and the guesses for it; return them for the page.

    A run that cannot guess, such as one without a checkpoint, says why.
    """
    from bert_jax.inference.fill_mask import guess_heldout_words  # loads what a report needs not

    try:
        with LINE.doing(f"guessing words by {run.folder}"):
            answered = guess_heldout_words(str(run.folder), _GUESSES.value, _TOP_GUESSES)
    except (OSError, Refused) as error:
        screen.print(f"no guesses: {error}")
        return []
    for sentence, guesses in answered:
        screen.print(sentence)
        screen.print(guesses)
    return answered


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return cli.run(_main, USAGE, "run the same command again", argv)


if __name__ == "__main__":
    sys.exit(main())
