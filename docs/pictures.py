"""Draw pictures of the manual: make docs-reference draws speed.png and rows.png.

speed.png has the measured times of docs/results/*.json, ours next to Hugging Face's. rows.png shows
a text on its way into a training step: the store and the row are made by the code, here and now.
quickstart.png has the curves of runs that are there, the first one's strong, the others' faint:

    python docs/pictures.py RUN [RUN ...]
"""

import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bert_jax.config import Config, overrides
from bert_jax.logging import plots
from bert_jax.logging.metrics_writer import METRICS, read_lines
from bert_jax.logging.plots import GRAY, HELDOUT, LOOK, TRAIN
from bert_jax.train_step.schedule import sample_rates
from data_pipeline.report.rows import ShownToken, open_sampler, show_row
from data_pipeline.store import open_store
from data_pipeline.vocab import load_vocabulary

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
CORPUS = ROOT / "benchmarks" / "records" / "python_docs.jsonl.gz"
DPI, WIDTH = 200, 5.6  # dots per inch; inches, at which 11 points are legible on a phone
OURS, THEIRS = HELDOUT, TRAIN
# The title, the row of docs/results, and a label for each pair of times in it.
PANELS = (
    (
        "Training step, 4 layers of 256, 16 rows of 128 tokens",
        "step",
        ("ModernBERT, logits\nof masked tokens", "BERT, logits of all\ntokens in PyTorch",
         "BERT, logits of\nmasked tokens"),
    ),
    (
        "Fine-tuning a MiniLM, from start to end",
        "finetune_trainer",
        ("SST-2,\n2,000 examples",),
    ),
    (
        "Vectors of 2,000 sentences from a MiniLM",
        "sentence_vectors",
        ("from text, with\ntokenization",),
    ),
)  # fmt: skip
_PAIR = re.compile(r"([\d,.]+) / ([\d,.]+) (ms|s)\b")  # theirs / ours
SEQ_LEN, ROW = 32, 3428  # a short row with hidden tokens and a replaced one
FILLS = {"": "#F2F2F2", "hidden": "#F9D9C4", "replaced": "#FBE7B8", "kept": "#DDEFE6"}


def read_times(figure: str) -> list[tuple[str, str, str]]:
    """Return the pairs of times in a measured figure: theirs, ours, unit."""
    return _PAIR.findall(figure)


def make_speed(rows: Mapping[str, Mapping[str, str]]) -> Figure:
    """Draw the measured times of each panel as bars, ours below Hugging Face's."""
    pairs = [read_times(rows[name]["figure"]) for _, name, _ in PANELS]
    figure = Figure(figsize=(WIDTH, 5.4), dpi=DPI)
    heights = [len(each) for each in pairs]
    grid = {"height_ratios": heights, "left": 0.3, "right": 0.98, "top": 0.84, "bottom": 0.01}
    axes = figure.subplots(len(PANELS), 1, gridspec_kw={**grid, "hspace": 0.8}).tolist()
    for ax, (title, name, labels), times in zip(axes, PANELS, pairs, strict=True):
        row = rows[name]
        if len(times) != len(labels):
            raise ValueError(f"{name} has {len(times)} pairs of times for {len(labels)} bars")
        _draw_bars(ax, times, labels)
        corner = {"xy": (0.02, 1), "xycoords": ("figure fraction", "axes fraction")}
        points = {"xytext": (0, 20), "textcoords": "offset points"}
        ax.annotate(title, **corner, **points, fontsize=12, fontweight="bold")
        source = f"{row['device'].partition(')')[0]}), {row['date']}, commit {row['commit']}"
        ax.annotate(source, **corner, **points | {"xytext": (0, 6)}, fontsize=10, color=GRAY)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc=(0.0, 0.94), ncols=2, frameon=False, fontsize=11)
    figure.text(0.98, 0.955, "shorter is faster", ha="right", fontsize=10, color=GRAY)
    return figure


def _draw_bars(ax: Axes, times: Sequence[tuple[str, str, str]], labels: Sequence[str]) -> None:
    places, most = np.arange(len(times)), 0.0
    sides = (("PyTorch (transformers)", THEIRS, -0.2), ("bert_jax", OURS, 0.2))
    for side, (name, color, shift) in enumerate(sides):
        values = [float(pair[side].replace(",", "")) for pair in times]
        bars = ax.barh(places + shift, values, 0.38, color=color, label=name)
        ax.bar_label(bars, [f"{pair[side]} {pair[2]}" for pair in times], padding=3, fontsize=10.5)
        most = max(most, *values)
    ax.set_yticks(places, labels, fontsize=10.5)
    ax.set_xlim(0, 1.2 * most)
    ax.set_ylim(len(times) - 0.5, -0.5)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.grid(visible=False)


