"""Score a model on a store's held-out documents, with every token hidden once as [MASK].

Documents are cut in order into rows of ROW_TOKENS tokens, special tokens included; no row has a
pair, and no row sees another. A hash of a token's place in the split says which of MASKS copies of
its row hides the token, so every model predicts the same tokens from the same neighbors.

Dimensions: N masked copies of rows, P hidden tokens of a copy, B copies of a batch.
"""

import itertools
from collections.abc import Mapping

import jax
import numpy as np

from bert_jax.inference import batches
from bert_jax.interop.pretrained import PlacedModel, refuse_causal
from bert_jax.logging.console import Screen
from bert_jax.model.attention import hide_padding
from bert_jax.model.bert import Bert, EncoderRows
from data_pipeline.io import Refused
from data_pipeline.labeled.framing import frame
from data_pipeline.labeled.rows import EncodedRows, build_rows
from data_pipeline.spec.hashing import draw_below, hash64
from data_pipeline.store import Split
from data_pipeline.vocab.template import Template

ROW_TOKENS, MASKS = 64, 7
_COPIES_PER_STEP = 256


def choose_masks(tokens: int) -> np.ndarray:
    """Return int64[tokens], the mask from 0 to MASKS - 1 that hides each token of a split."""
    return draw_below(hash64(0, np.arange(tokens)), MASKS)


def make_copies(split: Split, template: Template, mask_id: int) -> EncodedRows:
    """Make the masked copies of all rows; a copy that would hide no token is left out.

    Labels: positions and masked_ids int32[N,P], slot_weights float32[N,P], 0 in unused slots.
    """
    before, after = template.margins(is_pair=False)
    width = ROW_TOKENS - before - after
    mask_T = choose_masks(split.tokens)
    document_starts = np.asarray(split.sentence_offsets)[np.asarray(split.document_offsets)]
    copies, hidden = [], []
    for first, last in itertools.pairwise(document_starts):
        for start in range(first, last, width):
            ids = np.asarray(split.token_ids[start : min(start + width, last)], np.int32)
            row = frame(ids.tolist(), None, template, ROW_TOKENS)
            for mask in range(MASKS):
                places = np.flatnonzero(mask_T[start : start + len(ids)] == mask)
                if places.size:
                    token_ids = np.array(row.token_ids)
                    token_ids[before + places] = mask_id
                    copies.append(row._replace(token_ids=token_ids.tolist()))
                    hidden.append((before + places, ids[places]))
    slots = max((len(places) for places, _ in hidden), default=0)
    labels = {
        "positions": np.zeros((len(copies), slots), np.int32),
        "masked_ids": np.zeros((len(copies), slots), np.int32),
        "slot_weights": np.zeros((len(copies), slots), np.float32),
    }
    for number, (positions, ids) in enumerate(hidden):
        used = number, slice(len(ids))
        labels["positions"][used], labels["masked_ids"][used] = positions, ids
        labels["slot_weights"][used] = 1
    return build_rows(copies, labels)


def score_split(model: PlacedModel, split: Split, screen: Screen) -> float:
    """Return the mean loss of the split's tokens, each hidden once: nats per token.

    Raises:
      Refused: the split is empty, or the model reads shorter rows or only from left to right.
    """
    refuse_causal(model.checkpoint, "so it fills no masks; score a model that reads both ways")
    positions = model.checkpoint.config.max_position_embeddings
    if positions < ROW_TOKENS:
        raise Refused(
            f"{model.checkpoint.address} reads rows of {positions} tokens, and the score has rows "
            f"of {ROW_TOKENS}; train with config.model.max_position_embeddings={ROW_TOKENS} or more"
        )
    if not split.tokens:
        raise Refused("the store has no held-out text to score; build it with --holdout=0.05")
    rows = make_copies(split, model.vocabulary.template, model.vocabulary.special_ids["mask"])
    step = batches.compile_step(model.model, _compute_nats)
    results = batches.run_rows(step, model, rows, _COPIES_PER_STEP)
    results = batches.report_progress(results, rows.examples, "scoring masked copies", screen)
    total = sum(outputs["nats"].astype(np.float64).sum() for _, outputs in results)
    return float(total) / split.tokens


def _compute_nats(bert: Bert, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Return float32[B], the sum of the losses of the tokens that a copy hides."""
    weights_BP = batch["slot_weights"] * batch["example_weights"][:, None]
    visible = hide_padding(batch["input_mask"])
    rows = EncoderRows(batch["input_ids"], batch["segment_ids"], visible)
    vectors_BPD = bert.encode_masked(rows, batch["positions"], weights_BP)
    losses_BP = bert.compute_target_losses(vectors_BPD, batch["masked_ids"])[0]
    return {"nats": (losses_BP * weights_BP).sum(axis=1)}
