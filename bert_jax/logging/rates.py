"""Sample the learning rates of a run, and show them as text: no picture, so no matplotlib."""

import jax.numpy as jnp
import numpy as np

from bert_jax import config as config_lib
from bert_jax.config import Config, RunConfig
from bert_jax.train_step import schedule

_BLOCKS = " ▁▂▃▄▅▆▇█"


def sample_rates(config: RunConfig, most: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    """Sample the schedule: steps from first to last, every bend among them, and their rates."""
    total = config_lib.total_steps(config)
    bends = [
        ramp.first_step + step
        for ramp in schedule.list_ramps(config)
        for step in (-1, 0, ramp.warmup_steps - 1, ramp.warmup_steps)
    ]
    even = np.linspace(0, total - 1, min(most, total)).astype(int)
    inside = [step for step in bends if 0 <= step < total]
    steps_N = np.unique(np.concatenate([even, np.asarray(inside, int)]))
    return steps_N, np.asarray(schedule.make_schedule(config)(jnp.asarray(steps_N, jnp.int32)))


def render_rates_as_text(config: Config, width: int, height: int) -> list[str]:
    """Render the schedule as lines of block characters, top line first."""
    total = config_lib.total_steps(config)
    edges = np.linspace(0, total, width + 1)
    steps_N, rates_N = sample_rates(config)
    means = np.interp((edges[:-1] + edges[1:]) / 2, steps_N, rates_N)
    eighths = np.ceil(means / max(means.max(), 1e-30) * height * 8).astype(int)
    return [
        "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in eighths)
        for row in reversed(range(height))
    ]
