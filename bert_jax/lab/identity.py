"""Identify a study's store, rows and tasks by their content, to resume it and to share its runs.

WORKDIR/study_settings.json has the path and digest of the store, the resolved settings of each row,
and the settings of each task with the SHA-256 of its encoded examples. Stores and task files may
move: paths are not compared.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config import flatten, recorded
from bert_jax.config.schema import with_length
from bert_jax.lab.row_kinds.pretrained import PER_SEED
from bert_jax.lab.row_kinds.row_kind import load_task, split_names
from bert_jax.lab.runs import refuse_others
from bert_jax.lab.study_config import StudyTask
from bert_jax.runtime.resume import differing_settings
from bert_jax.tasks.registry import open_task
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import parse_record
from data_pipeline.store import Store
from data_pipeline.vocab import load_recorded

FILE = "study_settings.json"
_PATHS = ("data.store", "data.dir", "init")  # settings that are identified by content instead
_TASK_POSITIONS = 512  # row length at which the files of a task are read
_READS = "reads"  # a setting of a row: names of other rows

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Identity:
    """Hold what the runs of a study depend on."""

    store: str  # its path, for messages
    store_digest: str
    seq_len: int
    rows: Mapping[str, Settings]
    tasks: Mapping[str, Settings]

    def find_equal_rows(self, other: "Identity", name: str) -> list[str]:
        """Return the names of the rows that are equal to row `name` of another study."""
        return [own for own in self.rows if self._is_equal_row(own, other, name)]

    def _is_equal_row(self, own: str, other: "Identity", name: str) -> bool:
        """Compare rows by settings, also of the rows that they read, not by names."""
        mine, theirs = self.rows[own], other.rows[name]
        if not _are_equal({**mine, _READS: ""}, {**theirs, _READS: ""}):
            return False
        reads = [split_names(row.get(_READS, "")) for row in (mine, theirs)]
        return len(reads[0]) == len(reads[1]) and all(
            self._is_equal_row(first, other, second) for first, second in zip(*reads, strict=True)
        )

    def find_equal_tasks(self, task: Settings) -> list[str]:
        """Return the names of the tasks that are equal to this one."""
        return [name for name, own in self.tasks.items() if _are_equal(own, task)]


def _are_equal(ours: Settings, theirs: Settings) -> bool:
    return not differing_settings(flatten(ours), flatten(theirs))


def describe_settings(settings: Settings) -> Settings:
    """Return the settings that identify runs: without seeds, and places known by content."""
    return {key: value for key, value in settings.items() if key not in (*PER_SEED, *_PATHS)}


def read(folder: pathlib.Path) -> Identity | None:
    """Read the identity of the study in a folder; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    return parse_record(small_files.read_object(path, folder), Identity, path)


def write(folder: pathlib.Path, identity: Identity, before: Identity | None) -> None:
    """Write an identity, and keep the rows and tasks of an earlier one that it lacks."""
    content = dataclasses.asdict(identity)
    if before is not None:
        for part in ("rows", "tasks"):
            content[part] = {**getattr(before, part), **content[part]}
    write_json(folder / FILE, content)


def check_same(folder: pathlib.Path, before: Identity, now: Identity) -> None:
    """Refuse the folder of a study whose runs do not compare with these.

    Raises:
      Refused: the store, seq_len, a row or a task differs; names it and both values.
    """
    holds = f"--workdir={folder} holds a study"
    if before.store_digest != now.store_digest:
        raise Refused(
            f"{holds} of the store {before.store}, not {now.store}; give that store, or another "
            "--workdir"
        )
    rows, tasks = before.rows.keys() & now.rows.keys(), before.tasks.keys() & now.tasks.keys()
    shared = [
        {
            "config.seq_len": identity.seq_len,
            "row": {name: identity.rows[name] for name in rows},
            "task": {name: identity.tasks[name] for name in tasks},
        }
        for identity in (before, now)
    ]
    refuse_others(holds, *shared)


def describe_task(task: StudyTask, store: Store) -> Settings:
    """Read the files of a task with the store's vocabulary, and return its identity.

    Raises:
      Refused: a setting is wrong, or a file is missing or cannot be read.
    """
    config = load_task(task)
    vocabulary = load_recorded(store.vocab_path, store.manifest["vocabulary"])
    opened = open_task(with_length(config.data, _TASK_POSITIONS), vocabulary)
    sha256 = hashlib.sha256(repr(opened.labels).encode())
    for split, rows in opened.splits.items():
        sha256.update(split.encode())
        labels = {**rows.labels, **rows.token_labels}
        for array in (rows.token_ids, rows.offsets, rows.second_starts, *labels.values()):
            sha256.update(np.ascontiguousarray(array).tobytes())
    settings = describe_settings(flatten(recorded(config)))
    return {"settings": settings, "examples": sha256.hexdigest()}
