"""Resolve --input to a list of sources; each is read from start to end on its own."""

import os
from concurrent.futures import ThreadPoolExecutor

from data_pipeline.io import Refused
from data_pipeline.io.address import is_address
from data_pipeline.io.files import StoredFile, find_files, identify
from data_pipeline.read import formats, gutenberg, tfds
from data_pipeline.read.documents import STRANGER, Source, check_source, describe_bad_files
from data_pipeline.read.options import TextOptions

_THREADS = 16  # threads that check files; in a bucket each check is a request
_CHECKS_AT_ONCE = 4096  # files that wait for a thread, at 1.5 kB each


def find_sources(patterns: str, options: TextOptions) -> list[Source]:
    """Return the sources that a comma-separated list names, each once, after a look at their heads.

    An entry is a glob of files, local or of any file system that fsspec knows (gs://, hf://), or
    "tfds:NAME[/CONFIG][:VERSION][:SPLIT]". Sources have the order of the entries, and are sorted by
    name within one. `**` reaches into folders. The name of a file is taken literally.

    Raises Refused for an entry without a file, a name that is not UTF-8, a directory, only empty
    files, a flag that no file needs, and for all files whose heads check_source refuses.
    """
    files_by_key: dict[str, StoredFile] = {}
    is_name = os.path.isfile(os.path.expanduser(patterns))
    parts = [patterns] if is_name else map(str.strip, patterns.split(","))
    for entry in filter(None, parts):
        if entry.startswith(tfds.PREFIX):
            matches = tfds.find_shards(entry, options.key)
        else:
            matches = _matches(entry)
        for file in matches:
            files_by_key.setdefault(identify("--input", file), file)
    if not files_by_key:
        raise Refused("--input is empty; give files or globs, as in --input='corpus/*.txt.gz'")
    files = list(files_by_key.values())
    checked: list[tuple[str, str]] = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(files), _CHECKS_AT_ONCE):
            some = files[start : start + _CHECKS_AT_ONCE]
            checked += pool.map(lambda file: _check(file, options), some)
    if all(kind == formats.EMPTY for kind, _ in checked):  # a web server may tell no size
        raise Refused(
            f"--input has no file that is not empty (0 bytes), as {files[0].address} is; give "
            "files with text"
        )
    if bad := [wrong for _, wrong in checked if wrong]:
        raise Refused(describe_bad_files(bad, len(files)))
    pairs = zip(files, checked, strict=True)
    if strangers := [file.address for file, (kind, _) in pairs if kind == STRANGER]:
        raise Refused(gutenberg.describe_strangers(strangers, len(files)))
    _check_flags({kind for kind, _ in checked}, options)
    return [Source(file.address, file.stored_bytes) for file in files]


def _matches(pattern: str) -> list[StoredFile]:
    files = find_files(pattern)
    if "**" in pattern:  # `**` matches the files of a folder individually
        files = [file for file in files if not file.is_directory]
    if not files:
        place = "" if is_address(pattern) else f" under {os.getcwd()}"
        if pattern.startswith("hf://"):
            place = " that the Hub shows to this account (a private data set needs `hf auth login`)"
        raise Refused(
            f"--input has {pattern!r}, which matches no file{place}; give files or globs, and put "
            "quotes around a glob so that the shell leaves it alone"
        )
    return files


def _check(file: StoredFile, options: TextOptions) -> tuple[str, str]:
    """Return the format of a file, and a sentence about what is wrong with it or ""."""
    if file.address.startswith(tfds.PREFIX):
        return formats.TFDS, ""
    if file.is_directory:
        place = file.address
        raise Refused(f"--input has {place}, a directory; give its files: --input='{place}/*'")
    try:
        return check_source(file.address, options), ""
    except Refused as error:
        return "", str(error)


def _check_flags(kinds: set[str], options: TextOptions) -> None:
    """Raise Refused for a flag that no input uses."""
    for name, users, use in (
        ("text_key", formats.KEYED, "JSON, csv, tsv, Parquet, Arrow and TFDS have keys"),
        ("documents", (formats.TEXT,), "it is for plain text"),
        ("fallback_encoding", formats.LINES, "Parquet, Arrow and TFDS are always UTF-8"),
        ("format", (formats.TEXT,), "TFDS has a format of its own"),
    ):
        value = getattr(options, name)
        if value != getattr(TextOptions, name) and kinds.isdisjoint(users):
            given = ", ".join(sorted(kinds))
            raise Refused(
                f"--{name} is {value!r}, and no input uses it: {use}, and --input has {given}; "
                "leave it out"
            )
