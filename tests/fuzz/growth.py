"""No input costs more than its length: families of attacks, twice as large in less than 2.5 times
the time (RELIABILITY.md F1).

A family makes an input of size n and says who reads it. Time is CPU time, the best of several, and
a ratio that is too large is measured again: other programs on the machine decide nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Final, NamedTuple

from tandembus import atom, http
from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import LinkAttached
from tandembus.amqp.fast import disposition_frame, encode_flow, encode_state, encode_transfer
from tandembus.amqp.frames import AMQP_HEADER, frame
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.amqp.types import decode, encode, encode_described
from tandembus.errors import ProtocolError, Refused
from tandembus.model import Symbol
from tandembus.server.incoming import BATCH, messages_of
from tandembus.server.websocket import WebSocket
from tests.fuzz import seeds

MAX_RATIO: Final = 2.5


class Family(NamedTuple):
    name: str
    make: Callable[[int], bytes]
    read: Callable[[bytes], object]
    size: int
    """The smaller of the two; both are inside the limits, unless refusing is what is measured."""


class Growth(NamedTuple):
    name: str
    ratio: float
    seconds: float
    """Of the larger one."""


def _items(code: int, item: bytes, count: int) -> bytes:
    return pack(">BII", code, 4 + len(item) * count, count) + item * count


def _keys(count: int) -> bytes:
    body = b"".join(pack(">BQ", 0x80, n << 40) + b"\x40" for n in range(count))
    return pack(">BII", 0xD1, 4 + len(body), 2 * count) + body


def _texts(count: int) -> bytes:
    return encode({Symbol(f"key-{n}"): n for n in range(count)})


def _batch(count: int) -> bytes:
    return encode_described(0x75, encode(encode_message(body=b"x", properties={"a": 1}))) * count


def _connection(data: bytes) -> None:
    """A server with one link each way, that hears all of it in one piece."""
    server = Connection(Role.SERVER, container_id="s", use_sasl=False)
    for event in server.receive_data(_OPENING):
        if isinstance(event, LinkAttached):
            event.link.accept()
            if not event.link.is_sender:
                event.link.grant(5_000)
    server.receive_data(data)


def _in_bytes(data: bytes) -> None:
    server = Connection(Role.SERVER, container_id="s", use_sasl=False)
    server.receive_data(_OPENING)
    for at in range(len(data)):
        server.receive_data(data[at : at + 1])


_OPENING: Final = b"".join(
    (
        AMQP_HEADER,
        frame(p.encode_performative(p.Open("c"))),
        frame(p.encode_performative(p.Begin(None, 0, 5_000, 5_000))),
        frame(p.encode_performative(
            p.Attach("in", 0, p.SENDER, source=p.Source("a"), target=p.Target("q"),
                     initial_delivery_count=0))),
        frame(p.encode_performative(
            p.Attach("out", 1, p.RECEIVER, source=p.Source("q"), target=p.Target("a")))),
    )
)  # fmt: skip


def _transfers(count: int) -> bytes:
    return b"".join(
        frame(
            encode_transfer(0, n, b"t", message_format=0, settled=False) + b"\x00\x53\x75\xa0\x00"
        )
        for n in range(count)
    )


def _parts(count: int) -> bytes:
    first = frame(encode_transfer(0, 0, b"t", message_format=0, settled=False, more=True) + b"x")
    return first + frame(encode_transfer(0, None, None, more=True) + b"x") * count


def _settled(count: int) -> bytes:
    one = disposition_frame(0, True, 0, 2**31 - 2, True, encode_state(p.ACCEPTED))
    return one * count


def _links(count: int) -> bytes:
    made = []
    for n in range(count):
        attach = p.Attach(f"l{n}", 2, p.SENDER, source=p.Source("a"), target=p.Target("q"),
                          initial_delivery_count=0)  # fmt: skip
        made.append(frame(p.encode_performative(attach)))
        made.append(frame(p.encode_performative(p.Detach(2, True))))
    return b"".join(made)


def _http_in_bytes(data: bytes) -> None:
    parser = http.Parser()
    for at in range(len(data)):
        parser.feed(data[at : at + 1])


def _socket_in_bytes(data: bytes) -> None:
    socket = WebSocket()
    for at in range(len(data)):
        socket.receive(data[at : at + 1])


def _socket(data: bytes) -> None:
    socket = WebSocket()
    socket.receive(data)
    while socket.has_more:
        socket.receive(b"")


_CHUNKED: Final = b"PUT /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

FAMILIES: Final = (
    Family("list of nulls", lambda n: _items(0xD0, b"\x40", n), decode, 4_900),
    Family("list of lists", lambda n: _items(0xD0, b"\x45", n), decode, 4_900),
    Family("list of descriptions", lambda n: _items(0xD0, b"\x00\x53\x01\x40", n), decode, 2_400),
    Family("list of empty maps", lambda n: _items(0xD0, b"\xc1\x01\x00", n), decode, 2_400),
    Family("list of zero-width arrays",
           lambda n: _items(0xD0, seeds.zero_width(2**32 - 1), n), decode, 2_400),
    Family("map of numbers", _keys, decode, 2_400),
    Family("map of texts", _texts, decode, 2_400),
    Family("map of one key", lambda n: _items(0xD1, b"\x43", 2 * n), decode, 2_400),
    Family("array of bytes", seeds.array_bomb, decode, 4_900),
    Family("nested lists, refused", seeds.nested, decode, 3_000),
    Family("nested descriptions, refused", lambda n: seeds.nested(n, described=True), decode,
           9_000),
    Family("long text", lambda n: encode("é" * n), decode, 15_000),
    Family("sections", lambda n: b"\x00\x53\x75\xa0\x00" * n, AmqpMessage, 490),
    Family("sections of a message that arrives", lambda n: b"\x00\x53\x75\xa0\x00" * n,
           lambda data: messages_of(data, 0, lambda _: 5), 490),
    Family("properties", lambda n: encode_message(properties={f"k{i}": i for i in range(n)}),
           lambda data: AmqpMessage(data).check(), 120),
    Family("batch", _batch, lambda data: messages_of(data, BATCH, lambda _: 5), 2_000),
    Family("transfers", _transfers, _connection, 1_200),
    Family("parts of a message", _parts, _connection, 2_000),
    Family("ranges of dispositions", _settled, _connection, 2_000),
    Family("flows", lambda n: frame(encode_flow(0, 9, 0, 9, 1, 0, 9, echo=True)) * n,
           _connection, 1_500),
    Family("links that come and go", _links, _connection, 250),
    Family("a frame byte by byte", lambda n: frame(b"\x00\x53\x14\x45" + b"x" * n), _in_bytes,
           20_000),
    Family("chunks", lambda n: _CHUNKED + b"1\r\na\r\n" * n, lambda data: http.Parser().feed(data),
           5_000),
    Family("HTTP byte by byte", lambda n: b"GET /" + b"a" * n, _http_in_bytes, 7_000),
    Family("elements", lambda n: b"<x>" + b"<y/>" * n + b"</x>", atom.read, 900),
    Family("attributes", lambda n: b"<x" + b"".join(b" a%d='1'" % i for i in range(n)) + b"/>",
           atom.read, 900),
    Family("text of an element", lambda n: b"<x>" + b"&amp;" * n + b"</x>", atom.read, 50_000),
    Family("frames of a WebSocket", lambda n: b"\x82\x81abcdx" * n, _socket, 5_000),
    Family("a WebSocket byte by byte", lambda n: b"\x82\xff" + pack(">Q", n) + b"abcd" + b"x" * n,
           _socket_in_bytes, 20_000),
)  # fmt: skip


def _best_s(family: Family, data: bytes, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        begin = time.thread_time()
        with suppress(ProtocolError, Refused):
            family.read(data)
        best = min(best, time.thread_time() - begin)
    return best


def measure(family: Family, times: int = 5) -> Growth:
    """The best of several tries; too large a ratio gets three more chances."""
    small, large = family.make(family.size), family.make(2 * family.size)
    ratio = seconds = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            one, two = _best_s(family, small, times), _best_s(family, large, times)
            seconds = min(seconds, two)
            ratio = min(ratio, two / max(one, 20e-6))
            if ratio < MAX_RATIO:
                break
    finally:
        gc.enable()
    return Growth(family.name, ratio, seconds)
