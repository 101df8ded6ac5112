"""Times attention by blocks beside all scores at once: python -m benchmarks.long_rows --help.

Forward and backward of one layer's attention, 12 heads of 64, on one device in float32, on a row
of three examples; both in turn, so that other work on the machine slows both alike. Prints the
ratio of their times, and the temporary memory that the compiler states for each.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bert_jax.config import MeshConfig
from bert_jax.model import attention
from bert_jax.model.attention import blocks
from bert_jax.parallel import mesh

HEADS, HEAD_WIDTH = 12, 64


def main() -> None:
    """Compare at each length, for complete rows and for a window."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_rows")
    parser.add_argument("--seq_len", default="512,1024,2048,4096", help="tokens of a row")
    parser.add_argument("--window", type=int, default=128, help="tokens")
    parser.add_argument("--rounds", type=int, default=5, help="turns of one step each")
    given = parser.parse_args()
    jax.set_mesh(mesh.make_mesh(MeshConfig(preset="dp"), jax.devices()[:1]))
    for seq_len in map(int, given.seq_len.split(",")):
        for width in (0, given.window):
            print(compare(seq_len, width, given.rounds), flush=True)


def compare(seq_len: int, width: int, rounds: int) -> str:
    """Time both implementations in turn; returns a line for the screen."""
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(4, 1, seq_len, HEADS, HEAD_WIDTH)).astype(np.float32)
    ids_BS = np.searchsorted([seq_len // 3, seq_len // 2], np.arange(seq_len), "right")[None]
    steps = [compile_step(attend, arrays, ids_BS.astype(np.int32)) for attend in choices(width)]
    secs: list[list[float]] = [[], []]
    for _ in range(rounds):
        for (step, _), times in zip(steps, secs, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(step())
            times.append(time.perf_counter() - start)
    ratios = sorted(plain / block for plain, block in zip(*secs, strict=True))
    megabytes = [size / 2**20 for _, size in steps]
    return (
        f"{seq_len} tokens, {f'window {width}' if width else 'complete'}: plain / blocks "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f}) in time, "
        f"{megabytes[0]:,.0f} / {megabytes[1]:,.0f} MiB of temporary memory"
    )


def choices(width: int) -> list[Callable[..., jax.Array]]:
    """Return attention with all scores at once, and by blocks."""

    def plain(q: jax.Array, k: jax.Array, v: jax.Array, ids_BS: jax.Array) -> jax.Array:
        visible = attention.hide_other_examples(ids_BS)
        if width:
            visible = attention.hide_outside_window(visible, ids_BS.shape[1], width)
        return attention.attend(q, k, v, visible.mask, lambda weights: weights)

    def by_blocks(q: jax.Array, k: jax.Array, v: jax.Array, ids_BS: jax.Array) -> jax.Array:
        if width:
            return blocks.attend_window(q, k, v, ids_BS, width)
        return blocks.attend_complete(q, k, v, ids_BS)

    return [plain, by_blocks]


def compile_step(
    attend: Callable[..., jax.Array], arrays: np.ndarray, ids_BS: np.ndarray
) -> tuple[Callable[[], Any], int]:
    """Compile forward and backward; returns a call of it and its temporary bytes."""

    def run(q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, ids: jax.Array) -> Any:
        out, backward = jax.vjp(lambda q, k, v: attend(q, k, v, ids), q, k, v)
        return out, *backward(dout)

    by_head, by_row = mesh.spec("batch", None, "heads", None), mesh.spec("batch", None)
    inputs = [jax.device_put(x, by_head) for x in arrays] + [jax.device_put(ids_BS, by_row)]
    compiled = jax.jit(run).lower(*inputs).compile()
    jax.block_until_ready(compiled(*inputs))
    used: Any = compiled.memory_analysis()
    return lambda: compiled(*inputs), used.temp_size_in_bytes


if __name__ == "__main__":
    main()
