"""The vocabulary that lies beside the arrays of a checkpoint, and whether it belongs to them."""

import pathlib
from typing import Any

from bert_jax import bert_config
from data_pipeline.vocab import Vocabulary, load_vocabulary

TOKENIZER_CONFIG, TOKENIZER = "tokenizer_config.json", "tokenizer.json"
ADDED, LIST = "added_tokens.json", "vocab.txt"
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
    return vocabulary


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
    """Raise if a vocabulary has pieces for which the word table has no row.

    Fewer pieces than rows are usual: tables are padded, and rows kept for words of one's own.

    Raises:
      ValueError: it has more.
    """
    if vocabulary.size > rows:
        raise ValueError(
            f"{vocabulary.path} has {vocabulary.size:,} pieces, but the word table of {place} has "
            f"{rows:,} rows; put the vocabulary beside it that it was trained with"
        )


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
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    words = [line for line in lines if line and not line.startswith("[")]
    return sum(word != word.lower() for word in words) > len(words) // 100
