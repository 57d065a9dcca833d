"""HTTP/1.1 without I/O, the server's side: bytes to requests, responses to bytes.

Here live the incremental parser and the writer that administration, health checks and the head of a
WebSocket upgrade share. Sockets, time-outs and what a request means do not.

The rule: every byte is counted before it is kept (RELIABILITY.md S14). What is ambiguous between
two readers of the same bytes (two lengths, a folded header, a bare line feed) is refused and ends
the connection, so that nobody can hide a request inside another one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import unquote_to_bytes

from tandembus import limits

REASONS: Final[Mapping[int, str]] = MappingProxyType(
    {
        100: "Continue",
        101: "Switching Protocols",
        200: "OK",
        201: "Created",
        204: "No Content",
        302: "Found",
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
        408: "Request Timeout",
        409: "Conflict",
        410: "Gone",
        412: "Precondition Failed",
        413: "Content Too Large",
        417: "Expectation Failed",
        426: "Upgrade Required",
        429: "Too Many Requests",
        431: "Request Header Fields Too Large",
        500: "Internal Server Error",
        501: "Not Implemented",
        503: "Service Unavailable",
        505: "HTTP Version Not Supported",
    }
)
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_HEADER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\x20-\x7e\t]*)?")
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAX_LINE: Final = 1_024
"""Bytes of a chunk's size line or of a trailer."""
_STEPS: Final = 250
"""Moves of the parser at once; 250 are less than a millisecond."""


class Headers:
    """Headers by lower-case name; a name can be there several times."""

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Sequence[tuple[str, str]] = ()) -> None:
        self._pairs = tuple((name.lower(), value) for name, value in pairs)

    def get(self, name: str) -> str | None:
        """The first of that name (lower case)."""
        return next((value for each, value in self._pairs if each == name), None)

    def every(self, name: str) -> list[str]:
        return [value for each, value in self._pairs if each == name]

    def words(self, name: str) -> set[str]:
        """The elements of a list header (`Connection: keep-alive, Upgrade`), in lower case."""
        joined = ",".join(self.every(name))
        return {word.strip().lower() for word in joined.split(",")} - {""}

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __repr__(self) -> str:
        """Without the values: one of them is somebody's key."""
        return f"Headers({', '.join(name for name, _ in self._pairs)})"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    """As it was sent."""
    path: tuple[str, ...]
    """The segments, decoded one by one: a `%2F` stands inside its segment. `/` has none."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Decoded; the first of a name counts."""
    headers: Headers = field(default_factory=Headers)
    body: bytes = b""
    keep_alive: bool = True
    """Whether the connection can be used again after the response."""
    is_secure: bool = False
    """Whether it came inside TLS."""

    @property
    def is_upgrade(self) -> bool:
        """Whether the client wants to go on with another protocol (RFC 9110 §7.8)."""
        return "upgrade" in self.headers.words("connection") and "upgrade" in self.headers


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_public: bool = False
    """Whether anybody gets this answer: then it does not say that its peer is somebody."""
    stream: AsyncIterator[bytes] | None = None
    """What follows the head, for as long as it goes on, instead of a body; then the connection
    ends."""


