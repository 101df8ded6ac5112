"""What looks wrong about a corpus, in words: each with its number and what to do about it."""

from typing import Any

from data_pipeline.holdout import MIN_SPLIT_DOCUMENTS
from data_pipeline.store import HELDOUT


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
            "refuses this store. Give 4 or more documents that differ (--documents says where one "
            "ends); of these a larger --holdout cannot hold out more."
        )
    elif not 0.5 < heldout / (documents * manifest["holdout"]) < 2:
        found.append(
            f"{heldout:,} of {documents:,} documents are held out, {heldout / documents:.2%} where "
            f"--holdout asked for {manifest['holdout']:.2%}: with so few documents the hashes "
            f"cannot come nearer, and {MIN_SPLIT_DOCUMENTS} are the fewest that training takes."
        )
    return found


def can_be_trained_on(manifest: dict[str, Any]) -> bool:
    """Whether both splits have a document to take a random next sentence from."""
    splits = manifest["splits"].values()
    return min(split["documents"] for split in splits) >= MIN_SPLIT_DOCUMENTS


def total(manifest: dict[str, Any], key: str) -> int:
    """A count of the manifest over both splits."""
    return sum(split[key] for split in manifest["splits"].values())
