"""Entities in the console: what there is and how much, their settings, their rules."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest
from typing import Any, Final

from tandembus.admin.console.site import Visit
from tandembus.admin.declared import carry_out, described, entities_of, rule_of
from tandembus.amqp.message import AmqpMessage
from tandembus.changes import EntityKind
from tandembus.client.written import from_json
from tandembus.config import Declared, DeclaredRule, Kind
from tandembus.config.entities import FIXED, changes, declare, names_of, read_rule
from tandembus.core import commands as c
from tandembus.core.access import Right
from tandembus.core.queue import Queue
from tandembus.core.rules import RuleSet
from tandembus.core.sql import Context
from tandembus.core.state import State
from tandembus.errors import ArgumentError, FilterError
from tandembus.limits import CONSOLE_PAGE, MAX_CONSOLE_PAGE
from tandembus.model import NO_EDITS, Millis

_AT_ONCE: Final = 200
"""Entities between two turns of the loop."""
KINDS: Final = {
    EntityKind.QUEUE: "queue",
    EntityKind.TOPIC: "topic",
    EntityKind.SUBSCRIPTION: "subscription",
}


def counts(queue: Queue) -> dict[str, int]:
    states, (dead, not_transferred) = queue.counts, queue.dead_letter_counts
    return {
        "active": queue.active_count,
        "scheduled": states[State.SCHEDULED],
        "deferred": states[State.DEFERRED] + states[State.DEFERRED_LOCKED],
        "delayed": states[State.DELAYED],
        "dead": dead,
        "transfer": queue.transfer_count,
        "transfer_dead": not_transferred,
        "bytes": queue.size_bytes + sum(each.size_bytes for each in queue.its_dead_letters),
        "in": queue.tally.incoming,
        "out": queue.tally.outgoing,
    }


def row(queue: Queue) -> dict[str, Any]:
    return {
        "path": queue.path,
        "kind": KINDS[queue.kind],
        "status": str(getattr(queue.settings, "status", "Active")),
        "sessions": queue.sessions is not None,
        "levels": queue.levels[0],
        **counts(queue),
    }


def all_of(visit: Visit) -> Iterator[Queue]:
    for queue in visit.broker.namespace.entities:
        if queue.kind in KINDS and visit.sees(queue.path):
            yield queue


async def listed(visit: Visit) -> dict[str, Any]:
    """A page of entities, by name; `search` is a part of it."""
    search = visit.text("search", "").lower()
    found: list[Queue] = []
    for place, queue in enumerate(all_of(visit)):
        if place % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if search in queue.path.lower():
            found.append(queue)
    order = visit.text("sort", "path")
    keys: dict[str, Any] = {
        "active": lambda queue: -queue.active_count,
        "dead": lambda queue: -counts(queue)["dead"],
        "bytes": lambda queue: -queue.size_bytes,
    }
    found.sort(key=lambda queue: queue.path.lower())
    if order in keys:
        found.sort(key=keys[order])
    skip = visit.integer("skip", 0, 1_000_000)
    top = visit.integer("top", CONSOLE_PAGE, MAX_CONSOLE_PAGE)
    return {"total": len(found), "rows": [row(queue) for queue in found[skip : skip + top]]}


def shown(visit: Visit) -> dict[str, Any]:
    queue = visit.queue()
    if queue.kind is EntityKind.DEAD_LETTER:
        return {"path": queue.path, "kind": "dead-letter", "active": queue.active_count}
    declared = _declared(queue)
    answer: dict[str, Any] = row(queue)
    answer["settings"] = {name: declared.shown(name) for name in names_of(declared.kind)}
    answer["fixed"] = list(FIXED)
    answer["may"] = {
        "send": visit.may(queue.path, Right.SEND),
        "listen": visit.may(queue.path, Right.LISTEN),
        "manage": visit.may(queue.path, Right.MANAGE),
    }
    answer["receivers"] = len(queue.receivers.links)
    answer["oldest_ms"] = oldest_ms(queue, visit.broker.now_ms())
    if queue.kind is EntityKind.TOPIC:
        answer["subscriptions"] = [row(each) for _, each in sorted(queue.subscriptions.items())]
    if queue.kind is EntityKind.SUBSCRIPTION:
        rules = visit.broker.namespace.rules(queue.path)
        answer["rules"] = [
            {
                "name": each.name,
                "filter": each.filter if isinstance(each.filter, str) else json.dumps(each.filter),
                "action": each.action,
            }
            for each in map(described, rules)
        ]
    return answer


def _declared(queue: Queue) -> Declared:
    kind = Kind(KINDS[queue.kind])
    return Declared(kind, queue.path, queue.settings, frozenset(names_of(kind)))


def oldest_ms(queue: Queue, now: Millis) -> Millis:
    """How long the oldest active message has been there."""
    firsts = [part.table.first_in((State.WAITING, State.LOCKED)) for part in queue.parts]
    return max((now - first for first in firsts if first is not None), default=0)


# --- changing -------------------------------------------------------------------------------------


async def put(visit: Visit) -> dict[str, Any]:
    """Make an entity, or change the settings that are named."""
    kind, path = _kind(visit.text("kind")), visit.text("path")
    settings = visit.said.get("settings", {})
    if not isinstance(settings, dict):
        raise ArgumentError("'settings' is an object.")
    named = {name: None if value in ("", "-") else value for name, value in settings.items()}
    wanted = declare(kind, path, named)
    there = [each for each in entities_of(visit.broker.namespace) if each.path == path]
    steps = changes(there, [wanted])
    for step in steps:
        await carry_out(_Mine(visit), [step])
    return {"changed": [str(step) for step in steps]}


class _Mine:
    """The broker with the visitor's claims instead of everybody's."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self.namespace = visit.broker.namespace
        self.now_ms = visit.broker.now_ms

    async def execute(self, command: c.Command, claims: object) -> Any:
        return await self._visit.execute(command)


