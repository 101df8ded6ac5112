"""Build Hugging Face's classes in PyTorch, each with the losses of its pre-training.

Imported by workers alone, in an environment with torch and transformers.
Source: transformers v4.57.6 and 5.23, models/*/modeling_*.py. No class there trains ELECTRA's two
models together: they are joined here as google-research/electra has them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.step import cases

Tensors = dict[str, torch.Tensor]
WEIGHT_OF_DETECTION = 50.0  # Clark et al. 2020


@dataclasses.dataclass(frozen=True)
class Theirs:
    """Hold a model, and a function from model and batch to the losses to sum."""

    model: torch.nn.Module
    losses: Callable[[torch.nn.Module, Tensors], Tensors]


def build(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    """Make the model of a family with fresh weights; sizes are named as in cases.py."""
    return _BUILDERS[size["family"]](size, dropout_rate)


def _bert_sizes(size: Mapping[str, Any], dropout_rate: float) -> dict[str, Any]:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    return {name: size[name] for name in (*names, "intermediate_size")} | {
        "hidden_dropout_prob": dropout_rate,
        "attention_probs_dropout_prob": dropout_rate,
        "attn_implementation": "sdpa",
    }


def _bert(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.BertConfig(
        **_bert_sizes(size, dropout_rate),
        hidden_act="gelu_pytorch_tanh",  # Google BERT's; "gelu" would be by erf
    )
    return Theirs(transformers.BertForPreTraining(config), _pair_losses)


def _pair_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    out = model(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
    )
    sentences = "sop_logits" if hasattr(out, "sop_logits") else "seq_relationship_logits"
    cross_entropy = torch.nn.functional.cross_entropy
    logits = out.prediction_logits
    return {
        "mlm": cross_entropy(
            logits.view(-1, logits.shape[-1]),
            batch["labels"].view(-1),
            ignore_index=cases.NOT_PREDICTED,
        ),
        "nsp": cross_entropy(getattr(out, sentences), batch["next_sentence_labels"]),
    }


def _bert_masked(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    return dataclasses.replace(_bert(size, dropout_rate), losses=_masked_pair_losses)


def _masked_pair_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    """Gather the masked positions before the heads, as no class of a BERT does by itself."""
    hidden, pooled = model.bert(
        batch["input_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
    )[:2]
    is_asked = batch["labels"] != cases.NOT_PREDICTED
    cross_entropy = torch.nn.functional.cross_entropy
    return {
        "mlm": cross_entropy(model.cls.predictions(hidden[is_asked]), batch["labels"][is_asked]),
        "nsp": cross_entropy(model.cls.seq_relationship(pooled), batch["next_sentence_labels"]),
    }


def _albert(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.AlbertConfig(
        **_bert_sizes(size, dropout_rate),
        embedding_size=128,
        hidden_act="gelu_pytorch_tanh",
        classifier_dropout_prob=0.0,
    )
    return Theirs(transformers.AlbertForPreTraining(config), _pair_losses)


def _masked_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    out = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])
    return {"mlm": out.loss}


def _roberta(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.RobertaConfig(
        **_bert_sizes(size, dropout_rate),
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        max_position_embeddings=514,
        pad_token_id=cases.PADDING_OF_ROBERTA,
    )
    return Theirs(transformers.RobertaForMaskedLM(config), _masked_losses)


def _distilbert(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.DistilBertConfig(
        vocab_size=size["vocab_size"],
        dim=size["hidden_size"],
        n_layers=size["num_hidden_layers"],
        n_heads=size["num_attention_heads"],
        hidden_dim=size["intermediate_size"],
        dropout=dropout_rate,
        attention_dropout=dropout_rate,
        attn_implementation="sdpa",
    )
    return Theirs(transformers.DistilBertForMaskedLM(config), _masked_losses)


def _modernbert(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    fields = cases.FAMILIES["modernbert"]
    sizes = _bert_sizes(size, 0.0)
    del sizes["hidden_dropout_prob"], sizes["attention_probs_dropout_prob"]
    sizes["intermediate_size"] = fields["intermediate_size"]
    config = transformers.ModernBertConfig(
        **sizes,
        local_attention=fields["local_attention"],
        global_attn_every_n_layers=fields["global_attn_every_n_layers"],
        attention_dropout=dropout_rate,
        sparse_prediction=True,
        reference_compile=False,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **dict.fromkeys(("cls_token_id", "sep_token_id"), 0),
    )
    return Theirs(transformers.ModernBertForMaskedLM(config), _masked_losses)


def _left_to_right(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.BertConfig(
        **_bert_sizes(size, dropout_rate), hidden_act="gelu_pytorch_tanh", is_decoder=True
    )
    return Theirs(transformers.BertLMHeadModel(config), _next_token_losses)


def _next_token_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    labels = batch["whole_ids"].masked_fill(batch["attention_mask"] == 0, cases.NOT_PREDICTED)
    out = model(
        batch["whole_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
        labels=labels,
        use_cache=False,
    )
    return {"causal": out.loss}


def _xlnet(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    config = transformers.XLNetConfig(
        vocab_size=size["vocab_size"],
        d_model=size["hidden_size"],
        n_layer=size["num_hidden_layers"],
        n_head=size["num_attention_heads"],
        d_inner=size["intermediate_size"],
        dropout=dropout_rate,
    )
    return Theirs(transformers.XLNetLMHeadModel(config), _permutation_losses)


def _permutation_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    """Predict the slots in their order; the batch already has the permutation masks."""
    out = model(
        batch["whole_ids"],
        attention_mask=batch["attention_mask"],
        token_type_ids=batch["token_type_ids"],
        perm_mask=batch["perm_mask"],
        target_mapping=batch["target_mapping"],
        labels=batch["target_ids"],
        use_mems=False,
    )
    return {"permutation": out.loss}


class _Electra(torch.nn.Module):
    """Join a generator and a discriminator that share their embeddings."""

    def __init__(self, size: Mapping[str, Any], dropout_rate: float) -> None:
        super().__init__()
        sizes, fields = _bert_sizes(size, dropout_rate), cases.FAMILIES["electra"]
        width = fields["generator_hidden_size"]
        small = sizes | {
            "hidden_size": width,
            "num_attention_heads": size["num_attention_heads"] * width // size["hidden_size"],
            "intermediate_size": size["intermediate_size"] * width // size["hidden_size"],
        }
        narrow = {"embedding_size": fields["embedding_size"]}
        self.generator = transformers.ElectraForMaskedLM(
            transformers.ElectraConfig(**small, **narrow)
        )
        self.discriminator = transformers.ElectraForPreTraining(
            transformers.ElectraConfig(**sizes, **narrow)
        )
        self.discriminator.electra.embeddings = self.generator.electra.embeddings


def _electra_losses(model: torch.nn.Module, batch: Tensors) -> Tensors:
    mask, is_asked = batch["attention_mask"], batch["labels"] != cases.NOT_PREDICTED
    types = batch["token_type_ids"]
    out = model.generator(
        batch["input_ids"], attention_mask=mask, token_type_ids=types, labels=batch["labels"]
    )
    with torch.no_grad():
        asked = out.logits[is_asked]
        noise = -torch.log(-torch.log(torch.rand_like(asked).clamp(1e-9, 1.0 - 1e-7)))
        ids = batch["whole_ids"].clone()
        ids[is_asked] = (asked + noise).argmax(-1)
        is_replaced = (ids != batch["whole_ids"]).long()
    detected = model.discriminator(
        ids, attention_mask=mask, token_type_ids=types, labels=is_replaced
    )
    return {"mlm": out.loss, "rtd": WEIGHT_OF_DETECTION * detected.loss}


def _electra(size: Mapping[str, Any], dropout_rate: float) -> Theirs:
    return Theirs(_Electra(size, dropout_rate), _electra_losses)


def group_by_decay(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Group parameters for an optimizer: matrices decay, biases and norms do not."""
    named = list(model.named_parameters())
    plain = {name for name, _ in named if name.endswith("bias") or "norm" in name.lower()}
    return [
        {"params": [p for name, p in named if name not in plain], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name in plain], "weight_decay": 0.0},
    ]


