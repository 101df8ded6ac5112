"""bert-jax: the entries by their names, beside python -m."""

import pathlib

import pytest

from bert_jax import __main__, __version__


@pytest.mark.parametrize("name", __main__.MODULES)
def test_every_entry_shows_its_own_help(forked, name):
    ran = forked("bert_jax", name, "--help")
    assert f"python -m {__main__.MODULES[name]}" in ran.stdout


def test_an_entry_runs_as_with_python_m_and_its_exit_code_is_its_own(forked):
    flags = ["--config=configs/large.py:recipe=lamb64k", "--print_config"]
    assert "name: lamb" in forked("bert_jax", "train", *flags).stdout
    ran = forked("bert_jax", "train", code=2)
    assert ran.stderr.startswith("error: --config is missing")


def test_an_unknown_entry_is_refused_with_those_that_there_are(forked):
    assert forked("bert_jax", "--version").stdout == f"bert_jax {__version__}\n"
    ran = forked("bert_jax", "trian", code=2)
    assert ran.stdout == ""
    known = ", ".join(__main__.MODULES)
    assert ran.stderr == f"error: 'trian' is no entry of bert-jax; they are {known}\n"


def test_every_entry_of_the_package_has_a_name():
    package = pathlib.Path(__main__.__file__).parent
    runnable = {
        f"bert_jax.{path.stem}"
        for path in package.glob("*.py")
        if "__main__" in path.read_text(encoding="utf-8") and path.stem != "__main__"
    }
    mains = {name for name in runnable if name != "bert_jax.runtime.cli"}
    assert mains <= set(__main__.MODULES.values())
