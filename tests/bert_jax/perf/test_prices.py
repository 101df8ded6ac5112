"""Prices of chips, what a run costs against sums by hand, and prices of kernels by their shape."""

import json

import pytest

from bert_jax.parallel import chips
from bert_jax.perf import prices
from bert_jax.perf.prices import Shape


def test_our_table_has_every_tpu_and_says_where_it_is_from():
    ours = prices.read_prices()
    assert ours.usd_per_chip_hour.keys() == {chip.name for chip in chips.TPUS}
    assert "https://" in ours.read


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5e: 1.2", "is not JSON"),
        ('{"v5e": 1.2}', "has no key 'read'; write it like"),
        ('{"read": 3, "usd_per_chip_hour": {}}', "'read' is a whole number, not a string; write"),
        ('{"read": "x", "usd_per_chip_hour": 3}', "'usd_per_chip_hour' is a whole number, not an"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": "1.2"}}', "'1.2' as the price of v5e"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": -1}}', "-1 as the price of v5e"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": NaN}}', "nan as the price of v5e"),
        ('{"read": "x", "usd_per_chip_hour": {"v5e": true}}', "True as the price of v5e"),
    ],
)
def test_another_file_is_refused(text, words, tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        prices.read_prices(path)


def test_a_kernel_has_the_price_of_its_shape(tmp_path, monkeypatch):
    shape = {"chip": "v5e", "seq_len": 128, "heads": 12, "head_width": 64, "has_dropout": True}
    path = tmp_path / "prices.json"
    path.write_text(json.dumps([shape | {"forward_cycles": 1234, "backward_cycles": 2345}]))
    assert prices.look_up_cycles(Shape("v5e", 7, 1, 3, True)) == {}  # in our own file
    monkeypatch.setattr(prices, "KERNEL_PRICES", path)
    expected = {"attention_forward": 1234, "attention_backward": 2345}
    assert prices.look_up_cycles(Shape("v5e", 128, 12, 64, True)) == expected
    assert prices.look_up_cycles(Shape("v5e", 512, 12, 64, True)) == {}


def test_flash_attention_has_a_price_for_each_mask(tmp_path, monkeypatch):
    sizes = {"chip": "v5e", "seq_len": 1024, "heads": 12, "head_width": 64, "has_dropout": False}
    of_window = sizes | {"kernel": "flash", "window": 128}
    path = tmp_path / "prices.json"
    rows = [
        sizes | {"forward_cycles": 1, "backward_cycles": 2},
        sizes | {"kernel": "flash", "window": 0, "forward_cycles": 3, "backward_cycles": 4},
        of_window | {"forward_cycles": 5, "backward_cycles": 6},
    ]
    path.write_text(json.dumps(rows))
    monkeypatch.setattr(prices, "KERNEL_PRICES", path)
    expected = {"flash_window flash_forward": 5, "flash_window flash_backward": 6}
    assert prices.look_up_cycles(Shape(**of_window)) == expected
    complete = Shape(**of_window | {"window": 0})
    assert prices.look_up_cycles(complete) == {"flash_forward": 3, "flash_backward": 4}
    assert prices.look_up_cycles(Shape(**of_window | {"window": 64})) == {}
