"""Open transactions: what was asked in each, until it is discharged (T17).

Nothing happens before the discharge: no sequence number is given, no lock ends. So a transaction
that is rolled back, or forgotten, leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tandembus import limits
from tandembus.core.commands import Send, Settle
from tandembus.errors import ArgumentError, NotAllowedError, QuotaExceededError
from tandembus.model import NEVER, Millis

Part: TypeAlias = Send | Settle


@dataclass(slots=True)
class _Transaction:
    declared_ms: Millis
    parts: list[Part] = field(default_factory=list)
    messages: int = 0


class Transactions:
    __slots__ = ("_next", "_open")

    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}
        """Oldest first, so the first is overdue first."""
        self._next = 1

    def declare(self, now: Millis) -> int:
        if len(self._open) >= limits.MAX_OPEN_TRANSACTIONS:
            raise QuotaExceededError(
                f"{len(self._open)} transactions are open, the most there can be."
            )
        number = self._next
        self._next += 1
        self._open[number] = _Transaction(now)
        return number

    def add(self, number: int, part: Part, now: Millis) -> None:
        transaction = self._get(number, now)
        messages = len(part.messages) if isinstance(part, Send) else len(part.tokens)
        if transaction.messages + messages > limits.MAX_TRANSACTION_MESSAGES:
            raise NotAllowedError(
                f"Can't send more than {limits.MAX_TRANSACTION_MESSAGES} messages in a single "
                "transaction."
            )
        transaction.messages += messages
        transaction.parts.append(part)

    def take(self, number: int, now: Millis) -> list[Part]:
        """Its parts; the transaction is over."""
        parts = self._get(number, now).parts
        del self._open[number]
        return parts

    def _get(self, number: int, now: Millis) -> _Transaction:
        transaction = self._open.get(number)
        if transaction is None or now - transaction.declared_ms >= limits.TRANSACTION_TIMEOUT_MS:
            raise ArgumentError(f"The transaction {number} does not exist, or is over.")
        return transaction

    def next_deadline(self) -> Millis:
        for transaction in self._open.values():
            return transaction.declared_ms + limits.TRANSACTION_TIMEOUT_MS
        return NEVER

    def drop_overdue(self, now: Millis) -> None:
        while self.next_deadline() <= now:
            del self._open[next(iter(self._open))]
