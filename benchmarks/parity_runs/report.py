"""Print the results of parity.py as tables."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.table

from benchmarks.parity_runs.pairs import FOLDERS
from benchmarks.results import Measured, write_difference
from bert_jax.logging.statistics import describe_mean

SIDES = ("ours", "theirs")
# The rows of docs/results that parity.py measures, and the part, or part and task, of each.
ROWS = {
    "finetune_losses": "losses",
    **{f"finetune_{task}": f"seeds/{task}" for task in FOLDERS},
    "vectors": "vectors",
    "pretraining_losses": "pretraining",
    "pretraining_seeds": "pretraining",
}


def pair_line(name: str, seed: int, ran: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the scores and times of a pair of runs as a line."""
    score, wall, cpu = (
        [ran[side][key] for side in SIDES] for key in ("score", "wall_secs", "cpu_secs")
    )
    return (
        f"{name}, seed {seed}: {score[0]:.3f} here, {score[1]:.3f} there; {wall[0]:,.0f} and "
        f"{wall[1]:,.0f} s of wall time, {cpu[0]:,.0f} and {cpu[1]:,.0f} s of processor time"
    )


def show(results: Mapping[str, Any], console: rich.console.Console) -> None:
    """Print a table for each part that was run, and the machine and versions."""
    if "losses" in results:
        console.print(_losses(results["losses"]))
    if "seeds" in results:
        console.print(_seeds(results["seeds"]))
    if "vectors" in results:
        _print_vectors(results["vectors"], console)
    if "pretraining" in results:
        _print_pretraining(results["pretraining"], console)
    versions = ", ".join(f"{name} {is_at}" for name, is_at in results["versions"].items())
    console.print(
        f"{results['cores']} cores, load {results['load_before']:.1f} before; {versions}; "
        f"commit {results['commit']}"
    )


def _table(title: str, headings: Sequence[str]) -> rich.table.Table:
    table = rich.table.Table(title=title)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def _losses(losses: Mapping[str, Any]) -> rich.table.Table:
    headings = ("task", "steps", "ours, first", "last", "theirs, first", "last", "apart at most")
    table = _table("The same steps without dropout: losses in nats", headings)
    for task, result in losses.items():
        ends = [f"{result[side][at]:.5f}" for side in SIDES for at in (0, -1)]
        apart = f"{result['largest_difference']:.1e}"
        table.add_row(FOLDERS[task], str(len(result["ours"])), *ends, apart)
    return table


