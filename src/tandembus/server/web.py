"""HTTP on one connection: one request at a time, each with its deadline.

What a request means is the handler's that `app` gives; how its bytes are read is `tandembus.http`.
While a request is worked on the peer is not read from, so what is pipelined waits in the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from tandembus import http
from tandembus.limits import HTTP_IDLE_MS, HTTP_REQUEST_MS, SASL_TIMEOUT_MS, SECOND_MS
from tandembus.server.turns import Turns

log = logging.getLogger("tandembus.server")

HttpHandler: TypeAlias = Callable[[http.Request], Awaitable[http.Response]]

_REQUEST_S: Final = HTTP_REQUEST_MS / SECOND_MS
_IDLE_S: Final = HTTP_IDLE_MS / SECOND_MS
_STRANGER_S: Final = SASL_TIMEOUT_MS / SECOND_MS
_UNAUTHORIZED: Final = 401
_REFUSED: Final = 400


class Wire(Protocol):
    """What a connection of HTTP needs of the connection below."""

    turns: Turns
    serve_http: HttpHandler
    is_stranger: bool

    @property
    def is_secure(self) -> bool: ...
    def send(self, data: bytes) -> None: ...
    def hang_up(self) -> None: ...
    def be_busy(self, is_busy: bool) -> None:
        """Whether to leave the peer unread."""

    def become_known(self) -> None: ...
    def upgrade(self, request: http.Request, rest: Callable[[], bytes]) -> None: ...


class Web:
    __slots__ = ("_deadline", "_has_begun", "_is_lost", "_parser", "_task", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._parser = http.Parser()
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._has_begun = False
        """Whether a request has come in part: its deadline counts from its first byte."""
        self._is_lost = False

    def receive(self, data: bytes) -> None:
        request = self._next(data)
        if request is not None:
            self._wire.be_busy(True)
            self._task = asyncio.get_running_loop().create_task(self._serve(request))
            self._task.add_done_callback(self._served)
        elif self._parser.has_more:
            self._wire.be_busy(True)
            self._wire.turns.add(self)

    def go_on(self) -> None:
        """With the rest of what was read in an earlier turn."""
        if not self._is_lost:
            self._wire.be_busy(False)
            self.receive(b"")

    def lost(self) -> None:
        self._is_lost = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is not None:
            self._task.cancel()

    def _next(self, data: bytes) -> http.Request | None:
        """The next whole request; all else is answered here."""
        for event in self._parser.feed(data, one=True):
            match event:
                case http.Request() if event.is_upgrade:
                    self._set_deadline(None)
                    self._wire.upgrade(event, self._parser.rest)
                    return None
                case http.Request():
                    self._set_deadline(None)
                    return event
                case http.Expected():
                    self._wire.send(http.CONTINUE)
                case http.Broken(response):
                    self._wire.send(http.encode(response, keep_alive=False))
                    self._wire.hang_up()
                    return None
        if not self._parser.is_idle:
            if not self._has_begun:
                self._set_deadline(_REQUEST_S)
                self._has_begun = True
        elif self._deadline is None:
            self._set_deadline(_STRANGER_S if self._wire.is_stranger else _IDLE_S)
        return None

    def _set_deadline(self, seconds: float | None) -> None:
        self._has_begun = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._has_begun:
            late = http.text(408, "The request did not come in time.")
            self._wire.send(http.encode(late, keep_alive=False))
        self._wire.hang_up()

    async def _serve(self, request: http.Request) -> None:
        """This request, and those that have come behind it, in their order."""
        wire = self._wire
        following: http.Request | None = request
        while following is not None:
            request = following
            await wire.turns.turn()
            response = await wire.serve_http(replace(request, is_secure=wire.is_secure))
            # Whoever has no token has no connection either: it would be held for nobody.
            stays = request.keep_alive and response.status != _UNAUTHORIZED
            stays = stays and response.stream is None
            is_head = request.method == "HEAD"
            wire.send(http.encode(response, keep_alive=stays, is_head=is_head))
            if response.stream is not None:
                wire.become_known()
                async for piece in response.stream:
                    wire.send(piece)
            if not stays:
                wire.hang_up()
                return
            if response.status < _REFUSED and not response.is_public:
                wire.become_known()
            following = self._next(b"")
        self.go_on()

    def _served(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request could not be answered", exc_info=error)
            self._wire.hang_up()
