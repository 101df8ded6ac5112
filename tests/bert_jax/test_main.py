"""bert-jax: the entries by their names, beside python -m."""

import importlib
import os
import subprocess
import sys

import pytest

from bert_jax import __main__, __version__, baseline, convert, settings
from tests.faults.runs import ROOT

# What takes most of a second to import, and no answer about flags needs.
SLOW = ("jax", "flax", "optax", "orbax", "tensorflow", "tensorboardX", "matplotlib", "scipy")
# Runs each module named by its arguments in a child, with a flag; prints what is not as it should.
CHECK_IMPORTS = f"""
import contextlib, io, os, runpy, sys
import bert_jax.runtime.cli, data_pipeline.store

flag, code, *modules = sys.argv[1:]
for module in modules:
    if not os.fork():
        sys.argv, ended = ["", flag], 0
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as end:
                ended = end.code
            except Exception as error:
                ended = repr(error)
        wrong = [name for name in {SLOW} if name in sys.modules]
        wrong += [f"ended with {{ended}}"] * (ended != int(code))
        if wrong:
            print(module, *wrong, flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_entry_runs_as_with_python_m_and_its_exit_code_is_its_own(forked):
    flags = ["--config=configs/large.py:recipe=lamb64k", "--print_config"]
    for name in ("store_speed", "config"):  # modules of other names
        help_text = forked("bert_jax", name, "--help").stdout
        assert f"python -m {__main__.MODULES[name]}" in help_text
    assert "name: lamb" in forked("bert_jax", "train", *flags).stdout
    ran = forked("bert_jax", "train", code=2)
    assert ran.stderr.startswith("error: --config is missing")


@pytest.mark.slow
def test_the_installed_script_imports_from_this_folder_as_python_m_does(tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "bert-jax"
    script.write_text("from bert_jax.__main__ import main\nmain()\n")
    (tmp_path / "mine.py").write_text(
        "import steps\nfrom bert_jax.config import Config, Phase, to_config_dict\n"
        "def get_config(): return to_config_dict(Config(phases=(Phase(64, steps.COUNT),)))\n"
    )
    (tmp_path / "steps.py").write_text("COUNT = 10_007\n")
    command = [sys.executable, str(script), "train", "--config=mine.py", "--print_config"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "steps: 10007" in ran.stdout, ran.stderr


def test_an_unknown_entry_is_refused_with_those_that_there_are(forked):
    assert forked("bert_jax", "--version").stdout == f"bert_jax {__version__}\n"
    ran = forked("bert_jax", "trian", code=2)
    assert ran.stdout == ""
    assert ran.stderr == "error: 'trian' is not a bert-jax command; did you mean train?\n"
    known = ", ".join(__main__.MODULES)
    ran = forked("bert_jax", "nothing-near", code=2)
    assert ran.stderr == f"error: 'nothing-near' is not a bert-jax command; commands are {known}\n"


def test_a_setting_that_is_not_there_leads_to_a_pattern_that_is(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["config"])
    assert settings.main(["zzzqq"]) == 2
    assert "without a pattern all are listed" in capsys.readouterr().err
    assert settings.main(["WARMPU"]) == 2
    assert "did you mean warmup?" in capsys.readouterr().err
    assert settings.main(["optim.lr"]) == 2
    near = capsys.readouterr().err.partition("did you mean ")[2].rstrip("?\n")
    assert settings.main([near]) == 0
    assert "--config.optim.learning_rate=0.0001" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [1, 60, 80, 120])
def test_the_list_of_commands_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(__main__, "outlive_readers", lambda: None)
    monkeypatch.setattr(sys, "argv", ["bert-jax"])
    __main__.main()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < max(columns, 60)
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert listed == list(__main__.MODULES)


def test_the_help_of_every_command_fits_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "argv", ["command"])
    for module in __main__.MODULES.values():
        text = importlib.import_module(module).COMMAND.format_help()
        wrong = [line for line in text.splitlines() if len(line) > 60 or line.endswith("-")]
        assert wrong == [], module


def test_the_usage_of_a_command_has_the_config_that_it_needs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command"])
    for module, is_needed in (("bert_jax.plan", True), ("bert_jax.doctor", False)):
        usage = importlib.import_module(module).COMMAND.format_help().partition("\n\n")[0]
        assert ("--config=FILE" in usage) == is_needed


def test_every_command_of_both_packages_has_a_name():
    runnable = {
        f"{package}.{path.stem}"
        for package in ("bert_jax", "data_pipeline")
        for path in (ROOT / package).glob("*.py")
        if not path.stem.startswith("__")
    }
    assert runnable == set(__main__.MODULES.values())


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("optim.learning_rate", "--config.optim.learning_rate=0.0001\n"),
        ("WARM-UP", "--config.optim.warmup_steps=10000\n  linear warm-up"),
        ("peak learning", "finetune\n--config.optim.learning_rate=5e-05\n"),
        ("warmup_share", "fine-tuning, python -m bert_jax.finetune\n--config.warmup_share=0.1\n"),
        ("warmup_steps", "[steps]; 0 or more\n"),
    ],
)
def test_settings_are_found_by_words_of_their_keys_and_descriptions(forked, pattern, words):
    assert words in forked("bert_jax", "config", pattern).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("flag", "code"), [("--help", 0), ("--nope", 2)])
def test_help_and_a_wrong_flag_do_not_wait_for_slow_imports(flag, code):
    modules = ["bert_jax", *__main__.MODULES.values()]
    if flag == "--nope":
        modules.remove("bert_jax")
    command = [sys.executable, "-c", CHECK_IMPORTS, flag, str(code), *modules]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert ran.stderr.count("error: ") == (0 if flag == "--help" else len(modules))


@pytest.mark.parametrize("seed", ["-1", str(2**70)])
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (baseline.COMMAND, ["ner", "--checkpoint=hf:CK", "--data_dir=DIR", "--output=NEW"]),
        (convert.COMMAND, ["--from=hf:CK", "--to=hf:NEW", "--initialize_missing"]),
    ],
)
def test_a_seed_that_jax_does_not_take_is_refused(command, flags, seed):
    with pytest.raises(ValueError, match=f"--seed is {seed}; it must be from 0 to 4294967295"):
        command.read([*flags, f"--seed={seed}"])
