"""Count and plot the contents of a store, and report what looks wrong."""

import dataclasses
import json
import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import rich.console

from data_pipeline.cli.flags import Command, flag
from data_pipeline.cli.main import run_main
from data_pipeline.cli.terminal import make_console
from data_pipeline.io import Refused
from data_pipeline.io.atomic import check_file_paths, write_file
from data_pipeline.report.findings import find_in_store
from data_pipeline.report.health import Health, measure
from data_pipeline.report.progress import show_progress
from data_pipeline.report.terminal import print_health
from data_pipeline.sampling.stream import MIN_SEQ_LEN
from data_pipeline.sampling.walk import MAX_SEQ_LEN
from data_pipeline.store import EXAMPLES, check_is_local, open_store, read_manifest
from data_pipeline.store.reader import count_bytes, list_verified_files, verify


@dataclasses.dataclass(frozen=True)
class InspectFlags:
    """Declare the flags."""

    store: str = flag(
        "", "folder that python -m data_pipeline.build wrote", metavar="STORE", is_required=True
    )
    html: str = flag("", "also write the report to this file, as a web page", metavar="FILE")
    json_out: str = flag("", "also write the numbers to this file", metavar="FILE")
    seq_len: int = flag(128, "tokens in a row", minimum=MIN_SEQ_LEN, maximum=MAX_SEQ_LEN)
    examples: int = flag(2, "example rows to print", minimum=0, maximum=10_000)
    verify: bool = flag(False, "first check each file against its SHA-256")


COMMAND = Command(
    "data_pipeline.inspect",
    __doc__,
    InspectFlags,
    "python -m data_pipeline.inspect --store=stores/corpus --html=report.html",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Inspect the store that the flags name; return the exit code."""
    console = make_console(highlight=False)
    return run_main(COMMAND, lambda _, flags: inspect(flags, console), argv, outlives_reader=False)


def inspect(flags: InspectFlags, console: rich.console.Console) -> None:
    """Verify if asked to, measure, and write the report to the screen and the files.

    Raises:
      Refused, OSError: a flag, the store, or a file that cannot be written.
    """
    check_file_paths(html=flags.html, json_out=flags.json_out)
    if flags.verify:
        _verify(pathlib.Path(flags.store), console)
    store = open_store(flags.store)
    if store.kind == EXAMPLES and flags.verify and not (flags.html or flags.json_out):
        return
    if store.kind == EXAMPLES:
        raise Refused(
            f"{store.directory} holds ready-made examples, as import_tfrecord reads them, and no "
            "documents; --verify alone checks its files, while --html, --json_out and the report "
            "require a store that python -m data_pipeline.build made"
        )
    health = measure(store, flags.seq_len, flags.examples)
    findings = find_in_store(health)
    print_health(console, health, findings)
    if flags.html:
        # Otherwise matplotlib, imported next, reports that it indexes fonts.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from data_pipeline.report.page import render_page

        _write(flags.html, render_page(health, findings))
        console.print(f"  wrote {flags.html}", markup=False, soft_wrap=True)
    if flags.json_out:
        text = json.dumps(describe(health, findings), indent=2, ensure_ascii=False)
        _write(flags.json_out, f"{text}\n")


def _write(file: str, text: str) -> None:
    r"""Write a file atomically; a byte that is not UTF-8 becomes \udcNN, as in JSON."""
    write_file(pathlib.Path(file), text.encode(errors="backslashreplace"))


def describe(health: Health, findings: list[str]) -> dict[str, Any]:
    """Make the content of --json_out: the numbers of Health without the store's manifest."""
    numbers = dataclasses.asdict(health)
    manifest = numbers.pop("manifest")
    return {"digest": manifest["digest"], "findings": findings, **numbers}


def _verify(store: pathlib.Path, console: rich.console.Console) -> None:
    check_is_local("the store", str(store))
    manifest = read_manifest(store)
    files = list_verified_files(store, manifest)
    total_bytes = count_bytes(files)
    with show_progress("verifying", total_bytes) as advance:
        verify(store, manifest, advance)
    console.print(
        f"OK: the {len(files)} files, {total_bytes:,} bytes, are those that were built",
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    sys.exit(main())
