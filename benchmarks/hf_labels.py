"""A batch in Google's fields as Hugging Face's models take it. NumPy only: workers import it."""

from collections.abc import Mapping

import numpy as np

NOT_PREDICTED = -100


def labelled(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Their fields: a label at every position, NOT_PREDICTED where none is asked for."""
    labels_BS = np.full(fields["input_ids"].shape, NOT_PREDICTED, np.int32)
    used_BP = fields["masked_lm_weights"] > 0
    rows_BP = np.broadcast_to(np.arange(len(used_BP))[:, None], used_BP.shape)
    positions_BP = fields["masked_lm_positions"]
    labels_BS[rows_BP[used_BP], positions_BP[used_BP]] = fields["masked_lm_ids"][used_BP]
    return {
        "input_ids": fields["input_ids"],
        "attention_mask": fields["input_mask"],
        "token_type_ids": fields["segment_ids"],
        "labels": labels_BS,
        "next_sentence_labels": fields["next_sentence_labels"],
    }
