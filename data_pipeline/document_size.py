"""How large a document may be. It is handled in one piece, so this bounds the memory of a build."""

# A process took 145 MB on 1,422 chapters and 1.45 GB on one document of 60 MB.
MAX_DOCUMENT_BYTES = 64 << 20
# A line of one letter takes 60 bytes and more as a string of its own.
LEAST_LINE_BYTES = 16


def grown(address: str, size_bytes: int, text: str) -> int:
    """The size in bytes of UTF-8 of a document of `size_bytes` that `text` is added to.

    A short line counts as LEAST_LINE_BYTES, so this bounds how many lines there are too.

    Called while a document is read, so that a file that never ends one is refused before it is in
    memory.

    Raises:
      ValueError: more than MAX_DOCUMENT_BYTES.
    """
    added_bytes = len(text) if text.isascii() else len(text.encode())
    if added_bytes < LEAST_LINE_BYTES:
        added_bytes = LEAST_LINE_BYTES
    elif added_bytes > MAX_DOCUMENT_BYTES // LEAST_LINE_BYTES:  # less has not too many line ends
        line_ends = max(text.count("\n"), text.count("\r"))
        added_bytes = max(added_bytes, LEAST_LINE_BYTES * line_ends)
    size_bytes += added_bytes
    if size_bytes > MAX_DOCUMENT_BYTES:  # once more than check_size, for a call a line is dear
        check_size(address, size_bytes)
    return size_bytes


def check_size(address: str, size_bytes: int) -> None:
    """Raise ValueError where a document has more than MAX_DOCUMENT_BYTES."""
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{address} has a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB (lines of fewer "
            f"than {LEAST_LINE_BYTES} bytes count as {LEAST_LINE_BYTES}), the largest "
            "that is handled in one piece; put blank lines between documents, or split the file"
        )
