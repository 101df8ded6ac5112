"""BERT-Base without next sentences, from left to right or from both sides: the paper's ablation.

    python -m bert_jax.train --config=configs/left_to_right.py --config.data.store=STORE \
        --workdir=DIR
    ... --config=configs/left_to_right.py:recipe=no_nsp
    ... --config.data.segments=doc_sentences

The last one makes sequences of one document in place of BERT's pairs, half of which are random: the
paper does not say which of the two it trained on.

Slice: 16 chips, as configs/base.py. Corpus: the same.
Expect (paper, table 5, dev sets): LTR & No NSP: MNLI-m 82.1, QNLI 84.3, MRPC 77.5, SST-2 92.1,
SQuAD 77.8; No NSP: 83.9, 84.9, 86.5, 92.6, 87.9; BERT-Base: 84.4, 88.4, 86.7, 92.7, 88.5.
Not measured with this code.

recipe=ltr      every token from those before it, also in fine-tuning (section 5.1: "LTR & No NSP");
                all else as in configs/base.py
recipe=no_nsp   masked words alone ("No NSP")
"""

from bert_jax import config as c


def get_config(text: str = "") -> c.ConfigDict:
    """Return BERT-Base with one loss; text follows the colon of --config=...left_to_right.py:..."""
    objectives = {"ltr": "causal", "no_nsp": "mlm"}
    recipe = c.arguments(text, recipe=("ltr", *objectives))["recipe"]
    return c.to_config_dict(c.Config(objective=objectives[recipe]))
