"""The block of a run says how often it sees its text, and warns where that is absurd."""

import dataclasses
import re
import shlex

import pytest

from bert_jax import config as config_lib
from bert_jax import config_check
from bert_jax.config import Config, OptimConfig, Phase
from bert_jax.corpus_rows import MANY_EPOCHS, too_many_epochs

BASE = Config(
    phases=(
        Phase(128, 900_000, batch_size=256, max_predictions_per_seq=20),
        Phase(
            512,
            100_000,
            batch_size=256,
            max_predictions_per_seq=77,
            restart_learning_rate=1e-4,
            restart_warmup_steps=5_000,
        ),
    ),
    optim=OptimConfig(warmup_steps=10_000),
)


@pytest.mark.parametrize("epochs", [[], [1.0], [40.0, 0.4], [200.0, 56.0]])
def test_passes_that_cost_nothing_get_no_warning(epochs):
    assert too_many_epochs(BASE, epochs) == []
    assert sum(epochs) <= MANY_EPOCHS


def test_absurd_passes_are_warned_of_once_with_flags_that_mend_them():
    epochs = [14_000.0, 3_562.0]  # BERT-Base on 8 MB
    (label, text), (_, flags) = too_many_epochs(BASE, epochs)
    assert label.startswith("!")
    assert "17,562 passes" in text and "439 times as much text" in text
    given = dict(re.findall(r"--config\.(\S+)=(\d+)", flags))
    assert shlex.split(flags) == [f"--config.{name}={value}" for name, value in given.items()]
    steps = [int(given[f"phases[{index}].steps"]) for index in (0, 1)]
    passes = sum(e * s / p.steps for e, s, p in zip(epochs, steps, BASE.phases, strict=True))
    assert passes == pytest.approx(40, rel=0.01)
    phases = (
        dataclasses.replace(BASE.phases[0], steps=steps[0]),
        dataclasses.replace(
            BASE.phases[1],
            steps=steps[1],
            restart_warmup_steps=int(given["phases[1].restart_warmup_steps"]),
        ),
    )
    optim = dataclasses.replace(BASE.optim, warmup_steps=int(given["optim.warmup_steps"]))
    mended = dataclasses.replace(BASE, phases=phases, optim=optim)
    assert config_lib.total_steps(mended) == sum(steps)
    config_check.check(dataclasses.replace(mended, data=dataclasses.replace(BASE.data, store="s")))