def make_batch(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the fields of cases.hf_batch, and those for other objectives."""
    batch = cases.hf_batch(fields)
    labels_BS = batch["labels"]
    is_asked_BS = labels_BS != cases.NOT_PREDICTED
    batch["whole_ids"] = np.where(is_asked_BS, labels_BS, batch["input_ids"])
    positions_BP, used_BP = fields["masked_lm_positions"], fields["masked_lm_weights"] > 0
    seq_len = labels_BS.shape[1]
    # A target sees all other tokens, and the targets before it.
    order_BS = np.where(is_asked_BS, np.arange(seq_len), -1)
    hidden_BSS = is_asked_BS[:, None, :] & (order_BS[:, None, :] >= order_BS[:, :, None])
    batch["perm_mask"] = hidden_BSS.astype(np.float32)
    mapping_BPS = positions_BP[:, :, None] == np.arange(seq_len)
    batch["target_mapping"] = (mapping_BPS & used_BP[:, :, None]).astype(np.float32)
    batch["target_ids"] = np.where(used_BP, fields["masked_lm_ids"], cases.NOT_PREDICTED)
    return batch


_BUILDERS = {
    "bert": _bert,
    "bert_masked": _bert_masked,
    "roberta": _roberta,
    "albert": _albert,
    "electra": _electra,
    "distilbert": _distilbert,
    "modernbert": _modernbert,
    "xlnet": _xlnet,
    "left_to_right": _left_to_right,
}
