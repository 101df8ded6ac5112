"""Compiles the attention kernel, forward and backward, in a small program for TPU slices.

    python -m benchmarks.compile_kernel TOPOLOGY[,TOPOLOGY] SEQ_LEN HEADS HEAD_WIDTH DROPOUT_RATE

Run as a process of its own, with libtpu's settings in its environment; benchmarks.kernel_price
does. Prints a line of JSON for each slice: the names of the kernels in the compiled program.
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

from bert_jax.model.attention import tpu_kernel

ROWS = 8  # of each device: any number compiles to the same schedule


def both_ways(heads: int, rate: float, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Output of the kernel, and the gradients of qkv and of the bias."""
    qkv_BSE, bias_E, ids_BS, low_B, high_B, dout_BSD = arrays

    def attend(qkv_BSE: jax.Array, bias_E: jax.Array) -> jax.Array:
        return tpu_kernel.attend(qkv_BSE, bias_E, ids_BS, low_B, high_B, heads, rate)

    out_BSD, backward = jax.vjp(attend, qkv_BSE, bias_E)
    return out_BSD, *backward(dout_BSD)


def compiled(topology: str, seq_len: int, heads: int, head_width: int, rate: float) -> Any:
    """Compile the program: each device has rows of its own, as in a step."""
    # A device of v4 is a chip, as it is at run time, only by this name.
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
            functools.partial(both_ways, heads, rate),
            in_specs=tuple(of.sharding.spec for of in arrays),
            out_specs=(rows, rows, rows),  # the bias gradients of all devices, one after another
            check_vma=False,
        )
        return jax.jit(local).lower(*arrays).compile()


def main(topology_names: str, *sizes: str) -> None:
    """Compile for each slice."""
    seq_len, heads, head_width = map(int, sizes[:3])
    for topology in topology_names.split(","):
        text = compiled(topology, seq_len, heads, head_width, float(sizes[3])).as_text()
        kernels = re.findall(r"%(\S+) = [^\n]*custom_call_target=\"tpu_custom_call\"", text)
        print(json.dumps({"topology": topology, "kernels": sorted(kernels)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
