"""What pairing costs: every operation that would be billed, by kind, and the formula (N11).

The rule of counting: a send or a receive is one operation for each message; a receive that brings
nothing is one; a ping is a send; a peek is one for each call. The last operation of a syphoned
message, its receive from the primary, is made by the application: the formula has it, and here it
is `expected_receives`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any, Self

from tandembus.pairing.options import LONG_POLL


@dataclass(frozen=True, slots=True)
class Operations:
    """Counts, by kind. They only grow."""

    primary_sends: int = 0
    """Messages that went the straight way, scheduled ones too: the same without pairing."""
    backlog_sends: int = 0
    pings: int = 0
    backlog_receives: int = 0
    """Messages that came to the syphon; those that come again count again, and those that it let go
    at once."""
    empty_receives: int = 0
    """Long polls of the syphon that brought nothing."""
    syphon_sends: int = 0
    peeks: int = 0
    """Of the syphon, to keep an order, and of senders with `ordered_return`."""
    dead_letters: int = 0
    """What the syphon could not understand; no operation, but the end of a message's way."""

    @property
    def expected_receives(self) -> int:
        """By receivers on the primary, of what was syphoned."""
        return self.syphon_sends

    @property
    def total(self) -> int:
        """Billed because of pairing: all but the sends that would be there anyway."""
        return (
            self.backlog_sends
            + self.pings
            + self.backlog_receives
            + self.empty_receives
            + self.syphon_sends
            + self.peeks
            + self.expected_receives
        )

    def plus(self, other: Operations) -> Operations:
        return Operations(*(a + b for a, b in zip(self.row(), other.row(), strict=True)))

    def row(self) -> tuple[int, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    def as_json(self) -> str:
        """For `read`, and for `tandem pairing cost --ledger`."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """From what `as_json` wrote; unknown kinds are of a later version, and left out."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: int(count) for name, count in stored.items() if name in known})


class Ledger:
    """Counts, from any thread."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._counts = dict.fromkeys((each.name for each in fields(Operations)), 0)
        self._lock = threading.Lock()

    def add(self, kind: str, count: int = 1) -> None:
        with self._lock:
            self._counts[kind] += count

    def total(self) -> Operations:
        with self._lock:
            return Operations(**self._counts)

    def as_json(self) -> str:
        """For a file that `tandem pairing cost --ledger` reads."""
        return self.total().as_json()


@dataclass(frozen=True, slots=True)
class Formula:
    """What N11 says that pairing costs."""

    backlog_queues: int
    syphons: int = 1

    def idle_receives(self, period: timedelta) -> int:
        """Long polls while the backlogs are empty: 4 an hour, for each queue and each syphon."""
        return self.syphons * self.backlog_queues * (period // LONG_POLL)

    @staticmethod
    def syphoned(messages: int) -> int:
        """Send, receive, send, receive."""
        return 4 * messages

    @staticmethod
    def pings(entities: int, outage: timedelta, interval: timedelta, factories: int = 1) -> int:
        """One for each entity that is down, each factory that sends to it, each interval."""
        return entities * factories * (outage // interval)
