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

from bert_jax.interop import load, verify_export
from bert_jax.interop.pretrained import Pretrained
from data_pipeline.labelled.framing import frame

WORKER = pathlib.Path(__file__).parent / "parity_runs" / "exported_model_worker.py"
NAMES = {
    "pooled": verify_export.POOLED,
    "mlm": verify_export.MLM,
    "nsp": verify_export.NSP,
    "cls": verify_export.OF_CLS,
    "tokens": verify_export.OF_TOKENS,
}


def ours(model: Pretrained) -> dict[str, np.ndarray]:
    """Compute our outputs for the rows of the check, and the sentences with their token ids."""
    rows = verify_export.make_rows(model.vocabulary, model.config.max_position_embeddings)
    outputs = verify_export.compute_outputs(model, rows)
    layers = [value for name, value in outputs.items() if name.startswith(verify_export.HIDDEN)]
    heads = {short: outputs[name] for short, name in NAMES.items() if name in outputs}
    template, most = model.vocabulary.template, model.config.max_position_embeddings
    framed = []
    for text in verify_export.SENTENCES:
        ids, _ = model.vocabulary.encode([text])
        framed.append(frame(ids.tolist(), None, template, most).token_ids)
    return {
        **{f"row_{name}": value for name, value in rows.items()},
        **heads,
        "hidden": np.stack(layers),
        "texts": np.array([text.encode() for text in verify_export.SENTENCES]),
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
        np.savez(file, **ours(load.load(f"hf:{given.model}")))
        done = subprocess.run([given.torch, str(WORKER), given.model, str(file)], check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
