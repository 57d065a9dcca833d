"""The order in which messages came into a dead-letter queue.

They keep the sequence number that they had, and die in any order: by number nobody can tell what
came after what. So each arrival is counted, here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandembus.core.packing import Reader, Writer


class Arrivals:
    """Positions, which only grow, and the sequence numbers that came at them."""

    __slots__ = ("last", "numbers", "positions")

    def __init__(self) -> None:
        self.last = 0
        self.positions = array("Q")
        self.numbers = array("Q")

    def add(self, number: int) -> None:
        self.last += 1
        self.positions.append(self.last)
        self.numbers.append(number)

    def sweep(self, is_there: Callable[[int], object], alive: int) -> None:
        """Forget those that have left, when they are more than those that are there."""
        if len(self.numbers) > 2 * alive + 1_024:
            marks = bytes(is_there(number) is not None for number in self.numbers)
            self.positions = array("Q", compress(self.positions, marks))
            self.numbers = array("Q", compress(self.numbers, marks))

    def dump(self, out: Writer) -> None:
        out.number(self.last)
        out.column(self.positions)
        out.column(self.numbers)

    def load(self, source: Reader) -> None:
        self.last = source.number()
        self.positions = source.column("Q") or array("Q")
        self.numbers = source.column("Q") or array("Q")
