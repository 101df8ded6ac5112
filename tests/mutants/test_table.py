"""The table of planted edits keeps up with the code: its texts, its tests, its reach."""

import pathlib

from tests.mutants.mutant import RULE, Mutant, find_gaps, find_problems
from tests.mutants.table import MUTANTS

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_each_edit_finds_its_text_once_and_its_tests():
    assert find_problems(ROOT, MUTANTS) == []


def test_every_folder_has_two_edits_and_half_of_all_are_in_wiring():
    assert find_gaps(ROOT, MUTANTS) == []


def test_text_that_moved_and_tests_that_went_are_named():
    file = "bert_jax/train_step/step.py"
    gone = Mutant(RULE, file, "no such text", "x", ())
    twice = Mutant(RULE, file, "import", "x", ())
    untested = Mutant(RULE, file, "TEACHER_SCOPE = ", "SCOPE = ", (f"{__name__}.py::test_none",))
    problems = find_problems(ROOT, [gone, twice, untested])
    assert [problem.partition(": ")[2] for problem in problems[:1]]
    assert ["0 times" in problems[0], "times" in problems[1], "no test" in problems[2]] == [
        True
    ] * 3
    assert len(find_gaps(ROOT, [gone])) > 30
