"""Time our training step beside Hugging Face's FlaxBertForPreTraining, and check that they agree.

    python -m benchmarks.step_vs_hf_flax --rounds=10 --json_out=step_vs_hf_flax.json

Both sides are processes that stay alive and take turns of a few steps, so that other work on the
machine slows both alike; a round's ratio is their time by ours. The first run makes their
environment (--hf_env), with the versions of jax, flax and optax that are installed here, so that
programs are compared and not versions of jax. Before anything is timed, both must have the same
number of parameters and, with their weights in our model, the same losses and gradients.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.table
from absl import app, flags

from benchmarks import hf_flax_names
from benchmarks.turns import ROOT, Worker

TRANSFORMERS = "transformers==4.57.6"  # the last release with Flax models
SAME_AS_OURS = ("jax", "jaxlib", "flax", "optax", "numpy")
VOCAB_SIZE, PREDICTIONS, LEARNING_RATE, DROPOUT_RATE = 30_522, 20, 1e-4, 0.1
LOSS_TOLERANCE = 1e-4  # nats
GRADIENT_TOLERANCE = 1e-3  # of the largest element of each parameter's gradient

ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each side, at each size", lower_bound=1)
TURN_SECS = flags.DEFINE_float("turn_secs", 3.0, "about how long a side's turn lasts")
SIZES = flags.DEFINE_list("sizes", ["4x256", "12x768"], "which sizes, as layers x width")
HF_ENV = flags.DEFINE_string("hf_env", str(ROOT / ".venv-hf"), "their environment; made if absent")
HF_LOSS = flags.DEFINE_enum(
    "hf_loss", "onehot", ["onehot", "integer"], "form of their cross entropy; onehot: the example's"
)
PLATFORM = flags.DEFINE_string("platform", "cpu", "JAX_PLATFORMS of both sides")
JSON_OUT = flags.DEFINE_string("json_out", None, "file to write every round to")


@dataclasses.dataclass(frozen=True)
class Case:
    """A model's size, named as in bert_config.json, and the shape of its batch."""

    layers: int
    width: int
    heads: int
    batch_size: int
    seq_len: int

    @property
    def fields(self) -> dict[str, int]:
        """What both configurations take."""
        return {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
        }


CASES = {
    "4x256": Case(layers=4, width=256, heads=4, batch_size=16, seq_len=128),
    "12x768": Case(layers=12, width=768, heads=12, batch_size=4, seq_len=128),
}


