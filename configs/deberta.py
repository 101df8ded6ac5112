"""DeBERTa-v3: disentangled attention that learns which tokens a generator has replaced.

    python -m bert_jax.train --config=configs/deberta.py --config.data.store=STORE --workdir=DIR
    ... --config=configs/deberta.py:size=small --config.model.enhanced_mask_decoder=False

size   xsmall, small, base (default) or large

Corpus: full rows of 512 tokens, across documents. Build STORE with spm.model of a published
DeBERTa-v3 (128,100 pieces) or a vocabulary of your own. Not measured with this code.

Source: microsoft/DeBERTa@4d7fe0b: experiments/language_model, rtd.sh and rtd_SIZE.json, for rates,
batches, steps and sizes; optims/args.py for the optimizer; apps/tasks/rtd_task.py for masks, the
weight of the detection and the order of the updates. small has the rates of base, as rtd.sh only
continues it. Their code masks one token of every six; ours are drawn from the complete row.
"""

from bert_jax import config as c

# Width, layers, peak learning rate, rows per step.
SIZES = {
    "xsmall": (384, 12, 3e-4, 64),
    "small": (768, 6, 1e-4, 256),
    "base": (768, 12, 1e-4, 256),
    "large": (1024, 24, 1e-4, 256),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return DeBERTa-v3; text follows the colon of --config=configs/deberta.py:..."""
    size = c.arguments(text, size=("base", *SIZES))["size"]
    width, layers, rate, rows = SIZES[size]
    return c.to_config_dict(
        c.Config(
            model=c.ModelConfig(
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=width // 64,
                intermediate_size=4 * width,
                hidden_act="gelu_erf",
                pooler_type="gelu_erf",
                layer_norm_eps=1e-7,
                type_vocab_size=0,
                position_embedding_type="disentangled",
                position_buckets=256,
                detects_by_cls=True,
                generator_hidden_size=width,
                generator_num_hidden_layers=layers // 2,
                generator_embeddings="gdes",
                enhanced_mask_decoder=True,
            ),
            objective="rtd",
            rtd_weight=10.0,
            rtd_generator_first=True,
            phases=(c.Phase(512, 1_000_000, batch_size=rows),),
            data=c.PretrainOptions(
                segments="full_sentences",
                mask_token_share=1.0,
                random_token_share=0.0,
                short_seq_prob=0.0,
            ),
            optim=c.OptimConfig(learning_rate=rate, warmup_steps=10_000),
        )
    )
