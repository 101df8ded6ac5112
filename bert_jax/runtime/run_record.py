"""Write the config and data of a run to WORKDIR/run.json, and read this record.

The record has settings, data (Provenance), vocabulary, code and devices. Its config belongs to the
newest start; `changes` lists each setting that a later start changed and the step of that start, so
that earlier configs can be recovered. Each checkpoint's receipt contains a copy.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from ml_collections import ConfigDict

from bert_jax.config import (
    Config,
    ModelConfig,
    ResolvedRun,
    RunConfig,
    model_in_phase,
    phase_of_step,
    recorded,
    settings_from,
)
from bert_jax.config.finetune_schema import FinetuneRun
from bert_jax.config.model_rules import check_sizes
from bert_jax.logging.metrics_writer import (
    BAD_STEPS,
    CURVES,
    EVENTS,
    LEFT_OUT,
    METRICS,
    PREDICTIONS,
    SUMMARY,
    WANDB_ID,
)
from bert_jax.model import dropout
from bert_jax.runtime import code_version
from bert_jax.runtime.goodput import FILE as ATTEMPTS
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_file, write_json
from data_pipeline.io.small_files import DamagedFile, parse_record
from data_pipeline.vocab import Vocabulary, load_recorded, read_file, template
from data_pipeline.vocab.sentencepiece_model import NO_RULES, RECORDED

if TYPE_CHECKING:
    from bert_jax.tasks.task_layer import TaskLayer

Run = TypeVar("Run", bound=RunConfig)

FILE = "run.json"
CHECKPOINTS = "checkpoints"  # folder in the workdir
# The records of a run in its workdir. Those that show progress come last, as fresh_start.quarantine
# moves them in this order.
RECORDS = (
    CHECKPOINTS,
    EVENTS,
    PREDICTIONS,
    CURVES,
    SUMMARY,
    LEFT_OUT,
    BAD_STEPS,
    ATTEMPTS,
    WANDB_ID,
    FILE,
    METRICS,
)

STORE_DIGEST = "data.store (digest of its contents)"  # key of a fixed setting
MIXTURE = "mixture_version (of this bert_jax)"  # key of a fixed setting of several stores
# Settings of config.optim that a resumed run must keep: they decide its state or its scaling.
FIXED_OF_OPTIM = ("name", "transfer", "transfer_base_width", "transfer_base_head_width")
# Fields of a vocabulary in run records, checkpoints and store manifests.
PINNED = ("file", "size", "lowercase", "sha256", RECORDED)
UNTRAINED, KERNELS = "untrained", "kernels"  # keys of Setup.record
CONVERTED = "converted_from"  # marks a checkpoint converted from other code
BRANCH = "branch"  # entry of a branch: the trunk's workdir and step


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Identify the training data, for the record of a run."""

    learns: str  # kind of training, as shown and recorded: "pre-training"
    origins: Sequence[pathlib.Path]  # folders of the data; a run must not write there
    vocab_path: pathlib.Path  # the vocabulary's file
    # Entry "vocabulary" of the record: make_vocabulary_record, or its PINNED fields from a store.
    vocabulary: Mapping[str, Any]
    fixed: Mapping[str, Any]  # settings of the data and digests that a resumed run must keep
    details: Mapping[str, Any]  # entry "store" or "task" of the record: digests, the task's labels


@dataclasses.dataclass(frozen=True)
class Change:
    """Describe a setting that a later start of a run changed."""

    since_step: int  # step of the newest checkpoint at that start
    setting: str  # the setting's key, without "config."
    before: Any
    now: Any

    def in_words(self) -> str:
        return f"{self.setting} {self.before} -> {self.now} since step {self.since_step:,}"


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """Hold the parsed record of a pre-training run."""

    config: ResolvedRun
    vocabulary: Vocabulary  # the workdir's own copy
    store_digest: str  # short digest of the store it trains on
    converted_from: str  # source checkpoint of bert_jax.convert; "" for a trained run


def check_record(record: dict[str, Any], name: object) -> dict[str, Any]:
    """Check the types of the fields that later code reads unchecked; return the record."""
    config = small_files.field(record, "config", dict, name)
    for key in {"model", "compute", "data"} & config.keys():
        small_files.field(config, key, dict, name)
    phases = small_files.field(config, "phases", list, name)
    if any(not isinstance(phase, dict) for phase in phases):
        raise DamagedFile(f"{name}: config.phases has an entry that is not a phase")
    small_files.field(record, "fixed", dict, name)
    vocabulary = small_files.field(record, "vocabulary", dict, name)
    small_files.field(vocabulary, "file", str, name)
    small_files.field(vocabulary, "lowercase", bool, name)
    small_files.field(vocabulary, RECORDED, str, name, "")
    kernels = small_files.field(record, KERNELS, dict, name, {})
    for kernel in kernels:
        small_files.field(kernels, kernel, str, name)
    for key in ("learns", CONVERTED):
        small_files.field(record, key, str, name, "")
    task = small_files.field(record, "task", dict, name, {})
    small_files.field(task, "head_width", int, name, 0)
    for change in small_files.field(record, "changes", list, name, []):
        parse_record(change, Change, f"{name}: 'changes'")
    return record


