"""Faults planted into the journal of an honest run: each is what a broker that loses, doubles or
forgets would have written.

The rule: one fault a message, and no two in messages that share a body, so that each can be found
by itself. What a fault may be told by is its *family*: the message, its dead letter, and what was
copied or forwarded of it, or sent under the same id to a paired namespace.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tandembus.changes import TRANSFER_BIT
from tandembus.journal.schema import ENDS, RETURNS

Row = dict[str, Any]
Key = tuple[str, int, int]
"""Namespace, entity (of a dead letter: the one that it died in), sequence number."""

LATER: Final = 1 << 40
"""Places behind everything in the journal."""


@dataclass(frozen=True)
class Planted:
    fault: str
    family: frozenset[Key]


class Field:
    """The rows of honest journals, by message, and what is done to them."""

    def __init__(self, rows: list[Row], standing: Iterable[Row], seed: int) -> None:
        self.random = random.Random(f"faults {seed}")
        self.rows = rows
        self.removed: set[int] = set()
        self.added: list[Row] = []
        self.planted: list[Planted] = []
        self._by_key: dict[Key, list[int]] = defaultdict(list)
        self._bodies: dict[tuple[str, int], set[Key]] = defaultdict(set)
        self._ids: dict[str, set[Key]] = defaultdict(set)
        self._later = LATER
        for at, row in enumerate(rows):
            if row["sequence_number"] is None or row["kind"] in ("began", "entity_created"):
                continue
            key = _key(row)
            self._by_key[key].append(at)
            if row["body"] is not None:
                self._bodies[row["namespace"], row["body"]].add(key)
            if row["message_id"] is not None:
                self._ids[row["message_id"]].add(key)
            if row["former_sequence_number"] is not None:
                former = (key[0], key[1], row["former_sequence_number"])
                self._bodies[row["namespace"], row["body"]].add(former)
                self._by_key[former].append(at)
        self._standing = {_key(row) for row in standing if row["kind"] == "carried_over"}
        self._last: dict[tuple[str, int], int] = {}
        for namespace, entity, number in self._by_key:
            last = self._last.get((namespace, entity), 0)
            self._last[namespace, entity] = max(last, number)
        self._free = list(self._by_key)
        self.random.shuffle(self._free)

    def plant(self, count: int) -> None:
        """So many, of every kind in turn, as far as there are messages for it."""
        kinds = list(KINDS)
        while len(self.planted) < count and kinds:
            for fault in list(kinds):
                if len(self.planted) < count and not self._plant(fault):
                    kinds.remove(fault)

    def table(self) -> list[Row]:
        kept = [row for at, row in enumerate(self.rows) if at not in self.removed]
        return kept + self.added

    def take(self, row: Row) -> None:
        """Plant nothing into this message any more."""
        family = self._family(_key(row))
        self._free = [key for key in self._free if key not in family]

    def _plant(self, fault: str) -> bool:
        for key in self._free:
            more = KINDS[fault](self, key)
            if more is not None:
                family = self._family(key)
                self.take(self.rows[self._by_key[key][0]])
                self.planted.append(Planted(fault, frozenset(family | more)))
                return True
        return False

    def _family(self, key: Key) -> set[Key]:
        found, left = {key}, [key]
        while left:
            for at in self._by_key[left.pop()]:
                row = self.rows[at]
                more = self._bodies.get((row["namespace"], row["body"]), set())
                more = (more | self._ids.get(row["message_id"], set())) - found
                found |= more
                left += more
        return found

    # --- what is asked of a message ---------------------------------------------------------------

    def of(self, key: Key) -> list[int]:
        """All its rows."""
        return self._by_key[key]

    def own(self, key: Key, kinds: Iterable[str], *, is_dead: bool = False) -> list[int]:
        """Its rows of these kinds, those of the dead letter apart."""
        wanted = set(kinds)
        return [
            at
            for at in self._by_key[key]
            if self.rows[at]["kind"] in wanted
            and (self.rows[at]["entity_kind"] == "dead_letter") == is_dead
        ]

    def is_plain(self, key: Key) -> bool:
        """Came once, by a client, and neither moved nor was carried over."""
        kinds = {self.rows[at]["kind"] for at in self._by_key[key]}
        others = {"activated", "carried_over", "deleted", "buried", "copied", "transferred"}
        return "accepted" in kinds and not kinds & (others | {"forwarded", "published"})

    def is_last(self, key: Key) -> bool:
        return self._last[key[:2]] == key[2]

    def is_standing(self, key: Key) -> bool:
        return key in self._standing

    def again(self, at: int, **changes: Any) -> None:
        """A row once more, later."""
        self._later += 64
        self.added.append({**self.rows[at], "place": self._later, **changes})


def _key(row: Row) -> Key:
    entity = row["entity_id"]
    if row["entity_kind"] == "dead_letter":
        entity = entity - TRANSFER_BIT if entity >= TRANSFER_BIT else entity - 1
    return row["namespace"], entity, row["sequence_number"]


# --- the faults -----------------------------------------------------------------------------------


def _lost_arrival(field: Field, key: Key) -> set[Key] | None:
    """The broker took it and its log does not say so, but what happened then."""
    if not field.is_plain(key) or len(field.of(key)) < 2:
        return None
    field.removed.update(field.own(key, ["accepted"]))
    return set()


def _gap(field: Field, key: Key) -> set[Key] | None:
    """All of it is gone."""
    if not field.is_plain(key) or field.is_last(key):
        return None
    field.removed.update(field.of(key))
    return set()


def _lost(field: Field, key: Key) -> set[Key] | None:
    """It ended for the broker, and the log does not say how."""
    ends = field.own(key, [kind for kind in ENDS if kind in ("completed", "taken", "expired")])
    if not field.is_plain(key) or not ends:
        return None
    field.removed.update(ends)
    return set()


def _forgotten(field: Field, key: Key) -> set[Key] | None:
    """It came, nothing else happened, and the broker does not have it: it waits for nobody."""
    arrivals = field.own(key, ["accepted"])
    if not field.is_plain(key) or field.is_standing(key) or len(arrivals) != 1:
        return None
    field.removed.update(set(field.of(key)) - set(arrivals))
    return set()


def _doubled(field: Field, key: Key) -> set[Key] | None:
    if not field.is_plain(key):
        return None
    field.again(field.own(key, ["accepted"])[0])
    return set()


def _ended_twice(field: Field, key: Key) -> set[Key] | None:
    ends = field.own(key, ENDS)
    if not ends:
        return None
    field.again(ends[0], kind=field.random.choice(("completed", "expired", "purged")))
    return set()


def _orphan(field: Field, key: Key) -> set[Key] | None:
    """Something happens to a number that was never given out."""
    steps = field.own(key, ["delivered", "completed", "taken", "renewed"])
    namespace, entity, _ = key
    if not steps or not field.is_plain(key):
        return None
    number = 1_000_000 + field.random.randrange(1 << 30)
    field.again(steps[0], sequence_number=number, body=None)
    return {(namespace, entity, number)}


def _after_end(field: Field, key: Key) -> set[Key] | None:
    ends = field.own(key, ENDS)
    if not ends:
        return None
    field.again(ends[0], kind="delivered", delta=0)
    return set()


def _before_arrival(field: Field, key: Key) -> set[Key] | None:
    """It is renewed before it came."""
    if not field.is_plain(key):
        return None
    at = field.own(key, ["accepted"])[0]
    place = field.rows[at]["place"] - 1
    field.again(at, kind="renewed", delta=0, place=place, row=field.random.randrange(1 << 30))
    return set()


def _undelivered(field: Field, key: Key) -> set[Key] | None:
    """Completed by a receiver that never had it."""
    steps = field.own(key, ["delivered"])
    if not field.is_plain(key) or not steps or not field.own(key, ["completed"]):
        return None
    field.removed.add(steps[-1])
    return set()


def _unreturned(field: Field, key: Key) -> set[Key] | None:
    """Delivered to two at once."""
    steps = field.own(key, RETURNS)
    if not field.is_plain(key) or not steps or not field.own(key, ["completed"]):
        return None
    field.removed.add(steps[0])
    return set()


def _not_buried(field: Field, key: Key) -> set[Key] | None:
    """It left for the dead-letter queue and never arrived."""
    dead = [at for at in field.of(key) if field.rows[at]["entity_kind"] == "dead_letter"]
    if not dead or any(field.rows[at]["kind"] == "carried_over" for at in dead):
        return None
    field.removed.update(dead)
    return set()


def _buried_from_nowhere(field: Field, key: Key) -> set[Key] | None:
    """It is in the dead-letter queue and was never sent there."""
    ends = field.own(key, ["dead_lettered"])
    if not ends:
        return None
    field.removed.update(ends)
    return set()


def _not_transferred(field: Field, key: Key) -> set[Key] | None:
    """Forwarded, and nothing of it anywhere else."""
    steps = field.own(key, ["transferred"])
    if not steps:
        return None
    field.removed.update(field.of(key))
    return set()


def _transferred_twice(field: Field, key: Key) -> set[Key] | None:
    steps = field.own(key, ["transferred"])
    if not steps:
        return None
    field.again(steps[0])
    return set()


def _not_copied(field: Field, key: Key) -> set[Key] | None:
    steps = field.own(key, ["copied"])
    if not steps or field.is_last(key):
        return None
    field.removed.update(field.of(key))
    return set()


def _ghost(field: Field, key: Key) -> set[Key] | None:
    """It is completed by the log, and the broker still has it."""
    arrivals = field.own(key, ["accepted"])
    if not field.is_plain(key) or not field.is_standing(key) or field.own(key, ENDS):
        return None
    at = arrivals[0]
    first = field.rows[at]["place"]
    field.again(at, kind="purged", delta=-1, place=first, row=1)
    return set()


def _doubled_row(field: Field, key: Key) -> set[Key] | None:
    steps = field.own(key, ["renewed", "delivered", "level_changed", *RETURNS])
    if not steps:
        return None
    field.added.append(dict(field.rows[field.random.choice(steps)]))
    return set()


KINDS: Final[dict[str, Callable[[Field, Key], set[Key] | None]]] = {
    "lost arrival": _lost_arrival,
    "gap": _gap,
    "lost": _lost,
    "forgotten": _forgotten,
    "doubled": _doubled,
    "ended twice": _ended_twice,
    "orphan": _orphan,
    "after end": _after_end,
    "before arrival": _before_arrival,
    "undelivered": _undelivered,
    "unreturned": _unreturned,
    "not buried": _not_buried,
    "buried from nowhere": _buried_from_nowhere,
    "not transferred": _not_transferred,
    "transferred twice": _transferred_twice,
    "not copied": _not_copied,
    "ghost": _ghost,
    "doubled row": _doubled_row,
}
