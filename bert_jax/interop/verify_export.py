"""Verify an export: run the same rows of tokens through a checkpoint and its copy.

Dimensions: B rows, S sequence, T tokens.
"""

import hashlib
from collections.abc import Mapping

import jax
import numpy as np

from bert_jax.config import ComputeConfig
from bert_jax.interop.pretrained import Pretrained, place_model
from bert_jax.model import bert
from bert_jax.model.attention import hide_padding
from bert_jax.parallel import mesh as mesh_lib
from data_pipeline.io.refused import Refused
from data_pipeline.labelled.framing import FramedRow, frame
from data_pipeline.labelled.rows import build_rows
from data_pipeline.vocab import Vocabulary
from data_pipeline.vocab.wordpiece import join_pieces

TOLERANCE = 1e-5  # float32 hidden states of the same arrays differ by less, whatever the layout
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 2018 they trained two models on 3.3 billion words (and 16 chips).",
    "Ceci n'est pas une pipe \u2014 \u00fcber, na\u00efve, \u4f60\u597d!",
    "a",
)
HIDDEN, POOLED, MLM, NSP = "hidden", "pooled", "MLM logits", "NSP logits"
REPLACED = "replaced-token logits"
OF_CLS, OF_TOKENS = "[CLS] logits", "token logits"  # a task layer's, computed on both
_RANDOM_ROWS, _TOKENS = 4, 48


def make_rows(vocabulary: Vocabulary, max_tokens: int) -> dict[str, np.ndarray]:
    """Return a batch to compare by, int32[B,S]: sentences and random tokens; half is segment 1."""
    seq_len = min(_TOKENS, max_tokens)
    flat_ids, lengths = vocabulary.encode(SENTENCES)
    framed = [
        frame(ids.tolist(), None, vocabulary.template, seq_len)
        for ids in np.split(flat_ids, np.cumsum(lengths)[:-1])
    ]
    # Half of each row is segment 1.
    halves = [row._replace(second_start=seq_len // 2, segment_ids=()) for row in framed]
    rng = np.random.default_rng(0)
    halves += [
        FramedRow(rng.integers(vocabulary.size, size=seq_len - number).tolist(), seq_len // 2)
        for number in range(min(_RANDOM_ROWS, seq_len))
    ]
    rows = build_rows(halves)
    batch = rows.batch(np.arange(rows.examples), seq_len, vocabulary.special_ids["pad"])
    shape = batch["input_ids"].shape
    names = ("input_ids", "input_mask", "segment_ids", "cls_positions")
    positions_BS = np.broadcast_to(np.arange(seq_len, dtype=np.int32), shape)
    return {name: batch[name] for name in names if name in batch} | {"positions": positions_BS}


def compute_outputs(
    checkpoint: Pretrained, batch: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what a checkpoint computes of rows in float32: all hidden states, and its heads."""
    compute = ComputeConfig(compute_dtype="float32")
    placed = place_model(checkpoint, checkpoint.heads, jax.local_devices()[:1], compute)

    @jax.jit
    def run(params: bert.Params, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        bound = placed.model.bind(params)
        visible, cls_positions = hide_padding(batch["input_mask"]), batch.get("cls_positions")
        hidden = bound.encode_layers(batch["input_ids"], batch["segment_ids"], visible)
        outputs = {f"{HIDDEN} of layer {i}": layer_BSD for i, layer_BSD in enumerate(hidden)}
        if "pooler" in checkpoint.params:
            outputs[POOLED] = bound.pool(hidden[-1], cls_positions)
        if checkpoint.heads.classes:
            outputs[OF_TOKENS] = bound.compute_class_logits(
                bound.transform_tokens(hidden[-1], batch["input_mask"])
            )
            if "pooler" in checkpoint.params or checkpoint.config.pooler_type == "mlm_transform":
                pooled = bound.pool(hidden[-1], cls_positions, batch["input_mask"])
                outputs[OF_CLS] = bound.compute_class_logits(pooled)
        if checkpoint.heads.nsp:
            outputs[NSP] = bound.compute_nsp_logits(hidden[-1], cls_positions)
        if checkpoint.heads.rtd:
            outputs[REPLACED] = bound.compute_replaced_logits(hidden[-1])
        if checkpoint.heads.mlm:
            outputs[MLM] = bound.compute_mlm_logits(hidden[-1], batch["positions"])
        return outputs

    arrays = run(placed.params, mesh_lib.place_batch(batch, placed.mesh))
    outputs = {name: np.asarray(array) for name, array in arrays.items()}
    if MLM in outputs:
        outputs[MLM] = outputs[MLM][..., : checkpoint.config.vocab_size]
    return outputs


def _hash_pieces(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(join_pieces(vocabulary.pieces())).hexdigest()[:12]


def compare(before: Pretrained, after: Pretrained) -> dict[str, float]:
    """Return the largest difference of hidden states and of each head's outputs, by name.

    Raises:
      Refused: the copy has other sizes, other heads or another vocabulary.
    """
    for name, fact, copied_fact in (
        ("sizes", before.config, after.config),
        ("parts", sorted(before.params), sorted(after.params)),
        ("the pieces", _hash_pieces(before.vocabulary), _hash_pieces(after.vocabulary)),
        ("case", before.vocabulary.lowercase, after.vocabulary.lowercase),
        ("rules", before.vocabulary.sentencepiece_rules, after.vocabulary.sentencepiece_rules),
    ):
        if fact != copied_fact:
            raise Refused(
                f"the copy has {name} {copied_fact}, the checkpoint {fact}; nothing was kept"
            )
    batch = make_rows(before.vocabulary, before.config.max_position_embeddings)
    expected, actual = compute_outputs(before, batch), compute_outputs(after, batch)
    largest: dict[str, float] = {}
    for name, array in expected.items():
        kind = name.partition(" of layer")[0]
        difference = float(np.max(np.abs(array - actual[name])))
        largest[kind] = max(difference, largest.get(kind, 0.0))
    kinds = (HIDDEN, POOLED, MLM, NSP, REPLACED, OF_CLS, OF_TOKENS)
    return {kind: largest[kind] for kind in kinds if kind in largest}
