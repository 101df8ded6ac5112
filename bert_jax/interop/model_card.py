"""Render the README.md of an exported model: what it is, how it was trained, how to load it."""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config, total_steps
from bert_jax.interop import load, transformers_class
from bert_jax.interop.load import GOOGLE, HF, ORBAX
from bert_jax.interop.pretrained import Pretrained
from bert_jax.logging.metrics_writer import SUMMARY
from bert_jax.runtime import run_record
from bert_jax.tasks.task import TAG
from bert_jax.tasks.task_layer import TaskLayer
from data_pipeline.io import small_files
from data_pipeline.vocab import BYTE_LEVEL, SENTENCEPIECE, WORDPIECE, Vocabulary
from data_pipeline.vocab.sentencepiece_model import NO_RULES

_HELD_OUT = (
    ("heldout_mlm_loss", "MLM loss, nats", ".3f"),
    ("unigram_mlm_loss", "the same without context (unigram)", ".3f"),
    ("ngram_mlm_loss", "by counts of the two neighboring tokens (n-gram)", ".3f"),
    ("heldout_mlm_accuracy", "MLM accuracy", ".1%"),
    ("heldout_rtd_accuracy", "replaced-token accuracy", ".1%"),
    ("heldout_majority_rtd_accuracy", "always the more frequent label", ".1%"),
    ("heldout_rtd_auc", "replaced tokens, area under the ROC curve", ".3f"),
    ("heldout_causal_loss", "next token's loss, nats", ".3f"),
    ("unigram_causal_loss", "the same without context (unigram)", ".3f"),
    ("ngram_causal_loss", "by counts of the two neighboring tokens (n-gram)", ".3f"),
    ("heldout_permutation_loss", "permutation LM's loss, nats", ".3f"),
    ("unigram_permutation_loss", "the same without context (unigram)", ".3f"),
    ("ngram_permutation_loss", "by counts of the two neighboring tokens (n-gram)", ".3f"),
    ("heldout_causal_accuracy", "next token's accuracy", ".1%"),
    ("heldout_nsp_accuracy", "next-sentence accuracy", ".1%"),
    ("majority_nsp_accuracy", "always the more frequent label", ".1%"),
)
_GELUS = {"gelu_erf": "gelu, exact", "gelu_tanh": "gelu, tanh approximation"}


def render(
    checkpoint: Pretrained,
    name: str,
    initialized: Sequence[str],
    missing: Sequence[str],
    has_tokenizer: bool,
) -> str:
    """Return the card in Markdown.

    `name` is the folder's or the hub's; `initialized` are the parts that were initialized for this
    export, `missing` those that it lacks; has_tokenizer tells whether the folder has a
    tokenizer.json.
    """
    model_type = transformers_class.require_family(checkpoint).model_type
    predicts = "text-generation" if checkpoint.config.is_causal else "fill-mask"
    mlm_tag = f"- {predicts}\n" if checkpoint.heads.mlm else ""
    parts = [
        f"---\nlibrary_name: transformers\ntags:\n- {model_type}\n{mlm_tag}---\n",
        f"# {name}\n\n{_describe_origin(checkpoint)}",
        _render_sizes(checkpoint),
        _describe_missing(initialized, missing),
        _describe_training(checkpoint.address),
        _describe_use(checkpoint, name, has_tokenizer),
        "## License\n\nTo be filled in by whoever publishes this model: it depends on the text it "
        "was trained on and on what it was converted from.\n",
    ]
    return "\n".join(part for part in parts if part)


