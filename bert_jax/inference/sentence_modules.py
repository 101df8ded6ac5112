"""Read from a folder what sentence-transformers makes of a model's hidden states.

modules.json lists modules that run one after another: Transformer, Pooling, and often Normalize or
Dense. bert_jax computes the mean of a layer or [CLS], and divides by the length; a command says
where the folder asks for something else.
"""

import dataclasses
import pathlib
from typing import Any, TypedDict

from bert_jax.inference.hidden_states import CLS, MEAN, Extraction
from bert_jax.interop.load import HF, split_address
from bert_jax.interop.model_json import read_json
from bert_jax.interop.vocabulary import TOKENIZER_CONFIG, read_max_length
from data_pipeline.io import small_files
from data_pipeline.io.small_files import DamagedFile, join_inside

MODULES = "modules.json"
# Pools by the older keys pooling_mode_*, in the order in which several are joined.
_OLDER_POOLS = {
    "cls_token": CLS,
    "max_tokens": "max",
    "mean_tokens": MEAN,
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}


class _Module(TypedDict):
    type: str  # the name of its class
    path: str  # its folder


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """Describe the vector that sentence-transformers makes of a text."""

    pool: str = MEAN  # CLS, MEAN, or what is not computed here
    normalize: bool = False
    max_seq_length: int = 0  # tokens; 0 where the folder does not say
    others: tuple[str, ...] = ()  # further steps, which are not computed here
    compares_dots: bool = False  # texts are similar by the product of their vectors, not the cosine


def describe_differences(address: str, extraction: Extraction) -> str:
    """Describe what a checkpoint's modules.json asks for and an extraction does not do.

    Without modules.json, the tokenizer's maximum length applies. Returns "" if the vectors are the
    same, and for token vectors.

    Raises:
      Refused: a file is damaged.
    """
    scheme, place = split_address(address)
    if scheme != HF or not extraction.pool:
        return ""
    folder = pathlib.Path(place)
    theirs = read(folder) or SentenceVectors(extraction.pool, **_read_texts(folder, []))
    source = MODULES if (folder / MODULES).is_file() else TOKENIZER_CONFIG
    flags, others = [], list(theirs.others)
    if theirs.pool not in (CLS, MEAN):
        others.insert(0, f"pooling by {theirs.pool}")
    elif theirs.pool != extraction.pool:
        flags.append(f"--pool={theirs.pool}")
    if theirs.normalize and not extraction.normalize:
        flags.append("--normalize")
    if theirs.compares_dots and extraction.normalize and not theirs.normalize:
        flags.append("--normalize=false")
    if 0 < theirs.max_seq_length < extraction.max_seq_length and not extraction.stride:
        flags.append(f"--max_seq_length={theirs.max_seq_length}")
    parts = [f"takes {' '.join(flags)}"] * bool(flags)
    parts += [f"has {', '.join(others)}, which bert_jax does not compute"] * bool(others)
    return f"{source} {' and '.join(parts)}" if parts else ""


def read(folder: pathlib.Path) -> SentenceVectors | None:
    """Read a folder's modules.json and the files that it leads to; None without it.

    Raises:
      Refused: a file is damaged.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    settings, others = dict[str, Any](), list[str]()
    content = small_files.parse_json(small_files.read_bytes(path), path)
    for module in small_files.parse_record(content, list[_Module], path):
        kind = module["type"].rpartition(".")[2]
        if kind == "Transformer":
            settings |= _read_texts(folder, others)
        elif kind == "Pooling" and "pool" not in settings:
            settings["pool"] = _read_pool(join_inside(folder, module["path"]) / "config.json")
        elif kind == "Normalize":
            settings["normalize"] = True
        elif kind != "Dropout":  # which does nothing after training
            others.append(f"a {kind} module")
    return SentenceVectors(others=tuple(others), **settings)


def _read_texts(folder: pathlib.Path, others: list[str]) -> dict[str, Any]:
    """Read to how many tokens a text is cut; add lowercasing and prompts, if any, to `others`."""
    settings = dict[str, Any]()
    for path in folder.glob("sentence_*_config.json"):  # bert; another encoder's in old versions
        texts = read_json(path)
        if texts.get("max_seq_length") is not None:
            settings["max_seq_length"] = small_files.field(texts, "max_seq_length", int, path)
        if small_files.field(texts, "do_lower_case", bool, path, False):
            others.append("lowercasing")
    settings.setdefault("max_seq_length", read_max_length(folder))  # all that version 6 writes
    if (path := folder / "config_sentence_transformers.json").is_file():
        texts = read_json(path)
        settings["compares_dots"] = texts.get("similarity_fn_name") == "dot"
        prompts = small_files.field(texts, "prompts", dict, path, {})
        # Version 6 writes an empty prompt of each kind.
        if named := [name for name, prompt in prompts.items() if prompt]:
            others.append(f"prompts before texts ({small_files.list_names(named, count=4)})")
    return settings


def _read_pool(path: pathlib.Path) -> str:
    """Return the pool that a Pooling's config.json names; several joined by +."""
    settings = read_json(path)
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [
            mode
            for name, mode in _OLDER_POOLS.items()
            if small_files.field(settings, f"pooling_mode_{name}", bool, path, False)
        ]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not all(isinstance(mode, str) for mode in modes):
        raise DamagedFile(f"{path}: 'pooling_mode' is neither a name nor a list of names")
    return "+".join(modes)[:80] or MEAN
