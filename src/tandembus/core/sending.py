"""How messages come in from clients: sent, scheduled, in transactions, by way of another entity.

What an entity can take is `admission`; what becomes of a message that it took is `lifecycle`. The
rule of `namespace` holds here too: what is refused has changed nothing.

*Send-via*: a message for one entity is sent by way of another, which takes it. If its destination
refuses it then, it goes to the transfer dead-letter queue of the entity in between, and the sender
is not told, as in Azure Service Bus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandembus.changes import Note, Noted
from tandembus.core import admission, lifecycle
from tandembus.core.commands import CancelScheduled, Send
from tandembus.core.queue import Queue
from tandembus.core.reasons import reason_of
from tandembus.core.registry import Registry
from tandembus.core.relays import Relays
from tandembus.core.transactions import Held, Transactions
from tandembus.errors import ArgumentError, Refused
from tandembus.model import Message, Millis


class Sending:
    """The handlers of `Send` and `CancelScheduled`; `Namespace` has them in its table."""

    __slots__ = ("_book", "_registry", "_relays", "_transactions")

    def __init__(self, registry: Registry, relays: Relays, transactions: Transactions) -> None:
        self._registry = registry
        self._book = registry.book
        self._relays = relays
        self._transactions = transactions

    def send(self, command: Send, now: Millis) -> Sequence[int | Refused]:
        try:
            queue = self._check(command, now)
        except Refused:
            if not command.each or len(command.messages) == 1:
                raise
            return self._each(command, now)
        if command.transaction is not None:
            if command.is_numbered:
                return self._accept_held(queue, command, now)
            self._transactions.add(command.transaction, queue, command, now)
            return []
        if command.via is not None:
            return self._accept_via(queue, command.path, command.messages, command.link, now)
        return self._accept(queue, command.messages, command.link, now)

    def _each(self, command: Send, now: Millis) -> list[int | Refused]:
        """Each message for itself: its number, or its refusal."""
        replies: list[int | Refused] = []
        for message in command.messages:
            try:
                replies += self.send(replace(command, messages=(message,)), now)
            except Refused as refusal:
                replies.append(refusal)
        return replies

    def _check(self, command: Send, now: Millis) -> Queue:
        """The entity that the messages come into first. Raises if it cannot take them."""
        queue = target = self._registry.find(command.path if command.via is None else command.via)
        size = admission.check_send(queue, command.messages, is_batch=command.is_batch)
        if command.transaction is None or command.is_numbered:
            admission.check_room(queue, size)
            if queue.sessions is not None or queue.subscriptions:
                admission.check_sessions(queue, command.messages)
        if command.via is not None and command.path in self._registry:
            target = self._registry.find(command.path)
        if target.throttle is not None:
            target.throttle.admit(target.path, command, now)
        return queue

    def accept(self, command: Send, now: Millis) -> list[int]:
        """Take messages that were checked. Returns their numbers: for one that its destination
        refused, the number that it has in the entity in between."""
        messages, link = command.messages, command.link
        if command.via is None:
            return self._accept(self._registry.find(command.path), messages, link, now)
        return self._accept_via(self._registry.find(command.via), command.path, messages, link, now)

    def _accept(
        self,
        queue: Queue,
        messages: Sequence[Message],
        link: int,
        now: Millis,
        held: set[str] | None = None,
    ) -> list[int]:
        run = lifecycle.accept_run(queue, messages, now, link) if len(messages) > 1 else None
        numbers = run or []
        for message in messages if run is None else ():
            if message.is_ping:
                self._book.emit(Noted(now, queue.id, Note.PINGED, 0, link, None))
                queue.tally.pings += 1
                numbers.append(0)
                continue
            due = message.scheduled_ms or 0
            if due <= now:
                due = 0
            number = lifecycle.accept(queue, message, now, due=due, link=link, held=held)
            numbers.append(number or 0)
            if number is not None and not due and queue.is_relay:
                self._relays.relay(queue, number, message, now)
        queue.accessed_ms = now
        if queue.receivers.is_hungry:
            self._book.to_pump[queue.id] = queue
        return numbers

    def _accept_via(
        self, between: Queue, path: str, messages: Sequence[Message], link: int, now: Millis
    ) -> list[int]:
        between.accessed_ms = now
        try:
            target = self._registry.find(path)
            admission.check_room(target, admission.check_send(target, messages))
            admission.check_sessions(target, messages)
        except Refused as refusal:
            if len(messages) == 1:
                return [self._not_transferred(between, messages[0], refusal, link, now)]
            numbers: list[int] = []
            for message in messages:
                numbers += self._accept_via(between, path, (message,), link, now)
            return numbers
        return self._accept(target, messages, link, now)

    def _not_transferred(
        self, between: Queue, message: Message, refusal: Refused, link: int, now: Millis
    ) -> int:
        """Its destination refused a message that was sent by way of `between`."""
        if message.is_ping:
            return 0
        number = lifecycle.accept(between, message, now, link=link, is_new=False)
        assert number is not None
        into = self._registry.transfer_dead_letter(between)
        lifecycle.bury(between, number, reason_of(refusal), str(refusal), now, into=into)
        return number

    def _accept_held(self, queue: Queue, command: Send, now: Millis) -> list[int]:
        """Scheduled at once, because the client is told the numbers; held until the discharge. So
        whether its id is that of a message from elsewhere is decided again by the commit; whether
        it is that of another one in the same transaction, here."""
        assert command.transaction is not None
        messages = command.messages
        if any((message.scheduled_ms or 0) <= now for message in messages):
            raise ArgumentError("In a transaction only what has a time to come can be scheduled.")
        self._transactions.admit(command.transaction, queue, command, now)
        keys = self._transactions.held_keys(command.transaction, queue, now)
        numbers = self._accept(queue, messages, command.link, now, keys)
        held = Held(queue.id, [number for number in numbers if number])
        self._transactions.add(command.transaction, queue, held, now)
        return numbers

    def cancel(self, command: CancelScheduled, now: Millis) -> None:
        queue = self._registry.find(command.path)
        if command.transaction is None:
            lifecycle.cancel(queue, command.sequence_numbers, now)
        else:
            lifecycle.check_cancel(queue, command.sequence_numbers)
            self._transactions.add(command.transaction, queue, command, now)
        queue.accessed_ms = now
