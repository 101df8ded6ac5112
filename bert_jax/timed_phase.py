"""Which phase a measurement takes its step from, and how many rows the step has."""

import dataclasses

from bert_jax.config import Config, Phase, predictions_for

# Positions of a step on one device, where neither the user nor a recipe for TPU says: 16 rows of
# 128 keep two cores busy for a fraction of a second, 64 fill a GPU.
DEFAULT_POSITIONS = {"cpu": 2048, "gpu": 8192}


def phase_of(config: Config, seq_len: int) -> Phase:
    """The phase of this length, or the first one with its length changed; 0 asks for the first."""
    for phase in config.phases:
        if seq_len in (0, phase.seq_len):
            return phase
    return dataclasses.replace(
        config.phases[0],
        seq_len=seq_len,
        max_predictions_per_seq=predictions_for(seq_len, config.data.masked_lm_prob),
    )


def with_rows(phase: Phase, rows: int, platform: str, shards: int) -> Phase:
    """A phase with so many rows a step; 0 takes the phase's on TPU, elsewhere what suits it.

    It has no end that a measurement could reach, and starts a schedule as a first phase does.
    shards is the number of parts into which the mesh cuts a batch.

    Raises:
      ValueError: the rows do not divide over them.
    """
    phase = dataclasses.replace(
        phase, steps=10**9, restart_learning_rate=0.0, restart_warmup_steps=0
    )
    if rows:
        phase = dataclasses.replace(phase, batch_size=rows)
    elif platform in DEFAULT_POSITIONS:
        on_device = max(1, DEFAULT_POSITIONS[platform] // phase.seq_len)
        return dataclasses.replace(phase, batch_size=on_device * shards, micro_batches=1)
    unit = shards * phase.micro_batches
    if phase.batch_size % unit:
        below = phase.batch_size // unit * unit
        near = " or ".join(f"{size:,}" for size in (below, below + unit) if size)
        parts = f" x {phase.micro_batches} micro-batches" if phase.micro_batches > 1 else ""
        raise ValueError(
            f"--batch_size is {phase.batch_size:,}, not a multiple of {unit}, the parts into which "
            f"the mesh cuts a batch{parts}; try {near}"
        )
    return phase
