"""The console's requests: its files, signing in, and one function for each thing that it asks.

The rules (RELIABILITY.md S13): what changes anything is a POST with the token of a visit, from our
own origin; every answer forbids scripts and styles that are not ours, frames, and guessing of
types; a body is JSON and small; a refusal says why in words, and nothing of the inside.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any, Final, TypeAlias

from tandembus.admin.console import entities, messages
from tandembus.admin.console.board import Board
from tandembus.admin.console.live import Live
from tandembus.admin.console.site import Broker, Render, Visit
from tandembus.admin.console.visitors import COOKIE, Visitor, Visitors, shows_token
from tandembus.core.access import Right, require_right
from tandembus.errors import ArgumentError, ProtocolError, Refused, StoreError, UnauthorizedError
from tandembus.http import Request, Response

log = logging.getLogger("tandembus.console")

ROOT: Final = "$console"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_SAFETY: Final = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
_NO_STORE: Final = ("Cache-Control", "no-store")
_REVALIDATE: Final = ("Cache-Control", "no-cache")

Handler: TypeAlias = Callable[[Visit], Any]


class Console:
    """Of one server: all its namespaces. `start` when they are served, `stop` at the end."""

    def __init__(self, brokers: Callable[[], Iterable[Broker]], render: Render) -> None:
        self._brokers = brokers
        self._visitors = Visitors()
        self._files: dict[str, bytes] | None = None
        self._boards: dict[str, Board] = {}
        self._lives: dict[str, tuple[Live, asyncio.Task[None]]] = {}
        self._reads: dict[str, Handler] = {
            "entities": entities.listed,
            "entity": entities.shown,
            "sessions": entities.sessions,
            "levels": entities.levels,
            "messages": lambda visit: messages.browse(visit, render),
            "message": lambda visit: messages.show(visit, render),
            "history": lambda visit: {"samples": list(self._live(visit.broker).history)},
            "board": lambda visit: {
                "notes": self._board(visit.broker).shown(visit.broker.now_ms())
            },
        }
        self._changes: dict[str, Handler] = {
            "put-entity": entities.put,
            "delete-entity": entities.delete,
            "put-rule": entities.put_rule,
            "delete-rule": entities.delete_rule,
            "try-rules": entities.try_rules,
            "send": messages.send,
            "resubmit": lambda visit: messages.resubmit(visit, render),
            "discard": messages.discard,
            "reactivate": messages.reactivate,
            "purge": messages.purge,
            "wish": self._wish,
        }

    def start(self, broker: Broker) -> None:
        """Keep the figures of a namespace that is served now."""
        live = Live(broker)
        self._lives[broker.name] = live, asyncio.get_running_loop().create_task(live.keep())

    def stop(self, name: str) -> None:
        live = self._lives.pop(name, None)
        if live is not None:
            live[1].cancel()

    async def answer(self, request: Request) -> Response | None:
        """None: it is not for the console."""
        if not request.path:
            accepts = request.headers.get("accept") or ""
            if request.method != "GET" or "text/html" not in accepts:
                return None
            return Response(302, (("Location", f"/{ROOT}/"),), is_public=True)
        if request.path[0].lower() != ROOT:
            return None
        try:
            return await self._answer(request, request.path[1:])
        except (Refused, ProtocolError) as error:
            status = getattr(error, "status", 400)
            return _json({"error": str(error)}, status)
        except StoreError:
            return _json({"error": "The broker cannot store anything any more."}, 503)

    async def _answer(self, request: Request, path: tuple[str, ...]) -> Response:
        match path, request.method:
            case (), "GET" | "HEAD":
                return Response(302, (("Location", f"/{ROOT}/"),), is_public=True)
            case (name,), "GET" | "HEAD":
                return self._asset(name or "index.html")
            case ("views", name), "GET" | "HEAD":
                return self._asset(f"views/{name}")
            case ("api", "board", kind, name), "POST":
                return self._post_note(request, kind, name)
            case ("api", "sign-in"), "POST":
                return self._sign_in(request)
            case ("api", "sign-out"), "POST":
                identity, _ = self._visitor(request, is_change=True)
                self._visitors.sign_out(identity)
                return _json({}, cookie=_cookie("", request, 0))
            case ("api", "me"), "GET":
                _, visitor = self._visitor(request, is_change=False)
                return _json(_introduced(visitor))
            case ("api", "events"), "GET":
                _, visitor = self._visitor(request, is_change=False)
                visit = Visit(visitor.broker, visitor.claims(), {})
                stream = self._live(visitor.broker).watch(visit)
                return Response(200, _headers("text/event-stream"), stream=stream)
            case ("api", name), "GET" if name in self._reads:
                _, visitor = self._visitor(request, is_change=False)
                return await self._run(self._reads[name], visitor, request.query)
            case ("api", name), "POST" if name in self._changes:
                _, visitor = self._visitor(request, is_change=True)
                return await self._run(self._changes[name], visitor, _body(request))
        return _json({"error": "There is nothing here."}, 404)

    def _asset(self, name: str) -> Response:
        if self._files is None:
            self._files = _assets()
        body = self._files.get(name)
        if body is None:
            return _json({"error": "There is nothing here."}, 404)
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(200, _headers(kind, _REVALIDATE), body, is_public=True)

    async def _run(self, handler: Handler, visitor: Visitor, said: Mapping[str, Any]) -> Response:
        result = handler(Visit(visitor.broker, visitor.claims(), said))
        if isinstance(result, Awaitable):
            result = await result
        return _json(result)

    # --- who --------------------------------------------------------------------------------------

    def _sign_in(self, request: Request) -> Response:
        _check_origin(request)
        said = _body(request)
        name, key, wanted = said.get("name"), said.get("key"), said.get("namespace")
        if not isinstance(name, str) or not isinstance(key, str):
            raise ArgumentError("A policy name and a key are needed.")
        brokers = [each for each in self._brokers() if wanted in (None, "", each.name)]
        if not brokers:
            raise UnauthorizedError("This policy name and key are not known here.")
        identity, found = self._visitors.sign_in(brokers, name, key, brokers[0].now_ms())
        if not identity:
            return _json({"choose": [each.broker.name for each in found]})
        return _json(_introduced(found[0]), cookie=_cookie(identity, request))

    def _visitor(self, request: Request, *, is_change: bool) -> tuple[str | None, Visitor]:
        identity = _cookies(request).get(COOKIE)
        now_ms = next(iter(self._brokers())).now_ms()
        visitor = self._visitors.find(identity, now_ms)
        if is_change:
            _check_origin(request)
            if not shows_token(visitor, request.headers.get("x-tandem-token")):
                raise UnauthorizedError("The token of the page is missing: load it again.")
        return identity, visitor

    # --- figures, and the board -------------------------------------------------------------------

    def _live(self, broker: Broker) -> Live:
        return self._lives[broker.name][0]

    def _board(self, broker: Broker) -> Board:
        return self._boards.setdefault(broker.name, Board())

    def _post_note(self, request: Request, kind: str, name: str) -> Response:
        """By a process, with a token of the namespace that may listen."""
        for broker in self._brokers():
            try:
                claims = broker.authorize(request.headers.get("authorization"), "")
                require_right(claims, "", Right.LISTEN, broker.now_ms())
            except UnauthorizedError:
                continue
            board = self._board(broker)
            size = len(request.body)
            return _json({"wishes": board.post(kind, name, _body(request), size, broker.now_ms())})
        raise UnauthorizedError("A token of a namespace with Listen is needed.")

    def _wish(self, visit: Visit) -> dict[str, Any]:
        require_right(visit.claims, "", Right.MANAGE, visit.broker.now_ms())
        wish = {"do": visit.text("do"), "path": visit.text("path", "")}
        self._board(visit.broker).wish(visit.text("kind"), visit.text("name"), wish)
        return {}


def _introduced(visitor: Visitor) -> dict[str, Any]:
    claims, now = visitor.claims(), visitor.broker.now_ms()
    return {
        "namespace": visitor.broker.name,
        "name": visitor.name,
        "token": visitor.token,
        "rights": [
            right.name.title()
            for right in (Right.MANAGE, Right.SEND, Right.LISTEN)
            if right.name and claims.allows("", right, now)
        ],
    }


# --- HTTP -----------------------------------------------------------------------------------------


def _headers(kind: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    cache = () if any(name == _NO_STORE[0] for name, _ in more) else (_NO_STORE,)
    return (("Content-Type", kind), *cache, *_SAFETY, *more)


def _json(tree: object, status: int = 200, *, cookie: str | None = None) -> Response:
    more = () if cookie is None else (("Set-Cookie", cookie),)
    body = json.dumps(tree, ensure_ascii=True).encode()
    return Response(status, _headers("application/json", *more), body)


def _assets() -> dict[str, bytes]:
    """All files of the page by their path: nothing else is served, whatever it is called."""
    found: dict[str, bytes] = {}
    top = files("tandembus.admin.console") / "assets"
    for folder in ("", "views/"):
        for each in (top / folder if folder else top).iterdir():
            if each.name.rpartition(".")[2] in _TYPES:
                found[f"{folder}{each.name}"] = each.read_bytes()
    return found


def _body(request: Request) -> dict[str, Any]:
    kind = (request.headers.get("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ArgumentError("The body is JSON, and says so.")
    try:
        tree = json.loads(request.body)
    except (ValueError, RecursionError):
        raise ArgumentError("The body cannot be read as JSON.") from None
    if not isinstance(tree, dict):
        raise ArgumentError("The body is an object.")
    return tree


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise UnauthorizedError("This request comes from a page of somebody else.")


def _cookies(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in (request.headers.get("cookie") or "").split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def _cookie(value: str, request: Request, max_age_s: int | None = None) -> str:
    parts = [f"{COOKIE}={value}", f"Path=/{ROOT}", "HttpOnly", "SameSite=Strict"]
    if request.is_secure:
        parts.append("Secure")
    if max_age_s is not None:
        parts.append(f"Max-Age={max_age_s}")
    return "; ".join(parts)