def _describe_origin(checkpoint: Pretrained) -> str:
    """Describe the parts and the source of the export, without the path on this machine."""
    heads = {"mlm": "masked language model", "nsp": "next sentence prediction"}
    heads["rtd"] = "replaced-token detection"
    present = [words for part, words in heads.items() if part in checkpoint.params]
    parts = f" with the heads of {' and '.join(present)}" if present else " encoder"
    if checkpoint.task is not None:
        parts = f" fine-tuned on {_escape(checkpoint.task.name)}"
    scheme, place = load.split_address(checkpoint.address)
    kind = {HF: "the Hugging Face folder", GOOGLE: "Google's checkpoint", ORBAX: "its run"}[scheme]
    name = pathlib.Path(place).absolute().name  # "." alone has none
    if not checkpoint.address.endswith(place):  # a folder in the hub's cache, named by a commit
        kind, name = "the Hugging Face model", checkpoint.address.removeprefix(f"{HF}:")
    return f"A BERT{parts}, exported by bert_jax from {kind} `{name}`.\n"


def _render_sizes(checkpoint: Pretrained) -> str:
    config, vocabulary = checkpoint.config, checkpoint.vocabulary
    kinds = {WORDPIECE: "WordPiece", BYTE_LEVEL: "byte-level BPE", SENTENCEPIECE: "SentencePiece"}
    kind = kinds.get(vocabulary.kind, vocabulary.kind)
    strips = ", accents stripped" * (vocabulary.kind == WORDPIECE)
    case = f"lowercased{strips}" if vocabulary.lowercase else "case is kept"
    return _render_table(
        [
            ("parameters", f"{checkpoint.parameter_count:,}"),
            ("layers", f"{config.num_hidden_layers}"),
            ("width, heads", f"{config.hidden_size}, {config.num_attention_heads}"),
            ("feed-forward units", f"{config.intermediate_size:,}"),
            ("positions", f"{config.max_position_embeddings:,}"),
            ("activation", _GELUS.get(config.hidden_act, config.hidden_act)),
            ("vocabulary", f"{kind}, {vocabulary.size:,} pieces, {case}"),
        ]
    )


def _describe_missing(initialized: Sequence[str], missing: Sequence[str]) -> str:
    lines = []
    if initialized:
        lines.append(
            f"Not trained, but initialized at random for this export: {', '.join(initialized)}."
        )
    if missing:
        lines.append(
            f"Not in this checkpoint: {', '.join(missing)}. Libraries initialize them at random."
        )
    return "\n".join(lines) + "\n" if lines else ""


def _describe_training(address: str) -> str:
    """Describe the recorded training of a bert_jax run; "" for a third-party checkpoint."""
    scheme, place = load.split_address(address)
    if scheme != ORBAX:
        return ""
    _, step = load.split_step(place)
    with load.open_workdir(place) as storage:
        home = storage.home
        numbers: dict[str, Any] = {}
        if (home / SUMMARY).exists():
            numbers = small_files.read_object(home / SUMMARY, home)
            for key in {"steps", *(key for key, _, _ in _HELD_OUT)} & numbers.keys():
                small_files.field(numbers, key, float, home / SUMMARY)
        if step is not None and step != numbers.get("steps"):
            numbers = {}  # the summary describes the end of the run
        task = run_record.read_model(home).task
        if task is not None:
            return "## Training\n\n" + _render_table(_task_rows(task, numbers))
        record = run_record.read(home)
    if record.converted_from:
        origin = pathlib.PurePath(record.converted_from).name
        return f"The weights were converted from {_escape(origin)}.\n"
    facts = _setting_rows(record.config, record.store_digest)
    if "steps" in numbers:
        facts.append(("steps made", f"{numbers['steps']:,}"))
    for key, words, how in _HELD_OUT:
        if key in numbers:
            facts.append((f"held out: {words}", format(numbers[key], how)))
    return "## Training\n\n" + _render_table(facts)


