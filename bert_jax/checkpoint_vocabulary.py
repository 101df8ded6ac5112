"""The vocabulary that lies beside the arrays of a checkpoint, and whether it belongs to them."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_jax import bert_config
from data_pipeline import small_files
from data_pipeline.vocab import Vocabulary, load_vocabulary

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
ADDED, LIST = "added_tokens.json", "vocab.txt"
# Of a vocabulary, in the record of a run and in its checkpoints; a store's manifest has them too.
PINNED = ("file", "size", "lowercase", "sha256")
_OLDER = "vocabulary_sha256"
# Rows that a word table may have beyond its pieces: what pads it to a multiple, or a share of it.
_PADDED_TO = 128
_MOST_SPARE = 10  # one in so many
# Settings of a tokeniser that change where text is cut, and the one value that is BERT's.
_RULES = {
    "handle_chinese_chars": True,
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",  # Japanese BERTs have mecab
    "subword_tokenizer_type": "wordpiece",  # and some of them cut words to characters
}


def read(directory: pathlib.Path) -> Vocabulary:
    """The vocabulary in a folder: its vocab.txt, its one SentencePiece *.model, or tokenizer.json.

    Whether it lowercases is said by tokenizer_config.json or tokenizer.json; where there is
    neither, a list without capitals does.

    Raises:
      ValueError: there is none, one that cuts text otherwise than BERT, or one that lacks tokens
        of added_tokens.json.
      OSError: a file cannot be read.
    """
    models = sorted(directory.glob("*.model"))
    if (directory / LIST).is_file():
        path = directory / LIST
    elif len(models) == 1:
        path = models[0]
    elif (directory / TOKENIZER).is_file():
        path = directory / TOKENIZER
    else:
        raise ValueError(
            f"{directory} has no {LIST} and no {TOKENIZER}; put the vocabulary beside the "
            "checkpoint that it was trained with"
        )
    if path.suffix == ".model":
        vocabulary = load_vocabulary(path)
    else:
        lowercase = _lowercase(directory)
        if lowercase is None:
            lowercase = not _has_capitals(path)
        vocabulary = load_vocabulary(path, lowercase, checks_case=False)
    _check_added(directory / ADDED, vocabulary)
    if path.name == LIST:
        _check_agrees(directory / TOKENIZER, vocabulary)
    return vocabulary


def _check_agrees(path: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Raise if the tokenizer.json beside a list has other ids: one of the two was changed.

    Raises:
      ValueError: names the first piece whose id differs.
    """
    if not path.is_file():
        return
    model = small_files.field(bert_config.read_json(path), "model", dict, path, {})
    id_of = small_files.field(model, "vocab", dict, path, {})
    more = id_of.keys() - set(vocabulary.pieces())
    if more:
        raise ValueError(
            f"{vocabulary.path} lacks {len(more):,} pieces of {path.name} beside it, such as "
            f"{min(more)!r}; put back the whole list, or remove {path.name} if the list is right"
        )
    for number, piece in enumerate(vocabulary.pieces()):
        if id_of.get(piece, number) != number:
            raise ValueError(
                f"{vocabulary.path} has {piece!r} as piece {number}, {path.name} beside it as "
                f"{id_of[piece]}; put back the one that was changed, or remove {path.name} if the "
                "list is right"
            )


