"""Read the workdir of a run, and name the parts that a live, killed or older run lacks.

`read_curves` reads metrics.jsonl as curves of bounded size; damaged lines are skipped and counted,
such as a line that a kill cut off.
"""

import array
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from bert_jax import config as config_lib
from bert_jax.logging.console import list_lines, list_terms
from bert_jax.logging.metrics_writer import BAD_STEPS, METRICS, PROBE_SCORES, SUMMARY
from bert_jax.runtime import goodput, run_record, workdir_lock
from data_pipeline.io import Refused, small_files
from data_pipeline.io.address import is_address
from data_pipeline.io.jsonl import FINDING, read_records
from data_pipeline.io.small_files import DamagedFile
from data_pipeline.store import is_store, read_manifest

Part = TypeVar("Part")

MAX_POINTS = 2000  # default per curve
_MAX_CURVES = 1000  # limit per file; a run has some dozens
_MAX_FINDINGS = 200

Key = tuple[str, str]  # split and measure, such as ("heldout", "mlm_loss")
Points = tuple[np.ndarray, np.ndarray]  # steps and values, float64, steps rising
_NOTHING = np.zeros(0)


@dataclasses.dataclass(frozen=True)
class Curves:
    """Hold the curves of a run by split and measure."""

    points: Mapping[Key, Points]
    last_step: int  # 0 without a line
    findings: tuple[Mapping[str, Any], ...]  # logged ones: rule, step, sentence, try
    damaged_lines: int  # skipped; a line cut off at the end of the file is not counted

    def select(self, split: str, measure: str) -> Points:
        """Return steps and values of a measure; empty arrays if the run has none."""
        return self.points.get((split, measure), (_NOTHING, _NOTHING))

    def list_newest(self, split: str) -> dict[str, float]:
        """Return the newest value of each measure of a split, in the order of their first lines."""
        return {
            measure: float(values[-1])
            for (name, measure), (_, values) in self.points.items()
            if name == split
        }


def read_curves(path: pathlib.Path, most_points: int = MAX_POINTS) -> Curves:
    """Read a metrics.jsonl; no curves if the file is missing or empty.

    A step that is repeated after a resume or a roll-back replaces its earlier line, and drops the
    later ones of its split. Values that are not finite are skipped.

    Raises:
      DamagedFile: it is a folder, a pipe, or a link that leads out of its folder.
      OSError: it cannot be read now.
    """
    curves: dict[Key, tuple[array.array[float], array.array[float]]] = {}
    last: dict[str, int] = {}
    findings: list[Mapping[str, Any]] = []
    damaged_lines = 0
    for record in _read_lines(path):
        if not isinstance(record, dict):
            damaged_lines += 1
            continue
        if record.get("split") == FINDING:
            findings = [*findings, record][-_MAX_FINDINGS:]
            continue
        step, split = record.pop("step", None), record.pop("split", None)
        is_step = type(step) is int and step >= 0
        if not is_step or not isinstance(split, str) or not _are_numbers((step, *record.values())):
            damaged_lines += 1
            continue
        if step <= last.get(split, -1):
            _go_back(curves, step, split)
        last[split] = step
        for measure, value in record.items():
            if math.isfinite(value) and ((split, measure) in curves or len(curves) < _MAX_CURVES):
                empty = array.array("d"), array.array("d")
                steps, values = curves.setdefault((split, measure), empty)
                steps.append(step)
                values.append(value)
    points = {
        key: thin(np.asarray(steps), np.asarray(values), max(most_points, 8))
        for key, (steps, values) in curves.items()
        if steps
    }
    return Curves(points, max(last.values(), default=0), tuple(findings), damaged_lines)


def _go_back(
    curves: Mapping[Key, tuple["array.array[float]", "array.array[float]"]], step: int, split: str
) -> None:
    for (name, _), (steps, values) in curves.items():
        if name == split:
            kept = int(np.searchsorted(steps, step))
            del steps[kept:], values[kept:]


def _read_lines(path: pathlib.Path) -> Iterator[Any]:
    """Yield the parsed lines, None for a damaged one; leave out an incomplete last line."""
    if not path.exists() and not path.is_symlink():
        return
    with small_files.open_regular(path, path.parent) as file:
        # No run writes a longer line; the parts of one are not JSON.
        for line in iter(lambda: file.readline(small_files.MAX_BYTES), b""):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):
                    yield None


def _are_numbers(values: Iterable[Any]) -> bool:
    """Return whether values are floats, or integers that a float can hold exactly."""
    return all(
        type(value) is float or (type(value) is int and abs(value) <= 1 << 53) for value in values
    )


def thin(steps_N: np.ndarray, values_N: np.ndarray, most: int) -> Points:
    """Keep at most `most` points: the first, last, lowest and highest of each span of steps.

    The spans have equal widths, so that thinning twice favors no part of the curve. `most` is 4
    or more; the steps ascend.
    """
    if len(steps_N) <= most:
        return steps_N, values_N
    edges = np.linspace(steps_N[0], steps_N[-1], most // 4 + 1)
    firsts_S = np.unique(np.searchsorted(steps_N, edges[:-1]))
    span_N = np.repeat(np.arange(len(firsts_S)), np.diff(firsts_S, append=len(steps_N)))
    chosen = [firsts_S, np.append(firsts_S[1:], len(steps_N)) - 1]
    for extreme in (np.minimum, np.maximum):
        hits = np.flatnonzero(values_N == extreme.reduceat(values_N, firsts_S)[span_N])
        chosen.append(hits[np.unique(span_N[hits], return_index=True)[1]])  # the first of equals
    chosen_M = np.unique(np.concatenate(chosen))
    return steps_N[chosen_M], values_N[chosen_M]


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
    state, has_summary = "not finished", (folder / SUMMARY).exists()
    if workdir_lock.is_locked(folder):
        state = "running"
    elif workdir_lock.was_locked_here(folder):
        state = "stopped"
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


def _read_manifest(store: Any, digest: str) -> tuple[Mapping[str, Any], str]:
    """Read the manifest of a run's store; if the store is gone or another, return the reason."""
    if not isinstance(store, str) or not store:
        return {}, ""
    # os.path, since a Path raises where a list of stores is longer than a file name may be.
    if is_address(store) or not os.path.isdir(store) or not is_store(pathlib.Path(store)):
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
