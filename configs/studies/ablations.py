"""BERT paper, table 5: without next sentences, left to right, left to right with a BiLSTM.

    python -m bert_jax.study --config=configs/studies/ablations.py
        --config.store=runs/quickstart/store --workdir=DIR
        --task="mnli configs/finetune/glue.py:task=mnli data.dir=DIR"

Each row is a BERT of configs/quickstart.py. The paper does not say what No NSP was trained on, so
there are two: No_NSP reads BERT's pairs without their loss, No_NSP_documents reads sentences of one
document. The last row fine-tunes the runs of LTR_No_NSP with a BiLSTM on top, whose size the paper
does not give.

Measured (row study_ablations of docs/results/studies.json): 117 minutes on two cores.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

_CONFIG = "configs/quickstart.py:model=bert"
_PAPER = "paper, table 5: MNLI QNLI MRPC SST-2 SQuAD"


def get_config() -> c.ConfigDict:
    """Build five rows, four of which train runs; three seeds."""
    documents = "objective=mlm data.segments=doc_sentences data.short_seq_prob=0.0"
    no_nsp = "83.9 84.9 86.5 92.6 87.9"
    rows = (
        StudyRow("BERT", config=_CONFIG, paper="84.4 88.4 86.7 92.7 88.5"),
        StudyRow("No_NSP", config=_CONFIG, flags="objective=mlm", paper=no_nsp),
        StudyRow("No_NSP_documents", config=_CONFIG, flags=documents, paper=no_nsp),
        StudyRow(
            "LTR_No_NSP",
            config="configs/quickstart.py:model=left_to_right",
            paper="82.1 84.3 77.5 92.1 77.8",
        ),
        StudyRow(
            "LTR_No_NSP_BiLSTM",
            kind="checkpoint",
            reads="LTR_No_NSP",
            finetune="model.bilstm_units=128",  # the encoder's width
            paper="82.1 84.1 75.7 91.6 84.9",
        ),
    )
    return c.to_config_dict(StudyConfig(rows=rows, paper=_PAPER))
