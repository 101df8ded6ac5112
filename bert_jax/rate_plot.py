"""The learning rate over all phases of a run: as a picture, and in letters for the screen."""

import pathlib

import jax.numpy as jnp
import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from bert_jax import config as config_lib
from bert_jax import curves, optim
from bert_jax.config import Config
from bert_jax.run_config import RunConfig

_METRIC = "learning_rate"
_BLOCKS = " ▁▂▃▄▅▆▇█"
_MOST_POINTS = 2000


def rates(config: RunConfig, most: int = _MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Steps from the first to the last, and the rate of each: at most so many, and each bend."""
    total = config_lib.total_steps(config)
    bends = [
        first + step
        for first, _, _, warmup_steps in optim.ramps(config)
        for step in (-1, 0, warmup_steps - 1, warmup_steps)
    ]
    even = np.linspace(0, total - 1, min(most, total)).astype(int)
    inside = [step for step in bends if 0 <= step < total]
    steps_N = np.unique(np.concatenate([even, np.asarray(inside, int)]))
    return steps_N, np.asarray(optim.schedule(config)(jnp.asarray(steps_N, jnp.int32)))


def in_letters(config: Config, width: int, height: int) -> list[str]:
    """The curve as lines of blocks, the highest first."""
    total = config_lib.total_steps(config)
    edges = np.linspace(0, total, width + 1)
    steps_N, rates_N = rates(config)
    means = np.interp((edges[:-1] + edges[1:]) / 2, steps_N, rates_N)
    eighths = np.ceil(means / max(means.max(), 1e-30) * height * 8).astype(int)
    return [
        "".join(_BLOCKS[min(max(level - 8 * row, 0), 8)] for level in eighths)
        for row in reversed(range(height))
    ]


def draw(config: Config, path: pathlib.Path) -> None:
    """Write the picture to path, a .png."""
    total = config_lib.total_steps(config)
    with style.context(["default", curves.LOOK]):
        picture = Figure(figsize=(7.2, 2.8), layout="constrained")
        ax = picture.add_subplot(label=_METRIC)
        ax.plot(*rates(config), color=curves.TRAIN, linewidth=1.6, clip_on=False)
        curves.set_axes(ax, _METRIC, total, is_lowest=True)
        curves.draw_phases(ax, config.phases, total, is_highest=True)
        picture.savefig(path, format="png")
