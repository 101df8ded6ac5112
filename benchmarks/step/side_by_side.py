"""Compare our training step with another program's: they must agree, then take turns.

Both sides are processes that stay alive and take turns of a few steps, so that other work on the
machine slows both alike; a round's ratio is their time divided by ours.

make_environment installs the other program in an environment of its own.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table

from benchmarks import results as rows
from benchmarks.step.cases import (
    CASES,
    PADDING_OF_ROBERTA,
    VOCAB_SIZE,
    Case,
    synthetic_batch,
)
from benchmarks.step.workers import Worker
from bert_jax.config import ModelConfig
from bert_jax.model import flops
from bert_jax.parallel import chips
from bert_jax.runtime.code_version import git_commit

LEARNING_RATE, DROPOUT_RATE = 1e-4, 0.1
CHECKED_CASE = "4x256"
LOSS_TOLERANCE = 1e-4  # nats
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RANDOM = ("electra", "xlnet")  # families whose losses depend on what each side draws
GRADIENT_TOLERANCE = 1e-3  # relative to the largest element of each parameter's gradient

Arrays = dict[str, np.ndarray]
Results = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Theirs:
    """Describe the other program: how to start it, ask it, and read its parameters."""

    name: str
    python: pathlib.Path
    module: str
    timed_as: Mapping[str, Any]  # extra arguments of its build
    checked_as: Mapping[str, Any]  # extra arguments of its build in float32 on a CPU
    to_ours: Callable[
        [Mapping[str, np.ndarray], int], Arrays
    ]  # (their arrays, layers) -> arrays under our paths


@contextlib.contextmanager
def both_sides(other: Theirs, platform: str) -> Iterator[tuple[Worker, Worker]]:
    """Start their and our worker as fresh processes; platform is JAX's name."""
    # Two programs on one GPU: neither may take all of its memory at its start.
    settings = {"JAX_PLATFORMS": platform, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    theirs = Worker(other.python, other.module, settings=settings)
    # Our commands restart with this setting (decision 77); exported, it applies to both sides.
    huge_pages = {"GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")}
    ours = Worker(
        pathlib.Path(sys.executable),
        "benchmarks.step.bert_jax_worker",
        settings=settings | huge_pages,
    )
    try:
        yield theirs, ours
    finally:
        theirs.close()
        ours.close()


