"""Make the entries of the record table, write them, and check them against its rules.

benchmarks/records/README.md has the rules. An entry is a file NAME.json in ENTRIES.
"""

import dataclasses
import datetime
import hashlib
import json
import pathlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from benchmarks.records.trace import (
    FIRST_STEPS,
    Trace,
    list_fingerprint_steps,
    read_fingerprints,
    record_trace,
)
from benchmarks.results import read_cpu_model
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import ResolvedRun, total_steps
from bert_jax.logging.statistics import Interval, compare_paired
from bert_jax.model import bert
from bert_jax.planning.estimate import count_step_flops
from bert_jax.train_step.objectives import find_each
from data_pipeline.cli.worker_pool import count_cores
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json

ENTRIES = pathlib.Path(__file__).parent / "entries"
STORE_DIGEST = "31aabef3f5f730dcfcac1c3aebd1d26aab5eac62136e742c12d16a763285487f"
SEEDS = tuple(range(1, 6))
COMPUTE = "compute"
DATA = "data"
MAX_TFLOP = 11.4  # limit of track COMPUTE
MAX_TIME_RATIO = 1.25  # limit of track COMPUTE: training time over its first entry's
MAX_TRAIN_SECS = 1800.0  # limit of track DATA
MUON_ITERATIONS = 5
# These optimizers multiply no matrices: only the model's products count.
_ELEMENTWISE = ("bert_adamw", "adamw", "stable_adamw", "lamb")


@dataclasses.dataclass(frozen=True)
class Machine:
    """Describe where an entry was trained; cpu is NAME with VECTORS, in the first entries NAME."""

    cpu: str
    cores: int
    jax: str

    def is_like(self, other: "Machine") -> bool:
        """Return whether the machines differ in vector instructions at most."""
        names = [each.cpu.partition(" with ")[0] for each in (self, other)]
        return names[0] == names[1] and (self.cores, self.jax) == (other.cores, other.jax)


@dataclasses.dataclass(frozen=True)
class Entry:
    """Hold a recipe of the table and its results by seed."""

    track: str
    changed: str
    written: str  # UTC
    config: str  # file, and the flags that follow it
    losses: dict[str, float]  # nats per token, by seed
    train_secs: dict[str, float]
    peak_mb: float | None  # resident memory of the trainer, the most of all seeds
    tflop: float
    machine: Machine
    commit: str
    settings: dict[str, Any]  # settings that are not at their defaults
    trace: Trace  # the first seed's
    digest: str = ""  # SHA-256 of the above
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
        if (value := getattr(settings, field.name)) == field.default:
            continue
        if dataclasses.is_dataclass(value):
            value = list_differences(value)
        elif isinstance(value, tuple):
            value = [list_differences(v) if dataclasses.is_dataclass(v) else v for v in value]
        differing[field.name] = value
    return differing


def describe_settings(config: ResolvedRun) -> dict[str, Any]:
    """Return what all seeds of a recipe share: no seed, nor where the store is."""
    data = dataclasses.replace(config.data, store="", data_cache="", random_seed=0)
    settings = list_differences(dataclasses.replace(config, data=data, seed=0))
    settings["data"].pop("random_seed", None)  # the seed's number
    return settings


def make_config(settings: Mapping[str, Any], seed: int, store: str, name: object) -> ResolvedRun:
    """Make the config of a seed from the settings that an entry holds.

    Raises:
      DamagedFile: this bert_jax lacks one of the settings; the message begins with `name`.
    """
    config = small_files.parse_record(settings, ResolvedRun, name)
    data = dataclasses.replace(config.data, store=store, random_seed=seed)
    return dataclasses.replace(config, data=data, seed=seed)


def count_optimizer_flops(name: str, kernels: Sequence[tuple[int, int]], steps: int) -> float:
    """Count the operations of an optimizer's own matrix products, 2 per multiply-add.

    `kernels` are the sizes of the encoder layers' matrices. Muon makes each orthogonal in
    MUON_ITERATIONS of A = X X', A A and (b A + c A A) X, with X turned so that its rows are fewer.

    Raises:
      Refused: the products of the optimizer are not known.

    Source: Jordan et al. 2024 (Muon), Newton-Schulz iteration.
    """
    if name in _ELEMENTWISE:
        return 0.0
    if name != "muon":
        raise Refused(
            f"config.optim.name is {name}, whose matrix products are not counted; choose from "
            f"{', '.join((*_ELEMENTWISE, 'muon'))}, or count them in {__name__}"
        )
    sides = [sorted(kernel) for kernel in kernels]
    return float(steps * MUON_ITERATIONS * sum(4 * m * m * n + 2 * m**3 for m, n in sides))


def count_tflop(config: ResolvedRun) -> float:
    """Count the matrix products of a run in units of 1e12 operations, padding included.

    Raises:
      Refused: the products of the optimizer are not known.
    """
    operations = sum(
        phase.steps * count_step_flops(config, index) for index, phase in enumerate(config.phases)
    )
    model = bert.build(config.model, "cpu", 1, config.compute, find_each(config)[0].heads)
    kernels = [
        leaf.shape
        for name, leaf in name_leaves(model.abstract_params).items()
        if "layers" in name.split("/") and name.endswith("/kernel") and leaf.ndim == 2
    ]
    own = count_optimizer_flops(config.optim.name, kernels, total_steps(config))
    return (operations + own) / 1e12


