"""Compile a training step of BERT-Base for NVIDIA GPUs, on a machine without one.

    python -m benchmarks.compile_gpu_step CARD DEVICES SEQ_LEN ROWS ATTENTION [LAYERS]

CARD is one of CARDS, DEVICES how many of them on one host, ROWS the rows of a device, ATTENTION a
value of config.compute.attention. Needs jax 0.12 and its CUDA plugin: pip install 'jax[cuda12]'.
Prints the device memory that the compiler plans and the collectives, as JSON. Nothing is run, and
kernels that XLA chooses by timing are not timed. The model drops attention weights, so `auto` takes
plain attention: cuDNN's has to be compiled on a machine with the card.
"""

import argparse
import dataclasses
import json
import os
import re
import time
from collections import Counter

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jax.experimental import topologies

from bert_jax.config import ComputeConfig, Config, MeshConfig, ModelConfig
from bert_jax.train_step import objectives
from bert_jax.trainer.compile import build_parts, lower_step
from data_pipeline.spec.options import PretrainOptions
from data_pipeline.spec.schema import row_shape


@dataclasses.dataclass(frozen=True)
class Card:
    """Describe a card to the compiler.

    Source: NVIDIA's CUDA C++ Programming Guide, technical specifications by compute capability, and
    the cards' data sheets.
    """

    kind: str  # JAX's device kind
    capability: tuple[int, int]
    cores: int  # streaming multiprocessors
    threads_of_core: int
    shared_bytes_of_core: int
    shared_bytes_of_block: int
    l2_bytes: int
    memory_bytes: int
    bytes_per_sec: int


KIB, GIB = 2**10, 2**30
CARDS = {
    "A100": Card(
        "NVIDIA A100", (8, 0), 108, 2048, 164 * KIB, 163 * KIB, 40960 * KIB, 40 * GIB, 1555 * 10**9
    ),
    "A10": Card(
        "NVIDIA A10", (8, 6), 72, 1536, 100 * KIB, 99 * KIB, 6144 * KIB, 24 * GIB, 600 * 10**9
    ),
    "RTX4090": Card(
        "NVIDIA GeForce RTX 4090",
        (8, 9),
        128,
        1536,
        100 * KIB,
        99 * KIB,
        73728 * KIB,
        24 * GIB,
        1008 * 10**9,
    ),
    "H100": Card(
        "NVIDIA H100 80GB HBM3",
        (9, 0),
        132,
        2048,
        228 * KIB,
        227 * KIB,
        51200 * KIB,
        80 * GIB,
        3352 * 10**9,
    ),
}


def describe(card: Card) -> str:
    """Describe a card as XLA's GpuTargetConfigProto in text."""
    major, minor = card.capability
    sizes = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 * KIB,
        "shared_memory_per_core": card.shared_bytes_of_core,
        "shared_memory_per_block_optin": card.shared_bytes_of_block,
        "threads_per_core_limit": card.threads_of_core,
        "core_count": card.cores,
        "fpus_per_core": 64 if card.capability == (8, 0) else 128,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": card.bytes_per_sec,
        "l2_cache_size": card.l2_bytes,
        "clock_rate_ghz": 1.5,
        "device_memory_size": card.memory_bytes,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    lines = "\n".join(f"  {name}: {size}" for name, size in sizes.items())
    return f"""gpu_device_info {{
{lines}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 12 minor: 9 patch: 0 }}
device_description_str: "{card.kind}"
"""


def compile_step(
    card: Card, devices: int, seq_len: int, rows: int, attention: str, layers: int
) -> dict[str, object]:
    """Compile the step for this many cards of one host; return its memory and its collectives."""
    cards = topologies.get_topology_desc(
        "", platform="cuda", topology=f"1x1x{devices}", target_config=describe(card)
    ).devices
    model = ModelConfig(
        vocab_size=30_522, num_hidden_layers=layers, max_position_embeddings=max(512, seq_len)
    )
    mesh, compute = MeshConfig(preset="zero1"), ComputeConfig(attention=attention)
    config = Config(model=model, mesh=mesh, compute=compute)
    predictions = max(20, seq_len * 20 // 128)
    phase = dataclasses.replace(
        config.phases[0],
        seq_len=seq_len,
        batch_size=rows * devices,
        micro_batches=1,
        max_predictions_per_seq=predictions,
    )
    config = dataclasses.replace(config, phases=(phase,))
    parts = build_parts(config, objectives.find_each(config), devices=cards, backend="gpu")
    batch = row_shape(PretrainOptions(), seq_len, predictions).arrays(rows * devices)
    began = time.perf_counter()
    options = {"xla_gpu_autotune_level": 0}
    compiled = lower_step(parts, 0, batch).compile(compiler_options=options)
    memory = compiled.memory_analysis()
    collectives = "all-gather|all-reduce|all-to-all|reduce-scatter"
    return {
        "compile_secs": round(time.perf_counter() - began, 1),
        "argument_mib": memory.argument_size_in_bytes // 2**20,
        "temporary_mib": memory.temp_size_in_bytes // 2**20,
        "collectives": Counter(re.findall(rf" ({collectives})(?:-start)?\(", compiled.as_text())),
    }


def main() -> None:
    """Compile the step asked for, and print what compile_step returns as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_gpu_step")
    parser.add_argument("card", choices=CARDS)
    parser.add_argument("devices", type=int, help="cards of one host")
    parser.add_argument("seq_len", type=int)
    parser.add_argument("rows", type=int, help="of a device")
    parser.add_argument("attention", help="as config.compute.attention")
    parser.add_argument("layers", type=int, nargs="?", default=12)
    given = parser.parse_args()
    sizes = (given.devices, given.seq_len, given.rows, given.attention, given.layers)
    print(
        json.dumps({"card": given.card, "sizes": sizes} | compile_step(CARDS[given.card], *sizes))
    )


if __name__ == "__main__":
    main()