def build(
    other: Theirs,
    workers: tuple[Worker, Worker],
    case: Case,
    folder: pathlib.Path,
    checks: bool = False,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compile a case on both sides, without dropout for a check; return their and our answers.

    Raises:
      ValueError: they have different numbers of parameters.
    """
    batch_file = folder / "batch.npz"
    np.savez(batch_file, **synthetic_batch(case))
    request = {
        "size": case.fields,
        "dropout_rate": 0.0 if checks else DROPOUT_RATE,
        "batch_file": str(batch_file),
        "learning_rate": LEARNING_RATE,
    }
    theirs, ours = workers
    asked = other.checked_as if checks else other.timed_as
    dtype = asked.get("dtype", "float32")
    built = theirs.ask("build", **request, **asked), ours.ask("build", **request, dtype=dtype)
    counts = [side["parameters"] for side in built]
    if counts[0] != counts[1]:
        raise ValueError(f"{other.name} has {counts[0]:,} parameters, we {counts[1]:,}")
    return built


def check_agreement(other: Theirs, case: Case) -> Results:
    """Run both on the same weights and batch without dropout and compare losses and gradients.

    On CPUs, in float32, so that rounding hides no difference.

    Raises:
      ValueError: they differ by more than rounding; names what differs most.
    """
    with tempfile.TemporaryDirectory() as name, both_sides(other, "cpu") as (theirs, ours):
        folder = pathlib.Path(name)
        build(other, (theirs, ours), case, folder, checks=True)
        theirs.ask("run", steps=3)  # so that biases and norms are no longer zeros and ones
        files = {of: str(folder / f"{of}.npz") for of in ("hf", "mapped", "hf_grads", "our_grads")}
        theirs.ask("save_params", file=files["hf"])
        np.savez(files["mapped"], **other.to_ours(np.load(files["hf"]), case.layers))
        losses = (
            theirs.ask("gradients", params_file=files["hf"], out_file=files["hf_grads"]),
            ours.ask("gradients", params_file=files["mapped"], out_file=files["our_grads"]),
        )
        expected = other.to_ours(np.load(files["hf_grads"]), case.layers)
        got = np.load(files["our_grads"])
        apart = {
            path: float(np.abs(got[path] - gradient).max() / np.abs(gradient).max())
            for path, gradient in expected.items()
            if not path.endswith(
                "attention/key/bias"
            )  # softmax cancels a key bias: both gradients are rounding
        }
    worst = max(apart, key=lambda path: (np.isnan(apart[path]), apart[path]))
    agreement = {
        "theirs": losses[0],
        "ours": losses[1],
        "parameters_compared": len(apart),
        "worst_gradient": worst,
        "worst_gradient_difference": apart[worst],  # by its largest element
    }
    # A NaN is within no tolerance.
    is_same = all(abs(losses[0][term] - losses[1][term]) <= LOSS_TOLERANCE for term in losses[0])
    if not is_same or not apart[worst] <= GRADIENT_TOLERANCE:
        raise ValueError(f"the two sides compute different things: {agreement}")
    return agreement


def check_losses(other: Theirs, case: Case) -> Results:
    """Compare the losses of a family on weights that they write and we read.

    Without dropout, on CPUs, in float32, of weights after three steps. Gradients are for
    check_agreement and the tests.

    Raises:
      ValueError: they differ by more than rounding.
    """
    with tempfile.TemporaryDirectory() as name, both_sides(other, "cpu") as (theirs, ours):
        build(other, (theirs, ours), case, pathlib.Path(name), checks=True)
        if case.family in RANDOM:
            return {}
        theirs.ask("run", steps=3)
        folder = pathlib.Path(name) / "export"
        expected = theirs.ask("export", folder=str(folder))
        padding = PADDING_OF_ROBERTA if case.family == "roberta" else 0
        words = [f"word{i}" for i in range(VOCAB_SIZE - len(SPECIAL))]
        words[padding:padding] = SPECIAL
        (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        losses = ours.ask("losses_of", folder=str(folder))
    if not all(abs(losses[term] - loss) <= LOSS_TOLERANCE for term, loss in expected.items()):
        raise ValueError(f"{case.family} has losses {expected} there, {losses} here")
    return {"theirs": expected, "ours": losses}


def time_in_turns(
    other: Theirs, case: Case, platform: str, rounds: int, turn_secs: float
) -> Results:
    """Return the milliseconds per step of each side and round, and their ratios."""
    with tempfile.TemporaryDirectory() as name, both_sides(other, platform) as workers:
        built = build(other, workers, case, pathlib.Path(name))
        steps = [max(1, round(turn_secs / side.ask("run", steps=1)["secs"])) for side in workers]
        timed = [
            {
                f"{name}_{key}": 1e3 * secs / turn
                for name, side, turn in zip(("hf", "our"), workers, steps, strict=True)
                for key, secs in _turn(side, turn).items()
            }
            for _ in range(rounds)
        ]
    return {
        "case": dataclasses.asdict(case),
        "parameters": built[1]["parameters"],
        "hf": built[0],
        "ours": built[1],
        "steps_a_turn": steps,
        "rounds": timed,
        "ratio": ratio_of(timed, "ms"),
        "cpu_ratio": ratio_of(timed, "cpu_ms"),  # processor time: other work hardly changes it
        "utilization": utilization(case, timed, built[1]["device"]),
    }


def _turn(side: Worker, steps: int) -> dict[str, float]:
    done = side.ask("run", steps=steps)
    return {"ms": done["secs"], "cpu_ms": done["cpu_secs"]}


def ratio_of(rounds: Sequence[Mapping[str, float]], key: str) -> dict[str, float]:
    """Return median and extremes over the rounds of their time divided by ours."""
    ratios = [one[f"hf_{key}"] / one[f"our_{key}"] for one in rounds]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def utilization(
    case: Case, rounds: Sequence[Mapping[str, float]], device_kind: str
) -> dict[str, float] | None:
    """Return each side's share of the device's bfloat16 peak at its median; None if unknown.

    Only operations that the task needs are counted, for both: projecting positions that are not
    predicted on the vocabulary does not count.
    """
    chip = chips.find_chip(device_kind)
    if chip is None:
        return None
    of_a_row = flops.count_train_flops(ModelConfig(**case.sizes), case.seq_len, case.predictions)
    return {
        side: of_a_row
        * case.batch_size
        / (1e-3 * statistics.median(one[f"{side}_ms"] for one in rounds))
        / chip.device_bf16_flops_per_sec
        for side in ("hf", "our")
    }


def compare(
    other: Theirs,
    cases: Mapping[str, Case],
    platform: str,
    rounds: int,
    turn_secs: float,
) -> Results:
    """Check that both agree, on a small case, and time every case.

    Raises:
      ValueError: they compute different things.
      RuntimeError: a side ended.
    """
    load_before = os.getloadavg()[0]
    agreement = check_agreement(other, CASES[CHECKED_CASE])
    timed = {}
    for name, case in cases.items():
        same = {} if case.family == "bert" else {"losses": check_losses(other, case)}
        timed[name] = time_in_turns(other, case, platform, rounds, turn_secs) | same
    first = next(iter(timed.values()))
    return {
        "commit": git_commit() or "unknown",
        "device": first["ours"]["device"],
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load_before,
        "versions": {side: first[side]["versions"] for side in ("hf", "ours")},
        "asked_of_theirs": dict(other.timed_as),
        "agreement": agreement,
        "cases": timed,
    }


def show(results: Results, console: rich.console.Console) -> None:
    """Print how well they agree, and a line per case."""
    agreement = results["agreement"]
    console.print(
        f"same losses ({agreement['theirs']} there, {agreement['ours']} here) and gradients "
        f"(worst: {agreement['worst_gradient']}, {agreement['worst_gradient_difference']:.1e})"
    )
    table = rich.table.Table(title="A training step: medians of rounds; ratios also least - most")
    for heading in ("model", "batch", "HF ms", "our ms", "HF / ours", "in CPU time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, case in results["cases"].items():
        batch = f"{case['case']['batch_size']} x {case['case']['seq_len']}"
        ms = [statistics.median(one[key] for one in case["rounds"]) for key in ("hf_ms", "our_ms")]
        ratios = [
            f"{ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})"
            for ratio in (case["ratio"], case["cpu_ratio"])
        ]
        table.add_row(name, batch, *(f"{of:,.1f}" for of in ms), *ratios)
    console.print(table)
    for name, case in results["cases"].items():
        if case["utilization"] is not None:
            theirs, ours = case["utilization"]["hf"], case["utilization"]["our"]
            console.print(f"{name}: {theirs:.1%} of the bfloat16 peak there, {ours:.1%} here")
    console.print(
        f"{results['device']}, {results['cores']} cores, load {results['load_before']:.1f} before; "
        f"commit {results['commit']}"
    )
    for side, versions in results["versions"].items():
        console.print(f"{side}: {', '.join(f'{name} {is_at}' for name, is_at in versions.items())}")


def report(
    other: Theirs,
    cases: Mapping[str, Case],
    platform: str,
    rounds: int,
    turn_secs: float,
    console: rich.console.Console,
    json_out: str | None,
    record: str,
) -> None:
    """Compare, print the results, and write every round to a file and a row if they are named.

    A comparison that fails ends the process with one line.
    """
    row = rows.open_row(record)
    try:
        results = compare(other, cases, platform, rounds, turn_secs)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    show(results, console)
    if json_out:
        pathlib.Path(json_out).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    rows.write_row(row, describe(other.name, results))


def describe(theirs: str, results: Results) -> rows.Measured:
    """Describe the times of every case as a row of docs/results."""
    sizes, times, ratios = [], [], []
    for name, case in results["cases"].items():
        batch = f"{case['case']['batch_size']} x {case['case']['seq_len']}"
        ms = [[one[key] for one in case["rounds"]] for key in ("hf_ms", "our_ms")]
        sizes.append(f"{name}, batch {batch}")
        times.append(f"{name} {rows.describe_times(*ms, 'ms')}")
        ratios.append(f"{name} {rows.describe_ratio(*ms)}")
    asked = ", ".join(f"{key} {value}" for key, value in results["asked_of_theirs"].items())
    return rows.Measured(
        what=f"training step, {'; '.join(sizes)}: {theirs} ({asked}) / ours",
        figure="; ".join(times),
        runs=f"{len(case['rounds'])} rounds, alternating",
        headline=f"Training step, the time of {theirs} divided by ours (range): "
        f"{', '.join(ratios)}.",
        versions=results["versions"]["hf"],
        accelerator="" if results["device"] == "cpu" else results["device"],
    )


def make_environment(
    env: pathlib.Path, wanted: Sequence[str], console: rich.console.Console
) -> pathlib.Path:
    """Return the Python of an environment with these packages, made with pip where it is absent."""
    python, ready = env / "bin" / "python", env / "installed.txt"
    if ready.exists() and ready.read_text(encoding="utf-8").split() == list(wanted):
        return python
    console.print(f"making {env} with {', '.join(wanted)}")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    ready.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python
