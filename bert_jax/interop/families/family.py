"""Declare what differs between the encoders of transformers."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.config.model_schema import OF_HEADS
from bert_jax.interop.model_json import JsonObject, Settings
from bert_jax.interop.tensor_names import TensorName
from bert_jax.tasks.task import CHOOSE, CLASSIFY, REGRESS, SPAN, TAG
from data_pipeline.io import Refused

# Our activation functions by their names in a config.json.
ACTS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    **dict.fromkeys(("gelu_fast", "gelu_accurate"), "gelu_tanh"),  # equal functions
    **dict.fromkeys(("silu", "swish"), "silu"),
    **{"relu": "relu", "quick_gelu": "quick_gelu"},
}
HIDDEN_ACT = {"hidden_act": ("hidden_act", ACTS)}
# Names of sizes that transformers reads in every config.json, whatever a family calls them.
ALIASES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
# Settings that matter while training alone; a config.json need not hold them.
TRAINING = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_sites"),
    *("initializer", "initializer_range"),
)
# Suffixes of the classes of transformers with a task's layer, by kind of task; most families.
CLASS_ENDS = {
    CLASSIFY: "ForSequenceClassification",
    TAG: "ForTokenClassification",
    SPAN: "ForQuestionAnswering",
    CHOOSE: "ForMultipleChoice",
    REGRESS: "ForSequenceClassification",
}
# Module names in these classes, by our names, where they differ from the other classes.
TaskNames = Mapping[str, Mapping[str, str]]
ANSWER_NAMES: TaskNames = {SPAN: {"classifier": "qa_outputs"}}
# RoBERTa and ELECTRA have no pooler: their classifiers of rows have a dense layer of their own.
_ROW_HEAD = {"pooler": "classifier.dense", "classifier": "classifier.out_proj"}
ROW_HEAD_NAMES: TaskNames = {**ANSWER_NAMES, CLASSIFY: _ROW_HEAD, REGRESS: _ROW_HEAD}
ROW_KINDS = (CLASSIFY, REGRESS, CHOOSE)  # tasks whose layer reads one vector per row

_NUMBERED = re.compile(r"layers/(\d+)/(.+)")
_LEAVES = {"embedding": "weight", "kernel": "weight", "scale": "weight", "bias": "bias"}
_OLDER = {"scale": "gamma", "bias": "beta"}  # leaves of norms in 2018


def name_tasks(row_modules: Mapping[str, str]) -> TaskNames:
    """Return the module names of tasks; these modules read the one vector of a row."""
    return {**ANSWER_NAMES, **{kind: row_modules for kind in ROW_KINDS}}


@dataclasses.dataclass(frozen=True)
class Names:
    """Map our module names to a family's; a part of ours that the family lacks is absent."""

    encoder: Mapping[str, str]  # names follow the prefix
    heads: Mapping[str, str]  # names never follow the prefix
    layer: Mapping[str, str]  # names follow the prefix and layer_format
    layer_format: str  # {} stands for the layer's number
    output_bias: tuple[str, ...]  # bias of the masked language model's logits
    # Other names that modules of heads have in some checkpoints.
    other_heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Our matrices that are parts of one of theirs: its name, which part, how many parts.
    fused: Mapping[str, tuple[str, int, int]] = dataclasses.field(default_factory=dict)
    # Names of arrays that are no module's weight or bias, in a layer or elsewhere in the encoder.
    arrays: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pad_id: int | None = None  # id of the padding, if the family counts positions from it

    def name_tensor(self, path: str, prefix: str) -> TensorName:
        """Return the names of the array at our path; none if the family has no such part."""
        if path == "mlm/output_bias":
            return TensorName(self.output_bias)
        modules = self.encoder
        if layer := _NUMBERED.fullmatch(path):
            modules, path = self.layer, layer[2]
            prefix += self.layer_format.format(int(layer[1]))
        if path in self.arrays:
            return TensorName((prefix + self.arrays[path],))
        module, leaf = path.rsplit("/", 1)
        theirs, part, parts = self.fused.get(module, (modules.get(module), 0, 1))
        name = self.heads.get(module) or (theirs and prefix + theirs)
        if name is None:
            return TensorName(())
        names = [f"{name}.{_LEAVES[leaf]}"]
        if module.endswith("layer_norm"):
            names.append(f"{name}.{_OLDER[leaf]}")
        if module in self.other_heads:
            names.append(f"{self.other_heads[module]}.{_LEAVES[leaf]}")
        skipped = 0 if self.pad_id is None or module != "embeddings/position" else self.pad_id + 1
        return TensorName(tuple(names), leaf == "kernel", part, parts, skipped)

    def list_stems(self) -> tuple[str, ...]:
        """List the prefixes of array names in an encoder without heads, the pooler left out."""
        modules = [name for ours, name in self.encoder.items() if ours != "pooler"]
        return tuple({f"{name.split('.')[0]}." for name in (*modules, self.layer_format)})


