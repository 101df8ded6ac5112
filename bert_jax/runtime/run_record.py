"""Record the config and data of a run in WORKDIR/run.json, and check them before resuming.

The record has settings, data (Provenance), vocabulary, code and devices. Its config is that of the
newest start; `changes` lists each setting that a later start changed and the step of that start, so
that earlier configs can be recovered. Each checkpoint's receipt contains a copy.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

from bert_jax.config import (
    MOVED,
    ComputeConfig,
    Config,
    ModelConfig,
    OptimConfig,
    ResolvedRun,
    RunConfig,
    recorded,
    settings_from,
)
from bert_jax.config.schema import THETAS
from bert_jax.config.validate import check_sizes
from bert_jax.logging.metrics_writer import (
    BAD_STEPS,
    CURVES,
    EVENTS,
    LEFT_OUT,
    METRICS,
    PREDICTIONS,
    SUMMARY,
)
from bert_jax.logging.wandb_writer import FILE as WANDB
from bert_jax.runtime import code_version
from bert_jax.runtime.goodput import FILE as ATTEMPTS
from bert_jax.runtime.run_identity import (
    FIXED_OF_OPTIM,
    STORE_DIGEST,
    Change,
    Provenance,
    check_vocabulary,
    describe_differences,
    fixed_settings,
    list_differences,
)
from bert_jax.train_step import objectives
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_file, write_json
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile, parse_record
from data_pipeline.vocab import Vocabulary, load_recorded, read_file, template
from data_pipeline.vocab.sentencepiece_rules import RECORDED

if TYPE_CHECKING:
    from bert_jax.tasks.task_layer import TaskLayer

FILE = "run.json"
EARLIER_FILE = "config.json"  # the record's name in earlier versions; also used by Hugging Face
CHECKPOINTS = "checkpoints"  # folder in the workdir
# Files in the workdir that a resumed run reads; those that show progress come last.
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
    EARLIER_FILE,
    METRICS,
)

UNTRAINED, KERNELS = "untrained", "kernels"  # keys of what StepParts.record holds
_CONVERTED = "converted_from"  # marks a checkpoint converted from other code


@dataclasses.dataclass(frozen=True)
class PretrainingRun:
    """Hold the parsed record of a pre-training run."""

    config: ResolvedRun
    vocabulary: Vocabulary  # the workdir's own copy
    store_digest: str  # short digest of the store it trains on
    converted_from: str  # source checkpoint of bert_jax.convert; "" for a trained run


def record_path(workdir: pathlib.Path) -> pathlib.Path:
    """Return the file of the record in a workdir: run.json, or config.json of an earlier version.

    Hugging Face's config.json is not a record; a damaged config.json counts as one. The returned
    file need not exist.
    """
    if not (workdir / FILE).exists() and _is_earlier_record(workdir / EARLIER_FILE, True):
        return workdir / EARLIER_FILE
    return workdir / FILE


def _is_earlier_record(path: pathlib.Path, if_damaged: bool) -> bool:
    """Return whether a config.json is a record of a run and not Hugging Face's."""
    try:
        return "fixed" in small_files.read_object(path)
    except FileNotFoundError:
        return False
    except DamagedFile:
        return if_damaged


