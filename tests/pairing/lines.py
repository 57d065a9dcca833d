"""20 entities for the outages: what is sent to each, and what a message says, byte for byte."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from tandembus.amqp.message import sections
from tandembus.amqp.types import decode

SESSIONS: Final = ("red", "green", "blue")
KINDS: Final = {
    "plain": 4,
    "batch": 2,
    "twice": 2,
    "session": 5,
    "topic": 3,
    "later": 1,
    "planned": 1,
    "mortal": 1,
    "blocking": 1,
}
"""How many entities of each kind: plain queues, sent to one by one and in batches; one without
duplicate detection; with sessions; topics; messages that have a schedule of their own, or are
scheduled by the operation; with a time to live; and one sender without asyncio."""

_HEADER, _DELIVERY, _MARKS, _PROPERTIES, _FOOTER = 0x70, 0x71, 0x72, 0x73, 0x78
_BROKERS: Final = frozenset(
    {"x-opt-sequence-number", "x-opt-enqueued-time", "x-opt-enqueue-sequence-number"}
)


@dataclass
class Line:
    """One entity, its sender, and what it was told."""

    path: str
    kind: str
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Id → what it says, of every message whose send was answered."""
    due: dict[str, datetime] = field(default_factory=dict)
    """Id → not before this."""

    @property
    def detects_duplicates(self) -> bool:
        return self.kind != "twice"

    @property
    def has_sessions(self) -> bool:
        return self.kind == "session"

    @property
    def is_topic(self) -> bool:
        return self.kind == "topic"

    @property
    def is_batched(self) -> bool:
        """In a batch each message is encoded once: what is sent again has the very same bytes, also
        where the SDK writes the time of encoding into them (a time to live)."""
        return self.kind in ("batch", "mortal")


def lines() -> list[Line]:
    return [Line(f"{kind}-{n}", kind) for kind, count in KINDS.items() for n in range(count)]


def message(line: Line, number: int) -> ServiceBusMessage:
    session = SESSIONS[number % len(SESSIONS)] if line.has_sessions else None
    made = ServiceBusMessage(
        os.urandom(20) + f"{number}".encode(),
        message_id=f"{line.path}/{session}/{number}",
        session_id=session,
        subject=f"subject {number}",
        correlation_id=f"{number % 7}",
        content_type="application/x-outage",
        reply_to="answers",
        application_properties={"number": number, "text": "Grüße", "half": number / 2, "yes": True},
    )
    if line.kind in ("later", "planned"):
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=number % 4)
        made.scheduled_enqueue_time_utc = due
        line.due[str(made.message_id)] = due
    elif line.kind == "mortal":
        made.time_to_live = timedelta(hours=5, milliseconds=number)
    return made


def meant(payload: bytes) -> dict[str, Any]:
    """All that a sender has said, as bytes where it is bytes. What a broker writes is left out: the
    delivery count, its own annotations."""
    said: dict[str, Any] = {"header": (None,) * 4, "marks": {}}
    for code, start, end in sections(payload):
        if code == _HEADER:
            fields, _ = decode(payload, start + 3, typed=True)
            assert isinstance(fields, list)
            said["header"] = tuple([*fields, *[None] * 4][:4])
        elif code == _MARKS:
            marks, _ = decode(payload, start + 3, typed=True)
            assert isinstance(marks, dict)
            said["marks"] = {name: it for name, it in marks.items() if name not in _BROKERS}
        elif code != _DELIVERY:
            said[f"{code:#x}"] = said.get(f"{code:#x}", b"") + payload[start:end]
    return said


def free_port() -> int:
    """One that nobody gets by chance, so that a broker that comes back finds it: neither another
    program nor a client that knocks while it is away and, of all ports, is given this one."""
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
