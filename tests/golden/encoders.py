"""Hidden states, losses and gradients of Hugging Face's encoders, written as encoders.npz.

    python tests/golden/encoders.py

in an environment with torch and transformers. Weights are random and of odd sizes; they follow from
their names (`weights`), so that only results are kept: of each model the hidden states of every
layer, the loss, and the gradient of every parameter, in float32.
"""

import json
import pathlib
import zlib

import numpy as np

VOCAB, ROWS, LENGTH = 61, 3, 20
SIZES = {"hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 10, "vocab_size": VOCAB, "max_position_embeddings": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

DEBERTA = {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
DEBERTA |= {"share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False}

# Class of transformers, and which of several -> its config. attn_implementation: the one without
# fused kernels.
MODELS = {
    "BertForMaskedLM": SIZES | NO_DROPOUT,
    "BertLMHeadModel": SIZES | NO_DROPOUT | {"is_decoder": True},
    "ModernBertForMaskedLM": SIZES
    | SPECIAL
    | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 6},
    "RobertaForMaskedLM": SIZES | NO_DROPOUT | {"type_vocab_size": 1, "pad_token_id": 1},
    "AlbertForPreTraining": SIZES | NO_DROPOUT | {"embedding_size": 7},
    "AlbertForMaskedLM": SIZES | NO_DROPOUT | {"embedding_size": 7},
    "ElectraForMaskedLM": SIZES | NO_DROPOUT | {"embedding_size": 7},
    "ElectraForPreTraining": SIZES | NO_DROPOUT | {"embedding_size": 7},
    # v3's settings; what DeBERTa-v2 has otherwise, without buckets, and the other head.
    "DebertaV2ForMaskedLM": SIZES | NO_DROPOUT | DEBERTA,
    "DebertaV2ForMaskedLM by v2's": SIZES
    | NO_DROPOUT
    | {"relative_attention": True, "pos_att_type": "p2c", "max_relative_positions": 7}
    | {"type_vocab_size": 2, "legacy": False, "tie_word_embeddings": False},
    "DistilBertForMaskedLM": {"dim": 12, "n_layers": 4, "n_heads": 3, "hidden_dim": 10}
    | {"vocab_size": VOCAB, "max_position_embeddings": 24, "dropout": 0.0}
    | {"attention_dropout": 0.0},
}


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw the parameter of this name, float32; those of norms are around 1."""
    normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    is_scale = "norm" in name.lower() and name.endswith("weight")
    return (float(is_scale) + 0.2 * normal).astype(np.float32)


def batch() -> dict[str, np.ndarray]:
    """Draw rows of which one is padded, and labels; -100 where nothing is predicted."""
    rng = np.random.default_rng(2018)
    ids = rng.integers(3, VOCAB, (ROWS, LENGTH))
    mask = np.ones_like(ids)
    mask[1, 13:] = 0
    ids[1, 13:] = 1  # RoBERTa's padding, whose positions follow from it
    labels = np.full_like(ids, -100)
    for row, column in ((0, 3), (0, 17), (1, 1), (1, 12), (2, 9)):
        labels[row, column] = rng.integers(3, VOCAB)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def order_labels() -> np.ndarray:
    """Return the sentence order of each row; 1 is swapped."""
    return np.arange(ROWS) % 2


def next_token_labels() -> np.ndarray:
    """Return the rows themselves, -100 at padding: the classes left to right shift them."""
    rows = batch()
    return np.where(rows["attention_mask"] == 1, rows["input_ids"], -100)


def labels_of(kind: str) -> np.ndarray:
    """Return the labels that a class reads; of a discriminator those tokens are the replaced."""
    if MODELS[kind].get("is_decoder"):
        return next_token_labels()
    labels = batch()["labels"]
    return (labels >= 0).astype(np.int64) if kind == "ElectraForPreTraining" else labels


def main() -> None:
    """Entry point."""
    import torch
    import transformers

    torch.set_num_threads(1)
    inputs = {name: torch.tensor(array) for name, array in batch().items()}
    arrays = {}
    for kind, sizes in MODELS.items():
        model_class = getattr(transformers, kind.split()[0])
        config = model_class.config_class(**sizes, attn_implementation="eager")
        model = model_class(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.tensor(weights(name, tuple(parameter.shape))))
        given = inputs | {"labels": torch.tensor(labels_of(kind))}
        if kind == "AlbertForPreTraining":
            given["sentence_order_label"] = torch.tensor(order_labels())
        out = model(**given, output_hidden_states=True)
        out.loss.backward()
        arrays[f"{kind}/config"] = json.dumps(config.to_dict())
        arrays[f"{kind}/loss"] = out.loss.item()
        arrays[f"{kind}/hidden"] = torch.stack(out.hidden_states).detach().numpy()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:  # a pooler has none
                arrays[f"{kind}/gradient/{name}"] = parameter.grad.numpy()
    np.savez_compressed(
        pathlib.Path(__file__).with_suffix(".npz"),
        **arrays,
        made_with=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )


if __name__ == "__main__":
    main()
