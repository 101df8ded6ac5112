"""Measure vocabularies side by side on one text, for the choice of one; nothing is written."""

import collections
import dataclasses
import math
import string
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import rich.console

from data_pipeline.cli.terminal import make_table, print_fact
from data_pipeline.io import Refused
from data_pipeline.read.cleaning import CleaningOptions
from data_pipeline.read.documents import Source
from data_pipeline.read.options import TextOptions
from data_pipeline.report.progress import show_progress
from data_pipeline.report.rows import PACKED_EXAMPLES
from data_pipeline.sampling.pairs import measure_examples
from data_pipeline.sampling.stream import VocabInfo, open_source
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import Split
from data_pipeline.vocab import LIST, Vocabulary, load_vocabulary, token_dtype
from data_pipeline.vocab.sentencepiece_model import NO_RULES
from data_pipeline.vocab.train import read_training_documents
from data_pipeline.vocab.wordpiece import find_words, is_cased

COMPARED_CHARS = 1 << 24  # most characters of text to compare on
_SEQ_LEN = 128  # tokens in a row, as inspect's
_BLOCK_CHARS = 1 << 18  # text encoded by one call


@dataclasses.dataclass(frozen=True)
class ComparedText:
    """Hold the text on which vocabularies are compared."""

    documents: list[list[str]]  # sentences
    # How often each word and each punctuation mark occurs, as BERT's tokenizer separates them.
    chunks: dict[str, int]
    megabytes: float  # millions of bytes of UTF-8

    @property
    def chars(self) -> int:
        return sum(len(sentence) for document in self.documents for sentence in document)

    @property
    def words(self) -> dict[str, int]:
        """Return the chunks with a letter or digit, and how often each occurs."""
        return {chunk: n for chunk, n in self.chunks.items() if any(map(str.isalnum, chunk))}


@dataclasses.dataclass(frozen=True)
class VocabularyScore:
    """Hold how well a vocabulary fits a text."""

    size: int  # pieces
    tokens_per_word: float
    cut_share: float  # words of more than one piece
    unknown_share: float  # characters that the unknown token stands for
    changed_share: float  # characters that normalization drops or replaces
    filled_share: float  # positions of rows that hold a token, a text in each row
    packed_share: float  # the same with up to PACKED_EXAMPLES texts in a row
    secs_per_megabyte: float  # one process


def load_compared(paths: Iterable[str], rules: str) -> dict[str, Vocabulary]:
    """Load vocabularies of any kinds; a vocab.txt is lowercased unless its pieces have capitals.

    `rules` are for the SentencePiece models among them.

    Raises:
      Refused: as load_vocabulary; the error names --compare_vocabs.
    """
    loaded = {}
    for path in map(str.strip, paths):
        own_rules = rules if path.endswith(".model") else NO_RULES
        try:
            vocabulary = load_vocabulary(path, checks_case=False, rules=own_rules)
            if vocabulary.file_name == LIST and is_cased(vocabulary.pieces()):
                vocabulary = load_vocabulary(path, lowercase=False)
        except Refused as error:
            raise Refused(str(error).replace("--vocab is ", "--compare_vocabs has ", 1)) from error
        loaded[path] = vocabulary
    return loaded


def read_compared(
    sources: Sequence[Source], options: TextOptions, cleaning: CleaningOptions
) -> ComparedText:
    """Read an equal share of each source, COMPARED_CHARS in all, and count its words.

    Raises:
      Refused: an input that cannot be read, or has no word.
    """
    stored_bytes = sum(source.stored_bytes for source in sources)
    with show_progress("reading the text", stored_bytes) as advance:
        read = read_training_documents(sources, options, cleaning, COMPARED_CHARS, advance)
        text = count_words([document for document in read if document])
    if not text.words:
        raise Refused("the text of --input has no word to compare vocabularies on")
    return text


def count_words(documents: list[list[str]]) -> ComparedText:
    """Count the words and the bytes of documents, each a list of sentences."""
    chunks: collections.Counter[str] = collections.Counter()
    size_bytes = 0
    for sentence in (sentence for document in documents for sentence in document):
        chunks.update(find_words(" ".join(sentence.split())))
        size_bytes += len(sentence.encode("utf-8", "replace")) + 1
    return ComparedText(documents, dict(chunks), size_bytes / 1e6)


def score_vocabulary(
    vocabulary: Vocabulary, text: ComparedText, advance: Callable[[int], None]
) -> VocabularyScore:
    """Encode a text as a build does, and each word as after a space; return the measurements.

    Raises:
      Refused: a text that the vocabulary's library cannot encode, or encodes to no token.
    """
    started_secs = time.perf_counter()
    split = _encode(vocabulary, text.documents, advance)
    seconds = time.perf_counter() - started_secs
    words = text.words
    _, pieces_N = vocabulary.encode_words([*words])
    counts_N = np.fromiter(words.values(), np.int64, len(words))
    unknown, changed = _count_lost(vocabulary, text.chunks)
    chars = sum(len(chunk) * count for chunk, count in text.chunks.items())
    return VocabularyScore(
        size=vocabulary.size,
        tokens_per_word=split.tokens / counts_N.sum(),
        cut_share=counts_N[pieces_N > 1].sum() / counts_N.sum(),
        unknown_share=unknown / chars,
        changed_share=changed / chars,
        filled_share=_measure_fill(split, vocabulary, 1),
        packed_share=_measure_fill(split, vocabulary, PACKED_EXAMPLES),
        secs_per_megabyte=seconds / text.megabytes,
    )


