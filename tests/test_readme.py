"""README and the files beside it: their size, and that what they name exists."""

import itertools
import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

import bert_jax
from bert_jax.__main__ import MODULES
from tests.docs import pages

ROOT = pages.ROOT
README = pages.README.read_text(encoding="utf-8")
MAX_BYTES = 12 * 1024


def test_the_readme_has_12_kb_at_most():
    assert len(README.encode()) <= MAX_BYTES


def test_the_table_of_commands_is_the_packages():
    listed = set(re.findall(r"`((?:bert_jax|data_pipeline)\.\w+)`", README))
    assert listed == {*MODULES.values()} - {"data_pipeline.python_docs"}


def test_the_citation_the_changes_and_the_package_are_of_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## \[(\d.*?)\]", changes, re.MULTILINE)[0]
    assert project["version"] == citation["version"] == newest == bert_jax.__version__
    assert project["license"] == citation["license"] == "Apache-2.0"


def test_the_workflow_runs_what_ci_runs_on_pythons_that_are_supported():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    pythons = workflow["jobs"]["pinned"]["strategy"]["matrix"]["python"]
    assert pythons == ["3.11", "3.12"]
    assert "schedule" in workflow[True]  # YAML 1.1 reads the key `on` as true
    runs = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    for command, argument in itertools.pairwise(" ; ".join(runs).split()):
        assert command != "make" or argument in pages.make_targets()
    assert ".ci/run" in runs and ".ci/packages" in runs


def test_a_release_is_tested_and_no_secret_publishes_it():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}} and "secrets." not in text
    runs = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    assert runs[:2] == [".ci/run", ".ci/packages"] and runs[-1].startswith("gh release create ")
    for script in runs[:2]:
        assert os.access(ROOT / script, os.X_OK)


def test_the_weekly_workflow_tries_each_package_past_its_bound():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tried = workflow["jobs"]["past_bound"]["strategy"]["matrix"]["include"]
    project = (ROOT / "pyproject.toml").read_text()
    bounded = re.findall(r'"([\w-]+)>=[^",]*,<', project)
    assert [each["package"] for each in tried] == sorted(bounded)
    targets = {target for each in tried for target in each["targets"].split()}
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("installs", "passes", "said"),
    [(True, True, "can go"), (True, False, "stays"), (False, True, "nothing from 1 on")],
)
def test_a_package_past_its_bound_says_whether_the_bound_can_go(tmp_path, installs, passes, said):
    for path, exit_code in ((".venv/bin/uv", not installs), ("bin/make", not passes)):
        program = tmp_path / path
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$0 $@"\nexit {int(exit_code)}\n')
        program.chmod(0o755)
    for name in (".ci/past_bound", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    command = [tmp_path / ".ci/past_bound", "orbax-checkpoint", "test"]
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ran = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    assert "orbax-checkpoint>=1.dev0" in ran.stdout and said in ran.stdout
    assert ("make test" in ran.stdout) == installs
    command[1] = "numpy"
    assert subprocess.run(command, env=path, capture_output=True).returncode == 2


def test_the_makefile_has_what_its_head_explains_and_the_quickstart_is_four_commands():
    explained = re.findall(r"^# make ([\w-]+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(explained) <= pages.make_targets()
    shown, seeded = (
        subprocess.run(
            ["make", "--dry-run", "quickstart", *given], cwd=ROOT, capture_output=True, text=True
        ).stdout
        for given in (("SEED=",), ("SEED=1",))
    )
    for module in ("python_docs", "build", "train", "fill_mask"):
        assert re.search(rf"-m \w+\.{module} ", shown)
    assert "--heldout=5" in shown and "[MASK]" not in shown  # sentences by a rule alone
    assert "--config.seed=1 --config.data.random_seed=1" in seeded and "seed" not in shown
