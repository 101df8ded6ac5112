"""Define the models that are timed next to others, and make a batch for each.

Batches have Google's fields, or Hugging Face's. NumPy only: workers import this module.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

VOCAB_SIZE = 30_522
PADDING_OF_ROBERTA = 1  # the class counts positions from this id

# Settings of our side in addition to sizes: fields of ModelConfig, and "objective".
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"objective": "mlm_nsp"},
    "bert_masked": {"objective": "mlm_nsp"},  # theirs, too, computes logits of masked tokens alone
    "roberta": {
        "objective": "mlm",
        "hidden_act": "gelu_erf",
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514,  # two rows are never read there
    },
    "albert": {"objective": "mlm_nsp", "embedding_size": 128, "share_layers": True},
    "electra": {
        "objective": "rtd",
        "hidden_act": "gelu_erf",
        "embedding_size": 128,
        "generator_hidden_size": 64,
    },
    "distilbert": {
        "objective": "mlm",
        "hidden_act": "gelu_erf",
        "type_vocab_size": 0,
    },
    "modernbert": {
        "objective": "mlm",
        "hidden_act": "gelu_erf",
        "intermediate_size": 672,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "rotary",
        "global_rope_theta": 160_000.0,
        "local_attention": 64,
        "global_attn_every_n_layers": 3,
        "norm_position": "pre",
        "norm_bias": False,
        "linear_bias": False,
        "gated_mlp": True,
        "pooler_type": "mlm_transform",
        "dropout_sites": "attention",
    },
    "xlnet": {
        "objective": "permutation",
        "hidden_act": "gelu_erf",
        "type_vocab_size": 0,
        "position_embedding_type": "relative",
        "embedding_norm": False,
        "mlm_transform": False,
    },
    "left_to_right": {"objective": "causal", "is_causal": True},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """Hold a model's size, named as in bert_config.json, and the shape of its batch."""

    layers: int
    width: int
    heads: int
    batch_size: int
    seq_len: int
    predictions: int = 20
    family: str = "bert"  # one of FAMILIES

    @property
    def fields(self) -> dict[str, Any]:
        """Return the arguments of `build` on both sides."""
        return {"family": self.family, **self.sizes}

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that all configurations take."""
        return {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
        }


# The first two are for CPUs, the others for a GPU.
CASES = {
    "4x256": Case(layers=4, width=256, heads=4, batch_size=16, seq_len=128),
    "12x768": Case(layers=12, width=768, heads=12, batch_size=4, seq_len=128),
    "base-128": Case(layers=12, width=768, heads=12, batch_size=64, seq_len=128),
    "base-512": Case(12, 768, 12, batch_size=16, seq_len=512, predictions=77),
    "large-128": Case(layers=24, width=1024, heads=16, batch_size=32, seq_len=128),
    "large-512": Case(24, 1024, 16, batch_size=8, seq_len=512, predictions=77),
} | {
    family: Case(layers=4, width=256, heads=4, batch_size=16, seq_len=128, family=family)
    for family in FAMILIES
    if family != "bert"
}


def synthetic_batch(case: Case) -> dict[str, np.ndarray]:
    """Draw a batch in Google's fields, with padding and unused prediction slots."""
    rng = np.random.default_rng(0)
    shape, slots = (case.batch_size, case.seq_len), (case.batch_size, case.predictions)
    lengths_B = rng.integers(case.seq_len // 2, case.seq_len + 1, case.batch_size)
    visible_BS = np.arange(case.seq_len) < lengths_B[:, None]
    smallest = 1
    if case.family == "roberta":
        smallest = PADDING_OF_ROBERTA + 1
    used_BP = np.arange(case.predictions) < rng.integers(
        case.predictions // 2, case.predictions + 1, (slots[0], 1)
    )
    positions = [rng.choice(np.arange(1, n), case.predictions, replace=False) for n in lengths_B]
    ids = {
        "input_ids": np.where(visible_BS, rng.integers(smallest, VOCAB_SIZE, shape), smallest - 1),
        "input_mask": visible_BS,
        "segment_ids": (np.arange(case.seq_len) >= lengths_B[:, None] // 2) & visible_BS,
        "masked_lm_positions": np.sort(positions, axis=1) * used_BP,
        "masked_lm_ids": rng.integers(1, VOCAB_SIZE, slots) * used_BP,
        "next_sentence_labels": rng.integers(0, 2, case.batch_size),
    }
    return {name: array.astype(np.int32) for name, array in ids.items()} | {
        "masked_lm_weights": used_BP.astype(np.float32),
        "next_sentence_weights": np.ones(case.batch_size, np.float32),
    }


NOT_PREDICTED = -100


def hf_batch(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return Hugging Face's fields: a label at every position, NOT_PREDICTED for no prediction."""
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
