"""Compare an exported folder in transformers with ours: python -m benchmarks.exported_model --help.

Prints the largest difference of the hidden states of all layers and of the heads' outputs, and
whether the tokenizer gives our ids. Other libraries: benchmarks/hand_over.py.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks.results import HELP, Measured, open_row, write_difference, write_row
from benchmarks.step.workers import Worker
from bert_jax.checkpoint.arrays import name_leaves
from bert_jax.config import ComputeConfig
from bert_jax.inference.pseudo_likelihood import make_masked_copies, score_sentences
from bert_jax.interop import export, load, transformers_class
from bert_jax.interop.pretrained import Pretrained, copy_to_host, place_model
from bert_jax.interop.tensor_names import nest, rename
from bert_jax.logging.console import Screen
from bert_jax.parallel import mesh as mesh_lib
from bert_jax.train_step import step
from bert_jax.train_step.objectives import MLM
from data_pipeline.labeled.framing import frame
from data_pipeline.vocab import split_ids

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
    # XLNet predicts from the token's position alone, in a stream of its own.
    is_scored = model.heads.mlm and model.config.position_embedding_type != "relative"
    scored = compute_mlm_checks(model, rows) if is_scored else {}
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
        **scored,
        "hidden": np.stack(layers),
        "texts": np.array([text.encode().hex() for text in texts]),  # NumPy drops final NULs
        "text_lengths": np.array([len(ids) for ids in framed]),
        "text_ids": np.concatenate(framed),
    }


_PREDICTED_EVERY = 3  # one token in so many is predicted for the gradients


def compute_mlm_checks(model: Pretrained, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute pseudo-log-likelihoods, and gradients of the loss of some tokens of the rows.

    A gradient is named by transformers' name of its parameter.
    """
    compute = ComputeConfig(compute_dtype="float32")
    placed = place_model(model, model.heads, jax.local_devices()[:1], compute)
    longest = model.config.max_position_embeddings - 4
    encoded = split_ids(*model.vocabulary.encode(export.SENTENCES))
    sentences = [ids[:longest].astype(np.int32) for ids in encoded]
    scores = score_sentences(placed, sentences, 64, Screen(is_writer=False))
    copies, sentence_R = make_masked_copies(
        sentences, model.vocabulary.template, model.vocabulary.special_ids["mask"]
    )
    batch = copies.batch(
        np.arange(copies.examples), longest + 4, model.vocabulary.special_ids["pad"]
    )
    is_predicted_BS = rows["input_mask"] > 0
    is_predicted_BS &= np.arange(rows["input_ids"].shape[1]) % _PREDICTED_EVERY == 1
    slots = int(is_predicted_BS.sum(axis=1).max())
    positions_BP = np.argsort(~is_predicted_BS, axis=1, kind="stable")[:, :slots].astype(np.int32)
    predicted = rows | {
        "masked_lm_positions": positions_BP,
        "masked_lm_ids": np.take_along_axis(rows["input_ids"], positions_BP, axis=1),
        "masked_lm_weights": np.take_along_axis(is_predicted_BS, positions_BP, axis=1)
        * np.float32(1),
    }
    with jax.set_mesh(placed.mesh):
        on_device = mesh_lib.place_batch(predicted, placed.mesh)
        gradients, _, _ = jax.jit(
            lambda params: step.compute_gradients(
                step.StepLoss(placed.model, MLM), params, on_device
            )
        )(placed.params)
    on_host = name_leaves(jax.tree.map(copy_to_host, gradients, placed.model.declared))
    # The placed model may have a pooler that the checkpoint lacks.
    kept = {path: on_host[path] for path in name_leaves(model.params)}
    named = rename(nest(kept), transformers_class.choose_naming(model))
    return {
        "pll": np.array([score.log_likelihood for score in scores]),
        "pll_input_ids": batch["input_ids"],
        "pll_input_mask": batch["input_mask"],
        "pll_positions": copies.labels["positions"],
        "pll_masked_ids": copies.labels["masked_ids"],
        "pll_sentence": sentence_R,
        "predicted": is_predicted_BS,
        **{f"gradient_{name}": array for name, array in named.items()},
    }


def main() -> None:
    """Compare the folder, and print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder that bert_jax.convert wrote")
    parser.add_argument("--torch", required=True, help="a Python with torch and transformers")
    parser.add_argument("--record", default="", metavar="ROW", help=HELP)
    given = parser.parse_args()
    row = open_row(given.record)
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
    what = f"an export in transformers, largest difference: {', '.join(seen['differences'])}; ids"
    figures = " / ".join(map(write_difference, seen["differences"].values()))
    ids = "others" if seen["other_ids"] else "the same"
    write_row(row, Measured(what, f"{figures}; {ids}", "1", versions=versions))


if __name__ == "__main__":
    main()
