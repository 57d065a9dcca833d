"""A session (AMQP 1.0 §2.5): windows, delivery ids, handles, and dispositions of both directions.

Here lives what the links of one channel share. One link lives in `link`; channels, and how a
session begins, in `connection`.

The rules: what may come in which state is in `states`. Delivery ids are consecutive over all links
of the session and given when a transfer is written, never before (rhea checks). We stay inside the
peer's incoming window; ours is as large as it can be and never counts as violated, because
azure-servicebus miscounts its transfers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tandembus.amqp.events import (
    Delivery,
    Dispositions,
    Event,
    LinkAttached,
    MessageRefused,
    SessionEnded,
    WindowOpened,
)
from tandembus.amqp.fast import (
    TRANSFER_BYTES,
    Disposition,
    Flow,
    Transfer,
    disposition_frame,
    encode_flow,
    encode_state,
    transfer_opening,
)
from tandembus.amqp.frames import LARGE, frame
from tandembus.amqp.link import ATTACHED, MAX_TAG, Link, Row
from tandembus.amqp.pending import Pending, Streamed, Waiting, rank
from tandembus.amqp.performatives import (
    FLOW,
    RECEIVER,
    TRANSFER,
    Attach,
    Begin,
    Coordinator,
    DeliveryState,
    Detach,
    End,
    Error,
    Properties,
    Source,
    Target,
    TransactionalState,
)
from tandembus.amqp.states import LINK, Action, LinkState, SessionState
from tandembus.amqp.unsettled import HALF, MASK, Twins, Unsettled, rows
from tandembus.errors import ArgumentError
from tandembus.limits import MAX_UNSETTLED, STREAM_BYTES
from tandembus.model import new_tuple

if TYPE_CHECKING:
    from tandembus.amqp.connection import Connection

INCOMING_WINDOW: Final = 0x7FFF_FFFF
"""Transfers that we take without a new flow: nobody needs a bound here, since messages are bounded
in size, unsettled ones in number, and reading from the socket can stop."""


MAPPED: Final = SessionState.MAPPED


class Session:
    """One session, seen from our side."""

    __slots__ = (
        "_handles", "_is_reported", "_pending", "_used", "_waiting", "answering", "attaching",
        "channel", "connection", "context", "ending", "incoming", "initial_id", "links",
        "next_delivery_id", "next_incoming_id", "next_outgoing_id", "outgoing", "remote_channel",
        "remote_handle_max", "state", "twins", "window",
    )  # fmt: skip

    def __init__(self, connection: Connection, channel: int, initial_id: int = 0) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel = -1
        self.state = SessionState.BEGIN_SENT
        self.context: Any = None
        """For the owner of the connection; not looked at here."""
        self.initial_id = initial_id
        self.next_outgoing_id = initial_id
        self.next_delivery_id = initial_id
        self.next_incoming_id: int | None = None
        self.window = 0
        """Transfers that the peer takes now."""
        self.remote_handle_max = 0
        self.links: dict[int, Link] = {}
        """By the peer's handle."""
        self.attaching: dict[tuple[str, bool], Link] = {}
        """Ours that wait for the peer's attach, by name and whether we send."""
        self.ending: set[Link] = set()
        """Detached by the peer; their owner has not answered yet."""
        self.outgoing: Unsettled[Delivery] = Unsettled()
        self.incoming: Unsettled[Link] = Unsettled()
        self.twins: Twins[Link, DeliveryState] = Twins(rank)
        self.answering: dict[int, Delivery] = {}
        """Decided by the peer but not settled: they wait for our answer."""
        self._handles: set[int] = set()
        self._used: set[int] = set()
        """The peer's handles that had a link once. Bounded by handle-max."""
        self._waiting: deque[Waiting] = deque()
        self._pending: Pending | None = None
        self._is_reported = False

    def __repr__(self) -> str:
        return f"<Session {self.channel} {self.state.value} {len(self.links)} links>"

    # --- what an owner calls ----------------------------------------------------------------------

    @property
    def is_blocked(self) -> bool:
        """Whether the peer's window is closed: what is delivered now would wait here."""
        return self.window <= 0 or bool(self._waiting)

    def attach(
        self,
        name: str,
        *,
        is_sender: bool,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        max_message_size: int | None = None,
        properties: Properties | None = None,
    ) -> Link:
        """Ask the peer for a link. `LinkAttached` reports that it is there, `LinkDetached` alone
        that it was refused."""
        if self.state not in (SessionState.BEGIN_SENT, SessionState.MAPPED):
            raise ArgumentError("The session has ended.")
        if (name, is_sender) in self.attaching:
            raise ArgumentError("A link of that name is being attached.")
        link = Link(self, name, self._free_handle(0), is_sender=is_sender)
        modes = snd_settle_mode, rcv_settle_mode
        self.write(link.wish(source, target, modes, max_message_size, properties))
        self._handles.add(link.handle)
        self.attaching[name, is_sender] = link
        self.connection.link_count += 1
        return link

    def settle(
        self,
        delivery_ids: Iterable[int],
        outcome: DeliveryState | None,
        *,
        as_receiver: bool,
        settled: bool = True,
    ) -> None:
        """As `Link.settle`, for deliveries of all links in one direction."""
        if self.state is not SessionState.MAPPED:
            return
        pending = self._pending
        if (
            pending is None
            or outcome is not pending.outcome
            or as_receiver is not pending.role
            or settled is not pending.settled
        ):
            self.flush()
            pending = self._pending = Pending(as_receiver, settled, outcome)
            self.connection.pending.append(self)
        append, left = pending.ids.append, 0
        incoming, outgoing, answering = self.incoming.entries, self.outgoing.entries, self.answering
        for it in delivery_ids:
            if as_receiver:
                link = incoming.pop(it, None) if settled else incoming.get(it)
                if link is None:
                    continue
                if settled:
                    link.unsettled -= 1
                    if it in self.twins.others:
                        if not self.twins.settle(it, outcome, self.incoming):
                            continue
                        said = self.twins.pop(it)
                        if said is not outcome:
                            self._write_disposition(as_receiver, it, it, settled, said)
                            continue
            elif not settled:
                if it not in outgoing and it not in answering:
                    continue
            else:
                delivery = answering.pop(it, None)
                if delivery is None:
                    delivery = outgoing.pop(it, None)
                    if delivery is None:
                        continue
                delivery.link.unsettled -= 1
                left += 1
            append(it)
        self.connection.unsettled_out -= left

    def answer(
        self,
        first: int,
        last: int,
        outcome: DeliveryState | None,
        *,
        as_receiver: bool,
        settled: bool = True,
    ) -> None:
        """A disposition for these ids, whether or not they are known here."""
        self.flush()
        self._write_disposition(as_receiver, first, last, settled, outcome)

    def end(self, error: Error | None = None) -> None:
        """End the session with all its links; what the peer still sends on it is discarded."""
        if self.state in (SessionState.MAPPED, SessionState.BEGIN_SENT):
            self.write(End(error))
            self.state = SessionState.END_SENT
            self._forget_all()

    # --- sending ----------------------------------------------------------------------------------

    def write(self, performative: Any) -> None:
        if self._pending is not None:
            self.flush()
        self.connection.write(performative, self.channel)

    def flush(self) -> None:
        """Write the dispositions that waited for neighbours."""
        pending = self._pending
        if pending is not None:
            self._pending = None
            for first, last in rows(pending.ids):
                self._write_disposition(pending.role, first, last, pending.settled, pending.outcome)

    def _write_disposition(
        self, role: bool, first: int, last: int, settled: bool, outcome: DeliveryState | None
    ) -> None:
        connection = self.connection
        state = encode_state(outcome, connection.remote_max_frame)
        connection.out.append(disposition_frame(self.channel, role, first, last, settled, state))

    def write_flow(self, link: Link | None = None, *, echo: bool = False) -> None:
        """The state of the session, and of a link if one is given."""
        if self._pending is not None:
            self.flush()
        window = INCOMING_WINDOW
        numbers: list[Any] = [self.next_incoming_id, window, self.next_outgoing_id, window]
        if link is not None:
            numbers += [link.handle, link.delivery_count, link.credit]
        body = encode_flow(*numbers, drain=link is not None and link.is_draining, echo=echo)
        self.connection.out.append(frame(body, self.channel))

    def deliver(
        self,
        link: Link,
        row: Row,
        settled: bool,
        message_format: int = 0,
        state: DeliveryState | None = None,
    ) -> int | None:
        """Write messages, or let them wait for the window. The link has taken their credit. The id
        of the last one, if it has one already."""
        connection = self.connection
        sizes = [sum(map(len, parts)) for _, parts in row]
        if (
            max(sizes) + MAX_TAG + TRANSFER_BYTES > connection.remote_max_frame
            or self.window < len(row)
            or self._waiting
            or message_format
            or state is not None
        ):
            for tag, parts in row:
                payload = parts[0] if len(parts) == 1 else b"".join(parts)
                waiting = Waiting(link, tag, payload, settled, message_format, state)
                self._waiting.append(waiting)
            self.pump()
            return waiting.delivery_id
        if max(sizes) >= LARGE:
            connection.has_large = True
        first = delivery_id = self.next_delivery_id
        channel, handle, out = self.channel, link.handle, connection.out
        unsettled: list[Delivery] = []
        for (tag, parts), size in zip(row, sizes, strict=True):
            out.append(transfer_opening(channel, handle, delivery_id, tag, settled, size))
            out += parts
            if not settled:
                unsettled.append(new_tuple(Delivery, (delivery_id, link, tag)))
            delivery_id = delivery_id + 1 & MASK
        self.next_delivery_id = delivery_id
        self.next_outgoing_id = self.next_outgoing_id + len(row) & MASK
        self.window -= len(row)
        self.outgoing.add_row(first, unsettled)
        link.unsettled += len(unsettled)
        connection.unsettled_out += len(unsettled)
        return delivery_id - 1 & MASK

    def deliver_streamed(self, link: Link, tag: bytes, message: Streamed, settled: bool) -> None:
        """Write a message that is not in memory, as the window and the connection have room."""
        self._waiting.append(Waiting(link, tag, message, settled, 0, None))
        self.pump()

    def pump(self) -> None:
        """Write what waits, frame by frame, as far as the window goes; of messages that are not in
        memory no more than the connection has room for."""
        waiting, connection = self._waiting, self.connection
        out = connection.out
        limit = connection.remote_max_frame
        while waiting and self.window > 0:
            head = waiting[0]
            link = head.link
            if head.source is not None and connection.streaming.written >= STREAM_BYTES:
                connection.streaming.sessions[self] = None
                return
            if head.delivery_id is None:
                head.delivery_id = self.next_delivery_id
                self.next_delivery_id = head.delivery_id + 1 & MASK
                if not head.settled:
                    self.outgoing.add(head.delivery_id, Delivery(head.delivery_id, link, head.tag))
                    link.unsettled += 1
                    connection.unsettled_out += 1
            opening = head.opening(more=False), head.opening(more=True)
            left = head.size - head.at
            more = len(opening[0]) + 8 + left > limit
            if more:
                left = limit - 8 - len(opening[1])
            body = opening[more]
            size = 8 + len(body) + left
            out.append(
                size.to_bytes(4, "big") + b"\x02\x00" + self.channel.to_bytes(2, "big") + body
            )
            if head.source is not None:
                out.append(head.source.read(head.at, left))
                connection.streaming.written += left
                connection.has_large = True
            elif more or head.at:
                out.append(memoryview(head.payload)[head.at : head.at + left])
                connection.has_large = True
            elif left:
                out.append(head.payload)
            head.at += left
            self.window -= 1
            self.next_outgoing_id = self.next_outgoing_id + 1 & MASK
            if not more:
                waiting.popleft()

    def forget(self, link: Link) -> None:
        """All that is under way on a link that ends."""
        if link.unsettled:
            if link.is_sender:
                self.connection.unsettled_out -= link.unsettled
            for directed in (self.outgoing.entries, self.answering):
                for it in [it for it, delivery in directed.items() if delivery.link is link]:
                    del directed[it]
            for it in [it for it, other in self.incoming.entries.items() if other is link]:
                del self.incoming.entries[it]
            if self.twins.others:
                self.twins.forget(link, self.incoming)
        self.forget_waiting(link)

    def forget_waiting(self, link: Link) -> None:
        """What has not been sent on a link that ends."""
        self._waiting = deque(it for it in self._waiting if it.link is not link)

    def release(self, link: Link) -> None:
        """It is detached on both sides: our handle can be used again."""
        if link in self.ending:
            self.ending.remove(link)
            self._handles.discard(link.handle)
            self.connection.link_count -= 1

    def _leave(self, link: Link) -> None:
        """A delivery of a link on which we send is not unsettled any more."""
        link.unsettled -= 1
        self.connection.unsettled_out -= 1

    def let_go(self, delivery_ids: Iterable[int]) -> None:
        """What was delivered with these ids is nothing to the owner any more; if the peer settles
        it, nothing is found."""
        for it in delivery_ids:
            delivery = self.outgoing.entries.pop(it, None) or self.answering.pop(it, None)
            if delivery is not None:
                self._leave(delivery.link)

    def unsettled_on(self, link: Link) -> list[Delivery]:
        """The deliveries of a link that the peer has not settled."""
        return [it for it in self.outgoing.entries.values() if it.link is link]

    def _free_handle(self, wish: int) -> int:
        """`wish` if no link of ours has it, else the lowest that is free."""
        handle = wish
        if handle in self._handles:
            handle = next(it for it in count() if it not in self._handles)
        if self.state is SessionState.MAPPED and handle > self.remote_handle_max:
            raise ArgumentError("The peer takes no more links in this session.")
        return handle

    # --- receiving --------------------------------------------------------------------------------

    def on_begin(self, begin: Begin, remote_channel: int) -> None:
        self.remote_channel = remote_channel
        self.next_incoming_id = begin.next_outgoing_id
        self.window = begin.incoming_window
        self.remote_handle_max = begin.handle_max
        self.state = SessionState.MAPPED

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        incoming_id, window, outgoing_id, _, handle, _, _, _, echo = flow
        was_blocked = self.is_blocked
        # §2.5.6. Without an id the peer has not seen our begin yet.
        base = self.initial_id if incoming_id is None else incoming_id
        under_way = self.next_outgoing_id - base & MASK
        self.window = max(0, window - under_way) if under_way < HALF else window
        self.next_incoming_id = outgoing_id
        if self._waiting:
            self.pump()
        if was_blocked and not self.is_blocked:
            events.append(WindowOpened(self))
        if handle is None:
            if echo:
                self.write_flow()
            return
        link = self.links.get(handle)
        if link is None:
            if handle not in self._used:
                self.fail(Error("amqp:session:unattached-handle", f"Handle {handle}."), events)
        elif LINK[link.state][FLOW] is Action.TAKE:
            link.on_flow(flow, events)

    def on_transfer(self, buffer: bytes, transfer: Transfer, end: int, events: list[Event]) -> None:
        self.next_incoming_id = (self.next_incoming_id or 0) + 1 & MASK
        link = self.links.get(transfer[0])
        if self.state is not MAPPED:
            pass  # it came after our end
        elif link is None:
            if transfer[0] not in self._used:
                self.fail(Error("amqp:session:unattached-handle", f"Handle {transfer[0]}."), events)
        elif link.state is ATTACHED:
            link.on_transfer(buffer, transfer, end, events)
        elif LINK[link.state][TRANSFER] is Action.REFUSE:
            link.fail(Error("amqp:illegal-state", "A transfer before the attach's answer."), events)
        state = transfer[6]
        if state is not None and (link is None or LINK[link.state][TRANSFER] is not Action.TAKE):
            events.append(MessageRefused(state))

    def on_disposition(self, disposition: Disposition, events: list[Event]) -> None:
        role, first, last, settled, state = disposition
        if self.state is not MAPPED:
            if type(state) is TransactionalState:
                events.append(MessageRefused(state))
            return
        if last - first & MASK >= HALF:
            self.fail(Error("amqp:invalid-field", "last comes before first."), events)
            return
        if role:
            if type(state) is TransactionalState and not settled:
                # Provisional: the delivery stays, until the owner settles it with the transaction,
                # or the peer decides anew.
                found = [delivery for _, delivery in self.outgoing.within(first, last)]
                events.append(Dispositions(self, found, state, settled, role, first, last))
                return
            if first == last:
                delivery = self.outgoing.entries.pop(first, None)
                found = [] if delivery is None else [delivery]
            else:
                found = [delivery for _, delivery in self.outgoing.take(first, last)]
            if settled:
                for delivery in found:
                    delivery.link.unsettled -= 1
                self.connection.unsettled_out -= len(found)
                self._settle_answering(first, last)
            else:
                answering = self.answering
                for delivery in found:
                    answering[delivery.id] = delivery
        elif settled:
            taken = self.incoming.take(first, last)
            for it, link in taken:
                for each in (link, *self.twins.others.get(it, ())):
                    each.unsettled -= 1
                self.twins.pop(it)
            found = [Delivery(it, link, b"") for it, link in taken]
        else:
            found = []  # a sender's wish about what we have not settled: it stays as it is
        events.append(Dispositions(self, found, state, settled, role, first, last))

    def _settle_answering(self, first: int, last: int) -> None:
        """A receiver that does not wait for our answer any more. Those of a wide range keep
        waiting: the answer does no harm, and nobody can make us look for them."""
        count = last - first & MASK
        if self.answering and count < 64:
            self.let_go(it & MASK for it in range(first, first + count + 1))

    def on_attach(self, attach: Attach, events: list[Event]) -> None:
        is_sender = attach.role == RECEIVER
        old = self.links.get(attach.handle)
        if attach.handle > self.connection.handle_max:
            self.connection.fail(
                "amqp:connection:framing-error", f"Handle {attach.handle} is too large.", events
            )
        elif old is not None:
            self.fail(Error("amqp:session:handle-in-use", f"Handle {attach.handle}."), events)
        elif (link := self.attaching.pop((attach.name, is_sender), None)) is not None:
            self._map(link, attach)
            if link.state is LinkState.DETACH_SENT:
                return
            node = attach.target if is_sender else attach.source
            if node is None:
                link.mark_refused()
            else:
                link.state = LinkState.ATTACHED
                if is_sender and attach.max_message_size:
                    link.max_message_size = attach.max_message_size
                events.append(LinkAttached(link))
        else:
            self._on_request(attach, is_sender, events)

    def _on_request(self, attach: Attach, is_sender: bool, events: list[Event]) -> None:
        try:
            handle = self._free_handle(attach.handle)
        except ArgumentError as error:
            self.fail(Error("amqp:resource-limit-exceeded", str(error)), events)
            return
        link = Link(self, attach.name, handle, is_sender=is_sender)
        link.state = LinkState.ATTACH_RECEIVED
        self._handles.add(handle)
        self.connection.link_count += 1
        self._map(link, attach)
        if self.connection.link_count > self.connection.max_links:
            link.refuse(Error("amqp:resource-limit-exceeded", "The connection has too many links."))
        else:
            events.append(LinkAttached(link))

    def _map(self, link: Link, attach: Attach) -> None:
        link.on_attach(attach)
        self.links[attach.handle] = link
        self._used.add(attach.handle)

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        link = self.links.pop(detach.handle, None)
        if link is None:  # detached already, or never there: the same to everybody
            return
        self.ending.add(link)
        link.on_detach(detach, events)
        if not link.is_ending:
            self.release(link)

    def on_end(self, end: End, events: list[Event]) -> None:
        was_ours = self.state is SessionState.END_SENT
        links = tuple(self.links.values())
        if not was_ours:
            self.write(End())
            self._forget_all()
        self.links = {}
        self.state = SessionState.ENDED
        self.connection.unmap(self)
        if not self._is_reported:
            self._is_reported = True
            events.append(SessionEnded(self, links, end.error, True))

    def fail(self, error: Error, events: list[Event]) -> None:
        """The peer broke a rule of the session: it is ended, and only it."""
        error = self.connection.tracked(error)
        links = tuple(self.links.values())
        self.end(error)
        self._is_reported = True
        events.append(SessionEnded(self, links, error, False))

    def _forget_all(self) -> None:
        connection = self.connection
        connection.link_count -= len(self.links) + len(self.attaching) + len(self.ending)
        for link in (*self.links.values(), *self.attaching.values(), *self.ending):
            link.state = LinkState.DETACHED
            link.credit = 0
            link.lose_partial()
            if link.is_sender:
                connection.unsettled_out -= link.unsettled
            link.unsettled = 0
        # `links` stays until the peer's end, or the loss of the connection, has told their owners.
        self.attaching = {}
        self.ending = set()
        self.outgoing = Unsettled()
        self.incoming = Unsettled()
        self.twins = Twins(rank)
        self.answering = {}
        self._waiting.clear()
        self._pending = None

    @property
    def has_too_many_unsettled(self) -> bool:
        return len(self.incoming) > MAX_UNSETTLED
