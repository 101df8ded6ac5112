"""Read and write ELECTRA's two models: BERT with a narrow embedding and a head of either kind.

Source: modeling_electra.py, configuration_electra.py@transformers 5.23; Clark et al. 2020.
"""

import dataclasses

from bert_jax.interop.families import bert
from bert_jax.interop.families.family import ROW_HEAD_NAMES, Family
from bert_jax.interop.model_json import BERT_NUMBERS
from bert_jax.tasks.task import CHOOSE

# How ElectraForMultipleChoice pools.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
_SETTINGS = dataclasses.replace(
    bert.SETTINGS,
    numbers=BERT_NUMBERS | {"embedding_size": "embedding_size"},
    checked={**bert.SETTINGS.checked, **_SUMMARY},
    shape={"pooler_type": "gelu_erf", "head_act": "gelu_erf"},  # the generator's head
    defaults={
        **bert.DEFAULTS,
        **{"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4},
        "intermediate_size": 1024,
    },
)

FAMILY = Family(
    model_type="electra",
    prefix="electra.",
    names=dataclasses.replace(
        bert.NAMES,
        encoder=bert.ENCODER_WITHOUT_POOLER | {"embeddings/projection": "embeddings_project"},
        heads={
            "mlm/transform": "generator_predictions.dense",
            "mlm/layer_norm": "generator_predictions.LayerNorm",
            "rtd/transform": "discriminator_predictions.dense",
            "rtd/output": "discriminator_predictions.dense_prediction",
            "classifier": "classifier",
        },
        output_bias=("generator_lm_head.bias",),
    ),
    settings=_SETTINGS,
    decoder="generator_lm_head.weight",
    masked_lm="ElectraForMaskedLM",
    encoder="ElectraModel",
    discriminator="ElectraForPreTraining",
    task_names={**ROW_HEAD_NAMES, CHOOSE: {"pooler": "sequence_summary.summary"}},
)