def _with_moved_settings(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of any version with its settings under their current keys."""
    fixed, config = dict(record["fixed"]), dict(record["config"])
    for old, new in MOVED.items():
        if old in fixed:
            fixed[new] = fixed.pop(old)
        (old_group, name), (new_group, new_name) = old.split("."), new.split(".")
        if name in config.get(old_group, {}):
            config[old_group] = dict(config[old_group])
            moved = {new_name: config[old_group].pop(name)}
            config[new_group] = config.get(new_group, {}) | moved
    return record | {"fixed": fixed, "config": config}


def _checked(record: dict[str, Any], name: object) -> dict[str, Any]:
    """Check the types of the fields that later code reads unchecked; return the record."""
    config = small_files.field(record, "config", dict, name)
    for key in {"model", "compute", "data"} & config.keys():
        small_files.field(config, key, dict, name)
    phases = small_files.field(config, "phases", list, name)
    if any(not isinstance(phase, dict) for phase in phases):
        raise DamagedFile(f"{name}: config.phases lists what is no phase")
    small_files.field(record, "fixed", dict, name)
    vocabulary = small_files.field(record, "vocabulary", dict, name)
    small_files.field(vocabulary, "file", str, name)
    small_files.field(vocabulary, "lowercase", bool, name)
    small_files.field(vocabulary, RECORDED, str, name, "")
    kernels = small_files.field(record, KERNELS, dict, name, {})
    for kernel in kernels:
        small_files.field(kernels, kernel, str, name)
    for key in ("learns", _CONVERTED):
        small_files.field(record, key, str, name, "")
    task = small_files.field(record, "task", dict, name, {})
    small_files.field(task, "head_width", int, name, 0)
    for change in small_files.field(record, "changes", list, name, []):
        parse_record(change, Change, f"{name}: 'changes'")
    return _with_moved_settings(record)


def find(
    workdir: pathlib.Path, saved: Callable[[], Mapping[str, Any]]
) -> tuple[dict[str, Any] | None, str]:
    """Return the record of the run in a workdir, None without one, and the damage to its file.

    A damaged or missing file is replaced by `saved()`, the copy in the newest checkpoint.

    Raises:
      DamagedFile: the file is damaged, and no checkpoint has a copy.
    """
    path = record_path(workdir)
    try:
        return _checked(small_files.read_object(path, workdir), path), ""
    except (FileNotFoundError, DamagedFile) as error:
        is_missing = isinstance(error, FileNotFoundError)
        problem = f"{path} is missing" if is_missing else str(error)
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


def read(workdir: pathlib.Path) -> PretrainingRun:
    """Read the record of the pre-training run in a workdir.

    Raises:
      Refused: there is no run, or it is a fine-tuning run or from another version.
    """
    record = _read(workdir)
    if _is_of_a_task(record):
        raise Refused(
            f"{workdir} holds a run of {record['learns']}; give the workdir of a pre-training run"
        )
    with _written_by_this_version(workdir):
        phases = tuple(ConfigDict(phase) for phase in record["config"]["phases"])
        config = settings_from(ResolvedRun, ConfigDict(record["config"] | {"phases": phases}))
        digest = record["fixed"][STORE_DIGEST]
    check_sizes(config.model, record_path(workdir))
    vocabulary = _read_vocabulary(workdir, record)
    return PretrainingRun(config, vocabulary, digest, record.get(_CONVERTED, ""))


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """Describe the model of a pre-training or fine-tuning run."""

    config: ModelConfig
    compute: ComputeConfig  # the run's compute_dtype, defaults otherwise
    vocabulary: Vocabulary  # the workdir's own copy
    untrained: tuple[str, ...]  # parts that no objective has trained
    task: "TaskLayer | None"
    thetas: tuple[tuple[int, dict[str, float]], ...]  # of each phase: its last step, its bases

    def config_at(self, step: int) -> ModelConfig:
        """Return the model as the phase that ends with or after a step trains it."""
        phases = [thetas for end, thetas in self.thetas if step <= end]
        changed: dict[str, Any] = {**phases[0]} if phases else {}
        return dataclasses.replace(self.config, **changed)


def _read_thetas(
    record: Mapping[str, Any], path: pathlib.Path
) -> tuple[tuple[int, dict[str, float]], ...]:
    """Return TrainedModel.thetas; a phase of an earlier version has the model's."""
    end, phases = 0, []
    for phase in small_files.field(record["config"], "phases", list, path, []):
        if not isinstance(phase, dict):
            raise DamagedFile(f"{path} has a phase that is no object: {phase!r:.40}")
        end += small_files.field(phase, "steps", int, path)
        thetas = {
            name: small_files.field(phase, name, float, path) for name in THETAS if phase.get(name)
        }
        phases.append((end, thetas))
    return tuple(phases)


def model_of(record: Mapping[str, Any], workdir: pathlib.Path) -> ModelConfig:
    """Return the model's sizes in the record of a run; Refused if it is from another version."""
    with _written_by_this_version(workdir):
        config = settings_from(ModelConfig, ConfigDict(record["config"]["model"]))
    check_sizes(config, record_path(workdir))
    return config


def read_model(workdir: pathlib.Path) -> TrainedModel:
    """Describe the model of the run in a workdir, for pre-training and fine-tuning.

    Raises:
      Refused: there is no run, or it is from another version.
    """
    record, path = _read(workdir), record_path(workdir)
    config, task = model_of(record, workdir), None
    with _written_by_this_version(workdir):
        dtype = record["config"].get("compute", {}).get("compute_dtype", "auto")
        compute = settings_from(ComputeConfig, ConfigDict({"compute_dtype": dtype}))
        if _is_of_a_task(record):
            from bert_jax.tasks import task_layer  # here: pre-training has no task

            task = task_layer.from_json(
                record["task"] | {"options": record["config"]["data"]}, path
            )
    if task is not None:
        task = dataclasses.replace(task, null_threshold=_null_threshold(workdir))
    vocabulary = _read_vocabulary(workdir, record)
    untrained, thetas = _untrained(record, path), _read_thetas(record, path)
    return TrainedModel(config, compute, vocabulary, untrained, task, thetas)


def _untrained(record: dict[str, Any], path: pathlib.Path) -> tuple[str, ...]:
    """Return the parts of the model that a run's objective does not train."""
    if _CONVERTED in record or _is_of_a_task(record):
        return ()
    if UNTRAINED in record:
        return tuple(small_files.field(record, UNTRAINED, list, path))
    name = small_files.field(record["config"], "objective", str, path)
    if name not in objectives.OBJECTIVES:
        raise Refused(
            f"{path} has config.objective = {name!r}, which is not of bert_jax, and does not say "
            "what it trains; start its training command once more, which writes that down"
        )
    return objectives.OBJECTIVES[name].untrained


def _null_threshold(workdir: pathlib.Path) -> float | None:
    """Read the null threshold that a SQuAD 2.0 run chose on its dev set; None without one."""
    from bert_jax.tasks.task import THRESHOLD, THRESHOLD_FILE  # here: pre-training has no task

    path = workdir / PREDICTIONS / THRESHOLD_FILE
    if not path.is_file():
        return None
    return float(small_files.field(small_files.read_object(path, workdir), THRESHOLD, float, path))


def converted(origin: str, config: Config, vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """Build the record of a converted third-party checkpoint, which is stored like a run.

    `vocabulary` is make_vocabulary_record of the file stored beside it.
    """
    return {
        _CONVERTED: origin,
        "fixed": {STORE_DIGEST: ""},
        "config": recorded(config),
        "code": code_version.describe_code(),
        "changes": [],
        "vocabulary": dict(vocabulary),
    }


def with_kept_settings(
    workdir: pathlib.Path, config: Config, saved: Callable[[], Mapping[str, Any]] = dict
) -> Config:
    """Set what earlier versions had no setting or another default for to the run's in the workdir.

    Runs without model.head_act in their record have hidden_act in the head, whatever their config
    file says now. Runs of earlier versions used max_predictions_per_seq = 20 by default; now the
    masking rate determines it. A run with another length or masking rate could not be resumed
    anyway. `saved` is as in find.
    """
    try:
        record, _ = find(workdir, saved)
    except DamagedFile:  # handled where the workdir is checked
        return config
    if record is None:
        return config
    fixed = record["fixed"]
    if "model.hidden_act" in fixed and "model.head_act" not in fixed:
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, head_act=""))
    if fixed.get("data.masked_lm_prob") != config.data.masked_lm_prob:
        return config
    phases = []
    for index, phase in enumerate(config.phases):
        kept = fixed.get(f"phases[{index}].max_predictions_per_seq", 0)
        is_same = fixed.get(f"phases[{index}].seq_len") == phase.seq_len and type(kept) is int
        is_same &= fixed.get(f"phases[{index}].masked_lm_prob", 0.0) == phase.masked_lm_prob
        if phase.max_predictions_per_seq == 0 and is_same:
            phase = dataclasses.replace(phase, max_predictions_per_seq=kept)
        phases.append(phase)
    return dataclasses.replace(config, phases=tuple(phases))


