"""Show the entries of the record table: a table on the terminal and in README.md, and a curve."""

import pathlib
from collections.abc import Sequence

import rich.table
from matplotlib.figure import Figure

from benchmarks.records.entries import COMPUTE, DATA, Verdict
from benchmarks.results import Measured
from bert_jax.logging import plots
from data_pipeline.cli.terminal import make_table
from data_pipeline.io.atomic import write_file

README = pathlib.Path(__file__).parent / "README.md"
CURVE = "curve.png"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
HEADS = ("entry", "track", "nats per token", "gain", "TFLOP", "s", "MB", "changed", "verdict")


def list_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """List the cells of HEADS for each entry."""
    rows = []
    for verdict in verdicts:
        entry, gain, losses = verdict.entry, verdict.gain, verdict.entry.losses.values()
        rows.append(
            [
                entry.name,
                entry.track,
                f"{entry.mean:.3f} ({min(losses):.3f} - {max(losses):.3f})",
                gain.describe(3) if gain else "-",
                f"{entry.tflop:.2f}",
                f"{entry.mean_secs:.0f}",
                "-" if entry.peak_mb is None else f"{entry.peak_mb:.0f}",
                entry.changed,
                "; ".join(verdict.faults) or "stands",
            ]
        )
    return rows


def describe(verdicts: Sequence[Verdict]) -> Measured:
    """Describe all entries as a row of docs/results."""
    cells = [dict(zip(HEADS, row, strict=True)) for row in list_rows(verdicts)]
    machines = {f"{each.entry.machine.cores} cores ({each.entry.machine.cpu})" for each in verdicts}
    return Measured(
        what="entries of `benchmarks/records/README.md`, seeds 1 to 5: nats per held-out token, "
        f"mean (range); time in steps, on {', '.join(sorted(machines))}",
        figure="; ".join(f"{row['entry']} {row['nats per token']}, {row['s']} s" for row in cells),
        runs="5",
    )


def build_table(verdicts: Sequence[Verdict]) -> rich.table.Table:
    """Build the table for the terminal, which has no room for track, memory and what changed."""
    shown = [HEADS.index(name) for name in ("entry", "nats per token", "gain", "s", "verdict")]
    rows = [[cells[index] for index in shown] for cells in list_rows(verdicts)]
    return make_table([HEADS[index] for index in shown], rows, left=(0, 4))


def format_table(verdicts: Sequence[Verdict]) -> str:
    """Format the table and its curve as Markdown; "" without an entry."""
    if not verdicts:
        return ""
    rows = [HEADS, ["---"] * len(HEADS), *list_rows(verdicts)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in rows]
    return "\n".join([*lines, "", f"![Loss of each entry, the oldest first]({CURVE})", ""])


def update_readme(verdicts: Sequence[Verdict]) -> None:
    """Write the table between its marks in README.md, and the curve next to it."""
    text = README.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    write_file(README, (text[:start] + format_table(verdicts) + text[end:]).encode())
    if verdicts:
        plots.save(README.with_name(CURVE), lambda: draw_curve(verdicts))


def draw_curve(verdicts: Sequence[Verdict]) -> Figure:
    """Draw mean and range of the losses of the entries that stand, the oldest first."""
    picture = Figure(figsize=(7.2, 3.6), layout="constrained")
    ax = picture.add_subplot()
    standing = [verdict.entry for verdict in verdicts if not verdict.faults]
    for track, color in ((COMPUTE, plots.TRAIN), (DATA, plots.HELDOUT)):
        points = [(x, entry) for x, entry in enumerate(standing) if entry.track == track]
        if not points:
            continue
        xs, means = [x for x, _ in points], [entry.mean for _, entry in points]
        ax.plot(xs, means, marker="o", color=color, linewidth=1.4, label=f"fixed {track}")
        for x, entry in points:
            ax.vlines(x, min(entry.losses.values()), max(entry.losses.values()), color=color)
    names = [f"{entry.name}\n{entry.written[:10]}" for entry in standing]
    ax.set_xticks(range(len(names)), names, fontsize="small")
    ax.set_title("Nats per held-out token, mean and range of five seeds", loc="left")
    ax.legend(frameon=False)
    return picture
