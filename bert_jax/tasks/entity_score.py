"""Entities in tags, and their precision, recall and F1 as the script conlleval counts them.

An entity begins at every B-, and at an I- that stands after O, after a tag of another type or at
the sentence's beginning. It goes on over I- of its type. It is found if type, first and last word
are right. So tags that no scheme allows have a meaning too: a model's tags are scored as they are.
Source: conlleval, version 2004-01-26, of the CoNLL-2003 shared task; rules for B, I and O.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OUTSIDE = "O"


class Entity(NamedTuple):
    """Words start to end - 1 of a sentence."""

    kind: str
    start: int
    end: int


def parts(tag: str) -> tuple[str, str]:
    """Letter and type of a tag: "B-creative-work" -> ("B", "creative-work"), "O" -> ("O", "")."""
    letter, _, kind = tag.partition("-")
    return letter, kind


def begins(before: str, tag: str) -> bool:
    """Whether an entity begins at a tag that follows `before`; a sentence begins after "O"."""
    letter, kind = parts(tag)
    return letter == "B" or (letter == "I" and parts(before)[1] != kind)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, from its tags B-, I- and O, in their order."""
    found: list[Entity] = []
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if begins(before, tag):
            found.append(Entity(parts(tag)[1], place, place + 1))
        elif tag != OUTSIDE:
            found[-1] = found[-1]._replace(end=place + 1)
        before = tag
    return found


def iob2(found: Iterable[Entity], words: int) -> tuple[str, ...]:
    """The tags of a sentence of so many words under IOB2, where every entity begins with B-."""
    tags = [OUTSIDE] * words
    for kind, start, end in found:
        tags[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tuple(tags)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Entities that are in the text, that were predicted, and that are in both."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted that are right, 0 where none was predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of those in the text that were predicted, 0 where there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two, 0 where both are."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """What conlleval says of a file."""

    overall: Counts
    by_type: Mapping[str, Counts]  # in the order of their names
    words: int
    right_tags: int  # words whose tag is the gold one, letter and type

    @property
    def token_accuracy(self) -> float:
        """Share of words with the right tag."""
        return self.right_tags / self.words if self.words else 0.0


def entity_score(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> EntityScore:
    """Compare the tags of sentences with the gold ones, sentence by sentence."""
    counted: dict[str, collections.Counter[str]] = {
        side: collections.Counter() for side in ("gold", "predicted", "correct")
    }
    words = right_tags = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        in_text, claimed = set(entities(gold_tags)), set(entities(predicted_tags))
        for side, of_side in (
            ("gold", in_text),
            ("predicted", claimed),
            ("correct", in_text & claimed),
        ):
            counted[side].update(entity.kind for entity in of_side)
        words += len(gold_tags)
        right_tags += sum(map(str.__eq__, gold_tags, predicted_tags))
    kinds = sorted(counted["gold"].keys() | counted["predicted"].keys())
    sides = list(counted.values())
    return EntityScore(
        overall=Counts(*(side.total() for side in sides)),
        by_type={kind: Counts(*(side[kind] for side in sides)) for kind in kinds},
        words=words,
        right_tags=right_tags,
    )


def report(score: EntityScore) -> str:
    """The same in the words and columns of conlleval, percentages with two digits."""
    all_types = score.overall
    lines = [
        f"processed {score.words} tokens with {all_types.gold} phrases; "
        f"found: {all_types.predicted} phrases; correct: {all_types.correct}.",
        f"accuracy: {100 * score.token_accuracy:6.2f}%; {_percentages(all_types)}",
    ]
    lines += [
        f"{kind:>17}: {_percentages(counts)}  {counts.predicted}"
        for kind, counts in score.by_type.items()
    ]
    return "\n".join(lines)


def _percentages(counts: Counts) -> str:
    # Multiplied first, as the script does: ties then round the same way.
    precision = 100 * counts.correct / max(counts.predicted, 1)
    recall = 100 * counts.correct / max(counts.gold, 1)
    f1 = 2 * precision * recall / (precision + recall) if counts.correct else 0.0
    return f"precision: {precision:6.2f}%; recall: {recall:6.2f}%; FB1: {f1:6.2f}"
