"""F7: planted bugs. A target that does not find the one that was put into its code finds nothing.

Each canary is a mistake of a kind that brokers have made: an exception of the wrong type, two
readers that disagree, a slow or a greedy input, something that a lost connection leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from tandembus import atom, http, names
from tandembus.admin import api
from tandembus.amqp import fast, link, message, types
from tandembus.amqp.performatives import Released
from tandembus.server import gateway, links, management, outlet, websocket
from tandembus.server.stored import Stream


class Canary(NamedTuple):
    target: str
    what: str
    plant: Callable[[], AbstractContextManager[object]]
    most: int = 200_000
    """Inputs by which it must be found: some thirty times as many as it takes on average, because
    with thrice as many one seed of twenty does not find it."""


def _wrong_exception() -> AbstractContextManager[object]:
    right = types.decode_descriptor

    def wrong(buffer: types.Buffer, at: int) -> tuple[Any, int]:
        found, end = right(buffer, at)
        if isinstance(found, int) and found > 0xFF:
            raise KeyError(found)
        return found, end

    return patch.object(types, "decode_descriptor", wrong)


def _slow() -> AbstractContextManager[object]:
    right = types.decode_descriptor

    def slow(buffer: types.Buffer, at: int) -> tuple[Any, int]:
        found, end = right(buffer, at)
        if isinstance(found, str) and found not in ("", "a"):
            until = time.thread_time() + 0.06  # however fast the machine is
            while time.thread_time() < until:
                pass
        return found, end

    return patch.object(types, "decode_descriptor", slow)


def _greedy() -> AbstractContextManager[object]:
    right = types.decode_descriptor

    def greedy(buffer: types.Buffer, at: int) -> tuple[Any, int]:
        found, end = right(buffer, at)
        if isinstance(found, str) and found.startswith("com.microsoft"):
            del [b"x" * 30_000_000][0]
        return found, end

    return patch.object(types, "decode_descriptor", greedy)


def _fast_path_disagrees() -> AbstractContextManager[object]:
    right = fast.decode_transfer

    def wrong(buffer: bytes, at: int, end: int) -> fast.Transfer:
        found = right(buffer, at, end)
        if found[2] == b"" and found[4]:  # settled is lost where the tag is empty
            return (*found[:4], False, *found[5:])
        return found

    return patch.object(fast, "decode_transfer", wrong)


def _text_unchecked() -> AbstractContextManager[object]:
    def wrong(value: object) -> str | None:
        return value.decode() if isinstance(value, bytes) else value  # type: ignore[return-value]

    return patch.object(message, "_text", wrong)


def _released_forgotten() -> AbstractContextManager[object]:
    right = outlet._settlement

    def wrong(outcome: object, *rest: Any) -> Any:
        if isinstance(outcome, Released):
            raise KeyError("released")
        return right(outcome, *rest)  # type: ignore[arg-type]

    return patch.object(outlet, "_settlement", wrong)


def _link_left_behind() -> AbstractContextManager[object]:
    return patch.object(links.Inlet, "on_gone", lambda _: None)


def _friend_hurt() -> AbstractContextManager[object]:
    """A stranger's mistake ends everybody's connection."""
    right = gateway.Gateway._on_event

    def wrong(this: gateway.Gateway, event: Any) -> None:
        right(this, event)
        if type(event).__name__ == "Closed" and event.error is not None:
            for other in list(this.broker.holders):
                other.shut_down()  # type: ignore[attr-defined]

    return patch.object(gateway.Gateway, "_on_event", wrong)


def _drain_unexpected() -> AbstractContextManager[object]:
    right = link.Link.on_flow

    def wrong(this: link.Link, flow: fast.Flow, events: Any) -> None:
        if flow[7]:
            raise AttributeError("drain")
        right(this, flow, events)

    return patch.object(link.Link, "on_flow", wrong)


def _argument_trusted() -> AbstractContextManager[object]:
    right = management._peek

    async def wrong(call: Any) -> bytes | Stream:
        call.arguments.values["from-sequence-number"]
        return await right(call)

    return patch.dict(management.OPERATIONS, {"com.microsoft:peek-message": wrong})


def _escape_trusted() -> AbstractContextManager[object]:
    from urllib.parse import unquote_to_bytes

    def wrong(raw: str, *, plus: bool = False) -> str:
        return unquote_to_bytes(raw).decode()  # which need not be UTF-8

    return patch.object(http, "_decoded", wrong)


def _content_trusted() -> AbstractContextManager[object]:
    def wrong(entry: atom.Element) -> atom.Element:
        found = entry.find("content", atom.ATOM)
        assert found is not None
        return found.children[0]

    return patch.object(atom, "content_of", wrong)


def _number_trusted() -> AbstractContextManager[object]:
    return patch.object(api, "read_integer", int)


def _length_trusted() -> AbstractContextManager[object]:
    right = websocket.WebSocket._next_frame

    def wrong(this: websocket.WebSocket) -> Any:
        if len(this._buffer) > 1 and this._buffer[1] & 0x7F == 126:
            this._buffer[3]  # the second byte of the length may not have come yet
        return right(this)

    return patch.object(websocket.WebSocket, "_next_frame", wrong)


def _case_kept() -> AbstractContextManager[object]:
    right = names._segment

    def wrong(segment: str, path: str) -> str:
        return segment if right(segment, path) and len(segment) > 8 else right(segment, path)

    return patch.object(names, "_segment", wrong)


CANARIES: Final = (
    Canary("value", "a descriptor above 255 raises KeyError", _wrong_exception),
    Canary("value", "a symbolic descriptor takes 60 ms and more", _slow, 20_000),
    Canary("value", "a descriptor of Microsoft's takes 30 MB", _greedy, 40_000),
    Canary("frame", "the fast reader loses `settled`", _fast_path_disagrees),
    Canary("message", "bytes in a text's place are trusted", _text_unchecked),
    Canary("live", "a released delivery raises KeyError", _released_forgotten, 40_000),
    Canary("live", "a link is left behind", _link_left_behind, 5_000),
    Canary("live", "a mistake of one ends the connections of others", _friend_hurt, 5_000),
    Canary("client", "a drain raises AttributeError", _drain_unexpected, 20_000),
    Canary("nodes", "an argument of a request is trusted", _argument_trusted),
    Canary("http", "an escape is trusted", _escape_trusted),
    Canary("xml", "the content of an entry is trusted", _content_trusted),
    Canary("admin", "a number in a query is trusted", _number_trusted),
    Canary("websocket", "a length is read before it has come", _length_trusted),
    Canary("names", "long segments keep their case", _case_kept),
)
