"""Rules of subscriptions as `$management` carries them: maps in, described lists out (WIRE.md §7).

What a rule means is `core.rules`. The rule here: what is not set is null on the way out and may be
null or left out on the way in; a rule without a filter takes every message.
"""

from __future__ import annotations

from typing import Any, Final, assert_never
from uuid import UUID

from tandembus.amqp.types import Described
from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandembus.errors import ArgumentError
from tandembus.model import Millis, Timestamp
from tandembus.server.requests import Arguments

RULE_DESCRIPTION: Final = 0x0000_0137_0000_0004
EMPTY_ACTION: Final = 0x0000_0137_0000_0005
SQL_ACTION: Final = 0x0000_0137_0000_0006
# The filters' codes have one digit fewer; so it is in every SDK.
SQL_FILTER: Final = 0x0000_0013_7000_0006
TRUE_FILTER: Final = 0x0000_0013_7000_0007
FALSE_FILTER: Final = 0x0000_0013_7000_0008
CORRELATION_FILTER: Final = 0x0000_0013_7000_0009

_FIELDS: Final = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)
"""Of a correlation filter: the keys on the way in, and the order on the way out."""


def rule_of(name: str, description: Arguments, now: Millis) -> Rule:
    """The rule that an add-rule describes. Whether its SQL can be read is found when it is
    added."""
    action = description.optional_map("sql-rule-action")
    expression = "" if action is None else action.text("expression", "")
    return Rule(name, _filter_of(description), SqlAction(expression) if expression else None, now)


def _filter_of(description: Arguments) -> RuleFilter:
    sql = description.optional_map("sql-filter")
    correlation = description.optional_map("correlation-filter")
    if sql is not None and correlation is not None:
        raise ArgumentError("A rule has one filter, not two.")
    if sql is not None:
        return SqlFilter(sql.text("expression"))
    if correlation is None:
        return TrueFilter()
    values = correlation.simple_values("properties")
    fields: dict[str, Any] = {
        field.replace("-", "_"): _identifier(correlation, field) for field in _FIELDS
    }
    return CorrelationFilter(**fields, properties=values)


def _identifier(correlation: Arguments, field: str) -> str | None:
    value = correlation.values.get(field)
    # Ids are compared by their text (WIRE.md §11.5).
    return str(value) if isinstance(value, UUID) else correlation.optional_text(field)


def described_rule(rule: Rule) -> Described:
    """As enumerate-rules shows it. The action is there always: @azure/service-bus looks into it
    without asking."""
    if rule.action is None:
        action = Described(EMPTY_ACTION, [])
    else:
        action = Described(SQL_ACTION, [rule.action.expression])
    described = [_described_filter(rule.filter), action, rule.name, Timestamp(rule.created_ms)]
    return Described(RULE_DESCRIPTION, described)


def _described_filter(description: RuleFilter) -> Described:
    match description:
        case TrueFilter():
            return Described(TRUE_FILTER, [])
        case FalseFilter():
            return Described(FALSE_FILTER, [])
        case SqlFilter(expression):
            return Described(SQL_FILTER, [expression])
        case CorrelationFilter():
            fields = [getattr(description, name.replace("-", "_")) for name in _FIELDS]
            return Described(CORRELATION_FILTER, [*fields, dict(description.properties)])
        case _:
            assert_never(description)
