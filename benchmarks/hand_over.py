"""Hand exports to sentence-transformers, GLiNER and ONNX Runtime, and compare: make hand_over.

    python -m benchmarks.hand_over --families=bert,modernbert --shapes=2
    python -m benchmarks.hand_over --model=exports/mine
    python -m benchmarks.hand_over --pythons=A/bin/python,B/bin/python,C/bin/python

The exports are drawn models, as in benchmarks.exports, or one of yours. Each library reads the
folder as its user does, in an environment of its own: sentence vectors and hidden states must equal
ours to 1e-5, logits of ONNX Runtime to 1e-4, token ids exactly. The texts fill the model's
positions, so rows are longer than a drawn window.
"""

import argparse
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console

from benchmarks.exports import TORCH, export_model
from benchmarks.parity_runs.drawn_models import FAMILIES_DRAWN, draw_models, read_texts
from benchmarks.results import HELP, Measured, open_row, write_difference, write_row
from benchmarks.step.side_by_side import make_environment
from benchmarks.step.workers import ROOT, Worker
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import Pretrained
from data_pipeline.labeled.lines import LineCounts, group_rows

WORKER = "benchmarks.parity_runs.hand_over_worker"
LIBRARIES = {
    "sentence_transformers": (*TORCH, "sentence-transformers>=6,<7"),
    "gliner": (*TORCH, "gliner", "transformers<5.17"),
    "onnx": (*TORCH, "optimum-onnx[onnxruntime]", "transformers==4.57.6"),
}
TOLERANCES = {"vectors": 1e-5, "hidden states": 1e-5, "logits": 1e-4}
_TEXTS, _LONG_TEXTS = 16, 4
_LONG_LINES, _MAX_WORDS = 40, 150  # lines and words of a long text


def choose_texts(lines: Sequence[str]) -> list[str]:
    """Return short texts, and long ones that fill the rows of small models."""
    starts = range(_TEXTS, _TEXTS + _LONG_TEXTS * _LONG_LINES, _LONG_LINES)
    long = [" ".join(lines[start : start + _LONG_LINES]) for start in starts]
    return [" ".join(text.split()[:_MAX_WORDS]) for text in [*lines[:_TEXTS], *long]]


def compute_ours(model: Pretrained, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute the last hidden states and logits of all tokens of texts, and the texts' means."""
    positions = model.config.max_position_embeddings
    (rows,) = group_rows(
        texts, model.vocabulary, positions, sys.maxsize, LineCounts(), has_pairs=False
    )
    longest = int(np.diff(rows.offsets).max())
    batch = rows.batch(np.arange(rows.examples), longest, model.vocabulary.special_ids["pad"])
    positions_NS = np.broadcast_to(np.arange(longest, dtype=np.int32), batch["input_ids"].shape)
    outputs = export.compute_outputs(model, {**batch, "positions": positions_NS})
    is_token_NS = batch["input_mask"] > 0
    hidden_NSD = [value for name, value in outputs.items() if name.startswith(export.HIDDEN)][-1]
    sums_ND = np.where(is_token_NS[..., None], hidden_NSD, 0).sum(axis=1)
    ours = {
        "texts": np.array([text.encode().hex() for text in texts]),
        "longest": np.int64(longest),
        "ids": batch["input_ids"][is_token_NS],
        "hidden states": hidden_NSD[is_token_NS],
        "vectors": sums_ND / is_token_NS.sum(axis=1, keepdims=True),
    }
    return ours | ({"logits": outputs[export.MLM][is_token_NS]} if export.MLM in outputs else {})


def draw_exports(
    families: Sequence[str], shapes: int, lines: Sequence[str], place: pathlib.Path
) -> Iterator[tuple[str, Pretrained, pathlib.Path]]:
    """Yield drawn models with a masked language model's head, and the folders of their exports."""
    for family in families:
        for name, checkpoint in draw_models(family, shapes, lines, place / family):
            if checkpoint.task is None and checkpoint.heads.mlm:
                folder = place / "exports" / name
                yield name, export_model(checkpoint, folder), folder


def find_faults(seen: dict[str, Any]) -> list[str]:
    """List the faults of one export in one library."""
    faults = [
        f"{name} differ by {value:.1e}"
        for name, value in seen["differences"].items()
        if not value <= TOLERANCES[name]
    ]
    return faults + ["other token ids"] * (not seen["same_ids"])


def main() -> None:
    """Export, compare and report; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder that bert_jax.convert wrote, not drawn models")
    parser.add_argument("--shapes", type=int, default=3, help="of each family")
    parser.add_argument("--families", default=",".join(FAMILIES_DRAWN))
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--pythons", default="", help="one a library, for no new environments")
    parser.add_argument("--json_out", type=pathlib.Path)
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row = open_row(given.record)
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    libraries = given.libraries.split(",")
    pythons = [pathlib.Path(path).absolute() for path in given.pythons.split(",") if path]
    pythons = pythons or [
        make_environment(ROOT / f".venv-hand-over-{name}", LIBRARIES[name], console)
        for name in libraries
    ]
    workers = {
        name: Worker(python, WORKER) for name, python in zip(libraries, pythons, strict=True)
    }
    versions: dict[str, str] = {}
    for name, worker in workers.items():
        started = worker.ask("start", library=name)
        versions |= started
        words = (f"{key} {value}" for key, value in started.items())
        console.print(f"{name}: {', '.join(words)}")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        lines = read_texts(given.data, console)
        if given.model:
            folder = pathlib.Path(given.model).absolute()
            exports = iter([(given.model, load.load(f"hf:{folder}"), folder)])
        else:
            exports = draw_exports(
                given.families.split(","), given.shapes, lines, pathlib.Path(place)
            )
        for name, checkpoint, folder in exports:
            file = pathlib.Path(place) / "ours.npz"
            ours = compute_ours(checkpoint, choose_texts(lines))
            np.savez(file, **ours)
            window = checkpoint.config.local_attention
            longest = f"rows of up to {ours.pop('longest')} tokens"
            console.print(f"{name}: {longest}" + f", a window of {window}" * bool(window))
            for library, worker in workers.items():
                seen = worker.ask(library, folder=str(folder), file=str(file))
                result = {"model": name, "library": library, **seen, "faults": find_faults(seen)}
                results.append(result)
                words = [f"{key} {value:.1e}" for key, value in seen["differences"].items()]
                console.print(f"  {library}: {', '.join(words) or seen['skipped']}")
                for fault in result["faults"]:
                    console.print(f"[red]{name}, {library}: {fault}")
    for worker in workers.values():
        worker.close()
    if given.json_out:
        given.json_out.parent.mkdir(parents=True, exist_ok=True)
        given.json_out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if wrong := sum(bool(result["faults"]) for result in results):
        sys.exit(f"error: {wrong} of {len(results)} exports are not the same elsewhere")
    compared = sum(bool(result["differences"]) for result in results)
    console.print(f"{compared} comparisons agree")
    write_row(row, describe(results, versions))


def describe(results: Sequence[dict[str, Any]], versions: Mapping[str, str]) -> Measured:
    """Describe the largest difference in each library."""
    worst: dict[str, float] = {}
    for result in results:
        key = f"{result['library']} ({', '.join(result['differences'])})"
        if result["differences"]:
            worst[key] = max(worst.get(key, 0.0), *result["differences"].values())
    models = len({result["model"] for result in results})
    return Measured(
        what=f"{models} exports in {', '.join(worst)}: largest difference; token ids",
        figure=f"{' / '.join(map(write_difference, worst.values()))}; the same",
        runs="1",
        versions=versions,
    )


if __name__ == "__main__":
    main()
