"""What processes elsewhere say of themselves: pairs of namespaces, pools of workers, pipelines.

They post what they are doing every few seconds, with a key of the namespace, and get back what
somebody has asked of them meanwhile on the console (engage, mark healthy). Nothing here is kept: a
process that says nothing more is gone from the board after a while; one that has said that it came
to its end stays for a day, or until its place is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tandembus.errors import ArgumentError, EntityNotFoundError, ServerBusyError
from tandembus.limits import MAX_BOARD_BYTES, MAX_BOARD_NOTES, SECOND_MS
from tandembus.model import Millis

KINDS: Final = ("pair", "pool", "pipeline")
GONE_MS: Final = 60 * SECOND_MS
KEPT_MS: Final = 24 * 60 * 60 * SECOND_MS
"""What came to its end."""
_MAX_WISHES: Final = 20


@dataclass(slots=True)
class Note:
    kind: str
    name: str
    at_ms: Millis
    said: dict[str, Any]
    wishes: list[dict[str, Any]] = field(default_factory=list)
    """What it shall do, told with its next post."""

    @property
    def is_over(self) -> bool:
        return self.said.get("state") in ("done", "failed")


class Board:
    """Of one namespace."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, str], Note] = {}

    def post(
        self, kind: str, name: str, said: dict[str, Any], size: int, now_ms: Millis
    ) -> list[dict[str, Any]]:
        """What it says, in the place of what it said before; the wishes for it."""
        if kind not in KINDS:
            raise ArgumentError(f"A note is of a {', a '.join(KINDS)}, not '{kind:.40}'.")
        if size > MAX_BOARD_BYTES or not 0 < len(name) <= 200:
            raise ArgumentError(f"A note has a name, and {MAX_BOARD_BYTES} bytes at most.")
        self._tidy(now_ms)
        note = self._notes.get((kind, name))
        if note is None:
            if len(self._notes) >= MAX_BOARD_NOTES:
                self._make_room()
            note = self._notes[kind, name] = Note(kind, name, now_ms, said)
        note.at_ms, note.said = now_ms, said
        wishes, note.wishes = note.wishes, []
        return wishes

    def wish(self, kind: str, name: str, wish: dict[str, Any]) -> None:
        note = self._notes.get((kind, name))
        if note is None:
            raise EntityNotFoundError(f"{kind} {name}")
        if len(note.wishes) >= _MAX_WISHES:
            raise ServerBusyError("It has not answered yet.")
        note.wishes.append(wish)

    def shown(self, now_ms: Millis) -> list[dict[str, Any]]:
        self._tidy(now_ms)
        return [
            {
                "kind": note.kind,
                "name": note.name,
                "ago_ms": now_ms - note.at_ms,
                "said": note.said,
                "wishes": len(note.wishes),
            }
            for _, note in sorted(self._notes.items())
        ]

    def _tidy(self, now_ms: Millis) -> None:
        for key, note in list(self._notes.items()):
            if now_ms - note.at_ms > (KEPT_MS if note.is_over else GONE_MS):
                del self._notes[key]

    def _make_room(self) -> None:
        over = [key for key, note in self._notes.items() if note.is_over]
        if not over:
            raise ServerBusyError("The board is full.")
        del self._notes[min(over, key=lambda key: self._notes[key].at_ms)]
