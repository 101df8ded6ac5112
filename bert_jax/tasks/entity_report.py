"""The entity score of a file whose last two columns are gold and predicted tags."""

import pathlib

from bert_jax.tasks import ner_files
from bert_jax.tasks.entity_score import OUTSIDE, EntityScore, entity_score, parts


def read_score(path: pathlib.Path) -> EntityScore:
    """Score what conlleval would, in files that it reads and in those parted by tabs.

    A -DOCSTART- line is no word here, where conlleval counts it as one; entities are the same.

    Raises:
      ValueError: the file has no two columns of tags, or tags that are not B-, I- or O; the row is
        named.
    """
    gold: list[list[str]] = [[]]
    predicted: list[list[str]] = [[]]
    for number, row in ner_files.rows_of(path):
        if not row:
            gold.append([])
            predicted.append([])
            continue
        if len(row) < 3:
            raise ValueError(
                f"{path} row {number} has {len(row)} columns; a file to score has a word and, in "
                "the last two, its gold tag and the predicted one, as predictions/dev.conll of a "
                "run of ner"
            )
        for tag, tags in zip(row[-2:], (gold, predicted), strict=True):
            if tag != OUTSIDE and (parts(tag)[0] not in ("B", "I") or not parts(tag)[1]):
                raise ValueError(
                    f"{path} row {number} has the tag {tag!r:.60}; conlleval's rules are for O, "
                    "and B- or I- and a type, in the last two columns"
                )
            tags[-1].append(tag)
    score = entity_score(gold, predicted)
    if not score.words:
        raise ValueError(f"{path} has no words to score")
    return score
