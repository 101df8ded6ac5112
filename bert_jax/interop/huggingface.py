"""Read and write a BERT in Hugging Face's format: config.json, safetensors, tokenizer files.

Exports load in transformers and in sentence-transformers.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from bert_jax.config import ModelConfig
from bert_jax.config.finetune_schema import TaskOptions
from bert_jax.config.model_rules import check_sizes
from bert_jax.interop import transformers_class, vocabulary
from bert_jax.interop.families import FAMILIES, Family
from bert_jax.interop.families.family import ROW_KINDS
from bert_jax.interop.model_json import JsonObject, read_choice, read_json
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.tensor_names import (
    Tensors,
    list_names,
    read_floats,
    read_params,
    rename,
)
from bert_jax.model.bert import Params
from bert_jax.tasks import task_layer
from bert_jax.tasks.task import CLASSIFY, REGRESS, SPAN, TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import Refused, small_files
from data_pipeline.io.atomic import write_json
from data_pipeline.io.small_files import DamagedFile, is_file_name
from data_pipeline.spec.schema import TRANSFORMERS
from data_pipeline.vocab import LIST, Vocabulary
from data_pipeline.vocab.sentencepiece_model import NO_RULES, list_settings
from data_pipeline.vocab.template import Template
from data_pipeline.vocab.tokenizer_json import export_tokenizer_json

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_HOW_TO_FIX = (
    "give the folder that save_pretrained of transformers wrote, or a download of the whole "
    "repository"
)
# Suffixes of weights that are not read -> the format, and what transformers needs to open it.
_OTHER_WEIGHTS = {
    **dict.fromkeys((".bin", ".pt"), ("a pickle, which may run code and", "")),
    ".msgpack": ("Flax's format, which", ", from_flax=True"),
    ".h5": ("TensorFlow's format, which", ", from_tf=True"),
}
_TASK_LAYERS = ("classifier", "qa_outputs")  # classes; starts and ends of answers
# Keeps CrossEncoder of sentence-transformers from squashing a number into 0 to 1.
_OUTPUTS_NUMBERS = {"activation_fn": "torch.nn.modules.linear.Identity"}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclasses.dataclass(frozen=True)
class ConfigJson:
    """Hold a folder's config.json, and the kind of encoder and the sizes that it describes."""

    path: pathlib.Path
    settings: JsonObject
    architecture: str  # the class of transformers that the file names; "" if none
    family: Family
    model: ModelConfig

    @property
    def kind(self) -> str | None:
        """Return the kind of task of the file's class (our key picks one of several) or None."""
        ours, ends = self.settings.get(task_layer.KEY), self.family.class_ends
        kinds = [kind for kind, end in ends.items() if self.architecture.endswith(end)]
        given = ours.get("kind") if isinstance(ours, dict) else None
        return max(kinds, key=lambda kind: kind == given, default=None)


def read_config(directory: pathlib.Path) -> ConfigJson:
    """Read a folder's config.json.

    Raises:
      Refused: it is missing, or of an encoder that bert_jax does not compute.
    """
    path, adapter = directory / CONFIG, directory / "adapter_config.json"
    if adapter.is_file():  # transformers also adds it to weights in the same folder
        raise Refused(
            f"{directory} has an adapter of PEFT ({adapter.name}), which changes its model; merge "
            "the two: model.merge_and_unload().save_pretrained(NEW), and the tokenizer too, or "
            "remove the adapter's files if its model is meant"
        )
    if not path.is_file():
        raise Refused(f"{directory} has no {CONFIG}; {_HOW_TO_FIX}")
    settings = read_json(path)
    classes = settings.get("architectures")
    architecture = str(classes[0]) if isinstance(classes, list) and classes else ""
    matching = (kind for kind, each in FAMILIES.items() if architecture in each.classes)
    kind = settings.get("model_type", next(matching, "bert"))  # files of 2019 lack it
    family = FAMILIES[read_choice(path, "model_type", kind, FAMILIES)]
    config = family.parse(path, settings)
    check_sizes(config, path)
    if family.names.pad_id is not None:
        pad_id = settings.get("pad_token_id", family.names.pad_id)
        family = dataclasses.replace(family, names=dataclasses.replace(family.names, pad_id=pad_id))
    return ConfigJson(path, settings, architecture, family, config)


