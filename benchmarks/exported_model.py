"""An exported folder in transformers, beside ours: python -m benchmarks.exported_model --help.

Prints the largest difference of the hidden states of all layers and of what the heads give, whether
the tokeniser gives our ids, and, where sentence-transformers is installed, the largest difference
of its sentence vectors from the mean of our last layer.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from bert_jax import export_proof, pretrained
from bert_jax.pretrained import Pretrained
from data_pipeline.framing import frame

WORKER = pathlib.Path(__file__).with_name("exported_model_worker.py")
NAMES = {
    "pooled": export_proof.POOLED,
    "mlm": export_proof.MLM,
    "nsp": export_proof.NSP,
    "cls": export_proof.OF_CLS,
    "tokens": export_proof.OF_TOKENS,
}


def ours(held: Pretrained) -> dict[str, np.ndarray]:
    """What we compute of the rows of the proof, and the sentences with their token ids."""
    rows = export_proof.rows(held.vocabulary, held.config.max_position_embeddings)
    found = export_proof.outputs(held, rows)
    layers = [value for name, value in found.items() if name.startswith(export_proof.HIDDEN)]
    heads = {short: found[name] for short, name in NAMES.items() if name in found}
    special, most = held.vocabulary.special_ids, held.config.max_position_embeddings
    framed = []
    for text in export_proof.SENTENCES:
        ids, _ = held.vocabulary.encode([text])
        framed.append(frame(ids.tolist(), None, special, most)[0])
    return {
        **{f"row_{name}": value for name, value in rows.items()},
        **heads,
        "hidden": np.stack(layers),
        "texts": np.array([text.encode() for text in export_proof.SENTENCES]),
        "text_lengths": np.array([len(ids) for ids in framed]),
        "text_ids": np.concatenate(framed),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder that bert_jax.convert wrote")
    parser.add_argument("--torch", required=True, help="a Python with torch and transformers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "ours.npz"
        np.savez(file, **ours(pretrained.load(f"hf:{given.model}")))
        done = subprocess.run([given.torch, str(WORKER), given.model, str(file)], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
