"""Reading the text of compiled programs: types, loops, groups of devices."""

import pytest

from bert_jax.planning import hlo


@pytest.mark.parametrize(
    ("result", "size"),
    [
        ("f32[]", 4),
        ("bf16[12,64,768]{2,1,0:T(8,128)(2,1)S(1)}", 2 * 12 * 64 * 768),
        ("(f32[]{:T(128)}, /*index=1*/u8[3]{0}, token[])", 7),
    ],
)
def test_bytes_of_a_type(result, size):
    assert hlo.count_bytes(result) == size


def test_parts_of_a_tuple_keep_their_layouts():
    result = "((f32[2,3]{1,0:T(8,128)}, f32[]), bf16[4]{0:T(1024)(128)(2,1)})"
    assert hlo.split_tuple(result) == [
        "(f32[2,3]{1,0:T(8,128)}, f32[])",
        "bf16[4]{0:T(1024)(128)(2,1)}",
    ]
    assert hlo.split_tuple("f32[2]") == ["f32[2]"]


@pytest.mark.parametrize(
    ("groups", "first"),
    [
        ("{{0,2,4},{1,3,5}}", [0, 2, 4]),
        ("[4,2]<=[8]", [0, 1]),
        ("[2,4]<=[4,2]T(1,0)", [0, 2, 4, 6]),
        ("mesh['a'=2,'b'=4] {'b'}", [0, 1, 2, 3]),
        ("mesh['a'=2,'b'=4] {'a'}", [0, 4]),
        ("mesh['a'=2,'b'=4] {'a','b'}", list(range(8))),
        ("mesh['a'=8] {'a':(1)2}", [0, 4]),
        ("mesh['a'=8] {'a':(2)4}", [0, 1, 2, 3]),
        ("{}", list(range(8))),
    ],
)
def test_the_devices_that_work_together(groups, first):
    assert hlo.read_first_group(f", replica_groups={groups}, x=1", 8) == first
