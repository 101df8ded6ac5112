"""What a checkpoint scores on a store, beside what a model without context would."""

import dataclasses
import pathlib
import tempfile

import jax
import numpy as np

from bert_jax import baselines, mesh, metrics, pretrained, receipt
from bert_jax import step as step_lib
from bert_jax import workdir as workdir_lib
from bert_jax.config import Config, predictions_for
from bert_jax.exit_codes import Refused
from bert_jax.feed import single_pass
from bert_jax.masked_lm import MaskedLm
from bert_jax.objectives import MLM, MLM_NSP
from bert_jax.receipt import Receipt
from bert_jax.screen import Screen
from data_pipeline import pretrain
from data_pipeline.examples import open_examples
from data_pipeline.options import PretrainOptions
from data_pipeline.store import HELDOUT, TRAIN, Store

SPLITS = (HELDOUT, TRAIN)


@dataclasses.dataclass(frozen=True)
class Asked:
    """Which examples of a store are scored."""

    store: Store
    split: str  # one of SPLITS
    options: PretrainOptions
    seq_len: int
    examples: int  # at most: the first of the split's first pass

    def batches(self, batch_size: int) -> list[dict[str, np.ndarray]]:
        """Whole batches, the same at every call.

        Raises:
          ValueError: the split cannot give examples of this length with these options.
        """
        split = self.store.heldout if self.split == HELDOUT else self.store.train
        slots = predictions_for(self.seq_len, self.options.masked_lm_prob)
        source = open_examples(
            self.store,
            split,
            single_pass(self.options, self.store),
            seq_len=self.seq_len,
            max_predictions_per_seq=slots,
        )
        return pretrain.heldout_batches(source, batch_size=batch_size, examples=self.examples)


def settings_of(address: str) -> Config | None:
    """The settings of the run that a checkpoint is of, as run_of."""
    run = run_of(address)
    return None if run is None else run.config


def run_of(address: str) -> Receipt | None:
    """What made the run that a checkpoint is of; None where it is none of bert_jax's.

    Raises:
      ValueError: nothing there is a checkpoint.
      OSError: a bucket refuses, or does not answer.
    """
    scheme, where = pretrained.split(address)
    if scheme != pretrained.ORBAX:
        return None
    with tempfile.TemporaryDirectory(prefix="bert_jax-") as folder:
        place, _ = pretrained.place_and_step(where)
        home = workdir_lib.fetched(place, pathlib.Path(folder)).home
        return receipt.read(home)


def scores(of: MaskedLm, asked: Asked, batch_size: int, screen: Screen) -> dict[str, float]:
    """Loss (nats), accuracy and perplexity of each term, named as in a run's records.

    And unigram_mlm_loss, majority_nsp_accuracy and the number of examples. Next sentences are
    scored where the checkpoint has their head and the options make pairs.

    Raises:
      Refused: the split has no examples of this kind.
    """
    shards = mesh.batch_shards(of.mesh)
    try:
        batches = asked.batches(-(-batch_size // shards) * shards)
    except ValueError as error:
        raise Refused(f"{asked.store.directory}: {error}") from error
    examples = sum(int((batch["input_mask"].sum(axis=1) > 1).sum()) for batch in batches)
    pairs = of.checkpoint.heads.nsp and asked.options.has_next_sentences
    objective = MLM_NSP if pairs else MLM
    evaluate = step_lib.eval_step(of.model, objective)
    total: dict[str, float] = {}
    with screen.spinning(f"scoring {examples:,} examples: compiling") as show:
        for number, batch in enumerate(batches):
            sums = evaluate(of.params, mesh.place(batch, of.mesh))
            total = metrics.add(total, metrics.flat(jax.device_get(sums)))
            show(f"scoring {examples:,} examples: {(number + 1) / len(batches):.0%}")
    found = metrics.read_heldout(total)
    found["unigram_mlm_loss"] = baselines.unigram_mlm_loss(asked.store, batches)
    if objective is MLM_NSP:
        found["majority_nsp_accuracy"] = baselines.majority_nsp_accuracy(batches)
    return found | {"examples": examples}
