"""Events as columns, and what is known of the entities that they are about.

The rule: an array for a column, -1 for null, rows in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np

from tandembus.changes import TRANSFER_BIT, EntityKind
from tandembus.journal.message_ids import Texts
from tandembus.names import dead_letter_path, transfer_dead_letter_path

Array: TypeAlias = "np.ndarray[Any, Any]"
Part: TypeAlias = "dict[str, Array]"

NUMBERS: Final = (
    "place", "row", "time", "kind", "entity", "number", "former", "body", "size", "level", "hops",
    "count", "link", "until", "due", "enqueued", "session", "wait", "lock", "operations",
    "messages",
)  # fmt: skip
"""The columns of `Events`. -1 stands for null in each."""
TEXTS: Final = ("session_id", "destination", "reason", "detail")

BACKLOG: Final = "/x-servicebus-transfer/"
"""In the path of every backlog queue (`pairing.options.backlog_path`)."""


class Entities:
    """What is known of the entities: their paths and kinds, also of those that are gone."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self._kinds = np.full(64, -1, "i1")
        self._backlogs = np.zeros(64, bool)

    def add(self, entity: int, kind: int, parent: int, path: str) -> None:
        """One that was created, with its dead-letter queue, which has the number after it, and its
        transfer dead-letter queue, which has one bit more."""
        self._put(entity, kind, parent, path)
        if kind != EntityKind.TOPIC:
            self._put(entity + 1, EntityKind.DEAD_LETTER, entity, dead_letter_path(path))
        self.paths[entity | TRANSFER_BIT] = transfer_dead_letter_path(path)
        self.parents[entity | TRANSFER_BIT] = entity

    def _put(self, entity: int, kind: int, parent: int, path: str) -> None:
        if entity >= len(self._kinds):
            more = np.full(max(entity + 1, 2 * len(self._kinds)) - len(self._kinds), -1, "i1")
            self._kinds = np.concatenate([self._kinds, more])
            self._backlogs = np.concatenate([self._backlogs, np.zeros(len(more), bool)])
        self.paths[entity] = path
        self.parents[entity] = parent
        self._kinds[entity] = kind
        self._backlogs[entity] = BACKLOG in path and kind == EntityKind.QUEUE

    def with_its_own(self, entity: int) -> list[int]:
        """An entity with all that is deleted with it."""
        gone = [entity]
        for each in gone:
            gone += [child for child, parent in self.parents.items() if parent == each]
        return gone

    def forget(self, gone: Iterable[int]) -> None:
        for entity in gone:
            del self.paths[entity], self.parents[entity]

    def kinds(self, entity: Array) -> Array:
        own = np.maximum(entity, 0) & (TRANSFER_BIT - 1)
        kinds: Array = self._kinds[np.minimum(own, len(self._kinds) - 1)]
        kinds[(entity >= TRANSFER_BIT) & (kinds >= 0)] = EntityKind.DEAD_LETTER
        return kinds

    def is_backlog(self, entity: Array) -> Array:
        own = np.maximum(entity, 0) & (TRANSFER_BIT - 1)
        is_backlog: Array = self._backlogs[own] & (entity < TRANSFER_BIT)
        return is_backlog

    def all(self) -> list[tuple[int, int, int, str]]:
        """(entity, kind, parent, path) of each but dead-letter queues, for `add`."""
        return [
            (entity, int(self._kinds[entity]), self.parents[entity], path)
            for entity, path in self.paths.items()
            if not entity & TRANSFER_BIT and self._kinds[entity] != EntityKind.DEAD_LETTER
        ]


class Events:
    """Some events as columns, in the order of the log."""

    def __init__(self, parts: list[Part], texts: dict[str, dict[int, str]]) -> None:
        self.count = sum(len(part["place"]) for part in parts)
        self.columns = {
            name: np.concatenate(
                [
                    part[name] if name in part else np.full(len(part["place"]), -1, "i8")
                    for part in parts
                ]
                or [np.zeros(0, "i8")]
            )
            for name in NUMBERS
        }
        self.texts = texts
        """Column → row → text."""
        self.ids = Texts(self.count)
        self.odd_ids: dict[int, str] = {}
        """Message ids that had to be decoded, by row."""
        self.data = b""
        """What `ids` points into."""

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def sort(self, ids: Texts) -> None:
        """Into the order of the log. `ids` are of the first rows."""
        order = np.argsort(self["place"], kind="stable")
        whole = Texts(self.count)
        whole.starts[: len(ids.starts)] = ids.starts
        whole.lengths[: len(ids.lengths)] = ids.lengths
        whole.starts, whole.lengths = whole.starts[order], whole.lengths[order]
        self.ids = whole
        self.columns = {name: column[order] for name, column in self.columns.items()}
        to = np.empty(self.count, "i8")
        to[order] = np.arange(self.count)
        for name, texts in self.texts.items():
            self.texts[name] = {int(to[row]): text for row, text in texts.items()}
        self.odd_ids = {int(to[row]): text for row, text in self.odd_ids.items()}