def ratio(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return their total time divided by ours, over all runs."""
    return sum(run["theirs"][key] for run in runs) / sum(run["ours"][key] for run in runs)


def _seeds(seeds: Mapping[str, Any]) -> rich.table.Table:
    headings = ("task", "score", "baseline", "ours", "theirs", "HF / ours", "in CPU", "steps")
    table = _table("With dropout: development scores, and time from start to end", headings)
    for task, result in seeds.items():
        scores = [describe_mean([run[side]["score"] for run in result["runs"]]) for side in SIDES]
        ratios = [
            f"{ratio(result['runs'], kind):.2f}" for kind in ("wall_secs", "cpu_secs", "train_secs")
        ]
        name = result["score"].replace("_", " ")
        table.add_row(FOLDERS[task], name, f"{result['baseline']:.3f}", *scores, *ratios)
    return table


def _print_vectors(vectors: Mapping[str, Any], console: rich.console.Console) -> None:
    ratios = [
        f"{one['median']:.2f} ({one['min']:.2f} - {one['max']:.2f})"
        for one in (vectors["ratio"], vectors["cpu_ratio"])
    ]
    secs = [
        statistics.median(one[f"{side}_secs"] for one in vectors["rounds"])
        for side in ("our", "hf")
    ]
    first = vectors["first_turn"]
    console.print(
        f"vectors of {vectors['sentences']:,} sentences of {FOLDERS[vectors['task']]}: "
        f"{secs[0]:.1f} s here, {secs[1]:.1f} s there; HF / ours {ratios[0]}, in CPU time "
        f"{ratios[1]}; apart by {vectors['largest_difference']:.1e} at most; the first turn "
        f"{first['our_secs']:.1f} s here, compiling included, {first['hf_secs']:.1f} s there"
    )


def _print_pretraining(results: Mapping[str, Any], console: rich.console.Console) -> None:
    headings = ("held out, nats", "ours", "theirs", "apart at most")
    runs, steps = results["seeds"]["runs"], results["seeds"]["steps"]
    table = _table(f"Pre-training with dropout, {steps:,} steps, {len(runs)} seeds", headings)
    for term, name in (("mlm", "masked words"), ("nsp", "next sentences")):
        of_sides = [[run[side]["heldout"][term] for run in runs] for side in SIDES]
        apart = max(abs(ours - theirs) for ours, theirs in zip(*of_sides, strict=True))
        table.add_row(name, *map(describe_mean, of_sides), f"{apart:.3f}")
    console.print(table)
    secs = [[run[side]["step_secs"] for run in runs] for side in SIDES]
    console.print(
        f"without context {runs[0]['ours']['unigram_loss']:.3f} nats; a step "
        f"{describe_mean(secs[0])} s here, {describe_mean(secs[1])} s there, compiling left out: "
        f"HF / ours {ratio(runs, 'step_secs'):.2f}"
    )
    if "mlm_difference" in results["seeds"]:
        difference = results["seeds"]["mlm_difference"]
        words = "larger than chance" if results["seeds"]["is_beyond_chance"] else "within chance"
        console.print(
            f"masked words, ours - theirs by seed: {difference['mean']:+.3f} ± "
            f"{difference['half_width']:.3f} nats (95%), {words}"
        )


def describe(results: Mapping[str, Any], name: str) -> Measured:
    """Describe the part of a row of ROWS."""
    part, _, task = ROWS[name].partition("/")
    measured = results[part]
    if part == "losses":
        described = _describe_losses(measured)
    elif part == "seeds":
        described = _describe_seeds(FOLDERS[task], measured[task])
    elif part == "vectors":
        described = _describe_vectors(measured)
    elif name == "pretraining_losses":
        described = _describe_pretraining_losses(measured["losses"])
    else:
        described = _describe_pretraining_seeds(measured["seeds"])
    versions = {name: results["versions"][name] for name in ("transformers", "torch")}
    return dataclasses.replace(described, versions=versions)


def _describe_losses(losses: Mapping[str, Any]) -> Measured:
    apart = [
        f"{FOLDERS[task]} {write_difference(result['largest_difference'])}"
        for task, result in losses.items()
    ]
    steps = len(next(iter(losses.values()))["ours"])
    return Measured(
        what=f"losses of {steps} fine-tuning steps without dropout, from the MiniLM weights: ours "
        "by `bert_jax.finetune` against Hugging Face's PyTorch",
        figure=f"{', '.join(apart)} nats apart at most",
        runs="1",
    )


def _describe_seeds(task: str, result: Mapping[str, Any]) -> Measured:
    case, runs = result["case"], result["runs"]
    scores = [describe_mean([run[side]["score"] for run in runs]) for side in SIDES]
    secs = [statistics.mean(run[side]["wall_secs"] for run in runs) for side in SIDES[::-1]]
    wall, cpu, steps = (ratio(runs, key) for key in ("wall_secs", "cpu_secs", "train_secs"))
    return Measured(
        what=f"{task}, {case['examples']:,} examples, {case['steps']} steps of "
        f"{case['batch_size']} with dropout: {result['score'].replace('_', ' ')} on dev, ours / "
        f"theirs (without reading {result['baseline']:.3f}); time of a run from start to end, "
        "theirs / ours",
        figure=f"{' / '.join(scores)}; {wall:.2f} in wall time ({secs[0]:.1f} / {secs[1]:.1f} s), "
        f"{cpu:.2f} in CPU time; of the steps alone, compiling included, {steps:.2f}",
        runs=f"{len(runs)} pairs, alternating",
    )


def _describe_vectors(vectors: Mapping[str, Any]) -> Measured:
    wall, cpu = (
        f"{one['median']:.2f} ({one['min']:.2f} - {one['max']:.2f})"
        for one in (vectors["ratio"], vectors["cpu_ratio"])
    )
    secs = [
        statistics.median(one[f"{side}_secs"] for one in vectors["rounds"])
        for side in ("hf", "our")
    ]
    return Measured(
        what=f"mean vectors of {vectors['sentences']:,} sentences of {FOLDERS[vectors['task']]}, "
        "tokenization included, MiniLM: Hugging Face PyTorch sorted by length / ours",
        figure=f"{wall}, in CPU time {cpu}; {secs[0]:.2f} / {secs[1]:.2f} s",
        runs=f"{len(vectors['rounds'])} rounds, alternating",
    )


def _describe_pretraining_losses(losses: Mapping[str, Any]) -> Measured:
    steps = f"{losses['case']['steps']} pre-training steps without dropout"
    apart = write_difference(losses["largest_difference"])
    heldout = " / ".join(f"{losses[side]['heldout']['mlm']:.5f}" for side in SIDES)
    return Measured(
        what=f"losses of {steps} of a new BERT of 4 layers of 256: ours by `bert_jax.train` "
        "against `BertForPreTraining` in PyTorch; final held-out loss of masked words, ours / "
        "theirs",
        figure=f"{apart} nats apart at most; {heldout}",
        runs="1",
        headline=f"Losses of {steps}: within {apart} nats of Hugging Face's PyTorch.",
    )


def _describe_pretraining_seeds(seeds: Mapping[str, Any]) -> Measured:
    runs = seeds["runs"]
    terms = [
        " / ".join(describe_mean([run[side]["heldout"][term] for run in runs]) for side in SIDES)
        for term in ("mlm", "nsp")
    ]
    return Measured(
        what=f"a new BERT of 4 layers of 256 with dropout, {seeds['steps']:,} steps: held-out loss "
        f"of masked words (without context {runs[0]['ours']['unigram_loss']:.3f}), of next "
        "sentences, ours / theirs; time per step, theirs (torch.compile) / ours",
        figure=f"{terms[0]} nats; {terms[1]}; {ratio(runs, 'step_secs'):.2f}",
        runs=f"{len(runs)} pairs, alternating",
    )