def _kind(word: str) -> Kind:
    try:
        return Kind(word)
    except ValueError:
        raise ArgumentError(f"There is no kind '{word:.40}' of entity.") from None


async def delete(visit: Visit) -> dict[str, Any]:
    await visit.execute(c.DeleteEntity(visit.queue().path))
    return {}


async def put_rule(visit: Visit) -> dict[str, Any]:
    rule = rule_of(_read_rule(visit), visit.broker.now_ms())
    await visit.execute(c.AddRule(visit.queue().path, rule))
    return {}


async def delete_rule(visit: Visit) -> dict[str, Any]:
    await visit.execute(c.RemoveRule(visit.queue().path, visit.text("name")))
    return {}


def _read_rule(visit: Visit) -> DeclaredRule:
    said = {"filter": visit.said.get("filter") or "1=1", "action": visit.said.get("action") or None}
    return read_rule(visit.text("name"), said, "rule")


def try_rules(visit: Visit) -> dict[str, Any]:
    """Which rules of a subscription, or of one filter on trial, take a message, and why."""
    now = visit.broker.now_ms()
    message = AmqpMessage(from_json(visit.said.get("message"), "message", now).encoded())
    if visit.said.get("filter"):
        rules = [rule_of(_read_rule(visit), now)]
    else:
        rules = list(visit.broker.namespace.rules(visit.queue().path))
    results = []
    for rule in rules:
        result: dict[str, Any] = {"name": rule.name, "matches": False, "why": ""}
        try:
            chosen = RuleSet([rule]).evaluate(Context(message, {}, NO_EDITS, uuid.uuid4))
            result["matches"] = bool(chosen.plain or chosen.copies)
            result["why"] = chosen.failed or ""
            result["changes"] = [
                {name: str(value) for name, value in edits.properties.items()}
                for _, edits in chosen.copies
            ]
        except FilterError as error:
            result["why"] = str(error)
        results.append(result)
    return {"rules": results}


# --- sessions and levels --------------------------------------------------------------------------


def sessions(visit: Visit) -> dict[str, Any]:
    queue = visit.queue()
    if queue.sessions is None:
        raise ArgumentError(f"'{queue.path}' does not require sessions.")
    if not visit.may(queue.path, Right.LISTEN):
        raise ArgumentError("Sessions are shown to a key with Listen.")
    now = visit.broker.now_ms()
    skip = visit.integer("skip", 0, 1_000_000)
    top = visit.integer("top", CONSOLE_PAGE, MAX_CONSOLE_PAGE)
    names = nsmallest(skip + top, queue.sessions.names())[skip:]
    return {
        "total": len(queue.sessions),
        "rows": [
            {
                "id": each.id,
                "holder": each.link if each.is_locked(now) else None,
                "left_ms": max(0, each.locked_until_ms - now) if each.is_locked(now) else 0,
                "state": None if each.state is None else len(each.state),
                "waiting": each.waiting,
                "held": len(each.held),
            }
            for each in map(queue.sessions.open, names)
        ],
    }


AGES_S: Final = (1, 5, 30, 120, 600, 3_600)
"""Borders of the heat strip."""


def levels(visit: Visit) -> dict[str, Any]:
    """Waiting messages by level and age, from a sample of the oldest ones."""
    queue = visit.queue()
    now, most = visit.broker.now_ms(), queue.levels[0]
    heat = [Counter[int]() for _ in range(most)]
    waiting = [0] * most
    for part in queue.parts:
        for level, count in enumerate(part.table.waiting_by_level(most)):
            waiting[level] += count
        for place, (chunk, at) in enumerate(part.table.rows_from(0)):
            if place >= MAX_CONSOLE_PAGE * 10:
                break
            if chunk.states[at] == State.WAITING:
                age_s = (now - chunk.enqueued[at]) // 1_000
                border = sum(age_s >= edge for edge in AGES_S)
                heat[chunk.level(at)][border] += 1
    return {
        "path": queue.path,
        "ages_s": AGES_S,
        "levels": [
            {
                "level": level,
                "waiting": waiting[level],
                "heat": [heat[level][age] for age in range(len(AGES_S) + 1)],
            }
            for level in range(most - 1, -1, -1)
        ],
    }
