"""Plays a recorded conversation of the .NET SDK's administration client against a real broker.

Each request is sent again, with a fresh token and the broker's own address. The answer must have
the recorded status and the same elements with the same texts in the same order; times and ids
differ from run to run.
"""

from __future__ import annotations

import re
import time
from http.client import HTTPConnection
from typing import Final

from tandembus.atom import Element, read
from tandembus.core.sas import sign
from tandembus.testing.broker import ROOT, TestBroker
from tests.conformance.dotnet.recording import Chunk
from tests.conformance.dotnet.replay import DifferenceError

_HOST: Final = re.compile(rb"127\.0\.0\.1:\d+")
_OWN: Final = frozenset(
    "id author published updated CreatedAt UpdatedAt AccessedAt CreatedTime ModifiedTime ModifiedAt"
    " PrimaryKey SecondaryKey Name title".split()
)
"""Elements whose text is the run's own."""
_FORWARDED: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
"""The recorded broker answered `sb://`, whatever scheme it was sent; Azure keeps it (FX21)."""
_OLD: Final = ("/tour-admin", "/topic-admin")
"""What an earlier run of the recorder had left; deleted first."""
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?|TrackingId:[\w-]+")


def play(broker: TestBroker, recorded: list[Chunk]) -> int:
    """How many requests were answered as recorded."""
    connection = HTTPConnection(broker.address, timeout=60)
    count = 0
    made: set[str] = set()
    for asked, answered in _exchanges(recorded):
        head, _, body = asked.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        method, target, _ = line.split(" ")
        headers = dict(field.split(": ", 1) for field in fields)
        host = headers.pop("Host")
        headers.pop("Content-Length", None)
        headers["Authorization"] = sign(
            f"https://{host}/", ROOT, broker.key, int(time.time()) + 86_400
        )
        here = broker.address.encode()
        connection.request(method, target, _HOST.sub(here, body) or None, headers)
        response = connection.getresponse()
        came = response.read()
        status = int(answered.split(b" ", 2)[1])
        if response.status != status:
            raise DifferenceError(f"{line}: recorded {status}, came {response.status}: {came!r}")
        wanted = _shown(_HOST.sub(here, answered.partition(b"\r\n\r\n")[2]))
        shown = _shown(came)
        path = target.partition("?")[0]
        if path.startswith("/$Resources/"):  # of a namespace that had others, too
            wanted, shown = (
                [*dict.fromkeys((it[0], "") for it in all_)] for all_ in (wanted, shown)
            )
        made |= {path} if method == "PUT" else set()
        for one, other in zip(wanted, shown, strict=False):
            # What was there before the recording has its own settings.
            if one != other and (path in made or path not in _OLD):
                raise DifferenceError(f"{line}: recorded {one}, came {other}")
        if len(wanted) != len(shown):
            raise DifferenceError(f"{line}: {len(wanted)} elements recorded, {len(shown)} came")
        count += 1
    connection.close()
    return count


def _exchanges(recorded: list[Chunk]) -> list[tuple[bytes, bytes]]:
    """Requests and their answers; each may have come in several reads."""
    found: list[tuple[bytes, bytes]] = []
    asked = answered = b""
    for chunk in recorded:
        if chunk.is_client and answered:
            found.append((asked, answered))
            asked = answered = b""
        if chunk.is_client:
            asked += chunk.data
        else:
            answered += chunk.data
    return [*found, (asked, answered)]


def _shown(body: bytes) -> list[tuple[str, str]]:
    return [*_elements(read(body, most_nodes=100_000))] if body.startswith(b"<") else []


def _elements(element: Element, path: str = "") -> list[tuple[str, str]]:
    where = f"{path}/{element.name}"
    text = "" if element.name in _OWN else _TIME.sub("…", element.text.strip())
    if element.name in _FORWARDED:
        text = text.partition("://")[2]
    found = [(where, f"{element.type} {text}")]
    for child in element.children:
        found += _elements(child, where)
    return found
