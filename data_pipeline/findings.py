"""What looks wrong about a corpus, in words: each with its number and what to do about it."""

import math
from typing import Any

from data_pipeline.health import Copies, Health, PieceHealth, Repeated
from data_pipeline.holdout import MIN_SPLIT_DOCUMENTS
from data_pipeline.row_health import PACKED_EXAMPLES, RowHealth
from data_pipeline.store import HELDOUT, TRAIN

FEW_DOCUMENTS = 100  # of the training split
FEW_HELDOUT_ROWS = 1000  # an accuracy near 50% of so many is known to about 3%
MANY_LOST_CHARACTERS = 0.001  # of the tokens
MANY_LONG_SENTENCES = 0.05
MUCH_PADDING = 0.25
BALANCE = 0.05  # how far the share of random next sentences may be from a half
MANY_DOCUMENT_COPIES, MANY_SENTENCE_COPIES = 0.01, 0.1
MANY_LEAKED_SENTENCES = 0.2  # short ones, headings above all, recur in any text
LEAST_USED_PIECES = 0.5
MOST_PIECES_PER_WORD = 2.0
OFTEN_TIMES, OFTEN_SHARE = 1000, 0.01  # a sentence that occurs so often, or is so much of a corpus


def build_findings(manifest: dict[str, Any]) -> list[str]:
    """What looks wrong about a corpus, each with its number and what to do about it."""
    found = []
    documents, sentences, tokens, single, heldout = (
        total(manifest, "documents"),
        total(manifest, "sentences"),
        total(manifest, "tokens"),
        total(manifest, "one_sentence_documents"),
        manifest["splits"][HELDOUT]["documents"],
    )
    if single > 0.3 * documents:
        found.append(
            f"{single / documents:.0%} of the documents have one sentence: next-sentence pairs "
            "need two. Is there a blank line after every line, or are several sentences on a line "
            "with --sentences=lines? See --documents and --sentences."
        )
    if manifest["unknown_token_share"] > 0.01:
        found.append(
            f"{manifest['unknown_token_share']:.1%} of the tokens are unknown to the vocabulary: "
            "it was made for other text. Train one with --train_vocab."
        )
    lost = manifest.get("lost_characters", {}).get("occurrences", 0)  # older builds counted none
    if lost > MANY_LOST_CHARACTERS * tokens and (manifest["build"]["character_coverage"] or 1) < 1:
        found.append(
            f"the vocabulary was trained without characters that the text has {lost:,} times, and "
            "words with one of them are unknown: --character_coverage=1 gives each a piece."
        )
    if tokens > 128 * sentences:
        found.append(
            f"a sentence has {tokens / sentences:.0f} tokens on average, more than a sequence of "
            "128 holds. Are they paragraphs? --sentences=split cuts them, --language says how."
        )
    dropped = manifest["dropped"]["documents_without_sentences"]
    if dropped > 0.1 * (documents + dropped):
        found.append(
            f"{dropped / (documents + dropped):.0%} of the documents had no sentence and were "
            "dropped. Redirects (a title and no text) are harmless; otherwise look for the text "
            "in another field or file."
        )
    if not can_be_trained_on(manifest):
        found.append(
            f"{heldout:,} of {documents:,} documents is held out and {MIN_SPLIT_DOCUMENTS} are "
            "needed: a random next sentence comes from another document of the split, so training "
            "refuses this store. Give 4 or more documents that differ in more than case, white "
            "space and digits (--documents says where one ends); of these a larger --holdout "
            "cannot hold out more."
        )
    elif not 0.5 < heldout / (documents * manifest["holdout"]) < 2:
        found.append(
            f"{heldout:,} of {documents:,} documents are held out, {heldout / documents:.2%} where "
            f"--holdout asked for {manifest['holdout']:.2%}: their hashes come no nearer where "
            f"documents are few ({MIN_SPLIT_DOCUMENTS} are the fewest that training takes), or "
            "where many are alike but for case, white space and digits, which go to one side "
            "together."
        )
    return found


def findings(health: Health) -> list[str]:
    """What looks wrong about a store: what its build found, and what shows once it is read."""
    train = health.splits[TRAIN]
    found = build_findings(health.manifest)
    is_of_sentences = train.sentence_tokens.mean <= 128  # else the build's findings say so
    if is_of_sentences and train.long_sentences > MANY_LONG_SENTENCES * train.sentences:
        found.append(
            f"{train.long_sentences / train.sentences:.0%} of the sentences are longer than the "
            f"{health.text_tokens} tokens of text in a sequence of {health.seq_len}, and are cut. "
            "Are they paragraphs? --sentences=split cuts them at their ends; or train at a larger "
            "length."
        )
    if train.documents < FEW_DOCUMENTS:
        found.append(
            f"the training split has {train.documents:,} documents: random next sentences come "
            "from few others. If there are more in the text, --documents says where one ends."
        )
    if health.rows:
        found += _row_findings(health.rows, health.manifest["holdout"])
    found += _copy_findings(health.copies)
    found += _repeated_findings(health.copies.repeated, train.sentences)
    found += _piece_findings(health.pieces)
    return found


