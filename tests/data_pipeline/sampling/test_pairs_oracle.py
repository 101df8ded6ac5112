"""The vectorised sampler agrees with the plain-Python oracle in every statistic of its rows.

Each token of the corpus has an id of its own, so that a row tells which sentences its segments
come from, where they were cut and what was masked. Both samplers fill the same fields and one
function measures them. Pairs of one document depend on each other: what is compared are the means
of whole epochs.
"""

import random

import numpy as np
import pytest

from data_pipeline.spec.options import PretrainOptions
from tests.data_pipeline import pairs_oracle
from tests.data_pipeline.corpora import FIRST_ID, SPECIAL_IDS, numbered, split_of, vocab_size_of
from tests.data_pipeline.sampling.sources import source_of, unmasked

pytestmark = pytest.mark.slow
EPOCHS = 700
SEQ_LEN, SLOTS = 37, 5
# Chosen before looking: of 50 true normal scores one exceeds it once in 30,000 runs.
MAX_Z = 5.0


def corpus() -> list[list[list[int]]]:
    """Thirteen documents: ordinary ones, single sentences, one too long for any sequence."""
    rng = random.Random(4)
    lengths = [[rng.randint(1, 15) for _ in range(rng.randint(2, 22))] for _ in range(10)]
    return numbered([*lengths, [9], [61], [5, 48, 7, 3]])


DOCUMENTS = corpus()
SPLIT = split_of(DOCUMENTS)
VOCAB_SIZE = vocab_size_of(SPLIT)