def make_entry(
    track: str,
    changed: str,
    results: Mapping[str, Any],
    seed_1: pathlib.Path,
    record: Callable[[ResolvedRun, int], Trace] = record_trace,
) -> Entry:
    """Make an entry from the results of all seeds, and trace the first seed once more.

    `seed_1` is the workdir of that seed's run, whose newest checkpoint the trace must reach.

    Raises:
      Refused: a seed is missing, the recipe breaks a rule, or its training does not repeat.
    """
    recipe, by_seed = results["recipe"], results["seeds"]
    if missing := [str(seed) for seed in SEEDS if "loss" not in by_seed.get(str(seed), {})]:
        raise Refused(
            f"seeds {', '.join(missing)} have no results; an entry needs --seeds="
            f"{','.join(map(str, SEEDS))}"
        )
    config = make_config(recipe["settings"], SEEDS[0], recipe["store"], "settings")
    total = total_steps(config)
    print(f"training seed {SEEDS[0]} once more, to record its fingerprints")
    made = record(config, total)
    reached = total, (made.weights[str(total)], made.optimizer[str(total)])
    if (saved := read_fingerprints(seed_1)) != reached:
        raise Refused(
            f"{seed_1} ended at step {saved[0]} with the fingerprints {saved[1]}, and training it "
            f"again at step {reached[0]} with {reached[1]}: it does not repeat here to the bit"
        )
    peaks = [by_seed[str(seed)]["peak_mb"] for seed in SEEDS]
    return Entry(
        track,
        changed,
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        " ".join([recipe["config"], *recipe["flags"]]),
        {str(seed): by_seed[str(seed)]["loss"] for seed in SEEDS},
        {str(seed): by_seed[str(seed)]["train_secs"] for seed in SEEDS},
        max((peak for peak in peaks if peak is not None), default=None),
        count_tflop(config),
        describe_machine(),
        recipe["commit"],
        recipe["settings"],
        made,
    )


def describe_machine() -> Machine:
    """Describe the machine that this process runs on."""
    return Machine(read_cpu_model(), count_cores(), jax.__version__)


def compute_digest(entry: Entry) -> str:
    """Compute the SHA-256 of all that an entry holds, but its name and digest."""
    content = dataclasses.asdict(entry)
    del content["name"], content["digest"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find_path(name: str) -> pathlib.Path:
    """Return the file of a new entry; raise Refused if the name is taken, or has folders."""
    path = ENTRIES / f"{name}.json"
    if path.exists() or path.parent != ENTRIES:
        raise Refused(f"{path} exists, or is not a file of {ENTRIES}; give another --name")
    return path


def write_entry(name: str, entry: Entry) -> pathlib.Path:
    """Write an entry and return its file; raise Refused if there is one of this name."""
    path = find_path(name)
    ENTRIES.mkdir(exist_ok=True)
    content = dataclasses.asdict(entry) | {"digest": compute_digest(entry)}
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

    Entries of track COMPUTE count as earlier ones of track DATA too.
    """
    verdicts = list[Verdict]()
    for entry in entries:
        standing = [verdict.entry for verdict in verdicts if not verdict.faults]
        earlier = [each for each in standing if entry.track in (each.track, DATA)]
        faults = list(_find_faults(entry, earlier))
        gain = None
        if earlier and not faults:
            best = min(earlier, key=lambda each: each.mean)
            gain = compare_paired(*([each.losses[str(s)] for s in SEEDS] for each in (best, entry)))
            if not gain.mean > gain.half_width:
                faults.append(f"no gain over {best.name}")
        verdicts.append(Verdict(entry, gain, faults))
    return verdicts


def find_faults_of_recipe(track: str, config: ResolvedRun, tflop: float) -> Iterator[str]:
    """Name the rules that a recipe breaks, which show before it is trained."""
    for key in ("init", "teacher"):
        if getattr(config, key):
            yield f"config.{key} is {getattr(config, key)}: weights from elsewhere"
    if track == COMPUTE and tflop > MAX_TFLOP:
        yield f"{tflop:.2f} TFLOP are over {MAX_TFLOP}; it may enter --track={DATA}"


def _find_faults(entry: Entry, earlier: Sequence[Entry]) -> Iterator[str]:
    if entry.digest != compute_digest(entry):
        yield f"digest is {entry.digest[:12]}, and its contents have {compute_digest(entry)[:12]}"
    if entry.track not in (COMPUTE, DATA):
        yield f"track is {entry.track}, not {COMPUTE} or {DATA}"
    try:
        config = make_config(entry.settings, SEEDS[0], "", entry.name)
        tflop, made = count_tflop(config), entry.trace
    except Refused as error:
        yield f"{error}; check it at its commit {entry.commit}"
        return
    if abs(tflop - entry.tflop) > 1e-6 * tflop:
        yield f"tflop is {entry.tflop:.4f}, and its settings give {tflop:.4f}"
    yield from find_faults_of_recipe(entry.track, config, tflop)
    marks = {str(step) for step in list_fingerprint_steps(total_steps(config))}
    if len(made.losses) != FIRST_STEPS or not marks == set(made.weights) == set(made.optimizer):
        yield f"trace has not {FIRST_STEPS} losses and fingerprints after {len(marks)} steps"
    for key in ("losses", "train_secs"):
        by_seed = getattr(entry, key)
        if sorted(by_seed) != [*map(str, SEEDS)] or not all(n > 0 for n in by_seed.values()):
            yield f"{key} are not of the seeds {SEEDS[0]} to {SEEDS[-1]}, all above 0"
            return
    longest = max(entry.train_secs.values())
    if entry.track == DATA and longest > MAX_TRAIN_SECS:
        yield f"{longest:.0f} s of training are over {MAX_TRAIN_SECS:.0f}"
    if entry.track == COMPUTE and earlier and earlier[0].machine.is_like(entry.machine):
        ratio = entry.mean_secs / earlier[0].mean_secs
        if ratio > MAX_TIME_RATIO:
            yield f"{ratio:.2f} times the time of {earlier[0].name}, over {MAX_TIME_RATIO}"
