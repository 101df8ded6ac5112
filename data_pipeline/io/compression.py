"""Decompress gzip, bzip2, xz and Zstandard, detected by the first bytes of a file."""

import bz2
import lzma
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import zstandard

from data_pipeline.io import Refused

BLOCK_BYTES = 1 << 20
PLAIN = "plain"  # not compressed
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")

# gzip packs repetitive text up to 1,000 times, Zstandard up to 32,000, and their decoders return
# all output of a piece at once: 4 KiB of input stay below 128 MiB. bzip2 and xz pack more, but
# their decoders can be limited.
_PIECE_BYTES = 4096
# What `zstd --long=31` needs; such files are common among dumps.
_ZSTD_WINDOW_BYTES = 1 << 31
_XZ_MEMORY_BYTES = 2 << 30  # `xz -9` needs 65 MiB, the largest dictionary of that program 1.5 GiB
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = frozenset(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))

# A text may begin with BZh, but not with one of these too: 12 digits of pi or of its square root.
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")
_BZIP2_DAMAGE = "Invalid data stream"  # how the module words an OSError without a number

# Archives and rare formats, which the error names instead of "binary data".
_REFUSED = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x04\x22\x4d\x18": "an lz4 file",
    b"\x1f\x9d": "a file of the old Unix compress",
}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257


def decompress(address: str, stored: BinaryIO, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the content of an open file, a block at a time; `address` is for errors.

    A file may be several compressed ones in a row, as `cat` and parallel compressors make them.
    Raises Refused for a file that is cut off or damaged, and for an archive of several files.
    """
    head = stored.read(16)
    stored.seek(0)
    for magic, name in _REFUSED.items():
        if head.startswith(magic):
            raise Refused(_unpack_first(address, name))
    kind = find_compression(head)
    offset = 0
    try:
        for block in _blocks(kind, stored, block_bytes):
            if offset == 0 and block[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
                raise Refused(_unpack_first(address, "a tar archive"))
            offset += len(block)
            yield block
    except EOFError as error:
        raise Refused(
            f"{address} is a truncated {kind} file, which ends after {offset} bytes of text; copy "
            "or download it again"
        ) from error
    except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        if isinstance(error, OSError) and str(error) != _BZIP2_DAMAGE:
            raise  # the disk's or the network's
        raise Refused(
            f"{address} is a damaged {kind} file ({error}); copy or download it again"
        ) from error


def find_compression(head: bytes) -> str:
    """Return the compression of a file with these first bytes (16 suffice), or PLAIN."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"BZh") and head[4:10] in _BZIP2_BLOCKS:
        return "bzip2"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    if head.startswith(_ZSTD_MAGIC) or head[:4] in _ZSTD_SKIPPED:
        return "Zstandard"
    return PLAIN


def _blocks(kind: str, stored: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    """Decode consecutive streams; in gzip and xz files zeros may follow a stream.

    The libraries' own readers stop at a damaged stream without an error (51 of 52 streams lost).
    """
    if kind == PLAIN:
        yield from iter(lambda: stored.read(block_bytes), b"")
        return
    padding = b"\0" if kind in ("gzip", "xz") else b""
    max_length = (block_bytes,) if kind in ("bzip2", "xz") else ()  # the decoder keeps the rest
    decoder = None
    block = bytearray()
    while piece := stored.read(_PIECE_BYTES):
        while piece or not getattr(decoder, "needs_input", True):
            if decoder is None:
                piece = piece.lstrip(padding)
                if not piece:
                    break
                decoder = _make_decoder(kind)
            block += decoder.decompress(piece, *max_length)
            piece = decoder.unused_data
            if decoder.eof:
                decoder = None
            if len(block) >= block_bytes:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)
    if decoder is not None:
        raise EOFError


def _make_decoder(kind: str) -> Any:
    """Make a decoder of one stream; the interfaces of the four libraries are nearly the same."""
    match kind:
        case "gzip":
            return zlib.decompressobj(zlib.MAX_WBITS | 16)  # expects gzip's header and checksum
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        case _:
            library = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
            return library.decompressobj()


def _unpack_first(address: str, name: str) -> str:
    document = ", or save a document (docx, xlsx, odt, epub) as text or csv" * ("zip" in name)
    return (
        f"{address} is {name}, which is not read; unpack it, and give its files plain or "
        f"compressed by gzip, bzip2, xz or zstd{document}"
    )
