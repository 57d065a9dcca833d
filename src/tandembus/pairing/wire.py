"""The SDK, and the bytes of its messages. The only place that knows the inside of azure-servicebus.

The SDK's values lose AMQP types: whatever number, symbol or binary a message had, it comes out as
int or bytes, and goes back in as something else. So a message in a backlog is handled as the bytes
that were on the wire. Three seams of the SDK are used for that:

- a batch encodes each message that is added: `encoded` reads what it has encoded;
- a sender and a receiver take their steps through a transport class, which they hold as an
  attribute: `speak_bytes` gives them one that lets ready bytes pass;
- several messages are completed in one request of the management node, by their lock tokens.

What a receiver delivers then has one data section, with the whole message in it (`bytes_of`): the
SDK decodes nothing, so nothing in a message can make it fail.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, cast

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus._pyamqp.constants import Role
from azure.servicebus._pyamqp.message import Message as SdkMessage
from azure.servicebus._pyamqp.outcomes import Released
from azure.servicebus._pyamqp.performatives import DispositionFrame
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync

from tandembus.client.messages import data_section

_NO_LIMIT: Final = 1 << 40
_BATCH_BODY: Final = 5
_PER_MESSAGE: Final = 8
"""The most that the envelope of a batch adds for each message in it."""
_LINK: Final = "_tandem_link"
_MORE: Final = 5
_PAYLOAD: Final = 11
_AGAIN_S: Final = 0.1

USER_AGENT: Final = "tandem-pairing"
"""In front of the SDK's own: a broker that rewrites values for the SDK's decoder (Tandem does) then
leaves them as they were sent."""


class Settlement(StrEnum):
    """Words of the management node (WIRE.md: update-disposition)."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEAD_LETTER = "suspended"


class _Ready(SdkMessage):
    """A message that is encoded already."""

    ready: bytes


def _let_ready_pass(handler: Any) -> None:
    """What the session of a sender is given to send: ready bytes instead of their stand-in."""
    session = handler._link._session
    if "_outgoing_transfer" in vars(session):
        return
    original = session._outgoing_transfer

    def transfer(delivery: Any, trace: Any) -> Any:
        ready = getattr(delivery.message, "ready", None)
        if ready is not None:
            delivery.frame["payload"] = ready
        return original(delivery, trace)

    session._outgoing_transfer = transfer


def _let_bytes_through(link: Any, counted: list[int]) -> None:
    """What the link of a receiver gets: the whole message as the one data section of another."""
    if "_incoming_transfer" in vars(link):
        return
    original = link._incoming_transfer
    frames: list[Sequence[Any]] = []

    async def transfer(frame: Sequence[Any]) -> None:
        frames.append(frame)
        if frame[_MORE]:
            return
        payload = b"".join(each[_PAYLOAD] for each in frames)
        whole = list(frames[0])
        frames.clear()
        whole[_MORE] = False
        whole[_PAYLOAD] = memoryview(data_section(payload))
        counted[0] += 1
        await original(whole)

    link._incoming_transfer = transfer


class _Always:
    """In place of the event by which the SDK knows whether somebody receives: what comes a moment
    later, on credit that was taken back, it would release, to be received and paid for again. It is
    kept for the next receive instead (`late`)."""

    def set(self) -> None:
        pass

    clear = set

    def is_set(self) -> bool:
        return True


class _BytesTransport(PyamqpTransport):
    @staticmethod
    def send_messages(
        sender: Any, message: Any, logger: Any, timeout: Any, last_exception: Any
    ) -> None:
        if type(message._message) is _Ready:
            sender._open()
            _let_ready_pass(sender._handler)
        PyamqpTransport.send_messages(sender, message, logger, timeout, last_exception)


