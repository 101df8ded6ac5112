"""Report on a finished build in the terminal: counts and findings."""

import os
import pathlib
import shlex
from collections import Counter
from typing import Any

import numpy as np
import rich.console
import rich.table
from rich.filesize import decimal

from data_pipeline.cli.main import find_python
from data_pipeline.cli.terminal import make_table, print_command, print_fact, print_paragraph
from data_pipeline.corpus.lost_characters import describe_lost_characters
from data_pipeline.read.cleaning import KEEP, MAX_MARKS, TOGETHER, Changed, Counted, Dropped
from data_pipeline.report.findings import add_splits, can_be_trained_on, find_in_build, has_no_pairs
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.store.findings import count_stripped, find_stripped_marks
from data_pipeline.vocab import describe_case, load_recorded

_MAX_FILES = 3
_COUNTS = ("documents", "sentences", "tokens")
_LABEL_WIDTH = 11
# The config to suggest for fewer tokens: auto.py needs 39,322, and base.py gigabytes of text.
_CONFIGS = (
    (40_000, "configs/quickstart.py"),
    (2 * 10**8, "configs/auto.py --config.budget=30m"),
)
_LARGEST_CONFIG = "configs/base.py"
# Flags for documents of one sentence: masked words alone, and several documents in a row.
_WITHOUT_PAIRS = (
    " --config.objective=mlm --config.data.segments=doc_sentences --config.data.packed_examples=8"
)


def print_report(
    console: rich.console.Console,
    store: pathlib.Path,
    manifest: dict[str, Any],
    seconds: float,
    encoded_by: str,
    address: str = "",
) -> None:
    """Print the counts by split, the findings, the address of the store and the next command.

    `encoded_by` is a phrase such as "8 workers". With an address in a bucket, `store` is the folder
    that the store was built in.
    """
    vocabulary = manifest["vocabulary"]
    console.print()
    console.print(_counts_table(store, manifest))
    lost = describe_lost_characters(manifest)
    sources = manifest["sources"]
    read_bytes = sum(source["bytes"] for source in sources)
    counts = [np.load(store / split / "token_counts.npy") for split in (TRAIN, HELDOUT)]
    counts_V = np.sum(counts, axis=0)
    used = int(np.count_nonzero(counts_V))
    stripped = count_stripped(load_recorded(store / vocabulary["file"], vocabulary), counts_V)
    facts = (
        ("read", f"{describe_file_count(len(sources))}, {decimal(read_bytes)} as stored"),
        *list_changes(manifest),
        (
            "vocabulary",
            f"{vocabulary['kind']}, {vocabulary['size']:,} pieces, {describe_case(vocabulary)}; "
            f"{used:,} of them occur",
        ),
        *([("characters", lost)] if lost else []),
        ("took", f"{seconds:.1f} s with {encoded_by}"),
        ("store", f"{address or store}  ({manifest['digest'][:12]})"),
    )
    for name, value in facts:
        print_fact(console, name, value, _LABEL_WIDTH)
    tokens = add_splits(manifest, "tokens")
    for finding in (*find_in_build(manifest), *find_stripped_marks(stripped, tokens)):
        print_paragraph(console, f"! {finding}", "yellow")
    if not can_be_trained_on(manifest):
        return
    console.print("\n  [dim]next[/]")
    more = " --config.data.data_cache=CACHE" if address else ""
    more += _WITHOUT_PAIRS if has_no_pairs(manifest) else ""
    print_command(
        console,
        f"{find_python()} -m bert_jax.train --config={_choose_config(manifest)} "
        f"--config.data.store={shlex.quote(address or str(store))}{more} "
        f"--workdir={choose_workdir(store)}",
    )


def choose_workdir(store: pathlib.Path) -> str:
    """Name a run after the folder of its store, which may be given as `.`; quoted for a shell."""
    name = os.path.basename(os.path.abspath(store))
    return shlex.quote(f"runs/{'mine' if name == 'store' else name}")


def _choose_config(manifest: dict[str, Any]) -> str:
    """Choose the config by the size of the training text, as README does."""
    tokens = manifest["splits"][TRAIN]["tokens"]
    return next((config for limit, config in _CONFIGS if tokens < limit), _LARGEST_CONFIG)


