"""Filters made to be slow: their steps grow like their size, and never pass the bound."""

from __future__ import annotations

import pytest

from tandembus.core.sql import compile_filter
from tandembus.errors import FilterError
from tandembus.limits import MAX_SQL_STEPS
from tests.property.sql_linear import FAMILIES, MOST, Family
from tests.unit.core.sql_sample import context_of


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_steps_grow_like_the_size(family: Family) -> None:
    """At 2n a filter takes at most 2.5 times the steps it takes at n, in every hostile family."""
    counted = []
    for size in (family.size, 2 * family.size):
        program, context, _ = family.at(size)
        program.matches(context)
        counted.append(program.steps)
    assert counted[1] <= MOST * counted[0]
    assert counted[1] <= MAX_SQL_STEPS


def test_an_evaluation_beyond_the_bound_is_an_error() -> None:
    """A search that would need more than MAX_SQL_STEPS steps raises, and stops near the bound."""
    program = compile_filter("x LIKE '%a_a_b%'")
    with pytest.raises(FilterError, match="more than 10000 steps"):
        program.matches(context_of(x="a" * 60_000))
    assert program.steps <= MAX_SQL_STEPS + 10


def test_each_evaluation_has_its_own_steps() -> None:
    """Steps are not carried from one message to the next."""
    program = compile_filter("x LIKE '%a_a_b%'")
    for _ in range(5):
        assert program.matches(context_of(x="a" * 6_000)) is False
