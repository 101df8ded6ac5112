"""What a build shows on the screen: progress while it runs, and a table of what it found."""

import contextlib
import dataclasses
import pathlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.table

from data_pipeline.cleaning import (
    DOCUMENTS_OF_DUPLICATE_LINES,
    DOCUMENTS_WITHOUT_SENTENCES,
    DUPLICATE_DOCUMENTS,
    DUPLICATE_LINES,
    FILES_WITHOUT_TEXT,
    KEEP,
    LONG_WORD_LINES,
    NEAR_DUPLICATE_DOCUMENTS,
    NORMALIZED_DOCUMENTS,
    SENTENCES_WITHOUT_TOKENS,
    SHORT_DOCUMENTS,
    TOGETHER,
)
from data_pipeline.findings import build_findings, can_be_trained_on, total
from data_pipeline.interpreter import python
from data_pipeline.live_line import LINE, duration
from data_pipeline.lost_characters import lost_in_words
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.wrapping import print_command, print_fact, print_paragraph

_SHOWN_FILES = 3
_LABEL_WIDTH = 11
_EVERY_SECS = 0.1  # the live line changes at most so often
_REASON_WORDS = {
    FILES_WITHOUT_TEXT: "files without text",
    SENTENCES_WITHOUT_TOKENS: "sentences without a token",
    DOCUMENTS_WITHOUT_SENTENCES: "documents without a sentence",
    LONG_WORD_LINES: "lines with a long word",
    SHORT_DOCUMENTS: "short documents",
    DUPLICATE_DOCUMENTS: "documents that are copies",
    NEAR_DUPLICATE_DOCUMENTS: "documents that are near copies",
    DUPLICATE_LINES: "lines that occurred before",
    DOCUMENTS_OF_DUPLICATE_LINES: "documents of such lines alone",
}


@dataclasses.dataclass(frozen=True)
class BuildRun:
    """A finished build, for the report."""

    store: pathlib.Path
    manifest: dict[str, Any]
    seconds: float
    encoded_by: str  # whom, in words
    address: str = ""  # of the store in a bucket, of which `store` is where it was built


@contextlib.contextmanager
def progress_bar(
    console: rich.console.Console, label: str, total: int | None
) -> Iterator[Callable[[int], None]]:
    """Show on the live line how far work is, which the yielded function moves on by an amount.

    A line with the seconds stays when it is done; without a terminal that line is all there is.
    """
    started_secs = shown_secs = time.perf_counter()
    done = 0
    with LINE.doing(label) as show:

        def advance(amount: int) -> None:
            nonlocal done, shown_secs
            done += amount
            now = time.perf_counter()
            if total and now - shown_secs >= _EVERY_SECS:
                show(f"{label}: {_how_far(done / total, now - started_secs)}")
                shown_secs = now

        yield advance
    seconds = time.perf_counter() - started_secs
    with LINE.hidden():
        console.print(f"{label}: {seconds:.1f} s", markup=False, soft_wrap=True)


def _how_far(share: float, secs: float) -> str:
    """The share that is done, and the time left once it can be told."""
    share = min(share, 1.0)
    left = f", {duration(secs / share - secs)} left" if share and secs > 1 else ""
    return f"{share:.0%}{left}"


def print_report(console: rich.console.Console, run: BuildRun) -> None:
    """Print the counts by split, the findings, where the store is and what can be run next."""
    vocabulary = run.manifest["vocabulary"]
    console.print()
    console.print(_counts_table(run))
    case = "lower case" if vocabulary["lowercase"] else "case kept"
    used = _used_pieces(run)
    lost = lost_in_words(run.manifest)
    read_bytes = sum(source["bytes"] for source in run.manifest["sources"])
    facts = (
        ("read", f"{count_of_files(len(run.manifest['sources']))}, {_size(read_bytes)} as stored"),
        *_cleaning_facts(run.manifest),
        (
            "vocabulary",
            f"{vocabulary['kind']}, {vocabulary['size']:,} pieces, {case}; {used:,} of them occur",
        ),
        *([("characters", lost)] if lost else []),
        ("took", f"{run.seconds:.1f} s with {run.encoded_by}"),
        ("store", f"{run.address or run.store}  ({run.manifest['digest'][:12]})"),
    )
    for name, value in facts:
        print_fact(console, name, value, _LABEL_WIDTH)
    for finding in build_findings(run.manifest):
        print_paragraph(console, f"! {finding}", "yellow")
    if not can_be_trained_on(run.manifest):
        return
    console.print("\n  [dim]next[/]")
    print_command(console, _next_command(run))


