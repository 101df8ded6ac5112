"""Read the workdir of a run, and name the parts that a live, killed or older run lacks."""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bert_jax import config as config_lib
from bert_jax.logging.console import list_lines, list_terms
from bert_jax.logging.metrics_writer import BAD_STEPS, METRICS, PROBE_SCORES, SUMMARY
from bert_jax.monitoring.curves import Curves, read_curves
from bert_jax.runtime import goodput, run_record, workdir_lock
from data_pipeline.io import small_files
from data_pipeline.io.address import is_address
from data_pipeline.io.jsonl import read_records
from data_pipeline.io.refused import Refused
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import is_store, read_manifest

Part = TypeVar("Part")


@dataclasses.dataclass(frozen=True)
class RunState:
    """Hold the content of a run's workdir."""

    folder: pathlib.Path
    state: str  # finished, running or stopped; "not finished" if unknown
    settings: Mapping[str, Any]  # key -> value of the resolved config; empty if unknown
    steps: int  # the config's; 0 if unknown
    devices: str  # such as "8 x TPU v5 lite"; "" if unknown
    store: str  # digest; "" if unknown
    curves: Curves
    summary: Mapping[str, Any]  # a finished run's; empty otherwise
    secs: Mapping[str, float]  # wall time by kind, goodput.KINDS
    bad_steps: int
    record: Mapping[str, Any]  # run.json; empty if unknown
    began: float  # first start, in seconds since 1970; 0 if unknown
    manifest: Mapping[str, Any]  # the store's, if it is still at its place; empty otherwise
    probe: Sequence[Mapping[str, Any]]  # step and score of each, in the folder RUN-probe
    missing: Sequence[str]  # a sentence for each part that the workdir lacks

    @property
    def findings(self) -> Sequence[Mapping[str, Any]]:
        """Return the findings: rule, step, sentence and try each."""
        listed = self.summary.get("findings")
        return _select_objects(listed) or self.curves.findings

    @property
    def trunk(self) -> tuple[str, int]:
        """Return the workdir and the step of the run that this one branches from; ("", 0) if none.

        The cost up to this step belongs to the trunk.
        """
        entry = get_object(self.record, run_record.BRANCH)
        folder, step = entry.get("run"), entry.get("step")
        return (folder, step) if isinstance(folder, str) and type(step) is int else ("", 0)

    def list_heldout_terms(self) -> list[str]:
        """List the parts of the loss at the last evaluation; an earlier phase may have others."""
        curves = {term: self.curves.select("heldout", f"{term}_loss") for term in self.list_terms()}
        lasts = {term: steps[-1] for term, (steps, _) in curves.items() if len(steps)}
        return [term for term, step in lasts.items() if step == max(lasts.values())]

    def list_terms(self) -> list[str]:
        """List the parts of the loss that have an accuracy, such as mlm and nsp."""
        return list_terms(self.curves.list_newest("train") | self.curves.list_newest("heldout"))

    def reference_lines(self, term: str) -> dict[str, float]:
        """Return the reference lines of a term's held-out loss by their words."""
        lines = list_lines(self.curves.list_newest("heldout"), term)
        size = self.settings.get("model.vocab_size")
        if term in ("mlm", "causal", "permutation") and type(size) is int and size > 1:
            lines.setdefault("ln V", math.log(size))
        return lines