def read(workdir: pathlib.Path) -> PretrainingRun:
    """Read the record of the pre-training run in a workdir.

    Raises:
      Refused: there is no run, or it is a fine-tuning run or from another version.
    """
    record = _read(workdir)
    if _is_finetuning(record):
        raise Refused(
            f"{workdir} holds a run of {record['learns']}; give the workdir of a pre-training run"
        )
    config = parse_config(record, workdir / FILE, ResolvedRun)
    with _written_by_this_version(workdir / FILE):
        digest = record["fixed"][STORE_DIGEST]
    vocabulary = read_vocabulary(workdir, record)
    return PretrainingRun(config, vocabulary, digest, record.get(CONVERTED, ""))


def parse_config(record: Mapping[str, Any], path: object, kind: type[Run]) -> Run:
    """Parse the settings in the record of a run, which was read from `path`.

    Raises:
      Refused: the record is from another version, or of another kind of run.
    """
    with _written_by_this_version(path):
        phases = tuple(ConfigDict(phase) for phase in record["config"]["phases"])
        config = settings_from(kind, ConfigDict(record["config"] | {"phases": phases}))
    check_sizes(config.model, path)
    return config


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """Describe the model of a pre-training or fine-tuning run."""

    run: RunConfig
    vocabulary: Vocabulary  # the workdir's own copy
    untrained: tuple[str, ...]  # parts that no objective has trained
    task: "TaskLayer | None"

    def config_at(self, step: int) -> ModelConfig:
        """Return the model's config in the phase that trains a step, counted from 1."""
        if not self.run.phases:  # a converted checkpoint
            return self.run.model
        return model_in_phase(self.run, phase_of_step(self.run, step))


def parse_run(record: Mapping[str, Any], path: object) -> RunConfig:
    """Parse the settings in the record of a run, of pre-training or fine-tuning."""
    return parse_config(record, path, FinetuneRun if _is_finetuning(record) else ResolvedRun)


def read_model(workdir: pathlib.Path) -> TrainedModel:
    """Describe the model of the run in a workdir, for pre-training and fine-tuning.

    Raises:
      Refused: there is no run, or it is from another version.
    """
    record, path, task = _read(workdir), workdir / FILE, None
    run = parse_run(record, path)
    if _is_finetuning(record):
        from bert_jax.tasks import task_layer  # imported here: pre-training has none

        task = task_layer.from_json(record["task"] | {"options": record["config"]["data"]}, path)
        task = dataclasses.replace(task, null_threshold=_read_null_threshold(workdir))
    vocabulary = read_vocabulary(workdir, record)
    untrained: tuple[str, ...] = ()  # parts that no objective trains
    if CONVERTED not in record and task is None:
        untrained = tuple(small_files.field(record, UNTRAINED, list, path))
    return TrainedModel(run, vocabulary, untrained, task)


def _read_null_threshold(workdir: pathlib.Path) -> float | None:
    """Read the null threshold that a SQuAD 2.0 run chose on its dev set; None without one."""
    # Imported here: pre-training has no task.
    from bert_jax.tasks.task import THRESHOLD, THRESHOLD_FILE

    path = workdir / PREDICTIONS / THRESHOLD_FILE
    if not path.is_file():
        return None
    return float(small_files.field(small_files.read_object(path, workdir), THRESHOLD, float, path))


