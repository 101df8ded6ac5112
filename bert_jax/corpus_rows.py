"""The corpus and the phases of a pre-training run, as labelled lines for the screen."""

from collections.abc import Sequence

from bert_jax.config import Config, Phase
from bert_jax.phase_facts import PhaseFacts
from data_pipeline.store import EXAMPLES, HELDOUT, TRAIN, Store


def corpus_rows(
    config: Config, store: Store, phases: Sequence[PhaseFacts]
) -> list[tuple[str, str]]:
    """Labels and texts of what is pre-trained on: the corpus, and the phases."""
    corpus, heldout = _corpus(store)
    rows = [
        ("corpus", f"{corpus} in {store.directory}"),
        ("", f"{heldout} are held out, never trained on"),
    ]
    for index, (phase, facts) in enumerate(zip(config.phases, phases, strict=True)):
        rows += [
            (f"phase {index}", _lengths(phase, facts, config.data.packed_examples)),
            ("", _a_step(phase, facts)),
            ("", _heldout(facts)),
        ]
    return rows


def _corpus(store: Store) -> tuple[str, str]:
    """What the training split holds, and what is held out."""
    if store.kind == EXAMPLES:
        train, heldout = (store.manifest["splits"][name]["examples"] for name in (TRAIN, HELDOUT))
        return f"{train:,} ready-made examples", f"{heldout:,} more examples"
    text = f"{store.train.documents:,} documents, {store.train.tokens:,} tokens"
    return text, f"{store.heldout.documents:,} more documents"


def _lengths(phase: Phase, facts: PhaseFacts, packed_examples: int) -> str:
    parts = f" in {phase.micro_batches} parts" if phase.micro_batches > 1 else ""
    rows, at_most = "sequences", ""
    if packed_examples > 1:
        rows, at_most = "rows", f", up to {packed_examples} examples in a row"
    return (
        f"{phase.steps:,} steps of {phase.batch_size:,} {rows}{parts} of {phase.seq_len}"
        f"{at_most}, {facts.epochs:,.1f} epochs"
    )


def _a_step(phase: Phase, facts: PhaseFacts) -> str:
    share = facts.tokens_per_step / (phase.batch_size * phase.seq_len)
    return (
        f"a step sees about {facts.examples_per_step:,.0f} examples, "
        f"{facts.tokens_per_step:,.0f} tokens ({share:.0%} of its positions), and masks "
        f"{facts.predictions_per_step:,.0f} of them"
    )


def _heldout(facts: PhaseFacts) -> str:
    text = f"held out: {facts.heldout_examples:,} examples"
    scores = []
    if "unigram_mlm_loss" in facts.baseline:
        scores.append(f"MLM loss {facts.baseline['unigram_mlm_loss']:.4f} (unigram)")
    if "majority_nsp_accuracy" in facts.baseline:
        scores.append(f"NSP accuracy {facts.baseline['majority_nsp_accuracy']:.1%} (majority)")
    return f"{text}; without context {', '.join(scores)}" if scores else text
