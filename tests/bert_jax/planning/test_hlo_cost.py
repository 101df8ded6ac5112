"""Pricing compiled programs, against sums by hand and the independent reader of the same texts."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.planning import hlo_cost
from bert_jax.planning.hlo_cost import LINKS, NETWORK

MS = 1e-3
DEVICES = range(4)


def make_slice(num_slices: int = 2, devices_per_chip: int = 1) -> Any:
    """Make a slice where 1,000 cycles take 1 ms, and a megabyte on a wire takes 1 ms."""
    chip = SimpleNamespace(
        clock_hz=1e6, hbm_bytes_per_sec=1e9, devices_per_chip=1, network_bytes_per_sec=1e8
    )
    return SimpleNamespace(
        chip=chip,
        num_slices=num_slices,
        ring=lambda ids: (len(set(ids)) // devices_per_chip, 1e9),
        hop=lambda pairs: 1e9 / len(pairs),
    )


def work(name: str, cycles: int, kind: str = "fusion") -> str:
    return f'  %{name} = f32[8]{{0}} {kind}(%x), backend_config={{"estimated_cycles":"{cycles}"}}'


def program(*lines: str, others: str = "") -> str:
    body = "\n".join(lines)
    return f"HloModule jit_step\n\n{others}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{body}\n}}\n"


def cost(text: str, **kernels: float) -> hlo_cost.ProgramCost:
    return hlo_cost.price(text, make_slice(), DEVICES, kernels)


def computation(name: str, *lines: str) -> str:
    body = "\n".join(lines)
    return f"%{name} (x: f32[8]) -> f32[8] {{\n{body}\n}}\n\n"


def test_a_loop_counts_its_body_as_often_as_it_runs():
    three = "  %three = s32[]{:T(128)} constant(3)\n  %i = s32[] get-tuple-element(%x), index=0"
    less = "  ROOT %lt = pred[] compare(%i, %three), direction=LT"
    others = computation("body", work("b", 700)) + computation("stop", three, less)
    loop = "  %w = f32[8]{0} while(%x), condition=%stop, body=%body"
    assert cost(program(work("a", 50), loop, others=others)).cycles == 50 + 3 * 700
    stated = f'{loop}, backend_config={{"known_trip_count":{{"n":"5"}}}}'
    assert cost(program(work("a", 50), stated, others=others)).cycles == 50 + 5 * 700
    unknown = computation("body", "") + computation("stop", "  ROOT %p = pred[] parameter(0)")
    with pytest.raises(ValueError, match="loop w does not state how often"):
        cost(program(work("a", 50), loop, others=unknown))


@pytest.mark.parametrize(
    "names",
    ["branch_computations={%cheap, %dear}", "true_computation=%dear, false_computation=%cheap"],
)
def test_a_conditional_counts_its_dearest_branch(names):
    others = computation("cheap", work("c", 10)) + computation("dear", work("d", 900))
    text = program(work("a", 1), f"  %c = f32[8]{{0}} conditional(%x, %x), {names}", others=others)
    assert cost(text).cycles == 901


def test_random_bits_cost_their_bytes_and_kernels_their_price():
    call = '  %{name} = bf16[8]{{0}} custom-call(%x), custom_call_target="tpu_custom_call"'
    names = ("jvp_attention_forward_.1", "jvp_attention_forward_.2", "transpose_backward__.7")
    bits = "  %r = u32[1000000]{0} rng-bit-generator(%x), algorithm=rng"
    text = program(work("a", 1), bits, *(call.format(name=name) for name in names))
    found = cost(text, attention_forward=40.0)
    assert found.cycles == pytest.approx(1 + 4e6 / 1e3 + 80)  # 1,000 bytes a cycle
    assert found.kernel_cycles == 80
    assert found.kernel_calls == {"jvp_attention_forward_": 2}
    assert found.unpriced_calls == {"transpose_backward__": 1}


def test_a_kernel_is_priced_by_all_words_of_its_name_and_scope():
    """The compiler breaks the line of a kernel with metadata, as of flash attention."""
    call = (
        "  %flash_forward.{0} = bf16[8]{{0}} custom-call(%x), "
        'custom_call_target="tpu_custom_call", '
        'frontend_attributes={{kernel_metadata={{\n"sizes":"{{\\"block\\": 8}}"\n}}}}, '
        'metadata={{op_name="jit(step)/{1}/flash_forward"}}'
    )
    text = program(call.format(1, "window"), call.format(2, "complete"), work("a", 1))
    found = hlo_cost.price(
        text, make_slice(), DEVICES, {"window flash_forward": 30.0, "flash_forward": 500.0}
    )
    assert found.kernel_cycles == 530
    assert found.cycles == 531


@pytest.mark.parametrize(
    ("kind", "wire_megabytes"),
    [
        ("all-reduce", 2 * 3 / 4 * 4),
        ("all-gather", 3 / 4 * 4),
        ("reduce-scatter", 3 * 4),  # 4 MB is what each of the four keeps
    ],
)
def test_a_collective_that_nothing_hides_is_waited_for(kind, wire_megabytes):
    text = program(
        work("a", 1000),
        f"  %c = f32[1000000]{{0}} {kind}(%a), replica_groups={{{{0,1,2,3}}}}",
    )
    found = cost(text)
    traffic = found.traffic[kind, LINKS]
    assert traffic.wire_bytes == pytest.approx(wire_megabytes * 1e6)
    assert traffic.exposed_secs == pytest.approx(wire_megabytes * MS)
    assert found.secs(1e6) == pytest.approx((1 + wire_megabytes) * MS)


def test_an_all_to_all_takes_the_rate_of_all_pairs_at_once():
    text = program(
        work("a", 1), "  %c = f32[1000000]{0} all-to-all(%a), replica_groups={{0,1,2,3}}"
    )
    traffic = cost(text).traffic["all-to-all", LINKS]
    assert (traffic.result_bytes, traffic.wire_bytes) == (4e6, 3e6)
    assert traffic.exposed_secs == pytest.approx(4 * 3 * 1 * MS)  # 1 MB for each of twelve pairs


def test_a_permute_takes_the_rate_of_its_pairs():
    text = program(
        work("a", 1),
        "  %c = (f32[1000000]{0}, f32[1000000]{0}, u32[]) collective-permute-start(%a), "
        # Devices from 4 on are another slice's, which has links of its own.
        "channel_id=7, source_target_pairs={{0,1},{1,2},{2,0},{4,5},{5,6},{6,4}}, "
        "backend_config={}",
        "  %d = f32[1000000]{0} collective-permute-done(%c)",
    )
    traffic = cost(text).traffic["collective-permute", LINKS]
    assert (traffic.result_bytes, traffic.wire_bytes) == (4e6, 4e6)
    assert traffic.exposed_secs == pytest.approx(3 * 4 * MS)


def test_the_result_of_a_collective_is_counted_for_its_chip_and_over_all_arrays():
    line = "  %c = f32[1000000]{0} reduce-scatter(%a), replica_groups={{0,1,2,3}}"
    two_chips = make_slice(devices_per_chip=2)
    found = hlo_cost.price(program(work("a", 1), line), two_chips, DEVICES, {})
    traffic = found.traffic["reduce-scatter", LINKS]
    assert (traffic.result_bytes, traffic.wire_bytes) == (4e6, 8e6)
    pair = "(f32[500000]{0:T(1024)}, bf16[1000000]{0:T(1024)(128)(2,1)})"
    text = program(work("a", 1), f"  %c = {pair} all-reduce(%a, %a), replica_groups={{{{0,1}}}}")
    assert cost(text).traffic["all-reduce", LINKS].result_bytes == 4e6


@pytest.mark.parametrize(("meanwhile", "exposed_ms"), [(1000, 2.0), (3000, 0.0), (9000, 0.0)])
def test_work_between_start_and_done_hides_a_collective(meanwhile, exposed_ms):
    text = program(
        "  %s = (f32[250000]{0}, f32[1000000]{0}) all-gather-start(%x), replica_groups=[1,4]<=[4]",
        work("a", meanwhile),
        "  %d = f32[1000000]{0} all-gather-done(%s)",
    )
    traffic = cost(text).traffic["all-gather", LINKS]
    assert traffic.secs == pytest.approx(3 * MS)
    assert traffic.exposed_secs == pytest.approx(exposed_ms * MS)


def test_two_collectives_share_the_links():
    start = "  %{n} = f32[1000000]{{0}} all-reduce-start(%x), replica_groups={{{{0,1}}}}"  # 4 ms
    text = program(
        start.format(n="s1"),
        start.format(n="s2"),
        work("a", 5000),
        "  %d1 = f32[1000000]{0} all-reduce-done(%s1)",
        "  %d2 = f32[1000000]{0} all-reduce-done(%s2)",
    )
    assert cost(text).exposed_secs == pytest.approx(3 * MS)


def test_a_collective_fused_with_work_is_counted_once():
    gather = "  %g = f32[1000000]{0} all-gather(%p), channel_id=9, replica_groups={{0,1,2,3}}"
    begins = (
        '  ROOT %r = (f32[8], u32[]) custom-call(%g), custom_call_target="AsyncCollectiveStart"'
    )
    text = program(
        "  %async-collective-start = (f32[8], u32[]) fusion(%x), calls=%begin",
        work("f", 1000).replace("(%x)", "(%x), calls=%midst"),
        "  %async-collective-done = f32[8] fusion(%f), calls=%end",
        others=computation("begin", gather, begins)
        + computation("midst", gather)
        + computation("end", gather),
    )
    found = cost(text)
    assert found.cycles == 1000
    assert found.traffic["all-gather", LINKS].calls == 1
    assert found.exposed_secs == pytest.approx(2 * MS)


def test_an_all_reduce_of_which_each_keeps_a_part_is_a_reduce_scatter():
    reduce = "  %r = f32[1000000]{0} all-reduce(%p), channel_id=3, replica_groups={{0,1,2,3}}"
    line = "  %fusion.2 = f32[250000]{0} fusion(%x), calls=%all-reduce-scatter"
    text = program(work("a", 1), line, others=computation("all-reduce-scatter", reduce))
    traffic = cost(text).traffic["reduce-scatter", LINKS]
    assert traffic.result_bytes == 1e6
    assert traffic.wire_bytes == pytest.approx(3e6)
    assert traffic.exposed_secs == pytest.approx(3 * MS)


@pytest.mark.parametrize(
    ("kind", "slices", "wire_megabytes"),
    [("ALL_REDUCE", 2, 1.0), ("ALL_REDUCE", 4, 1.5), ("ONE_TO_ONE", 2, 1.0), ("ONE_TO_ONE", 4, 1)],
)
def test_between_slices_the_network_is_counted(kind, slices, wire_megabytes):
    facts = f'_xla_host_transfer_rendezvous="r",_xla_megascale_transfer_type="{kind}"'
    text = program(
        f"  %s = (f32[250000]{{0}}, u32[], token[]) send(%x), frontend_attributes={{{facts}}}",
        f"  %r = (f32[250000]{{0}}, u32[], token[]) recv(%x), frontend_attributes={{{facts}}}",
        work("a", 4000),
        "  %sd = token[] send-done(%s)",
        "  %rd = (f32[250000]{0}, token[]) recv-done(%r)",
    )
    found = hlo_cost.price(text, make_slice(slices), DEVICES, {})
    traffic = found.traffic[kind.lower().replace("_", "-"), NETWORK]
    assert traffic.secs == pytest.approx(10 * wire_megabytes * MS)  # a megabyte at 100 MB/s
    assert traffic.exposed_secs == pytest.approx((10 * wire_megabytes - 4) * MS)


def test_a_program_for_another_platform_is_refused():
    with pytest.raises(ValueError, match="compile it for a TPU"):
        cost(program("  %a = f32[8]{0} add(%x, %x)"))
    with pytest.raises(ValueError, match="states no estimated cycles"):
        cost("nothing")


def test_a_call_of_what_the_program_lacks_does_not_count_as_nothing():
    with pytest.raises(KeyError, match="lacking"):
        cost(program(work("a", 1), "  %b = f32[8]{0} call(%a), to_apply=%lacking"))


def test_cycles_agree_with_the_reader_beside_the_project(tmp_path, shared_data):
    reader = shared_data.parent / "tools" / "tpucost.py"
    text = program(
        work("a", 123_456),
        "  %c = f32[100]{0} all-reduce(%a), replica_groups={{0,1}}",
        work("b", 900_000),
        '  %k.1 = f32[8]{0} custom-call(%b), custom_call_target="tpu_custom_call"',
    )
    path = tmp_path / "step.txt"
    path.write_text(text)
    done = subprocess.run(
        [sys.executable, reader, "step", path, "--kernel", "k=5000"], capture_output=True, text=True
    )
    total = re.search(r"total ([\d.]+)M cycles", done.stdout)
    assert total is not None, done.stderr
    assert float(total.group(1)) == pytest.approx(cost(text, k=5000.0).cycles / 1e6, abs=0.005)
