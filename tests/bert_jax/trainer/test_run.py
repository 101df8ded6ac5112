"""How one process of a run ends."""

import types

import pytest

from bert_jax.trainer import run


def test_no_process_leaves_before_process_0_has_drawn_and_published(monkeypatch):
    done = []

    def train(*args):
        raise FloatingPointError("steps 3 to 5 were bad")

    storage = types.SimpleNamespace(
        publish=lambda patience_secs=300.0: done.append("publish"),
        close=lambda: done.append("close"),
    )
    hosts = types.SimpleNamespace(stuck_secs=60)
    setup = types.SimpleNamespace(storage=storage, config=types.SimpleNamespace(hosts=hosts))
    monkeypatch.setattr(run, "_train", train)
    monkeypatch.setattr(run.processes, "agree", lambda *args: done.append("agree"))
    with pytest.raises(FloatingPointError):
        run.train_to_exit_code(
            setup, types.SimpleNamespace(close=lambda: None), "bert_jax.train", print
        )
    assert done == ["publish", "publish", "agree", "close"]
