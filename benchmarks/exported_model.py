"""An exported folder in transformers, beside ours: python -m benchmarks.exported_model --help.

Prints the largest difference of the hidden states of all layers and of what the heads give, whether
the tokeniser gives our ids, and, where sentence-transformers is installed, the largest difference
of its sentence vectors from the mean of our last layer.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from benchmarks.step.workers import Worker
from bert_jax.interop import export, load
from bert_jax.interop.pretrained import Pretrained
from data_pipeline.labelled.framing import frame

WORKER = "benchmarks.parity_runs.exported_model_worker"
NAMES = {
    "pooled": export.POOLED,
    "mlm": export.MLM,
    "nsp": export.NSP,
    "rtd": export.REPLACED,
    "cls": export.OF_CLS,
    "tokens": export.OF_TOKENS,
}


def compute_ours(model: Pretrained, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute our outputs for the rows of the check, and the token ids of texts."""
    rows = export.make_rows(model.vocabulary, model.config.max_position_embeddings)
    special_ids, ids_BS = model.vocabulary.special_ids, rows["input_ids"]
    # RoBERTa would count no position for a token that is padding.
    is_padding_BS = (ids_BS == special_ids["pad"]) & (rows["input_mask"] > 0)
    rows["input_ids"] = np.where(is_padding_BS, special_ids["unk"], ids_BS)
    if model.config.type_vocab_size < 2 and model.config.position_embedding_type != "relative":
        rows["segment_ids"] = np.zeros_like(ids_BS)
    outputs = export.compute_outputs(model, rows)
    layers = [value for name, value in outputs.items() if name.startswith(export.HIDDEN)]
    heads = {short: outputs[name] for short, name in NAMES.items() if name in outputs}
    template, most = model.vocabulary.template, model.config.max_position_embeddings
    framed = []
    for text in texts:
        ids, _ = model.vocabulary.encode([text])
        framed.append(frame(ids.tolist(), None, template, most).token_ids)
    return {
        **{f"row_{name}": value for name, value in rows.items()},
        **heads,
        "hidden": np.stack(layers),
        "texts": np.array([text.encode().hex() for text in texts]),  # NumPy drops final NULs
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
        np.savez(file, **compute_ours(load.load(f"hf:{given.model}"), export.SENTENCES))
        worker = Worker(pathlib.Path(given.torch).absolute(), WORKER)
        try:
            versions = worker.ask("name_versions")
            seen = worker.ask(
                "compare", folder=str(pathlib.Path(given.model).absolute()), file=str(file)
            )
        finally:
            worker.close()
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    for name, value in seen["differences"].items():
        print(f"  {name:8} {value:.1e}")
    print(f"  the same token ids: {not seen['other_ids']}")


if __name__ == "__main__":
    main()
