r"""Continue pre-training a published encoder on text of your domain, on one accelerator.

    python -m bert_jax.train --config=configs/continue.py:family=modernbert --config.init=hf:DIR \
        --config.data.store=STORE --workdir=DIR
    ... --config=configs/continue.py:family=modernbert,tokens=300_000_000,replay=0.25 \
        --config.data.store=STORE,GENERAL
    ... --config=configs/continue.py:family=mmbert,first=causal

family   bert, roberta, xlm-roberta, camembert, modernbert, mmbert, ettin, electra, deberta-v3,
         albert or distilbert: rates, masks and lengths. Sizes and vocabulary are the checkpoint's:
         build STORE with its vocabulary. Without --config.init it is the family's Base on the
         Hugging Face hub (extra [hub]).
tokens   positions to train on, padding counted; steps and warm-up shrink or grow in proportion.
         Take one to three passes over your text; without it a recipe has 0.3 to 1.6 billion.
replay   share of the rows from a second store, GENERAL, of the text that the checkpoint learned
         from, so that it forgets less: 0.05 for the same language, 0.25 for a new one (Ibrahim et
         al. 2024, of decoders, quoted from memory).
first    causal: the first phase learns from left to right in its first half (arXiv 2507.00994, the
         abstract, of models with new weights; half is our choice); masked (default).

Hours and dollars of bert: 0.40 and $0.47 on one v5e chip, by the compiler's estimate, which leaves
out input, evaluation and saves: python -m bert_jax.plan --config=configs/continue.py
--config.init= --topology=v5e:1x1 --config.model.vocab_size=30522, 2026-11-22, 44a4788.
Measured (row continued of docs/results/training.json), family=ettin,replay=0.25, 4 layers of 128,
764 steps: 4.81 to 3.00 nats on the new text, 4.00 to 4.15 on the old.
Expect: of RoBERTa, masked language model's loss on biomedical text 1.32 to 0.99, on reviews 2.10 to
1.93, on news like its own no gain (Gururangan et al. 2020, table 1, quoted from memory).

Sources; papers other than Warner et al. 2024 are quoted from memory, and a number without a source
is our choice:
bert         2e-5 "for additional steps", 10,000 steps or more: README of google-research/bert
roberta      Gururangan et al. 2020, appendix: 1e-4 for 256 rows (5e-4 for 2,048), 12,500 steps,
             warm-up of 6%, rows of 512
xlm-roberta  5e-5: Alabi et al. 2022 (AfroXLMR); camembert 5e-5: CamemBERT-bio, 2023
modernbert   betas, weight decay, schedule and masks: Warner et al. 2024; its 3e-4 for 4.7 million
             tokens per step is 5e-5 for 131,072, by the square root; a tenth of the steps decays
mmbert       the same with the masks of its last two phases, 15 and 5%
ettin        the same with the masks of its last two phases, 30 and 15%
electra      a fifth of the rate of its pre-training, as bert's. A published discriminator comes
             without its generator: config.model.generator_hidden_size (64 for Small; 0 for the
             workdir of a run, which has one) is initialized, and teaches little at first
deberta-v3   5e-5 for 256 rows, warm-up of a tenth, weight of the detection: microsoft/DeBERTa,
             rtd.sh and rtd_task.py, for 100,000 steps that begin with the published generator.
             Here generator and detector's head are initialized, but for the word table: expect
             little at first. Generator sizes are for Base; docs/guide/checkpoints.md has the files
albert       electra's rate; LAMB's rate by the square root of the batch (You et al. 2020)
distilbert   2e-5, 64 rows of 128: Hugging Face's course, chapter 7.3 (perplexity on IMDb's reviews
             21.8 to 11.3)
"""

import dataclasses

from bert_jax import config as c

BERT = c.Config(
    init="hf:google-bert/bert-base-uncased",
    phases=(
        c.Phase(128, 18_000, batch_size=128),
        c.Phase(512, 2_000, batch_size=32),
    ),
    optim=c.OptimConfig(learning_rate=2e-5, warmup_steps=1_000),
    eval=c.EvalConfig(every_steps=2_000),
)
FULL_SENTENCES = c.PretrainOptions(segments="full_sentences", short_seq_prob=0.0)
ROBERTA = dataclasses.replace(
    BERT,
    init="hf:FacebookAI/roberta-base",
    objective="mlm",
    phases=(c.Phase(512, 12_500, batch_size=256, micro_batches=16),),
    optim=c.OptimConfig(
        name="adamw",
        learning_rate=1e-4,
        warmup_steps=750,
        decay_counts_warmup=False,
        beta2=0.98,
    ),
    data=FULL_SENTENCES,
    eval=c.EvalConfig(every_steps=500),
)
SLOWER = dataclasses.replace(ROBERTA.optim, learning_rate=5e-5)
STABLE_RATE = 5e-5


