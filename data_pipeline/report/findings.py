"""Find what looks wrong about a corpus: each finding with its number and how to fix it."""

import math
from collections.abc import Iterator
from typing import Any

from data_pipeline.corpus.selection import MIN_SPLIT_DOCUMENTS
from data_pipeline.report.health import Copies, Health, PieceHealth
from data_pipeline.report.rows import RowHealth
from data_pipeline.store import HELDOUT, TRAIN
from data_pipeline.store.findings import (
    find_document_copies,
    find_in_words,
    find_stripped_marks,
    find_unknown_tokens,
)

FEW_DOCUMENTS = 100  # documents in the training split
FEW_HELDOUT_ROWS = 1000  # an accuracy of 50% on this many rows is known to about 3%
MANY_LOST_CHARACTERS = 0.001  # share of the tokens
MANY_CUT = 0.05  # share of the sentences, or of their tokens
MANY_LONG_WORD_CHARACTERS = 0.01  # share of the characters
MANY_HTML_MARKS = 0.0005  # share of the tokens
MANY_ONE_SENTENCE_DOCUMENTS = 0.3
MUCH_PADDING = 0.25
BALANCE = 0.05  # how far the share of random next sentences may be from a half
MANY_DOCUMENT_COPIES, MANY_SENTENCE_COPIES = 0.01, 0.1
MANY_LEAKED_SENTENCES = 0.2  # short sentences such as headings recur in any text
MIN_USED_PIECES = 0.5
OFTEN_TIMES, OFTEN_SHARE = 1000, 0.01  # a sentence that occurs so often, or is so much of a corpus


def find_in_build(manifest: dict[str, Any]) -> Iterator[str]:
    """Find what looks wrong about a corpus by the manifest of its build alone."""
    documents, sentences = add_splits(manifest, "documents"), add_splits(manifest, "sentences")
    tokens, single = add_splits(manifest, "tokens"), add_splits(manifest, "one_sentence_documents")
    heldout = manifest["splits"][HELDOUT]["documents"]
    if has_no_pairs(manifest):
        yield (
            f"{single / documents:.0%} of the documents have one sentence: next-sentence pairs "
            "need two. Is there a blank line after every line, are several sentences on a line "
            "with --sentences=lines, or has the script no full stop (Thai, Lao)? See "
            "--documents and --sentences; or train without pairs."
        )
    yield from _find_long_words(manifest)
    marks = manifest["counted"].get("html_marks", 0)
    if marks > MANY_HTML_MARKS * tokens:
        yield (
            f"the text has {marks:,} tags or escapes of HTML such as <br> or &amp;, which are "
            "learned as words: turn them into spaces and characters first, as an HTML extractor "
            "or html.unescape of Python does."
        )
    yield from find_unknown_tokens(manifest)
    lost = manifest["lost_characters"]["occurrences"]
    coverage = manifest["build"].get("character_coverage") or 1
    if lost > MANY_LOST_CHARACTERS * tokens and coverage < 1:
        yield (
            f"the vocabulary was trained without characters that the text has {lost:,} times, and "
            "words with one of them are unknown: --character_coverage=1 gives each a piece."
        )
    if tokens > 128 * sentences:
        yield (
            f"a sentence has {tokens / sentences:.0f} tokens on average, more than a sequence of "
            "128 holds. Are they paragraphs? --sentences=split cuts them, but not in Thai or "
            "Lao: there put each sentence on a line, and take --sentences=lines."
        )
    dropped = manifest["dropped"].get("documents_without_sentences", 0)
    if dropped > 0.1 * (documents + dropped):
        share = dropped / (documents + dropped)
        yield (
            f"{share:.0%} of the documents had no sentence and were dropped. Redirects (a title "
            "and no text) are harmless; otherwise look for the text in another field or file."
        )
    if not can_be_trained_on(manifest):
        yield (
            f"{heldout:,} of {documents:,} documents is held out and {MIN_SPLIT_DOCUMENTS} are "
            "needed: a random next sentence comes from another document of the split, so training "
            "with --config.data.segments=nsp refuses this store. Give 4 or more documents that "
            "differ in more than case, white space and digits (--documents says where one ends); "
            "a larger --holdout cannot hold out more of these."
        )
    elif not 0.5 < heldout / (documents * manifest["holdout"]) < 2:
        yield (
            f"{heldout:,} of {documents:,} documents are held out, {heldout / documents:.2%} where "
            f"--holdout asked for {manifest['holdout']:.2%}: documents are few, or many are alike "
            "but for case, white space and digits, which go to one side together."
        )


def has_no_pairs(manifest: dict[str, Any]) -> bool:
    """Return whether too many documents have only one sentence, and so no next sentence."""
    single = add_splits(manifest, "one_sentence_documents")
    return single > MANY_ONE_SENTENCE_DOCUMENTS * add_splits(manifest, "documents")


def _find_long_words(manifest: dict[str, Any]) -> Iterator[str]:
    counted = manifest["counted"]
    share = counted.get("long_word_characters", 0) / max(1, counted.get("characters", 0))
    if share >= MANY_LONG_WORD_CHARACTERS:
        yield (
            f"{share:.1%} of the characters are lost: they are in words too long for the "
            "vocabulary, which WordPiece makes unknown, as in scripts without spaces. "
            "--train_vocab=unigram loses none, nor does byte_bpe with --lowercase=false."
        )


