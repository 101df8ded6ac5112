"""A BERT written as Google's TF1 code reads it: a checkpoint, bert_config.json, the vocabulary.

Whether text is lowercased is a flag of that code; tokenizer_config.json says it to other readers.
"""

import json
import pathlib
from typing import Any

import numpy as np

from bert_jax import checkpoint_vocabulary, tf1
from bert_jax.config import ModelConfig
from bert_jax.named_tensors import by_path
from bert_jax.pretrained import Pretrained
from data_pipeline.vocab import FILE_NAMES, WORDPIECE

LAST = tf1.CONFIG
_ACTS = {ours: theirs for theirs, ours in tf1.ACTS.items()}
_EPSILON = 1e-12  # of every layer norm; its code takes no other
_SIZES = (
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)


def check(config: ModelConfig, address: str) -> None:
    """Raise if Google's code would compute something else from these weights.

    Raises:
      ValueError: another activation or epsilon than bert_config.json can say.
    """
    if config.hidden_act not in _ACTS:
        raise ValueError(
            f"{address} has hidden_act {config.hidden_act}, and Google's code has no exact gelu: "
            'its "gelu" is the tanh approximation; export to hf:DIR, or say with '
            "--hidden_act=gelu_tanh that the approximation is meant"
        )
    if config.layer_norm_eps != _EPSILON:
        raise ValueError(
            f"{address} has layer_norm_eps {config.layer_norm_eps:g}, and Google's code takes none "
            f"but {_EPSILON:g}; export to hf:DIR"
        )


def write(held: Pretrained, prefix: pathlib.Path) -> None:
    """Write a checkpoint under a prefix, and its JSON and vocabulary beside it.

    Raises:
      OSError: the disk refuses.
    """
    import tensorflow as tf

    arrays = {}
    for path, leaf in by_path(held.params).items():
        of = tf1.named(path)
        arrays[of.names[0]] = np.ascontiguousarray(leaf.T if of.is_transposed else leaf)
    names = sorted(arrays)
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(arrays[name]) for name in names],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} cannot be written: {str(error).splitlines()[0]}") from error
    vocabulary = held.vocabulary
    (prefix.parent / FILE_NAMES[vocabulary.kind]).write_bytes(vocabulary.file_bytes)
    if vocabulary.kind == WORDPIECE:
        case = {"do_lower_case": vocabulary.lowercase}
        _write_json(prefix.with_name(checkpoint_vocabulary.TOKENIZER_CONFIG), case)
    shown = {name: getattr(held.config, name) for name in _SIZES}
    shown["hidden_act"] = _ACTS[held.config.hidden_act]
    _write_json(prefix.with_name(tf1.CONFIG), shown)


def _write_json(path: pathlib.Path, shown: dict[str, Any]) -> None:
    path.write_text(json.dumps(shown, indent=2, sort_keys=True) + "\n", encoding="utf-8")