def _read(workdir: pathlib.Path) -> dict[str, Any]:
    path = record_path(workdir)
    if not path.exists():
        raise Refused(
            f"{workdir} holds no run of bert_jax ({FILE} is missing); give the --workdir of "
            "python -m bert_jax.train"
        )
    try:
        return _checked(small_files.read_object(path, workdir), path)
    except DamagedFile as error:
        raise DamagedFile(
            f"{error}; put a copy of it back, or start the command that trained there again, which "
            "restores it from the newest checkpoint"
        ) from None


def _is_of_a_task(record: dict[str, Any]) -> bool:
    """Return whether a run was fine-tuned, so that its model has a task layer."""
    return bool(record.get("task", {}).get("head_width", 0))


def _read_vocabulary(workdir: pathlib.Path, record: dict[str, Any]) -> Vocabulary:
    """Read the workdir's copy of the vocabulary, which must be the one in the record."""
    path = small_files.path_inside(workdir, record["vocabulary"]["file"])
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
    """Return the template of a run's rows; a record without one is of a store's rows."""
    path, special_ids = record_path(workdir), vocabulary.special_ids
    if template.RECORDED not in record["vocabulary"]:
        return template.make_store_template(vocabulary.template, special_ids)
    given = small_files.field(record["vocabulary"], template.RECORDED, dict, path)
    return template.from_json(given, special_ids, path)


