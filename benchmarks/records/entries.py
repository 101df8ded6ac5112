"""Write the entries of the record table, check them against its rules, and show them.

benchmarks/records/README.md has the rules. An entry is a file NAME.json in ENTRIES.
"""

import dataclasses
import datetime
import os
import pathlib
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import rich.table

from bert_jax.config import ResolvedRun
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.logging.statistics import Interval, compare_paired
from bert_jax.planning.estimate import count_row_flops
from bert_jax.runtime import run_record
from data_pipeline.cli.terminal import make_table
from data_pipeline.io import small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.refused import Refused

ENTRIES = pathlib.Path(__file__).parent / "entries"
STORE_DIGEST = "31aabef3f5f730dcfcac1c3aebd1d26aab5eac62136e742c12d16a763285487f"
SEEDS = tuple(range(1, 6))
COMPUTE = "compute"
DATA = "data"
MAX_TFLOP = 11.4  # at COMPUTE
MAX_TIME_RATIO = 1.25  # at COMPUTE, to its first entry
MAX_TRAIN_SECS = 1800.0  # at DATA
# They multiply no matrices: the model's products are all.
_ELEMENTWISE = ("bert_adamw", "adamw", "stable_adamw", "lamb")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Describe where an entry was trained."""

    cpu: str
    cores: int
    jax: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """Hold a recipe of the table and its results by seed."""

    track: str
    changed: str
    written: str  # UTC
    losses: dict[str, float]  # nats per token
    train_secs: dict[str, float]
    tflop: float
    machine: Machine
    commit: str
    settings: dict[str, Any]  # all that are not at their defaults
    name: str = ""  # the file's

    @property
    def mean(self) -> float:
        """Return the mean loss of the seeds."""
        return statistics.fmean(self.losses.values())

    @property
    def mean_secs(self) -> float:
        """Return the mean training time of the seeds."""
        return statistics.fmean(self.train_secs.values())


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Hold an entry, its gain over the best one before it, and the rules that it breaks."""

    entry: Entry
    gain: Interval | None  # None for the first one
    faults: list[str]


def list_differences(settings: Any) -> dict[str, Any]:
    """Return the settings of a config dataclass that are not at their defaults, nested, as JSON."""
    differing = {}
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if value == default:
            continue
        if dataclasses.is_dataclass(value):
            value = list_differences(value)
        elif isinstance(value, tuple):
            value = [list_differences(v) if dataclasses.is_dataclass(v) else v for v in value]
        differing[field.name] = value
    return differing


def count_tflop(config: ResolvedRun, name: object) -> float:
    """Count the matrix products of a run in units of 1e12 operations, padding included.

    Raises:
      Refused: the products of the optimizer are not known.
    """
    if config.optim.name not in _ELEMENTWISE:
        raise Refused(
            f"{name}: config.optim.name is {config.optim.name}, whose matrix products are not "
            f"counted; choose from {', '.join(_ELEMENTWISE)}, or count them in {__name__}"
        )
    operations = sum(
        phase.steps * phase.batch_size * count_row_flops(config, index)
        for index, phase in enumerate(config.phases)
    )
    return operations / 1e12


def make_entry(
    track: str, changed: str, workdirs: Sequence[str], score: Callable[[str], float]
) -> Entry:
    """Read the finished runs of one recipe, one per seed, and score them.

    Raises:
      Refused: a run is not finished, the runs differ in more than the seed, the seeds are not
        SEEDS, or the recipe breaks a rule that shows before scoring.
    """
    records = {workdir: _read_run(pathlib.Path(workdir)) for workdir in workdirs}
    recipes = {workdir: _describe_recipe(record) for workdir, record in records.items()}
    first, *others = workdirs
    for other in others:
        if changed_keys := [
            key for key in recipes[first] if recipes[first][key] != recipes[other][key]
        ]:
            raise Refused(
                f"{other} and {first} differ in {', '.join(changed_keys)}; give five runs of one "
                "recipe and one code"
            )
    seeds = {str(run_record.parse_config(records[w], w).seed): w for w in workdirs}
    if sorted(seeds) != [str(seed) for seed in SEEDS] or len(workdirs) != len(SEEDS):
        raise Refused(
            f"the seeds of --workdirs are {', '.join(sorted(seeds))}; give one run of each seed "
            f"from {SEEDS[0]} to {SEEDS[-1]}"
        )
    code = records[first]["code"]
    config = run_record.parse_config(records[first], first)
    secs = {
        seed: small_files.read_object(pathlib.Path(seeds[seed]) / SUMMARY)["train_secs"]
        for seed in sorted(seeds)
    }
    entry = Entry(
        track,
        changed,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        {},
        secs,
        count_tflop(config, first),
        Machine(_read_cpu_model(), os.cpu_count() or 1, code["packages"]["jax"]),
        code["commit"],
        recipes[first]["settings"],
    )
    if faults := list(_find_faults_of_recipe(entry)):
        raise Refused("; ".join(faults))
    return dataclasses.replace(entry, losses={seed: score(seeds[seed]) for seed in sorted(seeds)})


