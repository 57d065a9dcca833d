"""F5, F6 and WebSocket: HTTP requests, ATOM bodies, frames of a WebSocket, names.

The rules: HTTP and WebSocket give the same however their bytes are cut, and never more than an
error; XML gives an element or `ProtocolError`; a request to the administration is always answered;
a name has one canonical form, and no two entities share an address.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

from tandembus import atom, http, names
from tandembus.admin.api import AdminApi
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.server import websocket
from tandembus.server.broker import Broker
from tandembus.store.memory import MemoryStore
from tests.fuzz.judge import Violation, told
from tests.fuzz.mutate import Mutator

_SB: Final = atom.SERVICE_BUS
_FIELDS: Final = (
    "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
    "<RequiresSession>true</RequiresSession><DefaultMessageTimeToLive>P14D"
    "</DefaultMessageTimeToLive><MaxDeliveryCount>10</MaxDeliveryCount><Status>Active</Status>"
    "<ForwardTo>sb://host/other</ForwardTo><UserMetadata>&lt;text&gt;</UserMetadata>"
    "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>"
    "<AuthorizationRules><AuthorizationRule><ClaimType>SharedAccessKey</ClaimType><Rights>"
    "<AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName><PrimaryKey>a2V5</PrimaryKey>"
    "</AuthorizationRule></AuthorizationRules>"
)
_RULE: Final = (
    "<Filter i:type=\"SqlFilter\"><SqlExpression>a = 1 AND b LIKE 'x%'</SqlExpression>"
    '<Parameters><KeyValueOfstringanyType><Key>@p</Key><Value i:type="d:int" '
    f'xmlns:d="{atom.SCHEMA}">5</Value></KeyValueOfstringanyType></Parameters></Filter>'
    '<Action i:type="SqlRuleAction"><SqlExpression>SET c = 2</SqlExpression></Action>'
    "<Name>r</Name>"
)


def entry(kind: str, inside: str) -> bytes:
    return (
        f'<entry xmlns="{atom.ATOM}"><content type="application/xml"><{kind} xmlns="{_SB}" '
        f'xmlns:i="{atom.INSTANCE}">{inside}</{kind}></content></entry>'
    ).encode()


def documents() -> list[bytes]:
    """Descriptions as the SDKs send them, and the attacks on XML (RELIABILITY.md S7)."""
    many = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
    return [
        entry("QueueDescription", _FIELDS), entry("TopicDescription", _FIELDS[80:150]),
        entry("QueueDescription", ""), entry("SubscriptionDescription", "<LockDuration/>"),
        entry("SubscriptionDescription", f"<DefaultRuleDescription>{_RULE}"
                                         "</DefaultRuleDescription>"),
        entry("RuleDescription", _RULE),
        entry("RuleDescription", '<Filter i:type="CorrelationFilter"><Label>x</Label></Filter>'),
        f"<!DOCTYPE x [<!ENTITY a0 'lol'>{many}]><x>&a9;</x>".encode(),
        b"<!DOCTYPE x SYSTEM 'file:///etc/passwd'><x/>",
        b"<!DOCTYPE x [<!ENTITY e SYSTEM 'http://host/'>]><x>&e;</x>",
        b"<?php x?><x/>", b"<x>" * 30, b"<x " + b"a='b' " * 50 + b"/>", b"<x>&#0;&#x110000;</x>",
        b"<x" + b"".join(b" a%d='%d'" % (n, n) for n in range(3_000)) + b"/>",
        b"\xff\xfe<\x00x\x00/\x00>\x00", b"<?xml version='1.0' encoding='utf-7'?><x/>",
        b"<x>" + b"<y/>" * 2_500 + b"</x>", b"<x:y xmlns:x='a b'/>",
    ]  # fmt: skip


def requests() -> list[bytes]:
    """Requests in their bytes."""
    body = documents()[0]
    chunked = b"%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (len(body), body)
    head = b"Host: h\r\nUser-Agent: x\r\n"
    upgrade = (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    return [
        b"GET /$Resources/queues?api-version=2021-05&$skip=0&$top=9 HTTP/1.1\r\n" + head + b"\r\n",
        b"GET /orders?api-version=2021-05&enrich=true HTTP/1.1\r\n" + head + b"\r\n",
        b"GET /%C3%A9t%C3%A9/%E2%82%AC?%C3%BC=%20%f0%9f%98%80 HTTP/1.1\r\n" + head + b"\r\n",
        b"GET /health HTTP/1.0\r\n\r\n", b"DELETE /orders HTTP/1.1\r\n" + head + b"\r\n",
        b"PUT /new HTTP/1.1\r\nIf-Match: *\r\n%sContent-Length: %d\r\n\r\n%s"
        % (head, len(body), body),
        b"PUT /a/b%%2Fc HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n%s" % (head, chunked),
        b"PUT /t/Subscriptions/s/rules/r HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s"
        % (head, len(documents()[5]), documents()[5]),
        b"POST /x HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello" % head,
        b"GET http://h/$namespaceinfo?api-version=x HTTP/1.1\r\n" + head + b"\r\n",
        upgrade, upgrade + b"\x82\x80abcd" * 3,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 70 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"a" * 17_000, b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"PUT /x HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n%s" % (head, b"1\r\na\r\n" * 300),
    ]  # fmt: skip


def cuts(data: bytes) -> list[bytes]:
    """The same bytes in pieces; where they are cut is told by the bytes themselves."""
    chance = random.Random(zlib.crc32(data))
    places = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(4))})
    return [data[a:b] for a, b in pairwise(places)]


# --- HTTP -----------------------------------------------------------------------------------------


def _shape(event: http.Event) -> object:
    match event:
        case http.Request():
            headers = tuple(event.headers)
            return (
                event.method, event.target, event.path, dict(event.query), headers, event.body,
                event.keep_alive,
            )  # fmt: skip
        case http.Broken(response):
            return response
        case http.Expected():
            return None  # depends on what has come already


def parse(pieces: list[bytes]) -> tuple[list[http.Event], list[object]]:
    parser = http.Parser()
    events: list[http.Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    return events, [shape for shape in map(_shape, events) if shape is not None]


def check_http(data: bytes) -> None:
    events, whole = parse([data])
    for event in events:
        if isinstance(event, http.Broken):
            http.encode(event.response, keep_alive=False)
        elif isinstance(event, http.Request) and event.is_upgrade:
            http.encode(websocket.answer(event))
    if len(data) < 16_000:  # what is refused for its length depends on how much of it has come
        _, cut = parse(cuts(data))
        if cut != whole:
            raise Violation(f"HTTP whole and in pieces disagree: {whole!r:.150} / {cut!r:.150}")


# --- XML ------------------------------------------------------------------------------------------

_READERS: Final[tuple[Callable[[str], object], ...]] = (
    atom.read_time, atom.read_ticks, atom.read_duration, atom.read_boolean, atom.read_integer,
)  # fmt: skip


def check_xml(data: bytes) -> None:
    try:
        root = atom.read(data)
    except ProtocolError:
        root = None
    text = data.decode("latin-1")[:60]
    for read in _READERS:
        try:
            read(text)
        except ProtocolError:
            continue
    atom.escape(data.decode("utf-8", "replace")).encode()
    if root is not None:
        try:
            atom.content_of(root)
        except ProtocolError:
            return


class Administration:
    """The API in front of a broker in memory, on a loop of its own."""

    LIFE: Final = 2_000
    """Requests, before a new broker takes the place of one with who knows what in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._broker: Broker | None = None
        self._api: AdminApi
        self._age = 0

    def check(self, data: bytes) -> None:
        """`data` is a request line without its method, a zero, and a body."""
        target, _, body = data.partition(b"\0")
        events, _ = parse(
            [b"%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (target, len(body), body)]
        )
        for event in events:
            if isinstance(event, http.Request):
                self._loop.run_until_complete(self._ask(event))

    async def _ask(self, request: http.Request) -> None:
        if self._broker is None or self._age >= self.LIFE:
            await self._renew()
        self._age += 1
        response = await self._api.handle(request)
        http.encode(response, keep_alive=request.keep_alive)
        if response.status >= 500 and response.status not in (501, 503):
            raise Violation(f"answered with {response.status}: {response.body!r:.200}")
        if response.body.startswith(b"<"):
            _well_formed(response.body)

    async def _renew(self) -> None:
        await self.end()
        self._broker = await Broker.open("default", MemoryStore(), on_failure=_failed)
        self._api = AdminApi(self._broker)
        self._age = 0
        for command in (c.CreateQueue("orders"), c.CreateTopic("t")):
            await self._broker.execute(command, everything())
        await self._broker.execute(c.CreateSubscription("t", "s"), everything())

    async def end(self) -> None:
        if self._broker is not None:
            await self._broker.close()
            self._broker = None

    def close(self) -> None:
        self._loop.run_until_complete(self.end())
        self._loop.close()


def _failed(error: Exception) -> None:
    raise Violation(told(error))


def _well_formed(body: bytes) -> None:
    """What we write, others must be able to read; our own reader has limits that a page exceeds."""
    try:
        atom.read(body)
    except ProtocolError as error:
        if "nodes" not in str(error):
            raise Violation(f"XML was written that cannot be read: {error}") from None


def administered() -> list[bytes]:
    bodies = documents()
    paths = (
        "PUT /new", "PUT /orders", "PUT /t", "PUT /t/Subscriptions/x", "PUT /t/Subscriptions/s",
        "PUT /t/Subscriptions/s/rules/r", "GET /orders", "GET /t/Subscriptions/s/rules",
        "GET /$Resources/queues?$skip=1&$top=5", "GET /$namespaceinfo", "DELETE /new",
        "GET /$Resources/topics?api-version=2017-04", "GET /orders/$management",
    )  # fmt: skip
    return [path.encode() + b"\0" + bodies[n % 7] for n, path in enumerate((*paths, *paths[:6]))]


# --- WebSocket ------------------------------------------------------------------------------------


def sockets() -> list[bytes]:
    """Frames of a WebSocket from a client."""

    def frame(first: int, data: bytes, mask: bytes = b"abcd") -> bytes:
        size = len(data)
        length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        return bytes((first,)) + length + mask + data

    return [
        frame(0x82, b"hello") + frame(0x89, b"ping") + frame(0x82, b"x" * 300),
        frame(0x02, b"one") + frame(0x00, b"two") + frame(0x8A, b"") + frame(0x80, b"three"),
        frame(0x88, b"\x03\xe8bye"), frame(0xC2, b"compressed"), frame(0x81, b"text"),
        b"\x82\xff" + (2**63).to_bytes(8, "big") + b"abcd", b"\x82\x05hello",
        frame(0x82, b"") * 200, b"\x89\xfe\x00\x80abcd" + b"x" * 128,
        b"\x82\xff" + (70_000).to_bytes(8, "big") + b"abcd" + b"y" * 60_000,
    ]  # fmt: skip


def _through(pieces: list[bytes]) -> tuple[object, ...]:
    socket = websocket.WebSocket()
    stream = bytearray()
    try:
        for piece in pieces:
            stream += socket.receive(piece)
            while socket.has_more:
                stream += socket.receive(b"")
    except ProtocolError:
        return ("refused",)  # what came out before it depends on the pieces
    return bytes(stream), b"".join(socket.out), socket.is_closed


def check_websocket(data: bytes) -> None:
    whole, cut = _through([data]), _through(cuts(data))
    if whole != cut:
        raise Violation(f"a WebSocket whole and in pieces disagree: {whole!r:.150} / {cut!r:.150}")


# --- names ----------------------------------------------------------------------------------------


def addresses() -> list[bytes]:
    some = (
        "orders", "Orders/Sub.Queue_1-x", "top/Subscriptions/All", "t/subscriptions/s/$management",
        "orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue", "sb://host:5671/orders",
        "amqps://h/t/Subscriptions/s/$DeadLetterQueue", "$management", "$cbs", "..", "a/../b",
        "a//b",
        "subscriptions/x", "a/subscriptions/b/subscriptions/c", "straße", "İ", "ǅ", "ſ", "K",
        "a\u200db", "a\x00b", "é", "x" * 260, "x" * 261, "a/" * 130, "\u202eabc", "$Default",
    )  # fmt: skip
    return [each.encode() for each in some]


def _accepted(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ArgumentError:
        return None


def check_names(data: bytes) -> None:
    text = data.decode() if _is_text(data) else data.decode("latin-1")
    for read in (names.canonical, names.canonical_subscription, names.canonical_rule):
        found = _accepted(read, text)
        if found is None:
            continue
        if read(found) != found or read(text.swapcase()) != found:
            raise Violation(f"{read.__name__} is not one form: {text!r:.80} gives {found!r:.80}")
        if not found.isascii() or found != found.lower() or ".." in found:
            raise Violation(f"{read.__name__} takes {text!r:.80}")
    entity = _accepted(names.canonical, text)
    if entity is not None:
        own = names.split(entity)
        if own != names.Address(entity):
            raise Violation(f"the entity {entity!r:.80} has the address of another: {own}")
    where = _accepted(names.split, text)
    if where is not None:
        if names.split(where.path).path != where.path:
            raise Violation(f"{text!r:.80} has no one path: {where.path!r:.80}")
        if names.canonical(where.entity) != where.entity:
            raise Violation(f"{text!r:.80} names {where.entity!r:.80}")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def streams(seed: int) -> dict[str, Mutator]:
    return {
        "http": Mutator(requests(), seed),
        "xml": Mutator(documents(), seed + 1),
        "admin": Mutator(administered(), seed + 2),
        "websocket": Mutator(sockets(), seed + 3),
        "names": Mutator(addresses(), seed + 4),
    }
