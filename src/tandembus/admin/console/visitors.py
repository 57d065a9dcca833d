"""Who is signed in to the console: a random id in a cookie, and nothing else in the browser.

The rules (RELIABILITY.md S13): the cookie is `HttpOnly; SameSite=Strict`; what changes anything
also shows a token that only a page of ours can have read; whoever guesses keys is made to wait; a
key that has gone ends what rests on it.
"""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandembus.admin.console.site import Broker
from tandembus.core.access import Claims
from tandembus.errors import ServerBusyError, UnauthorizedError
from tandembus.limits import (
    CONSOLE_IDLE_MS,
    CONSOLE_TRIES_PER_MINUTE,
    CONSOLE_VISIT_MS,
    MAX_CONSOLE_VISITORS,
    SECOND_MS,
)
from tandembus.model import Millis, Secret

COOKIE: Final = "tandem"
_MINUTE_MS: Final = 60 * SECOND_MS


@dataclass(slots=True, eq=False)
class Visitor:
    broker: Broker
    name: str
    """Of the policy."""
    key: Secret
    token: str
    """What a page shows that it is ours."""
    since_ms: Millis
    seen_ms: Millis

    def claims(self) -> Claims:
        """What the key allows now. Raises UnauthorizedError."""
        claims = Claims()
        for grant in self.broker.login(self.name, str.__str__(self.key)):
            claims.add(grant)
        if not claims.grants:
            raise UnauthorizedError("The key counts no longer: sign in again.")
        return claims


class Visitors:
    def __init__(self) -> None:
        self._by_id: dict[str, Visitor] = {}
        self._failures: deque[Millis] = deque()

    def __len__(self) -> int:
        return len(self._by_id)

    def sign_in(
        self, brokers: Iterable[Broker], name: str, key: str, now_ms: Millis
    ) -> tuple[str, list[Visitor]]:
        """The id of the new visitor. Of several namespaces that the key opens, all are returned,
        and only the only one is signed in to."""
        while self._failures and self._failures[0] <= now_ms - _MINUTE_MS:
            self._failures.popleft()
        if len(self._failures) >= CONSOLE_TRIES_PER_MINUTE:
            raise ServerBusyError(
                "Too many wrong keys were tried: wait a minute.",
                retry_after_ms=self._failures[0] + _MINUTE_MS - now_ms,
            )
        found = [
            Visitor(broker, name, Secret(key), secrets.token_urlsafe(32), now_ms, now_ms)
            for broker in brokers
            if broker.login(name, key)
        ]
        if not found:
            self._failures.append(now_ms)
            raise UnauthorizedError("This policy name and key are not known here.")
        if len(found) > 1:
            return "", found
        self._tidy(now_ms)
        identity = secrets.token_urlsafe(32)
        self._by_id[identity] = found[0]
        return identity, found

    def find(self, identity: str | None, now_ms: Millis) -> Visitor:
        """Raises UnauthorizedError."""
        visitor = self._by_id.get(identity or "")
        if visitor is None or _is_over(visitor, now_ms):
            self._by_id.pop(identity or "", None)
            raise UnauthorizedError("Sign in first.")
        visitor.seen_ms = now_ms
        return visitor

    def sign_out(self, identity: str | None) -> None:
        self._by_id.pop(identity or "", None)

    def _tidy(self, now_ms: Millis) -> None:
        for identity, visitor in list(self._by_id.items()):
            if _is_over(visitor, now_ms):
                del self._by_id[identity]
        while len(self._by_id) >= MAX_CONSOLE_VISITORS:
            del self._by_id[next(iter(self._by_id))]


def shows_token(visitor: Visitor, token: str | None) -> bool:
    return hmac.compare_digest(visitor.token.encode(), (token or "").encode())


def _is_over(visitor: Visitor, now_ms: Millis) -> bool:
    return (
        now_ms - visitor.since_ms > CONSOLE_VISIT_MS or now_ms - visitor.seen_ms > CONSOLE_IDLE_MS
    )
