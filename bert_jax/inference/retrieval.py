"""Rank the documents of a collection for its queries, and score the ranking by graded relevance.

A collection is a folder in BEIR's layout: corpus.jsonl, queries.jsonl, and a file of grades per
split. Documents are numbered in the order of their ids, so that a greater number means a greater
id, which trec_eval ranks first in a tie.

Dimensions: Q queries, N documents, B documents of a block, C documents kept, D width.
"""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from data_pipeline.io import Refused
from data_pipeline.io.address import make_install_command
from data_pipeline.io.compression import COMPRESSED
from data_pipeline.io.small_files import check_unicode, field, list_names
from data_pipeline.labeled.lines import open_lines
from data_pipeline.read.records import parse_object

LAYOUT = "corpus.jsonl, queries.jsonl and qrels/NAME.tsv, which is the split NAME"
NDCG, RECALL, MRR = "ndcg@10", "recall@100", "mrr@10"
_MAX_RANK, _KEPT = 10, 100  # ranks that nDCG and MRR read, and ranks that recall reads
_QUERIES_AT_ONCE = 512  # queries whose scores of a block of documents are in memory
# The defaults of bm25s, with Lucene's formula of term frequencies and document lengths.
_BM25 = {"method": "lucene", "k1": 1.5, "b": 0.75}
_GRADE = re.compile(r"(-?[0-9]{1,9})(\.0*)?")  # 2, or 2.0 as pandas writes it


@dataclasses.dataclass(frozen=True)
class Collection:
    """Hold the documents in the order of their ids, and the queries that have grades."""

    documents: list[str]
    queries: list[str]
    grades: list[dict[int, int]]  # one dict per query: number of a document -> grade
    missing: int  # graded documents that the corpus lacks, numbered from N on


def read_collection(folder: pathlib.Path, split: str) -> Collection:
    """Read a folder in BEIR's layout; a document is its title and its text, joined by a space.

    Raises:
      Refused: a file or split is missing, a line is not in its format, an id occurs twice, a
        query is unknown, or there is no document, or none has a grade.
    """
    corpus, asked = folder / "corpus.jsonl", folder / "queries.jsonl"
    corpus, asked, graded = map(_find_file, (corpus, asked, folder / "qrels"))
    for path in (corpus, asked, graded):
        if not path.exists():
            raise Refused(
                f"--retrieval is {folder}, and there is no {path}; BEIR's layout is {LAYOUT}"
            )
    qrels = _find_file(graded / f"{split}.tsv")
    if not qrels.is_file():
        splits = sorted({path.name.partition(".tsv")[0] for path in graded.glob("*.tsv*")})
        known = f"its splits are {list_names(splits)}" if splits else "it holds no .tsv at all"
        raise Refused(f"--split is {split}, but there is no {qrels}; {known}")
    queries = _read_texts(asked, ("text",))
    texts = _read_texts(corpus, ("title", "text"))
    if not texts:
        raise Refused(f"{corpus} holds no document")
    numbers = {name: number for number, name in enumerate(sorted(texts))}
    documents = [texts[name] for name in numbers]
    grades = _read_grades(qrels, queries, numbers)
    if not any(number < len(texts) for graded in grades.values() for number in graded):
        raise Refused(f"{qrels} grades no document in corpus.jsonl, so there is nothing to score")
    graded_queries = [queries[name] for name in grades]
    return Collection(
        documents, graded_queries, list(grades.values()), len(numbers) - len(documents)
    )


def _find_file(path: pathlib.Path) -> pathlib.Path:
    """Return the path, or if only a compressed file exists, the path with the file's suffix."""
    names = (path.with_name(path.name + suffix) for suffix in ("", *COMPRESSED))
    return next((each for each in names if each.exists()), path)


def _read_texts(path: pathlib.Path, keys: Sequence[str]) -> dict[str, str]:
    """Read id -> text of each line: the texts under the keys, joined; a title may be missing."""
    texts: dict[str, str] = {}
    for number, line in enumerate(open_lines(str(path)), 1):
        if not line.strip():
            continue
        place = f"{path} line {number}"
        record = parse_object(place, line, "write one JSON object per line")
        if type(record.get("_id")) is int:
            record["_id"] = str(record["_id"])
        present = [key for key in keys if key != "title" or record.get(key) is not None]
        name, *parts = (field(record, key, str, place) for key in ("_id", *present))
        for key, value in zip(("_id", *present), (name, *parts), strict=True):
            check_unicode(value, key, place)
        if name in texts:
            raise Refused(f"{place} has the id {name!r:.80}, which a line above it has too")
        texts[name] = " ".join(part for part in parts if part)
    return texts


