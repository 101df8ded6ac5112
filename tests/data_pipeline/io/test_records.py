"""Records against what their annotations say: the first wrong key is named by its path."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from data_pipeline.io.small_files import Count, DamagedFile, parse_record, read_record


@dataclasses.dataclass(frozen=True)
class Point:
    """A dataclass with a default."""

    step: int
    loss: float | None = None


class Table(TypedDict):
    """Every kind of annotation."""

    name: str
    kind: Literal["text", "examples"]
    share: Annotated[float, 0.0, 1.0]
    points: tuple[Point, ...]
    counts: Mapping[str, Count]
    note: NotRequired[str]


RIGHT = {
    **{"name": "a", "kind": "text", "share": 1, "more": [1]},
    **{"points": [{"step": 3}, {"step": 4, "loss": 1}], "counts": {"x": 0}},
}


def test_a_record_is_an_object_with_the_dataclasses_that_it_holds(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(RIGHT))
    assert read_record(path, Table) == RIGHT | {"points": (Point(3), Point(4, 1))}
    assert parse_record([{"step": 3}], list[Point], "x") == [Point(3)]
    assert parse_record({"step": "any"}, dict[str, Any], "x") == {"step": "any"}


def test_the_annotations_of_a_kind_are_resolved_once_for_all_records(monkeypatch):
    parse_record({"step": 1}, Point, "x")
    monkeypatch.setattr(typing, "get_type_hints", None)
    assert parse_record([{"step": 2}] * 3, list[Point], "x") == [Point(2)] * 3


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": None}, "'name' is null, not a string"),
        ({"note": 3}, "'note' is a whole number, not a string"),
        ({"kind": "other"}, "'kind' is 'other', not 'text' or 'examples'"),
        ({"kind": ["text"]}, "'kind' is .*, not 'text' or 'examples'"),
        ({"share": 1.5}, "'share' is 1.5, not from 0.0 to 1.0"),
        ({"share": float("nan")}, "'share' is nan, not from"),
        ({"share": True}, "'share' is true or false, not a number"),
        ({"points": {}}, "'points' is an object, not a list"),
        ({"points": [3]}, "'points': item 0 is a whole number, not an object"),
        ({"points": [{"loss": 1.0}]}, "'points': item 0 has no key 'step'"),
        ({"points": [{"step": 3, "other": 4}]}, "'points': item 0 has the unknown key 'other'"),
        ({"points": [{"step": 3, "loss": "x"}]}, "'points': item 0: 'loss' is a string"),
        (
            {"points": [{"step": 3, "loss": 10**400}]},
            "'points': item 0: 'loss' is too large for a number",
        ),
        ({"counts": {"x": -1}}, "'counts': 'x' is -1, not from 0 to"),
        ({"counts": {"x": 1 << 70}}, "'counts': 'x' is 1180591620717411303424, not from"),
        ({"counts": {"x": 1.0}}, "'counts': 'x' is a number, not a whole number"),
    ],
)
def test_the_first_wrong_key_is_named_by_its_path(wrong, words):
    with pytest.raises(DamagedFile, match=rf"^x\.json: {words}"):
        parse_record(RIGHT | wrong, Table, "x.json")
