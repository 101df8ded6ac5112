"""What a run was started with, kept in its workdir; the refusal to go on with something else."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import (
    checkpoint_vocabulary,
    code_version,
    dropout,
    objectives,
    processes,
    task_layer,
)
from bert_jax.changes import Change, changed
from bert_jax.config import Config, ModelConfig, from_config_dict, recorded, settings_from
from bert_jax.config_check import check_sizes
from bert_jax.feed import STORE_DIGEST
from bert_jax.log import BAD_STEPS, CURVES, EVENTS, LEFT_OUT, METRICS, PREDICTIONS, SUMMARY
from bert_jax.record_files import write_whole
from bert_jax.run_config import RunConfig
from bert_jax.run_feed import RunFeed
from bert_jax.task_layer import TaskLayer
from bert_jax.tasks.task import THRESHOLD, THRESHOLD_FILE
from bert_jax.wall_time import FILE as ATTEMPTS
from bert_jax.wandb_writer import FILE as WANDB
from data_pipeline import small_files
from data_pipeline.small_files import DamagedFile
from data_pipeline.vocab import Vocabulary, load_vocabulary

FILE = "config.json"
CHECKPOINTS = "checkpoints"  # folder in the workdir
# What a run leaves in its workdir and reads again, the lines that show its progress last.
RECORDS = (
    CHECKPOINTS,
    EVENTS,
    PREDICTIONS,
    CURVES,
    SUMMARY,
    LEFT_OUT,
    BAD_STEPS,
    ATTEMPTS,
    WANDB,
    FILE,
    METRICS,
)

# Settings that receipts of earlier versions name among those that a run must keep.
_NO_LONGER_FIXED = ("data.test_file",)
_UNTRAINED = "untrained"
_SHOWN_SETTINGS = 8  # of those that differ
_CONVERTED = "converted_from"  # no run, but a checkpoint of other code in its place


def _fixed(feed: RunFeed) -> dict[str, Any]:
    """What a run that is resumed must keep, by the names that a config has; the feed's included.

    Another value would be another run, or one that does not go on with the examples it has not
    seen. Rates, meshes, the steps of the last phase and how the step computes (config.compute) may
    change: the last rounds otherwise, and learns the same.
    """
    config = feed.config
    model = {f"model.{k}": v for k, v in dataclasses.asdict(config.model).items()}
    steps = {f"phases[{i}].steps": phase.steps for i, phase in enumerate(config.phases[:-1])}
    return {
        "seed": config.seed,
        "optim.name": config.optim.name,
        "dropout_hash_version (of this bert_jax)": dropout.HASH_VERSION,
        **model,
        **steps,
        **feed.fixed(),
    }


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What is known of the run in a workdir."""

    config: Config  # resolved
    vocabulary: Vocabulary  # the workdir's own copy
    store_digest: str  # of the store it trains on, as short as the receipt has it
    converted_from: str  # the checkpoint that bert_jax.convert took it from; "": it was trained


def _shown(workdir: pathlib.Path) -> dict[str, Any]:
    """Read the record in a workdir that has one.

    Raises:
      DamagedFile: it is not what a run wrote.
    """
    return _checked(small_files.read_object(workdir / FILE, workdir), workdir / FILE)


def _checked(shown: dict[str, Any], name: object) -> dict[str, Any]:
    """Return a record after checking the types of what is read of it without further checks."""
    config = small_files.field(shown, "config", dict, name)
    for key in {"model", "data"} & config.keys():
        small_files.field(config, key, dict, name)
    phases = small_files.field(config, "phases", list, name)
    if any(not isinstance(phase, dict) for phase in phases):
        raise DamagedFile(f"{name}: config.phases lists what is no phase")
    small_files.field(shown, "fixed", dict, name)
    vocabulary = small_files.field(shown, "vocabulary", dict, name)
    small_files.field(vocabulary, "file", str, name)
    small_files.field(vocabulary, "lowercase", bool, name)
    small_files.field(shown, "learns", str, name, "")
    small_files.field(shown, _CONVERTED, str, name, "")
    task = small_files.field(shown, "task", dict, name, {})
    small_files.field(task, "head_width", int, name, 0)
    for change in small_files.field(shown, "changes", list, name, []):
        if not isinstance(change, dict):
            raise DamagedFile(f"{name}: changes lists {small_files.kind_in_words(change)}")
        small_files.field(change, "since_step", int, name)
        small_files.field(change, "setting", str, name)
        small_files.build(Change, change, name)
    return shown


