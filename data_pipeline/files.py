"""Stored files to bytes: opens them, and decompresses what is compressed."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

_BLOCK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


def read_blocks(address: str, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, a block at a time, refusing binary data."""
    offset, stored_bytes = 0, 0
    with open(address, "rb") as stored:
        try:
            source = _decompressed(stored)
            for block in iter(lambda: source.read(_BLOCK_BYTES), b""):
                if (nul := block.find(b"\0")) >= 0:
                    raise ValueError(
                        f"{address} is binary data, not text: a NUL byte at byte offset "
                        f"{offset + nul}; give UTF-8 text (UTF-16 must be converted first)"
                    )
                advance(stored.tell() - stored_bytes)
                stored_bytes = stored.tell()
                offset += len(block)
                yield block
        except EOFError as error:
            raise ValueError(
                f"{address} is a gzip file that ends early, after {offset} bytes of text; "
                "it is cut off: copy or download it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{address} is a damaged gzip file ({error}); copy or download it again"
            ) from error


def _decompressed(stored: BinaryIO) -> BinaryIO:
    """The text of an open file, whether it is stored plain or as gzip."""
    is_gzip = stored.read(2) == _GZIP_MAGIC
    stored.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=stored)) if is_gzip else stored
