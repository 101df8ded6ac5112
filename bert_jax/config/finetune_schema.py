"""Define the settings of fine-tuning: the task and its files, pruning, and the run."""

import dataclasses

from bert_jax.config.schema import OptimConfig, Phase, RunConfig, SharedConfig
from data_pipeline.spec.fields import setting
from data_pipeline.spec.schema import GOOGLE, TRANSFORMERS

_OPTIM = OptimConfig(learning_rate=5e-5, warmup_steps=0)


@dataclasses.dataclass(frozen=True)
class FinetunePhase(Phase):
    """Describe a part of a fine-tuning with its own number of feed-forward neurons."""

    intermediate_size: int = setting(0, "config.model.intermediate_size of this phase", minimum=0)


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Choose a task, its files, and how its examples become rows of tokens.

    Columns are for the user's own table. From doc_stride to has_unanswerable settings are for
    SQuAD; source: run_squad.py@eedf5716ce.
    """

    task: str = setting(
        "", "name of the task: cola, rte, ..., squad, swag, codah, ner, table (tasks/registry.py)"
    )
    dir: str = setting("", "folder with the task's files under their published names")
    source: str = setting(
        "files", "files, or tfds for a TensorFlow Datasets data set on this machine"
    )
    train_file: str = setting("", "training file in dir, if not under its published name")
    dev_file: str = setting("", "development file in dir, if not under its published name")
    test_file: str = setting("", "test file in dir, if not under its published name")
    train_examples: int = setting(
        0, "use only the first N training examples; 0 uses all", minimum=0
    )
    max_seq_length: int = setting(
        0,
        "longest row, [CLS] and [SEP] included, 8 or more; 0 takes 128 (384 for SQuAD), or the "
        "checkpoint's positions if fewer",
        unit="tokens",
        minimum=0,
    )
    order_seed: int = setting(0, "seed of the order of training examples")
    text_column: str = setting("", "column of the text")
    second_text_column: str = setting("", "column of the second text; empty for single texts")
    label_column: str = setting("", "column of the label")
    is_regression: bool = setting(False, "labels are numbers to predict, not classes")
    pair_truncation: str = setting(
        "",
        "which text keeps the odd token when a pair is truncated: google, the first; "
        "transformers, the longer, or the second if equal; empty takes transformers for an "
        "imported hf: checkpoint, else google",
        choices=("", GOOGLE, TRANSFORMERS),
    )
    doc_stride: int = setting(
        128, "stride between the starts of two windows", unit="tokens", minimum=1
    )
    max_query_length: int = setting(64, "longest question", unit="tokens", minimum=1)
    max_answer_length: int = setting(30, "longest predicted answer", unit="tokens", minimum=1)
    n_best_size: int = setting(
        20, "best start and end positions to combine, and answers to write", minimum=1
    )
    has_unanswerable: bool = setting(False, "SQuAD 2.0: questions may have no answer")
    window_stride: int = setting(
        0,
        "table only: stride of windows over a text longer than a row; each window learns the "
        "text's label, and predictions are averaged; 0 truncates the text",
        unit="tokens",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class PruneConfig:
    """Choose how a fine-tuning removes the least important neurons, equally many in every layer.

    Evenly spaced rounds remove about the same number each; the steps after the last round train
    the neurons left. To leave out layers, set init_layers.
    """

    intermediate_size: int = setting(
        0,
        "neurons left in each feed-forward layer at the end; 0 removes none",
        minimum=0,
        maximum=1 << 20,
    )
    rounds: int = setting(4, "number of pruning rounds", minimum=1, maximum=1000)
    share: float = setting(
        0.5, "share of the steps done when the last round takes place", above=0, below=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig(SharedConfig):
    """Hold the settings of a fine-tuning run.

    In `model`, hidden_dropout_prob, attention_probs_dropout_prob and bilstm_units apply, and
    pooler_type and classifier_pooling if not the default; the checkpoint decides the rest.
    """

    PURPOSE = "fine-tuning", "python -m bert_jax.finetune", "configs/finetune/glue.py:task=rte"

    data: TaskOptions = TaskOptions()
    epochs: float = setting(3.0, "passes over the training examples", above=0)
    batch_size: int = setting(32, "examples per optimizer step over all devices", minimum=1)
    micro_batches: int = setting(
        1, "parts to split a step's batch into, whose gradients are summed", minimum=1
    )
    evaluations_per_epoch: int = setting(
        1, "evaluations on the development sets per epoch; one more ends the run", minimum=1
    )
    causal_weight: float = setting(
        0.0,
        "weight of an auxiliary next-token loss on the task's texts, for left-to-right models; 0 "
        "leaves it out",
        minimum=0,
        source="GPT: 0.5",
    )
    warmup_share: float = setting(0.1, "share of the steps used for warm-up", minimum=0, below=1)
    prune: PruneConfig = PruneConfig()
    optim: OptimConfig = _OPTIM
    log_every_steps: int = setting(50, "interval between metrics lines", unit="steps", minimum=1)
    from_scratch: bool = setting(
        False,
        "initialize all weights and read only sizes and vocabulary from `init`, as a baseline "
        "without pre-training",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneRun(FinetuneConfig, RunConfig):
    """Hold a fine-tuning run's settings, completed from the checkpoint and the examples.

    They determine model, phases, eval.every_steps and optim.warmup_steps.
    """

    phases: tuple[FinetunePhase, ...] = ()


_LENGTHS = {"squad": 384}  # run_squad.py@eedf5716ce
_LENGTH = 128  # paper, appendix A.3 and run_classifier.py@eedf5716ce


def with_length(options: TaskOptions, positions: int) -> TaskOptions:
    """Set max_seq_length, if unset, from the task and the checkpoint's number of positions."""
    if options.max_seq_length != 0:
        return options
    usual = _LENGTHS.get(options.task, _LENGTH)
    return dataclasses.replace(options, max_seq_length=min(usual, positions))
