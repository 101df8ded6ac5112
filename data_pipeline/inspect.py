"""Report on the health of a store: python -m data_pipeline.inspect STORE --html=report.html"""

import argparse
import dataclasses
import json
import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import rich.console

from data_pipeline.cli.flags import FlagParser, check_range
from data_pipeline.cli.main import run_main
from data_pipeline.cli.terminal import make_console
from data_pipeline.io.atomic import check_file_path
from data_pipeline.io.refused import Refused
from data_pipeline.report.findings import find_in_store
from data_pipeline.report.health import Health, measure
from data_pipeline.report.progress import show_progress
from data_pipeline.report.terminal import print_health
from data_pipeline.store import EXAMPLES, check_is_local, open_store, read_manifest
from data_pipeline.store.findings import StoreFinding
from data_pipeline.store.writer import count_bytes, list_verified_files, verify

_MAX_EXAMPLES = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Inspect the store that the flags name; return the exit code."""
    console = make_console(highlight=False)
    return run_main(
        lambda flags: inspect(_parser().parse_args(flags), console), argv, outlives_reader=False
    )


def inspect(flags: argparse.Namespace, console: rich.console.Console) -> None:
    """Verify if asked to, measure, and write the report to the screen and the files.

    Raises:
      Refused, OSError: a flag, the store, or a file that cannot be written.
    """
    check_range("examples", flags.examples, 0, _MAX_EXAMPLES)
    for flag, path in (("--html", flags.html), ("--json_out", flags.json_out)):
        if path:
            check_file_path(path, flag)
    if flags.verify:
        _verify(flags.store, console)
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
        _write_page(flags.html, health, findings)
        console.print(f"  wrote {flags.html}", markup=False, soft_wrap=True)
    if flags.json_out:
        text = json.dumps(describe(health, findings), indent=2, ensure_ascii=False)
        flags.json_out.write_text(text + "\n", encoding="utf-8")


def _write_page(path: pathlib.Path, health: Health, findings: list[StoreFinding]) -> None:
    # Otherwise matplotlib, imported next, reports that it indexes fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from data_pipeline.report.page import render_page

    path.write_text(render_page(health, findings), encoding="utf-8")


def describe(health: Health, findings: list[StoreFinding]) -> dict[str, Any]:
    """Make the content of --json_out: the numbers of Health without the store's manifest."""
    numbers = dataclasses.asdict(health)
    manifest = numbers.pop("manifest")
    texts = [finding.text for finding in findings]
    return {"digest": manifest["digest"], "findings": texts, **numbers}


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


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m data_pipeline.inspect",
        description="Count and draw what is in a store, and report what looks wrong about it.",
    )
    add = parser.add_argument
    add(
        "store",
        type=pathlib.Path,
        metavar="STORE",
        help="folder that python -m data_pipeline.build wrote",
    )
    add(
        "--html",
        type=pathlib.Path,
        metavar="FILE",
        help="also write the report to this file, as a web page",
    )
    add("--json_out", type=pathlib.Path, metavar="FILE", help="also write the numbers to this file")
    add("--seq_len", type=int, default=128, metavar="N", help="tokens in a row; default 128")
    add("--examples", type=int, default=10, metavar="N", help="example rows to print; default 10")
    add("--verify", action="store_true", help="first check each file against its SHA-256")
    return parser


if __name__ == "__main__":
    sys.exit(main())
