"""Rankings and scores beside trec_eval's, BM25 beside its formula, and folders that are refused."""

import collections
import gzip
import json
import math
import re
import sys

import numpy as np
import pytest
import pytrec_eval

from bert_jax.inference import retrieval

CORPUS = [
    {"_id": "d9", "title": "A title", "text": "and a text"},
    {"_id": "d10", "text": "without a title", "metadata": {}},
    {"_id": "d9é", "title": "", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "one"}, {"_id": "q2", "text": "two"}, {"_id": "q3", "text": "x"}]
HEADER = "query-id\tcorpus-id\tscore"
GRADES = ["q2\td9\t2", "q2\td9é\t0", "q1\td10\t-1"]


def write(folder, corpus=CORPUS, queries=QUERIES, grades=(HEADER, *GRADES), split="test"):
    """Write a folder in BEIR's layout; a text stands for a line that is none of its format."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, lines in (("corpus", corpus), ("queries", queries)):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (folder / f"{name}.jsonl").write_text("".join(text + "\n" for text in texts))
    (folder / "qrels" / f"{split}.tsv").write_text("".join(line + "\n" for line in grades))
    return folder


@pytest.mark.parametrize("grades", [(HEADER, *GRADES), GRADES, [line + "\r" for line in GRADES]])
def test_a_collection_has_its_documents_by_id_and_its_graded_queries(tmp_path, grades):
    read = retrieval.read_collection(write(tmp_path, grades=grades, split="dev"), "dev")
    assert read.documents == ["without a title", "A title and a text", ""]  # d10, d9, d9é
    assert read.queries == ["two", "one"]
    assert read.grades == [{1: 2, 2: 0}, {0: -1}] and not read.missing


def test_ids_and_grades_may_be_numbers_and_files_compressed(tmp_path):
    corpus = [{"_id": 9, "text": "nine"}, {"_id": "10", "text": "ten"}]
    grades = [HEADER, "1\t9\t2.0", "1\t10\t-1.", "1\t8\t0"]
    write(tmp_path, corpus, [{"_id": 1, "text": "one"}], grades)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        plain = tmp_path / name
        plain.with_name(plain.name + ".gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    read = retrieval.read_collection(tmp_path, "test")
    assert (read.documents, read.queries) == (["ten", "nine"], ["one"])
    assert read.grades == [{1: 2, 0: -1, 2: 0}]
    with pytest.raises(ValueError, match=r"its splits are test$"):
        retrieval.read_collection(tmp_path, "dev")


def test_graded_documents_that_the_corpus_lacks_are_numbered_after_its_own(tmp_path):
    grades = [*GRADES, "q1\td8\t1", "q2\ta\t0", "q2\td8\t1"]
    read = retrieval.read_collection(write(tmp_path, grades=grades), "test")
    assert read.grades == [{1: 2, 2: 0, 4: 0, 3: 1}, {0: -1, 3: 1}] and read.missing == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grades": ["q1\td11\t1"]}, "test.tsv grades no document in corpus.jsonl"),
        (
            {"grades": [HEADER, "q4\td9\t1"]},
            "qrels/test.tsv line 2 has the query 'q4', an id that q",
        ),
        ({"grades": ["q4\td9\t1"]}, "test.tsv line 1 has the query 'q4'"),
        ({"grades": ["q1\td9\thigh"]}, "test.tsv line 1 has the grade 'high'; give a whole number"),
        ({"grades": [HEADER, "q1\td9\t1.5"]}, "test.tsv line 2 has the grade '1.5'"),
        ({"grades": [*GRADES, GRADES[0]]}, "test.tsv line 4 has a grade of 'd9' for 'q2', as a"),
        (
            {"grades": ["q1 0 d9 1"]},
            "test.tsv line 1 has 1 fields between tabs; it must have three",
        ),
        ({"grades": [HEADER]}, "test.tsv grades no document"),
        (
            {"corpus": [*CORPUS, CORPUS[0]]},
            "corpus.jsonl line 4 has the id 'd9', which a line abov",
        ),
        ({"corpus": []}, "corpus.jsonl holds no document"),
        (
            {"corpus": [{"_id": 7.5, "text": ""}]},
            "corpus.jsonl line 1: '_id' is a number, not a string",
        ),
        ({"corpus": [{"_id": "a"}]}, "corpus.jsonl line 1 has no key 'text'"),
        ({"queries": [*QUERIES, QUERIES[1]]}, "queries.jsonl line 4 has the id 'q2', which"),
        (
            {"queries": [QUERIES[0], "{"]},
            r"queries.jsonl line 2 is not JSON .*\); write one JSON object per line$",
        ),
        (
            {"split": "dev"},
            "--split is test, but there is no .*/qrels/test.tsv; its splits are dev",
        ),
    ],
)
def test_a_folder_that_is_no_collection_is_refused_by_file_and_line(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words) as refused:
        retrieval.read_collection(write(tmp_path, **changes), "test")
    assert str(tmp_path) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"/nowhere, and there is no .*/corpus\.jsonl; BEIR"):
        retrieval.read_collection(tmp_path / "nowhere", "test")
    (write(tmp_path) / "queries.jsonl").unlink()
    with pytest.raises(ValueError, match=r"there is no .*/queries\.jsonl"):
        retrieval.read_collection(tmp_path, "test")


def draw_collection(seed):
    """Draw ids, grades and vectors of small whole numbers, whose products have many ties."""
    rng = np.random.default_rng(seed)
    documents, queries, width = (29, 230, 450)[seed], (3, 31, 13)[seed], 3
    ids = [str(number) for number in rng.permutation(4 * documents)[:documents]]
    ids[::3] = [f"é{name}" if number % 2 else f"d-{name}" for number, name in enumerate(ids[::3])]
    ids.sort()
    vectors = [rng.integers(-3, 4, (count, width)) / 8 for count in (queries, documents)]
    grades = []
    for query in range(queries):
        graded = rng.permutation(documents)[: rng.integers(1, min(documents, 130))].tolist()
        # Of the first query no document is relevant.
        grades.append({document: int(rng.integers(-1, 4 * bool(query))) for document in graded})
    grades[-1][documents] = 2  # of a document that the corpus lacks
    return ids, [array.astype(np.float32) for array in vectors], grades


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block", [1000, 7, 113])
def test_scores_equal_trec_evals(seed, block):
    ids, (queries_QD, vectors_ND), grades = draw_collection(seed)
    blocks = (vectors_ND[first : first + block] for first in range(0, len(ids), block))
    rankings = retrieval.rank_by_vectors(queries_QD, blocks)

    scores_QN = (queries_QD @ vectors_ND.T).astype(float)
    assert all(len(np.unique(row)) < len(ids) for row in scores_QN)  # ties
    runs = [dict(zip(ids, row.tolist(), strict=True)) for row in scores_QN]
    tens = [
        dict(sorted(run.items(), key=lambda each: (each[1], each[0]))[::-1][:10]) for run in runs
    ]
    names = [*ids, "missing"]
    qrels = {
        str(query): {names[document]: grade for document, grade in graded.items()}
        for query, graded in enumerate(grades)
    }
    expected = {}
    for run, name, measure in (
        (runs, retrieval.NDCG, "ndcg_cut_10"),
        (runs, retrieval.RECALL, "recall_100"),
        (tens, retrieval.MRR, "recip_rank"),
    ):
        numbered = {str(query): scores for query, scores in enumerate(run)}
        seen = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(numbered)
        expected[name] = float(np.mean([seen[query][measure] for query in qrels]))
    assert retrieval.measure(rankings, grades) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected[retrieval.NDCG] < 1 and 0 < expected[retrieval.MRR] < 1


def test_keys_order_scores_as_float32_and_then_documents():
    scores = np.array([1, -1, 0, -0.0, 1 + 1e-9, 3e38, -3e38, 1e-45, -1e-45, 0.5], np.float64)
    documents = np.arange(len(scores))
    order = np.argsort(retrieval.make_keys(scores, documents)).tolist()
    assert order == [6, 1, 8, 2, 3, 7, 9, 0, 4, 5]


def score_by_bm25(documents, query, k1=1.5, b=0.75):
    """Lucene's BM25 of every document, written out from table 1 of Kamphuis et al. 2020."""
    bags = [re.findall(r"\w\w+", text.lower()) for text in documents]
    mean = sum(map(len, bags)) / len(bags)
    holders_of = collections.Counter(word for bag in bags for word in set(bag))
    scores = []
    for bag in bags:
        counts, score = collections.Counter(bag), 0.0
        for word in re.findall(r"\w\w+", query.lower()):
            holders = holders_of[word]
            idf = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
            tf = counts[word]
            score += idf * tf / (tf + k1 * (1 - b + b * len(bag) / mean))
        scores.append(score)
    return scores


def test_bm25_ranks_as_its_formula():
    rng = np.random.default_rng(3)
    words = [f"{first}{second}" for first in "abcdé" for second in "xyz"]
    documents = [" ".join(rng.choice(words, rng.integers(1, 40)).tolist()) for _ in range(150)]
    documents[5] = documents[90] = "Ax, bx! ax"  # a tie
    documents[7] = "a b c"  # no word of two characters
    queries = ["AX bx bx", "ex cy unknown", "unknown", ""]
    done = []
    rankings = retrieval.rank_by_words(documents, queries, done.append)
    assert done == [1, 2, 3, 4]
    for query, ranking in zip(queries, rankings, strict=True):
        scored = [
            (round(score, 5), number)
            for number, score in enumerate(score_by_bm25(documents, query))
            if score > 0
        ]
        assert ranking.tolist() == [number for _, number in sorted(scored)[::-1]][:100]
    assert len(rankings[0]) == 100 and not len(rankings[2])
    assert [len(found) for found in retrieval.rank_by_words(["!"], ["ax"], done.append)] == [0]


def test_a_missing_bm25s_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ValueError, match=r"bm25s is missing .*pip install -e .*\[retrieval\]"):
        retrieval.import_bm25s()
