"""Find entities in tags, and compute precision, recall and F1 as the script conlleval does.

An entity begins at every B-, and at an I- after O, after a tag of another type or at the beginning
of a sentence. It continues over I- of its type. A predicted entity is correct if its type, first
and last word are. Tags that no scheme allows have a meaning too, so a model's tags are scored as
they are.
Source: conlleval, version 2004-01-26, of the CoNLL-2003 shared task; rules for B, I and O.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Entity(NamedTuple):
    """Name a type, and the words start to end - 1 of a sentence."""

    kind: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into letter and type: "B-creative-work" -> ("B", "creative-work")."""
    letter, _, kind = tag.partition("-")
    return letter, kind


def begins_entity(before: str, tag: str) -> bool:
    """Return whether an entity begins at a tag that follows `before` ("O" at a sentence start)."""
    letter, kind = split_tag(tag)
    return letter == "B" or (letter == "I" and split_tag(before)[1] != kind)


def find_entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence in their order, from its tags B-, I- and O."""
    entities: list[Entity] = []
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if begins_entity(before, tag):
            entities.append(Entity(split_tag(tag)[1], place, place + 1))
        elif tag != OUTSIDE:
            entities[-1] = entities[-1]._replace(end=place + 1)
        before = tag
    return entities


def to_iob2(entities: Iterable[Entity], words: int) -> tuple[str, ...]:
    """Return the IOB2 tags of a sentence of `words` words: every entity begins with B-."""
    tags = [OUTSIDE] * words
    for kind, start, end in entities:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tuple(tags)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Count the entities of the text, the predicted ones, and those in both."""

    gold: int
    predicted: int
    correct: int

    def compute_rates(self, scale: float = 1.0) -> dict[str, float]:
        """Compute F1, precision and recall, times `scale`; 0 where nothing is correct."""
        # Scaled first, as the script does, so that ties round the same way.
        precision = scale * self.correct / max(self.predicted, 1)
        recall = scale * self.correct / max(self.gold, 1)
        f1 = 2 * precision * recall / (precision + recall) if self.correct else 0.0
        return {"f1": f1, "precision": precision, "recall": recall}


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """Hold the numbers that conlleval reports for a file."""

    overall: Counts
    by_type: Mapping[str, Counts]  # sorted by name
    words: int
    right_tags: int  # words whose tag is the gold one, letter and type

    @property
    def token_accuracy(self) -> float:
        """Return the share of words with the right tag."""
        return self.right_tags / self.words if self.words else 0.0


def score_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> EntityScore:
    """Compare the tags of sentences with the gold ones, sentence by sentence."""
    in_text, claimed, correct = (collections.Counter[str]() for _ in range(3))
    words = right_tags = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities = set(find_entities(gold_tags))
        predicted_entities = set(find_entities(predicted_tags))
        in_text.update(entity.kind for entity in gold_entities)
        claimed.update(entity.kind for entity in predicted_entities)
        correct.update(entity.kind for entity in gold_entities & predicted_entities)
        words += len(gold_tags)
        right_tags += sum(map(str.__eq__, gold_tags, predicted_tags))
    kinds = sorted(in_text.keys() | claimed.keys())
    return EntityScore(
        overall=Counts(in_text.total(), claimed.total(), correct.total()),
        by_type={kind: Counts(in_text[kind], claimed[kind], correct[kind]) for kind in kinds},
        words=words,
        right_tags=right_tags,
    )


def format_report(score: EntityScore) -> str:
    """Format a score as conlleval prints it, percentages with two digits."""
    all_types = score.overall
    lines = [
        f"processed {score.words} tokens with {all_types.gold} phrases; "
        f"found: {all_types.predicted} phrases; correct: {all_types.correct}.",
        f"accuracy: {100 * score.right_tags / max(score.words, 1):6.2f}%; "
        f"{_percentages(all_types)}",
    ]
    lines += [
        f"{kind:>17}: {_percentages(counts)}  {counts.predicted}"
        for kind, counts in score.by_type.items()
    ]
    return "\n".join(lines)


def _percentages(counts: Counts) -> str:
    rates = counts.compute_rates(100)
    return (
        f"precision: {rates['precision']:6.2f}%; recall: {rates['recall']:6.2f}%; "
        f"FB1: {rates['f1']:6.2f}"
    )
