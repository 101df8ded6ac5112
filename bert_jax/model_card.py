"""The README.md of an exported model: what it is, what it learned from, how to load it."""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from bert_jax import hf_export, pretrained, receipt
from bert_jax import workdir as workdir_lib
from bert_jax.config import Config, total_steps
from bert_jax.log import SUMMARY
from bert_jax.named_tensors import OPTIONAL_PARTS
from bert_jax.pretrained import GOOGLE, HF, ORBAX, Pretrained
from bert_jax.task_layer import TaskLayer
from data_pipeline import small_files
from data_pipeline.vocab import WORDPIECE

_HELD_OUT = (
    ("heldout_mlm_loss", "MLM loss, nats", ".3f"),
    ("unigram_mlm_loss", "the same without context (unigram)", ".3f"),
    ("heldout_mlm_accuracy", "MLM accuracy", ".1%"),
    ("heldout_nsp_accuracy", "next-sentence accuracy", ".1%"),
    ("majority_nsp_accuracy", "the same of the commoner label", ".1%"),
)
_ACTS = {"gelu_erf": "gelu, exact", "gelu_tanh": "gelu, tanh approximation"}


def text(held: Pretrained, name: str, drawn: tuple[str, ...], can_tokenise: bool) -> str:
    """The card, in Markdown.

    name is the folder's; drawn are the parts that were initialised for this export; can_tokenise
    says whether the folder has a tokenizer.json.
    """
    parts = [
        "---\nlibrary_name: transformers\ntags:\n- bert\n- fill-mask\n---\n"
        if held.heads.mlm
        else "---\nlibrary_name: transformers\ntags:\n- bert\n---\n",
        f"# {name}\n\nA BERT{_with(held)}, exported by bert_jax from {_origin(held)}.\n",
        _sizes(held),
        _missing(held, drawn),
        _training(held.address),
        _use(held, name, can_tokenise),
        "## Licence\n\nTo be filled in by whoever publishes this model: it depends on the text it "
        "was trained on and on what it was converted from.\n",
    ]
    return "\n".join(part for part in parts if part)


def _origin(held: Pretrained) -> str:
    """What it was, without the path of this machine."""
    scheme, where = pretrained.split(held.address)
    kind = {HF: "the Hugging Face folder", GOOGLE: "Google's checkpoint", ORBAX: "its run"}[scheme]
    return f"{kind} `{pathlib.PurePath(where).name}`"


def _with(held: Pretrained) -> str:
    if held.task is not None:
        return f" fine-tuned on {held.task.name}"
    heads = {"mlm": "masked language model", "nsp": "next sentence prediction"}
    there = [words for part, words in heads.items() if part in held.params]
    return f" with the heads of {' and '.join(there)}" if there else " encoder"


def _sizes(held: Pretrained) -> str:
    config, vocabulary = held.config, held.vocabulary
    kind = "WordPiece" if vocabulary.kind == WORDPIECE else "SentencePiece"
    case = "lowercased, accents stripped" if vocabulary.lowercase else "case is kept"
    if vocabulary.kind != WORDPIECE:
        case = "lowercased" if vocabulary.lowercase else "case is kept"
    return _table(
        [
            ("parameters", f"{held.parameter_count:,}"),
            ("layers", f"{config.num_hidden_layers}"),
            ("width, heads", f"{config.hidden_size}, {config.num_attention_heads}"),
            ("feed-forward units", f"{config.intermediate_size:,}"),
            ("positions", f"{config.max_position_embeddings:,}"),
            ("activation", _ACTS[config.hidden_act]),
            ("vocabulary", f"{kind}, {vocabulary.size:,} pieces, {case}"),
        ]
    )


def _missing(held: Pretrained, drawn: tuple[str, ...]) -> str:
    lines = []
    if drawn:
        lines.append(f"Not trained, but drawn at random for this export: {', '.join(drawn)}.")
    absent = [part for part in OPTIONAL_PARTS if part not in held.params]
    if absent and held.task is None:
        lines.append(f"Not in this checkpoint: {', '.join(absent)}. Libraries draw them at random.")
    return "\n".join(lines) + "\n" if lines else ""