def _read_grades(
    path: pathlib.Path, queries: Mapping[str, str], numbers: dict[str, int]
) -> dict[str, dict[int, int]]:
    """Read query id -> number of a document -> grade; the first line may be a header.

    A graded document that the corpus lacks (BEIR's ArguAna has five) gets the next number.
    """
    grades: dict[str, dict[int, int]] = {}
    for number, line in enumerate(open_lines(str(path)), 1):
        fields = line.rstrip("\r").split("\t")
        if not line.strip():
            continue
        place = f"{path} line {number}"
        if len(fields) != 3:
            raise Refused(
                f"{place} has {len(fields)} fields between tabs; it must have three: the id of a "
                "query, the id of a document, and its grade"
            )
        query, document, grade = fields
        is_known = query in queries and document in numbers
        if number == 1 and not is_known and not any(map(str.isdecimal, grade)):
            continue
        if query not in queries:
            raise Refused(
                f"{place} has the query {query!r:.80}, an id that queries.jsonl does not have"
            )
        whole = _GRADE.fullmatch(grade)
        if whole is None:
            raise Refused(f"{place} has the grade {grade!r:.80}; give a whole number: 0, 1, 2")
        graded = grades.setdefault(query, {})
        if numbers.setdefault(document, len(numbers)) in graded:
            raise Refused(
                f"{place} has a grade of {document!r:.80} for {query!r:.80}, as a line above it has"
            )
        graded[numbers[document]] = int(whole[1])
    return grades


def make_keys(scores: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return int64 keys that sort by score, then by document: float32[...,B], int[B] -> [...,B]."""
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.int32)  # -0 becomes 0
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    return (ordered.astype(np.int64) << 32) | documents


def rank_by_vectors(queries_QD: np.ndarray, blocks: Iterable[np.ndarray]) -> list[np.ndarray]:
    """Return each query's documents with the greatest dot products, best first, at most _KEPT.

    The blocks, finite float32[B,D], cover all documents in order; memory holds one at a time.
    """
    best = [np.empty((len(part), 0), np.int64) for part in _split(queries_QD)]
    first = 0
    for vectors_BD in blocks:
        documents = np.arange(first, first + len(vectors_BD))
        for i, part in enumerate(_split(queries_QD)):
            best[i] = _keep_best(np.hstack([best[i], make_keys(part @ vectors_BD.T, documents)]))
        first += len(vectors_BD)
    return [_list_documents(keys_C) for part in best for keys_C in part]


def _split(queries_QD: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(queries_QD), _QUERIES_AT_ONCE):
        yield queries_QD[first : first + _QUERIES_AT_ONCE]


def _keep_best(keys: np.ndarray) -> np.ndarray:
    return keys if keys.shape[-1] <= _KEPT else np.partition(keys, -_KEPT)[..., -_KEPT:]


def _list_documents(keys_C: np.ndarray) -> np.ndarray:
    return np.sort(keys_C)[::-1] & 0xFFFFFFFF


def import_bm25s() -> None:
    """Raise Refused if the library bm25s cannot be imported."""
    try:
        import bm25s  # noqa: F401
    except ImportError as error:
        raise Refused(
            "--retrieval shows BM25 next to the checkpoint, and the library bm25s is missing "
            f"({error}); install it: {make_install_command('retrieval')}"
        ) from error


def rank_by_words(
    documents: Sequence[str], queries: Sequence[str], advance: Callable[[int], None]
) -> list[np.ndarray]:
    """Return each query's documents by BM25, best first; only documents that share a word.

    Words are two or more letters or digits in lower case; none is stemmed or left out. `advance` is
    called with the number of queries done.

    Source: Robertson and Zaragoza 2009 in the form of Lucene: Kamphuis et al. 2020, table 1; bm25s.
    """
    import bm25s

    tokens = bm25s.tokenize(list(documents), stopwords=None, show_progress=False)
    index = bm25s.BM25(**_BM25)
    rankings = []
    if tokens.vocab:
        index.index(tokens, create_empty_token=False, show_progress=False)
    words_of_queries = bm25s.tokenize(
        list(queries), stopwords=None, return_ids=False, show_progress=False
    )
    for done, words in enumerate(words_of_queries, 1):
        known = index.get_tokens_ids(words) if tokens.vocab else []
        scores_N = index.get_scores_from_ids(known) if known else np.zeros(1, np.float32)
        matching = np.flatnonzero(scores_N)
        keys = _keep_best(make_keys(scores_N[matching], matching))
        rankings.append(_list_documents(keys))
        advance(done)
    return rankings


def measure(
    rankings: Sequence[np.ndarray], grades: Sequence[Mapping[int, int]]
) -> dict[str, float]:
    """Return the means over all queries of nDCG@10, recall@100 and MRR@10.

    A document is relevant from grade 1 on; the gain of nDCG is the grade. A query without a
    relevant document counts as 0.

    Source: trec_eval 9: m_ndcg_cut.c, m_recall.c, m_recip_rank.c on ten documents.
    """
    means = dict.fromkeys((NDCG, RECALL, MRR), 0.0)
    for documents, graded in zip(rankings, grades, strict=True):
        ideal = sorted((grade for grade in graded.values() if grade > 0), reverse=True)
        if not ideal:
            continue
        gains = [max(0, graded.get(document, 0)) for document in documents.tolist()]
        means[NDCG] += _discount(gains) / _discount(ideal)
        means[RECALL] += sum(gain > 0 for gain in gains) / len(ideal)
        hits = (1 / rank for rank, gain in enumerate(gains[:_MAX_RANK], 1) if gain > 0)
        means[MRR] += next(hits, 0.0)
    return {name: total / len(grades) for name, total in means.items()}


def _discount(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains[:_MAX_RANK], 1)))
