"""Every setting of a fine-tuning run: unit, default and source. Defaults are the paper's."""

import dataclasses

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    EvalConfig,
    GuardConfig,
    HostsConfig,
    LogConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    Phase,
)


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which task, where its files lie, and how its examples become rows of tokens."""

    task: str = ""  # of bert_jax/tasks/opening.py: cola, rte, ..., squad, swag, codah, ner, table
    dir: str = ""  # folder of the task's files, under the names that they are published with
    source: str = "files"  # or tfds: a data set of TensorFlow Datasets that is on this machine
    train_file: str = ""  # in place of the published name, within dir; likewise the others
    dev_file: str = ""
    test_file: str = ""
    train_examples: int = 0  # the first so many of the training split; 0: all
    max_seq_length: int = 0  # tokens of a row at most, [CLS] and [SEP] counted; 0: 128, of SQuAD
    #                          384, and no more than the checkpoint has positions
    order_seed: int = 0  # of the order in which training examples come
    # Of a table of one's own: names of its columns.
    text_column: str = ""
    second_text_column: str = ""  # "": the task is of single texts
    label_column: str = ""
    is_regression: bool = False  # labels are numbers to predict, not classes
    # Of SQuAD. Source: run_squad.py@eedf5716ce.
    doc_stride: int = 128  # tokens from the start of a window to that of the next
    max_query_length: int = 64  # tokens of a question at most
    max_answer_length: int = 30  # tokens of a predicted answer at most
    n_best_size: int = 20  # starts and ends that are combined, and answers that are written
    has_unanswerable: bool = False  # SQuAD 2.0: a question may have no answer


_LENGTHS = {"squad": 384}  # run_squad.py@eedf5716ce
_LENGTH = 128  # paper, appendix A.3 and run_classifier.py@eedf5716ce


def with_length(options: TaskOptions, positions: int) -> TaskOptions:
    """Fill in max_seq_length where it is left to the task and to a checkpoint's positions."""
    if options.max_seq_length != 0:
        return options
    usual = _LENGTHS.get(options.task, _LENGTH)
    return dataclasses.replace(options, max_seq_length=min(usual, positions))


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run. `model`, `phases` and `eval` are filled in from init and the examples.

    Of `model`, hidden_dropout_prob, attention_probs_dropout_prob and compute_dtype are read as they
    are given here; all else of it is the checkpoint's.
    """

    init: str = ""  # the checkpoint to begin with, as bert_jax/pretrained.py reads it
    data: TaskOptions = TaskOptions()
    epochs: float = 3.0  # passes over the training examples
    batch_size: int = 32  # examples an optimiser step, over all devices
    micro_batches: int = 1  # a step's batch is computed in so many parts, gradients added up
    evaluations_per_epoch: int = 1  # of the development sets; and one at the end
    warmup_share: float = 0.1  # of the steps; config.optim.warmup_steps is computed from it
    seed: int = 0  # of the task's layer and of dropout
    model: ModelConfig = ModelConfig()
    phases: tuple[Phase, ...] = ()
    compute: ComputeConfig = ComputeConfig()
    optim: OptimConfig = OptimConfig(learning_rate=5e-5, warmup_steps=0)
    mesh: MeshConfig = MeshConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig(keep=1)
    guard: GuardConfig = GuardConfig()
    hosts: HostsConfig = HostsConfig()
    log: LogConfig = LogConfig()
    log_every_steps: int = 50
