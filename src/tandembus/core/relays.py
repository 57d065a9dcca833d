"""Messages that go on from where they arrived: from a topic to its subscriptions, from a queue to
where it forwards, from a dead-letter queue likewise. One that cannot be forwarded goes to the
transfer dead-letter queue of its source; a dead letter stays where it is, and is tried again.

A fresh message goes on at once. One that was stored meanwhile (scheduled, or waiting when
forwarding was switched on) has to be read first: the effect `Load` asks for it, the command
`Loaded` brings it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from uuid import UUID

from tandembus import limits
from tandembus.changes import EntityKind, Note, Noted, Removal, decode_edits, encode_edits
from tandembus.core import admission, lifecycle
from tandembus.core.commands import Loaded
from tandembus.core.effects import Load
from tandembus.core.overlay import laid_over
from tandembus.core.queue import Queue
from tandembus.core.reasons import DeadLetterReason, reason_of
from tandembus.core.registry import Registry
from tandembus.core.sql_context import Context
from tandembus.core.state import State
from tandembus.errors import EntityDisabledError, Refused, SessionIdMissingError
from tandembus.model import NEVER, NO_EDITS, Edits, Message, Millis, Timestamp, Value
from tandembus.settings import SubscriptionSettings


class Relays:
    __slots__ = ("_registry",)

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def relay(self, source: Queue, number: int, message: Message, now: Millis) -> None:
        """Pass a message on: to the subscriptions of a topic, or to where its queue forwards.
        `message` already has the edits that the source's copy has."""
        if source.kind is EntityKind.TOPIC:
            self._publish(source, number, message, now)
            lifecycle.leave(source, (number,), Removal.PUBLISHED, now)
            return
        refusal = self._why_not_forward(source, number, message)
        if refusal is None:
            self._forward(source, number, message, now)
        elif source.kind is not EntityKind.DEAD_LETTER:
            transfer = self._registry.transfer_dead_letter(source)
            lifecycle.bury(source, number, *refusal, now, into=transfer)
        else:
            source.back_from_relay(number)
            source.try_again_later(now)

    def _why_not_forward(
        self, source: Queue, number: int, message: Message
    ) -> tuple[DeadLetterReason, str] | None:
        assert source.relays_to is not None
        found = source.find(number)
        assert found is not None
        if found.chunk.hop(found.row) >= limits.MAX_FORWARD_HOPS:
            text = f"The message was forwarded {limits.MAX_FORWARD_HOPS} times."
            return DeadLetterReason.MAX_TRANSFER_HOP_COUNT_EXCEEDED, text
        try:
            self.check_target(source.relays_to, message)
        except Refused as error:
            return reason_of(error), str(error)
        return None

    def check_target(self, path: str, message: Message) -> Queue:
        """The queue or topic at a path. Raises if it cannot take the message now."""
        target = self._open_target(path, len(message.payload))
        admission.check(target, message)
        admission.check_sessions(target, (message,))
        return target

    def _open_target(self, path: str, size: int) -> Queue:
        """Where messages are forwarded to. Raises if it can take none of this size now."""
        target = self._registry.find(path)
        if not target.takes_sends:
            raise EntityDisabledError(target.path)
        admission.check_room(target, size)
        return target

    def _forward(self, source: Queue, number: int, message: Message, now: Millis) -> None:
        found = source.find(number)
        assert found is not None
        assert source.relays_to is not None
        target = self._registry.find(source.relays_to)
        edits = decode_edits(source.edits.get(number))
        marks: dict[str, Value] = {"EnqueuedSequenceNumber": number, **edits.system}
        if source.kind is EntityKind.DEAD_LETTER and source.owner is not None:
            marks["DeadLetterSource"] = source.owner.path
        edits = Edits(edits.properties, edits.removed, marks)
        new_number = lifecycle.accept(
            target,
            message,
            now,
            body=found.chunk.bodies[found.row],
            hops=found.chunk.hop(found.row) + 1,
            edits=encode_edits(edits),
        )
        lifecycle.leave(source, (number,), Removal.FORWARDED, now)
        self._arrived(target, new_number, message, now)

    def _arrived(self, queue: Queue, number: int | None, message: Message, now: Millis) -> None:
        if number is None:
            return
        if queue.is_relay:
            self.relay(queue, number, message, now)
        else:
            queue.has_arrived(now)

    def _publish(self, topic: Queue, number: int, message: Message, now: Millis) -> None:
        found = topic.find(number)
        assert found is not None
        body, hops = found.chunk.bodies[found.row], found.chunk.hop(found.row)
        carried = decode_edits(topic.edits.get(number))
        facts: dict[str, Value] = {
            "SequenceNumber": number,
            "EnqueuedTimeUtc": Timestamp(now),
            "Size": len(message.payload),
            "DeliveryCount": 0,
        }
        context = Context(message, facts, NO_EDITS, _ids_for(topic.id, number))
        copies = 0
        for subscription in list(topic.subscriptions.values()):
            selection = self._registry.rules[subscription.id].evaluate(context)
            wanted = [NO_EDITS] if selection.plain else []
            wanted.extend(edits for _, edits in selection.copies)
            copies += len(wanted)
            for edits in wanted:
                self._copy(subscription, message, body, hops, carried, edits, None, now)
            assert isinstance(subscription.settings, SubscriptionSettings)
            if selection.failed and subscription.settings.dead_letter_on_filter_error:
                copies += 1
                failed = selection.failed
                self._copy(subscription, message, body, hops, carried, NO_EDITS, failed, now)
        if not copies:
            self._registry.book.emit(Noted(now, topic.id, Note.NO_SUBSCRIPTION, number, 0, None))

    def _copy(
        self,
        subscription: Queue,
        message: Message,
        body: int,
        hops: int,
        carried: Edits,
        edits: Edits,
        failed: str | None,
        now: Millis,
    ) -> None:
        """One copy for a subscription; straight to its dead-letter queue where it must."""
        seen = laid_over(message, edits)
        refusal = _why_no_session(subscription, seen)
        number = lifecycle.accept(
            subscription, seen, now, body=body, hops=hops, edits=encode_edits(carried.then(edits))
        )
        assert number is not None, "duplicates are found by the topic, not by its subscriptions"
        if failed is not None:
            reason = DeadLetterReason.FILTER_EVALUATION_FAILED
            lifecycle.bury(subscription, number, reason, failed, now)
        elif refusal is not None:
            lifecycle.bury(subscription, number, reason_of(refusal), str(refusal), now)
        else:
            self._arrived(subscription, number, seen, now)

    def loaded(self, command: Loaded, now: Millis) -> None:
        queue = self._registry.by_id.get(command.entity)
        if queue is None:
            return
        for number, message in command.messages.items():
            found = queue.find(number)
            if number not in queue.loading or found is None:
                continue
            if found.chunk.states[found.row] != State.WAITING:
                del queue.loading[number]  # locked meanwhile: forwarding was off for a while
            elif queue.is_relay:
                edits = decode_edits(queue.edits.get(number))
                self.relay(queue, number, laid_over(message, edits), now)
            else:
                queue.back_from_relay(number)
        if queue.counts[State.WAITING]:
            queue.has_arrived(now)

    def next_batch(self, queue: Queue, now: Millis) -> None:
        """Request the payloads of the next messages to forward."""
        queue.relays_at = NEVER if queue.passes_at <= now else queue.passes_at
        if queue.loading:
            return  # `loaded` goes on
        if queue.forwards_dead_letters:
            bodies = self._dead_letters(queue, now)
        else:
            bodies = _take_all(queue, limits.RELAY_BATCH, now)
        if bodies:
            self._registry.book.effects.append(Load(queue.id, bodies))

    def _dead_letters(self, queue: Queue, now: Millis) -> dict[int, int]:
        """While the target refuses messages, no payload is read."""
        assert queue.relays_to is not None
        if queue.passes_at <= now:
            queue.passes_at = NEVER
            queue.is_passing = True
        try:
            self._open_target(queue.relays_to, 1)
        except Refused:
            stay = [*queue.fresh, *queue.stuck]
            queue.fresh.clear()
            queue.stuck.clear()
            queue.is_passing = False
            queue.stay(stay)
            queue.ask_target_later(now)
            return {}
        if queue.is_target_closed:  # it was: a new dead letter does not overtake those that wait
            queue.is_target_closed = False
            queue.passes_at = NEVER
            queue.is_passing = True
        bodies = _take_dead_letters(queue, limits.RELAY_BATCH, now)
        if not bodies and (queue.fresh or queue.is_passing):
            queue.relay_at(now)
        return bodies


