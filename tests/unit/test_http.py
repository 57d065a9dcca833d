"""HTTP without I/O: requests however their bytes are cut, and every limit (H5, S14)."""

from __future__ import annotations

import random

import pytest

from tandembus import http
from tandembus.http import Broken, Event, Expected, Headers, Parser, Request, Response, encode
from tandembus.limits import KIB, MAX_HTTP_HEAD, MAX_HTTP_HEADERS, MIB

HOST = b"Host: h\r\n"


def parse(data: bytes, **limits: int) -> list[Event]:
    return Parser(**limits).feed(data)


def one(data: bytes) -> Request:
    (request,) = parse(data)
    assert isinstance(request, Request)
    return request


def broken(data: bytes) -> int:
    """The status of the answer to bytes that end the connection."""
    parser = Parser()
    event = parser.feed(data)[-1]
    assert isinstance(event, Broken), event
    assert parser.is_broken
    assert parser.feed(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n") == []
    return event.response.status


def test_a_request() -> None:
    """Path and query are decoded; a header's name is the same in any case and can be repeated."""
    request = one(
        b"PUT /a%2Fb/c?$skip=1&%24top=2&x=a+b%20c&x=z HTTP/1.1\r\n"
        b"HOST: h:1\r\nX-A: 1 \r\nx-a:\t2\r\nContent-Length: 3\r\n\r\nabc"
    )
    assert (request.method, request.path) == ("PUT", ("a/b", "c"))
    assert request.query == {"$skip": "1", "$top": "2", "x": "a b c"}
    assert request.headers.every("x-a") == ["1", "2"]
    assert request.headers.get("host") == "h:1"
    assert request.headers.get("none") is None
    assert (request.body, request.keep_alive, request.is_upgrade) == (b"abc", True, False)
    assert len(request.headers) == len(list(request.headers)) == 4


def test_headers_do_not_show_their_values() -> None:
    assert "secret" not in repr(Headers([("Authorization", "secret")]))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/", ()),
        (b"*", ()),
        (b"/a", ("a",)),
        (b"/a/", ("a", "")),
        (b"/a//b", ("a", "", "b")),
        (b"/%C3%BC", ("ü",)),
        (b"http://other/a/b", ("a", "b")),
        (b"HTTPS://other", ()),
    ],
)
def test_paths(target: bytes, path: tuple[str, ...]) -> None:
    assert one(b"GET " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n").path == path


TWO = (
    b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;note=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
    b"\r\nGET /y HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same_requests(seed: int) -> None:
    """Two requests in a row, one with chunks: byte by byte, as a whole, or anything between."""
    chance, parser, events = random.Random(seed), Parser(), []
    at = 0
    while at < len(TWO):
        size = 1 if seed == 0 else chance.randint(1, 30)
        events += parser.feed(TWO[at : at + size])
        at += size
    first, second = events
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (first.body, first.keep_alive) == (b"abc0123456789", True)
    assert (second.path, second.body, second.keep_alive) == (("y",), b"", False)
    assert parser.is_idle


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /%ff HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /a%00 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET /?a=%0d%0a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"CONNECT h:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\nC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"nothing\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Expect: money\r\n\r\n", 417),
    ],
)
def test_heads_that_are_refused(data: bytes, status: int) -> None:
    """What two readers could read in two ways is read by none."""
    assert broken(data) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 1\r\nContent-Length: 1\r\n", 400),
        (b"Content-Length: 1, 2\r\n", 400),
        (b"Content-Length: +1\r\n", 400),
        (b"Content-Length: 1_0\r\n", 400),
        (b"Content-Length: \xb2\r\n", 400),
        (b"Content-Length: 9999999999999999\r\n", 400),
        (b"Content-Length: 1048577\r\n", 413),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Transfer-Encoding: gzip\r\n", 501),
        (b"Transfer-Encoding: gzip, chunked\r\n", 501),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501),
    ],
)
def test_lengths_that_are_refused(headers: bytes, status: int) -> None:
    assert broken(b"PUT / HTTP/1.1\r\n" + HOST + headers + b"\r\n") == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x\r\n", 400),
        (b"\r\n", 400),
        (b"-1\r\n", 400),
        (b"123456789\r\n", 400),
        (b"100001\r\n", 413),
        (b"3\r\nabcd\r\n", 400),
        (b"1;" + b"x" * 2000, 400),
        (b"0\r\nbad trailer\r\n\r\n", 400),
        (b"0\r\n" + b"A: b\r\n" * (MAX_HTTP_HEADERS + 1), 400),
    ],
)
def test_chunks_that_are_refused(body: bytes, status: int) -> None:
    head = b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert broken(head + body) == status


