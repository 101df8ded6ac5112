"""Compare the run that a budget chooses with configs set by hand, at equal time in steps.

    python -m benchmarks.dial_cell --store=STORE --budget=3m --output=DIR
    python -m benchmarks.dial_cell --store=STORE --budget=10m --output=LONGER --after=DIR

The budget's run is `python -m bert_jax.train --config=configs/auto.py`; its file is a system like
the others. Steps are timed in turns; each system gets the steps that take as long as the budget's
run. All run with seed 1. The three best and the budget's run then run with seeds 2 to 4, whose
scores alone count: nats per token on held-out text, as benchmarks/records/README.md defines them.
--after takes the best from a finished comparison instead, and runs them with the next two seeds:
the best three and one twice as wide, or the best two after a comparison that was itself --after.

DIR/steps.json keeps the number of steps of each system, so a stopped benchmark resumes with the
same command. On two cores, three minutes take an hour and a half, and ten minutes two hours.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.families import claim, train
from benchmarks.records.__main__ import score
from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.benchmarking import measure
from bert_jax.config import Config, Phase, overrides, resolve
from bert_jax.logging.console import Screen
from bert_jax.runtime.cli import GivenConfig
from bert_jax.trainer import feed
from data_pipeline.store import open_store

DIAL, CONFIG = "budget", "configs/quickstart.py"
ROUNDS, ROUND_SECS = 3, 1.0  # of timing each phase of each system
BEST, WIDE = 3, ", twice as wide"
RESULT = "result.json"


@dataclasses.dataclass(frozen=True)
class Hand:
    """Hold what people set by hand; steps of phase 1 have as many positions, in rows of 64."""

    optimizer: str
    rate: float
    rows: int
    layers: int = 2
    width: int = 128
    seq_len: int = 32
    share: float = 0.8  # the first phase's part of the steps


HAND = {
    "Muon, 96 rows": Hand("muon", 8e-3, 96),
    "Muon, 48 rows, 6e-3": Hand("muon", 6e-3, 48),
    "Muon, 192 rows, 1.2e-2": Hand("muon", 1.2e-2, 192),
    "Muon, 96 rows, 4e-3": Hand("muon", 4e-3, 96),
    "Muon, 4 x 128": Hand("muon", 8e-3, 96, layers=4),
    "Muon, 2 x 256": Hand("muon", 8e-3, 96, width=256),
    "Muon, 4 x 256, 6e-3": Hand("muon", 6e-3, 64, layers=4, width=256),
    "Muon, 48 rows of 64": Hand("muon", 8e-3, 48, seq_len=64, share=0.9),
    "AdamW, 48 rows": Hand("adamw", 3e-3, 48),
    "AdamW, 24 rows": Hand("adamw", 3e-3, 24),
    "AdamW, 96 rows, 5e-3": Hand("adamw", 5e-3, 96),
    "AdamW, 2 x 256, 1.5e-3": Hand("adamw", 1.5e-3, 32, width=256),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Hold the names of configs set by hand, seeds that choose the best, and seeds that count."""

    names: tuple[str, ...]
    choosing: tuple[int, ...]
    seeds: tuple[int, ...]


def enter(after: pathlib.Path | None) -> Entry:
    """Return what a comparison runs, which follows from the one before it."""
    if after is None:
        return Entry(tuple(HAND), (1,), (2, 3, 4))
    if not (after / RESULT).exists():
        sys.exit(f"error: --after={after} has no {RESULT}; finish that comparison first")
    means = json.loads((after / RESULT).read_text())
    best = sorted(means.keys() - {DIAL}, key=lambda name: float(means[name]))
    if "after" in json.loads((after / "settings.json").read_text()):
        return Entry(tuple(best[:2]), (), (7, 8))
    return Entry((*best, best[0] + WIDE), (), (5, 6))


def find_hand(name: str) -> Hand:
    """Return the config of a name, which may be one of HAND twice as wide."""
    hand = HAND[name.removesuffix(WIDE)]
    return dataclasses.replace(hand, width=hand.width * (1 + name.endswith(WIDE)))


