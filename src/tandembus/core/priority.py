"""Which level a message has when it comes in (P1, P2). How levels order the queue is `ready`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias
from uuid import UUID

from tandembus.core.sql import compile_filter
from tandembus.core.sql_context import Context
from tandembus.errors import FilterError
from tandembus.model import NO_EDITS, Message
from tandembus.settings import PrioritySettings

LevelOf: TypeAlias = Callable[[Message], int]

AMQP_PRIORITIES: Final = 10
AMQP_DEFAULT_PRIORITY: Final = 4
"""AMQP 1.0 §3.2.1: what a message without the field has."""


def no_new_id() -> UUID:
    raise FilterError("newid() cannot be used in a priority rule.")


def level_of(settings: PrioritySettings) -> LevelOf:
    """The function that gives a message its level, 0 (lowest) to `levels - 1`."""
    match settings.source:
        case "header":
            return lambda message: _from_header(message.priority, settings.levels)
        case "property":
            assert settings.property_name is not None
            name = settings.property_name
            return lambda message: _from_property(message.properties, name, settings.levels)
        case "rules":
            rules = [(compile_filter(text), level) for text, level in settings.rules]

            def by_rules(message: Message) -> int:
                context = Context(message, {}, NO_EDITS, no_new_id)
                for rule, level in rules:
                    try:
                        if rule.matches(context):
                            return level
                    except FilterError:
                        continue  # a rule that cannot be evaluated does not match (WIRE.md §11.1)
                return 0

            return by_rules


def _from_header(priority: int | None, levels: int) -> int:
    """Ten or more levels take the priority as it is; fewer share the ten among them."""
    given = AMQP_DEFAULT_PRIORITY if priority is None else min(priority, AMQP_PRIORITIES - 1)
    return given if levels >= AMQP_PRIORITIES else given * levels // AMQP_PRIORITIES


def _from_property(properties: Mapping[str, object], name: str, levels: int) -> int:
    value = properties.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return max(0, min(value, levels - 1))