def check_padding(family: Family, words: Vocabulary) -> None:
    """Raise if a family counts positions from its padding id, and the vocabulary's id differs."""
    pad_id, theirs = words.special_ids["pad"], family.names.pad_id
    if theirs not in (None, pad_id):
        raise Refused(
            f"{words.path} pads with id {pad_id}, and {family.model_type} counts positions by "
            f"padding of id {theirs}, so another token would not be counted; put the "
            "vocabulary that the checkpoint was trained with into its folder"
        )


def read(config_json: ConfigJson) -> tuple[Params, tuple[str, ...]]:
    """Read the arrays in the folder of a config.json: encoder, and pooler and heads if any.

    The second value has the names of all other arrays, such as a third-party head's; a class of
    transformers has none.

    Raises:
      Refused: a file is missing, damaged, pickled, or of an encoder that is not computed here.
    """
    family, config, kind = config_json.family, config_json.model, config_json.kind
    # What our own key says of a layer is checked where the layer is read.
    is_ours = task_layer.KEY in config_json.settings
    is_known = not is_ours and config_json.architecture in family.classes
    names = family.choose_names(kind)
    with contextlib.ExitStack() as stack:
        tensors = _open_tensors(config_json.path.parent, stack)
        prefix = family.prefix
        if not any(name.startswith(prefix) for name in tensors.dims):
            prefix = ""  # the class without heads writes none
        name_tensor = functools.partial(names.name_tensor, prefix=prefix)
        (words,) = name_tensor("embeddings/word/embedding").names
        # save_model of safetensors keeps the first of two tied names in alphabetical order.
        is_tied = config_json.settings.get("tie_word_embeddings", True)
        if is_tied and words not in tensors.dims and family.decoder in tensors.dims:
            tensors = tensors.rename(family.decoder, words)
        layers: tuple[str, ...] = () if is_known else _TASK_LAYERS
        if kind is not None:
            layers = (names.heads["classifier"],)
        layer = _read_task_params(tensors, config, layers)
        # transformers before version 4 saved a pooler next to a layer that does not read it.
        unused = names.encoder.get("pooler") if "pooler" in names.heads else None
        layer_arrays = [name for name in tensors.dims if layer and name.startswith(tuple(layers))]
        params, unread = read_params(
            tensors,
            name_tensor,
            config,
            ignored=[
                *(family.decoder, *layer_arrays),
                *(prefix + name for name in (*_BUFFERS, *family.ignored)),
                *(f"{prefix}{unused}.{leaf}" for leaf in ("weight", "bias") if unused),
            ],
            stems=("",) if is_known else (prefix,) if prefix else names.list_stems(),
        )
        _check_tied(tensors, params, config_json)
        return params | layer, unread


def _read_task_params(tensors: Tensors, config: ModelConfig, names: Sequence[str]) -> Params:
    """Read the layer of a task, which has one of these names, under our path; {} if none has."""
    for name in names:
        weight, bias = f"{name}.weight", f"{name}.bias"
        dims = tensors.dims.get(weight, ())
        if dims[1:] == (config.hidden_size,) and tensors.dims.get(bias) == dims[:1]:
            kernel = np.ascontiguousarray(read_floats(tensors, weight).T)
            return {"classifier": {"kernel": kernel, "bias": read_floats(tensors, bias)}}
    return {}


def _open_tensors(directory: pathlib.Path, stack: contextlib.ExitStack) -> Tensors:
    file_of: dict[str, Any] = {}
    for path in _find_files(directory):
        small_files.open_regular(path).close()  # refuses an LFS pointer, an HTML page, a pipe
        try:
            opened = stack.enter_context(safetensors.safe_open(path, "np"))
        except safetensors.SafetensorError as error:
            raise Refused(
                f"{path} is damaged or cut off ({error}); copy or download it again"
            ) from error
        file_of |= dict.fromkeys(opened.keys(), opened)
    dims = {name: tuple(file.get_slice(name).get_shape()) for name, file in file_of.items()}

    def read_tensor(name: str) -> np.ndarray:
        try:
            array: np.ndarray = file_of[name].get_tensor(name)
        except (safetensors.SafetensorError, TypeError, ValueError, AttributeError) as error:
            raise Refused(
                f"{directory}: {name} cannot be read ({str(error)[:80]}); give arrays of float32, "
                "float16 or bfloat16, or download the file again if it is damaged"
            ) from error
        return array

    return Tensors(str(directory), dims, read_tensor)


