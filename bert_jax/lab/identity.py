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

from bert_jax.config import Config, flatten, recorded
from bert_jax.config.schema import FinetuneConfig, with_length
from bert_jax.lab.row_kinds.pretrained import PER_SEED
from bert_jax.lab.row_kinds.row_kind import load_task, split_names
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
_READS = "reads"  # in the settings of a row: names of other rows
_HOW_TO_FIX = "or another --workdir"

Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Identity:
    """Hold what the runs of a study depend on."""

    store: str
    store_digest: str  # "" in files of earlier versions
    seq_len: int
    rows: Mapping[str, Settings]
    tasks: Mapping[str, Any]  # Settings; in files of earlier versions a list, [config file, flags]

    def has_store_of(self, other: "Identity") -> bool:
        """Return whether both train on the same text."""
        if self.store_digest and other.store_digest:
            return self.store_digest == other.store_digest
        return self.store == other.store

    def find_equal_rows(self, other: "Identity", name: str) -> list[str]:
        """Return the names of the rows that are equal to row `name` of another study."""
        return [own for own in self.rows if self._is_equal_row(own, other, name)]

    def _is_equal_row(self, own: str, other: "Identity", name: str) -> bool:
        """Compare rows by their settings and those of the rows that they read, not by names."""
        rows = self.rows[own], other.rows[name]
        if _differences(*({**row, _READS: ""} for row in rows)):
            return False
        reads = [split_names(row.get(_READS, "")) for row in rows]
        return len(reads[0]) == len(reads[1]) and all(
            self._is_equal_row(mine, other, theirs) for mine, theirs in zip(*reads, strict=True)
        )

    def find_equal_tasks(self, task: Settings) -> list[str]:
        """Return the names of the tasks that are equal to this one."""
        return [name for name, own in self.tasks.items() if not _task_differences(own, task)]


def read(folder: pathlib.Path) -> Identity | None:
    """Read the identity of the study in a folder; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = {"store_digest": "", **small_files.read_object(path, folder)}
    return parse_record(content, Identity, path)


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
    if not before.has_store_of(now):
        raise Refused(
            f"{holds} of the store {before.store}, not {now.store}; give that store, {_HOW_TO_FIX}"
        )
    if before.seq_len != now.seq_len:
        raise Refused(
            f"{holds} with config.seq_len={before.seq_len}, not {now.seq_len}; give that, "
            f"{_HOW_TO_FIX}"
        )
    for name in now.rows.keys() & before.rows.keys():
        for difference in _differences(before.rows[name], now.rows[name]):
            raise Refused(
                f"{holds} whose row {name} has {difference}; give the row another name, "
                f"{_HOW_TO_FIX}"
            )
    for name in now.tasks.keys() & before.tasks.keys():
        for difference in _task_differences(before.tasks[name], now.tasks[name]):
            raise Refused(
                f"{holds} whose task {name} has {difference}; give the task another name, "
                f"{_HOW_TO_FIX}"
            )


def _differences(before: Settings, now: Settings, config: Any = None) -> list[str]:
    """Describe the settings that differ; a setting that one side lacks has its default there."""
    defaults = flatten(recorded(Config() if config is None else config))
    differing = differing_settings({**defaults, **before}, {**defaults, **now})
    return [
        f"{key}={was!r}, not {new!r}"
        for key, (was, new) in differing.items()
        if key not in (*PER_SEED, *_PATHS)
    ]


def _task_differences(before: Any, now: Settings) -> list[str]:
    if isinstance(before, list):
        later = [now["config"], now["flags"]]
        return [] if before == later else [f"{' '.join(before)}, not {' '.join(later)}"]
    if before["examples"] != now["examples"]:
        return [f"examples {before['examples']:.12}, not {now['examples']:.12}"]
    return _differences(before["settings"], now["settings"], FinetuneConfig())


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
    return {
        "config": task.config,
        "flags": task.flags,
        "settings": flatten(recorded(config)),
        "examples": sha256.hexdigest(),
    }
