"""What a build reads: --input as a list of sources, each read from start to end on its own."""

import dataclasses
import glob
import os
from concurrent.futures import ThreadPoolExecutor

from data_pipeline import gutenberg, parquet, tfds_documents
from data_pipeline.files import StoredFile, find_files, is_address
from data_pipeline.lines import check_is_text, read_head
from data_pipeline.text_options import TextOptions

_THREADS = 16  # that look at files; on a bucket each look is a request
_LOOKS_AT_ONCE = 4096  # that wait for a thread, at 1.5 kB each


@dataclasses.dataclass(frozen=True)
class Source:
    """One input: a file by its path or address, or a shard of a TFDS data set.

    A shard's address is "tfds:NAME/CONFIG:VERSION#train/3". A source can be sent to a process.
    """

    address: str
    stored_bytes: int


def find_sources(patterns: str, options: TextOptions) -> list[Source]:
    """The sources that a comma-separated list names, each once, checked as far as is cheap.

    An entry is a glob of files, local or of any file system that fsspec knows (gs://), or
    "tfds:NAME[/CONFIG][:VERSION][:SPLIT]". Order: that of the entries, sorted by name within one.
    `**` reaches into folders. What is the name of a file is no glob and no list.

    Raises:
      ValueError: an entry without a file, a name that is not UTF-8, a directory, only empty files,
        binary data at its start, a table without the column, a file that is no Gutenberg book
        where only those are wanted.
      OSError: a file system that cannot be listed.
    """
    found: dict[str, StoredFile] = {}
    parts = [patterns] if os.path.isfile(os.path.expanduser(patterns)) else patterns.split(",")
    for entry in filter(None, (part.strip() for part in parts)):
        if entry.startswith(tfds_documents.PREFIX):
            matches = tfds_documents.find_shards(entry, options.text_key)
        else:
            matches = _matches(entry)
        for file in matches:
            found.setdefault(_identity(file), file)
    if not found:
        raise ValueError("--input is empty; give files or globs, as in --input='corpus/*.txt.gz'")
    files, strangers = list(found.values()), []
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(files), _LOOKS_AT_ONCE):
            some = files[start : start + _LOOKS_AT_ONCE]
            are_books = pool.map(lambda file: _check(file, options), some)
            strangers += [
                file.address for file, is_book in zip(some, are_books, strict=True) if not is_book
            ]
    if not any(file.stored_bytes for file in files):
        raise ValueError(
            f"--input has no file that is not empty (0 bytes), as {files[0].address} is; give "
            "files with text"
        )
    if strangers:
        raise ValueError(gutenberg.no_books(strangers, len(found)))
    return [Source(file.address, file.stored_bytes) for file in found.values()]


def _matches(pattern: str) -> list[StoredFile]:
    expanded = os.path.expanduser(pattern)
    # A name may hold what means something else in a glob, as "a[1].txt" does.
    is_name = not is_address(pattern) and os.path.lexists(expanded)
    files = find_files(glob.escape(expanded) if is_name else pattern)
    if "**" in pattern:  # the files of a folder that it matches are matched by themselves
        files = [file for file in files if not file.is_directory]
    if not files:
        place = "" if is_address(pattern) else f" under {os.getcwd()}"
        raise ValueError(
            f"--input has {pattern!r}, which matches no file{place}; give files or globs, and put "
            "quotes around a glob so that the shell leaves it alone"
        )
    return files


def _identity(file: StoredFile) -> str:
    """The same for two names of one local file; the address of all else.

    Raises:
      ValueError: a name that is not UTF-8, which no manifest can hold.
    """
    address = file.address
    try:
        address.encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(address).decode("utf-8", "backslashreplace")
        raise ValueError(
            f"--input has {name}, a name that is not UTF-8 and cannot be told in the store; rename "
            "the file"
        ) from error
    is_local = not is_address(address) and not address.startswith(tfds_documents.PREFIX)
    return os.path.realpath(address) if is_local else address


def _check(file: StoredFile, options: TextOptions) -> bool:
    """Look at a file's first bytes; False where Gutenberg's books are wanted and it is none."""
    address = file.address
    if address.startswith(tfds_documents.PREFIX):
        return True
    if file.is_directory:
        raise ValueError(
            f"--input has {address}, a directory; give its files: --input='{address}/*'"
        )
    head = read_head(address)
    if not head:  # one of many may be empty; the build counts it
        return True
    if parquet.is_parquet(head):
        parquet.check_columns(address, options.text_key)
        return True
    check_is_text(address, head, 0)
    return options.documents != "gutenberg" or gutenberg.may_be_book(head)
