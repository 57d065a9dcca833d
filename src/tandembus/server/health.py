"""What machines ask of a server: whether it lives, whether it is ready, and its figures.

`GET /health`, `GET /ready` and `GET /metrics`, on every port, for all namespaces together; and what
systemd is told. Everything else goes on to the namespace that is meant.

The rules: health and readiness tell a stranger nothing but yes or no, and make nobody known. The
figures have names of entities in them, so they are shown to whoever has a key of the namespace with
Listen (or to everybody, where the server was asked to be so open).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from tandembus.core.access import Claims, Grant, Right
from tandembus.errors import Refused, UnauthorizedError
from tandembus.http import Request, Response
from tandembus.server import metrics
from tandembus.server.broker import Broker
from tandembus.server.certificate import Certificate
from tandembus.server.metrics import Connections
from tandembus.server.namespaces import Directory
from tandembus.server.web import HttpHandler

HEALTHY: Final = {"status": "healthy", "message": "Service is healthy."}
"""What Microsoft's emulator says."""
_BASIC: Final = "basic "
_CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="tandem", charset="UTF-8"')


class Oversight:
    """`is_open`: the figures are for everybody."""

    def __init__(
        self,
        directory: Directory,
        *,
        is_open: bool = False,
        certificate: Certificate | None = None,
        console: Callable[[Request], Awaitable[Response | None]] | None = None,
    ) -> None:
        """`console` answers what is asked of it, before any namespace is."""
        self._directory = directory
        self._console = console
        self._is_open = is_open
        self._certificate = certificate
        self.connections = Connections()
        self.is_draining = False

    def over(self, following: HttpHandler) -> HttpHandler:
        """`following` answers all that is not asked of us."""

        async def handle(request: Request) -> Response:
            answer = await self._answer(request)
            response = await following(request) if answer is None else answer
            self.connections.http[response.status] += 1
            return response

        return handle

    async def _answer(self, request: Request) -> Response | None:
        if self._console is not None and (answer := await self._console(request)) is not None:
            return answer
        # An entity may have such a name: SDKs say which version of its administration they mean,
        # and nobody has to show a token to ask whether we are well.
        if request.method not in ("GET", "HEAD") or "api-version" in request.query:
            return None
        has_token = "authorization" in request.headers
        match request.path:
            case ("health",) if not has_token:
                return self._health()
            case ("ready",) if not has_token:
                return self._ready()
            case ("metrics",):
                return await self._metrics(request)
        return None

    # --- alive, ready -----------------------------------------------------------------------------

    def _health(self) -> Response:
        failed = [each.name for each in self._directory if each.broker.engine.engine.failure]
        if failed:
            return _json(503, {"status": "unhealthy", "message": "The log cannot be written."})
        return _json(200, HEALTHY)

    def _ready(self) -> Response:
        why_not = self.why_not_ready()
        if why_not:
            return _json(503, {"status": "not ready", "reasons": why_not})
        return _json(200, {"status": "ready"})

    def why_not_ready(self) -> list[str]:
        """Why no more work should be sent here; empty: it is ready. A server listens only when all
        of its namespaces are recovered."""
        reasons = ["The server is stopping."] if self.is_draining else []
        for hosted in self._directory:
            engine = hosted.broker.engine.engine
            if engine.failure is not None:
                reasons.append("The log cannot be written.")
            elif engine.is_disk_full:
                reasons.append("The disk is nearly full.")
            elif engine.is_congested:
                reasons.append("The disk cannot keep up.")
        return list(dict.fromkeys(reasons))

    # --- figures ----------------------------------------------------------------------------------

    async def _metrics(self, request: Request) -> Response:
        header = request.headers.get("authorization")
        brokers = [each.broker for each in self._directory]
        if not self._is_open:
            brokers = [broker for broker in brokers if _may_read(broker, header)]
        if not brokers:
            text = b"A key with Listen on the namespace is needed: its name and itself (Basic).\n"
            return Response(401, (_CHALLENGE, ("Content-Type", "text/plain")), text)
        ends = None if self._certificate is None else self._certificate.ends
        body = await metrics.render(brokers, self.connections, ends)
        is_public = self._is_open and header is None
        return Response(200, (("Content-Type", metrics.CONTENT_TYPE),), body, is_public)


def _may_read(broker: Broker, header: str | None) -> bool:
    """Whether a key of the namespace is shown (Basic), or a token that one has signed."""
    if broker.is_open:
        return True
    if header is None:
        return False
    if header[: len(_BASIC)].lower() == _BASIC:
        claims = Claims()
        for grant in _login(broker, header[len(_BASIC) :]):
            claims.add(grant)
    else:
        try:
            claims = broker.authorize(header, "")
        except (Refused, UnauthorizedError):
            return False
    return claims.allows("", Right.LISTEN, broker.now_ms())


def _login(broker: Broker, text: str) -> list[Grant]:
    try:
        name, separator, key = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return []
    return broker.login(name, key) if separator else []


def _json(status: int, body: object) -> Response:
    data = json.dumps(body).encode()
    return Response(status, (("Content-Type", "application/json"),), data, True)


# --- systemd --------------------------------------------------------------------------------------


def tell_systemd(words: str) -> None:
    """`READY=1`, `STOPPING=1`: for a unit of Type=notify (sd_notify(3)); nothing elsewhere."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        if address.startswith("@"):  # in the abstract namespace
            address = f"\0{address[1:]}"
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told,
        ):
            told.sendto(words.encode(), address)
