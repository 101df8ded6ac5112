"""Resolve --input to a list of sources, each of which is read from start to end on its own."""

import dataclasses
import glob
import os
from concurrent.futures import ThreadPoolExecutor

from data_pipeline.io.address import is_address
from data_pipeline.io.files import StoredFile, find_files
from data_pipeline.io.refused import Refused
from data_pipeline.read import gutenberg, parquet, tfds
from data_pipeline.read.lines import check_is_text, read_head
from data_pipeline.read.options import TextOptions

_THREADS = 16  # threads that check files; in a bucket each check is a request
_CHECKS_AT_ONCE = 4096  # files that wait for a thread, at 1.5 kB each


@dataclasses.dataclass(frozen=True)
class Source:
    """Name an input: a file by its path or address, or a shard of a TFDS data set.

    A shard's address is "tfds:NAME/CONFIG:VERSION#train/3". A source can be sent to a process.
    """

    address: str
    stored_bytes: int


def find_sources(patterns: str, options: TextOptions) -> list[Source]:
    """Return the sources that a comma-separated list names, each once, after cheap checks.

    An entry is a glob of files, local or of any file system that fsspec knows (gs://), or
    "tfds:NAME[/CONFIG][:VERSION][:SPLIT]". Order: that of the entries, sorted by name within one.
    `**` reaches into folders. An entry that is the name of a file is taken literally.

    Raises Refused for an entry without a file, a name that is not UTF-8, a directory, only empty
    files, binary data at its start, a table without the column, a file that is no Gutenberg book
    where only those are wanted.
    """
    files_by_key: dict[str, StoredFile] = {}
    parts = [patterns] if os.path.isfile(os.path.expanduser(patterns)) else patterns.split(",")
    for entry in filter(None, (part.strip() for part in parts)):
        if entry.startswith(tfds.PREFIX):
            matches = tfds.find_shards(entry, options.text_key)
        else:
            matches = _matches(entry)
        for file in matches:
            files_by_key.setdefault(_identity(file), file)
    if not files_by_key:
        raise Refused("--input is empty; give files or globs, as in --input='corpus/*.txt.gz'")
    files, strangers = list(files_by_key.values()), []
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(files), _CHECKS_AT_ONCE):
            some = files[start : start + _CHECKS_AT_ONCE]
            are_books = pool.map(lambda file: _check(file, options), some)
            for file, is_book in zip(some, are_books, strict=True):
                if not is_book:
                    strangers.append(file.address)
    if not any(file.stored_bytes for file in files):
        raise Refused(
            f"--input has no file that is not empty (0 bytes), as {files[0].address} is; give "
            "files with text"
        )
    if strangers:
        raise Refused(gutenberg.describe_strangers(strangers, len(files)))
    return [Source(file.address, file.stored_bytes) for file in files]


def _matches(pattern: str) -> list[StoredFile]:
    expanded = os.path.expanduser(pattern)
    # A name may hold what means something else in a glob, as "a[1].txt" does.
    is_name = not is_address(pattern) and os.path.lexists(expanded)
    files = find_files(glob.escape(expanded) if is_name else pattern)
    if "**" in pattern:  # `**` matches the files of a folder individually
        files = [file for file in files if not file.is_directory]
    if not files:
        place = "" if is_address(pattern) else f" under {os.getcwd()}"
        raise Refused(
            f"--input has {pattern!r}, which matches no file{place}; give files or globs, and put "
            "quotes around a glob so that the shell leaves it alone"
        )
    return files


def _identity(file: StoredFile) -> str:
    """Return a key that is equal for two names of one local file; else the address."""
    address = file.address
    try:
        address.encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(address).decode("utf-8", "backslashreplace")
        raise Refused(
            f"--input has {name}, a name that is not UTF-8, which no store can keep; rename the "
            "file"
        ) from error
    is_local = not is_address(address) and not address.startswith(tfds.PREFIX)
    return os.path.realpath(address) if is_local else address


def _check(file: StoredFile, options: TextOptions) -> bool:
    """Check a file's first bytes; return False if it should be a Gutenberg book and is none."""
    address = file.address
    if address.startswith(tfds.PREFIX):
        return True
    if file.is_directory:
        raise Refused(f"--input has {address}, a directory; give its files: --input='{address}/*'")
    head = read_head(address)
    if not head:  # one of many may be empty; the build counts it
        return True
    if parquet.is_parquet(head):
        parquet.check_columns(address, options.text_key)
        return True
    check_is_text(address, head, 0)
    return options.documents != "gutenberg" or gutenberg.may_be_book(head)
