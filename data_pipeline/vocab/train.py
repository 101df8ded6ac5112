"""Train a vocabulary on a corpus: WordPiece in BERT's layout, SentencePiece, byte-level BPE."""

import collections
import dataclasses
import io
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence

import sentencepiece
import tokenizers

from data_pipeline.io import Refused
from data_pipeline.read.cleaning import CleaningOptions, clean_documents
from data_pipeline.read.documents import Source, read_equal_shares
from data_pipeline.read.options import TextOptions
from data_pipeline.read.sentences import split_sentences
from data_pipeline.vocab import LIST, MODEL, TOKENIZER_JSON, WORD_START, WORDPIECE
from data_pipeline.vocab.byte_level import train_byte_level
from data_pipeline.vocab.wordpiece import join_pieces, make_wordpiece_normalizer

UNIGRAM, BPE, BYTE_BPE = "unigram", "bpe", "byte_bpe"
# The kinds that can be trained, and the name of each kind's file in a store.
TRAINED = {WORDPIECE: LIST, UNIGRAM: MODEL, BPE: MODEL, BYTE_BPE: TOKENIZER_JSON}

# The most characters of text that training reads, to bound its memory on any corpus: WordPiece
# and byte-level BPE keep the counts of the different words, SentencePiece the sentences and
# a suffix array over them.
TEXT_CHARS = {WORDPIECE: 1 << 30, UNIGRAM: 128 << 20, BPE: 128 << 20, BYTE_BPE: 1 << 30}

# BERT's layout: [PAD] 0, [unused0..98] 1-99, [UNK] 100, [CLS] 101, [SEP] 102, [MASK] 103.
_BERTS_UNUSED = 99
BERT_HEAD = (
    "[PAD]",
    *(f"[unused{i}]" for i in range(_BERTS_UNUSED)),
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
)
# If the characters of a text take more than this share of a vocabulary, the rarest of them (one in
# 2,000) are left to [UNK]. Characters take 1% of 8,192 pieces for English books, 9% for English
# Wikipedia, and 6.5% of BERT's own uncased list.
_SMALL_ALPHABET = 0.1
_FULL_COVERAGE, _PARTIAL_COVERAGE = 1.0, 0.9995
MIN_COVERAGE = 0.98  # SentencePiece's own limit
# ASCII is always kept: digits are rarer than one in 2,000 in novels.
_ASCII = string.digits + string.ascii_letters + string.punctuation
_NO_CAPITALS = dict.fromkeys(map(ord, string.ascii_uppercase))
_MIN_PAIR_COUNT = 2
# SentencePiece's rules; keys: whether it lowercases
_RULES = {True: "nmt_nfkc_cf", False: "nmt_nfkc"}
_SENTENCEPIECE_THREADS = 16  # a constant: sums over threads, and with them the model, depend on it
_SENTENCEPIECE_SPECIAL = 5  # [PAD], [UNK], [CLS], [SEP], [MASK]
_MAX_SENTENCE_BYTES = 1 << 16  # SentencePiece skips longer texts
_RESERVED = "\u2585"  # and texts with this block, its trainer's sign for what it does not know

ReadText = Callable[[], Iterable[str]]


@dataclasses.dataclass(frozen=True)
class TrainedVocabulary:
    """Hold the bytes of a vocabulary file and the share of the text's characters that it covers."""

    file_bytes: bytes
    character_coverage: float