def _find_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the safetensors files of a folder: one, or the parts that its index names."""
    if (directory / WEIGHTS).is_file():
        return [directory / WEIGHTS]
    if (directory / INDEX).is_file():
        return _read_index(directory / INDEX)
    if others := sorted(directory.glob("*.safetensors")):
        raise Refused(
            f"{directory} has {others[0].name}, and neither {WEIGHTS} nor {INDEX}; rename the one "
            f"file of a variant to {WEIGHTS}, or copy or download the whole folder"
        )
    # Not training_args.bin and optimizer.pt, which a Trainer writes next to any weights.
    for suffix, (kind, argument) in _OTHER_WEIGHTS.items():
        if others := sorted(directory.glob(f"*model*{suffix}")):
            version = " 4" if argument else ""
            raise Refused(
                f"{directory} has its weights in {others[0].name}, {kind} is not read; open it "
                f"with transformers{version} and save it again: AutoModel.from_pretrained(DIR"
                f"{argument}).save_pretrained(NEW, safe_serialization=True), with the class of "
                "its heads in place of AutoModel"
            )
    raise Refused(f"{directory} has no {WEIGHTS}; {_HOW_TO_FIX}")


def _read_index(index: pathlib.Path) -> list[pathlib.Path]:
    """Return the files that an index names, which must be in its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise Refused(f"{index} has no weight_map; copy or download the folder again")
    parts = sorted(set(map(str, weight_map.values())))
    # The files themselves may be links: the hub's cache is made of them.
    wrong = [
        part
        for part in parts
        if pathlib.PurePath(part).name != part
        or not is_file_name(part)
        or not (index.parent / part).is_file()
    ]
    if wrong:
        raise Refused(
            f"{index} names {list_names(wrong)}, which is not in its folder; copy or download the "
            "folder again"
        )
    return [index.parent / part for part in parts]


def _check_tied(tensors: Tensors, params: Params, config_json: ConfigJson) -> None:
    """Refuse an MLM output matrix that differs from the word table, as bert_jax ties them."""
    decoder, settings = config_json.family.decoder, config_json.settings
    if "output_bias" not in params.get("mlm", {}):
        return
    if decoder not in tensors.dims:
        # DeBERTa's head without `legacy` has no matrix, and multiplies by the word table.
        has_matrix, is_tied = (settings.get(key, True) for key in ("legacy", "tie_word_embeddings"))
        if has_matrix and not is_tied:
            raise Refused(
                f"{tensors.place} has no {decoder}, and its {CONFIG} says tie_word_embeddings = "
                f"{is_tied!r:.80}: give the whole checkpoint, or set it to true if the MLM head "
                "shares the word embeddings"
            )
        return
    if not np.array_equal(
        tensors.read(decoder).astype(np.float32), params["embeddings"]["word"]["embedding"]
    ):
        raise Refused(
            f"{tensors.place} has another {decoder} than its word embeddings; the MLM head "
            "shares them: save it again with tie_word_embeddings = true, or without the head"
        )


_MAX_ROW_TOKENS = 512  # tokens of a row of a third-party model that has more positions
_MAX_SPAN = 384  # source: run_squad.py@eedf5716ce