def list_flags(hand: Hand, steps: Sequence[int]) -> list[str]:
    """Return the flags of a config set by hand, with these steps in each phase."""
    settings: dict[str, object] = {
        "optim.name": hand.optimizer,
        "optim.weight_decay": 0.3 if hand.optimizer == "muon" else 0.01,
        "optim.learning_rate": hand.rate,
        "optim.warmup_steps": max(1, steps[0] // 12),
        "model.num_hidden_layers": hand.layers,
        "model.hidden_size": hand.width,
        "model.num_attention_heads": hand.width // 64,
        "model.intermediate_size": 4 * hand.width,
        "model.initializer_range": round(hand.width**-0.5, 3),
        "model.max_position_embeddings": 64,
        "phases[1].restart_learning_rate": hand.rate,
        "phases[1].restart_warmup_steps": max(1, steps[1] // 8),
    }
    second = 64, hand.rows * hand.seq_len // 64
    for index, (seq_len, rows) in enumerate(((hand.seq_len, hand.rows), second)):
        phase = {"seq_len": seq_len, "batch_size": rows, "steps": steps[index]}
        settings |= {f"phases[{index}].{key}": value for key, value in phase.items()}
    return [f"--config.{key}={value}" for key, value in settings.items()]


def choose(store: str, budget: str, folder: pathlib.Path) -> str:
    """Run a budget once, and return the file of its choice."""
    chosen = folder / DIAL / "chosen_config.py"
    if not chosen.exists():
        flags = [f"--config.data.store={store}", f"--config.budget={budget}"]
        command = ["-m", "bert_jax.train", "--config=configs/auto.py", *flags]
        subprocess.run([sys.executable, *command, f"--workdir={folder / DIAL}"], check=True)
    return str(chosen)


def read_config(config: str, flags: Sequence[str], store: str) -> Config:
    """Read a system's config with its flags."""
    given, _ = overrides.take([*flags, f"--config.data.store={store}"], Config)
    return GivenConfig(Config, config, tuple(given)).load()


def time_steps(configs: dict[str, Config], store: str) -> dict[str, list[float]]:
    """Return the seconds of a step in each phase of each system, the median of rounds in turns."""
    opened, programs = open_store(store), {}
    for name, config in configs.items():
        for index, phase in enumerate(config.phases):
            alone = dataclasses.replace(config, phases=(measure.isolate(phase),))
            run = resolve(alone, store=feed.describe_store(opened.manifest))
            program = measure.compile_step(run)
            batches = measure.make_batches(program, feed.StoreFeed([opened], run), 4)
            programs[name, index] = program, batches
    timed: dict[tuple[str, int], list[float]] = {key: [] for key in programs}
    for _ in range(ROUNDS):
        for key, (program, batches) in programs.items():
            secs = measure.measure(program, batches, measure.Length(0, ROUND_SECS))
            timed[key].append(statistics.median(secs.group_step_secs))
    return {name: [statistics.median(timed[name, i]) for i in range(2)] for name in configs}


def plan_steps(
    configs: dict[str, Config], dial: Sequence[Phase], step_secs: dict[str, list[float]]
) -> dict[str, list[int]]:
    """Return the steps of each system that take as long as the budget's."""
    secs = sum(phase.steps * each for phase, each in zip(dial, step_secs[DIAL], strict=True))
    steps = {}
    for name in configs.keys() - {DIAL}:
        share, (first, second) = find_hand(name).share, step_secs[name]
        total = secs / (share * first + (1 - share) * second)
        steps[name] = [round(share * total), round((1 - share) * total)]
    return steps


def main() -> None:
    """Time, train and score all systems, then the best with other seeds; print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True)
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--record", default="", help=HELP)
    parser.add_argument("--after", type=pathlib.Path, help="folder of a finished comparison")
    given = parser.parse_args()
    command = f"python -m benchmarks.dial_cell --store=STORE --budget={given.budget} --output=DIR"
    command += " --after=SHORTER" * (given.after is not None)
    entry = enter(given.after)
    row = open_row(given.record, command)
    folder, store = given.output.absolute(), str(pathlib.Path(given.store).absolute())
    after = {"after": given.after.absolute().name} if given.after else {}
    claim(folder, store=store, budget=given.budget, **after)
    chosen, screen = choose(store, given.budget, folder), Screen(is_writer=True)
    plan = folder / "steps.json"
    if not plan.exists():
        given_steps = {name: list_flags(find_hand(name), (100, 25)) for name in entry.names}
        configs = {name: read_config(CONFIG, each, store) for name, each in given_steps.items()}
        configs[DIAL] = read_config(chosen, (), store)
        secs = time_steps(configs, store)
        plan.write_text(json.dumps(plan_steps(configs, configs[DIAL].phases, secs), indent=1))
    steps = json.loads(plan.read_text())
    scores: dict[str, dict[int, float]] = {name: {} for name in [DIAL, *entry.names]}

    def run(name: str, seed: int) -> None:
        workdir = folder / f"{name.replace(', ', '-').replace(' ', '')}-{seed}"
        kept = workdir / "score.json"
        if not kept.exists():
            flags = [] if name == DIAL else list_flags(find_hand(name), steps[name])
            train(chosen if name == DIAL else CONFIG, seed, store, workdir, flags)
            kept.write_text(json.dumps(score(str(workdir), store, screen)))
        scores[name][seed] = float(json.loads(kept.read_text()))
        print(f"{name}, seed {seed}: {scores[name][seed]:.3f}", flush=True)

    for seed, name in itertools.product(entry.choosing, scores):
        run(name, seed)
    best = sorted(entry.names, key=lambda name: sum(scores[name].values()))
    best = best[: BEST if entry.choosing else None]
    for seed, name in itertools.product(entry.seeds, (DIAL, *best)):
        run(name, seed)
    means = {
        name: statistics.mean([scores[name][seed] for seed in entry.seeds])
        for name in (DIAL, *best)
    }
    (folder / RESULT).write_text(json.dumps(means, indent=1))
    gap = means[DIAL] - min(means[name] for name in best)
    figure = "; ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    print(f"{figure}; the budget's run is {gap:+.3f} from the best by hand")
    tokens, seeds = open_store(store).train.tokens, f"{entry.seeds[0]} to {entry.seeds[-1]}"
    wide = sum(name.endswith(WIDE) for name in best)
    what = (
        f"a budget of {given.budget} on {tokens:,} tokens, and the best {len(best) - wide} of "
        f"{len(HAND)} configs set by hand{', the first also twice as wide,' * wide} with as much "
        f"time in steps: nats per held-out token, seeds {seeds}, mean"
    )
    if entry.choosing:
        what += "; then seed 1, by which they were chosen"
        figure += ". Seed 1: " + "; ".join(f"{name} {each[1]:.3f}" for name, each in scores.items())
    runs = str(len(entry.seeds)) + " and 1" * len(entry.choosing)
    write_row(row, Measured(what, figure, runs))


if __name__ == "__main__":
    main()
