"""Identify a run: the settings, the data and the vocabulary that it keeps, and what may change.

`fixed_settings` must stay the same within a run; `changes` lists the others that a later start set
differently. `list_differences` compares two records of a run: of two starts, of two processes, of a
checkpoint and the run that reads it.
"""

import dataclasses
import json
import pathlib
import socket
import types
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config import MOVED, RunConfig, flatten
from bert_jax.model import dropout
from bert_jax.parallel import processes
from data_pipeline.io.refused import Refused
from data_pipeline.vocab import Vocabulary, template
from data_pipeline.vocab.sentencepiece_rules import NONE, RECORDED

STORE_DIGEST = "data.store (digest of its contents)"  # key of a fixed setting
# Settings that earlier versions recorded for grids and probes, at their defaults.
_UNREAD_IN_FINE_TUNING = ("phases", "eval.every_steps", "eval.examples")
# Settings that earlier versions recorded among those that must not change.
_NO_LONGER_FIXED = ("data.test_file",)
_SHOWN_SETTINGS = 8  # most differing settings in an error message
_OF_VOCABULARY = "vocabulary."  # prefix of keys that are no settings
# Settings of config.optim that a resumed run must keep: the state, or what its weights mean.
FIXED_OF_OPTIM = ("name", "transfer", "transfer_base_width", "transfer_base_head_width")
# Fields of a vocabulary in run records, checkpoints and store manifests.
PINNED = ("file", "size", "lowercase", "sha256", RECORDED)
_SHA256_OF_OLDER_RECORDS = "vocabulary_sha256"


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Identify the training data, for the record of a run."""

    learns: str  # the kind of training, as printed and recorded: "pre-training"
    origins: Sequence[pathlib.Path]  # folders of the data; a run must not write there
    vocab_path: pathlib.Path  # the vocabulary's file
    vocabulary: Mapping[str, Any]  # make_vocabulary_record of the workdir's copy
    fixed: Mapping[str, Any]  # settings of the data and digests that a resumed run must keep
    fixed_by_default: Mapping[str, Any]  # values assumed for records older than a setting
    details: Mapping[str, Any]  # entry "store" or "task" of the record: digests, the task's labels


def fixed_settings(config: RunConfig, provenance: Provenance) -> dict[str, Any]:
    """Return the settings that a resumed run must keep, by config key, including those of the data.

    With other values it would be a different run, or would not continue with unseen examples. What
    is not here may change; the rest of config.compute affects only rounding.
    """
    model = {f"model.{k}": v for k, v in dataclasses.asdict(config.model).items()}
    steps = {f"phases[{i}].steps": phase.steps for i, phase in enumerate(config.phases[:-1])}
    return {
        "seed": config.seed,
        **{f"optim.{name}": getattr(config.optim, name) for name in FIXED_OF_OPTIM},
        "compute.compute_dtype": config.compute.compute_dtype,
        "dropout_hash_version (of this bert_jax)": dropout.HASH_VERSION,
        **model,
        **steps,
        **provenance.fixed,
    }


def check_processes_agree(
    config: RunConfig, provenance: Provenance, weights: Mapping[str, str]
) -> None:
    """Raise Refused on every process if the processes differ in config, data or weights.

    `weights` are digests of the arrays that a new run begins with, by the setting that names them.
    """
    given = {
        "fixed": {
            **flatten(dataclasses.asdict(config)),
            **fixed_settings(config, provenance),
            **weights,
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


@dataclasses.dataclass(frozen=True)
class Change:
    """Describe a setting that a later start of a run changed."""

    since_step: int  # saved steps at that start
    setting: str  # the setting's key, without "config."
    before: Any
    now: Any

    def in_words(self) -> str:
        return f"{self.setting} {self.before} -> {self.now} since step {self.since_step:,}"


def changes(record: Mapping[str, Any] | None, config: RunConfig, step: int) -> list[Change]:
    """List the settings changed since the run began, including by this start at `step`.

    Settings missing from the record were added to bert_jax later. Several starts after the same
    step count as one.
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


