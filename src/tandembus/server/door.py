"""Who may come in while nobody knows them yet: counts, and the queue before the door.

Sockets and time are the listener's. The rule: strangers are counted in all and by their address;
who finds no room waits in the queue of its address, and all queues together have an end. One
address that fills its share holds up nobody but itself.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Generic, TypeVar

from tandembus.limits import (
    MAX_AT_THE_DOOR,
    MAX_UNAUTHENTICATED,
    MAX_UNAUTHENTICATED_PER_ADDRESS,
)

T = TypeVar("T")


class Answer(Enum):
    COME_IN = "come in"
    WAIT = "wait"
    GO_AWAY = "go away"


class Door(Generic[T]):
    """`T` is what waits: a socket."""

    def __init__(
        self,
        most: int = MAX_UNAUTHENTICATED,
        most_per_address: int = MAX_UNAUTHENTICATED_PER_ADDRESS,
        most_waiting: int = MAX_AT_THE_DOOR,
    ) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._most_waiting = most_waiting
        self._inside: dict[str, int] = {}
        self.count = 0
        """Strangers that are inside."""
        self.waiting = 0
        self._queues: dict[str, deque[T]] = {}
        """By address; none is empty."""

    def knock(self, address: str, visitor: T) -> Answer:
        """COME_IN counts the visitor until `leave`; WAIT keeps it."""
        if self._has_room(address):
            self._enter(address)
            return Answer.COME_IN
        if self.waiting >= self._most_waiting:
            return Answer.GO_AWAY
        self._queues.setdefault(address, deque()).append(visitor)
        self.waiting += 1
        return Answer.WAIT

    def leave(self, address: str) -> None:
        """A stranger has gone, or is none any more."""
        left = self._inside[address] - 1
        self.count -= 1
        if left:
            self._inside[address] = left
        else:
            del self._inside[address]

    def next(self) -> tuple[str, T] | None:
        """One that waits and finds room now, the addresses by turns; it is counted until `leave`.
        Costs what the number of addresses does, and not that of those who wait."""
        if self.count < self._most:
            for address, queue in self._queues.items():
                if self._has_room(address):
                    del self._queues[address]
                    visitor = queue.popleft()
                    if queue:
                        self._queues[address] = queue
                    self.waiting -= 1
                    self._enter(address)
                    return address, visitor
        return None

    def clear(self) -> list[T]:
        """All who wait: nobody comes in any more."""
        gone = [visitor for queue in self._queues.values() for visitor in queue]
        self._queues.clear()
        self.waiting = 0
        return gone

    def _has_room(self, address: str) -> bool:
        return self.count < self._most and self._inside.get(address, 0) < self._most_per_address

    def _enter(self, address: str) -> None:
        self.count += 1
        self._inside[address] = self._inside.get(address, 0) + 1
