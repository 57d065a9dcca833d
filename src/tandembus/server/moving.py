"""Test mode: a broker whose clock a test moves (`tandem serve --test-clock`).

Nothing here exists in a broker that was not started so. The rule: what the clients measure by their
own clocks is not moved with it. Connections time out in real time, and a token counts by real time
when it is shown and does not expire after that: an hour that a test skips would otherwise end all
tokens, and those that the client then signs would be old already.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from tandembus.clock import MovableClock
from tandembus.core.access import Authority, Claims, Grant, Policy, Right, require_right
from tandembus.core.jwt import JwtTrust
from tandembus.engine.aio import AsyncEngine
from tandembus.errors import ArgumentError, Refused
from tandembus.http import Request, Response
from tandembus.limits import DAY_MS
from tandembus.model import NEVER, Millis

PATH: Final = ("$test", "clock")
RESET: Final = ("$test", "reset")
MAX_ADVANCE_MS: Final = 36_500 * DAY_MS
"""A hundred years at a time."""


class PatientAuthority(Authority):
    __slots__ = ("_clock",)

    def __init__(
        self,
        namespace: Sequence[Policy],
        policies_of: Callable[[str], Sequence[Policy]],
        trust: JwtTrust | None = None,
        *,
        clock: MovableClock,
    ) -> None:
        super().__init__(namespace, policies_of, trust)
        self._clock = clock

    def grant(self, text: str, audience: str, now: Millis) -> Grant:
        return _lasting(super().grant(text, audience, now - self._clock.moved_ms))

    def verify(self, text: str, path: str, now: Millis) -> Grant:
        return _lasting(super().verify(text, path, now - self._clock.moved_ms))


def _lasting(grant: Grant) -> Grant:
    return replace(grant, expires_ms=NEVER)


class Broker(Protocol):
    engine: AsyncEngine

    def authorize(self, header: str | None, resource: str) -> Claims: ...
    def now_ms(self) -> Millis: ...


class ClockControl:
    """`GET /$test/clock` tells the time; `POST {"advance_ms": 60000}` moves it, and is answered
    when all that has become due has happened. `POST /$test/reset` makes the namespace as if it were
    new, or with `{"keep_entities": true}` empties it. All need Manage. All else goes on to
    `handle`."""

    def __init__(
        self,
        broker: Broker,
        clock: MovableClock,
        handle: Callable[[Request], Awaitable[Response]],
        reset: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._next = handle
        self._reset = reset

    async def handle(self, request: Request) -> Response:
        if request.path not in (PATH, RESET):
            return await self._next(request)
        try:
            return await self._answer(request)
        except Refused as error:
            return _json(error.status, {"error": str(error)})

    async def _answer(self, request: Request) -> Response:
        broker = self._broker
        resource = "/".join(request.path)
        claims = broker.authorize(request.headers.get("authorization"), resource)
        require_right(claims, resource, Right.MANAGE, broker.now_ms())
        if request.path == RESET:
            if request.method != "POST":
                return _json(405, {"error": "POST resets."})
            await self._reset(_keeps_entities(request.body))
        elif request.method == "POST":
            self._clock.advance(_advance_ms(request.body))
            await broker.engine.catch_up()
        elif request.method != "GET":
            return _json(405, {"error": "GET tells the time, POST moves it."})
        return _json(200, {"now_ms": self._clock.now_ms(), "moved_ms": self._clock.moved_ms})


def _said(body: bytes, name: str) -> object:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        said = None
    return said.get(name) if isinstance(said, dict) else None


def _keeps_entities(body: bytes) -> bool:
    keeps = _said(body, "keep_entities") if body else False
    if not isinstance(keeps, bool):
        raise ArgumentError('The body is {"keep_entities": true or false}.')
    return keeps


def _advance_ms(body: bytes) -> Millis:
    ms = _said(body, "advance_ms")
    if type(ms) is not int or not 0 <= ms <= MAX_ADVANCE_MS:
        raise ArgumentError('The body is {"advance_ms": a number of milliseconds}.')
    return ms


def _json(status: int, body: dict[str, object]) -> Response:
    return Response(status, (("Content-Type", "application/json"),), json.dumps(body).encode())
