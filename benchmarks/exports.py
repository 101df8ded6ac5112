"""Compare exports of drawn models with transformers, and read them back: make exports.

    python -m benchmarks.exports --shapes=10 --families=bert,xlnet
    python -m benchmarks.exports --torch_pythons=A/bin/python,B/bin/python

Each family of encoders is drawn in odd shapes with random weights, as a pre-trained model and with
the layer of a task, and exported by what `bert_jax.convert` runs. transformers reads the folder:
hidden states, logits, pseudo-log-likelihoods per token and gradients must agree to 1e-5, ids of
every text exactly. transformers then saves the model that it read, and reading the copy must give
the arrays of the beginning.

Two environments are made where no interpreter is given: the newest transformers, and 4.57.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import rich.console

from benchmarks.exported_model import compute_ours
from benchmarks.parity_runs.drawn_models import FAMILIES_DRAWN, draw_models, read_texts
from benchmarks.results import HELP, Measured, open_row, write_difference, write_row
from benchmarks.step.side_by_side import make_environment
from benchmarks.step.workers import ROOT, Worker
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.interop import export, load, transformers_class
from bert_jax.interop.pretrained import Pretrained
from data_pipeline.vocab import TOKENIZER_JSON, load_vocabulary

TOLERANCE = 1e-5
WORKER = "benchmarks.parity_runs.exported_model_worker"
# The PyTorch build without CUDA is a tenth of the size.
TORCH = ("--extra-index-url=https://download.pytorch.org/whl/cpu", "torch")
ENVIRONMENTS = {
    ".venv-exports-newest": (*TORCH, "transformers"),
    ".venv-exports-4.57": (*TORCH, "transformers==4.57.6"),
}


def export_model(checkpoint: Pretrained, folder: pathlib.Path) -> Pretrained:
    """Export a model as convert does; return the model that the folder holds."""
    target = export.parse_target(f"hf:{folder}")
    kept = export.keep_supported(checkpoint, target)
    export.check_exportable(kept, target)
    export.write(kept, target, ())
    return transformers_class.read_back(kept)


def compare(
    exported: Pretrained, folder: pathlib.Path, texts: Sequence[str], workers: Sequence[Worker]
) -> Iterator[dict[str, Any]]:
    """Yield the comparison with each version of transformers."""
    written = folder / TOKENIZER_JSON
    if written.is_file():  # its library breaks ties of scores differently from SentencePiece
        read = load_vocabulary(written, reads_special_tokens=True)
        words = dataclasses.replace(read, template=exported.vocabulary.template)
        exported = dataclasses.replace(exported, vocabulary=words)
    file = folder.with_suffix(".npz")
    np.savez(file, **compute_ours(exported, texts))
    for number, worker in enumerate(workers):
        again = folder.with_name(f"{folder.name}-{number}")
        seen = worker.ask("compare", folder=str(folder), file=str(file), again=str(again))
        yield {**seen, "back": _find_change(exported, again)}


def _find_change(exported: Pretrained, again: pathlib.Path) -> str:
    """Describe what differs after transformers saved the model and we read it; "" if nothing."""
    try:
        read = load.load(f"hf:{again}")
    except (ValueError, OSError) as error:
        return str(error)
    if read.config != exported.config:
        ours, theirs = dataclasses.asdict(exported.config), dataclasses.asdict(read.config)
        changed = {k: (v, theirs[k]) for k, v in ours.items() if theirs[k] != v}
        return f"config: {changed}"
    given, returned = name_leaves(exported.params), name_leaves(read.params)
    wrong = [
        path
        for path, leaf in given.items()
        if path not in returned or not np.array_equal(leaf, returned[path])
    ]
    # A class without a pooler does not save one.
    return ", ".join(path for path in wrong if not path.startswith("pooler/"))


def find_faults(seen: dict[str, Any]) -> list[str]:
    """List the faults of one model in one version of transformers."""
    faults = [
        f"{name} differ by {value:.1e}"
        for name, value in seen["differences"].items()
        if not value <= TOLERANCE
    ]
    if seen["missing"]:
        faults.append(f"transformers misses {', '.join(seen['missing'][:4])}")
    if seen["other_ids"]:
        faults.append(f"other ids for {len(seen['other_ids'])} texts: {seen['other_ids'][0]!r}")
    return faults + ([f"read back otherwise: {seen['back']}"] if seen["back"] else [])


def main() -> None:
    """Draw, export, compare and report; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=int, default=10, help="of each family")
    parser.add_argument("--families", default=",".join(FAMILIES_DRAWN))
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--torch_pythons", default="", help="instead of making environments")
    parser.add_argument("--json_out", type=pathlib.Path)
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row = open_row(given.record)
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    pythons = [pathlib.Path(path).absolute() for path in given.torch_pythons.split(",") if path]
    if not pythons:
        pythons = [make_environment(ROOT / env, ENVIRONMENTS[env], console) for env in ENVIRONMENTS]
    texts = read_texts(given.data, console)
    workers = [Worker(python, WORKER) for python in pythons]
    versions = [worker.ask("name_versions")["transformers"] for worker in workers]
    results: list[dict[str, Any]] = []
    for family in given.families.split(","):
        worst: dict[str, float] = dict.fromkeys(versions, 0.0)
        with tempfile.TemporaryDirectory() as place:
            for name, checkpoint in draw_models(family, given.shapes, texts, pathlib.Path(place)):
                folder = pathlib.Path(place) / "exports" / name
                exported = export_model(checkpoint, folder)
                for version, seen in zip(
                    versions, compare(exported, folder, texts, workers), strict=True
                ):
                    faults = find_faults(seen)
                    results.append({"model": name, "transformers": version, **seen})
                    worst[version] = max(worst[version], *seen["differences"].values())
                    for fault in faults:
                        console.print(f"[red]{name}, transformers {version}: {fault}")
                    results[-1]["faults"] = faults
        words = ", ".join(f"{value:.1e} in {version}" for version, value in worst.items())
        console.print(f"{family}: {given.shapes} shapes differ by at most {words}")
    for worker in workers:
        worker.close()
    if given.json_out:
        given.json_out.parent.mkdir(parents=True, exist_ok=True)
        given.json_out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if wrong := sum(bool(result["faults"]) for result in results):
        sys.exit(f"error: {wrong} of {len(results)} models are not the same in transformers")
    console.print(f"{len(results)} models are the same, {len(texts):,} texts each")
    write_row(row, describe(results, len(given.families.split(",")), len(texts)))


def describe(results: Sequence[dict[str, Any]], families: int, texts: int) -> Measured:
    """Describe the largest difference in each version of transformers."""
    versions = sorted({result["transformers"] for result in results})
    worst = [
        max(
            max(result["differences"].values(), default=0.0)
            for result in results
            if result["transformers"] == version
        )
        for version in versions
    ]
    models, named = len(results) // len(versions), " / ".join(versions)
    return Measured(
        what=f"{models} exports of drawn models of {families} families in transformers {named}, "
        "largest difference of hidden states, logits, pseudo-log-likelihoods and gradients; ids of "
        f"{texts:,} texts",
        figure=f"{' / '.join(map(write_difference, worst))}; the same",
        runs="1",
        headline=f"{models} exports of {families} families agree with transformers within "
        f"{write_difference(max(worst))}.",
    )


if __name__ == "__main__":
    main()
