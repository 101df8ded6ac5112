"""The scripts of examples/: their commands take their flags, and they run from start to end."""

import contextlib
import importlib.util
import json
import runpy
import subprocess
import sys
import types

import numpy as np
import pytest

from tests.conftest import _small_text
from tests.docs import pages
from tests.docs.test_commands import LAYERS, PHASES
from tests.docs.test_pages import read_module_flags
from tests.faults.runs import environment

EXAMPLES = pages.ROOT / "examples"
COMMANDS = {
    "pretrain_on_your_text": (
        ("texts/*.txt", "{folder}", "--vocab_size=200", "--config.seed=3"),
        ["data_pipeline.build", "bert_jax.train", "bert_jax.fill_mask"],
    ),
    "checkpoint_to_transformers": (("orbax:runs/mine", "{folder}"), ["bert_jax.convert"]),
    "plan_a_tpu_run": (("configs/base.py", "v5e:4x4", "--seq_len=128"), ["bert_jax.plan"]),
}


def test_every_example_is_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == COMMANDS.keys()


@pytest.mark.parametrize("script", COMMANDS)
def test_an_example_without_arguments_says_how_to_use_it(script, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script])
    with pytest.raises(SystemExit, match=rf"\n    python examples/{script}\.py "):
        runpy.run_path(str(EXAMPLES / f"{script}.py"))


@pytest.mark.parametrize("code", [0, 2])
@pytest.mark.parametrize("script", COMMANDS)
def test_the_commands_of_an_example_take_its_flags(script, code, tmp_path, monkeypatch):
    """A command that fails says why, and ends the example."""
    arguments, modules = COMMANDS[script]
    done = []

    def read(words, **_):
        _, _, module, *flags = words
        read_module_flags(module, *flags)
        done.append(module)
        return subprocess.CompletedProcess(words, code, "", "")

    losses = {"heldout_mlm_loss": 1.0, "unigram_mlm_loss": 2.0}
    (tmp_path / "summary.json").write_text(json.dumps(losses))
    monkeypatch.setattr(subprocess, "run", read)
    # Version 6 has no more of the names that build an encoder and its pooling by hand.
    encoder = types.SimpleNamespace(encode=lambda texts: np.zeros((len(texts), 2)))
    library = types.SimpleNamespace(SentenceTransformer=lambda folder: encoder)
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: sys.modules.get(name))
    monkeypatch.setitem(sys.modules, "transformers", None)
    given = [argument.format(folder=tmp_path) for argument in arguments]
    monkeypatch.setattr(sys, "argv", [script, *given])
    with contextlib.suppress(SystemExit):  # the plan has no numbers
        runpy.run_path(str(EXAMPLES / f"{script}.py"))
    assert done == modules[: 1 if code else None]


def run(script, *arguments):
    """Run an example; what it printed."""
    done = subprocess.run(
        [sys.executable, f"examples/{script}.py", *map(str, arguments)],
        cwd=pages.ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_model_of_ones_own_text_is_exported_and_loaded_where_the_libraries_are(tmp_path):
    (tmp_path / "a.txt").write_text(_small_text(300))
    given = [tmp_path / "*.txt", tmp_path / "run", "--vocab_size=200"]
    out = run("pretrain_on_your_text", *given, *LAYERS, *PHASES)
    assert "held-out MLM loss" in out and "[MASK]" in out
    assert "data_pipeline.build" not in run("pretrain_on_your_text", *given, *LAYERS, *PHASES)
    out = run("checkpoint_to_transformers", f"orbax:{tmp_path / 'run'}", tmp_path / "export")
    exported = {path.name for path in (tmp_path / "export").iterdir()}
    assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} <= exported
    for library in ("transformers", "sentence-transformers"):
        assert f"{library}: " in out


@pytest.mark.long
def test_a_run_on_a_slice_is_planned():
    pytest.importorskip("libtpu", reason="needs the extra [plan]: libtpu")
    flags = [*LAYERS, "--config.model.vocab_size=200", "--seq_len=128", "--per_chip_batch=8"]
    out = run("plan_a_tpu_run", "configs/tiny.py", "v5e:1x1", *flags)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("v5e:1x1")]
    assert row[1:3] == ["1", "yes"]