def _row_findings(rows: RowHealth, holdout: float) -> list[str]:
    found = []
    by_chance = 2 / rows.sampled**0.5  # four standard errors of the share
    if abs(rows.random_share - 0.5) > max(BALANCE, by_chance):
        found.append(
            f"{rows.random_share:.0%} of the next sentences are random where half should be: a "
            "document of one sentence, or a sentence that fills a sequence, has none that follows. "
            "Join documents that belong together, or see --documents and --sentences."
        )
    if rows.padding_share > MUCH_PADDING:
        found.append(
            f"{rows.padding_share:.0%} of a row of {rows.seq_len} is padding, which costs as much "
            f"as text: --config.data.packed_examples={PACKED_EXAMPLES} of training leaves "
            f"{rows.packed_padding_share:.0%}."
        )
    if rows.heldout_rows < FEW_HELDOUT_ROWS:
        enough = holdout * FEW_HELDOUT_ROWS / rows.heldout_rows
        or_share = f", or with --holdout={_rounded_up(enough):g}" if enough <= 0.5 else ""
        found.append(
            f"the held-out split gives {rows.heldout_rows:,} pairs of {rows.seq_len} tokens: too "
            f"few to tell two models apart. Build the store again from more text{or_share}."
        )
    return found


def _rounded_up(share: float) -> float:
    """A share to one digit, at most a half: 0.05 for 0.043."""
    places = -math.floor(math.log10(share))
    return min(0.5, round(math.ceil(share * 10**places) / 10**places, places))


def _copy_findings(copies: Copies) -> list[str]:
    found = []
    documents, sentences = copies.documents[TRAIN], copies.sentences[TRAIN]
    if documents.share > MANY_DOCUMENT_COPIES:
        found.append(
            f"{documents.share:.1%} of the training documents are exact copies of an earlier one: "
            "the model sees them so much more often. --drop_duplicate_documents=true leaves them "
            "out."
        )
    if sentences.share > MANY_SENTENCE_COPIES:
        found.append(
            f"{sentences.share:.0%} of the training sentences are exact copies of an earlier one. "
            "Look at those that repeat most often. If they are menus, licences or tables, "
            "--drop_duplicate_lines=true leaves out all lines but the first of equal ones."
        )
    leaked = copies.leaked_documents
    if leaked.copies:
        found.append(
            f"{leaked.copies:,} of {leaked.looked_at:,} held-out documents also stand in the "
            "training split: the model has seen what it is measured on. Build the store again "
            "with --drop_duplicate_documents=true."
        )
    if copies.leaked_sentences.share > MANY_LEAKED_SENTENCES:
        found.append(
            f"{copies.leaked_sentences.share:.0%} of the held-out sentences also stand in the "
            "training split, so held-out losses are too low. If documents are near copies of each "
            "other, --near_duplicates=together keeps them on one side; if they are parts of one "
            "text, --documents says where it ends."
        )
    return found


def _repeated_findings(repeated: tuple[Repeated, ...], sentences: int) -> list[str]:
    if not repeated:
        return []
    most = repeated[0]
    is_often = most.count >= OFTEN_TIMES or (
        most.count >= 10 and most.count > OFTEN_SHARE * sentences
    )
    if not is_often:
        return []
    words = most.text if len(most.text) <= 60 else most.text[:60] + "..."
    return [
        f"one sentence occurs {most.count:,} times, {most.count / sentences:.1%} of the training "
        f"sentences: '{words}'. If it is boilerplate on a line of its own, "
        "--drop_duplicate_lines=true leaves out all but the first."
    ]


def _piece_findings(pieces: PieceHealth) -> list[str]:
    found = []
    if pieces.used < LEAST_USED_PIECES * pieces.size:
        found.append(
            f"{pieces.used:,} of the {pieces.size:,} pieces of the vocabulary occur: the rest are "
            "parameters that learn nothing. Train a smaller one on this text with --train_vocab "
            "and --vocab_size."
        )
    if pieces.pieces_per_word > MOST_PIECES_PER_WORD:
        found.append(
            f"a word is cut into {pieces.pieces_per_word:.1f} pieces on average: the vocabulary "
            "was made for other text, or is too small. Train one with --train_vocab, or a larger "
            "one with --vocab_size. (Where words have no spaces between them, this says nothing.)"
        )
    return found


def can_be_trained_on(manifest: dict[str, Any]) -> bool:
    """Whether both splits have a document to take a random next sentence from."""
    splits = manifest["splits"].values()
    return min(split["documents"] for split in splits) >= MIN_SPLIT_DOCUMENTS


def total(manifest: dict[str, Any], key: str) -> int:
    """A count of the manifest over both splits."""
    return sum(split[key] for split in manifest["splits"].values())
