"""Time the vectors of sentences, ours and sentence-transformers', in turns on a CPU.

    python -m benchmarks.sentence_vectors --model=DIR --sentences=FILE.txt --rounds=5
    python -m benchmarks.sentence_vectors --sentences=FILE.txt --python=ENV/bin/python

Without --model the weights are the MiniLM that make setup installs, and the first run makes their
environment unless --python has one. A round is all sentences on our side, then on theirs: from text
to one vector per sentence, the mean of its tokens (of length one if the folder's modules.json says
so), in float32 and batches of 32. Before the first round each side computes all of them once, which
compiles and warms up, and the vectors must agree to 1e-5. The weights are read before that.
"""

import argparse
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import rich.console

from benchmarks import results
from benchmarks.hand_over import LIBRARIES, TOLERANCES, WORKER
from benchmarks.parity_runs.pairs import find_weights
from benchmarks.step.side_by_side import make_environment
from benchmarks.step.workers import ROOT, Worker
from bert_jax.inference import hidden_states
from bert_jax.interop import load
from bert_jax.interop.pretrained import place_model
from bert_jax.model.bert import Heads
from data_pipeline.labeled.lines import LineCounts, group_rows

_BATCH_SIZE = 32
_LIBRARY = "sentence_transformers"


def prepare_ours(folder: pathlib.Path, texts: list[str]) -> Callable[[], np.ndarray]:
    """Read a model; return the function that computes the vectors of the texts."""
    checkpoint = load.load(f"hf:{folder}")
    layers = hidden_states.choose_layers("-1", checkpoint.config.num_hidden_layers)
    length = checkpoint.config.max_position_embeddings
    extraction = hidden_states.Extraction(
        layers, hidden_states.MEAN, False, length, 0, batch_size=_BATCH_SIZE
    )
    model = place_model(checkpoint, Heads(mlm=False, nsp=False))
    step = hidden_states.compile_vectors(model, extraction)
    modules = folder / "modules.json"
    has_unit_length = modules.is_file() and ".Normalize" in modules.read_text(encoding="utf-8")

    def compute() -> np.ndarray:
        words, counts = checkpoint.vocabulary, LineCounts()
        groups = group_rows(texts, words, length, 1 << 18, counts, has_pairs=False)
        computed = hidden_states.compute_groups(step, model, groups, extraction, lambda done: None)
        vectors_ND = np.concatenate([group.vectors for group in computed])
        if has_unit_length:
            vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        return vectors_ND

    return compute


def describe(
    sentences: int, theirs: Sequence[float], ours: Sequence[float], versions: Mapping[str, str]
) -> results.Measured:
    """Describe the times of all rounds."""
    return results.Measured(
        what=f"mean vectors of {sentences:,} sentences from text, MiniLM, batches of "
        f"{_BATCH_SIZE}: sentence-transformers / ours",
        figure=results.describe_times(theirs, ours, "s"),
        runs=f"{len(ours)} rounds, alternating",
        headline=f"Vectors of {sentences:,} sentences, the time of sentence-transformers divided "
        f"by ours (range): {results.describe_ratio(theirs, ours)}.",
        versions=versions,
    )


def main() -> None:
    """Check that the vectors agree, take turns, and report the median and the spread."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder of an export")
    parser.add_argument("--sentences", type=pathlib.Path, required=True, help="sentence per line")
    parser.add_argument("--count", type=int, default=2000, help="sentences taken of the file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default="", help="of sentence-transformers, if it is there")
    parser.add_argument("--record", default="", metavar="ROW", help=results.HELP)
    given = parser.parse_args()
    row = results.open_row(given.record)
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    lines = given.sentences.read_text(encoding="utf-8").split("\n")
    texts = [line.strip() for line in lines if line.strip()][: given.count]
    folder = find_weights(given.model).absolute()
    environment = ROOT / f".venv-hand-over-{_LIBRARY}"
    python = pathlib.Path(given.python).absolute() if given.python else None
    worker = Worker(python or make_environment(environment, LIBRARIES[_LIBRARY], console), WORKER)
    versions = worker.ask("start", library=_LIBRARY, threads=0)
    words = ", ".join(f"{name} {version}" for name, version in versions.items())
    console.print(f"{len(texts):,} sentences, {words}")
    compute = prepare_ours(folder, texts)
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / "ours.npz"
        np.savez(file, vectors=compute(), texts=[text.encode().hex() for text in texts])
        asked = {"folder": str(folder), "file": str(file), "batch_size": _BATCH_SIZE}
        difference = worker.ask("time_vectors", **asked)["difference"]
        ours, theirs = [], []
        for _ in range(given.rounds):
            started = time.monotonic()
            compute()
            ours.append(time.monotonic() - started)
            theirs.append(worker.ask("time_vectors", **asked)["secs"])
            console.print(f"  ours {ours[-1]:.2f} s, theirs {theirs[-1]:.2f} s")
    worker.close()
    measured = describe(len(texts), theirs, ours, versions)
    console.print(
        f"median (range), theirs / ours: {measured.figure}; vectors differ by {difference:.1e}"
    )
    if not difference <= TOLERANCES["vectors"]:
        sys.exit("error: the vectors are not the same")
    results.write_row(row, measured)


if __name__ == "__main__":
    main()
