"""Walks follow Google's rules chunk by chunk, and pairs resolve to the text those rules give."""

import math
import pathlib

import numpy as np
import pytest
from tokenizers import BertWordPieceTokenizer

from data_pipeline import hashing, pairs
from data_pipeline.options import PretrainOptions
from data_pipeline.pairs import WalkRules, resolve, split_chunks, target_tokens, walk_pairs
from data_pipeline.store import Split
from tests.data_pipeline import pairs_oracle
from tests.data_pipeline.corpora import numbered, split_of, varied
from tests.data_pipeline.test_hashing import chi_square_z


def rules_of(seq_len: int = 37, exact: bool = False, short: float = 0.1, key: int = 5) -> WalkRules:
    return WalkRules(hashing.subkey(key), seq_len, short, exact)


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
    for a in range(1, 60):
        for b in range(1, 60):
            kept_a, kept_b = a, b
            while kept_a + kept_b > most:
                if kept_a > kept_b:
                    kept_a -= 1
                else:
                    kept_b -= 1
            made = pairs.truncated(np.asarray([a]), np.asarray([b]), most)
            assert (int(made[0][0]), int(made[1][0])) == (kept_a, kept_b), (a, b)


def one_by_one(split: Split, rules: WalkRules) -> list[tuple[int, int, int]]:
    """First sentence, document and sentences of each chunk, walking one sentence at a time."""
    lengths = np.diff(split.sentence_offsets)
    found = []
    for document in range(split.documents):
        at, end = (int(offset) for offset in split.document_offsets[document : document + 2])
        while at < end:
            target = int(target_tokens(rules, np.asarray([document]), np.asarray([at]))[0])
            sentences = tokens = 0
            while at + sentences < end and tokens < target:
                tokens += int(lengths[at + sentences])
                sentences += 1
            a, is_random = split_chunks(rules, np.asarray([at]), np.asarray([sentences]))
            found.append((at, document, sentences))
            at += int(a[0]) if is_random[0] else sentences
    return found


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("block_sentences", [1, 40, 10**6])
@pytest.mark.parametrize("few_documents", [0, 3, 10**6])
def test_a_walk_finds_the_chunks_found_one_by_one(
    monkeypatch, exact, block_sentences, few_documents
):
    monkeypatch.setattr(pairs, "_FEW_DOCUMENTS", few_documents)
    # Shorter than the longest document: a document that is longer than what is looked up at once.
    monkeypatch.setattr(pairs, "_ALONE_SENTENCES", 17)
    long_document = [1 + number % 13 for number in range(211)]
    lengths = [[len(s) for s in d] for d in varied(23, seed=3)]
    split = split_of(numbered([*lengths[:9], long_document, [5], [90], [1] * 30, *lengths[9:]]))
    rules = rules_of(exact=exact, short=0.3)
    walk = walk_pairs(split, rules, block_sentences)
    made = list(zip(walk.first_sentence_N, walk.document_N, walk.sentences_N, strict=True))
    assert made == one_by_one(split, rules)


def test_walks_of_different_numbers_and_lengths_differ():
    split = split_of(varied(30, seed=1))
    walks = [
        walk_pairs(split, pairs.walk_rules(PretrainOptions(), seq_len, number))
        for seq_len, number in ((64, 0), (64, 1), (32, 0))
    ]
    firsts = [walk.first_sentence_N.tolist() for walk in walks]
    assert firsts[0] != firsts[1] != firsts[2] != firsts[0]
    again = walk_pairs(split, pairs.walk_rules(PretrainOptions(), 64, 0))
    assert again.first_sentence_N.tolist() == firsts[0]


def test_targets_are_drawn_per_document_when_exact_and_per_chunk_else():
    first = np.arange(20_000)
    document = first // 10
    for exact in (False, True):
        targets = target_tokens(rules_of(37, exact), document, first)
        assert targets.min() == 2 and targets.max() == 34
        within = targets.reshape(-1, 10)
        assert (within == within[:, :1]).all() == exact
        draws = targets[::10] if exact else targets
        is_short = draws < 34
        # A short target is one of 2 to 34, so one in 33 is not short after all.
        share = 0.1 * 32 / 33
        assert abs(is_short.mean() - share) < 4.5 * math.sqrt(share * (1 - share) / len(draws))
        counts = np.bincount(draws[is_short], minlength=34)[2:34]
        assert chi_square_z(counts, is_short.sum() / 32) < 4.5


