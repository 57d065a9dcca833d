"""The measurement of `timing` works; the long one is `make timing`."""

from __future__ import annotations

import pytest

from tests.hostile.timing import CANARY, PAIRS, measure, welch


@pytest.mark.long
def test_the_canary_is_found() -> None:
    """A comparison that stops at the first byte that differs is seen in few tries. A busy machine
    may hide it once, not thrice."""
    assert any(measure(CANARY, 20_000, seed).tells(CANARY) for seed in (1, 2, 3))


def test_welch() -> None:
    """Equal means give nothing, and far ones much."""
    assert welch([1, 2, 3, 4], [4, 3, 2, 1]) == (0, 0)
    far = welch([10, 11, 12] * 100, [30, 31, 32] * 100)
    assert far.t < -50
    assert far.difference_ns == -20
    assert far.tells(CANARY)


@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
def test_nothing_is_told(name: str) -> None:
    """No pair of wrong tokens can be told apart. A busy machine may be unlucky once, not thrice."""
    pair = PAIRS[name]
    assert any(not measure(pair, 200_000, seed).tells(pair) for seed in (1, 2, 3))
