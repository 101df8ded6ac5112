"""Decide whether a run may resume the one in its workdir, and list what changes when it does.

`can_resume`, called by check_start in trainer/setup.py, compares the settings that must not change
(list_fixed_settings in run_record.py), the data and the vocabulary. `list_changes` lists the other
settings that differ. `list_differences` compares the records of two starts, of two processes, or
of a checkpoint and its run.
"""

import dataclasses
import json
import pathlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config import RunConfig, flatten
from bert_jax.parallel import processes
from bert_jax.runtime.run_record import (
    CHECKPOINTS,
    CONVERTED,
    FILE,
    RECORDS,
    Change,
    Provenance,
    list_fixed_settings,
    read_pinned,
)
from bert_jax.runtime.workdir import Workdir
from data_pipeline.io import Refused, small_files
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.vocab import read_file

_SHOWN_SETTINGS = 8  # most differing settings in an error message
_OF_VOCABULARY = "vocabulary."  # prefix of keys that are not settings


def check_place(workdir: pathlib.Path, origins: Sequence[pathlib.Path]) -> None:
    """Raise Refused if the workdir is the folder of the data."""
    if workdir.resolve() in [origin.resolve() for origin in origins]:
        raise Refused(
            f"--workdir={workdir} is the folder of the data; give the run a folder of its own, "
            f"such as {workdir}-run"
        )


def can_resume(
    storage: Workdir,
    config: RunConfig,
    provenance: Provenance,
    record: Mapping[str, Any] | None,
) -> bool:
    """Return True if this config and data can resume the workdir's run, False if it has no run.

    `record` is the run record from reader.find_run, None without one. The workdir's copy of the
    vocabulary may be missing. Raises Refused for another run, or for records without a run.
    """
    home, address = storage.home, storage.address
    copy = home / provenance.vocabulary["file"]
    has_other_copy = copy.exists() and _differ(copy, read_file(provenance.vocab_path))
    if record is None:
        places = {name: home / name for name in RECORDS} | {CHECKPOINTS: storage.checkpoints}
        remains = [name for name, place in places.items() if place.exists()]
        remains += [copy.name] * has_other_copy
        if remains:
            raise Refused(
                f"--workdir={address} holds {', '.join(remains)} but no run of bert_jax ({FILE} is "
                "missing); put the file back, or give a new or an empty folder"
            )
        return False
    if CONVERTED in record:
        raise Refused(
            f"--workdir={address} holds a checkpoint converted from {record[CONVERTED]}, not a "
            f"run; give another --workdir, and --config.init=orbax:{address} to begin with it"
        )
    if ("task" in record) != ("task" in provenance.details):
        begin = f", and --config.init=orbax:{address} to begin with it" * ("task" not in record)
        raise Refused(
            f"--workdir={address} holds a run of {record.get('learns', 'pre-training')}, and this "
            f"is one of {provenance.learns}; give another --workdir{begin}"
        )
    count = len(record["config"]["phases"])
    if count != len(config.phases) and "task" not in record:  # a fine-tuning's follow from settings
        raise Refused(
            f"{address} holds a run with len(config.phases) = {count}, this config says "
            f"{len(config.phases)}; only its last phase may get more steps: give another "
            f"--workdir, and --branch={address}@STEP to begin with a step of it"
        )
    given = {"fixed": list_fixed_settings(config, provenance), "vocabulary": provenance.vocabulary}
    if differing := list_differences(record, given):
        raise Refused(
            f"{address} holds a run with "
            f"{describe_differences(differing, '', 'this config says')}; give another --workdir, "
            "or the settings of that run to resume it"
        )
    if has_other_copy:
        raise Refused(
            f"{copy} differs from {provenance.vocab_path}, the vocabulary of the data; remove the "
            "copy, which the run writes again, or give the data of the run in this workdir"
        )
    return True


def _differ(vocabulary: pathlib.Path, data: bytes) -> bool:
    try:
        return small_files.read_bytes(vocabulary) != data
    except DamagedFile:
        return True


def check_processes_agree(
    config: RunConfig, provenance: Provenance, digests: Mapping[str, str]
) -> None:
    """Raise Refused on every process if the processes differ in config, data or weights.

    `digests` identify weights and examples that are not among the fixed settings, by name.
    """
    given = {
        "fixed": {
            **flatten(dataclasses.asdict(config)),
            **list_fixed_settings(config, provenance),
            **digests,
        },
        "vocabulary": dict(provenance.vocabulary),
    }
    # A process with a slow disk may still be copying the store.
    text = json.dumps([socket.gethostname(), given])
    answers = processes.agree("the config and the store", text, config.hosts.stuck_secs)
    hosts, records = zip(*map(json.loads, answers), strict=True)
    odd = {
        i: differing
        for i, record in enumerate(records)
        if (differing := list_differences(records[0], record))
    }
    if odd:
        first, differing = next(iter(odd.items()))
        names = ", ".join(f"process {number} ({hosts[number]})" for number in odd)
        raise Refused(
            f"{names} found another config or data than process 0 ({hosts[0]}): "
            f"{describe_differences(differing, 'process 0 has', f'process {first} has')}; start "
            "all with the same flags, on stores and checkpoints that are copies of each other"
        )


def list_changes(record: Mapping[str, Any] | None, config: RunConfig, step: int) -> list[Change]:
    """List the settings changed since the run began, including by this start at `step`.

    Several starts after the same step count as one.
    """
    if record is None:
        return []
    known = [Change(**change) for change in record.get("changes", [])]
    listed = {(change.since_step, change.setting): change for change in known}
    now = flatten(json.loads(json.dumps(dataclasses.asdict(config))))
    for setting, value in flatten(record["config"]).items():
        if setting in now and now[setting] != value:
            first = listed.pop((step, setting), Change(step, setting, value, None))
            if first.before != now[setting]:
                listed[step, setting] = dataclasses.replace(first, now=now[setting])
    return list(listed.values())


def compare_settings(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ: key -> (value in `before`, value in `now`).

    Both arguments are flat; a missing setting counts as None.
    """
    earlier, current = (json.loads(json.dumps(dict(each))) for each in (before, now))
    return {
        key: (earlier.get(key), current.get(key))
        for key in sorted(earlier.keys() | current.keys())
        if earlier.get(key) != current.get(key)
    }


def list_differences(
    record: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the fixed settings and vocabulary fields that differ: key -> both values.

    {} means that both belong to the same run. Vocabulary fields that only one of them has are not
    compared.
    """
    words, others = read_pinned(record), read_pinned(given)
    shared = (words.keys() & others.keys()) - {"file"}
    return compare_settings(record.get("fixed", {}), given.get("fixed", {})) | compare_settings(
        *(
            {f"{_OF_VOCABULARY}{name}": fields[name] for name in shared}
            for fields in (words, others)
        )
    )


def describe_differences(differences: Mapping[str, tuple[Any, Any]], was: str, now: str) -> str:
    """Describe differing settings with both values, at most _SHOWN_SETTINGS of them."""
    words = []
    for key, (old, new) in differences.items():
        name = key if key.startswith(_OF_VOCABULARY) else f"config.{key}"
        words.append(f"{name} = {old!r:.80}" + f" {was}".rstrip() + f", {now} {new!r:.80}")
    more = len(words) - _SHOWN_SETTINGS
    words[_SHOWN_SETTINGS:] = [f"and {more:,} more settings differ"] * (more > 0)
    return "; ".join(words)