class _AsyncBytesTransport(PyamqpTransportAsync):
    counted: list[int]
    """Messages that have come; of one receiver, which has a class of its own."""

    @staticmethod
    async def send_messages_async(
        sender: Any, message: Any, logger: Any, timeout: Any, last_exception: Any
    ) -> None:
        if type(message._message) is _Ready:
            await sender._open()
            _let_ready_pass(sender._handler)
        await PyamqpTransportAsync.send_messages_async(
            sender, message, logger, timeout, last_exception
        )

    @classmethod
    async def reset_link_credit_async(cls, handler: Any, link_credit: int) -> None:
        # The receiver has no credit before this, so nothing arrives unseen.
        _let_bytes_through(handler._link, cls.counted)
        # The SDK would ask for one more whenever it looks at the connection, and release it.
        handler._link_credit = 0
        await PyamqpTransportAsync.reset_link_credit_async(handler, link_credit)


_TRANSPORTS: Final[dict[Any, Any]] = {
    PyamqpTransport: _BytesTransport,
    PyamqpTransportAsync: _AsyncBytesTransport,
}


def in_time(handler: Any) -> Any:
    """Make a new sender of the blocking SDK keep to its time-out while it opens its link, too: it
    waits without end for a side that takes the connection and then is silent. And have its sockets
    closed: the SDK forgets the one of a connection that broke."""
    if handler._amqp_transport is not PyamqpTransport:
        return handler
    open_it, close_it = handler._open, handler.close
    used: set[socket.socket] = set()

    def opened(timeout: float | None = None) -> None:
        if handler._running:
            return
        done = threading.Event()
        watch = threading.Thread(target=_cut_off, args=(handler, done, timeout, used), daemon=True)
        watch.start()
        try:
            open_it(timeout)
        finally:
            done.set()
            watch.join()
            _close_all(used)
            used.update(_socket_of(handler))

    def closed() -> None:
        close_it()
        _close_all(used)

    handler._open, handler.close = opened, closed
    return handler


def _socket_of(handler: Any) -> list[socket.socket]:
    """Of its connection, if it has one."""
    with suppress(AttributeError):
        if (found := handler._handler._connection._transport.sock) is not None:
            return [found]
    return []


def _close_all(used: set[socket.socket]) -> None:
    while used:
        used.pop().close()


def _cut_off(
    handler: Any, done: threading.Event, timeout_s: float | None, used: set[socket.socket]
) -> None:
    """End the connection of a link that is not open in time, if it has one; then the SDK raises."""
    wait_s = timeout_s
    while not done.wait(wait_s):
        wait_s = _AGAIN_S  # it may not have had a socket yet
        for found in _socket_of(handler):
            used.add(found)
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


def speak_bytes(handler: Any) -> Any:
    """Make a new sender or receiver of the SDK send `parcel`s and receive for `bytes_of`. A
    receiver must not prefetch."""
    in_time(handler)
    transport = _TRANSPORTS.get(handler._amqp_transport)
    if transport is None:
        raise ValueError("A pair needs the SDK's own transport (uamqp_transport=False).")
    if transport is _AsyncBytesTransport and hasattr(handler, "receive_messages"):
        handler._receive_context = _Always()
        transport = type("_Counting", (_AsyncBytesTransport,), {"counted": [0]})
    handler._amqp_transport = transport
    return handler


# --- sending --------------------------------------------------------------------------------------


def encoded(messages: Iterable[Any]) -> list[bytes]:
    """Messages as the SDK would put them on the wire. Raises what the SDK raises for a bad one."""
    batch = ServiceBusMessageBatch(max_size_in_bytes=_NO_LIMIT)
    for message in messages:
        batch.add_message(message)
    return payloads_of(batch)


def payloads_of(batch: ServiceBusMessageBatch) -> list[bytes]:
    return [bytes(payload) for payload in batch._message[_BATCH_BODY]]


def parcel(sender: Any, payloads: Sequence[bytes]) -> ServiceBusMessageBatch:
    """Encoded messages in one transfer: something for `send_messages` of this sender, which speaks
    bytes. One travels as it is."""
    batch = ServiceBusMessageBatch(
        max_size_in_bytes=_NO_LIMIT, amqp_transport=sender._amqp_transport
    )
    if len(payloads) == 1:
        message = _Ready(data=[b""])
        message.ready = payloads[0]
        batch._message = cast(Any, message)
    else:
        batch._message[_BATCH_BODY] = list(payloads)
    batch._count = len(payloads)
    return batch


