"""Change the command lines that tests share."""

from collections.abc import Iterable


def replace_flags(usual: Iterable[object], given: Iterable[object]) -> list[str]:
    """Join two command lines; of a flag that is given twice only the last one stays."""
    words = [str(word) for word in (*usual, *given)]
    last = {word.partition("=")[0]: place for place, word in enumerate(words)}
    is_kept = [last[word.partition("=")[0]] == i for i, word in enumerate(words)]
    return [w for w, kept in zip(words, is_kept, strict=True) if kept or not w.startswith("--")]
