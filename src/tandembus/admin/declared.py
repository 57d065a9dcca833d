"""Entities that a file declares, carried out in the broker: what is there, and step by step what
is wanted.

How the two differ is `config.entities`. The rule: each step is a command like anybody's, on disk
before the next begins; one that is refused stops the rest, and says which it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, assert_never, cast

from tandembus.changes import EntityKind
from tandembus.config import Change, Declared, DeclaredRule, Kind
from tandembus.config.entities import FIXED, names_of
from tandembus.core import commands as c
from tandembus.core.access import Claims, everything
from tandembus.core.namespace import Namespace
from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandembus.errors import ArgumentError, Refused
from tandembus.model import Millis, Value
from tandembus.names import DEFAULT_RULE
from tandembus.settings import QueueSettings, Settings, SubscriptionSettings, TopicSettings

_KINDS: Mapping[EntityKind, Kind] = {
    EntityKind.QUEUE: Kind.QUEUE,
    EntityKind.TOPIC: Kind.TOPIC,
    EntityKind.SUBSCRIPTION: Kind.SUBSCRIPTION,
}


class Broker(Protocol):
    @property
    def namespace(self) -> Namespace: ...
    async def execute(self, command: c.Command, claims: Claims) -> Any: ...
    def now_ms(self) -> Millis: ...


def entities_of(namespace: Namespace) -> list[Declared]:
    """What is there, in the form of a declaration."""
    found: list[Declared] = []
    for entity in sorted(namespace.entities, key=lambda each: each.path.lower()):
        kind = _KINDS.get(entity.kind)
        if kind is None or kind is Kind.SUBSCRIPTION:  # those are with their topic
            continue
        found.append(_declared(kind, entity.path, entity.settings))
        if kind is Kind.TOPIC:
            for _, below in sorted(entity.subscriptions.items()):
                rules = [described(rule) for rule in namespace.rules(below.path)]
                one = _declared(Kind.SUBSCRIPTION, below.path, below.settings)
                found.append(replace(one, rules=tuple(rules)))
    return found


def _declared(kind: Kind, path: str, settings: Any) -> Declared:
    return Declared(kind, path, settings, frozenset(names_of(kind)))


async def carry_out(broker: Broker, changes: Iterable[Change]) -> None:
    """Those changes. Raises ArgumentError with the one that was refused."""
    later: list[Change] = []
    for change in changes:
        try:
            for command in _commands(broker, change, later):
                await broker.execute(command, everything())
        except Refused as error:
            raise ArgumentError(f"{change.verb} {change.what} {change.path}: {error}") from None
    for change in later:  # forwarded to what was not there yet
        assert change.entity is not None
        await broker.execute(c.UpdateEntity(change.path, change.entity.settings), everything())


def _commands(broker: Broker, change: Change, later: list[Change]) -> Sequence[c.Command]:
    entity, rule = change.entity, change.rule
    now = broker.now_ms()
    if rule is not None:
        assert entity is not None
        match change.verb:
            case "create":
                has_it = any(
                    each.name.lower() == rule.name.lower()
                    for each in broker.namespace.rules(entity.path)
                )
                if has_it:  # the one that the subscription was made with
                    return ()
                return (c.AddRule(entity.path, rule_of(rule, now)),)
            case "update":
                return (c.UpdateRule(entity.path, rule_of(rule, now)),)
            case _:
                return (c.RemoveRule(entity.path, rule.name),)
    if change.verb == "delete":
        return (c.DeleteEntity(change.path),)
    assert entity is not None
    if change.verb == "cannot":
        names = ", ".join(name for name, _, _ in change.details if name in FIXED)
        raise ArgumentError(f"{names} cannot be changed: delete it first, with its messages.")
    if change.verb == "update":
        return (c.UpdateEntity(change.path, entity.settings),)
    settings = _without_missing(broker.namespace, entity.settings)
    if settings != entity.settings:
        later.append(change)
    return (_creation(entity, settings, now),)


def _creation(entity: Declared, settings: Settings, now: Millis) -> c.Command:
    match settings:
        case QueueSettings():
            return c.CreateQueue(entity.path, settings)
        case TopicSettings():
            return c.CreateTopic(entity.path, settings)
        case SubscriptionSettings():
            topic, _, name = entity.path.rpartition("/Subscriptions/")
            # The first rule is made with it, so that no message comes in by the default one.
            first = None if not entity.rules else rule_of(entity.rules[0], now)
            return c.CreateSubscription(topic, name, settings, first)
    assert_never(settings)


def _without_missing(namespace: Namespace, settings: Settings) -> Settings:
    """Without forwarding to what is not there (yet)."""
    if isinstance(settings, TopicSettings):
        return settings
    missing: dict[str, Any] = {
        name: None
        for name in ("forward_to", "forward_dead_letters_to")
        if (target := getattr(settings, name)) is not None and target not in namespace
    }
    return cast(Settings, replace(settings, **missing))


# --- rules ----------------------------------------------------------------------------------------


def rule_of(declared: DeclaredRule, now: Millis) -> Rule:
    action = None if declared.action is None else SqlAction(declared.action)
    name = "$Default" if declared.name.lower() == DEFAULT_RULE else declared.name
    if isinstance(declared.filter, str):
        plain = declared.filter.replace(" ", "")
        match plain:
            case "1=1":
                return Rule(name, TrueFilter(), action, now)
            case "1=0":
                return Rule(name, FalseFilter(), action, now)
        return Rule(name, SqlFilter(declared.filter), action, now)
    fields: dict[str, Any] = dict(declared.filter)
    return Rule(name, CorrelationFilter(**fields), action, now)


def described(rule: Rule) -> DeclaredRule:
    action = None if rule.action is None else rule.action.expression
    match rule.filter:
        case TrueFilter():
            return DeclaredRule(rule.name, "1=1", action)
        case FalseFilter():
            return DeclaredRule(rule.name, "1=0", action)
        case SqlFilter(expression):
            return DeclaredRule(rule.name, expression, action)
        case CorrelationFilter() as wanted:
            named: dict[str, Value | Mapping[str, Value]] = {
                name: getattr(wanted, name)
                for name in wanted.__dataclass_fields__
                if name != "properties" and getattr(wanted, name) is not None
            }
            if wanted.properties:
                named["properties"] = dict(wanted.properties)
            return DeclaredRule(rule.name, named, action)
    assert_never(rule.filter)