def _why_no_session(subscription: Queue, message: Message) -> Refused | None:
    """Why a copy cannot be part of a session: it names none, or there is no memory for a new one.
    The topic was asked before it took the message, but the action of a rule can have given the
    copy another session."""
    if subscription.sessions is not None:
        if message.session_id is None:
            return SessionIdMissingError()
        try:
            admission.check_sessions(subscription, (message,))
        except Refused as error:
            return error
    return None


def _ids_for(topic: int, number: int) -> Callable[[], UUID]:
    """newid() without randomness: each call gives another id, and each message others."""
    calls = iter(range(1 << 32))
    return lambda: UUID(int=(topic & 0xFFFF_FFFF) << 96 | number << 32 | next(calls))


def _take_all(queue: Queue, most: int, now: Millis) -> dict[int, int]:
    """Waiting messages that are to go on to another entity, with their bodies."""
    taken: dict[int, int] = {}
    while len(taken) < most:
        following = lifecycle.next_message(queue, now)
        if following is None:
            break
        part, chosen = following
        part.ready.take(chosen, now)
        number = part.number(chosen.at)
        if number not in queue.loading:
            taken[number] = chosen.chunk.bodies[chosen.row]
            queue.loading[number] = None
    return taken


def _take_dead_letters(queue: Queue, most: int, now: Millis) -> dict[int, int]:
    """The dead letters that are to be tried next, with their bodies: those that are new; in a pass
    all, in order. One that has used up its hops stays where it is, for receivers."""
    taken: dict[int, int] = {}
    if queue.is_passing:
        queue.stay(queue.fresh)
        queue.fresh.clear()
    for number in sorted(islice(queue.fresh, most)):
        del queue.fresh[number]
        _try_or_keep(queue, number, taken)
    for _ in range(most if queue.is_passing else 0):
        following = lifecycle.next_message(queue, now)
        if following is None:
            queue.is_passing = False
            break
        part, chosen = following
        part.ready.take(chosen, now)
        _try_or_keep(queue, part.number(chosen.at), taken)
    if queue.stuck and not queue.is_passing:
        stuck, queue.stuck = queue.stuck, {}
        queue.stay(stuck)
        if queue.has_more_hops():
            queue.try_again_later(now)
    return taken


def _try_or_keep(queue: Queue, number: int, taken: dict[int, int]) -> None:
    found = queue.find(number)
    assert found is not None
    if number in queue.loading or number in queue.stuck:
        return
    if found.chunk.hop(found.row) < limits.MAX_FORWARD_HOPS:
        taken[number] = found.chunk.bodies[found.row]
        queue.loading[number] = None
    elif queue.is_passing:
        queue.stuck[number] = None
    else:
        queue.stay((number,))
