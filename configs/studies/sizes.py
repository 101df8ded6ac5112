"""BERT paper, table 6: six sizes, divided by two factors.

    python -m bert_jax.study --config=configs/studies/sizes.py:width=8,layers=3
        --config.store=runs/quickstart/store --workdir=DIR

width divides the paper's widths, layers its numbers of layers; width=1,layers=1 gives the paper's
sizes. Rows are called LAYERS-WIDTH-HEADS, as in the paper. They train on equal tokens, not on equal
operations: the largest takes 13 times as long as the smallest. Not measured with this
code.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

# (layers, width, heads) -> perplexity of masked words, MNLI, MRPC, SST-2. Source: paper, table 6.
_SIZES = {
    (3, 768, 12): "5.84 77.9 79.8 88.4",
    (6, 768, 3): "5.24 80.6 82.2 90.7",
    (6, 768, 12): "4.68 81.9 84.8 91.3",
    (12, 768, 12): "3.99 84.4 86.7 92.9",
    (12, 1024, 16): "3.54 85.7 86.9 93.3",
    (24, 1024, 16): "3.23 86.6 87.8 93.7",
}
_PAPER = "paper, table 6: perplexity MNLI MRPC SST-2"
_RATE = "optim.learning_rate=1e-3 phases[1].restart_learning_rate=1e-3"  # low, for deep rows


def get_config(text: str = "") -> c.ConfigDict:
    """Build six rows; three seeds.

    Raises:
      ValueError: width or layers does not divide the paper's sizes.
    """
    given = c.arguments(text, width=8, layers=3)
    by_width, by_layers = given["width"], given["layers"]
    rows = []
    for (layers, width, heads), figures in _SIZES.items():
        if min(by_width, by_layers) < 1 or width % (by_width * heads) or layers % by_layers:
            raise ValueError(
                f"width={by_width},layers={by_layers} does not divide {layers} layers of {width} "
                f"into {heads} heads; width may be 1, 2, 4, ..., 64, layers 1 or 3"
            )
        size = width // by_width
        flags = f"model.hidden_size={size} model.intermediate_size={4 * size}"
        flags += f" model.num_hidden_layers={layers // by_layers} model.num_attention_heads={heads}"
        flags += f" model.initializer_range={size**-0.5:.3f} {_RATE}"
        name = f"{layers}-{width}-{heads}"
        rows.append(
            StudyRow(name, config="configs/quickstart.py:model=bert", flags=flags, paper=figures)
        )
    return c.to_config_dict(StudyConfig(rows=tuple(rows), paper=_PAPER))