def train_vocabulary(
    kind: str,
    read_text: ReadText,
    vocab_size: int,
    lowercase: bool,
    reserved_pieces: int = 0,
    character_coverage: float | None = None,
) -> TrainedVocabulary:
    """Train a vocabulary of exactly `vocab_size` pieces.

    `read_text` opens the stream of sentences and is called once for each pass. The same stream and
    settings give the same bytes. `reserved_pieces` is the number of pieces [unusedN] to reserve for
    later, BERT's own 99 of WordPiece not counted. The most frequent characters that make up the
    share `character_coverage` of the text get pieces; None takes all of them if they fill at most a
    tenth of the vocabulary, and 0.9995 otherwise.

    Raises:
      Refused: the size is too small for the text's characters or too large for the text.
    """
    if kind == BYTE_BPE:  # bytes cover every character
        trained = train_byte_level(read_text(), vocab_size, reserved_pieces)
        return TrainedVocabulary(trained, _FULL_COVERAGE)
    if kind == WORDPIECE or character_coverage is None:
        counts = _character_counts(map(_normalizer(kind, lowercase), read_text()))
    if character_coverage is None:
        every = _alphabet(counts, _FULL_COVERAGE)
        count = len(every) + (
            len(_list_continuations(every, lowercase)) if kind == WORDPIECE else 0
        )
        is_small = count <= _SMALL_ALPHABET * vocab_size
        character_coverage = _FULL_COVERAGE if is_small else _PARTIAL_COVERAGE
    if kind == WORDPIECE:
        pieces = _train_wordpiece(
            read_text, counts, vocab_size, lowercase, reserved_pieces, character_coverage
        )
        return TrainedVocabulary(join_pieces(pieces), character_coverage)
    model = train_sentencepiece(
        kind, read_text, vocab_size, lowercase, reserved_pieces, character_coverage
    )
    return TrainedVocabulary(model, character_coverage)


def read_training_documents(
    sources: Sequence[Source],
    options: TextOptions,
    cleaning: CleaningOptions,
    limit_chars: int,
    advance: Callable[[int], None] = lambda stored_bytes: None,
) -> Iterator[list[str]]:
    """Yield documents as sentences, an equal share of `limit_chars` from each source's start.

    They are cleaned like the text of the store, except that duplicates are kept.
    """
    for document in read_equal_shares(sources, options, limit_chars, advance):
        for cleaned in clean_documents([document], cleaning, collections.Counter()):
            yield split_sentences(cleaned, options)


def _train_wordpiece(
    read_text: ReadText,
    counts: collections.Counter[str],
    vocab_size: int,
    lowercase: bool,
    reserved_pieces: int,
    character_coverage: float,
) -> list[str]:
    """Learn WordPiece pieces by merging the most frequent pairs; return them in id order.

    Order: BERT_HEAD, [unused99] and on as in BERT's own list, the characters of the alphabet, their
    ## forms, then merges in the order in which they were found.
    """
    alphabet = _alphabet(counts, character_coverage)
    inner = _list_continuations(alphabet, lowercase)
    unused = range(_BERTS_UNUSED, _BERTS_UNUSED + reserved_pieces)
    head = [*BERT_HEAD, *(f"[unused{i}]" for i in unused)]
    smallest = len(head) + len(alphabet) + len(inner)
    if vocab_size < smallest:
        raise Refused(
            f"--vocab_size is {vocab_size}, too small: BERT's layout takes {len(head)} pieces "
            f"and the {len(alphabet)} characters of the text {smallest - len(head)}; "
            f"give {smallest} or more (BERT: 30522), or a lower --character_coverage"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece({}, unk_token="[UNK]"))
    tokenizer.normalizer = make_wordpiece_normalizer(lowercase)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size - len(head),
        min_frequency=_MIN_PAIR_COUNT,
        show_progress=False,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        # Named here so that they get their ids in this order. The trainer takes them from a hash
        # map otherwise, ties between pairs go by id, and two runs give two vocabularies.
        special_tokens=inner,
    )
    tokenizer.train_from_iterator(read_text(), trainer)
    id_of = tokenizer.get_vocab(with_added_tokens=False)
    learned = sorted(id_of.keys() - set(alphabet) - set(inner), key=id_of.__getitem__)
    pieces = [*head, *alphabet, *inner, *learned]
    if len(pieces) < vocab_size:
        raise Refused(_too_large(vocab_size, len(pieces), character_coverage))
    return pieces


def _normalizer(kind: str, lowercase: bool) -> Callable[[str], str]:
    """Return the function that normalizes text for a kind of vocabulary."""
    if kind == WORDPIECE:
        return make_wordpiece_normalizer(lowercase).normalize_str
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name=_RULES[lowercase])
    return lambda text: str(normalizer.Normalize(text)).replace(WORD_START, " ")


def _character_counts(texts: Iterable[str]) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    for space in [c for c in counts if c.isspace()]:
        del counts[space]
    return counts


