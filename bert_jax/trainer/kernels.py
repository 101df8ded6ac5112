"""Check the attention kernels of a run at their first use, and do without those that differ."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax import config as config_lib
from bert_jax.config import ModelConfig
from bert_jax.logging.console import Screen
from bert_jax.model import attention
from bert_jax.model.attention import verify
from bert_jax.model.attention.verify import AttentionShape
from bert_jax.monitoring.rules import Finding
from bert_jax.runtime import run_record
from bert_jax.trainer.compile import StepParts
from data_pipeline.io.refused import Refused

SOUND = "sound"
_KERNELS = (attention.KERNEL, attention.FLASH, attention.CUDNN)


def settle_kernels(
    build: Callable[[str | None], StepParts], record: Mapping[str, Any] | None, screen: Screen
) -> tuple[StepParts, list[Finding]]:
    """Build the parts of a run without the kernels that are wrong on its devices.

    `build` takes a replacement of config.compute.attention, or None. `record` is the record of the
    run to resume: what it says of a kernel is kept. Every process must call this.

    Raises:
      Refused: a kernel differs, and config.compute.attention requires it, or no other
        implementation fits its rows.
    """
    parts, known = build(None), dict((record or {}).get(run_record.KERNELS, {}))
    for key, (kernel, shape) in find_kernels(parts).items():
        if key not in known:
            with screen.spinning(f"checking {kernel} on these devices"):
                check = verify.check_kernel(kernel, shape, parts.mesh)
            known[key] = SOUND if check.is_sound else check.describe()
    used = find_kernels(parts)
    wrong = {key: known[key] for key in used if known[key] != SOUND}
    if not wrong:
        return dataclasses.replace(parts, kernels=known), []
    reference = attention.find_reference(parts.model.config)
    longest = max(used[key][1].seq_len for key in wrong)
    problem = "; ".join(wrong.values())
    if parts.config.compute.attention == "kernel":
        raise Refused(
            f"config.compute.attention is 'kernel', but on these devices it differs from the "
            f"reference: {problem}; set it to auto, which takes {reference}"
        )
    if reference == attention.PLAIN and longest > attention.LONG_ROW:
        raise Refused(
            f"on these devices a kernel differs from the reference: {problem}; its rows of "
            f"{longest} tokens do not fit plain attention: set "
            "config.model.attention_probs_dropout_prob=0.0, so that blocks take them, or "
            "config.compute.attention=plain to try"
        )
    finding = Finding(
        "kernel_differs",
        0,
        f"On these devices a kernel differs from the reference: {problem}.",
        f"This run takes {reference} instead, which is slower; report this with run.json.",
    )
    return dataclasses.replace(build(reference), kernels=known, attention=reference), [finding]


def find_kernels(parts: StepParts) -> dict[str, tuple[str, AttentionShape]]:
    """Find each kernel that the layers of a run call, with the shape of its rows, by a key."""
    setting, device = parts.config.compute.attention, parts.mesh.devices.flat[0].device_kind
    teacher = parts.teacher.config if parts.teacher else None
    kernels = {}
    for index, phase in enumerate(parts.config.phases):
        encoder = config_lib.model_in_phase(parts.config, index)
        for model in filter(None, (encoder, encoder.generator, teacher)):
            rows = (phase.seq_len, model, parts.model.dtype)
            for kernel, shape in find_kernels_of(setting, parts.mesh, *rows):
                kernels[f"{kernel} on {device}, {shape.describe()}"] = (kernel, shape)
    return kernels


def find_kernels_of(
    setting: str, mesh: Mesh, seq_len: int, model: ModelConfig, dtype: jnp.dtype
) -> list[tuple[str, AttentionShape]]:
    """Find the kernels of one encoder at one length, with the shape of their rows.

    Evaluation drops nothing, so it may take a kernel that training does not.
    """
    shapes: dict[tuple[str, int], AttentionShape] = {}
    for rate in (model.attention_probs_dropout_prob, 0.0):
        choice = choose_attention(setting, mesh, seq_len, model, dtype, has_dropout=rate > 0)
        kinds = [(choice.complete, 0)]
        if model.global_attn_every_n_layers > 1:
            kinds.append((choice.window, model.local_attention))
        for kernel, window in kinds:
            if kernel in _KERNELS:
                shape = _describe_shape(model, seq_len, window, rate)
                shapes.setdefault((kernel, window), shape)
    return [(kernel, shape) for (kernel, _), shape in shapes.items()]


def choose_attention(
    setting: str,
    mesh: Mesh,
    seq_len: int,
    model: ModelConfig,
    dtype: jnp.dtype,
    has_dropout: bool | None = None,
) -> attention.Choice:
    """Choose the implementations of attention on a mesh; see attention.choose."""
    device, model_size = mesh.devices.flat[0].device_kind, mesh.shape["model"]
    return attention.choose(setting, device, seq_len, model, dtype, model_size, has_dropout)


def _describe_shape(model: ModelConfig, seq_len: int, window: int, rate: float) -> AttentionShape:
    """Describe the rows of the layers with this window, 0 for none."""
    theta = 0.0
    if model.position_embedding_type == "rotary":
        theta = model.local_rope_theta if window else model.global_rope_theta
    return AttentionShape(
        seq_len,
        model.num_attention_heads,
        model.hidden_size // model.num_attention_heads,
        window,
        model.is_causal,
        rate,
        theta,
    )
