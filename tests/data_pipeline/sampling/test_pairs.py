"""Chunks resolve to the text that Google's rules, and the other segments' rules, give."""

import math
import pathlib

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

from data_pipeline.sampling import pairs
from data_pipeline.sampling.pairs import resolve_spans
from data_pipeline.sampling.walk import WalkRules, walk_corpus
from data_pipeline.spec import hashing
from data_pipeline.store import Split
from tests.data_pipeline import pairs_oracle
from tests.data_pipeline.corpora import numbered, split_of, varied
from tests.data_pipeline.sampling.test_walk import rules_of
from tests.data_pipeline.spec.test_hashing import chi_square_z


@pytest.mark.parametrize(
    ("text", "golden", "dupe_factor", "whole_words"),
    [
        ("sample_text.txt", "sample_text.s128.p20.dupe5.seed12345.npz", 5, False),
        ("alice.txt", "alice.s128.p20.dupe2.wwm.seed12345.npz", 2, True),
    ],
)
def test_the_oracle_reproduces_googles_own_output(
    shared_data: pathlib.Path, text, golden, dupe_factor, whole_words
):
    vocab = shared_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    pieces = vocab.read_text(encoding="utf-8").splitlines()
    tokenizer = BertWordPieceTokenizer(str(vocab), lowercase=True)
    folder = shared_data / "golden" / "google_bert_instances"
    documents: list[list[list[int]]] = [[]]
    with open(folder / text, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            if not line.strip():
                documents.append([])
            elif ids := tokenizer.encode(line.strip(), add_special_tokens=False).ids:
                documents[-1].append(ids)
    rules = pairs_oracle.Rules(
        seq_len=128,
        max_predictions=20,
        vocab_size=len(pieces),
        whole_words=whole_words,
        continuations=frozenset(i for i, piece in enumerate(pieces) if piece.startswith("##")),
    )
    instances = pairs_oracle.create_instances(documents, rules, dupe_factor, seed=12345)
    made = pairs_oracle.to_arrays(instances, rules)
    with np.load(folder / golden) as expected:
        assert set(expected) == set(made)
        for name in expected:
            assert made[name].dtype == expected[name].dtype
            np.testing.assert_array_equal(made[name], expected[name], err_msg=name)


@pytest.mark.parametrize("most", [2, 3, 20, 21, 37])
def test_truncation_in_closed_form_is_the_loop(most):
    a, b = (side.ravel() for side in np.mgrid[1:60, 1:60])
    made = pairs.truncate_pairs(a, b, rules_of(seq_len=most + 3))
    for *kept, made_a, made_b in zip(a, b, *made[:2], strict=True):
        while sum(kept) > most:
            longer = 0 if kept[0] > kept[1] else 1
            kept[longer] -= 1
        assert [made_a, made_b] == kept


def resolved(split: Split, rules: WalkRules) -> pairs.Spans:
    walk = walk_corpus(split, rules)
    return resolve_spans(split, walk, np.arange(len(walk)), epoch_key=99)


def document_of(split: Split, token: np.ndarray) -> np.ndarray:
    token_starts = split.sentence_offsets[split.document_offsets]
    return np.searchsorted(token_starts, token, side="right") - 1


@pytest.mark.parametrize("exact", [False, True])
def test_the_second_segment_follows_or_comes_from_where_it_may(exact):
    split = split_of(varied(7, seed=2))
    seen_same, other_counts, own_counts = 0, np.zeros(7), np.zeros(7)
    for key in range(150):
        spans = resolved(split, rules_of(exact=exact, key=key))
        a_document = document_of(split, spans.a_start_B)
        b_document = document_of(split, spans.b_start_B)
        follows = ~spans.label_B
        assert (spans.a_tokens_B >= 1).all() and (spans.b_tokens_B >= 1).all()
        assert (spans.a_tokens_B + spans.b_tokens_B <= 34).all()
        assert (a_document == document_of(split, spans.a_start_B + spans.a_tokens_B - 1)).all()
        assert (b_document == document_of(split, spans.b_start_B + spans.b_tokens_B - 1)).all()
        assert (a_document == b_document)[follows].all()
        a_end = spans.a_start_B + spans.a_tokens_B
        assert (spans.b_start_B >= a_end)[follows].all()
        seen_same += int((a_document == b_document)[spans.label_B].sum())
        of_three = spans.label_B & (a_document == 3)
        other_counts += np.bincount(b_document[of_three], minlength=7)
        own_counts += np.bincount(a_document, minlength=7)
    if not exact:
        assert seen_same == 0 and other_counts[3] == 0
        assert chi_square_z(np.delete(other_counts, 3), other_counts.sum() / 6) < 4.5
    assert own_counts.all()


def test_exact_takes_the_same_document_after_ten_failed_draws():
    # Each sentence fills a chunk, whose second segment is then random: 2**-10 of them stay at home.
    split = split_of(numbered([[40] * 300, [40] * 300]))
    same = pairs_seen = 0
    for key in range(50):
        spans = resolved(split, rules_of(exact=True, short=0.0, key=key))
        own = document_of(split, spans.a_start_B) == document_of(split, spans.b_start_B)
        assert spans.label_B.all()
        same += int(own.sum())
        pairs_seen += len(own)
    expected = pairs_seen / 2**10
    assert pairs_seen == 30_000 and abs(same - expected) < 4.5 * math.sqrt(expected)


def sentence_of(split: Split, token: np.ndarray) -> np.ndarray:
    return np.searchsorted(split.sentence_offsets, token, side="right") - 1


def test_in_sop_the_second_segment_follows_or_precedes():
    split = split_of(varied(60, seed=2, most_sentences=9))
    walk = walk_corpus(split, rules_of(segments="sop"))
    swapped, alone = 0, 0
    for epoch in range(40):
        spans = resolve_spans(
            split, walk, np.arange(len(walk)), epoch_key=hashing.derive_key(epoch)
        )
        has_b = spans.b_tokens_B > 0
        assert (spans.has_label_B == has_b).all() and not spans.label_B[~has_b].any()
        assert (walk.sentences_N[~has_b] == 1).all() and (walk.sentences_N[has_b] > 1).all()
        first, second = (
            np.where(spans.label_B, spans.b_start_B, spans.a_start_B),
            np.where(spans.label_B, spans.a_start_B, spans.b_start_B),
        )
        assert (first < second)[has_b].all()
        assert (document_of(split, first) == document_of(split, second))[has_b].all()
        # All sentences of the chunk stand in one of the two, cut tokens aside.
        whole = sentence_of(split, second) - sentence_of(split, first)
        assert (whole < walk.sentences_N)[has_b].all()
        assert (spans.length_B <= 37).all()
        swapped += int(spans.label_B.sum())
        alone += int((~has_b).sum())
    pairs_seen = 40 * len(walk) - alone
    assert alone > 100 and abs(swapped / pairs_seen - 0.5) < 4.5 * 0.5 / math.sqrt(pairs_seen)
