"""Write random checkpoints in Hugging Face's layout, by hand, and read them."""

import json
import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np
from safetensors.numpy import save_file

from bert_jax.config import MeshConfig, ModelConfig
from bert_jax.interop import huggingface, pretrained
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import EncoderRows
from bert_jax.parallel import mesh

# Sizes tell dimensions apart; more rows than the vocabulary has pieces, as tables are padded.
SIZES = {
    "vocab_size": 23,
    "hidden_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 22,
    "max_position_embeddings": 19,
    "type_vocab_size": 3,
}
CONFIG = {"model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-6, **SIZES}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sees", "##s", "."]


def tensors(prefix: str = "bert.", has_heads: bool = True) -> dict[str, np.ndarray]:
    """Draw Hugging Face's arrays of a BERT of SIZES, named by their documentation."""
    rng = np.random.default_rng(5)
    V, D, F, P, C = 23, 14, 22, 19, 3  # of SIZES

    def norm(name):
        return {f"{name}.weight": (D,), f"{name}.bias": (D,)}

    def dense(name, out, into):
        return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}

    dims = {
        f"{prefix}embeddings.word_embeddings.weight": (V, D),
        f"{prefix}embeddings.position_embeddings.weight": (P, D),
        f"{prefix}embeddings.token_type_embeddings.weight": (C, D),
        **norm(f"{prefix}embeddings.LayerNorm"),
        **dense(f"{prefix}pooler.dense", D, D),
    }
    for number in range(SIZES["num_hidden_layers"]):
        layer = f"{prefix}encoder.layer.{number}"
        for name in ("query", "key", "value"):
            dims |= dense(f"{layer}.attention.self.{name}", D, D)
        dims |= dense(f"{layer}.attention.output.dense", D, D)
        dims |= norm(f"{layer}.attention.output.LayerNorm")
        dims |= dense(f"{layer}.intermediate.dense", F, D)
        dims |= dense(f"{layer}.output.dense", D, F)
        dims |= norm(f"{layer}.output.LayerNorm")
    if has_heads:
        dims |= dense("cls.predictions.transform.dense", D, D)
        dims |= norm("cls.predictions.transform.LayerNorm")
        dims |= {"cls.predictions.bias": (V,)}
        dims |= dense("cls.seq_relationship", 2, D)
    return {name: rng.normal(0, 0.2, size).astype(np.float32) for name, size in dims.items()}


def write(folder: pathlib.Path, held: dict[str, np.ndarray], **changes: object) -> pathlib.Path:
    """Write a folder with these arrays; `changes` go into its config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    return folder


def read(folder: pathlib.Path) -> tuple[ModelConfig, bert.Params, tuple[str, ...]]:
    """Read a folder: the model, its parameters, and the names of the arrays that are not read."""
    config_json = huggingface.read_config(folder)
    return config_json.model, *huggingface.read(config_json)


def compute_logits_alone(
    checkpoint: pretrained.Pretrained, width: int
) -> Callable[[Sequence[int], int], np.ndarray]:
    """Return a function from a text's ids and a position to its logits, float64[23].

    It runs one row of `width` positions at a time on one device.
    """
    one = mesh.make_mesh(MeshConfig(preset="dp"), jax.devices()[:1])
    jax.set_mesh(one)
    model = bert.build(checkpoint.config, "cpu")
    params, _ = pretrained.place_params(checkpoint, model, one, seed=0)

    @jax.jit
    def run(params, ids_BS, visible_BS, at_BP):
        bound = model.bind(params)
        hidden = bound.encode(
            EncoderRows(ids_BS, np.zeros((1, width), np.int32), hide_padding(visible_BS))
        )
        return bound.compute_mlm_logits(hidden, at_BP)

    def compute_logits(text, place):
        row = np.zeros((1, width), np.int32)
        row[0, : len(text) + 2] = [2, *text, 3]
        visible = (np.arange(width) < len(text) + 2).astype(np.int32)[None]
        batch = {"ids": row, "visible": visible, "at": np.int32([[place + 1]])}
        logits = run(params, *mesh.place_batch(batch, one).values())
        return np.asarray(logits, np.float64)[0, 0, :23]

    return compute_logits
