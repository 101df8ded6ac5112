r"""Named entities from CoNLL's or IOB2 files, a tag for every word.

    python -m bert_jax.finetune --config=configs/finetune/ner.py --config.init=CHECKPOINT \
        --config.data.dir=DIR --workdir=WORKDIR

DIR has eng.train, eng.testa and eng.testb (CoNLL-2003), wnut17train.conll, emerging.dev.conll and
emerging.test.annotated (WNUT-17), or train.txt, dev.txt and test.txt: a word and its tag per line.
Expect (paper, CoNLL-2003, a cased BERT-Base with the document around each sentence): 96.4 F1 on
dev, 92.4 on test.
Measured (row entities of docs/results/training.json), a 6-layer MiniLM on WNUT-17: F1 49.5 on dev,
39.7 on test.
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return the settings of the paper's appendix A.3."""
    return c.to_config_dict(
        c.FinetuneConfig(
            data=c.TaskOptions(task="ner"),
            epochs=4.0,
            batch_size=32,
            optim=c.OptimConfig(learning_rate=5e-5, warmup_steps=0),
        )
    )
