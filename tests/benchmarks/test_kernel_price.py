"""Cycles of a kernel, counted in a schedule as libtpu writes it: loops inside the grid's."""

from benchmarks import kernel_price

SCHEDULE = """\
LB: loop body

     0   :  { %s1 = smov.u32 0 }
   0x1   :  { %s2 = smov.u32 0 }
   0x2 LB: > { %s14_s3 = sphi %s1, %s30_s3 } /* Start region 9 :: Start region 10 */
   0x3   : > { %5 = sbr.rel (%p4_p0) target = $region7 }
   0x4 LB: >> { %s17_s1 = sadd.s32 4, %s17_s0  ;;  %s8 = sshll.u32 1, 7 } /* Start region 20 */
   0x5   : >> { %p9_p1 = scmp.ge.s32.totalorder %s17_s1, 10 /* loop exit test */ }
   0x6   : >> { %11 = sbr.rel (!%p9_p1) target = $region20 }
   0x7   : > { %s12 = smov.u32 0 } /* Start/End empty region 7 */
   0x8 LB: >> { %s18_s1 = sadd.s32 1, %s18_s0 } /* Start region 30 */
   0x9   : >> { %p13_p2 = scmp.ge.s32.totalorder %s18_s1, %s19_s0 /* loop exit test */ }
   0xa   : >> { %v1 = vadd.f32 %v2, %v3 }
   0xb   : >> { %14 = sbr.rel (!%p13_p2) target = $region30 }
   0xc   : > { %p15_p3 = scmp.ge.s32.totalorder %s30_s3, 64 /* loop exit test */ }
   0xd   : > { %16 = sbr.rel (!%p15_p3) target = $region10 }
   0xe   :  { %17 = vsyncpa }
"""


def test_bundles_in_loops_count_as_often_as_they_run():
    """The first inner loop runs three times (10 in steps of 4), and only in a row's first step."""
    outside, in_first_loop, in_second_loop = 8, 3, 4
    steps, chunks = 6, 5
    expected = steps * (outside + chunks * in_second_loop) + 3 * in_first_loop
    schedule = kernel_price.Schedule(SCHEDULE, steps, chunks, slots={})
    assert schedule.count_cycles() == expected
    skipped = steps * 2 * in_second_loop
    assert schedule.count_cycles(share=3 / 5) == expected - skipped


def test_bundles_of_a_kernel_without_loops_count_once():
    text = "\n".join(line for line in SCHEDULE.splitlines() if ">>" not in line)
    assert kernel_price.count_cycles(text, 1, 1) == (8, 8)
