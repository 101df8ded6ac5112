"""The cost of a plan, on demand and on spot chips, and its sizes and times in words."""

import dataclasses

import pytest

from bert_jax.config import Config, ModelConfig
from bert_jax.planning import chip_prices, plan, plan_report, slices
from bert_jax.trainer import setup
from data_pipeline.spec.options import PretrainOptions
from tests.bert_jax.planning.test_estimate import CONFIG
from tests.bert_jax.planning.test_estimate import compiled as make_compiled
from tests.bert_jax.planning.test_estimate import plan as make_phase


def request(**price):
    listed = chip_prices.Price("v5e", 1.2, region="here", source="https://there", read="x", **price)
    table = chip_prices.Prices(chip_prices.FILE, {"v5e": listed})
    none = plan.Corpus(None, None)
    return plan.PlanRequest(CONFIG, slices.find_slice("v5e:2x2"), table, [], none, "config")


def test_a_plan_has_the_cost_on_demand_and_on_spot_chips():
    phase, _ = make_phase(lambda config, words: make_compiled())
    hours = phase.steps * phase.estimate.step_secs / 3600

    def describe(run, asked):
        return "\n".join(text for _, text in plan_report._cost(run, asked.prices, "v5e"))

    run = plan._add_up(request(usd_spot=0.5), [phase])
    assert run.usd == pytest.approx(4 * hours * 1.2)
    assert run.usd_spot == pytest.approx(4 * hours * 0.5)
    words = describe(run, request(usd_spot=0.5))
    assert "on demand, at $1.20 per chip-hour in here" in words
    assert "on spot chips, at $0.50 per chip-hour" in words and "https://there" in words
    undated = describe(dataclasses.replace(run, price_read=""), request(usd_spot=0.5))
    assert "prices.json: read x\n" in words and "prices.json\n" in undated
    without = plan._add_up(request(), [phase])
    assert without.usd_spot is None
    assert "has no price for v5e spot; give it usd_spot" in describe(without, request())


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


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        (Config(), "assumed"),
        (Config(model=ModelConfig(vocab_size=setup.VOCAB_SIZE)), "config"),
        (Config(init="hf:DIR"), "config"),
        (Config(init="hf:DIR", data=PretrainOptions(store="STORE")), "store"),
    ],
)
def test_a_plan_says_whose_vocabulary_it_takes(config, origin):
    assert plan.name_vocabulary_origin(config) == origin