def list_changes(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """List what a build dropped and why, what it changed, and what it noticed and left unchanged.

    Sentences and documents dropped for lack of tokens are always listed; everything else if it
    occurred, or if its flag is set.
    """
    dropped = [
        f"{count:,} {reason.replace('_', ' ')}"
        for reason, count in manifest["dropped"].items()
        if count
        or reason in (Dropped.DOCUMENTS_WITHOUT_SENTENCES, Dropped.SENTENCES_WITHOUT_TOKENS)
    ]
    facts = [("dropped", ", ".join(dropped))]
    if count := manifest["dropped"].get(Dropped.FILES_WITHOUT_TEXT):
        names = [each["path"] for each in manifest["sources"] if not each.get("documents")]
        more = ", ..." if count > _MAX_FILES else ""
        facts.append(("no text in", ", ".join(names[:_MAX_FILES]) + more))
    flags = manifest["build"]
    if flags.get("normalize", "none") != "none":
        changed = manifest["changed"].get(Changed.NORMALIZED_DOCUMENTS, 0)
        facts.append(("normalized", f"{changed:,} documents were not in {flags['normalize']}"))
    if flags.get("near_duplicates", KEEP) != KEEP:
        near = Counter(manifest["near_duplicates"])
        rest = "only the first of each is kept"
        if flags["near_duplicates"] == TOGETHER:
            rest = "all are kept, a cluster on one side of the held-out split"
        counts = f"{near['documents']:,} documents in {near['clusters']:,} clusters; {rest}"
        if near["documents_given_up"]:
            given_up = near["documents_given_up"]
            counts += f"; {given_up:,} documents resemble too many others to be compared with all"
        facts.append(("near copies", counts))
    return facts + _list_reading(manifest)


def _list_reading(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    """List what reading changed, and what it noticed and left unchanged."""
    changed, counted = Counter(manifest["changed"]), Counter(manifest["counted"])
    facts = []
    if encoding := manifest["build"].get("fallback_encoding"):
        files = describe_file_count(changed[Changed.FALLBACK_FILES])
        lost = changed[Changed.REPLACED_BYTES]
        words = f"; {lost:,} bytes that it lacks became U+FFFD" * (lost > 0)
        facts.append(("encoding", f"{files} with lines not in UTF-8, read as {encoding}{words}"))
    if marks := changed[Changed.CUT_MARKS]:
        facts.append(("cut", f"{marks:,} combining marks that followed {MAX_MARKS} others"))
    if lines := counted[Counted.HYPHENATED_LINES]:
        facts.append(
            ("hyphens", f"{lines:,} wrapped lines end in one; a word that is cut there stays cut")
        )
    if characters := counted[Counted.LONG_WORD_CHARACTERS]:
        share = characters / max(1, counted[Counted.CHARACTERS])
        facts.append(("long words", f"{characters:,} characters ({share:.2%}) are lost in them"))
    return facts


def _counts_table(store: pathlib.Path, manifest: dict[str, Any]) -> rich.table.Table:
    splits = manifest["splits"]
    both = {key: add_splits(manifest, key) for key in splits[TRAIN]}
    both["longest_sentence_tokens"] = manifest["longest_sentence_tokens"]
    columns = (splits[TRAIN], splits[HELDOUT], both)
    sizes = [
        sum(path.stat().st_size for path in (store / split).iterdir()) for split in (TRAIN, HELDOUT)
    ]

    def divide(label: str, part: str, whole: str, form: str) -> list[str]:
        return [label, *(format(split[part] / split[whole], form) for split in columns)]

    rows = [
        *([key, *(f"{split[key]:,}" for split in columns)] for key in _COUNTS),
        ["on disk", *map(decimal, [*sizes, sum(sizes)])],
        divide("sentences per document", "sentences", "documents", ".1f"),
        divide("tokens per sentence", "tokens", "sentences", ".1f"),
        ["longest sentence", *(f"{split['longest_sentence_tokens']:,}" for split in columns)],
        divide("unknown tokens", "unknown_tokens", "tokens", ".2%"),
        divide("documents of one sentence", "one_sentence_documents", "documents", ".2%"),
    ]
    return make_table(("", "train", "held out", "both"), rows)


def describe_file_count(count: int) -> str:
    """Return "1 file" or "2 files"."""
    return f"{count:,} file{'' if count == 1 else 's'}"