def _check_added(path: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Raise if a tokeniser's later words, which lie in a file of their own, would be lost.

    Raises:
      ValueError: names how many, and the first.
    """
    if not path.is_file():
        return
    added = bert_config.read_json(path).keys() - set(vocabulary.pieces())
    if added:
        raise ValueError(
            f"{path} has {len(added):,} tokens that {vocabulary.path} has not, such as "
            f"{min(added)!r}, and would not be read; remove the file if they are not needed, or "
            f"give a {LIST} with every token on the line of its number, the first line being 0"
        )


def check_size(vocabulary: Vocabulary, rows: int, place: str) -> None:
    """Raise if a vocabulary cannot be that of a word table with this many rows.

    More pieces than rows never fit. Fewer are usual, as tables are padded; but a list that was cut
    off looks the same, so rows without a piece are bounded (docs/decisions/0034).

    Raises:
      ValueError: names both sizes.
    """
    pieces = vocabulary.size
    if pieces > rows:
        raise ValueError(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has "
            f"{rows:,} rows; put the vocabulary beside it that it was trained with"
        )
    padded = -(-pieces // _PADDED_TO) * _PADDED_TO
    if rows > padded and (rows - pieces) * _MOST_SPARE > rows:
        raise ValueError(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has {rows:,} "
            f"rows: {rows - pieces:,} ids would have no piece; put the whole vocabulary beside it, "
            "or, if those rows were never used, add a line [unusedN] for each"
        )


def record(vocabulary: Vocabulary, file: str) -> dict[str, Any]:
    """Return what run records and checkpoints say of a vocabulary that lies in `file`."""
    return {
        "file": file,
        "size": vocabulary.size,
        "lowercase": vocabulary.lowercase,
        "sha256": vocabulary.digest,
    }


def check_pinned(vocabulary: Vocabulary, run: Mapping[str, Any], source: str) -> None:
    """Raise if a vocabulary is not the one that a run record or a checkpoint was made with.

    `source` names that record for the error. Records of before there were digests pass.

    Raises:
      ValueError: other pieces, another order, or another case.
    """
    pinned = _pinned(run)
    size, digest = pinned.get("size", vocabulary.size), pinned.get("sha256", vocabulary.digest)
    if (vocabulary.size, vocabulary.digest) != (size, digest):
        how = f"it has {vocabulary.size:,} pieces, not {size!r:.40}"
        if vocabulary.size == size:
            how = (
                f"its pieces or their order differ, SHA-256 {vocabulary.digest[:12]}, not "
                f"{str(digest)[:12]}"
            )
        raise ValueError(
            f"{vocabulary.path} is not the vocabulary of {source}: {how}; put back the one that it "
            "was trained with, from the store or another copy of the folder"
        )
    lowercase = pinned.get("lowercase", vocabulary.lowercase)
    if lowercase != vocabulary.lowercase:
        raise ValueError(
            f"{vocabulary.path} is read with lowercase = {json.dumps(vocabulary.lowercase)}, but "
            f"{source} was trained with {json.dumps(lowercase)}; put back the config.json beside it"
        )


def difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how the vocabularies of two records differ, "" where they agree or one is older."""
    before, after = _pinned(saved), _pinned(now)
    for name in ("sha256", "lowercase"):
        if name in before and name in after and before[name] != after[name]:
            return (
                f"was saved with another vocabulary ({name} {before[name]}, now {after[name]}); "
                "give the data with the vocabulary of this run, or another --workdir"
            )
    return ""


def _pinned(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record pins; earlier ones have the digest alone, of the store or the task."""
    found: dict[str, Any] = {}
    for part in ("store", "task", "vocabulary"):
        content = run.get(part)
        if isinstance(content, dict):
            older = {"sha256": content[_OLDER]} if _OLDER in content else {}
            found |= older | {name: content[name] for name in PINNED if name in content}
    return found


def _lowercase(directory: pathlib.Path) -> bool | None:
    """What the files of the tokeniser say; None where they do not.

    Raises:
      ValueError: they say rules that are not BERT's.
    """
    said: list[tuple[pathlib.Path, dict[str, Any]]] = []
    path = directory / TOKENIZER_CONFIG
    if path.is_file():
        shown = bert_config.read_json(path)
        names = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}
        said.append((path, {names.get(name, name): value for name, value in shown.items()}))
    path = directory / TOKENIZER
    if path.is_file():
        normalizer = bert_config.read_json(path).get("normalizer")
        if isinstance(normalizer, dict):
            said.append((path, normalizer))
    for path, rules in said:
        lowercase = rules.get("lowercase")
        of_case = {"strip_accents": lowercase} if type(lowercase) is bool else {}
        for name, of_bert in (_RULES | of_case).items():
            if rules.get(name) not in (None, of_bert):
                raise ValueError(
                    f"{path} cuts text otherwise than BERT: {name} is {rules[name]}, not "
                    f"{of_bert}; give a checkpoint with BERT's rules, or remove the file if they "
                    "are meant"
                )
        if type(lowercase) is bool:
            return lowercase
    return None


def _has_capitals(path: pathlib.Path) -> bool:
    lines = small_files.read_bytes(path).decode("utf-8", errors="replace").split("\n")
    words = [line for line in lines if line and not line.startswith("[")]
    return sum(word != word.lower() for word in words) > len(words) // 100
