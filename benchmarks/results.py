"""Write measured figures into docs/results: what --record=ROW of a benchmark does.

    python -m benchmarks.step_vs_hf_torch --record=step
    python -m benchmarks.step_vs_hf_torch --sizes=albert --record=step_albert:step

The first renews the row named step, the second puts a new row below it. A benchmark opens its row
before it measures, so that a name or a change of the code that cannot be recorded is refused at
once, and writes it at the end. docs/generate.py then renders the pages that show rows.
"""

import dataclasses
import datetime
import importlib
import json
import math
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.step.workers import ROOT
from bert_jax.runtime.code_version import package_versions
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.io import Refused
from data_pipeline.io.atomic import write_file

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
HELP = "row of docs/results to renew with this measurement; NEW:ROW puts a new row below ROW"
# A recording changes these itself, so the next one may find them changed.
_NOT_CODE = (":(exclude)docs", ":(exclude)README.md")
_OF_CPU = re.compile(r"\((R|TM)\)| CPU| Processor| @ .*")  # left out of the processor's name

Theme = dict[str, Any]  # a file of RESULTS


@dataclasses.dataclass(frozen=True)
class Measured:
    """Hold the fields of a row that only its benchmark knows."""

    what: str
    figure: str
    runs: str
    headline: str = ""  # sentence for README.md and docs/results.md, if they may name the row
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the other library's
    accelerator: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """Hold a row to write, with what was read before the measurement."""

    name: str
    above: str  # for a new row, the one above it
    command: str
    commit: str
    date: str
    load: float | None  # None: not known


def open_row(record: str, command: str = "") -> Row | None:
    """Return the row that --record names, None for ""; exit if it cannot be written.

    `command` replaces the command line of this process.
    """
    try:
        return find_row(record, command or read_command(sys.orig_argv)) if record else None
    except Refused as error:
        sys.exit(f"error: {error}")


def find_row(record: str, command: str) -> Row:
    """Return the row that --record names.

    Raises:
      Refused: there is no such row, another program measures it, or changes are not committed.
    """
    name, _, above = record.partition(":")
    rows = {row["name"]: row for row in list_rows(read_themes()) if "name" in row}
    known = above or name
    if known not in rows:
        raise Refused(
            f"--record={record}: no row is named {known}; choose from {', '.join(sorted(rows))}, "
            "or put a new row below one of them by NEW:ROW"
        )
    if above and (name in rows or not re.fullmatch(r"\w+", name)):
        raise Refused(f"--record={record}: {name} is taken or no word; give another name")
    program = find_program(command)
    if not above and program.rpartition(".")[2] not in rows[name]["command"]:
        raise Refused(
            f"--record={record}: {program} does not measure that row, whose command is "
            f"{rows[name]['command']}; give another row, or a new one by NEW:{name}"
        )
    commit = ask_git("rev-parse", "--short=8", "HEAD")
    changed = ask_git("status", "--porcelain", "--untracked-files=no", ".", *_NOT_CODE)
    if changed or not commit:
        raise Refused(
            f"--record={record}: the code is at no commit ({changed or 'no clone'}); commit it, so "
            "that others can measure the same"
        )
    today = datetime.date.today().isoformat()
    return Row(name, above, command, commit, today, os.getloadavg()[0])


def ask_git(*words: str) -> str:
    """Return what git answers on this clone; "" outside one."""
    asked = ["git", "-C", str(ROOT), *words]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def write_row(row: Row | None, measured: Measured) -> None:
    """Write a row into its file and render the pages; do nothing without a row.

    Raises:
      Refused: the row, or the one above it, was removed in the meantime.
    """
    if row is None:
        return
    known = row.above or row.name
    headline = {"headline": measured.headline} if measured.headline else {}
    entry = {
        "name": row.name,
        **headline,
        "what": measured.what,
        "figure": measured.figure,
        "command": f"`{row.command}`" if "`" not in row.command else row.command,
        "device": describe_device(row.load, measured.versions, measured.accelerator),
        "date": row.date,
        "commit": row.commit,
        "runs": measured.runs,
    }
    print(json.dumps(entry, indent=1, ensure_ascii=False))
    for path, theme in read_themes().items():
        for section in theme["sections"]:
            names = [each.get("name") for each in section["rows"]]
            if known in names:
                place = names.index(known)
                start = place + 1 if row.above else place
                section["rows"][start : place + 1] = [entry]
                text = json.dumps(theme, indent=1, ensure_ascii=False)
                write_file(path, f"{text}\n".encode())
                render()
                return
    raise Refused(f"no row is named {known} any more; add what is printed above by hand")


def render() -> None:
    """Write the pages and the picture that show rows, by docs/generate.py."""
    sys.path.insert(0, str(DOCS))
    importlib.import_module("generate").write_results()


def read_themes() -> dict[pathlib.Path, Theme]:
    """Return all results by file."""
    paths = sorted(RESULTS.glob("*.json"))
    return {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def list_rows(themes: Mapping[pathlib.Path, Theme]) -> list[dict[str, str]]:
    """Return the rows of all files."""
    sections = [section for theme in themes.values() for section in theme["sections"]]
    return [row for section in sections for row in section["rows"]]


def read_command(argv: Sequence[str]) -> str:
    """Return a command line of Python as it was given, without --record."""
    text = shlex.join(["python", *argv[1:]])
    return re.sub(r" --?record[= ]\S+", "", text)


def find_program(command: str) -> str:
    """Return the module that a command line runs."""
    found = re.search(r"-m (\S+)", command)
    return found[1] if found else command


def describe_device(load: float | None, versions: Mapping[str, str], accelerator: str) -> str:
    """Describe the machine, its load before the measurement, and the versions of libraries."""
    cpu = _OF_CPU.sub("", read_cpu_model()).strip()
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = count_cores()
    machine = f"{cores} {'core' if cores == 1 else 'cores'} ({cpu}), {memory_gb:.0f} GB"
    known = {"Python": platform.python_version(), **package_versions(("jax",)), **versions}
    parts = [machine, accelerator, "" if load is None else f"load {load:.1f} before"]
    return ", ".join([*filter(None, parts), *(f"{name} {is_at}" for name, is_at in known.items())])


def read_cpu_model() -> str:
    """Return the processor's name and its widest vector instructions, which round differently."""
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    name = facts.get("model name") or platform.processor() or platform.machine()
    known = [each for each in ("avx512f", "avx2") if each in facts.get("flags", "").split()]
    return f"{name} with {known[0]}" if known else name


def describe_ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Write the median of theirs / ours over rounds, and its range."""
    ratios = [them / us for them, us in zip(theirs, ours, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"


def describe_times(theirs: Sequence[float], ours: Sequence[float], unit: str) -> str:
    """Write the ratio, and both times of the round that has the median one."""
    rounds = sorted(zip(theirs, ours, strict=True), key=lambda pair: pair[0] / pair[1])
    pair = rounds[(len(rounds) - 1) // 2]
    return f"{describe_ratio(theirs, ours)}, {' / '.join(map(write_time, pair))} {unit}"


def write_difference(value: float) -> str:
    """Write a small difference as 7.3e-6."""
    return f"{value:.1e}".replace("e-0", "e-")


def write_time(value: float) -> str:
    """Write a time with three digits."""
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{value:,.{digits}f}"