def differing_settings(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, tuple[Any, Any]]:
    """Return the settings that must agree within a run but differ: key to both values.

    Both arguments are flat. `before` may come from an earlier version of bert_jax; settings that it
    lacks count as their defaults.
    """
    earlier = {key: value for key, value in defaults.items() if key in now}
    for key, value in before.items():
        if key in now or key not in _UNREAD_IN_FINE_TUNING:
            earlier[MOVED.get(key, key)] = value
    earlier, current = (json.loads(json.dumps(dict(each))) for each in (earlier, now))
    return {
        key: (earlier.get(key), current.get(key))
        for key in sorted(earlier.keys() | current.keys())
        if earlier.get(key) != current.get(key)
    }


def list_differences(
    record: Mapping[str, Any],
    given: Mapping[str, Any],
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> dict[str, tuple[Any, Any]]:
    """Return what keeps two records from being of one run: key to the values of both, {} if same.

    `defaults` are the values of fixed settings that an older record lacks. Fields of a vocabulary
    that one record lacks are not compared.
    """
    now = given.get("fixed", {})
    before = {
        name: value
        for name, value in record.get("fixed", {}).items()
        if name in now or name not in _NO_LONGER_FIXED
    }
    words, others = _pinned_fields(record), _pinned_fields(given)
    shared = (words.keys() & others.keys()) - {"file"}
    return differing_settings(before, now, defaults) | differing_settings(
        *(
            {f"{_OF_VOCABULARY}{name}": fields[name] for name in shared}
            for fields in (words, others)
        )
    )


def describe_differences(differences: Mapping[str, tuple[Any, Any]], was: str, now: str) -> str:
    """Name differing settings with both values, a few of many."""
    words = []
    for key, (old, new) in differences.items():
        name = key if key.startswith(_OF_VOCABULARY) else f"config.{key}"
        words.append(f"{name} = {old!r:.80}" + f" {was}".rstrip() + f", {now} {new!r:.80}")
    more = len(words) - _SHOWN_SETTINGS
    words[_SHOWN_SETTINGS:] = [f"and {more:,} more settings differ"] * (more > 0)
    return "; ".join(words)


def make_vocabulary_record(vocabulary: Vocabulary, file: str) -> dict[str, Any]:
    """Build the entry for a vocabulary stored in `file`, for run records and checkpoints."""
    return {
        "file": file,
        "size": vocabulary.size,
        **vocabulary.recorded_rules,
        "sha256": vocabulary.digest,
        template.RECORDED: vocabulary.template.to_json(),
    }


def check_vocabulary(vocabulary: Vocabulary, run: Mapping[str, Any], source: str) -> None:
    """Raise Refused if a vocabulary differs from the one in a run record or checkpoint.

    `source` names that record in the error. Old records without digests pass.
    """
    pinned = _pinned_fields(run)
    size, digest = pinned.get("size", vocabulary.size), pinned.get("sha256", vocabulary.digest)
    if (vocabulary.size, vocabulary.digest) != (size, digest):
        how = f"it has {vocabulary.size:,} pieces, not {size!r:.40}"
        if vocabulary.size == size:
            how = (
                f"its pieces or their order differ, SHA-256 {vocabulary.digest[:12]}, not "
                f"{str(digest)[:12]}"
            )
        raise Refused(
            f"{vocabulary.path} is not the vocabulary of {source}: {how}; put back the one that it "
            "was trained with, from the store or another copy of the folder"
        )
    lowercase = pinned.get("lowercase", vocabulary.lowercase)
    if lowercase != vocabulary.lowercase:
        raise Refused(
            f"{vocabulary.path} is read with lowercase = {json.dumps(vocabulary.lowercase)}, but "
            f"{source} was trained with {json.dumps(lowercase)}; put back the run record beside it"
        )
    if pinned[RECORDED] != vocabulary.sentencepiece_rules:
        raise Refused(
            f"{vocabulary.path} is read with {RECORDED} = {vocabulary.sentencepiece_rules}, but "
            f"{source} was trained with {pinned[RECORDED]!r:.40}; put back the run record beside it"
        )


def _pinned_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vocabulary fields of a record; early records have only a digest."""
    fields: dict[str, Any] = {RECORDED: NONE}
    for part in ("store", "task", "vocabulary"):
        content = run.get(part)
        if isinstance(content, dict):
            older = content.get(_SHA256_OF_OLDER_RECORDS)
            fields |= {} if older is None else {"sha256": older}
            fields |= {name: content[name] for name in PINNED if name in content}
    return fields
