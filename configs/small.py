"""BERT-Medium, 41 million parameters: for one GPU or 8 TPU chips and hundreds of megabytes of text.

    python -m bert_jax.train --config=configs/small.py --config.data.store=STORE --workdir=DIR

Sizes: 8 layers of 512, BERT-Medium of google-research/bert (Turc et al. 2019, arXiv:1908.08962).
Phases: 90,000 steps at 128, 10,000 at 512 (google-research/bert@eedf5716ce, README, "Pre-training
tips and caveats", which sets 64 sequences of 512 next to 256 of 128).
Corpus: 300 MB to 2 GB, about 4.5 bytes per token: 100,000 steps see 300 MB some 50 times,
the paper's Base its corpus 40 times. With less text take configs/quickstart.py, with more
configs/base.py.
Hours and dollars: 0.24 and $2.26 on a v5e-8, by the compiler's estimate, which leaves out the
attention kernel (no price for 8 heads), input, evaluation and saves: python -m bert_jax.plan
--config=configs/small.py --topology=v5e:2x4 --config.model.vocab_size=30522, 2026-11-22, 44a4788.
Not measured with this code.
Rate and warm-up: of ELECTRA-Small, 12 layers of 256 at batch 128 (Clark et al. 2020, table 6, and
google-research/electra, configure_pretraining.py); the nearest published, not tuned for this size.
"""

from bert_jax import config as c


def get_config() -> c.ConfigDict:
    """Return eight layers of 512 in the paper's two lengths."""
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                hidden_size=512,
                num_hidden_layers=8,
                num_attention_heads=8,
                intermediate_size=2048,
            ),
            phases=(
                c.Phase(128, 90_000, batch_size=256),
                c.Phase(512, 10_000, batch_size=64),
            ),
            optim=c.OptimConfig(learning_rate=5e-4, warmup_steps=10_000),
        )
    )
