"""Every file of a store x every kind of damage: a sentence, never a traceback or a wait."""

import functools
import json
import os
import pathlib
import resource
import shutil

import numpy as np
import pytest

from data_pipeline.io import atomic
from data_pipeline.sampling.walks import find_walk_facts
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import open_store, read_manifest
from data_pipeline.store.reader import verify
from data_pipeline.vocab import load_vocabulary
from data_pipeline.vocab.wordpiece import MAX_PIECES
from tests.damages import (
    DEEP,
    cut,
    empty,
    fifo,
    folder,
    huge,
    link_outwards,
    link_to_itself,
    nested,
    nul_bytes,
    random,
)
from tests.data_pipeline.stores import random_documents, write_store

ARRAY, LIST, MANIFEST = "train/token_ids.npy", "vocab.txt", "manifest.json"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    documents = random_documents(12, seed=1)
    return write_store(tmp_path_factory.mktemp("built") / "store", documents[:6], documents[6:])


@pytest.fixture
def store(built, tmp_path):
    (tmp_path / "secret.txt").write_text("not for you\n")
    return shutil.copytree(built, tmp_path / "store")


def ignore(done_bytes):
    """Show no progress."""


def archive(path):
    with path.open("wb") as file:  # np.load makes another kind of object of it
        np.savez(file, token_ids=np.arange(3))


def pickled(path):
    path.write_bytes(np.array([{}], object).dumps())


DAMAGES = (
    *(empty, cut, random, nul_bytes, nested, huge, link_outwards, link_to_itself, fifo, folder),
    *(archive, pickled),
)


@pytest.fixture
def little_memory():
    """Whatever is allocated by a number in a file fails here."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (1 << 29), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [MANIFEST, LIST, ARRAY, "heldout/document_offsets.npy"])
def test_a_damaged_file_is_named(store, little_memory, name, damage):
    damage(store / name)
    for read in (open_store, lambda folder: verify(folder, read_manifest(folder), ignore)):
        if read is not open_store and name.endswith(".npy") and damage is huge:
            continue  # a terabyte of zeros is read, and is not what was built
        with pytest.raises((ValueError, OSError)) as error:
            read(store)
        assert name in str(error.value)
        assert "\n" not in str(error.value)


HEADERS = {
    "shape of 2^60": {"descr": "<u2", "fortran_order": False, "shape": (1 << 60,)},
    "shape of 2^80": {"descr": "<u2", "fortran_order": False, "shape": (1 << 80,)},
    "negative shape": {"descr": "<u2", "fortran_order": False, "shape": (-7,)},
    "two dimensions": {"descr": "<u2", "fortran_order": True, "shape": (30, 20)},
    "objects": {"descr": "|O", "fortran_order": False, "shape": (600,)},
    "text": {"descr": "<U2", "fortran_order": False, "shape": (10,)},
    "no such dtype": {"descr": "<q9", "fortran_order": False, "shape": (10,)},
    "no dtype": {"fortran_order": False, "shape": (10,)},
    "a list": [1, 2],
    "nested": "(" * 9000,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_lies_is_named(store, little_memory, header):
    text = str(header).encode().ljust(118) + b"\n"
    path = store / ARRAY
    body = path.read_bytes()[128:]
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)
    with pytest.raises(ValueError, match=r"train/token_ids\.npy .*copy the store again"):
        open_store(store)


# Keys of the manifest, and what stands there; None takes the last key away. How each type is
# checked is tested with io/small_files.py.
CHANGES = [
    *(("splits", [1]), ("splits train tokens", "600"), ("splits train tokens", 1 << 70)),
    *(("splits train documents", -1), ("splits", None), ("digest", None), ("sources", [5])),
    *(("vocabulary file", "../secret.txt"), ("vocabulary file", "/etc/hostname")),
    *(("vocabulary size", 1 << 60), ("vocabulary lowercase", "yes"), ("vocabulary", None)),
    *(("vocabulary special_ids mask", None), ("vocabulary special_ids mask", 999)),
    *(("token_dtype", "spam"), ("token_dtype", []), ("token_dtype", "uint32"), ("kind", 5)),
    *(("format", "other"), ("format_version", 2), ("format_version", "2" * 5000), ("splits", {})),
    *(("sources", [{}]), ("build normalize", 5), ("build character_coverage", "all")),
    *(("splits dev", {}), ("splits train rows", 1)),
]


@pytest.mark.parametrize(("keys", "value"), CHANGES, ids=str)
def test_a_changed_manifest_is_one_sentence(store, keys, value):
    manifest = json.loads((store / MANIFEST).read_text())
    *outer, last = keys.split()
    record = functools.reduce(lambda record, key: record[key], outer, manifest)
    record[last] = value
    if value is None:
        del record[last]
    (store / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest|leads out of|is not the name|token|version"):
        open_store(store)


@pytest.mark.parametrize("name", ["../secret.txt", "/etc/hostname", "", "train/../../secret.txt"])
def test_no_digest_is_taken_of_a_file_outside(store, name):
    shown = json.loads((store / MANIFEST).read_text())
    shown["arrays"] = {name: {"dtype": "uint16", "size": 1, "sha256": "0" * 64}}
    (store / MANIFEST).write_text(json.dumps(shown))
    with pytest.raises(ValueError, match=r"leads out of|is not the name of a file") as error:
        verify(store, read_manifest(store), ignore)
    assert "SHA-256" not in str(error.value)


@pytest.mark.parametrize("damage", [huge, fifo, folder])
def test_damaged_facts_of_walks_are_counted_again(store, damage):
    opened = open_store(store)
    before = find_walk_facts(opened.train, PretrainOptions(), 16, opened)
    (path,) = (store / "walks").iterdir()
    damage(path)
    assert find_walk_facts(opened.train, PretrainOptions(), 16, opened) == before


def test_facts_of_walks_are_not_kept_outside(store, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (store / "walks").symlink_to(tmp_path / "elsewhere")
    opened = open_store(store)
    find_walk_facts(opened.train, PretrainOptions(), 16, opened)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", DEEP, b"{}", b'["../secret.txt"]', b"[5]", b'["/etc"]', b"\0\0"]
)
def test_names_to_be_replaced_stay_in_their_folder(tmp_path, content):
    moving = tmp_path / "moving.json"
    moving.write_bytes(content)
    with pytest.raises(ValueError, match=r"moving\.json"):
        atomic._read_moving(moving)


def test_a_list_of_too_many_pieces_is_refused_before_it_is_parsed(tmp_path, little_memory):
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"a\n" * (MAX_PIECES + 1))
    with pytest.raises(ValueError, match=r"vocab\.txt, which has 4,194,305 lines; at most"):
        load_vocabulary(path)
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match=r"vocab\.txt is larger than"):
        load_vocabulary(path)
