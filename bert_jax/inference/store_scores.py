"""Score a checkpoint on a store, next to models without context."""

import dataclasses

import jax

from bert_jax.config import predictions_for
from bert_jax.inference.batches import check_finite
from bert_jax.interop.pretrained import PlacedModel
from bert_jax.logging.console import Screen
from bert_jax.parallel import mesh
from bert_jax.train_step import metrics
from bert_jax.train_step import step as step_lib
from bert_jax.train_step.objectives import CAUSAL, MLM, MLM_NSP, PERMUTATION
from bert_jax.trainer import baselines
from bert_jax.trainer.feed import describe_store, take_single_pass
from data_pipeline.io import Refused
from data_pipeline.sampling import batches as pretrain
from data_pipeline.sampling.stream import open_examples
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.store import HELDOUT, Store


@dataclasses.dataclass(frozen=True)
class ScoredRows:
    """Select the examples of a store to score."""

    store: Store
    split: str  # train or heldout
    options: PretrainOptions
    seq_len: int
    examples: int  # maximum number, from the start of the split's first pass


def score_store(
    model: PlacedModel, selection: ScoredRows, batch_size: int, screen: Screen
) -> dict[str, float]:
    """Return loss (nats), accuracy and perplexity of each term, named as in a run's metrics.

    Also returns their baselines and the number of examples. Next sentences are scored if the
    checkpoint has the head and the options make pairs. A causal model is scored on next tokens
    alone, an XLNet on targets in a random order. The step is the one that evaluates held-out
    examples during training.

    Raises:
      Refused: the split has no examples of this kind, or a score is not finite.
    """
    store, options, seq_len = selection.store, selection.options, selection.seq_len
    shards = mesh.batch_shards(model.mesh)
    fixed = describe_store(store.manifest).slots_of_lengths  # ready-made examples'
    try:
        source = open_examples(
            store,
            store.heldout if selection.split == HELDOUT else store.train,
            take_single_pass(options, store),
            seq_len,
            fixed.get(seq_len, predictions_for(seq_len, options.masked_lm_prob)),
        )
        batches = pretrain.make_heldout_batches(
            source, batch_size=-(-batch_size // shards) * shards, examples=selection.examples
        )
    except Refused as error:
        raise Refused(f"{store.directory}: {error}") from error
    examples = sum(int((batch["input_mask"].sum(axis=1) > 1).sum()) for batch in batches)
    pairs = model.checkpoint.heads.nsp and options.has_next_sentences
    objective = MLM_NSP if pairs else MLM
    if model.checkpoint.config.is_causal:
        objective = CAUSAL
    if model.checkpoint.config.position_embedding_type == "relative":
        objective = PERMUTATION
    evaluate = step_lib.make_eval_step(model.model, objective)
    total: dict[str, float] = {}
    with screen.spinning(f"scoring {examples:,} examples: compiling") as show:
        for number, batch in enumerate(batches):
            with jax.set_mesh(model.mesh):
                sums = evaluate(model.params, mesh.place_batch(batch, model.mesh))
            total = metrics.add_step(total, metrics.flatten(jax.device_get(sums)))
            show(f"scoring {examples:,} examples: {(number + 1) / len(batches):.0%}")
    scores = metrics.compute_heldout_means(total)
    check_finite(scores, model)
    with screen.spinning("counting the neighbors of the tokens") as show:
        is_heldout = selection.split == HELDOUT
        scores |= baselines.compute_baselines(store, objective, batches, show, is_heldout)
    return scores | {"examples": examples}
