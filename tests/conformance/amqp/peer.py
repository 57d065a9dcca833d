"""A peer that is played by hand: it sends what a test tells it, and reads what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Closed, Event, LinkAttached
from tandembus.amqp.fast import (
    decode_disposition,
    decode_flow,
    decode_transfer,
    disposition_frame,
    encode_flow,
    encode_state,
    encode_transfer,
)
from tandembus.amqp.frames import AMQP_HEADER, SASL_HEADER, frame, frame_opening
from tandembus.amqp.link import Link
from tandembus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    DeliveryState,
    Open,
    Source,
    Target,
    decode_performative,
    encode_performative,
)


class Flow(NamedTuple):
    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None
    delivery_count: int | None
    link_credit: int | None
    drain: bool
    echo: bool


class Transfer(NamedTuple):
    handle: int
    delivery_id: int | None
    tag: bytes | None
    message_format: int | None
    settled: bool
    more: bool
    state: DeliveryState | None
    aborted: bool
    payload: bytes


class Disposition(NamedTuple):
    role: bool
    first: int
    last: int
    settled: bool
    state: DeliveryState | None


@dataclass(frozen=True, slots=True)
class Header:
    raw: bytes


@dataclass(frozen=True, slots=True)
class Empty:
    pass


def read(data: bytes) -> list[tuple[int, Any]]:
    """(channel, performative) of each frame; headers and empty frames as such."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            found.append((-1, Header(data[at : at + 8])))
            at += 8
            continue
        size, offset, _, channel = frame_opening(data, at)
        assert offset == 2, "azure-servicebus reads no other"
        assert size >= 8
        end = at + size
        assert end <= len(data)
        body = at + 8
        if body == end:
            found.append((channel, Empty()))
        elif data[body + 2] == 0x13:
            found.append((channel, Flow(*decode_flow(data, body + 3, end))))
        elif data[body + 2] == 0x14:
            fields = decode_transfer(data, body + 3, end)
            found.append((channel, Transfer(*fields[:-1], data[fields[-1] : end])))
        elif data[body + 2] == 0x15:
            found.append((channel, Disposition(*decode_disposition(data, body + 3, end))))
        else:
            assert data[body : body + 2] == b"\x00\x53", "the only descriptor that SDKs read"
            performative, stop = decode_performative(data[body:end])
            assert stop == end - body
            found.append((channel, performative))
        at = end
    return found


class Peer:
    """The other side of `connection`, which is a server unless told otherwise."""

    def __init__(self, role: Role = Role.SERVER, **options: Any) -> None:
        options.setdefault("container_id", "tandem")
        options.setdefault("use_sasl", False)
        self.connection = Connection(role, **options)
        self.sent = b""

    def raw(self, data: bytes) -> list[Event]:
        self.sent += data
        return self.connection.receive_data(data)

    def send(self, performative: Any, channel: int = 0, kind: int = 0) -> list[Event]:
        return self.raw(frame(encode_performative(performative), channel, kind))

    def flow(self, *fields: int | None, channel: int = 0, **flags: bool) -> list[Event]:
        return self.raw(frame(encode_flow(*fields, **flags), channel))  # type: ignore[arg-type]

    def transfer(
        self,
        delivery_id: int | None,
        payload: bytes = b"m",
        *,
        handle: int = 0,
        tag: bytes | None = b"t",
        channel: int = 0,
        message_format: int | None = 0,
        **fields: Any,
    ) -> list[Event]:
        body = encode_transfer(handle, delivery_id, tag, message_format=message_format, **fields)
        return self.raw(frame(body + payload, channel))

    def disposition(
        self,
        first: int,
        last: int | None = None,
        *,
        role: bool = RECEIVER,
        settled: bool = False,
        state: DeliveryState | None = None,
        channel: int = 0,
    ) -> list[Event]:
        last = first if last is None else last
        return self.raw(disposition_frame(channel, role, first, last, settled, encode_state(state)))

    def bytes(self) -> bytes:
        return b"".join(bytes(chunk) for chunk in self.connection.data_to_send())

    def answers(self) -> list[Any]:
        """What the connection wrote since last time."""
        return [performative for _, performative in read(self.bytes())]

    def answer(self) -> Any:
        """The one thing that it wrote."""
        (only,) = self.answers()
        return only

    # --- the usual beginnings ---------------------------------------------------------------------

    def opened(self, **fields: Any) -> Peer:
        fields.setdefault("container_id", "peer")
        self.raw(AMQP_HEADER)
        self.send(Open(**fields))
        self.answers()
        return self

    def begun(self, channel: int = 0, window: int = 2048, **fields: Any) -> Peer:
        if not self.connection.sessions and self.connection.state.name == "HEADER":
            self.opened()
        self.send(Begin(None, 0, window, window, **fields), channel)
        self.answers()
        return self

    def attach(
        self,
        *,
        is_sender: bool,
        handle: int = 0,
        channel: int = 0,
        name: str = "",
        **fields: Any,
    ) -> Link:
        """The peer's attach; the link that the connection made for it, not answered yet."""
        fields.setdefault("source", Source("from"))
        fields.setdefault("target", Target("to"))
        if is_sender:
            fields.setdefault("initial_delivery_count", 0)
        role = SENDER if is_sender else RECEIVER
        events = self.send(Attach(name or f"link-{handle}", handle, role, **fields), channel)
        (event,) = events
        assert isinstance(event, LinkAttached)
        return event.link

    def receiving(self, **fields: Any) -> Link:
        """An accepted link on which the connection receives, with credit for 100."""
        link = self.attach(is_sender=True, **fields)
        link.accept()
        link.grant(100)
        self.answers()
        return link

    def sending(self, credit: int = 100, **fields: Any) -> Link:
        """An accepted link on which the connection sends, and has credit."""
        link = self.attach(is_sender=False, **fields)
        link.accept()
        handle = link.remote_handle
        self.flow(0, 2048, 0, 2048, handle, 0, credit, channel=fields.get("channel", 0))
        self.answers()
        return link


def closed_with(events: list[Event]) -> str | None:
    """The condition with which the connection was closed by us."""
    closed = [event for event in events if isinstance(event, Closed)]
    assert len(closed) <= 1
    return closed[0].error.condition if closed and closed[0].error else None


__all__ = [
    "AMQP_HEADER", "SASL_HEADER", "Disposition", "Empty", "Flow", "Header", "Peer", "Transfer",
    "closed_with", "read",
]  # fmt: skip
