"""Read the vocabulary beside a third-party checkpoint, and check that the two match."""

import dataclasses
import pathlib
from typing import Any

from bert_jax.interop import model_json
from data_pipeline.io import small_files
from data_pipeline.io.refused import Refused
from data_pipeline.vocab import Vocabulary, load_vocabulary
from data_pipeline.vocab.byte_level import PIECES
from data_pipeline.vocab.template import Template, make_xlnet_template, read_template

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
CONFIG, XLNET = "config.json", "xlnet"  # a model's settings, and a model_type in them
ADDED, LIST = "added_tokens.json", "vocab.txt"
# A word table may have more rows than tokens: up to a multiple, or a share of its rows.
_PADDED_TO = 128
_MOST_SPARE = 10  # a tenth
# Settings of a tokenizer that change where text is cut, and the only value that is BERT's.
_RULES = {
    "handle_chinese_chars": True,
    "do_basic_tokenize": True,
    "word_tokenizer_type": "basic",  # Japanese BERTs have mecab
    "subword_tokenizer_type": "wordpiece",  # and some of them cut words to characters
}


def read(directory: pathlib.Path) -> Vocabulary:
    """Read a folder's vocab.txt, only SentencePiece *.model, tokenizer.json or vocab.json.

    tokenizer_config.json or tokenizer.json determines lowercasing; without them, a vocabulary
    without capital letters counts as lowercased.

    Raises:
      Refused: there is none, one that cuts text differently from BERT, or one that lacks tokens
        of added_tokens.json.
    """
    models = sorted(directory.glob("*.model"))
    only_model = models if len(models) == 1 else []
    candidates = [directory / LIST, *only_model, directory / TOKENIZER, directory / PIECES]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        raise Refused(
            f"{directory} has no {LIST} and no {TOKENIZER}; put the vocabulary beside the "
            "checkpoint that it was trained with"
        )
    if path.suffix == ".model":
        vocabulary = load_vocabulary(path)
    else:
        lowercase = _read_lowercase(directory)
        if lowercase is None:
            lowercase = not _has_capitals(path)
        vocabulary = load_vocabulary(path, lowercase, checks_case=False)
    _check_added(directory / ADDED, vocabulary)
    if path.name == LIST:
        _check_agrees(directory / TOKENIZER, vocabulary)
    return dataclasses.replace(vocabulary, template=_find_template(directory, vocabulary))


def _find_template(directory: pathlib.Path, vocabulary: Vocabulary) -> Template:
    """Find the template in tokenizer.json; without one, that of the model's family."""
    special_ids = vocabulary.special_ids
    path, config, rules = (directory / name for name in (TOKENIZER, CONFIG, TOKENIZER_CONFIG))
    template = None
    if path.is_file():
        template = read_template(model_json.read_json(path), special_ids, path)
    if template is None and config.is_file():
        is_xlnet = model_json.read_json(config).get("model_type") == XLNET
        template = make_xlnet_template(special_ids) if is_xlnet else None
    template = template or vocabulary.template
    inputs = model_json.read_json(rules).get("model_input_names") if rules.is_file() else None
    is_one_segment = isinstance(inputs, list) and "token_type_ids" not in inputs
    return template.drop_segments() if is_one_segment else template


def _check_agrees(path: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Raise if vocabulary and tokenizer.json have different ids, so one of them was changed."""
    if not path.is_file():
        return
    model = small_files.field(model_json.read_json(path), "model", dict, path, {})
    id_of = small_files.field(model, "vocab", dict, path, {})
    more = id_of.keys() - set(vocabulary.pieces())
    if more:
        raise Refused(
            f"{vocabulary.path} lacks {len(more):,} pieces of {path.name} beside it, such as "
            f"{min(more)!r}; put back the whole list, or remove {path.name} if the list is right"
        )
    for number, piece in enumerate(vocabulary.pieces()):
        if id_of.get(piece, number) != number:
            raise Refused(
                f"{vocabulary.path} has {piece!r} as piece {number}, {path.name} beside it as "
                f"{id_of[piece]}; put back the one that was changed, or remove {path.name} if the "
                "list is right"
            )


def _check_added(path: pathlib.Path, vocabulary: Vocabulary) -> None:
    """Raise if the added tokens of a tokenizer, which have their own file, would be lost."""
    if not path.is_file():
        return
    added = model_json.read_json(path).keys() - set(vocabulary.pieces())
    if added:
        raise Refused(
            f"{path} has {len(added):,} tokens that {vocabulary.path} has not, such as "
            f"{min(added)!r}, and would not be read; remove the file if they are not needed, or "
            f"give a {LIST} with every token on the line of its number, the first line being 0"
        )


def check_size(vocabulary: Vocabulary, rows: int, place: str) -> None:
    """Raise if a vocabulary does not fit a word table with this many rows.

    More tokens than rows never fit. Fewer are usual, as tables are padded; but a truncated list
    looks the same, so rows without a token are bounded (decision 34).
    """
    pieces = vocabulary.size
    if pieces > rows:
        raise Refused(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has "
            f"{rows:,} rows; put the vocabulary beside it that it was trained with"
        )
    padded = -(-pieces // _PADDED_TO) * _PADDED_TO
    if rows > padded and (rows - pieces) * _MOST_SPARE > rows:
        raise Refused(
            f"{vocabulary.path} has {pieces:,} pieces, but the word table of {place} has {rows:,} "
            f"rows: {rows - pieces:,} ids would have no piece; put the whole vocabulary beside it, "
            "or, if those rows were never used, add a line [unusedN] for each"
        )


def check_segments(template: Template, segments: int, place: str) -> None:
    """Raise if a template has segments that a model of this many has no row for; 0 or 1: ignored.

    transformers cannot compute such rows either.
    """
    largest = max(segment for _, segment in (*template.single, *template.pair))
    if 1 < segments <= largest:
        raise Refused(
            f"the tokenizer beside {place} puts tokens into segment {largest} (type_id), and its "
            f"config.json has type_vocab_size = {segments}; put the files back that were saved "
            "together"
        )


def _read_lowercase(directory: pathlib.Path) -> bool | None:
    """Return the setting in the files of the tokenizer, None if they have none.

    Raises:
      Refused: their rules are not BERT's.
    """
    files: list[tuple[pathlib.Path, dict[str, Any]]] = []
    path = directory / TOKENIZER_CONFIG
    if path.is_file():
        settings = model_json.read_json(path)
        names = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars"}
        files.append((path, {names.get(name, name): value for name, value in settings.items()}))
    path = directory / TOKENIZER
    if path.is_file():
        normalizer = model_json.read_json(path).get("normalizer")
        if isinstance(normalizer, dict):
            files.append((path, normalizer))
    for path, rules in files:
        lowercase = rules.get("lowercase")
        of_case = {"strip_accents": lowercase} if type(lowercase) is bool else {}
        for name, of_bert in (_RULES | of_case).items():
            if rules.get(name) not in (None, of_bert):
                raise Refused(
                    f"{path} cuts text differently from BERT: {name} is {rules[name]}, not "
                    f"{of_bert}; give a checkpoint with BERT's rules, or remove the file if they "
                    "are meant"
                )
        if type(lowercase) is bool:
            return lowercase
    return None


def _has_capitals(path: pathlib.Path) -> bool:
    lines = small_files.read_bytes(path).decode("utf-8", errors="replace").split("\n")
    words = [line for line in lines if line and not line.startswith("[")]
    return sum(word != word.lower() for word in words) > len(words) // 100  # a few are signs
