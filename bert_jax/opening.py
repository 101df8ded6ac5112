"""What a run is made of, as the first block on the screen."""

from collections.abc import Sequence
from typing import Any

import jax

from bert_jax import attention, layer_rates
from bert_jax import config as config_lib
from bert_jax.changes import Change
from bert_jax.config import Config, Phase
from bert_jax.models.bert import Model
from bert_jax.phase_facts import PhaseFacts
from bert_jax.placed_batches import BATCHES_AHEAD
from bert_jax.profiling import Window
from bert_jax.programs import compiles_ahead
from data_pipeline.store import EXAMPLES, HELDOUT, TRAIN, Store


def opening_rows(
    config: Config,
    mesh: jax.sharding.Mesh,
    model: Model,
    store: Store,
    phases: Sequence[PhaseFacts],
    done: int | None,
    profiled: Window | None,
    changes: Sequence[Change] = (),
) -> list[tuple[str, str]]:
    """Labels and texts: devices, model, corpus, phases, what the host does, where the run begins.

    done is the step of the newest checkpoint, None for a run from scratch.
    """
    axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
    shape = config.model
    total = config_lib.total_steps(config)
    start = "from scratch" if done is None else f"resuming at step {done:,} of {total:,}"
    if done == total:
        start = f"finished before, at step {total:,}: evaluating once more"
    corpus, heldout = _corpus(store)
    rows = [
        ("devices", f"{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}"),
        (
            "model",
            f"{model.parameter_count:,} parameters: {shape.num_hidden_layers} layers of "
            f"{shape.hidden_size}, {shape.vocab_size:,} pieces; matmuls in {model.dtype}",
        ),
        ("attention", attention_in_words(config, mesh, model)),
        ("corpus", f"{corpus} in {store.directory}"),
        ("", f"{heldout} are held out, never trained on"),
    ]
    for index, (phase, facts) in enumerate(zip(config.phases, phases, strict=True)):
        rows += [
            (f"phase {index}", _lengths(phase, facts, config.data.packed_examples)),
            ("", _a_step(phase, facts)),
            ("", _heldout(facts)),
        ]
    if rates := layer_rates.in_words(config.optim, shape.num_hidden_layers, total):
        rows.append(("rates", rates))
    rows.append(("host", _host(len(phases) > 1 and compiles_ahead(mesh))))
    if profiled is not None:
        rows.append(("profile", f"steps {profiled.first:,} to {profiled.last:,} will be traced"))
    for number, change in enumerate(changes):
        rows.append(("" if number else "changed", change.in_words()))
    return [*rows, ("steps", f"{total:,}, {start}")]


def _host(compiles_next_phase: bool) -> str:
    """What works beside the steps."""
    settings: Any = jax.config
    folder = settings.jax_compilation_cache_dir
    kept = f"compiled programs are kept in {folder}" if folder else "no compiled program is kept"
    ahead = ", the next phase is compiled before one ends" if compiles_next_phase else ""
    return f"{BATCHES_AHEAD} batches lie ready on the devices{ahead}; {kept}"


def attention_in_words(config: Config, mesh: jax.sharding.Mesh, model: Model) -> str:
    """Which implementation the phases take, and why it is the plain one.

    Raises:
      ValueError: the kernel is demanded and does not take a phase.
    """
    shape = config.model
    words_at = {
        phase.seq_len: attention.choose(
            config.compute.attention,
            mesh.devices.flat[0].device_kind,
            phase.seq_len,
            shape.num_attention_heads,
            shape.hidden_size // shape.num_attention_heads,
            model.dtype,
            mesh.shape["model"],
        ).words
        for phase in config.phases
    }
    if len(set(words_at.values())) == 1:
        return next(iter(words_at.values()))
    return "; ".join(f"at {seq_len} {words}" for seq_len, words in words_at.items())


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
