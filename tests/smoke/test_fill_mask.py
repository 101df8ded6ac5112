"""The fill_mask entry as a person runs it, on a run that the train entry made."""

import functools
import json
import shutil
import subprocess
import sys

import pytest

from tests.bert_jax import small_checkpoints
from tests.faults.runs import ONE_PHASE, ROOT, environment

TITLE = "\x1b]0;x\x07"  # sets the title of a terminal's window


@pytest.fixture(scope="module")
def workdir(forked, tiny_store, tmp_path_factory):
    """A run of masked words alone; models that learned more are asked in the same way."""
    folder = tmp_path_factory.mktemp("run")
    flags = [*ONE_PHASE, "--config.phases[0].steps=12", "--config.objective=mlm"]
    flags += ["--config.data.segments=full_sentences", f"--config.data.store={tiny_store}"]
    forked("bert_jax.train", *flags, f"--workdir={folder}")
    return folder


@pytest.fixture
def fill_mask(forked):
    """The entry, from one that has its imports already."""
    return functools.partial(forked, "bert_jax.fill_mask")


def test_guesses_stand_under_each_sentence(workdir):
    done = subprocess.run(
        [
            *[sys.executable, "-m", "bert_jax.fill_mask"],
            *[f"--workdir={workdir}", "--top=3", "The [MASK] sees a dog.", TITLE + "[MASK] [MASK]"],
        ],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "The [MASK] sees a dog."
    assert lines[2] == r"\x1b]0;x[MASK] [MASK]"  # shown, and not obeyed
    assert len(lines) == 5
    assert all(line.count("%") == 3 for line in lines if "[MASK]" not in line)
    assert done.stderr == ""


def test_heldout_sentences_come_with_their_answers(fill_mask, workdir):
    done = fill_mask(f"--workdir={workdir}", "--heldout=2", "A dog [MASK] the cat.")
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert ["it was: " in line for line in lines[1::2]] == [False, True, True]


def test_another_store_in_the_place_of_the_runs_is_refused(fill_mask, workdir, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(workdir, moved)
    receipt = json.loads((moved / "config.json").read_text())
    receipt["fixed"]["data.store (digest of its contents)"] = "0" * 12
    (moved / "config.json").write_text(json.dumps(receipt))
    said = fill_mask(f"--workdir={moved}", "--heldout=1", code=2).stderr
    assert "is not the store that the run of" in said and "without --heldout" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workdir={}", "no mask here"], "'no mask here' has no [MASK]; write it"),
        (["--workdir={}"], "there is nothing to guess: give sentences with [MASK]"),
        (["--workdir={}/empty", "a [MASK]"], "holds no run of bert_jax"),
        (["--checkpoint={}/empty", "a [MASK]"], "is not a folder of this machine"),
        (["--checkpoint={}", "--workdir={}", "a [MASK]"], "give one of them"),
        (["--from={}", "a [MASK]"], "did you mean --checkpoint or --workdir?"),
        (["a [MASK]"], "--checkpoint is missing"),
        (["--workdir={}", "--top=0", "a [MASK]"], "--top is 0"),
        (["--workdir={}", "--heldout=-1", "a [MASK]"], "--heldout is -1"),
        (["--workdir={}", "--no_flag=1", "a [MASK]"], "--no_flag=1: there is no such flag"),
    ],
)
def test_mistakes_get_one_sentence(fill_mask, workdir, arguments, words):
    done = fill_mask(*(argument.format(workdir) for argument in arguments), code=2)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and words in done.stderr
    assert done.stdout == ""


def test_a_folder_of_hugging_faces_is_asked(fill_mask, tmp_path):
    folder = small_checkpoints.write(tmp_path / "small", small_checkpoints.tensors())
    for address in (f"hf:{folder}", folder):
        assert "%" in fill_mask(f"--checkpoint={address}", "a [MASK] sees a dog .").stdout
    said = fill_mask(f"--workdir={folder}", "a [MASK]", code=2).stderr
    assert f"is no run of bert_jax; give --checkpoint=hf:{folder}" in said
    said = fill_mask(f"--checkpoint={folder}", "--heldout=1", code=2).stderr
    assert "--heldout is 1, of what a run held out" in said


def test_help_shows_its_own_flags(fill_mask):
    out = fill_mask("--help").stdout
    assert "--workdir" in out and "--heldout" in out
    assert "--config" not in out