def get_object(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key of a record; {} without one."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def read_run(folder: pathlib.Path) -> RunState:
    """Read a run; parts that are damaged or missing are named in `missing`.

    Raises:
      Refused: the folder holds no run.
    """
    if not any((folder / name).exists() for name in (run_record.FILE, METRICS, goodput.FILE)):
        raise Refused(
            f"{folder} holds no run of bert_jax ({run_record.FILE} and {METRICS} are missing); give"
            " the --workdir of python -m bert_jax.train"
        )
    folder = pathlib.Path(os.path.abspath(folder))  # "." has no name, and ".." is none
    missing: list[str] = []

    def read(read_part: Callable[[], Part]) -> Part | None:
        try:
            return read_part()
        except FileNotFoundError as error:
            missing.append(f"{pathlib.Path(str(error.filename)).name} is missing.")
        except DamagedFile as error:
            missing.append(f"{error}.")
        return None

    def read_file(name: str) -> Mapping[str, Any]:
        return read(lambda: small_files.read_object(folder / name, folder)) or {}

    record = read_file(run_record.FILE)
    curves = read(lambda: read_curves(folder / METRICS)) or Curves({}, 0, (), 0)
    attempts = read(lambda: goodput.read_attempts(folder / goodput.FILE)) or []
    # A run may stop, or save, between two lines of metrics.
    last_step = max([curves.last_step, *(attempt[-1].step for attempt in attempts[-1:])])
    curves = dataclasses.replace(curves, last_step=last_step)
    state, has_summary = _find_state(folder), (folder / SUMMARY).exists()
    summary = read_file(SUMMARY) if has_summary else {}
    missing += [] if has_summary else [f"There is no {SUMMARY}{_WHY_NO_SUMMARY[state]}."]
    missing += _list_gaps(attempts, curves)
    config = get_object(record, "config")
    numbers = [phase.get("steps") for phase in _select_objects(config.get("phases"))]
    devices = record.get("devices")
    bad_steps = read(lambda: read_records(folder / BAD_STEPS)) or []
    settings = config_lib.flatten(config)
    digest = str(get_object(record, "fixed").get(run_record.STORE_DIGEST, ""))
    manifest, reason = _read_manifest(settings.get("data.store"), digest)
    missing += [reason] if reason else []
    probe_folder = folder.with_name(f"{folder.name}-probe")
    probe = read(lambda: read_records(probe_folder / PROBE_SCORES))
    return RunState(
        folder=folder,
        state="finished" if summary else state,
        settings=settings,
        steps=sum(each for each in numbers if type(each) is int),
        devices=devices if isinstance(devices, str) else "",
        store=digest,
        curves=curves,
        summary=summary,
        secs=goodput.sum_by_kind(attempts),
        bad_steps=len(bad_steps),
        record=record,
        began=attempts[0][0].began if attempts else 0.0,
        manifest=manifest,
        probe=_select_objects(probe),
        missing=missing,
    )


_WHY_NO_SUMMARY = {
    "running": ": the run is still going on",
    "stopped": ": the run stopped before its end; the command that started it resumes it",
    "not finished": ", which a run writes at its end",
}


def _list_gaps(attempts: Sequence[goodput.Attempt], curves: Curves) -> Iterator[str]:
    """Yield a sentence for each part of a run that its files do not have, or not completely."""
    if not attempts:
        yield f"{goodput.FILE} has no entry, so where the time went is not known."
    if not curves.points:
        yield f"{METRICS} has no numbers yet: the run is compiling or ended early."
    elif not curves.list_newest("heldout"):
        yield "There is no held-out line yet, so there is no held-out loss."
    if curves.damaged_lines:
        yield f"{curves.damaged_lines:,} lines of {METRICS} are damaged and left out."


def _find_state(folder: pathlib.Path) -> str:
    """Return the state of a run without a summary, by the lock of its folder."""
    if workdir_lock.is_locked(folder):
        return "running"
    return "stopped" if workdir_lock.was_locked_here(folder) else "not finished"


def _read_manifest(store: Any, digest: str) -> tuple[Mapping[str, Any], str]:
    """Read the manifest of a run's store; if the store is gone or another, return the reason."""
    if not isinstance(store, str) or not store:
        return {}, ""
    if "," in store or is_address(store) or not is_store(pathlib.Path(store)):
        return {}, f"{store} is not a store on this machine, so the run's data are not known."
    try:
        manifest = read_manifest(pathlib.Path(store))
    except Refused as error:
        return {}, f"{error}."
    if not str(manifest.get("digest")).startswith(digest):
        return {}, f"{store} has other contents than the run's store, of digest {digest}."
    return manifest, ""


def _select_objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; none if it is not a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