def synthetic_batch(case: Case) -> dict[str, np.ndarray]:
    """Random ids in Google's fields, with padding, and rows with unused slots for predictions."""
    rng = np.random.default_rng(0)
    shape, slots = (case.batch_size, case.seq_len), (case.batch_size, PREDICTIONS)
    lengths_B = rng.integers(case.seq_len // 2, case.seq_len + 1, case.batch_size)
    visible_BS = np.arange(case.seq_len) < lengths_B[:, None]
    used_BP = np.arange(PREDICTIONS) < rng.integers(
        PREDICTIONS // 2, PREDICTIONS + 1, (slots[0], 1)
    )
    positions = [rng.choice(np.arange(1, n), PREDICTIONS, replace=False) for n in lengths_B]
    ids = {
        "input_ids": rng.integers(1, VOCAB_SIZE, shape) * visible_BS,
        "input_mask": visible_BS,
        "segment_ids": (np.arange(case.seq_len) >= lengths_B[:, None] // 2) & visible_BS,
        "masked_lm_positions": np.sort(positions, axis=1) * used_BP,
        "masked_lm_ids": rng.integers(1, VOCAB_SIZE, slots) * used_BP,
        "next_sentence_labels": rng.integers(0, 2, case.batch_size),
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "masked_lm_weights": used_BP.astype(np.float32),
        "next_sentence_weights": np.ones(case.batch_size, np.float32),
    }


def hf_python(env: pathlib.Path, console: rich.console.Console) -> pathlib.Path:
    """The interpreter of their environment, made with pip where it is absent."""
    python = env / "bin" / "python"
    ready = env / "installed.txt"
    wanted = [TRANSFORMERS] + [
        f"{name}=={importlib.metadata.version(name)}" for name in SAME_AS_OURS
    ]
    if ready.exists() and ready.read_text(encoding="utf-8").split() == wanted:
        return python
    console.print(f"making {env} with {', '.join(wanted)}")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    ready.write_text("\n".join(wanted) + "\n", encoding="utf-8")
    return python


@contextlib.contextmanager
def both_sides(hf: pathlib.Path) -> Iterator[tuple[Worker, Worker]]:
    """Theirs and ours, as fresh processes."""
    theirs = Worker(hf, "benchmarks.hf_flax_worker", platform=PLATFORM.value)
    ours = Worker(
        pathlib.Path(sys.executable), "benchmarks.bert_jax_worker", platform=PLATFORM.value
    )
    try:
        yield theirs, ours
    finally:
        theirs.close()
        ours.close()


def build(
    theirs: Worker, ours: Worker, case: Case, dropout_rate: float, folder: pathlib.Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let both sides compile a case; their and our answers.

    Raises:
      ValueError: they have different numbers of parameters.
    """
    batch_file = folder / "batch.npz"
    np.savez(batch_file, **synthetic_batch(case))
    request = {
        "size": case.fields,
        "dropout_rate": dropout_rate,
        "batch_file": str(batch_file),
        "learning_rate": LEARNING_RATE,
    }
    built = theirs.ask("build", **request, form=HF_LOSS.value), ours.ask("build", **request)
    counts = [side["parameters"] for side in built]
    if counts[0] != counts[1]:
        raise ValueError(f"FlaxBertForPreTraining has {counts[0]:,} parameters, we {counts[1]:,}")
    return built


def check_agreement(hf: pathlib.Path, case: Case) -> dict[str, Any]:
    """Run both on the same weights and batch without dropout and compare losses and gradients.

    Raises:
      ValueError: they differ by more than rounding; names what differs most.
    """
    with tempfile.TemporaryDirectory() as name, both_sides(hf) as (theirs, ours):
        folder = pathlib.Path(name)
        build(theirs, ours, case, 0.0, folder)
        theirs.ask("run", steps=3)  # so that biases and norms are no longer zeros and ones
        files = {of: str(folder / f"{of}.npz") for of in ("hf", "mapped", "hf_grads", "our_grads")}
        theirs.ask("save_params", file=files["hf"])
        np.savez(
            files["mapped"], **hf_flax_names.from_hf(np.load(files["hf"]), case.layers, case.heads)
        )
        losses = (
            theirs.ask("gradients", params_file=files["hf"], out_file=files["hf_grads"]),
            ours.ask("gradients", params_file=files["mapped"], out_file=files["our_grads"]),
        )
        expected = hf_flax_names.from_hf(np.load(files["hf_grads"]), case.layers, case.heads)
        got = np.load(files["our_grads"])
        apart = {
            path: float(np.abs(got[path] - gradient).max() / np.abs(gradient).max())
            for path, gradient in expected.items()
            if not path.endswith("attention/key/bias")  # softmax ignores it: both are rounding
        }
    worst = max(apart, key=lambda path: apart[path])
    agreement = {
        "theirs": losses[0],
        "ours": losses[1],
        "parameters_compared": len(apart),
        "worst_gradient": worst,
        "worst_gradient_difference": apart[worst],  # by its largest element
    }
    off = [loss for loss in losses[0] if abs(losses[0][loss] - losses[1][loss]) > LOSS_TOLERANCE]
    if off or apart[worst] > GRADIENT_TOLERANCE:
        raise ValueError(f"the two sides compute different things: {agreement}")
    return agreement


def time_in_turns(hf: pathlib.Path, case: Case) -> dict[str, Any]:
    """Milliseconds a step of each side in each round, and their ratios."""
    with tempfile.TemporaryDirectory() as name, both_sides(hf) as (theirs, ours):
        built = build(theirs, ours, case, DROPOUT_RATE, pathlib.Path(name))
        steps = [
            max(1, round(TURN_SECS.value / side.ask("run", steps=1)["secs"]))
            for side in (theirs, ours)
        ]
        rounds = [
            {
                f"{name}_{key}": 1e3 * secs / turn
                for name, side, turn in zip(("hf", "our"), (theirs, ours), steps, strict=True)
                for key, secs in _turn(side, turn).items()
            }
            for _ in range(ROUNDS.value)
        ]
    return {
        "case": dataclasses.asdict(case),
        "parameters": built[1]["parameters"],
        "hf": built[0],
        "ours": built[1],
        "steps_a_turn": steps,
        "rounds": rounds,
        "ratio": _ratio(rounds, "ms"),
        "cpu_ratio": _ratio(rounds, "cpu_ms"),  # of processor time: other work hardly moves it
    }


def _turn(side: Worker, steps: int) -> dict[str, float]:
    done = side.ask("run", steps=steps)
    return {"ms": done["secs"], "cpu_ms": done["cpu_secs"]}


def _ratio(rounds: Sequence[dict[str, float]], key: str) -> dict[str, float]:
    ratios = [one[f"hf_{key}"] / one[f"our_{key}"] for one in rounds]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return said.stdout.strip() or "unknown"


def _print(results: dict[str, Any], console: rich.console.Console) -> None:
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
        table.add_row(name, batch, *(f"{of:,.0f}" for of in ms), *ratios)
    console.print(table)
    console.print(
        f"{results['device']}, {results['cores']} cores, load {results['load_before']:.1f} before; "
        f"commit {results['commit']}"
    )
    for side, versions in results["versions"].items():
        console.print(f"{side}: {', '.join(f'{name} {is_at}' for name, is_at in versions.items())}")


def main(argv: Sequence[str]) -> None:
    """Check, time and report; 1 where the two sides disagree."""
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    unknown = sorted(set(SIZES.value) - CASES.keys())
    if unknown:
        raise app.UsageError(f"--sizes has {unknown[0]!r}; it may name {', '.join(CASES)}")
    console = rich.console.Console()
    hf = hf_python(pathlib.Path(HF_ENV.value).absolute(), console)
    load_before = os.getloadavg()[0]
    try:
        agreement = check_agreement(hf, CASES["4x256"])
        cases = {name: time_in_turns(hf, CASES[name]) for name in SIZES.value}
    except (RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    first = next(iter(cases.values()))
    results = {
        "commit": _commit(),
        "device": first["ours"]["device"],
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load_before,
        "versions": {side: first[side]["versions"] for side in ("hf", "ours")},
        "hf_loss": HF_LOSS.value,
        "agreement": agreement,
        "cases": cases,
    }
    _print(results, console)
    if JSON_OUT.value:
        pathlib.Path(JSON_OUT.value).write_text(
            json.dumps(results, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    app.run(main)