def test_split_points_are_uniform_and_single_sentences_always_random():
    first = np.arange(60_000)
    for sentences in (1, 2, 3, 9):
        a, is_random = split_chunks(rules_of(), first, np.full(len(first), sentences))
        if sentences == 1:
            assert (a == 1).all() and is_random.all()
            continue
        counts = np.bincount(a, minlength=sentences)[1:]
        assert a.min() >= 1 and len(counts) == sentences - 1
        for label in (False, True):
            assert abs(is_random.mean() - 0.5) < 4.5 * 0.5 / math.sqrt(len(first))
            part = np.bincount(a[is_random == label], minlength=sentences)[1:]
            assert sentences == 2 or chi_square_z(part, part.mean()) < 4.5


def resolved(split: Split, rules: WalkRules) -> pairs.Spans:
    walk = walk_pairs(split, rules)
    return resolve(split, walk, np.arange(len(walk)), epoch_key=99)


def document_of(split: Split, token: np.ndarray) -> np.ndarray:
    token_starts = split.sentence_offsets[split.document_offsets]
    return np.searchsorted(token_starts, token, side="right") - 1


@pytest.mark.parametrize("exact", [False, True])
def test_the_second_segment_follows_or_comes_from_where_it_may(exact):
    split = split_of(varied(7, seed=2))
    seen_same, other_counts, own_counts = 0, np.zeros(7), np.zeros(7)
    for key in range(300):
        spans = resolved(split, rules_of(exact=exact, key=key))
        a_document = document_of(split, spans.a_start_B)
        b_document = document_of(split, spans.b_start_B)
        follows = ~spans.is_random_B
        assert (spans.a_tokens_B >= 1).all() and (spans.b_tokens_B >= 1).all()
        assert (spans.a_tokens_B + spans.b_tokens_B <= 34).all()
        assert (a_document == document_of(split, spans.a_start_B + spans.a_tokens_B - 1)).all()
        assert (b_document == document_of(split, spans.b_start_B + spans.b_tokens_B - 1)).all()
        assert (a_document == b_document)[follows].all()
        a_end = spans.a_start_B + spans.a_tokens_B
        assert (spans.b_start_B >= a_end)[follows].all()
        seen_same += int((a_document == b_document)[spans.is_random_B].sum())
        of_three = spans.is_random_B & (a_document == 3)
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
    for key in range(200):
        spans = resolved(split, rules_of(exact=True, short=0.0, key=key))
        own = document_of(split, spans.a_start_B) == document_of(split, spans.b_start_B)
        assert spans.is_random_B.all()
        same += int(own.sum())
        pairs_seen += len(own)
    expected = pairs_seen / 2**10
    assert pairs_seen == 120_000 and abs(same - expected) < 4.5 * math.sqrt(expected)


def test_a_sentence_longer_than_the_sequence_is_cut_on_both_sides():
    split = split_of(numbered([[500], [700]]))
    walk = walk_pairs(split, rules_of())
    fronts = []
    for epoch in range(400):
        spans = resolve(split, walk, np.arange(2), epoch_key=hashing.subkey(epoch))
        assert spans.is_random_B.all()
        assert spans.a_tokens_B.tolist() == spans.b_tokens_B.tolist() == [17, 17]
        fronts.append((int(spans.a_start_B[0]), int(spans.b_start_B[0]) - 500))
    a_front, b_front = np.asarray(fronts).T
    for front, cut in ((a_front, 483), (b_front, 683)):
        scores = (front - cut / 2) / math.sqrt(cut / 4)
        assert abs(scores.mean()) * 20 < 4.5 and 0.8 < scores.std() < 1.2
    assert abs(np.corrcoef(a_front, b_front)[0, 1]) * 20 < 4.5


def test_a_gap_in_the_corpus_is_named():
    good = split_of(numbered([[3, 4], [2], [6]]))
    offsets = good.sentence_offsets.copy()
    offsets[2] = offsets[1]
    bad = Split("train", good.token_ids, offsets, good.document_offsets, good.token_counts)
    with pytest.raises(ValueError, match="sentence 1 of split train has no tokens"):
        walk_pairs(bad, rules_of())
    empty = Split(
        "train", good.token_ids, good.sentence_offsets, np.asarray([0, 2, 2, 4]), good.token_counts
    )
    with pytest.raises(ValueError, match="document 1 of split train has no sentences"):
        walk_pairs(empty, rules_of())
