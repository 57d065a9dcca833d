"""What the engine's clients were told, as notes in the journal of the disk.

A decision notes `Decided` when it is made, before anything of it is written, and `Told` when its
answer and its effects leave the engine. After a power cut everything that was told must be there;
what was decided and not told may be there, as the first few decisions of that row, each as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tandembus.changes import EntityKind
from tandembus.core.state import State
from tests.crash.ledger import Bad, Key, Ledger, where


class Decided(NamedTuple):
    intent: Mapping[Key, object]


class Told(NamedTuple):
    """The oldest decision that was not told yet, if it `means` anything, was told."""

    means: bool
    place: int
    """Of the group that must be durable by now; -1 for none."""
    now_ms: int


class Begun(NamedTuple):
    """A process found this, after a kill, and serves it: it is promised."""

    kept: Mapping[Key, object]


class Promises:
    def __init__(self) -> None:
        self.kept: dict[Key, object] = {}
        """What was told last, by key. What is not here is gone, or never was."""
        self.open: deque[Mapping[Key, object]] = deque()
        """Decided and not told, oldest first."""
        self.place = -1
        self.now_ms = 0

    def add(self, notes: Iterable[object]) -> None:
        for note in notes:
            if type(note) is Told:
                if note.means:
                    self._keep(self.open.popleft())
                self.place = note.place
                self.now_ms = note.now_ms
            elif type(note) is Decided:
                self.open.append(note.intent)
            elif type(note) is Begun:
                self.kept = dict(note.kept)
                self.open.clear()

    def check(self, ledger: Ledger, end: int) -> None:
        """`ledger` is what was found in a log that ends at `end`. From now on it is promised."""
        if self.place >= end:
            raise Bad(f"the log ends at {end}, but the group at {self.place} was answered for")
        there = found_in(ledger)
        unsure = {key for one in self.open for key in one}
        for key, value in self.kept.items():
            if key not in unsure and there.get(key) != value:
                raise Bad(f"{key} is {there.get(key)}, but {value} was promised")
        for key in there:
            if key not in unsure and key not in self.kept:
                raise Bad(f"{key} is there, and nobody asked for it")
        if unsure:
            self._check_open({key: there.get(key) for key in unsure})
        self.kept = there
        self.open.clear()

    def copy(self) -> Promises:
        other = Promises()
        other.kept, other.open = dict(self.kept), deque(self.open)
        other.place, other.now_ms = self.place, self.now_ms
        return other

    def _keep(self, one: Mapping[Key, object]) -> None:
        for key, value in one.items():
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value

    def _check_open(self, there: dict[Key, object]) -> None:
        """What was not told is there as a whole number of decisions from the first on."""
        state = {key: self.kept.get(key) for key in there}
        if state == there:
            return
        for one in self.open:
            state.update(one)
            if state == there:
                return
        wrong = next(key for key in there if state[key] != there[key])
        raise Bad(
            f"what was in flight is there in part: {wrong} is {there[wrong]}, at the end of "
            f"{len(self.open)} decisions it would be {state[wrong]}"
        )


def found_in(ledger: Ledger) -> dict[Key, object]:
    """Every key that the ledger has a value for. What is held for an open transaction has none: it
    is there, and a restart cancels it."""
    found: dict[Key, object] = {}
    for entity in ledger.entities.values():
        for number, row in entity.rows.items():
            if number in entity.held:
                continue
            if row.state == State.GONE:
                raise Bad(f"{entity.path}: {number} is gone and there")
            key: Key = ("message", entity.family, ledger.ids[row.body])
            if key in found:
                raise Bad(f"{key} is there twice: {found[key]} and {number} in {entity.path}")
            found[key] = where(entity, number, row)
        for session, state in entity.states.items():
            found["state", entity.path, session] = state
        for name, rule in entity.rules.items():
            found["rule", entity.path, name] = rule
        if entity.kind is not EntityKind.DEAD_LETTER:
            found["entity", entity.path, None] = entity.settings
    return found
