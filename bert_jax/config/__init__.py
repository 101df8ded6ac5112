"""Define every setting of a run: dataclasses with defaults, checks, and a ConfigDict view.

In: a config file and flags. Out: a Config or a FinetuneConfig, and a checked ResolvedRun.
Read schema, model_schema and finetune_schema (the settings), phases (what follows from them),
config_dict, overrides (flags), resolve (a Config to a ResolvedRun), validate and model_rules (the
checks).
"""

from ml_collections import ConfigDict

from bert_jax.config.config_dict import (
    Kind,
    arguments,
    flatten,
    recorded,
    set_fields,
    settings_from,
    to_config_dict,
)
from bert_jax.config.finetune_schema import FinetuneConfig, TaskOptions
from bert_jax.config.model_schema import MODERNBERT, ComputeConfig, ModelConfig
from bert_jax.config.phases import (
    data_in_evaluations,
    data_in_phase,
    first_row,
    list_objectives,
    model_in_phase,
    phase_of_step,
    phase_start,
    predictions_for,
    ramp_batch,
    shape_in_phase,
    total_steps,
    weights_in_phase,
)
from bert_jax.config.resolve import ResolvedRun, StoreFacts, resolve
from bert_jax.config.schema import (
    CAUSAL,
    DISTILLATION,
    MAX_WINDOW_STEPS,
    RELATION_DISTILLATION,
    RTD,
    CheckpointConfig,
    Config,
    DistillConfig,
    EvalConfig,
    GuardConfig,
    HostsConfig,
    LogConfig,
    MeshConfig,
    OptimConfig,
    Phase,
    RunConfig,
)
from data_pipeline.spec.options import PretrainOptions
