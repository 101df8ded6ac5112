"""Announced lengths of records: a huge one is refused before TensorFlow makes room for it."""

import gzip
import io
import struct
import tracemalloc

import pytest

from data_pipeline.io.record_frames import record_lengths
from data_pipeline.store.tfrecord import read_examples


def checksum(data: bytes) -> bytes:
    """CRC-32C as TFRecords mask it, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes, length: int | None = None) -> bytes:
    head = struct.pack("<Q", len(data) if length is None else length)
    return head + checksum(head) + data + checksum(data)


def test_lengths_are_those_of_the_records_and_end_with_the_last_whole_head():
    data = b"".join(frame(b"x" * size) for size in (3, 0, 11)) + b"\1\2\3"
    assert list(record_lengths("x", io.BytesIO(data), 11)) == [3, 0, 11]
    with pytest.raises(ValueError, match=r"x is damaged in the record at byte 35 .* 11 bytes"):
        list(record_lengths("x", io.BytesIO(data), 10))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("length", "before"),
    [((16 << 20) + 1, b""), (1 << 40, frame(b"a record")), ((1 << 64) - 1, frame(b"a record"))],
)
def test_a_record_of_a_terabyte_with_a_right_checksum_is_refused(tmp_path, pack, length, before):
    path = tmp_path / "records"
    path.write_bytes(pack(before + frame(b"", length)))
    with pytest.raises(ValueError, match=f"{path} is .* record .*announces {length:,} bytes"):
        for _ in read_examples(path):
            pass


def test_few_bytes_that_unpack_to_gigabytes_are_not_held(tmp_path):
    # The first record sets how long the others may be, and how many are read at once.
    path = tmp_path / "records"
    with gzip.open(path, "wb", 1) as file:
        file.write(frame(b"\0" * 100))
        for _ in range(8):
            file.write(frame(b"", 1 << 23)[:12] + bytes((1 << 23) + 4))
    tracemalloc.start()
    with pytest.raises(ValueError, match="announces 8,388,608 bytes where at most 262,144"):
        for _ in read_examples(path):
            pass
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 << 20