def _cleaning_facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """What was left out and why; what only a flag can leave out is named where it did."""
    dropped = [
        f"{count:,} {_REASON_WORDS[reason]}"
        for reason, count in manifest["dropped"].items()
        if count or reason in (DOCUMENTS_WITHOUT_SENTENCES, SENTENCES_WITHOUT_TOKENS)
    ]
    facts = [("dropped", ", ".join(dropped))]
    if count := manifest["dropped"][FILES_WITHOUT_TEXT]:
        names = [source["path"] for source in manifest["sources"] if not source["documents"]]
        more = ", ..." if count > _SHOWN_FILES else ""
        facts.append(("no text in", ", ".join(names[:_SHOWN_FILES]) + more))
    flags = manifest["build"]
    if flags["normalize"] != "none":
        changed = manifest["changed"][NORMALIZED_DOCUMENTS]
        facts.append(("normalized", f"{changed:,} documents were not in {flags['normalize']}"))
    if flags["near_duplicates"] != KEEP:
        near = manifest["near_duplicates"]
        rest = "only the first of each is kept"
        if flags["near_duplicates"] == TOGETHER:
            rest = "all are kept, a cluster on one side of the held-out split"
        found = f"{near['documents']:,} documents in {near['clusters']:,} clusters; {rest}"
        if near["documents_given_up"]:
            found += (
                f"; {near['documents_given_up']:,} documents resemble too many others to be "
                "compared with all"
            )
        facts.append(("near copies", found))
    return facts


def _counts_table(run: BuildRun) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2))
    table.add_column("")
    for name in ("train", "held out", "both"):
        table.add_column(name, justify="right")
    splits = run.manifest["splits"]
    both = {key: total(run.manifest, key) for key in splits[TRAIN]}
    both["longest_sentence_tokens"] = run.manifest["longest_sentence_tokens"]
    columns = (splits[TRAIN], splits[HELDOUT], both)
    bytes_on_disk = [_array_bytes(run, TRAIN), _array_bytes(run, HELDOUT)]
    for key in ("documents", "sentences", "tokens"):
        table.add_row(key, *(f"{split[key]:,}" for split in columns))
    table.add_row("on disk", *map(_size, [*bytes_on_disk, sum(bytes_on_disk)]))
    for label, part, whole in (
        ("sentences per document", "sentences", "documents"),
        ("tokens per sentence", "tokens", "sentences"),
    ):
        table.add_row(label, *(f"{split[part] / split[whole]:.1f}" for split in columns))
    table.add_row("longest sentence", *(f"{s['longest_sentence_tokens']:,}" for s in columns))
    for label, part, whole in (
        ("unknown tokens", "unknown_tokens", "tokens"),
        ("documents of one sentence", "one_sentence_documents", "documents"),
    ):
        table.add_row(label, *(f"{split[part] / split[whole]:.2%}" for split in columns))
    return table


def _used_pieces(run: BuildRun) -> int:
    counts = [np.load(run.store / split / "token_counts.npy") for split in (TRAIN, HELDOUT)]
    return int(np.count_nonzero(sum(counts)))


def _array_bytes(run: BuildRun, split: str) -> int:
    return sum(path.stat().st_size for path in (run.store / split).iterdir())


def count_of_files(count: int) -> str:
    """1 file, 2 files."""
    return f"{count:,} file{'' if count == 1 else 's'}"


def _size(count_bytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count_bytes >= factor:
            return f"{count_bytes / factor:.1f} {unit}"
    return f"{count_bytes} bytes"


def _next_command(run: BuildRun) -> str:
    store = shlex.quote(run.address or str(run.store))
    cache = " --config.data.data_cache=CACHE" if run.address else ""
    return (
        f"{python()} -m bert_jax.train --config=configs/tiny.py "
        f"--config.data.store={store}{cache} --workdir=runs/{shlex.quote(run.store.name)}"
    )
