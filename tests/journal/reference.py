"""What the journal must say, worked out the slow way: change by change, one dictionary an event.

Shares nothing with `tandembus.journal` but the names of the kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandembus.changes import (
    TRANSFER_BIT,
    Activated,
    BodyMoved,
    Change,
    Deferred,
    Delayed,
    Delivered,
    Enqueued,
    EntityCreated,
    EntityDeleted,
    EntityKind,
    LevelChanged,
    Mode,
    Note,
    Noted,
    PiecesJoined,
    PieceStored,
    Reactivated,
    Removal,
    Removed,
    Renewed,
    Return,
    Returned,
    ScheduleHeld,
    SessionLocked,
    SessionStateSet,
    SessionUnlocked,
    Started,
    decode_edits,
    delivered_rows,
)
from tandembus.core.state import State
from tandembus.model import NEVER
from tandembus.store.api import GROUP_HEADER
from tandembus.store.files import FileStore
from tandembus.store.records import decode_group

Row = dict[str, Any]

NAMES: dict[type[Change], str] = {
    Deferred: "deferred",
    Renewed: "renewed",
    Reactivated: "reactivated",
}


class Reference:
    def __init__(self) -> None:
        self.time = 0
        self.kinds: dict[int, EntityKind] = {}
        self.paths: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.messages: dict[tuple[int, int], Row] = {}

    def read(self, folder: Path) -> list[Row]:
        store = FileStore(folder)
        rows: list[Row] = []
        for group in store.replay(0):
            changes = [
                (change, group.place + GROUP_HEADER + offset)
                for change, offset in decode_group(group.body)
            ]
            for at, (change, place) in enumerate(changes):
                following = changes[at + 1][0] if at + 1 < len(changes) else None
                if isinstance(change, BodyMoved | PieceStored | PiecesJoined | ScheduleHeld):
                    continue
                found = list(self.events(change, following))
                rows += [{"place": place, "row": row, **each} for row, each in enumerate(found)]
        store.close()
        return rows

    def events(self, change: Change, following: Change | None) -> Iterator[Row]:
        assert not isinstance(change, BodyMoved | PieceStored | PiecesJoined | ScheduleHeld)
        entity = getattr(change, "entity", None)
        time = change.time
        if isinstance(change, Enqueued) and self.kinds[change.entity] is EntityKind.DEAD_LETTER:
            assert isinstance(following, Removed)
            time = following.time
        self.time = max(self.time, time)
        if isinstance(change, EntityCreated):
            self._create(change)
        head = {"time": self.time, "entity": self.paths.get(entity or 0), "entity_id": entity}
        match change:
            case Enqueued():
                yield head | self._enqueued(change)
            case Activated():
                known = self.messages.pop((change.entity, change.sequence_number))
                known |= {"enqueued_time": change.time, "locked": None}
                self.messages[change.entity, change.new_sequence_number] = known
                yield (
                    head
                    | self._say(known, "activated", change.new_sequence_number)
                    | {"former_sequence_number": change.sequence_number}
                )
            case Delivered():
                for number, _, size, count, level in delivered_rows(change.rows):
                    known = self.messages[change.entity, number]
                    assert known["size"] == size
                    known |= {"level": level, "delivery_count": count + 1}
                    row = {
                        "wait_ms": self.time - known["enqueued_time"],
                        "link": change.link or None,
                    }
                    if change.mode == Mode.RECEIVE_AND_DELETE:
                        del self.messages[change.entity, number]
                        yield head | self._say(known, "taken", number) | row
                    else:
                        known["locked"] = (self.time, change.link or None)
                        until = None if change.locked_until_ms == NEVER else change.locked_until_ms
                        row["locked_until"] = until
                        yield head | self._say(known, "delivered", number) | row
            case Removed() | Returned() | Deferred() | Renewed() | Delayed() | Reactivated():
                for at in range(0, len(change.sequence_numbers), 8):
                    number = int.from_bytes(change.sequence_numbers[at : at + 8], "little")
                    yield head | self._settled(change, number)
            case LevelChanged():
                known = self.messages[change.entity, change.sequence_number]
                known["level"] = change.level
                yield head | self._say(known, "level_changed", change.sequence_number)
            case Noted():
                row = {"kind": Note(change.note).name.lower(), "link": change.link or None}
                if change.note == Note.BROWSED:
                    row["messages"] = change.number
                if change.note == Note.DUPLICATE_DROPPED:
                    row["message_id"] = change.text
                    if isinstance(following, Removed) and following.reason == Removal.FORWARDED:
                        number = int.from_bytes(following.sequence_numbers, "little")
                        row["body"] = self.messages[following.entity, number]["body"]
                if change.note == Note.NO_SUBSCRIPTION:
                    known = self.messages[change.entity, change.number]
                    row = self._say(known, "no_subscription", change.number)
                yield head | row
            case EntityCreated():
                yield head | {"kind": "entity_created", "sequence_number": change.origin}
            case EntityDeleted():
                yield from self._delete(change)
            case Started():
                yield head | {"kind": "started", "detail": change.version}
            case SessionLocked():
                row = {"link": change.link or None, "locked_until": change.locked_until_ms}
                yield head | row | {"kind": "session_locked", "session_id": change.session_id}
            case SessionUnlocked():
                row = {"reason": Return(change.reason).name.lower()}
                yield head | row | {"kind": "session_unlocked", "session_id": change.session_id}
            case SessionStateSet():
                yield head | {"kind": "session_state_set", "session_id": change.session_id}
            case _:
                words = "".join(
                    f"_{c.lower()}" if c.isupper() else c for c in type(change).__name__
                )
                yield head | {"kind": words.removeprefix("_")}

    def _create(self, change: EntityCreated) -> None:
        for entity, kind, parent, path in (
            (change.entity, EntityKind(change.kind), change.parent, change.path),
            (
                change.entity + 1,
                EntityKind.DEAD_LETTER,
                change.entity,
                f"{change.path}/$DeadLetterQueue",
            ),
            (
                change.entity | TRANSFER_BIT,
                EntityKind.DEAD_LETTER,
                change.entity,
                f"{change.path}/$Transfer/$DeadLetterQueue",
            ),
        ):
            if entity == change.entity + 1 and change.kind == EntityKind.TOPIC:
                continue
            self.kinds[entity], self.paths[entity], self.parents[entity] = kind, path, parent

    def _enqueued(self, change: Enqueued) -> Row:
        known = {
            "enqueued_time": change.time, "size": change.size, "level": change.level,
            "body": change.body, "delivery_count": change.delivery_count,
            "session_id": change.session_id, "locked": None,
        }  # fmt: skip
        self.messages[change.entity, change.sequence_number] = known
        row: Row = {"link": change.link or None, "due_time": change.due_ms or None}
        match self.kinds[change.entity]:
            case EntityKind.DEAD_LETTER:
                kind = "buried"
                row["reason"] = decode_edits(change.edits).properties.get("DeadLetterReason")
            case EntityKind.SUBSCRIPTION:
                kind = "copied"
            case _ if change.hops:
                kind = "transferred"
            case _:
                kind = "scheduled" if change.state == State.SCHEDULED else "accepted"
        row["hops"] = change.hops
        return self._say(known, kind, change.sequence_number) | row

    def _settled(self, change: Any, number: int) -> Row:
        known = self.messages[change.entity, number]
        locked = known["locked"]
        row: Row = {}
        if locked is not None:
            row["wait_ms"] = locked[0] - known["enqueued_time"]
            row["lock_ms"] = self.time - locked[0]
            row["link"] = locked[1]
        match change:
            case Removed():
                kind = Removal(change.reason).name.lower()
                row.setdefault("wait_ms", self.time - known["enqueued_time"])
                del self.messages[change.entity, number]
            case Returned() | Delayed():
                kind = Return(change.reason).name.lower()
                row["due_time"] = getattr(change, "due_ms", None)
                known["locked"] = None
            case _:
                kind = NAMES[type(change)]
                if isinstance(change, Deferred):
                    known["locked"] = None
                if isinstance(change, Renewed):
                    row["locked_until"] = change.locked_until_ms
        return self._say(known, kind, number) | row

    def _delete(self, change: EntityDeleted) -> Iterator[Row]:
        gone = [change.entity]
        for each in gone:
            gone += [child for child, parent in self.parents.items() if parent == each]
        for each in gone:
            for entity, number in sorted(self.messages):
                if entity == each:
                    head = {"time": self.time, "entity": self.paths[each], "entity_id": each}
                    yield head | self._say(self.messages.pop((entity, number)), "deleted", number)
        for each in gone:
            yield {
                "time": self.time, "entity": self.paths.pop(each), "entity_id": each,
                "kind": "entity_deleted",
            }  # fmt: skip
            del self.parents[each]

    def _say(self, known: Row, kind: str, number: int) -> Row:
        own = {name: value for name, value in known.items() if name != "locked"}
        return own | {"kind": kind, "sequence_number": number}
