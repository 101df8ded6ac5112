"""A report on the health of a store: python -m data_pipeline.inspect STORE --html=report.html"""

import argparse
import contextlib
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import rich.console
import rich.progress

from data_pipeline import terminal_console
from data_pipeline.exit_code import exit_code_of
from data_pipeline.findings import findings
from data_pipeline.flag_parser import FlagParser, check_range
from data_pipeline.health import Health, measure
from data_pipeline.health_page import page
from data_pipeline.health_terminal import print_health
from data_pipeline.store import EXAMPLES, check_is_local, open_store, read_manifest
from data_pipeline.verify import size_bytes, verified_files, verify
from data_pipeline.whole_file import check_place

_MOST_EXAMPLES = 10_000


def main(argv: list[str] | None = None) -> int:
    """Inspect and print; 0, or 2 after one line on stderr that says what is wrong."""
    console = terminal_console.console(highlight=False)
    return exit_code_of(lambda: inspect(_parser().parse_args(argv), console))


def inspect(flags: argparse.Namespace, console: rich.console.Console) -> None:
    """Verify if asked to, measure, and write the report to the screen and the files.

    Raises:
      ValueError, OSError: a flag, the store, or a file that cannot be written.
    """
    check_range("examples", flags.examples, 0, _MOST_EXAMPLES)
    for flag, path in (("--html", flags.html), ("--json_out", flags.json_out)):
        if path:
            check_place(path, flag)
    step = functools.partial(_progress, terminal_console.console(stderr=True))
    if flags.verify:
        _verify(flags.store, console, step)
    store = open_store(flags.store)
    if store.kind == EXAMPLES and flags.verify and not (flags.html or flags.json_out):
        return
    if store.kind == EXAMPLES:
        raise ValueError(
            f"{store.directory} holds ready-made examples, as import_tfrecord reads them, and no "
            "documents to look at; --verify alone checks its files, --html, --json_out and the "
            "report want a store that python -m data_pipeline.build made"
        )
    health = measure(store, flags.seq_len, flags.examples, step)
    found = findings(health)
    print_health(console, health, found)
    if flags.html:
        flags.html.write_text(page(health, found), encoding="utf-8")
        console.print(f"  wrote {flags.html}", markup=False, soft_wrap=True)
    if flags.json_out:
        text = json.dumps(record(health, found), indent=2, ensure_ascii=False)
        flags.json_out.write_text(text + "\n", encoding="utf-8")


def record(health: Health, found: list[str]) -> dict[str, Any]:
    """What --json_out holds: the numbers of Health, without the manifest, which the store has."""
    numbers = dataclasses.asdict(health)
    manifest = numbers.pop("manifest")
    return {"digest": manifest["digest"], "findings": found, **numbers}


def _verify(store: pathlib.Path, console: rich.console.Console, step: Callable[..., Any]) -> None:
    check_is_local("the store", str(store))
    manifest = read_manifest(store)
    files = verified_files(store, manifest)
    total_bytes = size_bytes(files)
    with step("verifying", total_bytes) as advance:
        verify(store, manifest, advance)
    console.print(
        f"OK: the {len(files)} files, {total_bytes:,} bytes, are those that were built",
        markup=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _progress(
    console: rich.console.Console, label: str, total: int | None
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that is gone when it is done; nothing where stderr is no terminal."""
    columns: list[rich.progress.ProgressColumn] = [
        rich.progress.SpinnerColumn(),
        rich.progress.TextColumn("{task.description}"),
    ]
    if total is None:
        columns.append(rich.progress.TimeElapsedColumn())
    else:
        columns += [rich.progress.BarColumn(bar_width=16), rich.progress.TimeRemainingColumn()]
    with rich.progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m data_pipeline.inspect",
        description="Counts and draws what is in a store, and says what looks wrong about it.",
    )
    parser.add_argument(
        "store",
        type=pathlib.Path,
        metavar="STORE",
        help="folder that python -m data_pipeline.build wrote",
    )
    parser.add_argument(
        "--html",
        type=pathlib.Path,
        metavar="FILE",
        help="also write the report to this file, as a web page",
    )
    parser.add_argument(
        "--json_out", type=pathlib.Path, metavar="FILE", help="also write the numbers to this file"
    )
    parser.add_argument(
        "--seq_len", type=int, default=128, metavar="N", help="tokens in a row; default 128"
    )
    parser.add_argument(
        "--examples", type=int, default=10, metavar="N", help="example rows to print; default 10"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="first check each file of the store against its SHA-256",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
