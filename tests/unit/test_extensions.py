"""What Azure has no word for, as a flat `{key: value}`: read, shown, and refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.extensions import (
    KEYS,
    PRIORITY_KEYS,
    RATE_KEYS,
    PrioritySettings,
    Rate,
    RateSettings,
    extension_values,
    key_of,
    read_extensions,
)
from tandembus.settings import (
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    extensions_of,
    with_extensions,
)


@pytest.mark.req("P1", "P2", "P3")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"PriorityLevels": 3}, PrioritySettings(levels=3)),
        ({"PriorityLevels": "3"}, PrioritySettings(levels=3)),
        ({"priority-levels": 3, "RATELIMIT": None}, PrioritySettings(levels=3)),
        ({"PrioritySource": "header"}, PrioritySettings()),
        (
            {"PriorityProperty": "urgency"},
            PrioritySettings(source="property", property_name="urgency"),
        ),
        (
            {"PriorityLevels": 3, "PriorityRules": "2: tier = 'paying'\n\n 1 : size>3 AND a=':'\n"},
            PrioritySettings(
                levels=3, source="rules", rules=(("tier = 'paying'", 2), ("size>3 AND a=':'", 1))
            ),
        ),
        (
            {"priority_rules": [["vip = TRUE", 9]]},
            PrioritySettings(source="rules", rules=(("vip = TRUE", 9),)),
        ),
        ({"PriorityAgingSeconds": "1.5"}, PrioritySettings(aging_ms_per_level=1_500)),
        ({"PriorityAgingSeconds": 60}, PrioritySettings(aging_ms_per_level=60_000)),
        ({"PriorityAgingSeconds": 0.001}, PrioritySettings(aging_ms_per_level=1)),
        (
            {"PriorityLevels": 3, "PriorityWeights": "1, 2 4"},
            PrioritySettings(levels=3, weights=(1, 2, 4)),
        ),
        (
            {"PriorityLevels": 2, "PriorityWeights": [1, 2]},
            PrioritySettings(levels=2, weights=(1, 2)),
        ),
        ({"PriorityLevels": 1, "PriorityAgingSeconds": 60}, None),
        ({"PriorityLevels": "", "PriorityRules": None}, None),
        ({}, None),
    ],
)
def test_priorities(values: dict[str, object], expected: PrioritySettings | None) -> None:
    """Every form that a road has for them; what is told of the source says which it is; one level
    is no priority queue, whatever else is left over from when it was one."""
    assert read_extensions(values) == (expected, None)


@pytest.mark.req("P10")
@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100/s", Rate(100)),
        (100, Rate(100)),
        ("100", Rate(100)),
        (" 6 / min ", Rate(6, 60_000)),
        ("1000/h burst 50", Rate(1_000, 3_600_000, 50)),
        (Rate(5), Rate(5)),
    ],
)
def test_rates(text: object, rate: Rate) -> None:
    assert read_extensions({"RateLimit": text}) == (None, RateSettings(entity=rate))
    assert rate.most_at_once == (rate.burst or rate.messages)


@pytest.mark.req("P1", "P2", "P3", "P10")
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"PriorityLevel": 3}, "'PriorityLevel' is not an extension here"),
        ({"PriorityLevels": 33}, "PriorityLevels"),
        ({"PriorityLevels": "many"}, "PriorityLevels"),
        ({"PriorityLevels": True}, "PriorityLevels"),
        ({"PrioritySource": "luck"}, "PrioritySource"),
        ({"PrioritySource": "property"}, "PriorityProperty"),
        ({"PriorityProperty": 3}, "PriorityProperty"),
        ({"PriorityProperty": "p" * 129}, "PriorityProperty"),
        ({"PriorityRules": "tier = 'paying'"}, "PriorityRules"),
        ({"PriorityRules": "10: TRUE"}, "PriorityRules"),
        ({"PriorityRules": [["a = 1\nOR b = 2", 1]]}, "PriorityRules"),
        ({"PriorityAgingSeconds": 0}, "PriorityAgingSeconds"),
        ({"PriorityAgingSeconds": "0.0005"}, "PriorityAgingSeconds"),
        ({"PriorityAgingSeconds": "soon"}, "PriorityAgingSeconds"),
        ({"PriorityAgingSeconds": "Infinity"}, "PriorityAgingSeconds"),
        ({"PriorityAgingSeconds": "NaN"}, "PriorityAgingSeconds"),
        ({"PriorityAgingSeconds": [1]}, "PriorityAgingSeconds"),
        ({"PriorityWeights": "1 2"}, "PriorityWeights"),
        ({"PriorityWeights": "1 two"}, "PriorityWeights"),
        ({"RateLimit": "fast"}, "RateLimit"),
        ({"RateLimit": 0}, "RateLimit"),
        ({"RateLimit": 1.5}, "RateLimit"),
        ({"RateLimit": "1/day"}, "RateLimit"),
        ({"SenderRateLimit": "1000001/s"}, "SenderRateLimit"),
        ({"TenantRateLimit": "5/s"}, "TenantProperty"),
        ({"TenantProperty": "customer"}, "TenantProperty"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        read_extensions(values)


def test_each_kind_of_entity_has_its_own() -> None:
    """A topic hands nothing out, and nothing is sent to a subscription: neither says it does."""
    for key in RATE_KEYS:
        with pytest.raises(ArgumentError, match=key):
            with_extensions(SubscriptionSettings(), {key: "1"})
    for key in PRIORITY_KEYS:
        with pytest.raises(ArgumentError, match=key):
            with_extensions(TopicSettings(), {key: "1"})
    queue = with_extensions(QueueSettings(), {"PriorityLevels": 3, "RateLimit": "5/s"})
    assert queue.priority == PrioritySettings(levels=3)
    assert queue.rates == RateSettings(entity=Rate(5))


def test_all_keys_are_explained_and_found() -> None:
    assert set(KEYS) == {*PRIORITY_KEYS, *RATE_KEYS}
    for key, text in KEYS.items():
        assert text
        assert key_of(key) == key_of(key.upper()) == key
    assert key_of("tenant_rate-limit") == "TenantRateLimit"
    assert key_of("LockDuration") is None


names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
sql = st.sampled_from(["a = 'x: 1'", "tier = 'paying' AND n > 3", "b LIKE '%  %'", "1=1"])
rates = st.builds(
    Rate,
    st.integers(1, limits.MAX_RATE_MESSAGES),
    st.sampled_from([1_000, 60_000, 3_600_000]),
    st.integers(0, limits.MAX_RATE_MESSAGES),
)


@st.composite
def entities(draw: st.DrawFn) -> Settings:
    levels = draw(st.integers(2, 32))
    source: Any = draw(st.sampled_from(["header", "property", "rules"]))
    rule = st.tuples(sql, st.integers(0, levels - 1))
    priority = PrioritySettings(
        levels,
        source,
        draw(names) if source == "property" else None,
        tuple(draw(st.lists(rule, min_size=1, max_size=4))) if source == "rules" else (),
        draw(st.none() | st.integers(1, limits.MAX_AGING_MS)),
        draw(st.none() | st.tuples(*[st.integers(1, 1_000)] * levels)),
    )
    tenant = draw(st.none() | rates)
    limited = RateSettings(
        draw(st.none() | rates), draw(rates), tenant, None if tenant is None else draw(names)
    )
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return TopicSettings(rates=limited)
    return (
        SubscriptionSettings(priority=priority)
        if kind == 1
        else QueueSettings(priority=draw(st.sampled_from([priority, None])), rates=limited)
    )


@pytest.mark.req("P1", "P2", "P3", "P10")
@settings(max_examples=200, deadline=None)
@given(entity=entities())
def test_what_is_shown_is_read_again(entity: Any) -> None:
    """As texts, as XML and a command line have them; and as the JSON of the log."""
    entity.validate()
    texts = {key: str(value) for key, value in extensions_of(entity).items()}
    assert with_extensions(type(entity)(), texts) == entity
    assert type(entity).from_json(json.loads(json.dumps(entity.to_json()))) == entity


def test_a_plain_entity_has_none() -> None:
    assert extension_values(None) == {}
    assert extensions_of(QueueSettings()) == {}
    rich = with_extensions(QueueSettings(), {"PriorityLevels": 3, "RateLimit": 5})
    assert with_extensions(rich, {}) == QueueSettings()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"rates": 3}, "Rates"),
        ({"rates": {"entity": 3}}, "RateLimit"),
        ({"rates": {"entity": {"messages": "1"}}}, "RateLimit.Messages"),
        ({"rates": {"speed": 3}}, "'speed'"),
    ],
)
def test_what_is_stored_is_checked(data: dict[str, object], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        QueueSettings.from_json(data)


def test_a_unit_that_there_is_not() -> None:
    with pytest.raises(ArgumentError, match="one of s, min, h"):
        QueueSettings(rates=RateSettings(entity=Rate(1, 5))).validate()
    with pytest.raises(ArgumentError, match="SenderRateLimit"):
        TopicSettings(rates=RateSettings(sender=Rate(0))).validate()
