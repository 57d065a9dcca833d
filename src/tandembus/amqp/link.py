"""One end of a link (AMQP 1.0 §2.6): credit, deliveries out, messages in, and how it ends.

Here lives what a broker or a client does with a link, and what a peer can do to it. Ids, windows
and the frames of other links live in `session`; which node is behind a link is not known here.

The rules: what may come in which state is in `states`. Credit is the only thing that makes us send;
a transfer that comes without credit is taken all the same (azure-servicebus invents its credit),
because memory is bounded by the unsettled and by the size of a message, not by trust in credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tandembus.amqp.events import (
    Event,
    LinkDetached,
    LinkFlow,
    MessageAborted,
    MessageCut,
    MessagePart,
    MessageReceived,
    MessageRefused,
)
from tandembus.amqp.fast import Flow, Transfer, encode_state
from tandembus.amqp.pending import Streamed
from tandembus.amqp.performatives import (
    RECEIVER,
    RETRY_AFTER,
    SENDER,
    Attach,
    Coordinator,
    DeliveryState,
    Detach,
    Error,
    Properties,
    Rejected,
    Source,
    Target,
)
from tandembus.amqp.states import LinkState, Role
from tandembus.amqp.types import UInt
from tandembus.amqp.unsettled import HALF, MASK
from tandembus.errors import ArgumentError, ServerBusyError
from tandembus.limits import (
    BATCH_ENVELOPE,
    MAX_BATCH_BYTES,
    MAX_CREDIT,
    MAX_UNSETTLED,
    MAX_UNSETTLED_OUT,
)
from tandembus.model import new_tuple

if TYPE_CHECKING:
    from tandembus.amqp.session import Session


Row: TypeAlias = Sequence[tuple[bytes, Sequence[bytes]]]
"""Messages to be sent in a row: of each its tag, and the parts of its encoding."""

ATTACHED: Final = LinkState.ATTACHED
MAX_TAG: Final = 32
"""Bytes of a delivery tag that we send. (§2.8.7) More are taken: MAX_DELIVERY_TAG."""
_HARD_UNSETTLED: Final = 4 * MAX_UNSETTLED
_MOST_OF_BATCH: Final = MAX_BATCH_BYTES + BATCH_ENVELOPE
"""Bytes of a batch with its envelope: it is never taken in parts, so it is in memory as a whole."""


class Discarded(Enum):
    """Why a message is not kept while it comes; its sender is told at its end."""

    TOO_LARGE = auto()
    BATCH_TOO_LARGE = auto()
    BUSY = auto()
    """Too much of the connection is unfinished, and this one cannot go to disk in parts."""


class Link:
    """One end of a link. `is_sender` says which one is ours."""

    __slots__ = (
        "_discarded", "_granted", "_is_closed", "_is_reported", "_partial", "_partial_id",
        "_partial_of", "_partial_size", "_passed_on", "_refused", "context", "credit",
        "delivery_count", "ends_later", "handle", "is_draining", "is_sender", "keeps_head", "local",
        "max_message_size", "name", "part_bytes", "pauses", "remote", "remote_handle", "session",
        "state", "unsettled",
    )  # fmt: skip

    def __init__(self, session: Session, name: str, handle: int, *, is_sender: bool) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.remote_handle = -1
        self.state = LinkState.ATTACH_SENT
        self.local: Attach | None = None
        self.remote: Attach | None = None
        """The peer's attach, as it came."""
        self.credit = 0
        """Messages that may still be sent, or that we still take."""
        self.delivery_count = 0
        self.is_draining = False
        self.unsettled = 0
        self.max_message_size = session.connection.max_message_size
        self.keeps_head = 0
        """So many bytes of a message that is too large are reported, as a `MessageCut`."""
        self.part_bytes = 0
        """A message that goes on after so many bytes is reported in parts of about this size;
        0: never. Where much is unfinished on the connection, the parts are smaller."""
        self.pauses = False
        """Whether what comes behind a message on this link waits for another `receive_data`."""
        self.ends_later = False
        """Whether the peer's detach is answered by the owner (`is_ending`, `end`) if something is
        unsettled; else it is answered at once."""
        self.context: Any = None
        """For the owner of the connection; not looked at here."""
        self._passed_on = 0
        """Bytes of the unfinished message that were reported already."""
        self._granted = 0
        """The credit that its owner granted last."""
        self._refused = 0
        """Messages since then that were refused here, so that their owner did not hear of them."""
        self._partial: bytearray | None = None
        """What is kept of the unfinished message; all of it counts in `partial_bytes`."""
        self._partial_size = 0
        """How long that message is so far."""
        self._partial_id = 0
        self._partial_of: tuple[bytes, int, bool, DeliveryState | None] = (b"", 0, False, None)
        self._discarded: Discarded | None = None
        self._is_reported = self._is_closed = False

    def __repr__(self) -> str:
        kind = "sender" if self.is_sender else "receiver"
        return f"<Link {self.name!r:.80} {kind} {self.state.value} credit={self.credit}>"

    # --- what an owner calls ----------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Messages that can be delivered now: credit, but no more than may be unsettled, and none
        while the session's window is closed."""
        if self.session.is_blocked or self.state is not ATTACHED:
            return 0
        return max(0, min(self.credit, MAX_UNSETTLED_OUT - self.session.connection.unsettled_out))

    def wish(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        settle_modes: tuple[int, int],
        max_message_size: int | None,
        properties: Properties | None,
    ) -> Attach:
        """The attach by which the peer is asked for this link."""
        if max_message_size:
            self.max_message_size = max_message_size
        self.local = Attach(
            self.name,
            self.handle,
            SENDER if self.is_sender else RECEIVER,
            *settle_modes,
            source or Source(),
            target or Target(),
            initial_delivery_count=0 if self.is_sender else None,
            max_message_size=max_message_size,
            properties=properties,
        )
        return self.local

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Properties | None = None,
    ) -> bool:
        """Answer the peer's attach. Source, target and settle modes are echoed unless given.

        False if the answer does not fit the peer's frames, or the link is gone: it is refused then.
        """
        if self.state is not LinkState.ATTACH_RECEIVED:
            return False
        assert self.remote is not None
        if max_message_size is not None:
            self.max_message_size = max_message_size
        attach = Attach(
            self.name,
            self.handle,
            SENDER if self.is_sender else RECEIVER,
            self.remote.snd_settle_mode,
            self.remote.rcv_settle_mode,
            source if source is not None else self.remote.source or Source(),
            target if target is not None else self.remote.target or Target(),
            initial_delivery_count=self.delivery_count if self.is_sender else None,
            # .NET takes it for the limit of what it receives, and drops what is larger.
            max_message_size=None if self.is_sender else self.max_message_size,
            properties=properties,
        )
        try:
            self.session.write(attach)
        except ArgumentError as error:
            self.refuse(Error("amqp:frame-size-too-small", str(error)))
            self._is_reported = False  # its owner did not refuse it, so it hears of the end
            return False
        self.local = attach
        self.state = LinkState.ATTACHED
        return True

    def refuse(self, error: Error | None) -> None:
        """Answer the peer's attach with one that has no source and no target, then detach; never
        any credit in between. (§2.6.3; both SDKs need exactly this)"""
        if self.state is not LinkState.ATTACH_RECEIVED:
            return
        assert self.remote is not None
        attach = Attach(
            self.name,
            self.handle,
            SENDER if self.is_sender else RECEIVER,
            self.remote.snd_settle_mode,
            self.remote.rcv_settle_mode,
            initial_delivery_count=0 if self.is_sender else None,
        )
        try:
            self.session.write(attach)
        except ArgumentError:  # not even its name fits
            text = None if error is None else error.description
            self.session.end(Error("amqp:frame-size-too-small", text))
            return
        self.state = LinkState.ATTACHED
        self._is_reported = True
        self.detach(error)

    def detach(self, error: Error | None = None, *, closed: bool = True) -> None:
        """End the link. What the peer still sends on it is ignored; its answer is reported."""
        if self.state is LinkState.ATTACH_RECEIVED:
            self.refuse(error or Error("amqp:link:detach-forced"))
        elif self.state in (LinkState.ATTACHED, LinkState.ATTACH_SENT):
            self._drop()
            self.session.write(Detach(self.handle, closed, error))
            self.state = LinkState.DETACH_SENT

    def end(self) -> None:
        """Answer the peer's detach: what came before it has been answered. Nothing if there is no
        detach to be answered."""
        if self.state is LinkState.DETACH_RECEIVED:
            self._drop()
            self.session.write(Detach(self.handle, self._is_closed))
            self.state = LinkState.DETACHED
            self.session.release(self)

    @property
    def is_ending(self) -> bool:
        """Whether the peer has detached it, and waits for `end`."""
        return self.state is LinkState.DETACH_RECEIVED

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Take `credit` messages from now on, in all. On a link on which we receive."""
        assert not self.is_sender, "credit is granted to a sender"
        if self.state is ATTACHED:
            self.credit = self._granted = credit
            self._refused = 0
            self.is_draining = drain
            self.session.write_flow(self, echo=echo)

    def deliver(
        self,
        tag: bytes,
        parts: Sequence[bytes],
        *,
        settled: bool = False,
        message_format: int = 0,
        state: DeliveryState | None = None,
    ) -> int | None:
        """Send one message, whose encoding is all `parts` in a row; its delivery id, or None if it
        waits for the peer's window to open: it gets its id then.

        Takes one credit, and is an error without: so no more can wait than the peer asked for.
        """
        if state is not None and len(encode_state(state)) > 256:
            raise ArgumentError("A state is repeated in each frame, and this one is too long.")
        self._take_credit(1, tag)
        return self.session.deliver(self, ((tag, parts),), settled, message_format, state)

    def deliver_row(self, row: Row, *, settled: bool = False) -> None:
        """Send messages whose tags are all as long as the first; takes a credit for each."""
        if row:
            self._take_credit(len(row), row[0][0])
            self.session.deliver(self, row, settled)

    def deliver_streamed(self, tag: bytes, message: Streamed, *, settled: bool = False) -> None:
        """Send a message that is read while it is sent. Takes one credit."""
        self._take_credit(1, tag)
        self.session.deliver_streamed(self, tag, message, settled)

    def _take_credit(self, count: int, tag: bytes) -> None:
        if (
            self.credit < count
            or self.state is not ATTACHED
            or not self.is_sender
            or len(tag) > MAX_TAG
        ):
            raise ArgumentError(
                "The link is not attached, has no credit, or the tag is over 32 bytes."
            )
        self.credit -= count
        self.delivery_count = self.delivery_count + count & MASK

    def drained(self) -> None:
        """There is nothing more to send: use up the credit and say so, if a drain was asked for."""
        if self.is_sender and self.is_draining and self.state is ATTACHED:
            self.delivery_count = self.delivery_count + self.credit & MASK
            self.credit = 0
            self.session.write_flow(self)
            self.is_draining = False

    def settle(
        self, delivery_ids: Iterable[int], outcome: DeliveryState | None, *, settled: bool = True
    ) -> None:
        """Tell the peer the outcome of deliveries of this link's direction; neighbours become one
        disposition, also over several calls. Ids that are not unsettled any more are left out."""
        self.session.settle(delivery_ids, outcome, as_receiver=not self.is_sender, settled=settled)

    # --- what the session calls -------------------------------------------------------------------

    def on_attach(self, attach: Attach) -> None:
        """The peer's attach: its wish, or the answer to ours."""
        self.remote = attach
        self.remote_handle = attach.handle
        if not self.is_sender:
            self.delivery_count = attach.initial_delivery_count or 0

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        _, _, _, _, _, count, credit, drain, echo = flow
        if self.is_sender:
            # Absolute, at any time, also downwards. (§2.6.7)
            limit = (count or 0) + (credit or 0)
            left = limit - self.delivery_count & MASK
            self.credit = 0 if left >= HALF else min(left, MAX_CREDIT)
            self.is_draining = drain
            events.append(LinkFlow(self, self.credit, drain, echo))
        elif self.is_draining and count is not None:
            self.delivery_count = count
            self.credit = 0
            self.is_draining = False
            events.append(LinkFlow(self, 0, True, echo))
        # Else it is a sender that tells its own credit (azure-servicebus): of no use to us.
        if echo and not (drain and self.is_sender) and self.state is ATTACHED:
            self.session.write_flow(self)

    def on_transfer(self, buffer: bytes, transfer: Transfer, end: int, events: list[Event]) -> None:
        """One frame of a message. The state is checked; the list has been decoded."""
        _, delivery_id, tag, message_format, settled, more, state, aborted, at = transfer
        session = self.session
        if self._partial is None:
            if self.is_sender:
                self.fail(Error("amqp:not-allowed", "This end of the link sends."), events)
                return
            # Ids may come out of order, and again: threads or coroutines of azure-servicebus that
            # share a session count without a lock.
            if delivery_id is None:
                self.fail(Error("amqp:invalid-field", "delivery-id is missing."), events)
                return
            self.delivery_count = self.delivery_count + 1 & MASK
            if self.credit:
                self.credit -= 1
            if not more and not aborted:
                if end - at > self.max_message_size:
                    error = self._why(Discarded.TOO_LARGE, end - at)
                    self._refuse_message(delivery_id, settled, state, error, events)
                    return
                if not settled and not self._hold(delivery_id, events):
                    return
                events.append(
                    new_tuple(
                        MessageReceived,
                        (
                            self, delivery_id, tag or b"", buffer[at:end], message_format or 0,
                            settled, state,
                        ),
                    )
                )  # fmt: skip
                if self.pauses:
                    session.connection.is_paused = True
                return
            if aborted:
                return
            self._partial = bytearray()
            self._partial_id = delivery_id
            self._partial_of = (tag or b"", message_format or 0, False, None)
        self._on_part(buffer, transfer, end, events)

    def _on_part(self, buffer: bytes, transfer: Transfer, end: int, events: list[Event]) -> None:
        """A frame of a message that takes several. They may all repeat id, tag and format."""
        _, delivery_id, _, _, settled, more, state, aborted, at = transfer
        partial = self._partial
        assert partial is not None
        connection = self.session.connection
        if delivery_id is not None and delivery_id != self._partial_id:
            self.fail(
                Error("amqp:invalid-field", "A delivery begins before the last one ended."), events
            )
            return
        if aborted:  # (§2.7.5) as if it had never been begun
            if self._passed_on:
                events.append(MessageAborted(self))
            self.abandon_partial()
            return
        size = end - at
        self._partial_size += size
        tag, message_format, was_settled, old_state = self._partial_of
        settled = settled or was_settled
        state = old_state if state is None else state
        # A batch is taken as a whole: it is small.
        has_parts = self.part_bytes > 0 and not message_format
        is_crowded = connection.partial_bytes + size > connection.max_partial_bytes
        if self._discarded is None:
            if self._partial_size > self.max_message_size:
                self._discard(Discarded.TOO_LARGE, events)
            elif message_format and self.part_bytes and self._partial_size > _MOST_OF_BATCH:
                self._discard(Discarded.BATCH_TOO_LARGE, events)
            elif is_crowded and not has_parts:
                if connection.role is Role.CLIENT:
                    # To a broker, a message that is rejected is a dead letter.
                    text = "Too many unfinished messages."
                    self.fail(Error("amqp:resource-limit-exceeded", text), events)
                    return
                self._discard(Discarded.BUSY, events)
        if self._discarded is not None:
            if more:
                self._partial_of = (tag, message_format, settled, state)
            else:
                self._end_discarded(self._discarded, settled, state, events)
            return
        connection.partial_bytes += size
        partial += buffer[at:end]
        if more:
            self._partial_of = (tag, message_format, settled, state)
            if has_parts and (is_crowded or len(partial) >= self.part_bytes):
                events.append(MessagePart(self, bytes(partial)))
                connection.partial_bytes -= len(partial)
                self._passed_on += len(partial)
                partial.clear()
            return
        delivery_id = self._partial_id
        self.abandon_partial()
        if not settled and not self._hold(delivery_id, events):
            return
        events.append(
            MessageReceived(self, delivery_id, tag, bytes(partial), message_format, settled, state)
        )
        connection.is_paused = self.pauses

    def _hold(self, delivery_id: int, events: list[Event]) -> bool:
        """A message has come, and is unsettled from here on. False: the link has too many."""
        session = self.session
        incoming = session.incoming
        if delivery_id in incoming.entries:
            session.twins.add(delivery_id, self)
        else:
            incoming.add(delivery_id, self)
            if len(incoming.entries) > MAX_UNSETTLED:
                session.connection.crowded.add(session)
        self.unsettled += 1
        if self.unsettled > _HARD_UNSETTLED:
            self._too_many(events)
            return False
        return True

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """The peer's detach: answered with the same `closed`, unless it is the answer to ours."""
        if self.state is LinkState.ATTACH_RECEIVED:
            # It gave up waiting. Our end has to exist before it can be detached.
            self.refuse(None)
            self._is_reported = False
            self.state = LinkState.DETACHED
        elif self.state is LinkState.ATTACHED:
            self.state = LinkState.DETACH_RECEIVED
            self._is_closed = detach.closed
            self.credit = 0
            self.lose_partial()
            self.session.forget_waiting(self)
            if self.ends_later and self.unsettled:
                self.session.connection.is_paused = True
            else:
                self.end()
        else:
            self.state = LinkState.DETACHED
        if not self._is_reported:
            self._is_reported = True
            events.append(LinkDetached(self, detach.error, detach.closed, True))

    def fail(self, error: Error, events: list[Event]) -> None:
        """The peer broke a rule of the link: it is detached, and only it."""
        error = self.session.connection.tracked(error)
        self._drop()
        if self.state is LinkState.ATTACH_RECEIVED:
            self.refuse(error)
        else:
            self.detach(error)
        self._is_reported = True
        events.append(LinkDetached(self, error, True, False))

    def mark_refused(self) -> None:
        """The peer's attach has no node: its detach, with the reason, follows. (§2.6.3)"""
        self.state = LinkState.ATTACHED
        self.credit = 0

    def _discard(self, why: Discarded, events: list[Event]) -> None:
        """From here on nothing of the unfinished message is kept, but perhaps its beginning."""
        if self._passed_on:
            events.append(MessageAborted(self))
            self._passed_on = 0
        partial = self._partial
        assert partial is not None
        self._discarded = why
        kept = self.keeps_head if why is Discarded.TOO_LARGE else 0
        self.session.connection.partial_bytes -= len(partial[kept:])
        del partial[kept:]

    def _end_discarded(
        self, why: Discarded, settled: bool, state: DeliveryState | None, events: list[Event]
    ) -> None:
        """The last frame of such a message has come: its sender is told."""
        delivery_id, head, size = self._partial_id, self._partial, self._partial_size
        assert head is not None
        self.abandon_partial()
        if why is Discarded.TOO_LARGE and self.keeps_head:
            if not settled and not self._hold(delivery_id, events):
                return
            events.append(MessageCut(self, delivery_id, bytes(head), settled, state))
        else:
            self._refuse_message(delivery_id, settled, state, self._why(why, size), events)

    def _why(self, why: Discarded, size: int) -> Error:
        match why:
            case Discarded.TOO_LARGE:
                text = f"The message is larger than the {self.max_message_size} bytes of this link."
                return Error("amqp:link:message-size-exceeded", text)
            case Discarded.BATCH_TOO_LARGE:
                text = f"The batch has {size} bytes; at most {MAX_BATCH_BYTES} are allowed."
                return Error("amqp:link:message-size-exceeded", text)
            case Discarded.BUSY:
                busy = ServerBusyError("Too many messages of this connection are unfinished.")
                info = {RETRY_AFTER: UInt(busy.retry_after_ms)}
                return Error(busy.condition, str(busy), info)

    def _refuse_message(
        self,
        delivery_id: int,
        settled: bool,
        state: DeliveryState | None,
        error: Error,
        events: list[Event],
    ) -> None:
        """Rejected, so that its sender learns why, and the link lives: a detach in the middle of a
        message is an unknown error to azure-servicebus. One sent settled has no other answer."""
        if state is not None:
            events.append(MessageRefused(state, error))
        if settled:
            self.fail(error, events)
            return
        rejected = Rejected(self.session.connection.tracked(error))
        self.session.answer(delivery_id, delivery_id, rejected, as_receiver=True)
        # Its owner grants credit when it has decided about a message, and does not hear of this
        # one: a sender that is refused often enough would have no credit left.
        self._refused += 1
        if self._refused >= self.credit < self._granted and not self.is_draining:
            self.grant(min(self._granted, self.credit + self._refused))

    def _too_many(self, events: list[Event]) -> None:
        self.fail(Error("amqp:link:transfer-limit-exceeded", "Too many are unsettled."), events)

    def abandon_partial(self) -> None:
        """Forget the frames of an unfinished message."""
        if self._partial is not None:
            self.session.connection.partial_bytes -= len(self._partial)
            self._partial = None
            self._partial_size = self._passed_on = 0
            self._discarded = None

    def lose_partial(self) -> None:
        """The unfinished message will not become whole, and not because its sender aborted it."""
        state = self._partial_of[3]
        if self._partial is not None and state is not None:
            self.session.connection.lost(MessageRefused(state))
        self.abandon_partial()

    def _drop(self) -> None:
        """Forget what is under way on this link."""
        self.lose_partial()
        self.session.forget(self)
        self.unsettled = 0
        self.credit = 0
