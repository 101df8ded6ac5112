"""Prices of chips, and what a run costs, against sums by hand."""

import json

import pytest

from bert_jax import budget, chips


def test_sixteen_chips_for_four_days():
    # 16 x 96 h x $1.20
    assert budget.cost_usd(16, 4 * 86_400, 1.2) == pytest.approx(1843.2)


def test_our_table_has_every_tpu_and_says_where_it_is_from():
    prices = budget.read_prices()
    assert prices.usd_per_chip_hour.keys() == {chip.name for chip in chips.TPUS}
    assert "https://" in prices.read


def test_a_missing_price_is_one_sentence_with_a_way_out(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"read": "our contract", "usd_per_chip_hour": {"v4": 2}}))
    prices = budget.read_prices(path)
    assert prices.usd_per_chip_hour == {"v4": 2.0}
    said = prices.missing("v5e")
    assert said.startswith(f"{path} has no price for v5e; add one under usd_per_chip_hour")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v5e: 1.2", "is not JSON"),
        ('{"v5e": 1.2}', "does not have the keys"),
        ('{"read": 3, "usd_per_chip_hour": {}}', "does not say where"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": "1.2"}}', "'1.2' as the price of v5e"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": -1}}', "-1 as the price of v5e"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": NaN}}', "nan as the price of v5e"),
    ],
)
def test_another_file_is_refused(text, said, tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        budget.read_prices(path)


def test_a_small_amount_keeps_its_cents():
    assert [budget.dollars(usd) for usd in (0.474, 99.5, 1843.2)] == ["$0.47", "$99.50", "$1,843"]
