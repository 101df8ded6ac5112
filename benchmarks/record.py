"""Renew a row of docs/results from the numbers that a command of the product wrote.

    python -m benchmarks.record quickstart runs/seed-1 runs/seed-2   # workdirs of bert_jax.train
    python -m benchmarks.record sampler FILE.json     # --json_out of data_pipeline.benchmark
    python -m benchmarks.record base_step FILE.json   # --json_out of bert_jax.plan

The row keeps its command, which is the one that wrote them. A run names its commit itself; a file
must be newer than the commit that is checked out.
"""

import argparse
import dataclasses
import datetime
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.results import Measured, ask_git, list_rows, open_row, read_themes, write_row
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.runtime import run_record

Numbers = dict[str, Any]


def describe_runs(name: str, summaries: Sequence[Numbers]) -> Measured:
    """Describe the held-out scores of the seeds of a pre-training run."""
    losses = [summary["heldout_mlm_loss"] for summary in summaries]
    keys = ("unigram_mlm_loss", "ngram_mlm_loss", "heldout_nsp_accuracy", "majority_nsp_accuracy")
    scores = {key: [s[key] for s in summaries if key in s] for key in keys}
    medians = {key: statistics.median(found) for key, found in scores.items() if found}
    minutes = statistics.median(summary["train_secs"] / 60 for summary in summaries)
    spread = f"{statistics.median(losses):.2f} nats (median of {len(losses)} seeds, "
    spread += f"{min(losses):.2f} to {max(losses):.2f})"
    lines = ", ".join(f"{key} {value:.3f}" for key, value in medians.items())
    return Measured(
        what=f"{name}, {len(losses)} seeds: held-out MLM loss; medians of scores without training "
        "and of next sentences; time in steps",
        figure=f"{', '.join(f'{loss:.3f}' for loss in losses)}: {spread}; {lines}; "
        f"{minutes:.1f} min",
        runs=str(len(losses)),
        headline=f"{name.capitalize()}: held-out masked-LM loss {spread} after {minutes:.1f} "
        f"minutes of training; word frequencies score {medians['unigram_mlm_loss']:.3f}, counts "
        f"of two neighbors {medians['ngram_mlm_loss']:.3f}.",
    )


def describe_sampler(measured: Numbers) -> Measured:
    """Describe the rates of the input pipeline."""
    rates = [
        f"{line['sequences_per_sec']:,.0f} sequences/s with {line['cores']} core(s)"
        for line in measured["by_cores"]
    ]
    share = measured["by_cores"][0]["sequences_per_sec"] / measured["numpy_sequences_per_sec"]
    length = f"sequences of {measured['seq_len']} tokens"
    return Measured(
        what=f"batches through tf.data, {length}, up to {measured['packed_examples']} per row, "
        f"from {measured['store_tokens'] / 1e6:.1f} M tokens",
        figure=f"{', '.join(rates)}; the first is {share:.0%} of a plain NumPy loop's",
        runs="1",
        headline=f"Sampling of {length}: {rates[0]}.",
    )


def describe_plan(plan: Numbers) -> Measured:
    """Describe the compiler's estimate of every phase."""
    phases = [
        f"{1e3 * phase['estimate']['step_secs']:.2f} ms per step of {phase['rows_per_step']:,} "
        f"rows of {phase['seq_len']}, of which {1e3 * phase['estimate']['exposed_secs']:.2f} ms "
        f"waiting for collectives, {phase['estimate']['peak_share']:.1%} of peak"
        for phase in plan["phases"]
    ]
    run = f"{plan['run']['steps']:,} steps in {plan['run']['secs'] / 3600:.1f} hours"
    size = f"{plan['parameters'] / 1e6:.1f} M parameters on {plan['topology']}"
    return Measured(
        what=f"{size}, the TPU compiler's estimate; no chip ran it",
        figure=f"{'; '.join(phases)}; {run}",
        runs="1",
        headline=f"{size}, by the TPU compiler's *estimate*: {run}.",
        versions=plan["versions"],
    )


def describe_files(name: str, files: Sequence[pathlib.Path]) -> tuple[Measured, str]:
    """Describe the numbers of workdirs or of a file, and return the commit if they name it."""
    if files[0].is_dir():
        codes = [json.loads((run / run_record.FILE).read_text())["code"] for run in files]
        commits = {code["commit"] for code in codes}
        if len(commits) > 1 or any(str(commit).endswith("-dirty") for commit in commits):
            sys.exit(f"error: the runs are not of one commit: {commits}")
        summaries = [json.loads((run / SUMMARY).read_text()) for run in files]
        return describe_runs(name, summaries), str(commits.pop())[:8]
    (file,) = files
    if file.stat().st_mtime < float(ask_git("log", "-1", "--format=%ct")):
        sys.exit(f"error: {file} is older than the commit that is checked out; measure again")
    numbers = json.loads(file.read_text())
    return (describe_plan if "topology" in numbers else describe_sampler)(numbers), ""


def main() -> None:
    """Write the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row")
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="FILE.json, or workdirs")
    given = parser.parse_args()
    rows = {row.get("name"): row for row in list_rows(read_themes())}
    row = open_row(given.row, command=rows.get(given.row, {"command": "none"})["command"])
    measured, commit = describe_files(given.row, given.files)
    written = datetime.date.fromtimestamp(max(file.stat().st_mtime for file in given.files))
    if row is not None:
        facts = {"commit": commit or row.commit, "date": written.isoformat(), "load": None}
        write_row(dataclasses.replace(row, **facts), measured)


if __name__ == "__main__":
    main()
