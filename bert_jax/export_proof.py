"""A checkpoint beside its copy, read back: the same rows of tokens through both.

Dimensions: B rows, S sequence, T tokens.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from bert_jax import mesh as mesh_lib
from bert_jax import pretrained
from bert_jax.attention import unpadded
from bert_jax.config import MeshConfig
from bert_jax.exit_codes import Refused
from bert_jax.models import bert
from bert_jax.pretrained import Pretrained
from data_pipeline.framing import frame
from data_pipeline.vocab import Vocabulary

TOLERANCE = 1e-5  # float32 hidden states of the same arrays differ by less, whatever the layout
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 2018 they trained two models on 3.3 billion words (and 16 chips).",
    "Ceci n'est pas une pipe \u2014 \u00fcber, na\u00efve, \u4f60\u597d!",
    "a",
)
HIDDEN, POOLED, MLM, NSP = "hidden", "pooled", "MLM logits", "NSP logits"
OF_CLS, OF_TOKENS = "[CLS] logits", "token logits"  # a task's layer on either, whichever it reads
_RANDOM_ROWS, _TOKENS = 4, 48
Compared = dict[str, float]


def rows(vocabulary: Vocabulary, max_tokens: int) -> dict[str, np.ndarray]:
    """The rows of the proof, int32[B,S]: sentences, and random pieces; a half is segment 1."""
    seq_len = min(_TOKENS, max_tokens)
    flat_ids, lengths = vocabulary.encode(SENTENCES)
    starts = np.cumsum(lengths) - lengths
    framed = [
        frame(flat_ids[at : at + length].tolist(), None, vocabulary.special_ids, seq_len)[0]
        for at, length in zip(starts, lengths, strict=True)
    ]
    rng = np.random.default_rng(0)
    framed += [
        rng.integers(vocabulary.size, size=seq_len - number).tolist()
        for number in range(min(_RANDOM_ROWS, seq_len))
    ]
    ids_BS = np.full((len(framed), seq_len), vocabulary.special_ids["pad"], np.int32)
    mask_BS = np.zeros_like(ids_BS)
    for row, ids in enumerate(framed):
        ids_BS[row, : len(ids)] = ids
        mask_BS[row, : len(ids)] = 1
    positions_BS = np.broadcast_to(np.arange(seq_len, dtype=np.int32), ids_BS.shape)
    segments_BS = mask_BS * (positions_BS >= seq_len // 2)
    return {"ids": ids_BS, "mask": mask_BS, "segments": segments_BS, "positions": positions_BS}


def outputs(held: Pretrained, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a checkpoint computes of rows in float32: hidden states of all layers, and its heads."""
    config = dataclasses.replace(held.config, compute_dtype="float32")
    on = mesh_lib.make(MeshConfig(), jax.local_devices()[:1])
    with jax.set_mesh(on):
        model = bert.build(config, jax.default_backend(), heads=held.heads)
        params, _ = pretrained.placed(held, model, on, seed=0)

        @jax.jit
        def run(params: bert.Params, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            bound = model.bind(params)
            visible = unpadded(batch["mask"])
            hidden = bound.hidden_layers(batch["ids"], batch["segments"], visible)
            found = {f"{HIDDEN} of layer {i}": one for i, one in enumerate(hidden)}
            if "pooler" in held.params:
                found[POOLED] = bound.pooled(hidden[-1])
            if held.heads.classes:
                found[OF_TOKENS] = bound.class_logits(hidden[-1])
                if "pooler" in held.params:
                    found[OF_CLS] = bound.class_logits(bound.pooled(hidden[-1]))
            if held.heads.nsp:
                found[NSP] = bound.nsp_logits(hidden[-1])
            if held.heads.mlm:
                found[MLM] = bound.mlm_logits(hidden[-1], batch["positions"])
            return found

        given = run(params, mesh_lib.place(batch, on))
        found = {name: np.asarray(one) for name, one in given.items()}
    if MLM in found:
        found[MLM] = found[MLM][..., : config.vocab_size]
    return found


def differences(before: Pretrained, after: Pretrained) -> Compared:
    """The largest difference of hidden states and of what the heads give, by name.

    Raises:
      Refused: the copy has other sizes, other heads or another vocabulary.
    """
    _check_same(before, after)
    batch = rows(before.vocabulary, before.config.max_position_embeddings)
    expected, found = outputs(before, batch), outputs(after, batch)
    largest: Compared = {}
    for name, array in expected.items():
        kind = name.partition(" of layer")[0]
        difference = float(np.max(np.abs(array - found[name])))
        largest[kind] = max(difference, largest.get(kind, 0.0))
    return {
        what: largest[what]
        for what in (HIDDEN, POOLED, MLM, NSP, OF_CLS, OF_TOKENS)
        if what in largest
    }


def _check_same(before: Pretrained, after: Pretrained) -> None:
    theirs = dataclasses.replace(after.config, compute_dtype=before.config.compute_dtype)
    for what, one, other in (
        ("sizes", before.config, theirs),
        ("parts", sorted(before.params), sorted(after.params)),
        ("a vocabulary", before.vocabulary.digest, after.vocabulary.digest),
        ("case", before.vocabulary.lowercase, after.vocabulary.lowercase),
    ):
        if one != other:
            raise Refused(f"the copy has {what} {other}, the checkpoint {one}; nothing was kept")