def find_in_store(health: Health) -> list[str]:
    """Find what looks wrong about a store: what its build found, then what reading it shows."""
    findings = [*find_in_build(health.manifest), *_find_in_text(health)]
    if health.rows:
        heldout_share = health.splits[HELDOUT].tokens / health.pieces.tokens
        findings += _find_in_rows(health.rows, heldout_share)
    findings += _find_copies(health.copies, health.splits[TRAIN].sentences)
    return [*findings, *_find_in_vocabulary(health.pieces)]


def _find_in_text(health: Health) -> Iterator[str]:
    train = health.splits[TRAIN]
    long, cut = train.long_sentences / train.sentences, train.cut_tokens / train.tokens
    # If the mean exceeds 128, the build has reported paragraphs already.
    if train.sentence_tokens.mean <= 128 and max(long, cut) > MANY_CUT:
        yield (
            f"{long:.1%} of the sentences are longer than the {health.text_tokens} tokens of text "
            f"in a sequence of {health.seq_len}, and are cut: {cut:.0%} of the tokens are left "
            "out. Are they paragraphs? --sentences=split cuts them at their ends; or train at a "
            "larger length."
        )
    if MIN_SPLIT_DOCUMENTS <= train.documents < FEW_DOCUMENTS:
        yield (
            f"the training split has {train.documents:,} documents: random next sentences come "
            "from few others. If there are more in the text, --documents says where one ends."
        )


def _find_in_rows(rows: RowHealth, heldout_share: float) -> Iterator[str]:
    by_chance = 2 / rows.sampled**0.5  # four standard errors of the share
    if abs(rows.random_share - 0.5) > max(BALANCE, by_chance):
        yield (
            f"{rows.random_share:.0%} of the next sentences are random where half should be: a "
            "document of one sentence, or a sentence that fills a sequence, has none that follows. "
            "Join documents that belong together, or see --documents and --sentences."
        )
    if rows.padding_share > MUCH_PADDING:
        yield (
            f"{rows.padding_share:.0%} of a row of {rows.seq_len} is padding, which costs as much "
            f"as text: training with --config.data.packed_examples={rows.packed_examples} leaves "
            f"{rows.packed_padding_share:.0%}."
        )
    if rows.heldout_rows < FEW_HELDOUT_ROWS:
        enough = heldout_share * FEW_HELDOUT_ROWS / rows.heldout_rows
        or_share = f", or with --holdout={_round_up(enough):g}" if enough <= 0.5 else ""
        yield (
            f"the held-out split gives {rows.heldout_rows:,} pairs of {rows.seq_len} tokens: too "
            f"few to tell two models apart. Build the store again from more text{or_share}."
        )


def _round_up(share: float) -> float:
    """Round a share up to one digit, at most a half: 0.05 for 0.043."""
    places = -math.floor(math.log10(share))
    return min(0.5, round(math.ceil(share * 10**places) / 10**places, places))


def _find_copies(copies: Copies, train_sentences: int) -> Iterator[str]:
    sentences = copies.sentences[TRAIN].share
    yield from find_document_copies(copies.documents[TRAIN].share, MANY_DOCUMENT_COPIES)
    if sentences > MANY_SENTENCE_COPIES:
        yield (
            f"{sentences:.0%} of the training sentences are exact copies of an earlier one. "
            "Look at those that repeat most often. If they are menus, licenses or tables, "
            "--drop_duplicate_lines=true drops all lines but the first of equal ones."
        )
    leaked = copies.leaked_documents
    if leaked.copies:
        yield (
            f"{leaked.copies:,} of {leaked.looked_at:,} held-out documents also stand in the "
            "training split, token for token: the model has seen what it is measured on. Build the "
            "store again with --normalize=nfc and --near_duplicates=together."
        )
    leaked_share = copies.leaked_sentences.share
    if leaked_share > MANY_LEAKED_SENTENCES:
        yield (
            f"{leaked_share:.0%} of the held-out sentences also stand in the training split, so "
            "held-out losses are too low. If documents are near copies of each other, "
            "--near_duplicates=together keeps them on one side; if they are parts of one text, "
            "--documents says where it ends."
        )
    for most in copies.repeated[:1]:
        share = most.count / train_sentences
        if most.count >= OFTEN_TIMES or (most.count >= 10 and share > OFTEN_SHARE):
            words = most.text if len(most.text) <= 60 else most.text[:60] + "..."
            yield (
                f"one sentence occurs {most.count:,} times, {share:.1%} of the training sentences: "
                f"'{words}'. If it is boilerplate on a line of its own, "
                "--drop_duplicate_lines=true drops all but the first."
            )


def _find_in_vocabulary(pieces: PieceHealth) -> Iterator[str]:
    if pieces.used < MIN_USED_PIECES * pieces.size:
        yield (
            f"{pieces.used:,} of the {pieces.size:,} pieces of the vocabulary occur: the rest are "
            "parameters that learn nothing. Train a smaller one on this text with --train_vocab "
            "and --vocab_size."
        )
    yield from find_in_words(pieces.tokens, pieces.words)
    yield from find_stripped_marks(pieces.stripped, pieces.tokens)


def can_be_trained_on(manifest: dict[str, Any]) -> bool:
    """Return whether both splits have a document to take a random next sentence from."""
    splits = manifest["splits"].values()
    return min(split["documents"] for split in splits) >= MIN_SPLIT_DOCUMENTS


def add_splits(manifest: dict[str, Any], key: str) -> int:
    """Add up a count of the manifest over both splits."""
    return sum(split[key] for split in manifest["splits"].values())
