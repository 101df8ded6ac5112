"""Train each model of configs/quickstart.py from several seeds, and compare what they learned.

    make quickstart
    python -m benchmarks.families --store=runs/quickstart/store --output=DIR --seeds=3

Each run is `python -m bert_jax.train` in DIR/MODEL-SEED, on as many rows; a finished one is not
trained again, a stopped one resumes, and DIR takes no other store. Then all models that fill masked
words are scored on the same words of the held-out text; losses of different objectives do not
compare.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import rich.console
import rich.table

from benchmarks.results import HELP, Measured, open_row, write_row
from bert_jax.lab.kinds import score_masked_words
from bert_jax.lab.row_kind import MASKED_WORDS
from bert_jax.lab.runs import claim_folder
from bert_jax.logging.console import Screen
from bert_jax.logging.statistics import CONFIDENCE, compare_paired, describe_mean
from configs.quickstart import MODELS
from data_pipeline.io import Refused
from data_pipeline.store import open_store

SEQ_LEN = 64  # the last phase's
SAME_WORDS = "masked_words"  # the loss on words that are the same for every model, in nats
# Keys of a run's summary.json, each next to the key of a model without context.
MEASURES = {
    "heldout_mlm_loss": "unigram_mlm_loss",
    "heldout_causal_loss": "unigram_causal_loss",
    "heldout_permutation_loss": "unigram_permutation_loss",
    "heldout_nsp_accuracy": "majority_nsp_accuracy",
    "heldout_rtd_accuracy": "heldout_majority_rtd_accuracy",
    "heldout_rtd_auc": "",
}
COMPARED = (SAME_WORDS, "heldout_rtd_accuracy", "heldout_rtd_auc")  # comparable between models


def claim(folder: pathlib.Path, **settings: object) -> None:
    """Claim a benchmark's folder; exit if its runs have other settings, or another `store`."""
    try:
        if "store" in settings:
            settings["store"] = open_store(str(settings["store"])).digest
        claim_folder(folder, "settings.json", settings, "benchmark", "--output")
    except Refused as error:
        sys.exit(f"error: {error}")


def train(
    config: str, seed: int, store: str, workdir: pathlib.Path, flags: Sequence[str] = ()
) -> None:
    """Run bert_jax.train to its end, unless the run is finished; raise if it fails."""
    if (workdir / "summary.json").exists():
        return
    flags = [f"--config={config}", *flags, f"--config.data.store={store}", f"--workdir={workdir}"]
    flags += [f"--config.seed={seed}", f"--config.data.random_seed={seed}"]
    subprocess.run([sys.executable, "-m", "bert_jax.train", *flags], check=True)


def measure(workdir: pathlib.Path, store: str, screen: Screen) -> dict[str, float]:
    """Return a finished run's MEASURES, their baselines and SAME_WORDS."""
    summary = json.loads((workdir / "summary.json").read_text())
    names = [*MEASURES, *filter(None, MEASURES.values()), "train_secs", "parameters"]
    measured = {name: float(summary[name]) for name in names if name in summary}
    same_words = score_masked_words(str(workdir), store, SEQ_LEN, screen)[MASKED_WORDS]
    return measured if isinstance(same_words, str) else measured | {SAME_WORDS: same_words}


def main() -> None:
    """Train, score and compare."""
    parser = argparse.ArgumentParser(description="Compare the models of the quickstart.")
    parser.add_argument("--store", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    arguments = parser.parse_args()
    row = open_row(arguments.record)
    claim(arguments.output, store=arguments.store)
    runs: dict[str, list[dict[str, float]]] = {model: [] for model in arguments.models}
    for seed in range(arguments.seeds):  # every model once, then every model again
        for model in arguments.models:
            config = f"configs/quickstart.py:model={model}"
            train(config, seed, arguments.store, arguments.output / f"{model}-{seed}")
    screen = Screen(is_writer=True)
    for model, measured in runs.items():
        for seed in range(arguments.seeds):
            workdir = arguments.output / f"{model}-{seed}"
            measured.append(measure(workdir, arguments.store, screen))
    (arguments.output / "families.json").write_text(json.dumps(runs, indent=1) + "\n")
    report(runs, rich.console.Console(width=110))
    write_row(row, describe(runs, arguments.seeds))


def describe(runs: dict[str, list[dict[str, float]]], seeds: int) -> Measured:
    """Describe mean and standard deviation of each measure and model."""
    figures = []
    for name in (SAME_WORDS, *MEASURES):
        having = {model: measured for model, measured in runs.items() if name in measured[0]}
        means = [
            f"{model} {describe_mean([run[name] for run in measured])}"
            for model, measured in having.items()
        ]
        figures += [f"{name}: {', '.join(means)}"] if means else []
    return Measured(
        what="models of `configs/quickstart.py`: loss on the same masked words (all as [MASK]) and "
        "each model's own held-out measures",
        figure="; ".join(figures),
        runs=f"{seeds} each",
    )


def report(runs: dict[str, list[dict[str, float]]], console: rich.console.Console) -> None:
    """Print mean and standard deviation of each measure, and the differences between models."""
    table = rich.table.Table("model", "measure", "mean ± sd", "without context")
    for model, measured in runs.items():
        for name in (SAME_WORDS, *MEASURES):
            if name not in measured[0]:
                continue
            values = [run[name] for run in measured]
            without = measured[0].get(MEASURES.get(name, ""))
            shown = "" if without is None else f"{without:.3f}"
            table.add_row(model, name, describe_mean(values), shown)
    console.print(table)
    if len(next(iter(runs.values()))) < 2:
        return
    console.print(f"differences by seed, with the interval of {CONFIDENCE:.0%}:")
    for name in COMPARED:
        having = {model: measured for model, measured in runs.items() if name in measured[0]}
        for models in itertools.combinations(having, 2):
            ours, theirs = ([run[name] for run in having[model]] for model in models)
            words = _describe_difference(ours, theirs)
            console.print(f"  {name}, {' - '.join(models)}: {words}")
    for model, measured in runs.items():
        for name, baseline in MEASURES.items():
            if baseline and name in measured[0]:
                ours, theirs = ([run[key] for run in measured] for key in (name, baseline))
                words = _describe_difference(ours, theirs)
                console.print(f"  {model}, {name} - without context: {words}")


def _describe_difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    difference = compare_paired(ours, theirs)
    words = "larger than chance" if difference.is_beyond_chance else "within chance"
    return f"{difference.describe(4)}, {words}"


if __name__ == "__main__":
    main()