def continue_modernbert(init: str, masks: tuple[float, float]) -> c.Config:
    """Build ModernBERT's recipe: a constant rate, then a decay, each with its masking rate."""
    stable = c.Phase(1024, 9_000, batch_size=128, micro_batches=8, masked_lm_prob=masks[0])
    decayed = dataclasses.replace(
        stable,
        steps=1_000,
        masked_lm_prob=masks[1],
        restart_learning_rate=STABLE_RATE,
        restart_decay="one_minus_sqrt",
        restart_end_learning_rate=STABLE_RATE * 0.001,
    )
    return c.Config(
        init=init,
        objective="mlm",
        phases=(stable, decayed),
        model=c.ModelConfig(  # more if the checkpoint has more positions
            attention_probs_dropout_prob=0.0, max_position_embeddings=1024
        ),
        data=c.PretrainOptions(segments="doc_sentences", short_seq_prob=0.0, packed_examples=16),
        eval=c.EvalConfig(every_steps=500, masked_lm_prob=0.15),
        optim=c.OptimConfig(
            name="stable_adamw",
            learning_rate=STABLE_RATE,
            warmup_steps=500,
            decay="constant",
            beta2=0.98,
            weight_decay=1e-5,
            clip_norm=0.0,
        ),
    )


RECIPES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": dataclasses.replace(
        ROBERTA, init="hf:FacebookAI/xlm-roberta-base", optim=SLOWER
    ),
    "camembert": dataclasses.replace(ROBERTA, init="hf:almanach/camembert-base", optim=SLOWER),
    "modernbert": continue_modernbert("hf:answerdotai/ModernBERT-base", (0.3, 0.3)),
    "mmbert": continue_modernbert("hf:jhu-clsp/mmBERT-base", (0.15, 0.05)),
    "ettin": continue_modernbert("hf:jhu-clsp/ettin-encoder-150m", (0.3, 0.15)),
    "electra": dataclasses.replace(
        ROBERTA,
        init="hf:google/electra-base-discriminator",
        objective="rtd",
        model=c.ModelConfig(generator_hidden_size=256),
        data=c.PretrainOptions(
            segments="doc_sentences",
            mask_token_share=0.85,
            random_token_share=0.0,
            short_seq_prob=0.05,
        ),
        optim=c.OptimConfig(learning_rate=4e-5, warmup_steps=750),
    ),
    "deberta-v3": dataclasses.replace(
        ROBERTA,
        init="hf:microsoft/deberta-v3-base",
        objective="rtd",
        rtd_weight=10.0,
        rtd_generator_first=True,
        model=c.ModelConfig(
            position_embedding_type="disentangled",
            detects_by_cls=True,
            generator_hidden_size=768,
            generator_num_hidden_layers=6,
            generator_embeddings="gdes",
            enhanced_mask_decoder=True,
        ),
        data=dataclasses.replace(FULL_SENTENCES, mask_token_share=1.0, random_token_share=0.0),
        optim=c.OptimConfig(learning_rate=5e-5, warmup_steps=1_250),
    ),
    "albert": dataclasses.replace(
        ROBERTA,
        init="hf:albert/albert-base-v2",
        objective="mlm_nsp",
        model=c.ModelConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        data=c.PretrainOptions(segments="sop", masking="ngram"),
        optim=c.OptimConfig(name="lamb", learning_rate=9e-5, warmup_steps=750),
    ),
    "distilbert": dataclasses.replace(
        ROBERTA,
        init="hf:distilbert/distilbert-base-uncased",
        phases=(c.Phase(128, 40_000, batch_size=64),),
        optim=c.OptimConfig(name="adamw", learning_rate=2e-5, warmup_steps=0, epsilon=1e-8),
    ),
}


def get_config(text: str = "") -> c.ConfigDict:
    """Return the recipe of a family; text follows the colon of --config=configs/continue.py:..."""
    chosen = c.arguments(
        text, family=("bert", *RECIPES), tokens=0, replay=0.0, first=("masked", "causal")
    )
    config = RECIPES[chosen["family"]]
    if chosen["tokens"]:
        config = scale_steps(config, chosen["tokens"])
    if chosen["first"] == "causal":
        head, *rest = config.phases
        causal = dataclasses.replace(head, steps=max(1, head.steps // 2), objective=c.CAUSAL)
        masked = dataclasses.replace(head, steps=max(1, head.steps - causal.steps))
        config = dataclasses.replace(config, phases=(causal, masked, *rest))
    if replay := chosen["replay"]:
        data = dataclasses.replace(config.data, store_weights=f"{1 - replay:g},{replay:g}")
        config = dataclasses.replace(config, data=data)
    return c.to_config_dict(config)


def scale_steps(config: c.Config, tokens: int) -> c.Config:
    """Scale phases, warm-up and the steps between evaluations to this many tokens."""
    share = tokens / sum(phase.steps * phase.batch_size * phase.seq_len for phase in config.phases)

    def scale(steps: int) -> int:
        return max(1, round(steps * share)) if steps else 0

    return dataclasses.replace(
        config,
        phases=tuple(
            dataclasses.replace(phase, steps=scale(phase.steps)) for phase in config.phases
        ),
        optim=dataclasses.replace(config.optim, warmup_steps=scale(config.optim.warmup_steps)),
        eval=dataclasses.replace(config.eval, every_steps=scale(config.eval.every_steps)),
    )
