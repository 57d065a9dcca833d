"""H1 to H3: frames of wrong sizes, values that blow up, and storms of lawful ones."""

from __future__ import annotations

import contextlib
import struct
import threading

from tandembus.amqp.fast import disposition_frame, encode_flow, encode_state, encode_transfer
from tandembus.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from tandembus.amqp.message import encode_message
from tandembus.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Detach,
    End,
    Open,
    SaslInit,
    Source,
    encode_performative,
)
from tandembus.amqp.performatives import Target as Node
from tandembus.limits import MAX_LINKS_PER_CONNECTION

from .attack import Plan, attack
from .wire import Hung, Wire, connected, framed, is_hung_up, storm

SIZES = (0, 1, 7, 0xFFFF_FFFF, 0x7FFF_FFFF, 1 << 20, (1 << 16) + 1)
SASL_INIT = frame(encode_performative(SaslInit("ANONYMOUS", b"", None)), 0, SASL_FRAME)
OPEN = framed(Open("hostile"))
BEGIN = framed(Begin(None, 0, 1_000, 1_000))
TALK_WEBSOCKET = SASL_HEADER + SASL_INIT + AMQP_HEADER + OPEN
VICTIM = "victim"


def attach(handle: int = 0, *, is_sender: bool, name: str = "storm") -> bytes:
    return framed(
        Attach(
            name,
            handle,
            not is_sender,
            source=Source("here" if is_sender else VICTIM),
            target=Node(VICTIM if is_sender else "here"),
            initial_delivery_count=0 if is_sender else None,
        )
    )


def detach(handle: int = 0) -> bytes:
    return framed(Detach(handle, closed=True))


@attack("H1-sizes")
def frame_sizes(plan: Plan) -> None:
    """frames of 0 to 7 bytes, of 4 GiB, just over the limit: before SASL, before open, after"""
    stages = {
        "in SASL": SASL_HEADER,
        "before open": SASL_HEADER + SASL_INIT + AMQP_HEADER,
        "after open": SASL_HEADER + SASL_INIT + AMQP_HEADER + OPEN,
    }
    while plan.has_time():
        for stage, before in stages.items():
            for size in SIZES:
                if not plan.has_time():
                    return
                try:
                    with connected(plan.target) as sock:
                        sock.sendall(before + struct.pack(">IBBH", size, 2, 0, 0) + b"x" * 64)
                        hung_up = is_hung_up(sock)
                except ConnectionError:
                    hung_up = True
                plan.deed.count("connections")
                plan.deed.expect(hung_up, f"{stage}: a frame of {size} bytes was waited for")


def _bad_values() -> dict[str, bytes]:
    """Encoded values; each in the place of an open's properties, or of a message's body."""
    deep = b"\x45"
    for _ in range(5_000):
        deep = b"\xd0" + struct.pack(">II", len(deep) + 4, 1) + deep
    described = b"\x00" * 20_000 + b"\x53\x24\x45"
    return {
        "2^32-1 nulls in an array": b"\xf0" + struct.pack(">II", 5, 0xFFFF_FFFF) + b"\x40",
        "2^32-1 empty lists in an array": b"\xf0" + struct.pack(">II", 5, 0xFFFF_FFFF) + b"\x45",
        "5,000 lists in lists": deep,
        "descriptors of descriptors": described,
        "a map with an odd count": b"\xc1\x04\x03\x40\x40\x40",
        "a map with a key twice": b"\xc1\x09\x04\xa3\x01a\x40\xa3\x01a\x40",
        "9,999 nulls in a list": b"\xd0" + struct.pack(">II", 4 + 9_999, 9_999) + b"\x40" * 9_999,
        "60,000 nulls in a list": b"\xd0" + struct.pack(">II", 60_004, 60_000) + b"\x40" * 60_000,
        "arrays of arrays": b"\xf0" + struct.pack(">II", 16, 0xFFFF) + b"\xf0" + b"\x00" * 12,
    }


@attack("H2-values")
def values_that_blow_up(plan: Plan) -> None:
    """zero-width arrays of 2^32-1, 5,000-deep lists, described descriptors, odd maps"""
    known = SASL_HEADER + SASL_INIT + AMQP_HEADER
    while plan.has_time():
        for value in _bad_values().values():
            # An open whose properties are the value, and a transfer whose payload is.
            fields = b"\xa1\x01x" + b"\x40" * 8 + value
            body = b"\x00\x53\x10\xd0" + struct.pack(">II", len(fields) + 4, 10) + fields
            _throw(plan, known + frame(body))
            transfer = encode_transfer(0, 0, b"t", message_format=0, settled=True)
            flood = frame(transfer + b"\x00\x53\x77" + value) if len(value) < 60_000 else b""
            try:
                with Wire.opened(plan.target) as wire:
                    wire.attach(VICTIM, is_sender=True)
                    wire.socket.sendall(flood * 20)
                    is_hung_up(wire.socket, 0.05)
            except (OSError, Hung):
                pass
            plan.deed.count("messages", 20)
            if not plan.has_time():
                return


def _throw(plan: Plan, data: bytes) -> None:
    try:
        with connected(plan.target) as sock:
            sock.sendall(data)
            is_hung_up(sock, 0.05)
    except OSError:
        pass
    plan.deed.count("connections")


