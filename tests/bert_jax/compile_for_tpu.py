"""Compiles the real step of a two-layer BERT for a TPU slice and prints facts as JSON.

    python -m tests.bert_jax.compile_for_tpu TOPOLOGY PRESET [SEQ_LEN [PACKED_EXAMPLES]]

Run as a process of its own: libtpu is loaded once a process and wants its environment set before.
"""

import dataclasses
import json
import os
import re
import sys

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
from jax.experimental import topologies

from bert_jax import config as config_lib
from bert_jax import mesh, optim, state, step
from bert_jax.config import MeshConfig, Phase
from bert_jax.models import bert
from bert_jax.objectives import MLM_NSP
from configs import base


def main(topology: str, preset: str, seq_len: str = "128", packed_examples: str = "1") -> None:
    config = config_lib.from_config_dict(base.get_config())
    model_config = dataclasses.replace(config.model, vocab_size=30_522, num_hidden_layers=2)
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    slots = {"128": 20, "512": 77}[seq_len]
    phase = Phase(int(seq_len), steps=10, batch_size=256, max_predictions_per_seq=slots)
    data = dataclasses.replace(config.data, packed_examples=int(packed_examples))
    config = dataclasses.replace(config, phases=(phase,), mesh=MeshConfig(preset=preset), data=data)
    of = mesh.make(config.mesh, devices)
    jax.set_mesh(of)
    model = bert.build(model_config, "tpu", of.shape["model"])
    tx = optim.optimizer(config.optim)
    where = state.layout(model, tx, of, cut_over_data="zero1" in preset)
    take_step = step.train_step(model, MLM_NSP, tx, config, phase, where)
    lowered = take_step.lower(
        state.abstract(model, tx, where), step.abstract_batch(config, phase, of)
    )
    compiled = lowered.compile()
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    facts = {
        "devices": of.size,
        "argument_bytes": memory.argument_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "has_collectives": bool(re.search(r"all-reduce|reduce-scatter|all-gather", text)),
        "bfloat16_matmuls": bool(re.search(r"bf16\[[^\]]*\][^=]* (convolution|dot)\(", text)),
        "f32_matmuls": len(re.findall(r" = f32\[[^\]]*\][^=]* (?:convolution|dot)\(", text)),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
