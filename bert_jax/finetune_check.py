"""Settings of a fine-tuning run that contradict each other, found before anything is opened."""

from bert_jax.config import EvalConfig
from bert_jax.config_check import check_run, require
from bert_jax.finetune_config import FinetuneConfig


def check(config: FinetuneConfig) -> None:
    """Raise if settings of a fine-tuning run contradict each other.

    Raises:
      ValueError: names the key, its value, what is allowed and a way out.
    """
    require(
        bool(config.init),
        "init",
        config.init,
        "give the checkpoint to begin with: hf:DIR, "
        "google:PREFIX or orbax:DIR, the workdir of a run of pre-training",
    )
    for key, value in (
        ("batch_size", config.batch_size),
        ("micro_batches", config.micro_batches),
        ("evaluations_per_epoch", config.evaluations_per_epoch),
        ("data.doc_stride", config.data.doc_stride),
        ("data.max_query_length", config.data.max_query_length),
        ("data.max_answer_length", config.data.max_answer_length),
        ("data.n_best_size", config.data.n_best_size),
    ):
        require(value >= 1, key, value, "it must be 1 or more")
    require(config.epochs > 0.0, "epochs", config.epochs, "it must be above 0")
    require(
        config.batch_size % config.micro_batches == 0,
        "micro_batches",
        config.micro_batches,
        f"it must divide batch_size = {config.batch_size}",
    )
    require(
        0.0 <= config.warmup_share < 1.0, "warmup_share", config.warmup_share, "from 0 to below 1"
    )
    require(
        config.data.max_seq_length == 0 or config.data.max_seq_length >= 8,
        "data.max_seq_length",
        config.data.max_seq_length,
        "a pair of texts needs 8 or more; 0 takes 128, or the checkpoint's positions if fewer",
    )
    require(
        config.data.train_examples >= 0,
        "data.train_examples",
        config.data.train_examples,
        "0 takes all",
    )
    unread = EvalConfig()
    for key, value, unset, instead in (
        ("optim.warmup_steps", config.optim.warmup_steps, 0, "set warmup_share"),
        (
            "eval.every_steps",
            config.eval.every_steps,
            unread.every_steps,
            "set evaluations_per_epoch",
        ),
        ("eval.examples", config.eval.examples, unread.examples, "all are evaluated"),
    ):
        words = f"fine-tuning does not read it: leave it at {unset}; {instead}"
        require(value == unset, key, value, words)
    check_run(config)