class Expected:
    """The client waits before it sends its body: write `CONTINUE`, or a final response instead."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """These bytes cannot be gone on with: write the response and close."""

    response: Response


Event: TypeAlias = Request | Expected | Broken


def text(status: int, words: str) -> Response:
    """A plain answer for people."""
    return Response(status, (("Content-Type", "text/plain; charset=utf-8"),), f"{words}\n".encode())


def encode(response: Response, *, keep_alive: bool = True, is_head: bool = False) -> bytes:
    """The bytes of a response. `is_head`: the request was a HEAD, so no body follows."""
    reason = REASONS.get(response.status, "Unknown")
    lines = [f"HTTP/1.1 {response.status} {reason}"]
    for name, value in response.headers:
        # A line break in a value would begin a header, or a response, of somebody else's choice.
        if _CONTROL.search(name) or _CONTROL.search(value.replace("\t", " ")):
            raise ValueError(f"the header {name!r} has a control character")
        lines.append(f"{name}: {value}")
    has_body = response.status >= 200 and response.status != 204 and response.stream is None
    if has_body:
        lines.append(f"Content-Length: {len(response.body)}")
    if response.status != 101:
        lines.append(f"Connection: {'keep-alive' if keep_alive else 'close'}")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
    return head + response.body if has_body and not is_head else head


class _State(Enum):
    HEAD = "head"
    LENGTH = "body of a known length"
    CHUNK = "size of a chunk"
    CHUNK_DATA = "chunk"
    TRAILER = "trailer"
    UPGRADE = "upgrade"
    BROKEN = "broken"


class _Wrong(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Parser:
    """One connection's requests, whatever way their bytes are cut.

    After a request that wants an upgrade it stops: `rest` takes what belongs to the other protocol,
    `decline` goes on with HTTP.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_framing",
        "_is_forgiven",
        "_left",
        "_max_body",
        "_request",
        "_scanned",
        "_state",
        "_trailers",
        "has_more",
    )

    def __init__(self, *, max_body: int = limits.MAX_HTTP_BODY) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._scanned = 0
        """Up to here no end of the head was found."""
        self._is_forgiven = False
        """Whether an empty line came before this request."""
        self._state = _State.HEAD
        self._request: Request | None = None
        self._body = bytearray()
        self._left = 0
        """Bytes that the body, or the chunk, still has."""
        self._framing = 0
        """Bytes of this body that were not body: sizes of chunks, trailers."""
        self._trailers = 0
        self.has_more = False
        """Whether `feed` has left something: call it again, with nothing or with more."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a next request has come."""
        return self._state is _State.HEAD and not self._buffer

    @property
    def is_broken(self) -> bool:
        return self._state is _State.BROKEN

    def feed(self, data: bytes, *, one: bool = False) -> list[Event]:
        """What these bytes complete. After a `Broken` everything is ignored.

        With `one` it stops after a request, and after a number of chunks, so that thousands in one
        read cannot pile up or keep others waiting; see `has_more`.
        """
        if self._state is _State.BROKEN:
            return []
        self._buffer += data
        return self._run(one=one)

    def rest(self) -> bytes:
        """After an upgrade: the bytes that are not HTTP any more. The parser is done."""
        data = bytes(self._buffer)
        self._buffer.clear()
        self._state = _State.BROKEN
        self.has_more = False
        return data

    def decline(self) -> list[Event]:
        """The upgrade was refused: what came after it is HTTP after all."""
        assert self._state is _State.UPGRADE
        self._state = _State.HEAD
        return self._run()

    def _run(self, *, one: bool = False) -> list[Event]:
        events: list[Event] = []
        try:
            steps = 0
            self.has_more = False
            while self._step(events):
                steps += 1
                if one and (steps > _STEPS or (events and isinstance(events[-1], Request))):
                    self.has_more = True
                    break
        except _Wrong as wrong:
            events.append(Broken(text(wrong.status, str(wrong))))
            self._state = _State.BROKEN
            self.has_more = False
            self._buffer.clear()
            self._body.clear()
        return events

    def _step(self, events: list[Event]) -> bool:
        """One move. False: more bytes are needed first."""
        match self._state:
            case _State.HEAD:
                return self._read_head(events)
            case _State.LENGTH:
                return self._read_data() and self._finish(events)
            case _State.CHUNK:
                return self._read_chunk_size()
            case _State.CHUNK_DATA:
                return self._read_data() and self._end_chunk()
            case _State.TRAILER:
                return self._read_trailer(events)
            case _State.UPGRADE:
                if len(self._buffer) > limits.MAX_HTTP_HEAD:
                    raise _Wrong(400, "Wait for the answer to the upgrade.")
                return False
            case _State.BROKEN:
                return False

    # --- the head ---------------------------------------------------------------------------------

    def _read_head(self, events: list[Event]) -> bool:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # RFC 9112 §2.2: one is forgiven, however late it comes
            if self._is_forgiven:
                raise _Wrong(400, "A request begins with its method.")
            self._is_forgiven = True
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3))
        if max(end, 0) > limits.MAX_HTTP_HEAD or (end < 0 and len(buffer) > limits.MAX_HTTP_HEAD):
            raise _Wrong(431, f"Request line and headers exceed {limits.MAX_HTTP_HEAD} bytes.")
        if end < 0:
            self._scanned = len(buffer)
            return False
        head = bytes(buffer[:end])
        del buffer[: end + 4]
        self._scanned = 0
        self._is_forgiven = False
        request, (major, minor) = _read_head(head)
        self._begin_body(request, (major, minor) >= (1, 1), events)
        return True

    def _begin_body(self, request: Request, is_modern: bool, events: list[Event]) -> None:
        headers = request.headers
        lengths = headers.every("content-length")
        codings = headers.every("transfer-encoding")
        self._request = request
        if codings:
            if lengths or not is_modern:
                raise _Wrong(400, "A request has one length.")
            if [coding.strip().lower() for coding in codings] != ["chunked"]:
                raise _Wrong(501, "The only transfer coding is chunked.")
            self._state = _State.CHUNK
        else:
            if len(lengths) > 1:
                raise _Wrong(400, "A request has one length.")
            self._left = _number(lengths[0]) if lengths else 0
            if self._left > self._max_body:
                raise _Wrong(413, f"The body exceeds {self._max_body} bytes.")
            self._state = _State.LENGTH
        expects = headers.every("expect")
        if expects and is_modern:
            if [expect.strip().lower() for expect in expects] != ["100-continue"]:
                raise _Wrong(417, "The only expectation is 100-continue.")
            if not self._buffer and (self._left or self._state is _State.CHUNK):
                events.append(Expected())

    # --- the body ---------------------------------------------------------------------------------

    def _read_data(self) -> bool:
        """Moves what there is of `_left` bytes; True when all are there."""
        data = self._buffer[: self._left]
        del self._buffer[: len(data)]
        self._body += data
        self._left -= len(data)
        return self._left == 0

    def _read_chunk_size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise _Wrong(400, "A chunk begins with its size.")
        self._left = int(match[1], 16)
        if len(self._body) + self._left > self._max_body:
            raise _Wrong(413, f"The body exceeds {self._max_body} bytes.")
        self._state = _State.CHUNK_DATA if self._left else _State.TRAILER
        return True

    def _end_chunk(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise _Wrong(400, "A chunk is longer than its size.")
        del self._buffer[:2]
        self._state = _State.CHUNK
        return True

    def _read_trailer(self, events: list[Event]) -> bool:
        """Trailers are read over: none means anything here."""
        line = self._line()
        if line is None:
            return False
        if not line:
            return self._finish(events)
        self._trailers += 1
        if self._trailers > limits.MAX_HTTP_HEADERS or _HEADER.fullmatch(line) is None:
            raise _Wrong(400, "A trailer cannot be read.")
        return True

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", 0, _MAX_LINE)
        if end < 0:
            if len(self._buffer) >= _MAX_LINE:
                raise _Wrong(400, f"A line of a chunked body exceeds {_MAX_LINE} bytes.")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        self._framing += end + 2
        # One byte a chunk, with an extension each: a small body can be made of a lot of traffic.
        if self._framing > self._max_body:
            raise _Wrong(413, "The body has too many chunks.")
        return line

    def _finish(self, events: list[Event]) -> bool:
        head = self._request
        assert head is not None
        body = bytes(self._body)
        request = Request(
            head.method, head.target, head.path, head.query, head.headers, body, head.keep_alive
        )
        self._body.clear()
        self._request = None
        self._framing = self._trailers = 0
        self._state = _State.UPGRADE if request.is_upgrade else _State.HEAD
        events.append(request)
        return True


def _read_head(head: bytes) -> tuple[Request, tuple[int, int]]:
    first, *lines = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise _Wrong(400, "The request line cannot be read.")
    version = (int(match[3]), int(match[4]))
    if version[0] != 1:
        raise _Wrong(505, "This is HTTP/1.1.")
    if len(lines) > limits.MAX_HTTP_HEADERS:
        raise _Wrong(431, f"A request has at most {limits.MAX_HTTP_HEADERS} headers.")
    pairs: list[tuple[str, str]] = []
    for line in lines:
        # No folding (it begins with a space), no space before the colon, no control characters.
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _Wrong(400, "A header cannot be read.")
        pairs.append((header[1].decode("ascii"), header[2].decode("latin-1").rstrip(" \t")))
    headers = Headers(pairs)
    if len(headers.every("host")) != 1 and (version >= (1, 1) or "host" in headers):
        raise _Wrong(400, "A request names one host.")
    connection = headers.words("connection")
    keep_alive = "close" not in connection and (version >= (1, 1) or "keep-alive" in connection)
    target = match[2].decode("ascii")
    path, query = _read_target(target)
    method = match[1].decode("ascii")
    return Request(method, target, path, query, headers, b"", keep_alive), version


def _read_target(target: str) -> tuple[tuple[str, ...], dict[str, str]]:
    rest = target
    if not rest.startswith("/") and rest != "*":
        scheme, separator, rest = rest.partition("://")  # RFC 9112 §3.2.2
        if not separator or scheme.lower() not in ("http", "https"):
            raise _Wrong(400, "The target is a path.")
        slash = rest.find("/")
        rest = "/" if slash < 0 else rest[slash:]
    raw_path, _, raw_query = rest.partition("?")
    path = () if raw_path in ("/", "*") else tuple(raw_path.removeprefix("/").split("/"))
    query: dict[str, str] = {}
    for pair in raw_query.split("&"):
        name, _, value = pair.partition("=")
        if name:
            query.setdefault(_decoded(name, plus=True), _decoded(value, plus=True))
    return tuple(_decoded(segment) for segment in path), query


def _decoded(raw: str, *, plus: bool = False) -> str:
    if _BAD_ESCAPE.search(raw):
        raise _Wrong(400, "The target has a bad escape.")
    try:
        decoded = unquote_to_bytes(raw.replace("+", " ") if plus else raw).decode()
    except UnicodeDecodeError:
        raise _Wrong(400, "The target is not UTF-8.") from None
    if _CONTROL.search(decoded):
        raise _Wrong(400, "The target has a control character.")
    return decoded


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 15):
        raise _Wrong(400, "Content-Length is a number.")
    return int(digits)