def make_rows() -> Figure:
    """Draw a text, its token ids in a store, a row with masks, and the step on that row."""
    with tempfile.TemporaryDirectory() as folder:
        store_dir = pathlib.Path(folder) / "store"
        command = [sys.executable, "-m", "data_pipeline.build", f"--input={CORPUS}",
                   f"--output={store_dir}", "--train_vocab=wordpiece", "--vocab_size=4096",
                   "--holdout=0.05"]  # fmt: skip
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        store, vocabulary = open_store(store_dir), load_vocabulary(store_dir / "vocab.txt")
        row = open_sampler(store, store.train, SEQ_LEN).rows(np.array([ROW]))
        row = {name: array[0] for name, array in row.items()}
        (example,) = show_row(row, vocabulary, vocabulary.pieces())
    ids_S = row["input_ids"].copy()
    is_used_P = row["masked_lm_weights"] > 0
    ids_S[row["masked_lm_positions"][is_used_P]] = row["masked_lm_ids"][is_used_P]
    ids = [
        [str(ids_S[i]) for i, token in enumerate(example.tokens) if belongs_to(token, segment)]
        for segment in (0, 1)
    ]
    figure = Figure(figsize=(WIDTH, 6.2), dpi=DPI)
    FigureCanvasAgg(figure)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(6.25, 0.05)
    ax.axis("off")
    y = _write_stage(ax, 0.0, "1  Text", "two sentences of a document")
    for segment in (0, 1):
        y = _write_boxes(ax, y, [(_find_text(example.tokens, segment), "", "")])
    y = _write_stage(
        ax, y, "2  Store", "the id of each token and where sentences end, written once"
    )
    for each in ids:
        y = _write_boxes(ax, y, [(text, FILLS[""], "") for text in each])
    about = "made anew for each step: [MASK] or another token hides an answer"
    y = _write_stage(ax, y, "3  Row with masks", about)
    y = _write_boxes(ax, y, [(t.piece, FILLS[t.fate], t.original or "") for t in example.tokens])
    y = _write_stage(
        ax, y, "4  Step", 'a batch changes the weights once; the loss adds "B follows A?"'
    )
    logits = f"{sum(is_used_P)} x {vocabulary.size:,} logits"
    boxes = [("encoder", FILLS[""], ""), ("\u2192", "", ""), (logits, FILLS["hidden"], "")]
    for text in ("mean loss", "new weights"):
        boxes += [("\u2192", "", ""), (text, FILLS[""], "")]
    _write_boxes(ax, y, boxes)
    return figure


def belongs_to(token: ShownToken, segment: int) -> bool:
    """Return whether a token is text of a segment, not a special token such as [SEP]."""
    return token.segment == segment and not token.is_special


def _write_stage(ax: Axes, y: float, title: str, about: str) -> float:
    ax.text(0.15, y + 0.3, title, fontsize=13, fontweight="bold", color=TRAIN)
    ax.text(0.15, y + 0.53, about, fontsize=10.5, color=GRAY)
    return y + 0.66


def _write_boxes(ax: Axes, y: float, boxes: Sequence[tuple[str, str, str]]) -> float:
    """Write texts in boxes from left to right, in as many lines as they need, answers below."""
    x, line = 0.15, 0.35
    for text, color, answer in boxes:
        drawn = ax.text(x, y, text, fontsize=11, va="baseline")
        width = drawn.get_window_extent().width / DPI
        if x + width > WIDTH - 0.1:
            x, y = 0.15, y + line
            line = 0.35
        drawn.set_position((x + 0.05, y + 0.2))
        if color:
            drawn.set_bbox({"facecolor": color, "edgecolor": "none", "pad": 2.5})
        if answer:
            ax.text(x + 0.05, y + 0.44, answer, fontsize=11, color=OURS, style="italic")
            line = 0.6
        x += width + 0.14
    return y + line


def _find_text(tokens: Sequence[ShownToken], segment: int) -> str:
    """Find the text in the corpus that the tokens of a segment come from, in its own spelling.

    Raises:
      ValueError: no document has it.
    """
    pieces = [token.original or token.piece for token in tokens if belongs_to(token, segment)]
    wanted = "".join(pieces).replace("##", "")
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            places = [i for i, letter in enumerate(text) if not letter.isspace()]
            at = "".join(text[i] for i in places).lower().find(wanted)
            if at >= 0:
                return " ".join(text[places[at] : places[at + len(wanted) - 1] + 1].split())
    raise ValueError(f"{wanted} is in no document of {CORPUS}")


def describe_source(rows: Mapping[str, Mapping[str, str]]) -> str:
    """Return the measured figures in speed.png, stored in the file as its source."""
    return "; ".join(rows[name]["figure"] for _, name, _ in PANELS)


def draw_speed(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Write speed.png, given the named rows of docs/results."""
    with style.context(["default", LOOK]):
        source = {"Description": describe_source(rows)}
        make_speed(rows).savefig(IMAGES / "speed.png", metadata=source)


def draw_rows() -> None:
    """Write rows.png."""
    with style.context(["default", LOOK]):
        make_rows().savefig(IMAGES / "rows.png")


def make_seeds(runs: Sequence[pathlib.Path]) -> Figure:
    """Draw the curves of a run of configs/quickstart.py, and faintly of other seeds."""
    config = overrides.load(Config, str(ROOT / "configs" / "quickstart.py"), str, ())
    steps_N, rates_N = sample_rates(config)
    first, *others = (read_lines(run / METRICS) for run in runs)
    figure = plots.make_figure(first, config.phases, (steps_N + 1, rates_N))
    for ax in figure.axes:
        name = str(ax.get_label())
        for lines in others if name not in ("learning_rate", "sequences_per_sec") else ():
            for split, color in (("train", TRAIN), ("heldout", HELDOUT)):
                steps, values = plots.select_series(lines, split, name)
                ax.plot(steps, values, color=color, alpha=0.25)
                low, high = ax.get_ylim()
                ax.set_ylim(min(low, *values), max(high, *values))
    return figure


if __name__ == "__main__":
    plots.save(IMAGES / "quickstart.png", lambda: make_seeds([*map(pathlib.Path, sys.argv[1:])]))
