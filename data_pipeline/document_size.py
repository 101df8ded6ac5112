"""How large a document may be. It is handled in one piece, so this bounds the memory of a build."""

# A process took 145 MB on 1,422 chapters and 1.45 GB on one document of 60 MB.
MAX_DOCUMENT_BYTES = 64 << 20


def grown(address: str, size_bytes: int, text: str) -> int:
    """The size in bytes of UTF-8 of a document of `size_bytes` that `text` is added to.

    Called while a document is read, so that a file that never ends one is refused before it is in
    memory.

    Raises:
      ValueError: more than MAX_DOCUMENT_BYTES.
    """
    size_bytes += len(text) if text.isascii() else len(text.encode())
    if size_bytes > MAX_DOCUMENT_BYTES:  # once more than check_size, for a call a line is dear
        check_size(address, size_bytes)
    return size_bytes


def check_size(address: str, size_bytes: int) -> None:
    """Raise ValueError where a document has more than MAX_DOCUMENT_BYTES."""
    if size_bytes > MAX_DOCUMENT_BYTES:
        raise ValueError(
            f"{address} has a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB, the largest "
            "that is handled in one piece; put blank lines between documents, or split the file"
        )