def find(
    workdir: pathlib.Path, saved: Callable[[], Mapping[str, Any]]
) -> tuple[dict[str, Any] | None, str]:
    """Return the record of the run in a workdir, None without one, and what is wrong with it.

    A damaged or missing one is what `saved` returns, the receipt of the newest checkpoint, says.

    Raises:
      DamagedFile: it is damaged, and no checkpoint tells.
    """
    path = workdir / FILE
    try:
        return _shown(workdir), ""
    except (FileNotFoundError, DamagedFile) as error:
        problem = f"{path} is missing" if isinstance(error, FileNotFoundError) else str(error)
        is_missing = isinstance(error, FileNotFoundError)
    run = dict(saved())
    try:
        return _checked(run, "the receipt of the newest checkpoint"), problem
    except DamagedFile:  # there is none, or it is older than the record in it
        if is_missing:
            return None, ""
    raise DamagedFile(
        f"{problem}, and no checkpoint says what it held; put a copy of it back, or give another "
        "--workdir"
    )


def read(workdir: pathlib.Path) -> Receipt:
    """The receipt of the pre-training run in workdir.

    Raises:
      ValueError: there is no run, or one of a task or of another version.
    """
    shown = _of_a_run(workdir)
    if _classes(shown):
        raise ValueError(
            f"{workdir} holds a run of {shown['learns']}; give the workdir of a run of pre-training"
        )
    with _written_by_this_version(workdir):
        phases = tuple(ConfigDict(phase) for phase in shown["config"]["phases"])
        config = from_config_dict(ConfigDict(shown["config"] | {"phases": phases}))
        digest = shown["fixed"][STORE_DIGEST]
    check_sizes(config.model, workdir / FILE)
    return Receipt(config, _vocabulary(workdir, shown), digest, shown.get(_CONVERTED, ""))


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """What is known of the model of a run, whatever it learned."""

    config: ModelConfig
    vocabulary: Vocabulary  # the workdir's own copy
    untrained: tuple[str, ...]  # parts that no objective reached: they are as they were drawn
    task: TaskLayer | None


def model_of(shown: Mapping[str, Any], workdir: pathlib.Path) -> ModelConfig:
    """Return the sizes of the model in the record of a run.

    Raises:
      ValueError: it is one of another version.
    """
    with _written_by_this_version(workdir):
        config = settings_from(ModelConfig, ConfigDict(shown["config"]["model"]))
    check_sizes(config, workdir / FILE)
    return config


def read_model(workdir: pathlib.Path) -> TrainedModel:
    """What the run in workdir trains, be it pre-training or a task.

    Raises:
      ValueError: there is no run, or one of another version.
    """
    shown = _of_a_run(workdir)
    config, task = model_of(shown, workdir), None
    with _written_by_this_version(workdir):
        if _classes(shown):
            task = task_layer.from_json(
                shown["task"] | {"options": shown["config"]["data"]}, workdir / FILE
            )
    if task is not None:
        task = dataclasses.replace(task, null_threshold=_null_threshold(workdir))
    return TrainedModel(config, _vocabulary(workdir, shown), _untrained(workdir, shown), task)


def _untrained(workdir: pathlib.Path, shown: dict[str, Any]) -> tuple[str, ...]:
    """Return the parts that a run's objective does not reach; needs no objective to be known.

    Raises:
      ValueError: the run is older than this record, and its objective is not of bert_jax.
    """
    if _CONVERTED in shown or _classes(shown):
        return ()
    if _UNTRAINED in shown:
        return tuple(small_files.field(shown, _UNTRAINED, list, workdir / FILE))
    name = small_files.field(shown["config"], "objective", str, workdir / FILE)
    if name not in objectives.OBJECTIVES:
        raise ValueError(
            f"{workdir / FILE} has config.objective = {name!r}, which is not of bert_jax, and does "
            "not say what it trains; start its training command once more, which writes that down"
        )
    return objectives.OBJECTIVES[name].untrained


def _null_threshold(workdir: pathlib.Path) -> float | None:
    """Read what a run of SQuAD 2.0 chose on its development set when it ended."""
    path = workdir / PREDICTIONS / THRESHOLD_FILE
    if not path.is_file():
        return None
    return float(small_files.field(small_files.read_object(path, workdir), THRESHOLD, float, path))


