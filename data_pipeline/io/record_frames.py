"""Check the lengths of the records of a TFRecord file before TensorFlow allocates memory for them.

A record is its length in 8 bytes, their checksum in 4, the data, and a checksum in 4. TensorFlow
trusts a length whose checksum fits: a length of 2**40 bytes ends the process by a signal.
"""

from collections.abc import Iterator
from typing import Any

from data_pipeline.io import Refused

HEAD_BYTES, FOOT_BYTES = 12, 4


def record_lengths(
    address: str, file: Any, most_bytes: int, how_to_fix: str = "copy it again, or leave it out"
) -> Iterator[int]:
    """Yield the length of each record of an open file; `address`, `how_to_fix` are for errors.

    Stops if less than a record's header is left: TensorFlow reports that.

    Raises:
      Refused: a record of more than `most_bytes`, as soon as its head is read.
    """
    byte = 0
    while len(head := file.read(HEAD_BYTES)) == HEAD_BYTES:
        length = int.from_bytes(head[:8], "little")
        if length > most_bytes:
            other = "" if byte else "is no TFRecord file, or "
            raise Refused(
                f"{address} {other}is damaged in the record at byte {byte:,} (unpacked), which "
                f"announces {length:,} bytes where at most {most_bytes:,} are read; {how_to_fix}"
            )
        yield length
        byte += HEAD_BYTES + length + FOOT_BYTES
        file.seek(byte)
