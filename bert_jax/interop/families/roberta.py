"""Read and write RoBERTa: BERT with one segment type, and positions from pad_token_id + 1 on.

XLM-RoBERTa and CamemBERT compute the same, in classes of their own.

Source: modeling_roberta.py, configuration_roberta.py@transformers 5.23; Liu et al. 2019.
"""

import dataclasses
import pathlib

from bert_jax.config import ModelConfig
from bert_jax.interop.families import bert
from bert_jax.interop.families.family import ROW_HEAD_NAMES, Family
from bert_jax.interop.model_json import JsonObject
from data_pipeline.io import Refused, small_files
from data_pipeline.vocab import SENTENCEPIECE

_PAD_ID = 1  # pad id of the published models, and the only one that is written
_SETTINGS = dataclasses.replace(bert.SETTINGS, shape={"head_act": "gelu_erf"})


def _count_positions(path: pathlib.Path, settings: JsonObject, config: ModelConfig) -> ModelConfig:
    """Subtract the rows before the first position, which a config.json counts as positions."""
    pad_id = small_files.field(settings, "pad_token_id", int, path, _PAD_ID)
    rows = config.max_position_embeddings - pad_id - 1
    if pad_id < 0 or rows < 1:
        raise Refused(
            f"{path} says pad_token_id = {pad_id} and max_position_embeddings = "
            f"{config.max_position_embeddings}, and RoBERTa's positions begin with number "
            f"{pad_id + 1}; put back the file that the checkpoint came with"
        )
    return dataclasses.replace(config, max_position_embeddings=rows)


def _describe_rows(config: ModelConfig) -> dict[str, int]:
    """Return the settings of a config.json that count the rows of the position table.

    Raises:
      Refused: the model has several segments and BERT's head; a published RoBERTa has 1 segment.
    """
    if config.type_vocab_size != 1 and not config.head_act:
        raise Refused(f"RoBERTa has 1 segment, not type_vocab_size = {config.type_vocab_size}")
    rows = config.max_position_embeddings + _PAD_ID + 1
    return {"max_position_embeddings": rows, "pad_token_id": _PAD_ID}


FAMILY = Family(
    model_type="roberta",
    prefix="roberta.",
    names=dataclasses.replace(
        bert.NAMES,
        heads={
            "mlm/transform": "lm_head.dense",
            "mlm/layer_norm": "lm_head.layer_norm",
            "classifier": "classifier",
        },
        output_bias=("lm_head.bias", "lm_head.decoder.bias"),
        pad_id=_PAD_ID,
    ),
    settings=dataclasses.replace(_SETTINGS, defaults=bert.DEFAULTS | {"vocab_size": 50265}),
    complete=_count_positions,
    describe_rest=_describe_rows,
    decoder="lm_head.decoder.weight",
    masked_lm="RobertaForMaskedLM",
    encoder="RobertaModel",
    task_names=ROW_HEAD_NAMES,
)
XLM_ROBERTA = dataclasses.replace(
    FAMILY,
    model_type="xlm-roberta",
    masked_lm="XLMRobertaForMaskedLM",
    encoder="XLMRobertaModel",
    settings=_SETTINGS,
    vocabulary_kind=SENTENCEPIECE,
)
CAMEMBERT = dataclasses.replace(
    XLM_ROBERTA,
    model_type="camembert",
    masked_lm="CamembertForMaskedLM",
    encoder="CamembertModel",
)
