"""The numbers of a store's health in words, for the screen and the page alike."""

from data_pipeline.health import Health
from data_pipeline.lengths import Lengths
from data_pipeline.lost_characters import lost_in_words
from data_pipeline.repeats import Repeats
from data_pipeline.row_health import PACKED_EXAMPLES
from data_pipeline.store import HELDOUT, TRAIN


def counts(health: Health) -> list[tuple[str, list[str]]]:
    """What is counted, and the count in the training and the held-out split."""
    splits = [health.splits[name] for name in (TRAIN, HELDOUT)]
    rows = [
        ("documents", [f"{split.documents:,}" for split in splits]),
        ("sentences", [f"{split.sentences:,}" for split in splits]),
        ("tokens", [f"{split.tokens:,}" for split in splits]),
        ("unknown tokens", [f"{split.unknown_tokens / split.tokens:.2%}" for split in splits]),
    ]
    if health.rows:
        pair_counts = (health.rows.epoch_rows, health.rows.heldout_rows)
        rows.append((f"pairs of {health.seq_len} tokens", [f"{one:,}" for one in pair_counts]))
    for name, repeats in (
        ("documents", health.copies.documents),
        ("sentences", health.copies.sentences),
    ):
        rows.append(
            (
                f"copies among {name}",
                [_repeats_in_words(repeats[split]) for split in (TRAIN, HELDOUT)],
            )
        )
    rows.append(
        ("documents in training, too", ["", _repeats_in_words(health.copies.leaked_documents)])
    )
    rows.append(
        ("sentences in training, too", ["", _repeats_in_words(health.copies.leaked_sentences)])
    )
    return rows


def _repeats_in_words(repeats: Repeats) -> str:
    """5 (1.2%), or the share alone where it is of a sample."""
    if repeats.looked_at < repeats.total:
        return f"{repeats.share:.1%} of {repeats.looked_at:,} sampled"
    return f"{repeats.copies:,} ({repeats.share:.1%})" if repeats.copies else "0"


def lengths(health: Health) -> list[tuple[str, Lengths]]:
    """The distributions, each with what is counted of what: those of the training split."""
    train = health.splits[TRAIN]
    rows = [
        ("sentences a document", train.document_sentences),
        ("tokens a document", train.document_tokens),
        ("tokens a sentence", train.sentence_tokens),
    ]
    if health.rows:
        rows += [("tokens a row", health.rows.tokens), ("masks a row", health.rows.masks)]
    return rows


def facts(health: Health) -> list[tuple[str, str]]:
    """Everything else, as pairs of a word and a line."""
    vocabulary, pieces = health.manifest["vocabulary"], health.pieces
    case = "lower case" if vocabulary["lowercase"] else "case kept"
    lines = [
        ("vocabulary", f"{vocabulary['kind']}, {pieces.size:,} pieces, {case}"),
        ("", f"{pieces.used:,} pieces occur; {pieces.pieces_per_word:.2f} pieces a word"),
    ]
    if lost := lost_in_words(health.manifest):
        lines.append(("characters", lost))
    lines.append(("rows", _sampled_rows(health)))
    if health.rows:
        rows = health.rows
        lines += [
            ("", f"{rows.random_share:.1%} of the next sentences are random (half is aimed at)"),
            (
                "",
                f"{rows.masks.mean:.1f} masks a row, {rows.padding_share:.1%} padding; "
                f"{rows.packed_padding_share:.1%} with {PACKED_EXAMPLES} examples packed",
            ),
        ]
    dropped = _in_words(health.manifest["dropped"])
    lines.append(("dropped", "; ".join(dropped) if dropped else "nothing"))
    # Stores of builds that did not look for them lack these keys.
    changed = _in_words(health.manifest.get("changed", {}))
    if changed:
        lines.append(("changed", "; ".join(changed)))
    near = health.manifest.get("near_duplicates", {})
    if any(near.values()):
        lines.append(
            ("near copies", f"{near['documents']:,} documents in {near['clusters']:,} clusters")
        )
    lines.append(("store", f"{health.store}  ({health.manifest['digest'][:12]})"))
    return lines


def _sampled_rows(health: Health) -> str:
    """How many rows were looked at, and that they are a sample where they are."""
    rows = health.rows
    if rows is None:
        return "none: a split has one document, and a random next sentence comes from another"
    if rows.sampled == rows.epoch_rows:
        return f"all {rows.epoch_rows:,} of an epoch at {rows.seq_len} tokens"
    return (
        f"a sample: {rows.sampled:,} of the {rows.epoch_rows:,} of an epoch at "
        f"{rows.seq_len} tokens"
    )


def _in_words(counts: dict[str, int]) -> list[str]:
    """What was counted, zeros left out, by reasons such as documents_without_sentences."""
    return [f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items() if count]
