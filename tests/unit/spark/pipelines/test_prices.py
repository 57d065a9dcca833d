"""The table of prices."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from tandembus.errors import ArgumentError
from tandembus.spark.pipelines.prices import read_prices


@pytest.mark.req("D6")
def test_the_tiers_of_a_month() -> None:
    """Each part of the operations has the price of its tier."""
    prices = read_prices()
    assert prices.tiers[-1].up_to == inf
    assert prices.of(13_000_000) == 0
    assert prices.of(14_000_000) == pytest.approx(0.80)
    assert prices.of(100_000_000) == pytest.approx(87 * 0.80)
    assert prices.of(3_000_000_000) == pytest.approx(87 * 0.8 + 2_400 * 0.5 + 500 * 0.2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("currency = ", "prices.toml"),
        ("curency = 'EUR'", "unknown key 'curency'"),
        ("[operations]\nflown = 'send'", "no kind 'flown'"),
        ("currency = 'EUR'", r"\[operations\] is missing"),
        ("[operations]\naccepted = 'send'", "only the last has no up_to"),
        ("[[tier]]\nup_to = 5\nper_million = 1\n[operations]\naccepted = 'send'", "only the last"),
        ("[[tier]]\nper_million = -1\n[operations]\naccepted = 'send'", "not negative"),
        ("[[tier]]\n[operations]\naccepted = 'send'", "per_million is a number"),
        ("base_per_hour = 'much'\n[operations]\naccepted = 'send'", "base_per_hour is a number"),
    ],
)
def test_mistakes_are_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        read_prices(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_prices(tmp_path / "nothing.toml")
