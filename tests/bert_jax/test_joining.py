"""How a process finds the others of its run, and what it must have in common with them."""

import re

import pytest

from bert_jax import joining
from bert_jax.code_version import code_version, source_digest
from bert_jax.config import HostsConfig
from tests.bert_jax import joined


def test_what_the_flags_say_is_taken():
    assert joining.place("h:1", 3, 2, 1.0) == joining.Place("h:1", 3, 2)


def test_where_nobody_tells_the_missing_flags_are_named():
    words = "without --num_processes and --process_id, and this is no platform that tells"
    with pytest.raises(ValueError, match=words):
        joining.place("h:1", None, None, 1.0)


def test_what_may_differ_between_processes_is_left_out():
    arguments = ["--process_id=3", "--a=1", "--process_id", "3", "-num_processes=4", "rest"]
    arguments += ["--coordinator_address=h:1", "--multihost"]
    assert joining.arguments_of_all(arguments) == ["--a=1", "rest", "--multihost"]


def test_code_is_told_apart_by_its_files(tmp_path, monkeypatch):
    import bert_jax

    assert re.fullmatch(
        r"bert_jax \S+ \([0-9a-f]{12}\), jax \S+, jaxlib .*numpy \S+", code_version()
    )
    (tmp_path / "module.py").write_text("x = 1")
    monkeypatch.setattr(bert_jax, "__path__", [str(tmp_path)])
    before = source_digest()
    (tmp_path / "module.py").write_text("x = 2")
    assert source_digest() != before


JOIN = """
import sys
from bert_jax import joining, processes
from bert_jax.config import HostsConfig
at = joining.place(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 30)
joining.join(at, HostsConfig(start_secs=30, heartbeat_secs=10), ["--multihost"], print)
print(processes.agree("who is there", str(processes.number()), 20))
"""


def test_processes_join_over_the_port_of_the_roll_call():
    ends = joined.run_apart(JOIN)
    assert [one.code for one in ends] == [0, 0], ends
    assert all("['0', '1']" in one.out for one in ends)


def test_one_that_waits_in_vain_ends_with_a_sentence():
    at = joining.Place(f"127.0.0.1:{joined.free_port()}", 2, 0)
    with pytest.raises(TimeoutError, match="1 of 2 processes came to the roll-call"):
        joining.join(at, HostsConfig(start_secs=1), [], print)
