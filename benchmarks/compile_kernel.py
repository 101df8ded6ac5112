"""Compile an attention kernel, forward and backward, in a small program for TPU slices.

    python -m benchmarks.compile_kernel TOPOLOGY[,TOPOLOGY] SEQ_LEN HEADS HEAD_WIDTH DROPOUT_RATE \
        [KERNEL WINDOW]

Run as a process of its own, with libtpu's settings in its environment; benchmarks.kernel_price
does. KERNEL is attention (short rows) or flash (long rows, rotary positions; WINDOW is 0 for none).
Prints a line of JSON for each slice: the names of the kernels in the compiled program, the steps of
their grids per row, and the most iterations of a loop over chunks of keys.
"""

import functools
import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.model.attention import flash, tpu_kernel
from bert_jax.model.attention.flash_body import Tile
from bert_jax.model.embeddings import make_rotation

ROWS = 8  # rows per device; any number compiles to the same schedule


def both_ways(
    heads: int, rate: float, window: int | None, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """Return the kernel's output and the gradients of qkv and bias; flash if window is given."""
    qkv_BSE, bias_E, ids_BS, low_B, high_B, dout_BSD = arrays

    def attend(qkv_BSE: jax.Array, bias_E: jax.Array) -> jax.Array:
        _, seq_len, width = dout_BSD.shape
        if window is not None:
            rotation = make_rotation(ids_BS, seq_len, width // heads, 10_000.0)
            return flash.attend(qkv_BSE + bias_E, ids_BS, rotation, heads, window)
        row = tpu_kernel.KernelRow(seq_len, heads, width // heads, rate)
        return tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, (low_B, high_B), row)

    out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
    return out_BSD, *backward(dout_BSD)


def compiled(
    topology: str, seq_len: int, heads: int, head_width: int, rate: float, window: int | None
) -> Any:
    """Compile the program, with rows of its own on each device, as in a step."""
    # With this name a device of v4 is a chip, as at run time, and not a core.
    core = {"chip_config_name": "megacore"} if topology.startswith("v4") else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology, **core).devices
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Explicit,))
    rows, whole = PartitionSpec("data"), PartitionSpec()
    batch, width = ROWS * mesh.size, heads * head_width

    def array(spec: PartitionSpec, dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, spec))

    arrays = (
        array(rows, jnp.bfloat16, batch, seq_len, 3 * width),
        array(whole, jnp.bfloat16, 3 * width),
        array(rows, jnp.int32, batch, seq_len),
        array(rows, jnp.uint32, batch),
        array(rows, jnp.uint32, batch),
        array(rows, jnp.bfloat16, batch, seq_len, width),
    )
    with jax.set_mesh(mesh):
        local = jax.shard_map(
            functools.partial(both_ways, heads, rate, window),
            in_specs=tuple(each.sharding.spec for each in arrays),
            out_specs=(rows, rows, rows),  # the bias gradients of all devices, one after another
            check_vma=False,
        )
        return jax.jit(local).lower(*arrays).compile()


def main(
    topology_names: str,
    seq_len: str,
    heads: str,
    head_width: str,
    rate: str,
    kernel: str = "attention",
    window: str = "0",
) -> None:
    """Compile for each slice."""
    width = int(window) if kernel == "flash" else None
    sizes = (int(seq_len), int(heads), int(head_width), float(rate), width)
    steps, chunks = 1, 1
    if width is not None:
        reach = width // 2 or int(seq_len)
        tile = Tile(int(seq_len), int(head_width), reach, reach, is_rotated=True)
        steps, chunks = int(heads) // tile.heads, int(seq_len) // tile.chunk
    for topology in topology_names.split(","):
        text = compiled(topology, *sizes).as_text()
        kernels = re.findall(r"%(\S+) = [^\n]*custom_call_target=\"tpu_custom_call\"", text)
        facts = {"topology": topology, "kernels": sorted(kernels), "steps": steps}
        facts["chunks"] = chunks
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