def _training(address: str) -> str:
    """What the receipt of a run of ours knows; nothing of a checkpoint of other code."""
    scheme, where = pretrained.split(address)
    if scheme != ORBAX:
        return ""
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        place, step = pretrained.place_and_step(where)
        home = workdir_lib.fetched(place, pathlib.Path(folder)).home
        numbers = _summary(home) if (home / SUMMARY).exists() else {}
        if step is not None and step != numbers.get("steps"):
            numbers = {}  # they are of the run's end
        task = receipt.read_model(home).task
        if task is not None:
            return "## Training\n\n" + _table([*_of_a_task(task), *_dev_scores(numbers)])
        found = receipt.read(home)
    if found.converted_from:
        origin = pathlib.PurePath(found.converted_from).name
        return f"The weights were converted from `{origin}`.\n"
    facts = [*_settings(found.config, found.store_digest), *_scores(numbers)]
    return "## Training\n\n" + _table(facts)


def _summary(home: pathlib.Path) -> dict[str, Any]:
    path = home / SUMMARY
    numbers = small_files.read_object(path, home)
    for key in ("steps", *(key for key, _, _ in _HELD_OUT)):
        if key in numbers:
            small_files.field(numbers, key, float, path)
    return numbers


def _of_a_task(task: TaskLayer) -> list[tuple[str, str]]:
    labels = [("labels, by their ids", ", ".join(task.labels))] if task.labels else []
    return [("fine-tuned on", f"{task.name} ({task.kind})"), *labels]


def _dev_scores(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    prefix = "heldout_"
    return [
        (f"development set: {name.removeprefix(prefix)}", f"{value:.4f}")
        for name, value in numbers.items()
        if name.startswith(prefix) and isinstance(value, float)
    ]


def _settings(config: Config, store_digest: str) -> list[tuple[str, str]]:
    phases = [
        f"{phase.steps:,} steps of {phase.batch_size:,} rows of {phase.seq_len} tokens"
        for phase in config.phases
    ]
    return [
        ("objective", config.objective),
        ("planned", f"{total_steps(config):,} steps: {'; then '.join(phases)}"),
        ("optimiser", f"{config.optim.name}, learning rate {config.optim.learning_rate:g}"),
        ("text", f"the store `{pathlib.PurePath(config.data.store).name}`, digest {store_digest}"),
        ("segments, masks", f"{config.data.segments}, {config.data.masking}"),
    ]


def _scores(numbers: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("steps made", f"{numbers['steps']:,}")] if "steps" in numbers else []
    return rows + [
        (f"held out: {words}", format(numbers[key], how))
        for key, words, how in _HELD_OUT
        if key in numbers
    ]


def _use(held: Pretrained, name: str, can_tokenise: bool) -> str:
    kind = hf_export.architecture(held)
    if not can_tokenise:
        return (
            "## Use\n\n    from transformers import "
            f"{kind}\n\n    model = {kind}.from_pretrained({name!r})\n\nThe rules of its "
            "SentencePiece model cannot be said in a tokenizer.json: cut text with the library "
            "sentencepiece and `vocab.model`.\n"
        )
    return (
        "## Use\n\n"
        f"    from transformers import AutoTokenizer, {kind}\n\n"
        f"    tokenizer = AutoTokenizer.from_pretrained({name!r})\n"
        f"    model = {kind}.from_pretrained({name!r})\n"
        "    outputs = model(**tokenizer('A sentence.', return_tensors='pt'))\n\n"
        "sentence-transformers loads it as it is, with the mean of the last layer's vectors; it "
        "was not trained to compare sentences.\n"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    lines = ["| | |", "|---|---|", *(f"| {label} | {words} |" for label, words in rows)]
    return "\n".join(lines) + "\n"
