"""Processes agree within a limit, and name who did not answer."""

import json

import pytest

from bert_jax.parallel import processes
from data_pipeline.io import Refused
from tests.bert_jax import joined

AGREE = """
import json, os, time
from bert_jax.parallel import processes
assert (processes.number(), processes.count()) == (number, 3)
values = [processes.agree("turn", f"{turn}:{number}" if number else "", 20) for turn in range(4)]
try:
    if number == 2:
        processes.agree("the end", "", 30)
    else:
        processes.agree("a word", "x", 0.5)
except OSError as error:
    values.append([type(error).__name__, str(error)])
    processes.agree("the end", "", 30)
print(json.dumps(values))
"""


@pytest.mark.slow
def test_three_processes_agree_and_name_the_one_that_does_not_answer():
    ended = joined.run(AGREE, count=3)
    assert [one.code for one in ended] == [0, 0, 0], ended
    answers = [json.loads(one.out.splitlines()[-1]) for one in ended]
    turns = [["", f"{turn}:1", f"{turn}:2"] for turn in range(4)]
    assert answers[2] == turns
    kind, words = answers[0].pop()
    assert kind == "TimeoutError"
    assert "a word: 1 of 3 processes did not answer within 0.5 s, process 2;" in words
    assert answers[0] == turns and answers[1].pop() == [kind, words]


def test_one_process_agrees_with_itself():
    assert processes.agree("anything", "alone", 0.0) == ["alone"]
    assert (processes.number(), processes.count(), processes.read_failures()) == (0, 1, {})
    assert processes.name_processes([0, 2, 5]) == "processes 0, 2 and 5"


@pytest.mark.parametrize(("number", "order"), [(0, ["work", "agree"]), (1, ["agree", "work"])])
def test_process_0_works_before_the_others(monkeypatch, number, order):
    done = []

    def agree(name, value, limit_secs):
        done.append("agree")
        return ["found ", value]

    def work():
        done.append("work")
        return number

    monkeypatch.setattr(processes, "number", lambda: number)
    monkeypatch.setattr(processes, "agree", agree)
    assert processes.run_first("a word", work, 1.0) == number
    assert done == order


def test_the_others_do_not_begin_what_process_0_could_not_do(monkeypatch):
    monkeypatch.setattr(processes, "number", lambda: 1)
    monkeypatch.setattr(processes, "agree", lambda *_: ["refused in use", " "])
    with pytest.raises(Refused, match=r"^in use$"):
        processes.run_first("a word", lambda: pytest.fail("begun"), 1.0)
