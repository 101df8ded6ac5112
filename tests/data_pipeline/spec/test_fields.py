"""A setting's metadata gives its help and refuses what is out of range, by its key path."""

import dataclasses
import math

import pytest

from data_pipeline.spec.fields import check_fields, describe_setting, get_setting, setting


@dataclasses.dataclass(frozen=True)
class Part:
    steps: int = setting(10, "how long it lasts", unit="steps", minimum=1, maximum=64)


@dataclasses.dataclass(frozen=True)
class Options:
    name: str = setting("adam", "which rule", choices=("adam", "lamb"))
    rate: float = setting(0.1, "how fast", above=0, below=1, source="BERT: 0.1")
    share: float = setting(0.5, "how much", minimum=0, below=1)
    is_exact: bool = setting(False, "to the letter")
    limit: float | None = setting(None, "none without", minimum=0.5)
    free: object = None
    part: Part = Part()
    parts: tuple[Part, ...] = (Part(), Part())


def test_a_range_includes_the_ends_that_it_names():
    check_fields(Options(), "config")
    check_fields(Options(name="lamb", rate=1e-9, share=0, is_exact=True, limit=1), "config")
    steps, rate, share = (
        get_setting(field)
        for field in (*dataclasses.fields(Part), *dataclasses.fields(Options)[1:3])
    )
    assert [steps.allows(value) for value in (0, 1, 64, 65)] == [False, True, True, False]
    assert [rate.allows(value) for value in (0, 1e-9, 0.99, 1)] == [False, True, True, False]
    assert [share.allows(value) for value in (-1e-9, 0, 0.99, 1)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "sgd"}, "config.name is 'sgd'; it must be one of adam, lamb"),
        ({"name": 3}, "config.name is 3; it must be text"),
        ({"rate": 1}, "config.rate is 1; it must be between 0 and 1 (BERT: 0.1)"),
        ({"rate": 0.0}, "config.rate is 0.0; it must be between 0 and 1 (BERT: 0.1)"),
        ({"rate": math.nan}, "config.rate is nan; it must be a finite number"),
        ({"rate": True}, "config.rate is True; it must be a finite number"),
        ({"share": 1.0}, "config.share is 1.0; it must be from 0 to below 1"),
        ({"is_exact": 1}, "config.is_exact is 1; it must be true or false"),
        ({"limit": 0.1}, "config.limit is 0.1; it must be 0.5 or more"),
        ({"limit": "1"}, "config.limit is '1'; it must be a finite number"),
        ({"part": Part(65)}, "config.part.steps is 65; it must be from 1 to 64"),
        ({"parts": (Part(), Part(0))}, "config.parts[1].steps is 0; it must be from 1 to 64"),
        ({"part": Part(1.5)}, "config.part.steps is 1.5; it must be a whole number"),
    ],
)
def test_what_is_not_allowed_is_named(changes, message):
    with pytest.raises(ValueError) as raised:
        check_fields(Options(**changes), "config")
    assert str(raised.value) == message


def test_help_has_unit_range_and_default():
    helps = [describe_setting(field) for field in dataclasses.fields(Options)]
    assert helps[:4] == [
        "which rule; one of adam, lamb; default adam",
        "how fast; between 0 and 1; default 0.1",
        "how much; from 0 to below 1; default 0.5",
        "to the letter; default false",
    ]
    assert (
        describe_setting(dataclasses.fields(Part)[0])
        == "how long it lasts [steps]; from 1 to 64; default 10"
    )