def _read_run(workdir: pathlib.Path) -> dict[str, Any]:
    for name in (run_record.FILE, SUMMARY):
        if not (workdir / name).is_file():
            raise Refused(f"{workdir} has no {name}; give the workdir of a finished run")
    record = small_files.read_object(workdir / run_record.FILE)
    if (digest := record.get("store", {}).get("digest")) != STORE_DIGEST:
        raise Refused(
            f"{workdir} was trained on the store {str(digest)[:12]}, not {STORE_DIGEST[:12]}; "
            "build that by --build=DIR"
        )
    return record


def _describe_recipe(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what five runs must share: not seeds, nor where the store is."""
    config = run_record.parse_config(record, run_record.FILE)
    data = dataclasses.replace(config.data, store="", data_cache="", random_seed=0)
    settings = list_differences(dataclasses.replace(config, data=data, seed=0))
    settings["data"].pop("random_seed", None)  # the seed's number
    return {
        "settings": settings,
        "source_digest": record["code"]["source_digest"],
        "packages": record["code"]["packages"],
    }


def _read_cpu_model() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def write_entry(name: str, entry: Entry) -> pathlib.Path:
    """Write an entry and return its file; raise Refused if there is one of this name."""
    path = ENTRIES / f"{name}.json"
    if path.exists():
        raise Refused(f"{path} exists; give another --entry")
    ENTRIES.mkdir(exist_ok=True)
    content = dataclasses.asdict(entry)
    del content["name"]
    write_json(path, content)
    return path


def read_entries() -> list[Entry]:
    """Read all entries, the oldest first."""
    entries = [
        dataclasses.replace(small_files.read_record(path, Entry), name=path.stem)
        for path in ENTRIES.glob("*.json")
    ]
    return sorted(entries, key=lambda entry: (entry.written, entry.name))


def check_entries(entries: Sequence[Entry]) -> list[Verdict]:
    """Judge each entry by the rules and by the best entry that stands before it.

    What stands at fixed compute is an entry of fixed data as well.
    """
    verdicts = list[Verdict]()
    for entry in entries:
        standing = [verdict.entry for verdict in verdicts if not verdict.faults]
        earlier = [each for each in standing if entry.track in (each.track, DATA)]
        faults = [*_find_faults_of_recipe(entry), *_find_faults_of_results(entry, earlier)]
        gain = None
        if earlier and not faults:
            best = min(earlier, key=lambda each: each.mean)
            gain = compare_paired(*([each.losses[str(s)] for s in SEEDS] for each in (best, entry)))
            if not gain.mean > gain.half_width:
                faults.append(f"no gain over {best.name}")
        verdicts.append(Verdict(entry, gain, faults))
    return verdicts


def _find_faults_of_recipe(entry: Entry) -> Iterator[str]:
    if entry.track not in (COMPUTE, DATA):
        yield f"track is {entry.track}, not {COMPUTE} or {DATA}"
    config = small_files.parse_record(entry.settings, ResolvedRun, entry.name or "settings")
    for key in ("init", "teacher"):
        if getattr(config, key):
            yield f"config.{key} is {getattr(config, key)}: weights from elsewhere"
    tflop = count_tflop(config, entry.name or "settings")
    if abs(tflop - entry.tflop) > 1e-6 * tflop:
        yield f"tflop is {entry.tflop:.4f}, and its settings give {tflop:.4f}"
    if entry.track == COMPUTE and tflop > MAX_TFLOP:
        yield f"{tflop:.2f} TFLOP are over {MAX_TFLOP}; it may enter --track={DATA}"
    longest = max(entry.train_secs.values(), default=0.0)
    if entry.track == DATA and longest > MAX_TRAIN_SECS:
        yield f"{longest:.0f} s of training are over {MAX_TRAIN_SECS:.0f}"


def _find_faults_of_results(entry: Entry, earlier: Sequence[Entry]) -> Iterator[str]:
    for key in ("losses", "train_secs"):
        if sorted(getattr(entry, key)) != [str(seed) for seed in SEEDS]:
            yield f"{key} are not of the seeds {SEEDS[0]} to {SEEDS[-1]}"
            return
    if entry.track == COMPUTE and earlier and earlier[0].machine == entry.machine:
        ratio = entry.mean_secs / earlier[0].mean_secs
        if ratio > MAX_TIME_RATIO:
            yield f"{ratio:.2f} times the time of {earlier[0].name}, over {MAX_TIME_RATIO}"


def build_table(verdicts: Sequence[Verdict]) -> rich.table.Table:
    """Build the table of all entries for the terminal."""
    heads = ["entry", "track", "nats per token", "gain", "TFLOP", "s", "verdict"]
    rows = []
    for verdict in verdicts:
        entry, gain, losses = verdict.entry, verdict.gain, verdict.entry.losses.values()
        rows.append(
            [
                entry.name,
                entry.track,
                f"{entry.mean:.3f} ({min(losses):.3f} - {max(losses):.3f})",
                f"{gain.mean:+.3f} ± {gain.half_width:.3f}" if gain else "-",
                f"{entry.tflop:.2f}",
                f"{entry.mean_secs:.0f}",
                "; ".join(verdict.faults) or "stands",
            ]
        )
    return make_table(heads, rows, left=(0, 1, 6))