def converted(origin: str, config: Config, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of a checkpoint of other code that lies where a run would.

    `vocabulary` is checkpoint_vocabulary.record of the list that lies beside it.
    """
    return {
        _CONVERTED: origin,
        "fixed": {STORE_DIGEST: ""},
        "config": recorded(config),
        "code": code_version.of_a_receipt(),
        "changes": [],
        "vocabulary": dict(vocabulary),
    }


def with_kept_predictions(
    workdir: pathlib.Path, config: Config, saved: Callable[[], Mapping[str, Any]] = dict
) -> Config:
    """Take the max_predictions_per_seq of the run in workdir where a phase leaves it open.

    It once was 20 where a config did not say it. A run of another length or masking rate is none
    that could be resumed. `saved` is that of find.
    """
    try:
        shown, _ = find(workdir, saved)
    except DamagedFile:  # refused, or set aside, where the workdir is checked
        return config
    if shown is None:
        return config
    fixed = shown["fixed"]
    if fixed.get("data.masked_lm_prob") != config.data.masked_lm_prob:
        return config
    phases = []
    for index, phase in enumerate(config.phases):
        kept = fixed.get(f"phases[{index}].max_predictions_per_seq", 0)
        is_same = fixed.get(f"phases[{index}].seq_len") == phase.seq_len and type(kept) is int
        if phase.max_predictions_per_seq == 0 and is_same:
            phase = dataclasses.replace(phase, max_predictions_per_seq=kept)
        phases.append(phase)
    return dataclasses.replace(config, phases=tuple(phases))


def _of_a_run(workdir: pathlib.Path) -> dict[str, Any]:
    if not (workdir / FILE).exists():
        raise ValueError(
            f"{workdir} holds no run of bert_jax ({FILE} is missing); give the --workdir of "
            "python -m bert_jax.train"
        )
    try:
        return _shown(workdir)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; put a copy of it back, or start the command that trained there again, which "
            "restores it from the newest checkpoint"
        ) from None


def _classes(shown: dict[str, Any]) -> int:
    """The width of a task's layer, 0 of a run of pre-training."""
    return int(shown.get("task", {}).get("head_width", 0))


def _vocabulary(workdir: pathlib.Path, shown: dict[str, Any]) -> Vocabulary:
    """Read the workdir's copy of the vocabulary.

    Raises:
      ValueError: it is missing or damaged, outside of the workdir, or not that of the run.
    """
    name = workdir / FILE
    pinned = small_files.field(shown, "vocabulary", dict, name)
    lowercase = small_files.field(pinned, "lowercase", bool, name)
    path = small_files.path_inside(workdir, small_files.field(pinned, "file", str, name))
    if not path.is_file():
        raise ValueError(
            f"{path} is missing; put back the vocabulary that the run was trained with, from its "
            "store or another copy of the folder"
        )
    vocabulary = load_vocabulary(path, lowercase, checks_case=False)
    checkpoint_vocabulary.check_pinned(vocabulary, shown, f"the run in {workdir}")
    return vocabulary


@contextlib.contextmanager
def _written_by_this_version(workdir: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except DamagedFile:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{workdir / FILE} was written by another version of bert_jax; read it with that "
            "version, or start the training command again with this one"
        ) from error


def check_place(workdir: pathlib.Path, feed: RunFeed) -> None:
    """Raise if the workdir is the folder of the data.

    Raises:
      ValueError: always then.
    """
    if workdir.resolve() == feed.origin.resolve():
        raise ValueError(
            f"--workdir={workdir} is the folder of the data; give the run a folder of its own, "
            f"such as {workdir}-run"
        )


def check(workdir: pathlib.Path, feed: RunFeed, shown: Mapping[str, Any] | None = None) -> None:
    """Raise if the workdir holds something that a run of this feed cannot go on with.

    `shown` is the record of the run there, that of find; without it the one in the folder is read.

    Raises:
      ValueError: names every setting that differs, both values and the ways out.
    """
    if shown is None and not (workdir / FILE).exists():
        _refuse_remains(workdir, feed.vocab_path)
        return
    # A setting that the receipt does not name is younger than the run: its default is what the
    # run did, or a version would differ too.
    shown = shown or _shown(workdir)
    if _CONVERTED in shown:
        raise ValueError(
            f"--workdir={workdir} holds a checkpoint converted from {shown[_CONVERTED]}, not a "
            f"run; give another --workdir, and --config.init=orbax:{workdir} to begin with it"
        )
    if ("task" in shown) != ("task" in feed.in_a_receipt()):
        begin = f", and --config.init=orbax:{workdir} to begin with it" * ("task" not in shown)
        raise ValueError(
            f"--workdir={workdir} holds a run of {shown.get('learns', 'pre-training')}, and this "
            f"is one of {feed.learns}; give another --workdir{begin}"
        )
    before = feed.fixed_by_default()
    before |= {k: v for k, v in shown["fixed"].items() if k not in _NO_LONGER_FIXED}
    now = json.loads(json.dumps(_fixed(feed)))
    differing = [
        f"config.{name} = {before.get(name)!r}, this config says {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if differing:
        more = len(differing) - _SHOWN_SETTINGS
        differing[_SHOWN_SETTINGS:] = [f"and {more:,} more settings differ"] * (more > 0)
        raise ValueError(
            f"{workdir} holds a run with {'; '.join(differing)}; give another --workdir, or the "
            "settings of that run to go on with it"
        )
    _check_copy(workdir, feed, shown)


def _refuse_remains(workdir: pathlib.Path, vocab_path: pathlib.Path) -> None:
    """Raise if a run would write over files there that are not of a run."""
    remains = [name for name in RECORDS if (workdir / name).exists()]
    vocabulary = workdir / vocab_path.name
    if vocabulary.exists() and _differ(vocabulary, vocab_path):
        remains.append(vocabulary.name)
    if remains:
        raise ValueError(
            f"--workdir={workdir} holds {', '.join(remains)} but no run of bert_jax ({FILE} is "
            "missing); put that back, or give a new or an empty folder"
        )


def _check_copy(workdir: pathlib.Path, feed: RunFeed, shown: Mapping[str, Any]) -> None:
    """Raise if the workdir's vocabulary was changed; where it is missing it is written again.

    Raises:
      ValueError: names the file.
    """
    path = workdir / feed.vocab_path.name
    if not path.exists() or not _differ(path, feed.vocab_path):
        return
    if shown["vocabulary"]["file"] == path.name:
        raise ValueError(
            f"{path} is not {feed.vocab_path}, which the run is trained with; remove it, and the "
            "run writes it again, or give the data of the run that lies here"
        )


def _differ(vocabulary: pathlib.Path, other: pathlib.Path) -> bool:
    try:
        return small_files.read_bytes(vocabulary) != other.read_bytes()
    except DamagedFile:
        return True


def changes(shown: Mapping[str, Any] | None, config: RunConfig, step: int) -> list[Change]:
    """What was set otherwise since the run began, this start after `step` saved steps included."""
    if shown is None:
        return []
    known = [Change(**one) for one in shown.get("changes", [])]
    return changed(known, shown["config"], config, step)


def write(
    workdir: pathlib.Path,
    feed: RunFeed,
    changes: Sequence[Change] = (),
    untrained: Sequence[str] | None = None,
) -> None:
    """Write the resolved config beside what must not change of it, and the vocabulary.

    Each is written whole or not at all.
    """
    write_whole(workdir / feed.vocab_path.name, feed.vocab_path.read_bytes())
    made = of_run(feed, changes, untrained)
    write_whole(workdir / FILE, (json.dumps(made, indent=2) + "\n").encode())


def of_run(
    feed: RunFeed, changes: Sequence[Change] = (), untrained: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return what made a run: its settings, the code, the packages, the data and the machines.

    It is config.json, and stands in the receipt of each checkpoint too, from which a lost
    config.json comes back. `untrained` names the parts of the model that its objective does not
    reach, where that is known.
    """
    return {
        "fixed": _fixed(feed),
        "learns": feed.learns,
        **({} if untrained is None else {_UNTRAINED: list(untrained)}),
        "vocabulary": feed.vocabulary_record(),
        "config": recorded(feed.config),
        "code": code_version.of_a_receipt(),
        **feed.in_a_receipt(),
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
        "changes": [dataclasses.asdict(one) for one in changes],
    }


def check_processes_agree(feed: RunFeed) -> None:
    """Raise if another process of this run has another config or other data.

    Raises:
      ValueError: on every process alike.
      TimeoutError: a process does not answer.
    """
    shown = json.dumps([_fixed(feed), dataclasses.asdict(feed.config)], sort_keys=True)
    digest = hashlib.sha256(shown.encode()).hexdigest()
    # Those whose disks are slow may still copy the store.
    digests = processes.agree("the config and the store", digest, feed.config.hosts.stuck_secs)
    odd = [number for number, other in enumerate(digests) if other != digests[0]]
    if odd:
        raise ValueError(
            f"{processes.listed(odd)} found another config or store than process 0; start all of "
            "them with the same flags, on stores that are copies of each other"
        )