@attack("H3-bytes")
def byte_by_byte(plan: Plan) -> None:
    """messages in frames of one byte of payload, written one byte at a time"""
    with Wire.opened(plan.target) as wire:
        wire.attach(VICTIM, is_sender=True)
        payload = encode_message(body=b"y" * 50, message_id="bytes")
        number = 0
        block = b""
        for number in range(20):
            for at, byte in enumerate(payload):
                more = at + 1 < len(payload)
                opening = encode_transfer(
                    0, number if not at else None, b"t" if not at else None,
                    message_format=0 if not at else None, settled=True, more=more,
                )  # fmt: skip
                block += frame(opening + bytes((byte,)))
        for byte in block[:2_000]:
            wire.socket.sendall(bytes((byte,)))
        wire.socket.sendall(block[2_000:])
        plan.deed.count("blocks", storm(wire, block, plan.until))


@attack("H3-more")
def endless_message(plan: Plan) -> None:
    """messages that never end: `more=true` on all links of a connection"""
    links = range(plan.many(100))
    begun = b"".join(
        frame(encode_transfer(n, n, b"t", message_format=0, more=True) + b"z" * 30_000)
        for n in links
    )
    block = b"".join(
        frame(encode_transfer(n, None, None, more=True) + b"z" * 30_000) for n in links
    )
    while plan.has_time():
        with Wire.opened(plan.target) as wire:
            session = wire.connection.begin()
            for n in links:
                session.attach(str(n), is_sender=True, source=Source("here"), target=Node(VICTIM))
            wire.talk(lambda: sum(it.credit > 0 for it in session.links.values()) == len(links))  # noqa: B023
            wire.socket.sendall(begun)
            plan.deed.count("blocks", storm(wire, block, plan.until))


@attack("H3-sessions")
def sessions_and_handles(plan: Plan) -> None:
    """65,535 sessions, channels and handles beyond the maximum"""
    channels = b"".join(framed(Begin(None, 0, 10, 10), channel) for channel in range(65_535))
    most = MAX_LINKS_PER_CONNECTION
    handles = BEGIN + b"".join(attach(n, is_sender=True, name=str(n)) for n in range(most + 2))
    while plan.has_time():
        for what, data in (("65,535 sessions", channels), (f"{most + 2:,} handles", handles)):
            with Wire.opened(plan.target) as wire:
                with contextlib.suppress(OSError):
                    wire.socket.sendall(data)
                plan.deed.expect(is_hung_up(wire.socket), f"{what} were taken")
            plan.deed.count("connections")


@attack("H3-flow")
def flow_storm(plan: Plan) -> None:
    """flows as fast as they can be written (aim: 100,000 a second)"""
    with Wire.opened(plan.target) as wire:
        wire.attach(VICTIM, is_sender=False)
        flow = frame(encode_flow(0, 1_000, 0, 1_000, 0, 0, 10))
        plan.deed.count("flows", 2_000 * storm(wire, flow * 2_000, plan.until))


@attack("H3-attach")
def attach_storm(plan: Plan) -> None:
    """attach and detach for ever (the idea of HTTP/2's rapid reset)"""
    while plan.has_time():
        with Wire.opened(plan.target) as wire:
            wire.connection.begin()
            wire.flush()
            block = b"".join(
                attach(0, is_sender=sender) + detach(0) for sender in (True, False) * 100
            )
            count = storm(wire, block, plan.until)
            plan.deed.count("attaches", 200 * count)
            if plan.has_time():
                plan.deed.count("hung up on")
                plan.deed.expect(b"resource-limit-exceeded" in wire.last_words, "no reason given")


@attack("H3-begin")
def begin_storm(plan: Plan) -> None:
    """begin and end for ever"""
    while plan.has_time():
        with Wire.opened(plan.target) as wire:
            block = (BEGIN + framed(End())) * 300
            count = storm(wire, block, plan.until)
            plan.deed.count("begins", 300 * count)
            if plan.has_time():
                plan.deed.count("hung up on")
                plan.deed.expect(b"resource-limit-exceeded" in wire.last_words, "no reason given")


@attack("H3-many")
def many_storms(plan: Plan) -> None:
    """flows, attaches and begins on 12 connections at once"""
    blocks = (
        frame(encode_flow(0, 1_000, 0, 1_000)) * 2_000,
        (attach(1, is_sender=True) + detach(1)) * 200,
        (framed(Begin(None, 0, 9, 9), 5) + framed(End(), 5)) * 200,
    )

    def work(number: int) -> None:
        while plan.has_time():
            with Wire.opened(plan.target) as wire:
                wire.connection.begin()
                wire.flush()
                plan.deed.count("blocks", storm(wire, blocks[number % 3], plan.until))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(max(3, plan.many(12)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("H3-settle")
def settle_ranges(plan: Plan) -> None:
    """dispositions of 2^31 deliveries, and delivery ids that wrap"""
    with Wire.opened(plan.target) as wire:
        session = wire.connection.begin(initial_id=0xFFFF_FFF6)
        source, node = Source("here"), Node(VICTIM)
        link = session.attach("wrap", is_sender=True, source=source, target=node)
        wire.talk(lambda: link.capacity > 0)
        for number in range(30):
            link.deliver(b"%d" % number, [encode_message(body=b"w", message_id=f"w{number}")])
        wire.talk(lambda: not session.outgoing.entries)
        accepted = encode_state(ACCEPTED)
        block = b"".join(
            disposition_frame(0, role, first, first + 0x7FFF_FFFE & 0xFFFF_FFFF, True, accepted)
            for role in (True, False)
            for first in (0, 1, 0x7FFF_FFFF, 0xFFFF_FFFF)
        )
        plan.deed.count("ranges", 8 * 100 * storm(wire, block * 100, plan.until))
