"""A BERT written as Hugging Face's folder: for transformers and for sentence-transformers."""

import json
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from bert_jax import checkpoint_vocabulary, hf, task_layer
from bert_jax.named_tensors import by_path
from bert_jax.pretrained import Pretrained
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from data_pipeline.tokenizer_json import tokenizer_json
from data_pipeline.vocab import FILE_NAMES, WORDPIECE

LAST = hf.CONFIG  # a folder without it is not read by anyone
_ACTS = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new"}
_OF_A_TASK = {
    CLASSIFY: "BertForSequenceClassification",
    REGRESS: "BertForSequenceClassification",
    CHOOSE: "BertForMultipleChoice",
    SPAN: "BertForQuestionAnswering",
    TAG: "BertForTokenClassification",
}
_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"))  # of sentence-transformers, by folder


def architecture(held: Pretrained) -> str:
    """The class of transformers that has these heads, or the layer of this task."""
    if held.task is not None:
        return _OF_A_TASK[held.task.kind]
    return {
        (True, True): "BertForPreTraining",
        (True, False): "BertForMaskedLM",
        (False, True): "BertForNextSentencePrediction",
        (False, False): "BertModel",
    }[held.heads.mlm, held.heads.nsp]


def write(held: Pretrained, folder: pathlib.Path) -> None:
    """Write config, weights, tokeniser and what sentence-transformers reads into an empty folder.

    Raises:
      OSError: the disk refuses.
    """
    _write_tokeniser(held, folder)
    _write_pooling(held, folder)
    # Hugging Face's BertModel alone has names without a prefix.
    prefix = "" if architecture(held) == "BertModel" else "bert."
    arrays = {}
    for path, leaf in by_path(held.params).items():
        of = hf.named(path, prefix)
        name = of.names[0]
        if held.task is not None and held.task.kind == SPAN:
            name = name.replace("classifier.", "qa_outputs.")
        arrays[name] = np.ascontiguousarray(leaf.T if of.is_transposed else leaf)
    weights, config = folder / hf.WEIGHTS, folder / hf.CONFIG
    safetensors.numpy.save_file(arrays, weights, metadata={"format": "pt"})
    _write_json(config, _config(held))
    weights.chmod(config.stat().st_mode)  # the library makes it for the owner alone


def _config(held: Pretrained) -> dict[str, Any]:
    config = held.config
    return {
        "architectures": [architecture(held)],
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_act": _ACTS[config.hidden_act],
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "model_type": "bert",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": held.vocabulary.special_ids["pad"],
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "type_vocab_size": config.type_vocab_size,
        "vocab_size": config.vocab_size,
        **_labels(held),
    }


def _labels(held: Pretrained) -> dict[str, Any]:
    """Return what config.json says of a task: its classes, and all that predicting needs."""
    if held.task is None:
        return {}
    ours = {task_layer.KEY: task_layer.to_json(held.task)}
    if held.task.kind not in (CLASSIFY, REGRESS, TAG):
        return ours
    if held.task.kind == REGRESS:
        classes: dict[str, Any] = {"id2label": {"0": "value"}, "label2id": {"value": 0}}
        return {"problem_type": "regression", **classes, **ours}
    labels = held.task.labels
    return {
        **ours,
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }


def _write_tokeniser(held: Pretrained, folder: pathlib.Path) -> None:
    """The vocabulary as it is, and tokenizer.json where that format can say a SentencePiece one."""
    vocabulary = held.vocabulary
    (folder / FILE_NAMES[vocabulary.kind]).write_bytes(vocabulary.file_bytes)
    text = tokenizer_json(vocabulary)
    if text is not None:
        (folder / checkpoint_vocabulary.TOKENIZER).write_text(text, encoding="utf-8")
    pieces = vocabulary.pieces()
    special = {f"{name}_token": pieces[i] for name, i in vocabulary.special_ids.items()}
    settings: dict[str, Any] = {"model_max_length": held.config.max_position_embeddings}
    if vocabulary.kind == WORDPIECE:
        settings |= {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": vocabulary.lowercase,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
        }
    else:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(folder / checkpoint_vocabulary.TOKENIZER_CONFIG, settings | special)
    _write_json(folder / "special_tokens_map.json", special)


def _write_pooling(held: Pretrained, folder: pathlib.Path) -> None:
    """What sentence-transformers makes of a BERT that says nothing: the mean over its tokens."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(_MODULES)
    ]
    _write_json(folder / "modules.json", modules)
    _write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": held.config.max_position_embeddings, "do_lower_case": False},
    )
    (folder / "1_Pooling").mkdir()
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": held.config.hidden_size,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )


def _write_json(path: pathlib.Path, shown: object) -> None:
    path.write_text(json.dumps(shown, indent=2) + "\n", encoding="utf-8")