@dataclasses.dataclass(frozen=True)
class Family:
    """Describe one kind of encoder: how its config.json and its arrays correspond to ours."""

    model_type: str  # model_type in config.json
    prefix: str  # prefix of the encoder's arrays in a model with heads
    names: Names
    settings: Settings
    decoder: str  # duplicate of the word table
    masked_lm: str  # class with the masked language model's head
    encoder: str  # class without heads
    pretraining: str = ""  # class with that head and one of sentence pairs, if there is one
    discriminator: str = ""  # class with the head of replaced-token detection, if there is one
    causal_lm: str = ""  # class with the head of a model that reads left to right, if it is read
    # What `settings` cannot express: `complete` reads it from a config.json into a model,
    # `describe_rest` writes it.
    complete: Callable[[pathlib.Path, JsonObject, ModelConfig], ModelConfig] = (
        lambda path, settings, config: config
    )
    describe_rest: Callable[[ModelConfig], dict[str, Any]] = lambda config: {}
    task_names: TaskNames = dataclasses.field(default_factory=lambda: ANSWER_NAMES)
    # Suffixes of the family's classes with a task's layer, by kind of task.
    class_ends: Mapping[str, str] = dataclasses.field(default_factory=lambda: CLASS_ENDS)
    pairs: str = "nsp"  # config.data.segments that its head of sentence pairs learned from
    # Whether a config.json has summary_type, the token that a classifier of rows reads; in other
    # families it is the first.
    has_summary_type: bool = False
    ignored: tuple[str, ...] = ()  # the encoder's arrays that files may hold and the class drops
    vocabulary_kind: str = ""  # vocabularies that its published models have; empty: any kind
    # Fields of ModelConfig that the family's config.json does not record.
    unrecorded: tuple[str, ...] = TRAINING

    def parse(self, path: pathlib.Path, settings: JsonObject) -> ModelConfig:
        """Return the model that the settings of a config.json describe.

        Raises:
          Refused: a size is missing or impossible; the family has no such setting.
        """
        return self.complete(path, settings, self.settings.parse(path, settings))

    def describe(self, config: ModelConfig) -> dict[str, Any]:
        """Return the settings of a config.json for a model.

        Raises:
          Refused: the family has no such model.
        """
        return self.settings.describe(config) | self.describe_rest(config)

    def choose_names(self, kind: str | None) -> Names:
        """Return the names in the class without a task's layer, or in the class for a kind of task.

        A class for a task predicts no words, so the bias of word logits has no name there.
        """
        if kind is None:
            return self.names
        heads = {**self.names.heads, **self.task_names.get(kind, {})}
        return dataclasses.replace(self.names, heads=heads, output_bias=())

    def name_task_class(self, kind: str) -> str:
        """Return the class of transformers with the layer of a kind of task."""
        return self.encoder.removesuffix("Model") + self.class_ends[kind]

    @property
    def classes(self) -> frozenset[str]:
        """Return the classes of transformers whose arrays are all read."""
        heads = (self.masked_lm, self.pretraining, self.discriminator, self.causal_lm)
        tasks = map(self.name_task_class, self.class_ends)
        return frozenset((self.encoder, *filter(None, heads), *tasks))

    def fits(self, config: ModelConfig) -> bool:
        """Return whether the family's config.json can describe an encoder, whatever its heads."""
        try:
            described = self.read_back(config)
        except Refused:
            return False
        ignored = {name: getattr(config, name) for name in (*self.unrecorded, *OF_HEADS)}
        return dataclasses.replace(described, **ignored) == config

    def reads_alike(self, config: ModelConfig, kind: str | None = None) -> bool:
        """Return whether the family's class for a kind of task pools or transforms as we do.

        None is the class with the next-sentence head, which reads the vector pooled from [CLS].
        """
        theirs = self.read_back(config)
        if kind in (SPAN, TAG):
            return len({each.pooler_type == "mlm_transform" for each in (config, theirs)}) == 1
        is_pooled_alike = kind is None or config.classifier_pooling == theirs.classifier_pooling
        return is_pooled_alike and config.pooler_type == theirs.pooler_type

    def read_back(self, config: ModelConfig) -> ModelConfig:
        """Return the model as the family's config.json describes it."""
        return self.parse(pathlib.Path("config.json"), self.describe(config))