def statistics(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Numbers of each row, from its fields alone."""
    ids, used = unmasked(rows), rows["masked_lm_weights"] > 0
    shown = np.take_along_axis(rows["input_ids"], rows["masked_lm_positions"], axis=1)
    row_B = np.arange(len(ids))
    length = rows["input_mask"].sum(axis=1)
    b_tokens = rows["segment_ids"].sum(axis=1) - 1
    a_tokens = length - b_tokens - 3
    # The places in the corpus of the first and last token of each segment.
    a_first, a_last = ids[:, 1] - FIRST_ID, ids[row_B, a_tokens] - FIRST_ID
    b_first, b_last = ids[row_B, a_tokens + 2] - FIRST_ID, ids[row_B, length - 2] - FIRST_ID
    offsets = SPLIT.sentence_offsets
    a_sentence, a_end = (np.searchsorted(offsets, t, "right") - 1 for t in (a_first, a_last))
    b_sentence, b_end = (np.searchsorted(offsets, t, "right") - 1 for t in (b_first, b_last))
    a_document, b_document = (
        np.searchsorted(SPLIT.document_offsets, s, "right") - 1 for s in (a_sentence, b_sentence)
    )
    label = rows["next_sentence_labels"].reshape(-1).astype(np.float64)
    count = used.sum(axis=1)
    positions = np.where(used, rows["masked_lm_positions"], 0)
    fills = a_tokens + b_tokens == SEQ_LEN - 3
    is_masked = (shown == SPECIAL_IDS["mask"]) & used
    is_kept = (shown == rows["masked_lm_ids"]) & used
    numbers = {
        "label": label,
        "length": length,
        "length squared": length**2,
        "length if next": length * (1 - label),
        "row is full": fills,
        "row is full and random": fills * label,
        "short": length < 20,
        "very short": length < 9,
        "A tokens": a_tokens,
        "A tokens squared": a_tokens**2,
        "A tokens if random": a_tokens * label,
        "B tokens if random": b_tokens * label,
        "B tokens squared if random": b_tokens**2 * label,
        "A longer than B": a_tokens > b_tokens,
        "A as long as B": a_tokens == b_tokens,
        "A longer by one": a_tokens == b_tokens + 1,
        "A sentences": a_end - a_sentence + 1,
        "A sentences if random": (a_end - a_sentence + 1) * label,
        "A sentences squared": (a_end - a_sentence + 1) ** 2,
        "B sentences": b_end - b_sentence + 1,
        "B sentences if random": (b_end - b_sentence + 1) * label,
        "one sentence in A": a_end == a_sentence,
        "A starts late": a_sentence - SPLIT.document_offsets[a_document],
        "A cut in front": a_first != offsets[a_sentence],
        "A tokens cut in front": a_first - offsets[a_sentence],
        "A cut behind": a_last + 1 != offsets[a_end + 1],
        "A tokens cut behind": offsets[a_end + 1] - 1 - a_last,
        "B cut in front": b_first != offsets[b_sentence],
        "B tokens cut in front": b_first - offsets[b_sentence],
        "B cut behind": b_last + 1 != offsets[b_end + 1],
        "B tokens cut behind": offsets[b_end + 1] - 1 - b_last,
        "B starts late if random": (b_sentence - SPLIT.document_offsets[b_document]) * label,
        "B's document if random": b_document * label,
        "same document if random": (a_document == b_document) * label,
        "gap to B if next": (b_first - a_last) * (1 - label),
        "A's document": a_document,
        "masks": count,
        "masks per token": count / length,
        "masks in B": (positions > a_tokens[:, None] + 1).sum(axis=1),
        "first mask": rows["masked_lm_positions"][:, 0],
        "last mask": positions.max(axis=1),
        "mask positions": positions.sum(axis=1) / count,
        "mask positions squared": (positions**2).sum(axis=1) / count,
        "neighbors masked": ((np.diff(positions, axis=1) == 1) & used[:, 1:]).sum(axis=1),
        "shown as [MASK]": is_masked.sum(axis=1) / count,
        "shown as they are": is_kept.sum(axis=1) / count,
        "shown as text": ((shown >= FIRST_ID) & used & ~is_kept).sum(axis=1) / count,
        "random id": (np.where(used & ~is_masked & ~is_kept, shown, 0)).sum(axis=1) / count,
    }
    return {name: np.asarray(values, np.float64) for name, values in numbers.items()}


def epoch_means(epochs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Means of each statistic over each epoch, and how many pairs the epoch had."""
    sizes = np.asarray([len(rows["input_ids"]) for rows in epochs])
    together = {name: np.concatenate([rows[name] for rows in epochs]) for name in epochs[0]}
    starts = np.cumsum(sizes) - sizes
    numbers = statistics(together)
    means = {name: np.add.reduceat(values, starts) / sizes for name, values in numbers.items()}
    return means | {"pairs": sizes.astype(np.float64)}


def scores(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> dict[str, float]:
    """Difference of the means over epochs in units of its standard error."""
    found = {}
    for name in theirs:
        difference = ours[name].mean() - theirs[name].mean()
        variance = ours[name].var() / len(ours[name]) + theirs[name].var() / len(theirs[name])
        found[name] = float(difference / np.sqrt(variance)) if variance else float(difference)
    return found


def sampled(options: PretrainOptions) -> dict[str, np.ndarray]:
    source = source_of(SPLIT, SEQ_LEN, SLOTS, options)
    total = sum(source.facts.rows)
    rows = source.rows(np.arange(total))
    ends = np.cumsum(source.facts.rows)[:-1]
    parts = {name: np.split(values, ends) for name, values in rows.items()}
    names = [name for name in rows if name != "next_sentence_weights"]
    return epoch_means([{name: parts[name][epoch] for name in names} for epoch in range(EPOCHS)])


def oracle(rules: pairs_oracle.Rules, seed: int) -> dict[str, np.ndarray]:
    rng = random.Random(seed)
    passes = (pairs_oracle.one_pass(DOCUMENTS, rules, rng) for _ in range(EPOCHS))
    return epoch_means([pairs_oracle.to_arrays(instances, rules) for instances in passes])


@pytest.fixture(scope="module")
def oracle_means() -> dict[str, np.ndarray]:
    return oracle(pairs_oracle.Rules(SEQ_LEN, SLOTS, VOCAB_SIZE), seed=71)


def check_agreement(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    found = scores(ours, theirs)
    far = {name: z for name, z in found.items() if abs(z) > MAX_Z}
    assert len(found) == 49 and not far
    # Nor are they too near: scores of one normal distribution have a mean square of about 1.
    assert 0.3 < np.mean(np.square(list(found.values()))) < 2.5


@pytest.mark.long
def test_the_mended_sampler_agrees_with_the_oracle_of_mended_rules():
    options = PretrainOptions(dupe_factor=EPOCHS, random_seed=3)
    share = source_of(SPLIT, SEQ_LEN, SLOTS, options).facts.random_share
    rules = pairs_oracle.Rules(SEQ_LEN, SLOTS, VOCAB_SIZE, random_share=share)
    means = sampled(options)
    check_agreement(means, oracle(rules, seed=72))
    random_pairs = float((means["label"] * means["pairs"]).sum())
    # The share was found on eight walks of some 46 pairs.
    assert 0.2 < share < 0.45 and abs(random_pairs / means["pairs"].sum() - 0.5) < 0.03
    assert not means["same document if random"].any()


def test_the_exact_sampler_agrees_with_the_oracle(oracle_means):
    exact = PretrainOptions(exact=True, dupe_factor=EPOCHS, random_seed=1)
    check_agreement(sampled(exact), oracle_means)


@pytest.mark.long
@pytest.mark.parametrize(
    "changed", [{"exact": False}, {"short_seq_prob": 0.2}, {"masked_lm_prob": 0.12}]
)
def test_the_comparison_notices_other_rules(oracle_means, changed):
    options = PretrainOptions(**{"exact": True, "dupe_factor": EPOCHS} | changed)
    assert max(map(abs, scores(sampled(options), oracle_means).values())) > MAX_Z
