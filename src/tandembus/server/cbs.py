"""`$cbs`: a peer proves what it may do by putting tokens (WIRE.md §2).

Here live `put-token` and `delete-token`, as a function from a request to a reply and a `Grant`.
What a signature is worth is `core.access`; what a grant allows is asked of every command, not here.

The rule: the token is checked before the entity is looked for, so that nobody without a key learns
which entities there are. A token is told by its text: azure-servicebus says `jwt` for every one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tandembus import names
from tandembus.core import jwt, sas
from tandembus.core.access import Authority, Claims, Grant, Right, path_of
from tandembus.errors import ArgumentError, EntityNotFoundError, Refused, UnauthorizedError
from tandembus.limits import MAX_ADDRESS
from tandembus.model import NEVER, Millis
from tandembus.server.logs import about
from tandembus.server.requests import Arguments, Request, token_reply, tracked, tracking_id_of

log = logging.getLogger("tandembus.server")

_NODE: Final = f"/{names.MANAGEMENT}"


class JwtVerifier(Protocol):
    """`Authority` is one."""

    def verify(self, text: str, path: str, now: Millis) -> Grant:
        """What the token (of three parts, in base64url) allows on `path`, which is in lower case
        and "" for the namespace. Raises UnauthorizedError."""
        ...


@dataclass(frozen=True, slots=True)
class AnyJwt:
    """For an open development broker only: every token that has not expired is worth everything.
    Its signature is not looked at."""

    def verify(self, text: str, path: str, now: Millis) -> Grant:
        return Grant(path, Right.ALL, jwt.parse(text).expires_ms(now))


@dataclass(frozen=True, slots=True)
class TokenGate:
    """What tokens are held against."""

    authority: Authority
    has_entity: Callable[[str], bool]
    """Whether there is a queue, topic or subscription at a path."""
    random_bits: Callable[[int], int]
    jwt: JwtVerifier | None = None
    is_open: bool = False
    """A development broker without keys: every SAS token and JWT is taken as it is."""
    tracker: str = "tandem"


@dataclass(frozen=True, slots=True)
class PutToken:
    """The answer, and what has changed in the peer's claims."""

    reply: bytes
    grant: Grant | None = None
    deleted: str | None = None
    """The path whose token was taken back."""
    refusal: str | None = None
    """The condition, if it was refused."""


def answer(request: Request, gate: TokenGate, claims: Claims, now: Millis) -> PutToken:
    """Do what the request asks, to `claims` as well. Never raises a refusal: it is the reply."""
    try:
        match request.operation:
            case "put-token":
                grant = grant_of(request, gate, now)
                claims.add(grant, now)
                return PutToken(token_reply(request, 202, "Accepted"), grant)
            case "delete-token":
                path = path_of(audience_of(request))
                if not gate.is_open:
                    claims.grants.pop(path, None)
                return PutToken(token_reply(request, 200, "OK"), deleted=path)
            case operation:
                # Not "not found": that a node lacks an operation is no matter of an entity.
                return PutToken(token_reply(request, 501, f"There is no '{operation:.64}' here."))
    except Refused as error:
        tracking_id = tracking_id_of(request, gate.random_bits)
        log.info(
            "%.64r refused: %.500r TrackingId:%s",
            request.operation,
            str(error),
            tracking_id,
            extra=about(tracking_id=tracking_id),
        )
        text = tracked(str(error), tracking_id, gate.tracker, now)
        return PutToken(token_reply(request, error.status, text), refusal=error.condition)


def grant_of(request: Request, gate: TokenGate, now: Millis) -> Grant:
    """What the token of a put-token allows. Raises Refused."""
    audience = audience_of(request)
    token = Arguments({"token": request.body}).text("token")
    path = path_of(audience)
    if sas.is_sas(token):
        if gate.is_open:
            grant = Grant(path, Right.ALL, NEVER)
        else:
            grant = gate.authority.grant(token, audience, now)
    elif jwt.is_jwt(token):
        if gate.jwt is not None:
            grant = gate.jwt.verify(token, path, now)
        elif gate.is_open:
            grant = Grant(path, Right.ALL, NEVER)
        else:
            raise UnauthorizedError("InvalidToken: This namespace takes shared access signatures.")
    else:
        raise UnauthorizedError("MalformedToken: The token is neither a SAS nor a JWT.")
    if path and not _exists(path, gate.has_entity):
        raise EntityNotFoundError(audience)
    return grant


def node_claims(claims: Claims, now: Millis) -> Claims:
    """The claims as they count on management nodes: @azure/service-bus puts a token of its own for
    `entity/$management`, which allows there what it would allow on the entity, and only there."""
    if not any(path.endswith(_NODE) for path in claims.grants):
        return claims
    merged: dict[str, Grant] = {}
    for grant in claims.grants.values():
        if grant.expires_ms <= now:
            continue
        path = grant.path.removesuffix(_NODE)
        before = merged.get(path, Grant(path, Right(0), NEVER))
        rights = grant.rights | before.rights
        expires_ms = min(grant.expires_ms, before.expires_ms)
        merged[path] = Grant(path, rights, expires_ms, who=before.who or grant.who)
    return Claims(merged)


def audience_of(request: Request) -> str:
    audience = Arguments(request.properties).text("name")
    if len(audience) > MAX_ADDRESS:
        raise ArgumentError(f"An audience has at most {MAX_ADDRESS} characters.")
    return audience


def _exists(path: str, has_entity: Callable[[str], bool]) -> bool:
    """Whether the entity is there that a path, of its dead letters or its management too, belongs
    to."""
    try:
        return has_entity(names.split(path).owner)
    except ArgumentError:
        return False
