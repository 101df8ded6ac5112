"""Check the attention kernels that a config's layers would call on these devices."""

import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.benchmarking.checks import FINE, SKIPPED, WRONG, CheckResult
from bert_jax.config import ModelConfig
from bert_jax.model.attention import verify
from bert_jax.trainer.compile import choose_attention, find_kernels_of


def check_kernel(mesh: Mesh, model: ModelConfig, seq_len: int) -> CheckResult:
    """Compare each kernel for these devices with the reference, as a run does before it starts."""
    part = f"attention kernel at {seq_len}"
    dtype = jnp.dtype("bfloat16")
    kernels = find_kernels_of("auto", mesh, seq_len, model, dtype)
    if not kernels:
        words = choose_attention("auto", mesh, seq_len, model, dtype).words
        return CheckResult(part, SKIPPED, words)
    made = [verify.check_kernel(kernel, shape, mesh) for kernel, shape in kernels]
    numbers = {
        check.kernel: {"errors": check.errors, "wrong_mask_bits": check.wrong_mask_bits}
        for check in made
    }
    wrong = [check for check in made if not check.is_sound]
    if wrong:
        sentence = "; ".join(check.describe() for check in wrong)
        advice = "a run takes another implementation; report it with this file"
        return CheckResult(part, WRONG, f"{sentence}; {advice}", numbers)
    sentence = "; ".join(check.describe() for check in made)
    return CheckResult(part, FINE, f"{sentence}; dropout masks are equal to the bit", numbers)
