"""Apply Google's pair and mask rules in plain Python, token by token: the sampler's oracle.

It draws from random.Random in the order of create_pretraining_data.py@eedf5716ce (google-research/
bert), so that it reproduces that script's output exactly. Tokens are ids throughout.
"""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

Document = list[list[int]]


@dataclasses.dataclass(frozen=True)
class Rules:
    """Hold the flags of the script, and the facts that it reads from the vocabulary."""

    seq_len: int
    max_predictions: int
    vocab_size: int
    cls: int = 101
    sep: int = 102
    mask: int = 103
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    whole_words: bool = False
    continuations: frozenset[int] = frozenset()  # ids of the pieces that start with ##
    # Instead of the script's own rules those without its defects: a target for each chunk, two
    # sentences where there are two, B from another document, and this share of B that is random.
    random_share: float | None = None


@dataclasses.dataclass
class Instance:
    """Hold a sequence, and the target length that was drawn for it."""

    tokens: list[int]
    segment_ids: list[int]
    is_random: bool
    positions: list[int]
    labels: list[int]
    target: int


def create_instances(
    documents: list[Document], rules: Rules, dupe_factor: int, seed: int
) -> list[Instance]:
    """Run the whole script: shuffled documents, dupe_factor passes, shuffled instances."""
    rng = random.Random(seed)
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    instances = []
    for _ in range(dupe_factor):
        instances.extend(one_pass(documents, rules, rng))
    rng.shuffle(instances)
    return instances


def one_pass(documents: list[Document], rules: Rules, rng: random.Random) -> list[Instance]:
    """Return the instances of one pass over the documents, in order."""
    instances = []
    for index in range(len(documents)):
        instances.extend(_instances_of_document(documents, index, rules, rng))
    return instances


def _instances_of_document(
    documents: list[Document], index: int, rules: Rules, rng: random.Random
) -> list[Instance]:
    document = documents[index]
    most = rules.seq_len - 3
    is_mended = rules.random_share is not None
    target = _target(rules, most, rng)
    instances = []
    chunk: list[list[int]] = []
    at = 0
    while at < len(document):
        chunk.append(document[at])
        at += 1
        is_enough = sum(map(len, chunk)) >= target and not (is_mended and len(chunk) == 1)
        if at < len(document) and not is_enough:
            continue
        split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
        a = _joined(chunk[:split])
        share = rules.random_share if is_mended else 0.5
        is_random = len(chunk) == 1 or rng.random() < share
        if is_random:
            draws = 10**9 if is_mended else 10
            b = _random_segment(documents, index, target - len(a), draws, rng)
            at -= len(chunk) - split
        else:
            b = _joined(chunk[split:])
        a, b = _truncated(a, b, most, rng)
        instances.append(_instance(a, b, is_random, target, rules, rng))
        chunk = []
        if is_mended:
            target = _target(rules, most, rng)
    return instances


def _target(rules: Rules, most: int, rng: random.Random) -> int:
    return rng.randint(2, most) if rng.random() < rules.short_seq_prob else most


def _joined(sentences: Sequence[list[int]]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def _random_segment(
    documents: list[Document], index: int, wanted: int, draws: int, rng: random.Random
) -> list[int]:
    for _ in range(draws):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    segment: list[int] = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        segment.extend(sentence)
        if len(segment) >= wanted:
            break
    return segment


def _truncated(
    a: list[int], b: list[int], most: int, rng: random.Random
) -> tuple[list[int], list[int]]:
    a, b = list(a), list(b)
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)
    return a, b


def _instance(
    a: list[int], b: list[int], is_random: bool, target: int, rules: Rules, rng: random.Random
) -> Instance:
    tokens = [rules.cls, *a, rules.sep, *b, rules.sep]
    segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    shown, positions, labels = masked(tokens, rules, rng)
    return Instance(shown, segment_ids, is_random, positions, labels, target)


def masked(
    tokens: list[int], rules: Rules, rng: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Mask tokens; return them, the positions to predict in ascending order, and the labels."""
    sets: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in (rules.cls, rules.sep):
            continue
        # By the ## alone: a piece right after the middle [SEP] joins the last word of A.
        if rules.whole_words and sets and token in rules.continuations:
            sets[-1].append(position)
        else:
            sets.append([position])
    rng.shuffle(sets)
    count = min(rules.max_predictions, max(1, round(len(tokens) * rules.masked_lm_prob)))
    shown = list(tokens)
    chosen: list[int] = []
    for positions in sets:
        if len(chosen) >= count:
            break
        if len(chosen) + len(positions) > count:
            continue
        for position in positions:
            chosen.append(position)
            if rng.random() < 0.8:
                shown[position] = rules.mask
            elif rng.random() >= 0.5:
                shown[position] = rng.randint(0, rules.vocab_size - 1)
    chosen.sort()
    return shown, chosen, [tokens[position] for position in chosen]


def to_arrays(instances: list[Instance], rules: Rules) -> dict[str, np.ndarray]:
    """Return the fields that the script writes, one row per instance."""
    rows, seq_len, slots = len(instances), rules.seq_len, rules.max_predictions
    arrays = {
        name: np.zeros((rows, seq_len), np.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    arrays["masked_lm_positions"] = np.zeros((rows, slots), np.int32)
    arrays["masked_lm_ids"] = np.zeros((rows, slots), np.int32)
    arrays["masked_lm_weights"] = np.zeros((rows, slots), np.float32)
    arrays["next_sentence_labels"] = np.zeros((rows, 1), np.int32)
    for row, instance in enumerate(instances):
        length, count = len(instance.tokens), len(instance.positions)
        arrays["input_ids"][row, :length] = instance.tokens
        arrays["input_mask"][row, :length] = 1
        arrays["segment_ids"][row, :length] = instance.segment_ids
        arrays["masked_lm_positions"][row, :count] = instance.positions
        arrays["masked_lm_ids"][row, :count] = instance.labels
        arrays["masked_lm_weights"][row, :count] = 1.0
        arrays["next_sentence_labels"][row, 0] = instance.is_random
    return arrays
