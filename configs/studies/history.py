"""Models before BERT, and BERT fine-tuned and frozen, trained on equal numbers of tokens.

    python -m bert_jax.study --config=configs/studies/history.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="reviews configs/finetune/table.py data.dir=DIR data.train_file=train.csv ..."

Give a task: these rows share hardly any other measure. GPT_and_text fine-tunes the runs of GPT with
the loss of next tokens, times 0.5, added to the task's, as the paper does; ULMFiT with a learning
rate for each layer and a slanted triangular schedule; history.py:unfreeze=N, with the steps of an
epoch of the task, also unfreezes one layer per epoch. TagLM is meant for tagging. CoVe is not
among the rows: it also reads aligned texts, so its tokens would not be the others'.

Measured (row study_history of docs/results/studies.json): 110 and 61 minutes on two cores.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_TAGGER = "units=128"  # LSTM units in tagging tasks: the width of configs/quickstart.py
_TOKENS = "tokens=3809280"  # positions that a run of configs/quickstart.py reads


def get_config(text: str = "") -> c.ConfigDict:
    """Build nine rows, four of which train runs; three seeds."""
    unfreeze = c.arguments(text, unfreeze=0)["unfreeze"]
    ulmfit = f"optim.layer_rate_decay=0.385 optim.unfreeze_every_steps={unfreeze}"
    rows = (
        StudyRow("counts", kind="counts"),
        StudyRow("skip-gram", kind="skipgram", flags=_TOKENS, tagger=_TAGGER),
        StudyRow("ELMo", kind="bilm", flags=_TOKENS, paper="71.0", tagger=_TAGGER),
        StudyRow("TagLM", kind="taglm", reads="skip-gram,ELMo", tagger=_TAGGER),
        StudyRow("GPT", config="configs/quickstart.py:model=left_to_right", paper="75.1"),
        StudyRow("GPT_and_text", kind="checkpoint", reads="GPT", finetune="causal_weight=0.5"),
        StudyRow(
            "ULMFiT",
            kind="checkpoint",
            reads="GPT",
            finetune=f"{ulmfit} warmup_share=0.1 optim.decay_counts_warmup=False",
        ),
        StudyRow("BERT", config="configs/quickstart.py:model=bert", paper="79.6"),
        StudyRow("BERT_frozen", kind="frozen", reads="BERT", tagger=_TAGGER),
    )
    return c.to_config_dict(
        StudyConfig(rows=rows, paper="paper, table 1: GLUE", compare_with="BERT")
    )
