"""Flags in the findings of the page: whole, and not cut at their dashes or dots."""

import pytest

from data_pipeline import health_page


@pytest.mark.parametrize(
    ("finding", "flag"),
    [
        ("give --config.data.packed_examples=8.", "--config.data.packed_examples=8"),
        ("See --documents and more.", "--documents"),
        ("set --config.phases[0].seq_len=64, then", "--config.phases[0].seq_len=64"),
        ("give --near_duplicates=together-or-not: now", "--near_duplicates=together-or-not"),
        ("give --holdout=0.05.", "--holdout=0.05"),
        ("give --input=a/b.txt,c.txt", "--input=a/b.txt,c.txt"),
    ],
)
def test_a_flag_of_a_finding_is_marked_whole(finding, flag):
    assert f"<code>{flag}</code>" in health_page._findings([finding])
