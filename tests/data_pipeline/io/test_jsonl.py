"""Records of a run that a power cut, a kill or somebody else has damaged."""

import json
import os
import time

import pytest

from bert_jax.runtime import goodput
from data_pipeline.io.atomic import write_file
from data_pipeline.io.jsonl import (
    append_record,
    read_metrics,
    read_records,
    repair_end,
    truncate_records,
)
from data_pipeline.io.small_files import DamagedFile

GOOD = [{"step": n, "split": "train", "loss": float(n)} for n in (1, 2)]
WHOLE = b"".join(json.dumps(line).encode() + b"\n" for line in GOOD)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_lines_are_kept_up_to_a_step_and_with_it(path):
    path.write_bytes(WHOLE)
    assert truncate_records(path, 2) == read_records(path) == GOOD
    assert truncate_records(path, 1) == read_records(path) == GOOD[:1]


@pytest.mark.parametrize(
    ("end", "kept"),
    [
        (b"", None),
        (b'{"step": 3, "spl', None),
        (b'{"step": 3, "secs": {"training": 1.0}', None),
        (b"\0" * 4096, b"\0" * 4096),
        (b'{"step": 3, "spl' + b"\0" * 9, b'{"step": 3, "spl' + b"\0" * 9),
    ],
)
def test_what_a_kill_or_a_power_cut_leaves_is_cut_off(path, end, kept):
    assert read_records(path) == []
    path.write_bytes(WHOLE + end)
    assert read_metrics(path) == GOOD
    said = []
    repair_end(path, said.append)
    assert path.read_bytes() == WHOLE
    damaged = path.with_name("metrics.jsonl.damaged")
    assert (damaged.read_bytes() if damaged.exists() else None) == kept
    assert len(said) == (kept is not None)
    repair_end(path, said.append)
    assert len(said) == (kept is not None)


def test_a_string_that_a_kill_cut_off_takes_linear_time(path):
    path.write_bytes(WHOLE + b'{"step": 3, "a": "' + b'\\"' * 200_000)
    started = time.process_time()
    assert read_records(path) == GOOD
    assert time.process_time() - started < 5  # its square takes minutes


def test_a_whole_line_without_its_end_is_kept(path):
    path.write_bytes(WHOLE[:-1] + b"\0\0")
    repair_end(path)
    assert path.read_bytes() == WHOLE
    path.write_bytes(WHOLE[:-1])
    append_record(path, {"step": 3})
    assert [line["step"] for line in read_records(path)] == [1, 2, 3]


def test_half_a_line_in_the_middle_is_damage(path):
    for cut in (b'{"step": 2, "spl', b'{"step": 2, "a": "b\\"}'):
        path.write_bytes(WHOLE + cut + b"\n" + WHOLE)
        with pytest.raises(DamagedFile, match="line 3"):
            read_records(path)


DAMAGE = {
    "empty line of bytes": WHOLE + b"\xff\xfe\x00\n" + WHOLE,
    "random": os.urandom(4096) + b"\n",
    "random without an end": b"\x80" + os.urandom(4096).replace(b"\n", b"_"),
    "nuls in the middle": WHOLE + b"\0" * 512 + b"\n" + WHOLE,
    "nested": b"[" * 100_000 + b"\n",
    "nested object": b'{"step":' * 100_000 + b"1" + b"}" * 100_000 + b"\n",
    "a number": b"7\n",
    "a step in words": b'{"step": "7", "split": "train"}\n',
    "no step": b'{"split": "train"}\n',
    "true for a step": b'{"step": true, "split": "train"}\n',
    "a negative step": b'{"step": -1, "split": "train"}\n',
}


@pytest.mark.parametrize("name", [*DAMAGE, "folder", "pipe", "link outwards"])
@pytest.mark.parametrize("read", [read_metrics, read_records, goodput.read_attempts, repair_end])
def test_anything_else_is_one_sentence(path, name, read, tmp_path_factory):
    if name == "folder":
        path.mkdir()
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "link outwards":
        secret = tmp_path_factory.mktemp("elsewhere") / "secret.jsonl"
        secret.write_bytes(WHOLE + b'{"secret')
        path.symlink_to(secret)
    else:
        path.write_bytes(DAMAGE[name])
        if read is repair_end and name != "random without an end":
            read(path)  # its end is whole
            assert path.read_bytes() == DAMAGE[name]
            return
    with pytest.raises(DamagedFile) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "line",
    [
        {"split": 7},
        {"loss": "low"},
        {"loss": None},
        {"loss": [1.0]},
        {"split": None},
        {"split": "dev"},
    ],
)
def test_a_line_of_metrics_has_a_split_and_numbers(path, line):
    path.write_text(json.dumps({"step": 1, "split": "train"} | line) + "\n")
    with pytest.raises(DamagedFile, match=next(iter(line))):
        read_metrics(path)


def test_no_link_is_followed_for_writing(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    path = tmp_path / "metrics.jsonl"
    for name in (path, path.with_name("metrics.jsonl.partial")):
        name.symlink_to(outside)
    with pytest.raises(DamagedFile, match="link"):
        append_record(path, {"step": 1})
    write_file(path, b"new")
    assert path.read_text() == "new" and not path.is_symlink()
    assert outside.read_text() == "mine"