def describe_converted(
    origin: str, config: Config, vocabulary: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the record of a converted third-party checkpoint, which is stored like a run.

    `vocabulary` is make_vocabulary_record of the file stored with it.
    """
    return {
        CONVERTED: origin,
        "fixed": {STORE_DIGEST: ""},
        "config": recorded(config),
        "code": code_version.describe_code(),
        "changes": [],
        "vocabulary": dict(vocabulary),
    }


def _read(workdir: pathlib.Path) -> dict[str, Any]:
    path = workdir / FILE
    if not path.exists():
        raise Refused(
            f"{workdir} holds no run of bert_jax ({FILE} is missing); give the --workdir of "
            "python -m bert_jax.train"
        )
    try:
        return check_record(small_files.read_object(path, workdir), path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; put a copy of it back, or start the command that trained there again, which "
            "restores it from the newest checkpoint"
        ) from None


def _is_finetuning(record: Mapping[str, Any]) -> bool:
    """Return whether a run is a fine-tuning, whose model has a task layer."""
    return bool(record.get("task", {}).get("head_width", 0))


def read_vocabulary(workdir: pathlib.Path, record: dict[str, Any]) -> Vocabulary:
    """Read the workdir's copy of the vocabulary, which must be the one in the record."""
    path = small_files.join_inside(workdir, record["vocabulary"]["file"])
    if not path.is_file():
        raise Refused(
            f"{path} is missing; put back the vocabulary that the run was trained with, from its "
            "store or another copy of the folder"
        )
    vocabulary = load_recorded(path, record["vocabulary"], reads_special_tokens=True)
    check_vocabulary(vocabulary, record, f"the run in {workdir}")
    return dataclasses.replace(vocabulary, template=read_template(workdir, record, vocabulary))


def read_template(
    workdir: pathlib.Path, record: Mapping[str, Any], vocabulary: Vocabulary
) -> template.Template:
    """Return the template by which special tokens were added to the run's rows."""
    path, special_ids = workdir / FILE, vocabulary.special_ids
    if template.RECORDED not in record["vocabulary"]:
        return template.make_store_template(vocabulary.template, special_ids)
    given = small_files.field(record["vocabulary"], template.RECORDED, dict, path)
    return template.from_json(given, special_ids, path)


@contextlib.contextmanager
def _written_by_this_version(path: object) -> Iterator[None]:
    try:
        yield
    except DamagedFile:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(
            f"{path} was written by another version of bert_jax ({error}); read it with that "
            "version, or start the training command again with this one"
        ) from error


def list_fixed_settings(config: RunConfig, provenance: Provenance) -> dict[str, Any]:
    """Return the settings that a resumed run must keep, by config key, data settings included.

    With other values the run would be a different one, or would not continue with unseen examples.
    All other settings may change; other settings in config.compute affect only rounding.
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


def list_settings(section: str, config: object, left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of a section of the config by key, except those left out."""
    settings = vars(config).items()
    return {f"{section}.{name}": value for name, value in settings if name not in left_out}


def write(
    workdir: pathlib.Path,
    config: RunConfig,
    provenance: Provenance,
    changes: Sequence[Change] = (),
    parts: Mapping[str, Any] | None = None,
) -> None:
    """Write run.json and a copy of the vocabulary, each atomically."""
    write_file(workdir / provenance.vocabulary["file"], read_file(provenance.vocab_path))
    write_json(workdir / FILE, build_record(config, provenance, changes, parts))


def build_record(
    config: RunConfig,
    provenance: Provenance,
    changes: Sequence[Change] = (),
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the record of a run: settings, code, packages, data and machines.

    The record is stored as run.json and in each checkpoint's receipt, from which a lost run.json is
    restored. `parts` is Setup.record: the untrained parts of the model, the results of the kernel
    checks and the trunk of a branch.
    """
    return {
        "fixed": list_fixed_settings(config, provenance),
        "learns": provenance.learns,
        **(parts or {}),
        "vocabulary": dict(provenance.vocabulary),
        "config": recorded(config),
        "code": code_version.describe_code(),
        **provenance.details,
        "devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "processes": jax.process_count(),
        "changes": [dataclasses.asdict(change) for change in changes],
    }


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
    """Raise Refused if a vocabulary, or how it is read, differs from a run's record.

    `source` names the run or checkpoint in the error.
    """
    own = {"size": vocabulary.size, "sha256": vocabulary.digest, RECORDED: NO_RULES}
    own |= vocabulary.recorded_rules
    for key, value in read_pinned(run).items():
        if key in own and own[key] != value:
            raise Refused(
                f"{vocabulary.path} is not the vocabulary of {source}: its {key} is "
                f"{own[key]!r:.40}, not {value!r:.40}; put back the one that it was trained with, "
                "or the run record, from the store or another copy of the folder"
            )


def check_model(model: ModelConfig, run: Mapping[str, Any], source: str) -> None:
    """Raise Refused if the model in run.json differs from the record in a checkpoint's receipt."""
    saved = run.get("config", {}).get("model", {})
    for name, value in dataclasses.asdict(model).items():
        if name in saved and saved[name] != value:
            raise Refused(
                f"{FILE} has config.model.{name} = {value!r:.40}, but {source} was saved with "
                f"{saved[name]!r:.40}; put back the {FILE} of its run"
            )


def read_pinned(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vocabulary fields of a record that identify the vocabulary."""
    given = run.get("vocabulary", {})
    return {RECORDED: NO_RULES} | {name: given[name] for name in PINNED if name in given}