def parcels(
    payloads: Sequence[bytes], max_message: int, max_batch: int, envelope: int = 64
) -> list[list[bytes]]:
    """In their order, in as few transfers as the limits of the link allow."""
    found: list[list[bytes]] = []
    size = max_batch + 1
    for payload in payloads:
        more = len(payload) + _PER_MESSAGE
        if size + more > max_batch or not found:
            found.append([])
            size = envelope
        found[-1].append(payload)
        size += more
        assert len(payload) <= max_message, "checked by the caller"
    return found


def is_open(sender: Any) -> bool:
    """Whether its limits are known: it has been open once."""
    return bool(sender._max_message_size_on_link)


def open_link(sender: Any, timeout_s: float | None) -> Any:
    """Something to wait for, with asyncio. (`create_message_batch` opens a link as well, but would
    wait without end for a side that is silent.)"""
    return sender._do_retryable_operation(
        sender._open, timeout=timeout_s, operation_requires_timeout=True
    )


def limits_of(sender: Any) -> tuple[int, int]:
    """The largest message and the largest batch that its link takes; it must have been open."""
    return int(sender._max_message_size_on_link), int(sender._max_batch_size_on_link)


# --- receiving ------------------------------------------------------------------------------------


def bytes_of(message: ServiceBusReceivedMessage) -> bytes:
    """The message as it was on the wire; from a receiver that speaks bytes."""
    return b"".join(message.body)


def late(receiver: Any) -> int:
    """Messages that came after the last receive had ended; the next one, for so many, has them at
    once."""
    handler = receiver._handler
    return 0 if handler is None else int(handler._received_messages.qsize())


async def no_more(receiver: Any) -> None:
    """Take back the credit that a receive has left over: a message whose lock runs while nobody
    looks at it only waits."""
    link = receiver._handler._link
    if link.current_link_credit > 0:
        await link.flow(link_credit=0)


def newly_counted(receiver: Any) -> int:
    """Messages that the broker has delivered since the last time, also those that were released."""
    counted = receiver._amqp_transport.counted
    count, counted[0] = counted[0], 0
    return int(count)


def came_through(receiver: Any, messages: Sequence[ServiceBusReceivedMessage]) -> None:
    """Remember the link by which they came, for `settle_all`: a receiver makes itself a new one
    when it has to, and there their numbers mean others."""
    for message in messages:
        setattr(message, _LINK, receiver._handler._link)


async def settle_all(
    receiver: Any,
    messages: Sequence[ServiceBusReceivedMessage],
    how: Settlement,
    *,
    reason: str = "",
    description: str = "",
) -> None:
    """Settle locked messages of one queue with one request, by their lock tokens; they need not
    have come through this receiver. Raises if one of them cannot be settled; then none of the
    others needs to be."""
    details = None
    if how is Settlement.DEAD_LETTER:
        details = {"deadletter-reason": reason, "deadletter-description": description}
    tokens = [message.lock_token for message in messages]
    await receiver._do_retryable_operation(
        partial(receiver._settle_message_via_mgmt_link, str(how), tokens, details)
    )
    # The link was not told: to it they are unsettled still, and only so many may be (5,000 for
    # Tandem). A lock that is no more cannot be released, so this says nothing else.
    link = receiver._handler._link
    here: list[Any] = [each for each in messages if getattr(each, _LINK, None) is link]
    link._received_delivery_tags.difference_update(each._delivery_tag for each in here)
    for first, last in _runs(sorted(each._delivery_id for each in here)):
        await link._session._outgoing_disposition(
            DispositionFrame(Role.Receiver, first, last, True, Released(), None)
        )


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each row of numbers that follow on each other."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