@contextlib.contextmanager
def _written_by_this_version(workdir: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except DamagedFile:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refused(
            f"{record_path(workdir)} was written by another version of bert_jax; read it with that "
            "version, or start the training command again with this one"
        ) from error


def check_place(workdir: pathlib.Path, provenance: Provenance) -> None:
    """Raise Refused if the workdir is the folder of the data."""
    if workdir.resolve() in [origin.resolve() for origin in provenance.origins]:
        raise Refused(
            f"--workdir={workdir} is the folder of the data; give the run a folder of its own, "
            f"such as {workdir}-run"
        )


def check(
    workdir: pathlib.Path,
    config: RunConfig,
    provenance: Provenance,
    record: Mapping[str, Any] | None,
) -> None:
    """Raise Refused if a run with this config and data cannot resume the one in the workdir.

    `record` is the result of find. A missing copy of the vocabulary is written again.
    """
    copy = workdir / provenance.vocabulary["file"]
    has_other_copy = copy.exists() and _differ(copy, read_file(provenance.vocab_path))
    if record is None:
        remains = [name for name in RECORDS if (workdir / name).exists()]
        remains += [copy.name] * has_other_copy
        if remains:
            raise Refused(
                f"--workdir={workdir} holds {', '.join(remains)} but no run of bert_jax ({FILE} is "
                "missing); put that back, or give a new or an empty folder"
            )
        return
    if _CONVERTED in record:
        raise Refused(
            f"--workdir={workdir} holds a checkpoint converted from {record[_CONVERTED]}, not a "
            f"run; give another --workdir, and --config.init=orbax:{workdir} to begin with it"
        )
    if ("task" in record) != ("task" in provenance.details):
        begin = f", and --config.init=orbax:{workdir} to begin with it" * ("task" not in record)
        raise Refused(
            f"--workdir={workdir} holds a run of {record.get('learns', 'pre-training')}, and this "
            f"is one of {provenance.learns}; give another --workdir{begin}"
        )
    # A setting missing from the record was added later; the run behaved as with its default.
    by_default = {f"model.{name}": value for name, value in vars(ModelConfig()).items()}
    # The optimizer's name is in every record.
    by_default |= {f"optim.{name}": getattr(OptimConfig, name) for name in FIXED_OF_OPTIM[1:]}
    given = {"fixed": fixed_settings(config, provenance), "vocabulary": provenance.vocabulary}
    differing = list_differences(record, given, by_default | dict(provenance.fixed_by_default))
    if differing:
        raise Refused(
            f"{workdir} holds a run with "
            f"{describe_differences(differing, '', 'this config says')}; give another --workdir, "
            "or the settings of that run to resume it"
        )
    if has_other_copy and record["vocabulary"]["file"] == copy.name:
        raise Refused(
            f"{copy} is not {provenance.vocab_path}, which the run is trained with; remove it, and "
            "the run writes it again, or give the data of the run that lies here"
        )


def _differ(vocabulary: pathlib.Path, data: bytes) -> bool:
    try:
        return small_files.read_bytes(vocabulary) != data
    except DamagedFile:
        return True


def write(
    workdir: pathlib.Path,
    config: RunConfig,
    provenance: Provenance,
    changes: Sequence[Change] = (),
    parts: Mapping[str, Any] | None = None,
) -> None:
    """Write run.json and a copy of the vocabulary, each atomically."""
    write_file(workdir / provenance.vocabulary["file"], read_file(provenance.vocab_path))
    write_json(workdir / FILE, of_run(config, provenance, changes, parts))
    if _is_earlier_record(workdir / EARLIER_FILE, if_damaged=False):
        (workdir / EARLIER_FILE).unlink()


def of_run(
    config: RunConfig,
    provenance: Provenance,
    changes: Sequence[Change] = (),
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build the record of a run: settings, code, packages, data and machines.

    It is stored as run.json, and in each checkpoint's receipt, from which a lost run.json is
    restored. `parts` holds what building the model told: the parts that no objective trains, the
    checks of its kernels.
    """
    return {
        "fixed": fixed_settings(config, provenance),
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