def _alphabet(counts: collections.Counter[str], coverage: float) -> list[str]:
    """Return the ASCII that occurs, and the most frequent characters up to `coverage` of the text.

    A capital comes with its small letter: the capitals of umlauts are rare in some books.
    """
    if coverage >= _FULL_COVERAGE:
        return sorted(counts)
    left = counts.total() * coverage
    kept = set()
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left > 0 or char in _ASCII:
            kept.add(char)
        left -= count
    return sorted(char for char in counts if char in kept or char.lower() in kept)


def _list_continuations(alphabet: Iterable[str], lowercase: bool) -> list[str]:
    """Return the ##x pieces of the characters that can continue a word.

    Punctuation and Chinese characters are words of their own.
    """
    normalize = make_wordpiece_normalizer(lowercase).normalize_str
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()
    return [
        "##" + char
        for char in alphabet
        if len(splitter.pre_tokenize_str(normalize(f"a{char}a"))) == 1
    ]


def train_sentencepiece(
    kind: str,
    read_text: ReadText,
    vocab_size: int,
    lowercase: bool,
    reserved_pieces: int = 0,
    character_coverage: float = _FULL_COVERAGE,
) -> bytes:
    """Learn a model of UNIGRAM or BPE; return the bytes of its file.

    Ids: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, [unused0] and on, then the pieces.
    Lower-casing is the model's own normalization (nmt_nfkc_cf, which keeps accents), so whoever
    loads the file gets it right.
    """
    model = io.BytesIO()
    raised: list[BaseException] = []
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=_keep_error(_cut_long(read_text()), raised),
            model_writer=model,
            model_type=kind,
            # With fewer, SentencePiece's error names a line of its source.
            vocab_size=max(vocab_size, _SENTENCEPIECE_SPECIAL),
            character_coverage=character_coverage,
            required_chars=_ASCII.translate(_NO_CAPITALS) if lowercase else _ASCII,
            normalization_rule_name=_RULES[lowercase],
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece="[PAD]",
            unk_piece="[UNK]",
            bos_piece="[CLS]",
            eos_piece="[SEP]",
            control_symbols=["[MASK]", *(f"[unused{i}]" for i in range(reserved_pieces))],
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=_SENTENCEPIECE_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if raised:
            raise raised[0] from None
        raise Refused(_sentencepiece_problem(str(error), vocab_size, character_coverage)) from error
    return model.getvalue()


def _cut_long(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts, longer ones in parts of _MAX_SENTENCE_BYTES: a script may mark no sentences."""
    for text in (text.replace(_RESERVED, " ") for text in texts):
        if len(text.encode(errors="replace")) <= _MAX_SENTENCE_BYTES:
            yield text
        else:
            part_chars = _MAX_SENTENCE_BYTES // 4  # a character has four bytes at most
            yield from (text[i : i + part_chars] for i in range(0, len(text), part_chars))


def _keep_error(texts: Iterable[str], raised: list[BaseException]) -> Iterator[str]:
    """Yield texts; keep an exception that reading raises, as C++ passes only its message on."""
    try:
        yield from texts
    except BaseException as error:  # KeyboardInterrupt included
        raised.append(error)
        raise


def _sentencepiece_problem(message: str, vocab_size: int, character_coverage: float) -> str:
    """Describe an error of the trainer in this project's words."""
    if limit := re.search(r"Vocabulary size too high.*?<= (\d+)", message):
        return _too_large(vocab_size, int(limit[1]), character_coverage)
    if needed := re.search(r"required_chars\D*\d+ vs (\d+)", message):
        return (
            f"--vocab_size is {vocab_size}, too small: the special pieces and the characters of "
            f"the text take {needed[1]}; give more than that (ALBERT: 30000), or a lower "
            "--character_coverage"
        )
    return f"SentencePiece could not train {vocab_size} pieces on this text: {message.strip()}"


def _too_large(vocab_size: int, most: int, character_coverage: float) -> str:
    # Names the coverage, as its default may differ for a smaller vocabulary.
    return (
        f"--vocab_size is {vocab_size}, but the text yields no more than {most} pieces; "
        f"give --vocab_size={most} or less with --character_coverage={character_coverage}, or more "
        "text"
    )
