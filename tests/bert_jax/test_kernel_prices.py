"""Prices of kernels: found by shape, absent where nobody counted them."""

import json

import pytest

from bert_jax import kernel_prices
from bert_jax.kernel_prices import Shape

ROW = {
    "chip": "v5e",
    "seq_len": 128,
    "heads": 12,
    "head_width": 64,
    "has_dropout": True,
    "forward_cycles": 1234,
    "backward_cycles": 2345,
}


@pytest.fixture
def one_price(tmp_path, monkeypatch):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps([ROW]))
    monkeypatch.setattr(kernel_prices, "FILE", path)
    kernel_prices._table.cache_clear()
    yield
    kernel_prices._table.cache_clear()


def test_a_price_is_found_by_its_shape(one_price):
    assert kernel_prices.cycles_per_row(Shape("v5e", 128, 12, 64, True)) == {
        "attention_forward": 1234,
        "attention_backward": 2345,
    }


def test_another_shape_has_no_price(one_price):
    assert kernel_prices.cycles_per_row(Shape("v5e", 512, 12, 64, True)) == {}


def test_our_file_is_read():
    assert kernel_prices.cycles_per_row(Shape("v5e", 7, 1, 3, True)) == {}