def test_an_old_client_has_no_chunks() -> None:
    assert broken(b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n") == 400


def test_the_head_is_bounded() -> None:
    """While it comes in, and as a whole; 10,000 headers; a line without an end."""
    line = b"GET / HTTP/1.1\r\n" + HOST
    assert broken(line + b"A: " + b"x" * MAX_HTTP_HEAD) == 431
    assert broken(line + b"A: " + b"x" * MAX_HTTP_HEAD + b"\r\n\r\n") == 431
    assert broken(line + b"A: b\r\n" * MAX_HTTP_HEADERS + b"\r\n") == 431
    assert broken(b"GET /" + b"x" * MAX_HTTP_HEAD) == 431
    one(line + b"A: b\r\n" * (MAX_HTTP_HEADERS - 1) + b"\r\n")


def test_chunks_for_ever() -> None:
    """The body is counted while it streams: after 1 MiB it is over, and so it is when the sizes and
    extensions of the chunks alone are that much."""
    for chunk in (b"400\r\n" + b"x" * KIB + b"\r\n", b"1;" + b"e" * 900 + b"\r\nx\r\n"):
        parser = Parser()
        parser.feed(b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        while not (events := parser.feed(chunk)):
            sent += len(chunk)
            assert sent < 2 * MIB
        (event,) = events
        assert isinstance(event, Broken)
        assert event.response.status == 413


def test_a_head_byte_by_byte() -> None:
    """However small the pieces are that it comes in."""
    parser = Parser()
    for byte in b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 15_000:
        parser.feed(bytes((byte,)))
    assert not parser.is_idle


def test_one_empty_line_is_forgiven_for_each_request() -> None:
    """However the bytes are cut: a peer that sends nothing but empty lines is sent away."""
    get = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    assert [type(event) for event in parse(b"\r\n" + get + b"\r\n" + get)] == [Request, Request]
    parser = Parser()
    assert parser.feed(b"\r\n") == []
    (event,) = parser.feed(b"\r\n")
    assert isinstance(event, Broken)
    assert event.response.status == 400


def test_waiting_for_permission() -> None:
    """`Expect: 100-continue` (curl, .NET): told to go on, unless the body is there already."""
    head = b"PUT / HTTP/1.1\r\n" + HOST + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\n"
    parser = Parser()
    (event,) = parser.feed(head)
    assert isinstance(event, Expected)
    (request,) = parser.feed(b"ab")
    assert isinstance(request, Request)
    assert request.body == b"ab"
    assert [type(event) for event in parse(head + b"ab")] == [Request]
    refused = Parser().feed(head.replace(b"Length: 2", b"Length: 2000000"))
    assert [type(event) for event in refused] == [Broken]


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: Close\r\n", False),
        (b"1.1", b"Connection: x, close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
    ],
)
def test_keep_alive(version: bytes, connection: bytes, keep_alive: bool) -> None:
    request = one(b"GET / HTTP/" + version + b"\r\n" + HOST + connection + b"\r\n")
    assert request.keep_alive is keep_alive


UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\n"
    b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n"
)


def test_after_an_upgrade_the_bytes_are_others() -> None:
    """They are handed over as they are; or, if the upgrade is declined, they are HTTP after all."""
    parser = Parser()
    (request,) = parser.feed(UPGRADE + b"\x82\x80")
    assert isinstance(request, Request)
    assert request.is_upgrade
    assert parser.feed(b"more") == []
    assert parser.rest() == b"\x82\x80more"
    assert parser.feed(b"x") == []

    parser = Parser()
    (request,) = parser.feed(UPGRADE + b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n")
    (following,) = parser.decline()
    assert isinstance(following, Request)
    assert following.path == ("next",)
    assert broken(UPGRADE + b"x" * (MAX_HTTP_HEAD + 1)) == 400


def test_responses() -> None:
    """With the length, and without a line that somebody else wrote."""
    response = Response(200, (("A", "b"),), b"body")
    assert encode(response) == (
        b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody"
    )
    assert encode(response, keep_alive=False, is_head=True).endswith(b"Connection: close\r\n\r\n")
    assert encode(Response(204)) == b"HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n"
    switching = encode(Response(101, (("Connection", "Upgrade"),)))
    assert switching == b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n"
    assert encode(Response(299)).startswith(b"HTTP/1.1 299 Unknown\r\n")
    for bad in ("x\r\nSet-Cookie: a", "x\0"):
        with pytest.raises(ValueError, match="control character"):
            encode(Response(200, (("A", bad),)))


def test_any_bytes_give_events() -> None:
    """Mutated requests: an event or nothing, never an exception."""
    chance = random.Random(5)
    for _ in range(2_000):
        data = bytearray(chance.choice((TWO, UPGRADE)))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for event in parse(bytes(data)):
            if isinstance(event, Broken):
                assert event.response.status in http.REASONS


def test_one_request_at_a_time() -> None:
    """What is pipelined waits until it is asked for, so that one read cannot be ten thousand
    requests at once; nothing of it is lost."""
    parser = Parser()
    data = b"".join(b"GET /%d HTTP/1.1\r\n%s\r\n" % (number, HOST) for number in range(5))
    seen = parser.feed(data + b"GET /5", one=True)
    while parser.has_more:
        events = parser.feed(b"", one=True)
        assert len(events) <= 1
        seen += events
    assert [event.target for event in seen if isinstance(event, Request)] == [
        f"/{number}" for number in range(5)
    ]
    (last,) = parser.feed(b" HTTP/1.1\r\n" + HOST + b"\r\n", one=True)
    assert isinstance(last, Request)


def test_chunks_are_read_a_number_at_a_time() -> None:
    """A body in thousands of chunks of one byte does not keep others waiting until it is read."""
    parser = Parser()
    head = b"PUT /x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    seen = parser.feed(head + b"1\r\nx\r\n" * 2_000 + b"0\r\n\r\n", one=True)
    turns = 1
    while parser.has_more:
        seen += parser.feed(b"", one=True)
        turns += 1
    (request,) = seen
    assert isinstance(request, Request)
    assert request.body == b"x" * 2_000
    assert turns > 5


def test_nothing_is_left_after_an_error() -> None:
    parser = Parser()
    parser.feed(b"GET / HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n", one=True)
    assert parser.has_more
    (broken_,) = parser.feed(b"", one=True)
    assert isinstance(broken_, Broken)
    assert not parser.has_more