def _task_rows(task: TaskLayer, numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    labels = [("labels, by their ids", ", ".join(task.labels))] if task.labels else []
    prefix = "heldout_"
    scores = [
        (f"development set: {name.removeprefix(prefix)}", f"{value:.4f}")
        for name, value in numbers.items()
        if name.startswith(prefix) and isinstance(value, float)
    ]
    return [("fine-tuned on", f"{task.name} ({task.kind})"), *labels, *scores]


def _escape(text: str) -> str:
    """Return a text in one line, in which Markdown finds no link, picture, tag or column."""
    return re.sub(r"[\\`*<\[\]|]", r"\\\g<0>", " ".join(text.split()))


def _setting_rows(config: Config, store_digest: str) -> list[tuple[str, str]]:
    phases = [
        f"{phase.steps:,} steps of {phase.batch_size:,} rows of {phase.seq_len} tokens"
        for phase in config.phases
    ]
    stores = config.data.store_names or ("",)
    text = f"the store{'s' * (len(stores) > 1)} {', '.join(stores)}, digest {store_digest}"
    return [
        ("objective", ", then ".join(dict.fromkeys(config_lib.list_objectives(config)))),
        ("planned", f"{total_steps(config):,} steps: {'; then '.join(phases)}"),
        ("optimizer", f"{config.optim.name}, learning rate {config.optim.learning_rate:g}"),
        ("text", text),
        ("segments, masks", f"{config.data.segments}, {config.data.masking}"),
    ]


def _describe_use(checkpoint: Pretrained, name: str, has_tokenizer: bool) -> str:
    kind = transformers_class.choose_architecture(checkpoint)
    if not has_tokenizer:
        way = "cut text with the library sentencepiece and `vocab.model`"
        if checkpoint.vocabulary.sentencepiece_rules != NO_RULES:
            way = f"use `AutoTokenizer.from_pretrained({name!r}, use_fast=False)` of transformers 4"
        return (
            f"## Use\n\n    from transformers import {kind}\n\n"
            f"    model = {kind}.from_pretrained({name!r})\n\nA tokenizer.json cannot express the "
            f"rules of its SentencePiece model: {way}.\n"
        )
    text, note = "'A sentence.'", ""
    run = "outputs = model(**tokenizer({}, return_tensors='pt'))"
    ends = checkpoint.vocabulary.template.margins(is_pair=False)[-1]
    if checkpoint.config.is_causal and checkpoint.heads.mlm and ends:
        run = f"ids = tokenizer({{}}, return_tensors='pt')['input_ids'][:, :-{ends}]\n"
        run += "    outputs = model.generate(ids, max_new_tokens=20)"
        text = "'A sentence that'"
        note = (
            "The tokenizer ends a text with [SEP], and these lines remove it; a pipeline for "
            "text-generation leaves it there, and begins a new text.\n\n"
        )
    if checkpoint.task is not None and checkpoint.task.kind == TAG:
        text = "' '.join(words)"
        if not _adds_space(checkpoint.vocabulary):
            text = f"' ' + {text}"
            note = (
                "Each word was read after a space, the first one too; with `is_split_into_words` "
                "this tokenizer leaves the spaces out, and the tags are wrong.\n\n"
            )
    return (
        "## Use\n\n"
        f"    from transformers import AutoTokenizer, {kind}\n\n"
        f"    tokenizer = AutoTokenizer.from_pretrained({name!r})\n"
        f"    model = {kind}.from_pretrained({name!r})\n"
        f"    {run.format(text)}\n\n"
        f"{note}sentence-transformers loads it as it is, with the mean of the last layer's "
        "vectors; bert_jax did not train it to compare sentences.\n"
    )


def _adds_space(vocabulary: Vocabulary) -> bool:
    """Return whether a text's first word has the same ids as after a space."""
    (plain, _), (behind, _) = vocabulary.encode(["a"]), vocabulary.encode_words(["a"])
    return np.array_equal(plain, behind)


def _render_table(rows: list[tuple[str, str]]) -> str:
    lines = [
        "| | |",
        "|---|---|",
        *(f"| {_escape(label)} | {_escape(words)} |" for label, words in rows),
    ]
    return "\n".join(lines) + "\n"