def read_task_layer(config_json: ConfigJson, classes: int, template: Template) -> TaskLayer:
    """Read a task layer's meaning from config.json, of bert_jax's export or a third party's.

    Raises:
      Refused: config.json names no task, or one that is not computed here.
    """
    path, settings, family = config_json.path, config_json.settings, config_json.family
    kind = config_json.kind
    if config_json.model.is_causal and kind in ROW_KINDS:
        raise Refused(
            f"{path} says is_decoder = True, and {config_json.architecture} reads [CLS], which "
            "sees no other token then; bert_jax reads the last token of a causal model: give the "
            "model that it was fine-tuned from, and fine-tune that"
        )
    if family.has_summary_type and kind in ROW_KINDS:
        theirs, ours = settings.get("summary_type", "last"), template.place_of_cls
        if theirs != ours:
            raise Refused(
                f"{path} says summary_type = {theirs!r:.80}, but [CLS] is the {ours} token of the "
                "rows that the tokenizer in its folder makes; put back the files that were saved "
                "together, or give the model that it was fine-tuned from, and fine-tune that"
            )
    if task_layer.KEY in settings:
        exported = small_files.field(settings, task_layer.KEY, dict, path)
        layer = task_layer.from_json(exported, path)
        has_labels = kind in (CLASSIFY, TAG) or (kind == REGRESS and classes > 1)
        labels = _read_labels(path, settings, classes) if has_labels else ()
        if (layer.kind, layer.labels) != (kind, labels):  # transformers keeps keys unknown to it
            raise Refused(
                f"{path} says {layer.kind} {layer.labels!r:.80} under {task_layer.KEY}, and "
                f"{config_json.architecture} {labels!r:.80} elsewhere; remove {task_layer.KEY} if "
                "the model was fine-tuned again since its export, or put the exported file back"
            )
        # An exported layer outputs unscaled values, not standard scores.
        return dataclasses.replace(layer, mean=0.0, deviation=1.0)
    if kind is None:
        known = dict.fromkeys(f"...{end}" for end in family.class_ends.values())
        raise Refused(
            f"{path} says architectures = {settings.get('architectures')!r:.80}, which names no "
            f"layer of a task; give a model of a class {', '.join(known)}"
        )
    problem = settings.get("problem_type")
    has_several = {"multi_label_classification": True, "regression": classes > 1}
    if kind == CLASSIFY and has_several.get(str(problem)):
        raise Refused(
            f"{path} says problem_type = {problem!r}, of {classes} outputs: several labels or "
            "numbers per row, which bert_jax does not compute; give a model with one per row"
        )
    # Source: BertForSequenceClassification.forward@transformers 4.57.
    if kind == CLASSIFY and (problem == "regression" or (problem is None and classes == 1)):
        kind = REGRESS
    limits = (config_json.model.max_position_embeddings, vocabulary.read_max_length(path.parent))
    longest = min(_MAX_SPAN if kind == SPAN else _MAX_ROW_TOKENS, *filter(None, limits))
    labels = _read_labels(path, settings, classes) if kind in (CLASSIFY, TAG) else ()
    options = TaskOptions(max_seq_length=longest, pair_truncation=TRANSFORMERS)
    return TaskLayer(config_json.architecture, kind, labels, options=options)


def _read_labels(path: pathlib.Path, settings: JsonObject, classes: int) -> tuple[str, ...]:
    """Read id2label; without it classes have the names that transformers gives them."""
    unnamed = {str(number): f"LABEL_{number}" for number in range(classes)}
    if settings.get("id2label") is None:
        return tuple(unnamed.values())
    by_id = small_files.field(settings, "id2label", dict, path)
    try:
        return tuple(str(by_id[str(number)]) for number in range(len(by_id)))
    except KeyError as error:
        raise DamagedFile(
            f"{path}: 'id2label' has no label {error.args[0]}; its keys must be 0, 1, 2, ..."
        ) from None


def write(checkpoint: Pretrained, folder: pathlib.Path) -> None:
    """Write all files of a model, sentence-transformers' among them, to an empty folder."""
    _write_tokenizer(checkpoint, folder)
    _write_pooling(checkpoint, folder)
    arrays = rename(checkpoint.params, transformers_class.choose_naming(checkpoint))
    weights, config = folder / WEIGHTS, folder / CONFIG
    safetensors.numpy.save_file(arrays, weights, metadata={"format": "pt"})
    write_json(config, _make_config(checkpoint))
    weights.chmod(config.stat().st_mode)  # safetensors makes it readable by the owner only


