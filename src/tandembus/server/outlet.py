"""The links of a connection on which its peer receives: messages out, and what it decides about
them. Messages in are `links`, which says what a link is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp import types
from tandembus.amqp.events import Delivery as Unsettled
from tandembus.amqp.events import LinkFlow, MessageReceived
from tandembus.amqp.link import Link
from tandembus.changes import Mode
from tandembus.core import commands as c
from tandembus.core.effects import Attached, Deliver, Effect, LinkClosed, SessionGranted
from tandembus.core.lifecycle import is_locked
from tandembus.core.queue import Queue
from tandembus.errors import NotAllowedError, TandemError
from tandembus.limits import (
    LOCK_RECHECK_MS,
    MAX_HANDED_OUT,
    MAX_HANDED_OUT_BYTES,
    MAX_UNSETTLED_OUT,
)
from tandembus.model import NO_EDITS, Edits, LargePayload, Symbol
from tandembus.names import split
from tandembus.server.beyond import take_delay
from tandembus.server.calls import largest_message
from tandembus.server.outgoing import delivery_tag, render
from tandembus.server.requests import Arguments
from tandembus.server.stored import PieceReader, Stream
from tandembus.server.transactions import Joined, group_of

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL: Final = Symbol("com.microsoft:locked-until-utc")
TIMEOUT: Final = Symbol("com.microsoft:timeout")
UNCOUNTED: Final = "x-tandem-uncounted"
"""Among the properties to modify: an abandoned message goes back with the others, and this delivery
does not count. What delivery-failed says is no use for it: clients say anything (WIRE.md §0)."""
DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
_UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
_NONCE_OF_TEXT: Final = 0x7F7F_7F7F_7F7F_7F00
"""The old SDK for Java finds its deliveries by their tags, read as UTF-8 where all other bytes are
alike: so eight bytes of each tag are below 0x80, and stay so while MAX_HANDED_OUT are counted."""
_REJECTED_DONE: Final = p.Rejected()
_MODIFIED_DONE: Final = p.Modified()


class Outlet:
    """The peer receives from a queue, a subscription or a dead-letter queue."""

    def __init__(self, gateway: Gateway, link: Link, path: str) -> None:
        assert link.remote is not None
        self.gateway = gateway
        self.link = link
        self.path = path
        self.entity = split(path).entity
        """The queue or topic that all of it happens in."""
        is_settled = link.remote.snd_settle_mode == p.SETTLED
        self.mode = Mode.RECEIVE_AND_DELETE if is_settled else Mode.PEEK_LOCK
        self.number = gateway.broker.register(self)
        self._queue: Queue | None = None
        """Kept, because effects and answers come when it may be deleted already."""
        self.session_id: str | None = None
        self._received = 0
        """How many messages the broker has handed to this link."""
        self._at_once = 1
        self._asked_up_to = 0
        """When `_received` reaches this, the next handful is asked for."""
        self._is_held = False
        """Whether the peer wants messages, and first has to take or to settle those it has."""
        self._renewal: asyncio.TimerHandle | None = None
        self._recheck: asyncio.TimerHandle | None = None
        self._streams: list[Stream] = []
        """Large messages on their way."""

    def open(self) -> None:
        """Ask the broker; the peer gets its answer when the broker has decided."""
        remote = self.link.remote
        assert remote is not None
        try:
            session = _session_of(remote.source)
        except TandemError as error:
            self._refuse(error)
            return
        properties = remote.properties or {}
        timeout = properties.get(TIMEOUT)
        timeout_ms = timeout if isinstance(timeout, int) and timeout > 0 else 65_000
        if self.path in self.gateway.namespace:
            self._queue = self.gateway.namespace.find(self.path)
        command = c.Attach(self.number, self.path, self.mode, session, timeout_ms)
        self.gateway.broker.submit(command, self.gateway.claims, self._opened)

    def _opened(self, reply: Any) -> None:
        if isinstance(reply, TandemError):
            self._refuse(reply)
        elif isinstance(reply, Attached):
            self._accept(reply.session_id, reply.locked_until_ms)

    def _accept(self, session_id: str | None, locked_until_ms: int) -> None:
        remote = self.link.remote
        assert remote is not None
        group = group_of(self.link)
        if group is not None:
            try:
                group.check_receiver(split(self.path))  # again: another link may have come first
            except TandemError as error:
                self._refuse(error)
                self.gateway.broker.submit(c.Detach(self.number), self.gateway.claims, _ignore)
                return
        source = remote.source or p.Source()
        properties: dict[object, object] = {}
        self.session_id = session_id
        # The answer has the filters that are in force (AMQP 1.0 §3.5.3): of others, a JMS selector
        # among them, the peer must not believe that they are. A value is described if it came so:
        # the SDK for Go reads no others.
        kept: dict[object, object] | None = None
        if session_id is not None:
            asked = (source.filter or {}).get(SESSION_FILTER)
            kept = {SESSION_FILTER: session_id}
            if isinstance(asked, types.Described):
                kept = {SESSION_FILTER: types.Described(asked.descriptor, session_id)}
        source = replace(source, filter=kept)
        if session_id is not None:
            ticks = _UNIX_EPOCH_TICKS + locked_until_ms * 10_000
            properties[LOCKED_UNTIL] = types.Long(ticks)
        assert self._queue is not None
        self._at_once = _at_once(largest_message(self._queue))
        if self.link.accept(source=source, properties=properties):
            if group is not None:
                group.take(split(self.path))
            if session_id is not None:
                self._keep_session(locked_until_ms)
            if self.link.credit > 0 or self.link.is_draining:
                self.go_on()  # the credit came before this answer
        self.gateway.write_soon()

    def _keep_session(self, locked_until_ms: int) -> None:
        """A link that receives and deletes has nothing locked that could be lost, so it keeps its
        session for as long as it is attached (the SDK's tests wait longer than the lock lasts)."""
        if self.mode is Mode.RECEIVE_AND_DELETE:
            delay_ms = max(locked_until_ms - self.gateway.now_ms(), 0) // 2
            self._renewal = self.gateway.call_later(delay_ms, self._renew_session)

    def _renew_session(self) -> None:
        assert self.session_id is not None
        command = c.RenewSession(self.path, self.session_id, self.number)
        self.gateway.broker.submit(command, self.gateway.claims, self._renewed)

    def _renewed(self, reply: Any) -> None:
        if not isinstance(reply, TandemError):
            self._keep_session(reply)

    def _refuse(self, error: TandemError) -> None:
        self.link.refuse(self.gateway.error_of(error))
        self.gateway.broker.unregister(self.number)
        self.gateway.write_soon()

    def on_messages(self, events: list[MessageReceived]) -> None:
        """Nothing comes in on this link."""

    def on_flow(self, event: LinkFlow) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Ask the broker for a handful of what the peer has credit for: no more than it takes, and
        not so many at once that others wait for them (RELIABILITY.md H7)."""
        broker, link = self.gateway.broker, self.link
        if link.context is not self or link.local is None:
            return  # it has gone meanwhile, or is not there yet: `_accept` goes on
        room = MAX_UNSETTLED_OUT - link.session.connection.unsettled_out
        if room <= 0 < link.credit:
            room = self._let_go_of_lost_locks()
        credit = min(link.credit, self._at_once, room)
        self._is_held = link.credit > 0 and (
            credit <= 0 or self.gateway.is_clogged or link.session.is_blocked
        )
        if self._is_held:
            credit = 0
        self._asked_up_to = self._received + credit
        nonce = broker.clock.random_bits(64)
        if self.gateway.reads_tags_as_text:
            nonce &= _NONCE_OF_TEXT
        command = c.Flow(self.number, credit, nonce, link.is_draining, self._received)
        broker.submit(command, self.gateway.claims, partial(self._flowed, link.is_draining))

    def _let_go_of_lost_locks(self) -> int:
        """The peer has as many as it may: those whose locks are over do not count. How many it may
        have more; if none, it is looked again in a while."""
        if self._recheck is not None:
            return 0  # it was looked just now: each look is at all of them
        gateway, session = self.gateway, self.link.session
        queue, now = self._queue, gateway.now_ms()
        assert queue is not None
        held = session.unsettled_on(self.link)
        session.let_go([it.id for it in held if not is_locked(queue, it.tag, now)])
        room = MAX_UNSETTLED_OUT - session.connection.unsettled_out
        if room <= 0:
            self._recheck = gateway.call_later(LOCK_RECHECK_MS, self._look_again)
        return room

    def _look_again(self) -> None:
        self._recheck = None
        self.resume()

    def _flowed(self, is_drain: bool, reply: Any) -> None:
        if is_drain:
            is_all = self.gateway.is_draining or self._received < self._asked_up_to
            if not is_all and self.link.credit > 0:
                return  # not all of it was asked for yet
            self.link.drained()
            self.gateway.write_soon()

    def resume(self) -> None:
        """The peer takes messages again, or has settled some."""
        if self._is_held:
            self._is_held = False
            self.gateway.broker.turns.add(self)

    def on_effect(self, effect: Effect) -> None:
        match effect:
            case Deliver(_, deliveries):
                self._deliver(deliveries)
            case SessionGranted(_, session_id, locked_until_ms):
                self._accept(session_id, locked_until_ms)
            case LinkClosed(_, error) if self.link.local is None:
                self._refuse(error)  # it still waited for a session
            case LinkClosed(_, error):
                self.end(error)
        self.gateway.write_soon()

    def end(self, error: TandemError) -> None:
        """Detach it, and keep nothing for it until the peer has answered."""
        self.link.detach(self.gateway.error_of(error))
        self._close_streams()
        self.gateway.write_soon()

    def hang_up(self) -> None:
        self.gateway.hang_up()

    def _close_streams(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams = []

    def _deliver(self, deliveries: list[Any]) -> None:
        gateway, link = self.gateway, self.link
        self._received += len(deliveries)
        is_settled = self.mode is Mode.RECEIVE_AND_DELETE
        queue = self._queue
        assert queue is not None
        is_partitioned = len(queue.parts) > 1
        taken = deliveries[: link.credit]
        began = thread_time()
        engine = gateway.broker.engine.engine
        bodies = engine.bodies([delivery.body for delivery in taken])
        reads_all_types, ttl_ms = gateway.reads_all_types, queue.ttl_ms
        row: list[tuple[bytes, list[bytes]]] = []
        size = 0
        for delivery, body in zip(taken, bodies, strict=True):
            parts = render(
                body.head if isinstance(body, LargePayload) else body,
                delivery,
                is_settled=is_settled,
                entity_ttl_ms=ttl_ms,
                partition_id=delivery.sequence_number >> 48 if is_partitioned else None,
                reads_all_types=reads_all_types,
            )
            if type(body) is bytes:
                row.append((delivery_tag(delivery), parts))
                continue
            assert isinstance(body, LargePayload)
            link.deliver_row(row, settled=is_settled)
            row = []
            stream = Stream([*parts, PieceReader(engine, delivery.body, body)])
            self._streams = [it for it in self._streams if it.is_open]
            self._streams.append(stream)
            link.deliver_streamed(delivery_tag(delivery), stream, settled=is_settled)
            size = len(stream)
        if row:
            link.deliver_row(row, settled=is_settled)
            size = sum(map(len, row[-1][1]))
        for delivery in deliveries[len(taken) :]:
            # The peer took its credit back, or went, while this was on its way. Received and
            # deleted means gone (T5); a locked message is there again for others at once.
            if delivery.token is not None:
                command = c.Settle(self.path, (delivery.token,), c.Disposition.RELEASE)
                gateway.broker.submit(command, gateway.claims, _ignore)
        gateway.share.left -= thread_time() - began
        if self._received >= self._asked_up_to and link.credit > 0:
            self._at_once = _at_once(size)
            gateway.broker.turns.add(self)

    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        outcome = state.outcome if isinstance(state, p.TransactionalState) else state
        try:
            transaction = self.gateway.transaction_of(state)
            command, echo = _settlement(outcome, self.path, [d.tag for d in deliveries])
        except TandemError as error:
            self.gateway.spoil(state, error)
            self._settled(deliveries, _REJECTED_DONE, is_settled, error)
            return
        command.transaction = transaction
        command.each = transaction is None  # one lost lock does not spoil the others
        command.is_awaited = not is_settled
        if isinstance(state, p.TransactionalState) and not is_settled:
            ids = [delivery.id for delivery in deliveries]
            joined = Joined(self.link, ids, p.TransactionalState(state.txn_id, echo))
            self.gateway.transactions.join(joined)
            done = partial(self._joined, deliveries, joined)
        else:
            done = partial(self._settled, deliveries, echo, is_settled)
        self.gateway.broker.submit(command, self.gateway.claims, done)
        if self._is_held:
            self.resume()

    def _joined(self, deliveries: list[Unsettled], joined: Joined, reply: Any) -> None:
        """Part of a transaction now, and settled only when that is committed: after a rollback the
        peer can still decide about them."""
        if reply is not None:
            self.gateway.transactions.leave(joined)
            self._settled(deliveries, joined.answer, False, reply)
            return
        self.link.settle(joined.ids, joined.answer, settled=False)
        self.gateway.write_soon()

    def _settled(
        self, deliveries: list[Unsettled], answer: p.DeliveryState, is_settled: bool, reply: Any
    ) -> None:
        if is_settled:
            return
        if reply is None:
            self.link.settle([delivery.id for delivery in deliveries], answer)
        else:
            if isinstance(reply, TandemError):
                reply = [reply] * len(deliveries)
            for delivery, error in zip(deliveries, reply, strict=True):
                state = answer if error is None else p.Rejected(self.gateway.error_of(error))
                self.link.settle([delivery.id], state)
        self.gateway.write_soon()

    def on_gone(self) -> None:
        broker = self.gateway.broker
        for timer in (self._renewal, self._recheck):
            if timer is not None:
                timer.cancel()
        self._close_streams()
        broker.submit(c.Detach(self.number), self.gateway.claims, _ignore)
        broker.unregister(self.number)


def _session_of(source: p.Source | None) -> str | c.NextSession | None:
    """What the session filter of an attach says (WIRE.md §4.3); "" is a session like any other."""
    filters = (source.filter if source is not None else None) or {}
    if SESSION_FILTER not in filters:
        return None
    value = filters[SESSION_FILTER]
    if isinstance(value, types.Described):
        value = value.value
    if value is None:
        return c.NEXT_SESSION
    if not isinstance(value, str):
        raise NotAllowedError("The session filter must be a text or null.")
    return value


def _settlement(
    outcome: p.DeliveryState | None, path: str, tokens: list[bytes]
) -> tuple[c.Settle, p.Outcome]:
    """The command that an outcome asks for, and how it is echoed when done: the same outcome, but a
    rejection without its error (WIRE.md §0)."""
    match outcome:
        case p.Accepted() | None:
            return c.Settle(path, tokens, c.Disposition.COMPLETE), p.ACCEPTED
        case p.Released():
            return c.Settle(path, tokens, c.Disposition.RELEASE), p.RELEASED
        case p.Modified(_, is_deferred, properties):
            how = c.Disposition.DEFER if is_deferred else c.Disposition.ABANDON
            rest, delay_ms = dict(properties or {}), 0
            if rest:
                delay_ms = take_delay(rest)
                if not is_deferred and rest.pop(UNCOUNTED, None) is not None:
                    how = c.Disposition.RELEASE
            settle = c.Settle(path, tokens, how, _edits(rest), delay_ms=delay_ms)
            return settle, _MODIFIED_DONE
        case p.Rejected(error):
            return _dead_letter(path, tokens, error), _REJECTED_DONE
        case _:
            raise NotAllowedError(f"{type(outcome).__name__} does not settle a message.")


def _dead_letter(path: str, tokens: list[bytes], error: p.Error | None) -> c.Settle:
    how = c.Disposition.DEAD_LETTER
    if error is None:
        return c.Settle(path, tokens, how)
    info = dict(error.info or {})
    reason = info.pop("DeadLetterReason", None)
    description = info.pop("DeadLetterErrorDescription", None)
    if error.condition != DEAD_LETTER_CONDITION:
        reason, description = reason or error.condition, description or error.description
    return c.Settle(path, tokens, how, _edits(info), _text(reason), _text(description))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _edits(properties: Mapping[object, object] | None) -> Edits:
    """Properties to modify become application properties (WIRE.md §6.1)."""
    if not properties:
        return NO_EDITS
    named = {str(key): value for key, value in properties.items()}
    return Edits(Arguments({"properties": named}).simple_values("properties"))


def _at_once(size: int) -> int:
    """How many messages of this size are handed out in one turn."""
    return max(1, min(MAX_HANDED_OUT, MAX_HANDED_OUT_BYTES // size))


def _ignore(reply: Any) -> None:
    """Nobody waits for this answer."""
