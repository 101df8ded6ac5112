"""AdamW, StableAdamW, LAMB and Muon on half of the quickstart's steps, each at a rate of its own.

    python -m bert_jax.study --config=configs/studies/optimizers.py --config.seeds=5
        --config.store=runs/quickstart/store --workdir=DIR

Muon multiplies matrices, too: rows that end with _time take more steps, as many as its time allows.
Rates and weight decays were chosen by search=true, on a store of the training documents alone.

Measured (row study_optimizers of docs/results/studies.json): 84 minutes on two cores.
"""

from bert_jax import config as c
from bert_jax.lab.study_config import StudyConfig, StudyRow

# Steps in the time of one Muon step, and the pairs of learning rate (both phases) and weight decay,
# the chosen pair first. StableAdamW does not multiply its decay by the rate.
OPTIMIZERS = {
    "muon": (
        1.0,
        ((16e-3, 0.3), (4e-3, 0.3), (8e-3, 0.3), (32e-3, 0.3)),
    ),
    "adamw": (
        1.13,
        ((3e-3, 0.3), (6e-3, 0.3), (3e-3, 0.01)),
    ),
    "stable_adamw": (
        1.09,
        ((3e-3, 1e-3), (6e-3, 1e-3), (3e-3, 3e-5)),
    ),
    "lamb": (
        1.08,
        tuple((rate, 0.01) for rate in (5e-3, 2.5e-3, 1e-2, 2e-2, 4e-2, 8e-2)),
    ),
}


def _build_row(name: str, optimizer: str, rate: float, decay: float, share: float) -> StudyRow:
    return StudyRow(
        name,
        config="configs/quickstart.py",
        flags=f"optim.name={optimizer} optim.learning_rate={rate} optim.weight_decay={decay} "
        f"optim.warmup_steps=25 phases[0].steps={340 * share:.0f} phases[1].steps={82 * share:.0f} "
        f"phases[1].restart_learning_rate={rate} phases[1].restart_warmup_steps=10",
    )


def get_config(text: str = "") -> c.ConfigDict:
    """Build four rows at equal steps and three at equal time, or the rows of the search."""
    searches = c.arguments(text, search=("false", "true"))["search"] == "true"
    rows = []
    for name, (share, settings) in OPTIMIZERS.items():
        if searches:
            rows += [_build_row(f"{name}-{r}-{d}", name, r, d, 1.0) for r, d in settings]
            continue
        rows.append(_build_row(name, name, *settings[0], 1.0))
        if share > 1:
            rows.append(_build_row(f"{name}_time", name, *settings[0], share))
    return c.to_config_dict(
        StudyConfig(rows=tuple(rows), equal="nothing", compare_with=rows[0].name)
    )
