"""Numbers as people read them."""

from __future__ import annotations

import pytest

from tandembus.spark.report import words


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"), (0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (9_960, "10.0 s"),
        (12_345, "12 s"), (60_000, "1 min"), (125_000, "2 min 5 s"), (3_600_000, "1 h"),
        (8_100_000, "2 h 15 min"), (3 * 86_400_000 + 4 * 3_600_000, "3 days 4 h"),
    ],
)  # fmt: skip
def test_length(ms: float | None, text: str) -> None:
    assert words.length(ms) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "–"), (0, "0 %"), (1, "100 %"), (0.9999, "over 99.9 %"), (0.00001, "under 0.1 %"),
        (0.5, "50 %"), (0.025, "2.5 %"), (0.995, "99.5 %"),
    ],
)  # fmt: skip
def test_percent(share: float | None, text: str) -> None:
    """Never all unless it is all, nor none unless it is none."""
    assert words.percent(share) == text


def test_sizes_money_plural() -> None:
    assert [words.size(n) for n in (None, 5, 1_500, 250_000, 3e9, 2e12)] == [
        "–", "5 B", "1.5 kB", "250 kB", "3.0 GB", "2.0 TB",
    ]  # fmt: skip
    assert words.money(1234.5, "USD") == "1,234.50 USD"
    assert words.money(0.01234, "USD") == "0.01 USD"
    assert words.money(0.00123, "USD") == "0.0012 USD"
    assert words.plural(1, "message") == "1 message"
    assert words.plural(1_000, "entry", "entries") == "1,000 entries"
    assert (words.rate(3.14), words.rate(3_140), words.rate(None)) == ("3.1", "3,140", "–")
