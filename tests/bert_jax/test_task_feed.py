"""What a run of a task records: its scores by name."""

import jax.numpy as jnp
import numpy as np

from bert_jax import finetuning
from bert_jax.config import ModelConfig
from bert_jax.finetune_config import FinetuneConfig, TaskOptions
from bert_jax.objectives import Term
from bert_jax.task_feed import TaskFeed, TaskPhase
from bert_jax.tasks.objectives import TERM
from bert_jax.tasks.opening import open_task
from tests.bert_jax.tasks.glue_layouts import small_vocabulary, write_glue


def test_the_score_that_decides_has_the_name_that_it_is_recorded_under(tmp_path):
    vocabulary = small_vocabulary(tmp_path)
    folder = write_glue(tmp_path / "glue")
    options = TaskOptions(task="mnli", dir=str(folder), max_seq_length=128)
    task = open_task(options, vocabulary)  # of several development sets
    config = FinetuneConfig(init="hf:none", data=options, batch_size=2)
    feed = TaskFeed(task, vocabulary, finetuning.resolved(config, task, ModelConfig()))
    phase = TaskPhase(feed)
    sums = {"terms": {TERM: Term(jnp.float32(1.0), jnp.float32(1.0))}, "weights": {TERM: 2.0}}
    results = [
        sums | {"outputs": np.zeros((len(batch["label_ids"]), 3), np.float32)}
        for batch in phase.heldout_batches
    ]
    assert task.main_record == "dev_matched_accuracy"
    assert task.main_record in phase.heldout_scores(results)