def _make_config(checkpoint: Pretrained) -> dict[str, Any]:
    family = transformers_class.require_family(checkpoint)
    special_ids = checkpoint.vocabulary.special_ids
    settings = family.describe(checkpoint.config)
    if family.has_summary_type:
        settings["summary_type"] = checkpoint.vocabulary.template.place_of_cls
    settings |= {
        "architectures": [transformers_class.choose_architecture(checkpoint)],
        "model_type": family.model_type,
        "torch_dtype": "float32",
        "pad_token_id": special_ids["pad"],
    }
    # A BERT does without; a causal one ends what it generates with [SEP].
    if family.model_type != "bert" or checkpoint.config.is_causal:
        roles = {"bos": "cls", "eos": "sep", "cls": "cls", "sep": "sep"}
        settings |= {f"{name}_token_id": special_ids[role] for name, role in roles.items()}
    return dict(sorted(settings.items())) | _make_task_settings(checkpoint)


def _make_task_settings(checkpoint: Pretrained) -> dict[str, Any]:
    """Return the settings of a task in config.json: its classes, and all that predicting needs."""
    task = checkpoint.task
    if task is None:
        return {}
    settings: dict[str, Any] = {task_layer.KEY: task_layer.to_json(task)}
    if task.kind == REGRESS:
        settings["problem_type"] = "regression"
        settings["sentence_transformers"] = _OUTPUTS_NUMBERS
    if task.kind in (REGRESS, CLASSIFY, TAG):
        labels = ("value",) if task.kind == REGRESS else task.labels
        settings["id2label"] = {str(i): label for i, label in enumerate(labels)}
        settings["label2id"] = {label: i for i, label in enumerate(labels)}
    return settings


def _write_tokenizer(checkpoint: Pretrained, folder: pathlib.Path) -> None:
    """Write the vocabulary as it is, and tokenizer.json if that format can express its rules."""
    words = checkpoint.vocabulary
    if words.file_name != vocabulary.TOKENIZER:
        name = words.file_name if words.sentencepiece_rules == NO_RULES else "spiece.model"
        (folder / name).write_bytes(words.file_bytes)
    export_tokenizer_json(words, folder)
    pieces = words.pieces()
    special = {f"{name}_token": pieces[i] for name, i in words.special_ids.items()}
    config = checkpoint.config
    # Written, as the default differs between versions and classes of transformers. Models without
    # segments have no argument or row for the segments of a pair.
    has_segments = config.type_vocab_size > 1 or config.position_embedding_type == "relative"
    inputs = ["input_ids", *["token_type_ids"] * has_segments, "attention_mask"]
    settings: dict[str, Any] = {
        "model_max_length": config.max_position_embeddings,
        "model_input_names": inputs,
    }
    if words.file_name == LIST:  # a reader of the list needs these
        case = {"do_lower_case": words.lowercase, "strip_accents": None}
        settings |= {**case, "tokenize_chinese_chars": True}
    if words.file_name == vocabulary.TOKENIZER:
        splitter = json.loads(words.file_bytes.decode("utf-8-sig")).get("pre_tokenizer") or {}
        if splitter.get("type") == "ByteLevel":  # transformers 4 takes it as False otherwise
            settings["add_prefix_space"] = splitter.get("add_prefix_space", True)
    # This class runs tokenizer.json as it stands; newer BertTokenizers make their own rules.
    settings["tokenizer_class"] = vocabulary.ANY_CLASS
    if words.sentencepiece_rules != NO_RULES:  # no tokenizer.json
        slow = "AlbertTokenizer" if words.template.is_cls_first else "XLNetTokenizer"
        settings |= {"tokenizer_class": slow, **list_settings(words.sentencepiece_rules)}
    # XLNet's classes read the last token; padding on the left moves the positions of others.
    if (
        transformers_class.require_family(checkpoint).has_summary_type
        and not words.template.is_cls_first
    ):
        settings["padding_side"] = "left"
    write_json(folder / vocabulary.TOKENIZER_CONFIG, settings | special)
    write_json(folder / vocabulary.SPECIAL_MAP, special)


def _write_pooling(checkpoint: Pretrained, folder: pathlib.Path) -> None:
    """Write the pooling of sentence-transformers, whose default for a BERT is the mean."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    write_json(folder / "modules.json", modules)
    longest = checkpoint.config.max_position_embeddings
    lengths = {"max_seq_length": longest, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", lengths)
    pooling = {"word_embedding_dimension": checkpoint.config.hidden_size}
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooling |= {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes}
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", pooling)
