"""Prices of chips, on demand and spot, and prices of kernels by their shape."""

import datetime
import json
import math

import pytest

from bert_jax.parallel import chips
from bert_jax.planning import chip_prices
from bert_jax.planning.chip_prices import KernelShape


def test_our_list_says_where_each_price_is_from():
    ours = chip_prices.read_prices().by_chip
    # No price of tpu7x with a source that can be read was at hand.
    assert ours.keys() == {chip.name for chip in chips.TPUS} - {"tpu7x"}
    for price in ours.values():
        assert "https://" in price.source and price.region
        datetime.date.fromisoformat(price.read.partition(",")[0])
        assert 0 < price.usd_spot < price.usd_on_demand


ENTRY = {"chip": "v5e", "usd_on_demand": 1.2, "region": "", "source": "", "read": ""}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v5e: 1.2", "is not JSON"),
        ('{"v5e": 1.2}', "has no key 'prices'; write it like"),
        *(
            (json.dumps({"prices": [ENTRY | {name: usd}]}), f"item 0: '{name}' is .*; write it")
            for name in ("usd_on_demand", "usd_spot")
            for usd in ("1.2", -1, math.nan, 10**28, {"a": 1}, True)
        ),
        ('{"prices": 3}', "'prices' is a whole number, not a list; write it like"),
        ('{"prices": [{"chip": "v5e"}]}', "item 0 has no key 'usd_on_demand'; write it"),
        (
            json.dumps({"prices": [ENTRY, ENTRY]}),
            "two prices of v5e; keep the price of your region",
        ),
    ],
)
def test_another_file_is_refused(text, words, tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        chip_prices.read_prices(path)


def test_a_kernel_has_the_price_of_its_shape(tmp_path, monkeypatch):
    shape = {"chip": "v5e", "seq_len": 128, "heads": 12, "head_width": 64, "has_dropout": True}
    path = tmp_path / "prices.json"
    path.write_text(json.dumps([shape | {"forward_cycles": 1234, "backward_cycles": 2345}]))
    assert chip_prices.look_up_cycles(KernelShape("v5e", 7, 1, 3, True)) == {}  # in our own file
    monkeypatch.setattr(chip_prices, "KERNEL_PRICES", path)
    expected = {"attention_forward": 1234, "attention_backward": 2345}
    assert chip_prices.look_up_cycles(KernelShape("v5e", 128, 12, 64, True)) == expected
    assert chip_prices.look_up_cycles(KernelShape("v5e", 512, 12, 64, True)) == {}


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
    monkeypatch.setattr(chip_prices, "KERNEL_PRICES", path)
    expected = {"flash_window flash_forward": 5, "flash_window flash_backward": 6}
    assert chip_prices.look_up_cycles(KernelShape(**of_window)) == expected
    complete = KernelShape(**of_window | {"window": 0})
    assert chip_prices.look_up_cycles(complete) == {"flash_forward": 3, "flash_backward": 4}
    assert chip_prices.look_up_cycles(KernelShape(**of_window | {"window": 64})) == {}


def test_every_chip_has_prices_of_each_kernel():
    rows = json.loads(chip_prices.KERNEL_PRICES.read_text())
    assert {row["chip"] for row in rows} == {"v4", "v5e", "v5p", "v6e", "tpu7x"}
