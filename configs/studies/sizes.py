"""The paper's table 6: six sizes, made smaller by factors.

    python -m bert_jax.study --config=configs/studies/sizes.py:width=8,layers=3
        --config.store=runs/quickstart/store --workdir=DIR

width divides the paper's widths, layers its numbers of layers; width=1,layers=1 are its own. Rows
are called by layers, width and heads of the paper. They read as many tokens, not as many
operations: the largest takes 13 times the time of the smallest.
"""

import ml_collections

from bert_jax import config as c
from bert_jax.config.study import StudyConfig, StudyRow

# Layers, width, heads. Source: paper, table 6.
_SIZES = ((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16))
_RATE = "optim.learning_rate=1e-3 phases[1].restart_learning_rate=1e-3"  # deep ones need it low


def get_config(text: str = "") -> ml_collections.ConfigDict:
    """Six rows, three seeds; width and layers are whole numbers."""
    given = c.arguments(text, width="8", layers="3")
    by_width, by_layers = int(given["width"]), int(given["layers"])
    rows = []
    for layers, width, heads in _SIZES:
        size = width // by_width
        if width % by_width or size % heads or layers % by_layers:
            raise ValueError(
                f"width={by_width},layers={by_layers} does not divide {layers} layers of {width} "
                f"into {heads} heads; width may be 1, 2, 4, ..., 64, layers 1 or 3"
            )
        flags = f"model.hidden_size={size} model.intermediate_size={4 * size}"
        flags += f" model.num_hidden_layers={layers // by_layers} model.num_attention_heads={heads}"
        flags += f" model.initializer_range={size**-0.5:.3f} {_RATE}"
        rows.append(
            StudyRow(f"{layers}-{width}-{heads}", config="configs/quickstart.py", flags=flags)
        )
    return c.to_config_dict(StudyConfig(rows=tuple(rows)))