def _encode(
    vocabulary: Vocabulary, documents: Sequence[list[str]], advance: Callable[[int], None]
) -> Split:
    """Encode documents as an in-memory split of a store; drop what has no token."""
    ids, lengths, sentence_counts, chars = [], [], [], 0
    sentences: list[str] = []
    counts: list[int] = []
    for number, document in enumerate(documents, 1):
        sentences += document
        counts.append(len(document))
        chars += sum(map(len, document))
        if chars >= _BLOCK_CHARS or number == len(documents):
            block_ids, block_lengths = vocabulary.encode_documents(sentences, counts)
            has_tokens = np.split(block_lengths > 0, np.cumsum(counts)[:-1])
            ids.append(block_ids)
            lengths.append(block_lengths[block_lengths > 0])
            sentence_counts += [int(kept.sum()) for kept in has_tokens if kept.any()]
            advance(chars)
            sentences, counts, chars = [], [], 0
    token_ids = np.concatenate(ids).astype(token_dtype(vocabulary.size))
    return Split(
        "text",
        token_ids,
        np.cumsum([0, *np.concatenate(lengths)]),
        np.cumsum([0, *sentence_counts]),
        np.bincount(token_ids, minlength=vocabulary.size),
    )


def _count_lost(vocabulary: Vocabulary, chunks: dict[str, int]) -> tuple[int, int]:
    """Count the characters that ids do not give back: unknown ones, and changed ones.

    Canonically equivalent characters (NFC) count as equal; white space is not counted.
    """
    ids, lengths_N = vocabulary.encode_words([*chunks])
    ends_N = np.cumsum(lengths_N)
    unk_id = vocabulary.special_ids["unk"]
    unknown = changed = 0
    for (chunk, count), start, end in zip(chunks.items(), ends_N - lengths_N, ends_N, strict=True):
        decoded = vocabulary.decode([i for i in ids[start:end].tolist() if i != unk_id])
        if decoded.replace(" ", "") == chunk:
            continue
        by_rules = _count_missing(chunk, vocabulary.normalize(chunk))
        changed += count * by_rules
        unknown += count * max(0, _count_missing(chunk, decoded) - by_rules)
    return unknown, changed


def _count_missing(text: str, other: str) -> int:
    """Count the characters of a text in NFC that `other` lacks."""
    missing = collections.Counter(unicodedata.normalize("NFC", text))
    missing.subtract(unicodedata.normalize("NFC", other))
    return sum(count for count in missing.values() if count > 0)


def _measure_fill(split: Split, vocabulary: Vocabulary, packed_examples: int) -> float:
    """Pack documents' sentences into rows; return the share of positions that hold a token."""
    options = PretrainOptions(
        segments="doc_sentences",
        short_seq_prob=0.0,
        dupe_factor=1,
        packed_examples=packed_examples,
    )
    pieces = VocabInfo(vocabulary.size, vocabulary.special_ids, split.token_counts)
    source = open_source(split, pieces, options, _SEQ_LEN, math.ceil(0.15 * _SEQ_LEN))
    planned = source.walks.get(0)
    tokens = int(measure_examples(split, planned.walk).sum(dtype=np.int64))
    return tokens / (planned.rows * _SEQ_LEN)


def print_comparison(
    console: rich.console.Console, text: ComparedText, scores: dict[str, VocabularyScore]
) -> None:
    """Print one column per vocabulary, with the paths and the size of the text below."""
    names = string.ascii_uppercase if len(scores) <= 26 else [*map(str, range(1, len(scores) + 1))]
    measures = (
        ("size", lambda score: f"{score.size:,}"),
        ("tokens per word", lambda score: f"{score.tokens_per_word:.3f}"),
        ("words cut into pieces", lambda score: f"{score.cut_share:.1%}"),
        ("characters unknown", lambda score: _format_lost(score.unknown_share)),
        ("characters changed", lambda score: _format_lost(score.changed_share)),
        (f"rows of {_SEQ_LEN} tokens filled", lambda score: f"{score.filled_share:.1%}"),
        (f"with {PACKED_EXAMPLES} packed in a row", lambda score: f"{score.packed_share:.1%}"),
        ("seconds per MB", lambda score: f"{score.secs_per_megabyte:.2f}"),
    )
    rows = [(label, *map(write, scores.values())) for label, write in measures]
    console.print(make_table(("", *names[: len(scores)]), rows))
    words = sum(text.words.values())
    size = f"{len(text.documents):,} documents, {words:,} words, {text.megabytes:.1f} MB"
    for name, fact in (*zip(names, scores, strict=False), ("text", size)):
        print_fact(console, name, fact, 5)


def _format_lost(share: float) -> str:
    return "0" if not share else f"{share:.3%}" if share >= 1e-5 else "<0.001%"
