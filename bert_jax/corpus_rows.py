"""The corpus and the phases of a pre-training run, as labelled lines for the screen."""

from collections.abc import Sequence

from bert_jax.config import Config, Phase
from bert_jax.phase_facts import PhaseFacts
from data_pipeline.store import EXAMPLES, HELDOUT, TRAIN, Store

MANY_EPOCHS = 256  # from here on repeating text costs quality, as below
PAPER_EPOCHS = 40  # Devlin et al. 2019, appendix A.2


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
    return [*rows, *too_many_epochs(config, [facts.epochs for facts in phases])]


def too_many_epochs(config: Config, epochs: Sequence[float]) -> list[tuple[str, str]]:
    """Warn where a run sees its text more often than is of use, and say what to do; else nothing.

    epochs are those of each phase over the training split.

    Source: Raffel et al. 2020, table 9, where a masked objective saw parts of its text again and
    again: of 83.28 points of GLUE 64 passes left 82.87, 256 left 82.62, 1,024 left 79.55, 4,096
    left 76.34. For models that predict every word, where a pass shows each word as a target and not
    15% of them, Muennighoff et al. 2023 find little use of more than 40 passes.
    """
    passes = sum(epochs)
    if passes <= MANY_EPOCHS:
        return []
    share = PAPER_EPOCHS / passes
    flags = [_scaled("optim.warmup_steps", config.optim.warmup_steps, share, least=0)]
    for index, phase in enumerate(config.phases):
        flags.append(_scaled(f"phases[{index}].steps", phase.steps, share, least=1))
        name = f"phases[{index}].restart_warmup_steps"
        flags.append(_scaled(name, phase.restart_warmup_steps, share, least=0))
    return [
        (
            "! epochs",
            f"{passes:,.0f} passes over the same text. Masked models lose little by 256 passes "
            "and much by 1,024 (Raffel et al. 2020, table 9: 0.7 and 3.7 points of GLUE); BERT's "
            f"paper made {PAPER_EPOCHS}. For {PAPER_EPOCHS} take {1 / share:,.0f} times as much "
            "text, or fewer steps, and on so little text a small model, such as "
            "configs/quickstart.py:",
        ),
        ("", " ".join(flag for flag in flags if flag)),
    ]


def _scaled(name: str, steps: int, share: float, least: int) -> str:
    """The flag for a share of so many steps; empty where there are none."""
    return f"'--config.{name}={max(least, round(steps * share))}'" if steps else ""


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
