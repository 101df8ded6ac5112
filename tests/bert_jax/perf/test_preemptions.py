"""Expected cost of preemptions: against runs drawn at random, and limits by hand."""

import dataclasses

import numpy as np
import pytest

from bert_jax.perf import plan, plan_report, preemptions, prices, slices
from bert_jax.perf.preemptions import Stretch, expect
from tests.bert_jax.perf.test_estimate import CONFIG
from tests.bert_jax.perf.test_estimate import compiled as make_compiled
from tests.bert_jax.perf.test_estimate import plan as make_phase


def draw_runs(save_every, saves, hours, restart, runs=40_000):
    """Paid seconds and preemptions of runs, segment by segment, with preemptions drawn."""
    rng = np.random.default_rng(3)
    paid = preempted = 0.0
    for _ in range(runs * saves):
        needed, starting = save_every + preemptions.SAVE_SECS, 0.0
        while (alive := rng.exponential(hours * 3600)) < starting + needed:
            paid, preempted, starting = paid + alive, preempted + 1, restart
        paid += starting + needed
    return paid / runs, preempted / runs


@pytest.mark.parametrize(
    ("save_every", "saves", "hours", "restart"),
    [(600, 7, 3.0, 700), (3000, 3, 2.0, 300), (50, 11, 0.5, 900)],
)
def test_what_is_expected_is_the_mean_of_runs_drawn(save_every, saves, hours, restart):
    found = expect([Stretch(saves * save_every, save_every)], hours, restart)
    secs, count = draw_runs(save_every, saves, hours, restart)
    assert found.secs == pytest.approx(secs, rel=0.03)
    assert found.preemptions == pytest.approx(count, rel=0.06)
    assert found.goodput == saves * save_every / found.secs


def test_a_preemption_repeats_half_the_distance_of_saves_where_it_is_rare():
    rare = expect([Stretch(8e4, 1000), Stretch(2e4, 500)], 1e4, 700)
    saves = 120 * preemptions.SAVE_SECS
    assert rare.secs == pytest.approx(1e5 + saves, rel=1e-3)
    assert rare.repeated_secs == pytest.approx((0.8 * 1000 + 0.2 * 500) / 2, rel=0.02)


def test_the_best_distance_of_saves_loses_least():
    best = preemptions.best_save_every_secs(2.0)
    secs = {scale: expect([Stretch(1e6, scale * best)], 2.0, 700).secs for scale in (0.8, 1, 1.25)}
    assert min(secs, key=secs.get) == 1


def test_a_run_that_would_hardly_end_is_not_priced():
    assert expect([Stretch(1e6, 1e5)], 0.01, 600) is None
    assert expect([Stretch(1e5, 1e4)], 0.6, 600) is None  # 24 times as long


def request(hours=16.1, **price):
    listed = prices.Price("v5e", 1.2, region="here", source="https://there", read="x", **price)
    table = prices.Prices(prices.FILE, {"v5e": listed})
    none = plan.Corpus("config", None, None)
    return plan.PlanRequest(CONFIG, [], slices.find_slice("v5e:2x2"), table, [], none, None, hours)


def test_a_plan_has_the_cost_on_demand_and_on_spot_chips():
    phase, _ = make_phase(lambda config, words: make_compiled())
    phase = dataclasses.replace(phase, compile_secs=60.0)
    hours = phase.steps * phase.estimate.step_secs / 3600
    run = plan._add_up(request(usd_spot=0.5), [phase], 10**8)
    assert run.usd == pytest.approx(4 * hours * 1.2)
    expected = run.spot.expected
    assert expected.restart_secs == preemptions.RESTART_SECS + 60 + 1.2e9 / 200e6
    assert run.spot.usd == pytest.approx(4 * expected.secs / 3600 * 0.5)
    assert plan._add_up(request(), [phase], 1).spot is None
    slow = dataclasses.replace(phase, steps=10**9)
    rare = request(usd_spot=0.5, hours=0.01)
    assert plan._add_up(rare, [slow], 10**8).spot is None


def test_the_screen_says_what_spot_chips_cost():
    phase, _ = make_phase(lambda config, words: make_compiled())
    long = dataclasses.replace(phase, steps=round(5 * 3600 / phase.estimate.step_secs))

    def describe(asked, phase=long):
        run = plan._add_up(asked, [phase], 10**8)
        return "\n".join(text for _, text in plan_report._cost(run, asked.prices, "v5e"))

    words = describe(request(usd_spot=0.5))
    assert "on demand, at $1.20 per chip-hour in here" in words
    assert "expected on spot chips, at $0.50" in words and "goodput" in words
    assert "as small v2 and v3 slices had in 2022" in words and "https://there" in words
    assert "(given)" in describe(request(usd_spot=0.5, hours=7.0))
    assert "has no price for v5e spot; give it usd_spot" in describe(request())
    assert "not for spot chips" in describe(request(usd_spot=0.5, hours=0.01))
    short = describe(request(usd_spot=0.5), phase)
    assert "expected on spot chips, at $0.50" in short and "goodput" not in short
    assert "unlikely in less than an hour" in short


@pytest.mark.parametrize(
    ("secs", "words"),
    [(0.4, "under 1 s"), (1.2, "1 s"), (59.4, "59 s"), (59.6, "1:00"), (3725.0, "1:02:05")],
)
def test_a_time_under_a_minute_has_its_unit(secs, words):
    assert plan_report._length(secs) == words


def test_a_size_below_a_tenth_of_a_gib_is_in_mib():
    assert plan_report._gib(0.5 * 2**20) == "0.5 MiB"
    assert plan_report._gib(102 * 2**20) == "102.0 MiB"
    assert plan_report._gib(103 * 2**20) == "0.10 GiB"


def test_an_estimate_without_the_price_of_a_kernel_is_called_too_low():
    phase, _ = make_phase(lambda config, words: make_compiled())
    complete = dataclasses.replace(phase.estimate, unpriced_kernels={})
    assert "too low" not in plan_report._time(complete, None)[0][1]
    missing = dataclasses.replace(phase.estimate, unpriced_kernels={"flash_forward": 2})
    (label, text), *_ = plan_report._time(missing, None)
    assert label == "estimate"
    assert text.endswith(
        "too low: 2 calls of flash_forward count as 0 ms (this shape has no price)"
    )
