"""The entry of a grid, as far as it refuses; tests/bert_jax/test_grid_loop.py goes through one."""

import pytest

CONFIG = "--config=configs/finetune/glue.py:task=rte"
INIT = "--config.init=hf:nowhere"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([CONFIG, INIT], "--workdir is missing; give a folder on this machine"),
        ([CONFIG, "--workdir=w"], "config.init is ''; give the checkpoint to begin with"),
        ([CONFIG, INIT, "--workdir=gs://b/grid"], "--workdir is gs://b/grid; give a folder on"),
        ([CONFIG, INIT, "--config.epochs=2"], "--config.epochs is what the grid goes through; giv"),
        ([CONFIG, INIT, "--config.epochs", "2"], "--config.epochs is what the grid goes through;"),
        ([CONFIG, INIT, "--seeds=0,0"], "--seeds is 0,0; give one or more, each once"),
        ([CONFIG, INIT, "--epochs=two"], "--epochs is two; it must be numbers with commas betwee"),
        ([CONFIG, INIT, "--learning_rates=0.0,1e-5"], "config.optim.learning_rate is 0.0"),
        ([CONFIG, INIT, "--seeds=-1"], "config.seed is -1; it must lie from 0 to"),
    ],
)
def test_what_cannot_be_run_is_refused(forked, flags, words):
    done = forked("bert_jax.grid", *flags, code=2)
    assert done.stderr.count("\n") == 1 and words in done.stderr, done.stderr
