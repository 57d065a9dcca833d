"""Who may do what: the one function that every command on every road passes through.

A *policy* is a named key with rights, of the namespace or of one entity. A peer proves that it has
one, for a path: by a signature (`sas`), by a token of a directory or signed with the key (`jwt`),
or by showing the key itself (SASL PLAIN). What it has proven are its *claims*; `require` compares a
command with them.

The rules: every kind of command has a right, and one without does not type-check. A claim remembers
what it rests on, so that it ends with the key that proved it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Flag
from typing import Final, assert_never
from urllib.parse import urlsplit

from tandembus.core import commands as c
from tandembus.core import jwt, sas
from tandembus.core.jwt import Jwt, JwtTrust
from tandembus.errors import UnauthorizedError
from tandembus.model import NEVER, Millis
from tandembus.model import Secret as Secret
from tandembus.settings import AccessRight, AuthorizationRule, TopicSettings

_NOBODY_KEY: Final = "0" * 44
_MAX_GRANTS: Final = 1_024
"""Paths for which one connection can have put tokens: a client with more reconnects."""


class Right(Flag):
    LISTEN = 1
    SEND = 2
    MANAGE = 4
    ALL = 7

    @classmethod
    def of(cls, names: Iterable[str]) -> Right:
        """From `Manage`, `Send`, `Listen`. Raises KeyError for another name."""
        rights = cls(0)
        for name in names:
            rights |= cls[name.upper()]
        return rights


SOME_RIGHT: Final = Right(0)
"""What a command takes that concerns no entity: any claim, so that the peer is not a stranger."""


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    rights: Right
    primary_key: Secret
    secondary_key: Secret

    @classmethod
    def of(cls, rule: AuthorizationRule) -> Policy:
        """What a rule of an entity's description allows its holder there."""
        return cls(rule.name, _rights(rule.rights), rule.primary_key, rule.secondary_key)

    def proven_key(self, proves: Callable[[Secret], bool]) -> Secret | None:
        """The key that the peer has."""
        # Both are compared always: which key it was takes the same time.
        primary, secondary = proves(self.primary_key), proves(self.secondary_key)
        return self.primary_key if primary else self.secondary_key if secondary else None

    @property
    def effective(self) -> Right:
        """Manage includes the others."""
        return Right.ALL if Right.MANAGE in self.rights else self.rights


_NOBODY: Final = Policy("", Right(0), Secret(_NOBODY_KEY), Secret(_NOBODY_KEY))
"""Stands where no policy has the name, so that looking for one takes as long as finding one."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A policy's key that a grant rests on. Gone with the policy, or when the key is another."""

    policy: str
    key: Secret
    is_of_entity: bool
    """Of the entity that the grant's path belongs to; otherwise of the namespace."""
    most: Right = Right.ALL
    """Of the policy's rights, those that the token asked for."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on a path and all below it, until a time."""

    path: str
    rights: Right
    expires_ms: Millis
    proofs: tuple[Proof, ...] = field(default=(), compare=False)
    """None: it rests on no key of a policy, and ends by its time alone."""
    who: str = field(default="", compare=False)
    """The name of the policy, or the subject of the token, that it was given to."""

    def covers(self, path: str) -> bool:
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


@dataclass(slots=True)
class Claims:
    """What one peer has proven so far."""

    grants: dict[str, Grant] = field(default_factory=dict)

    def add(self, grant: Grant, now: Millis = 0) -> None:
        """A new token for the same path replaces the one before."""
        if grant.path not in self.grants and len(self.grants) >= _MAX_GRANTS:
            self.drop_expired(now)
            if len(self.grants) >= _MAX_GRANTS:
                raise UnauthorizedError(f"A connection can hold {_MAX_GRANTS} tokens.")
        self.grants[grant.path] = grant

    def drop_expired(self, now: Millis) -> None:
        for path, grant in list(self.grants.items()):
            if grant.expires_ms <= now:
                del self.grants[path]

    def allows(self, path: str, right: Right, now: Millis) -> bool:
        """By a grant on the path or on one above it; asked for every command, so without a walk
        over all grants."""
        grants = self.grants
        while True:
            grant = grants.get(path)
            if grant is not None and right in grant.rights and now < grant.expires_ms:
                return True
            if not path:
                return False
            path = path.rpartition("/")[0]

    def who(self, path: str) -> str:
        """Who has shown what counts on the path; "" if that says nothing."""
        while path and path not in self.grants:
            path = path.rpartition("/")[0]
        grant = self.grants.get(path)
        return "" if grant is None else grant.who

    def allows_some(self, path: str, now: Millis) -> bool:
        """Whether there is any right on the path."""
        return any(self.allows(path, right, now) for right in (Right.LISTEN, Right.SEND))

    def is_anybody(self, now: Millis) -> bool:
        """Whether the peer has proven anything that still counts."""
        return any(now < grant.expires_ms for grant in self.grants.values())

    def next_expiry(self) -> Millis:
        return min((grant.expires_ms for grant in self.grants.values()), default=NEVER)


class Authority:
    """Turns what a peer shows into grants. `policies_of` gives the policies of the entity at a
    path, and of the topic of a subscription; unknown paths have none. `trust` says whose JWTs are
    believed beside those that a policy's key has signed."""

    __slots__ = ("_namespace", "_policies_of", "_trust")

    def __init__(
        self,
        namespace: Sequence[Policy],
        policies_of: Callable[[str], Sequence[Policy]] = lambda path: (),
        trust: JwtTrust | None = None,
    ) -> None:
        self._policies_of = policies_of
        self.replace(namespace, trust)

    def replace(self, namespace: Sequence[Policy], trust: JwtTrust | None = None) -> None:
        """Other policies of the namespace from now on. What was granted is for `review`."""
        self._namespace = tuple(namespace)
        self._trust = trust or JwtTrust()

    def grant(self, text: str, audience: str, now: Millis) -> Grant:
        """What a SAS token allows on `audience` (`sb://host/path`). Raises UnauthorizedError, with
        the same words and after the same work for an unknown name as for a wrong key."""
        token = sas.parse(text)
        path = path_of(audience)
        policies = [
            (self._policy(token.key_name), False),
            (self._policy(token.key_name, path), True),
        ]
        grant = _granted(path, policies, token.is_signed_with, token.expires_ms)
        reach = Grant(_reach(token.resource, audience), Right.ALL, NEVER)
        if not grant.rights or not reach.covers(path):
            raise UnauthorizedError("InvalidSignature: The token has an invalid signature.")
        if token.expires_ms <= now:
            raise UnauthorizedError("ExpiredToken: The token is expired.")
        return grant

    def verify(self, text: str, path: str, now: Millis) -> Grant:
        """What a JWT allows on `path`, which is in lower case and "" for the namespace. Raises
        UnauthorizedError."""
        token = jwt.parse(text)
        policies = [(policy, False) for policy in self._namespace]
        policies += [(policy, True) for policy in self._policies_of(path)]
        if token.key_id is not None:
            policies = [(each, where) for each, where in policies if each.name == token.key_id]
        signs = [key for key in self._trust.keys if key.has_signed(token)]
        grant = _granted(
            path,
            policies or [(_NOBODY, False)],
            lambda key: token.is_signed_with(str.encode(key)),
            0,
            self._roles(token),
        )
        if not signs and not grant.proofs:
            raise UnauthorizedError("InvalidSignature: The token has an invalid signature.")
        expires_ms = token.expires_ms(now)
        if not token.audiences & self._trust.audiences:
            raise UnauthorizedError("InvalidAudience: The token is for somebody else.")
        rights = grant.rights
        if signs:
            issuer = token.claims.get("iss")
            if not isinstance(issuer, str) or issuer not in self._trust.issuers:
                raise UnauthorizedError("InvalidIssuer: The token is from somebody else.")
            rights = Right(0) if token.roles is None else self._roles(token)
            grant = replace(grant, proofs=(), who=token.subject)
        if not rights:
            raise UnauthorizedError("InvalidToken: The token has no role here.")
        return replace(grant, rights=rights, expires_ms=expires_ms)

    def login(self, name: str, key: str, entities: Iterable[str] = ()) -> list[Grant]:
        """What a policy's name and key allow (SASL PLAIN): a policy of the namespace everywhere,
        and beside it the policies of that name and key of `entities` there. Empty: nothing, after
        the same work for an unknown name as for a wrong key."""
        shown = hashlib.sha256(key.encode()).digest()

        def is_shown(secret: Secret) -> bool:
            return hmac.compare_digest(hashlib.sha256(str.encode(secret)).digest(), shown)

        grants = [_granted("", [(self._policy(name), False)], is_shown, NEVER)]
        for path in entities:
            where = path_of(path)
            grants.append(_granted(where, [(self._policy(name, where), True)], is_shown, NEVER))
        return [grant for grant in grants if grant.rights]

    def review(self, claims: Claims) -> None:
        """Take back what rests on a key that is not there any more (S10)."""
        for path, grant in list(claims.grants.items()):
            if not grant.proofs:
                continue
            rights = Right(0)
            for proof in grant.proofs:
                policy = self._policy(proof.policy, grant.path if proof.is_of_entity else None)
                if proof.key in (policy.primary_key, policy.secondary_key):
                    rights |= policy.effective & proof.most
            if rights:
                claims.grants[path] = replace(grant, rights=rights)
            else:
                del claims.grants[path]

    def _policy(self, name: str, path: str | None = None) -> Policy:
        """Of the entity at a path, or of the namespace. To the end of the list and without a jump,
        found or not: a dictionary, or a loop that stops, tells names apart in 100,000 tries."""
        found = _NOBODY
        for policy in self._namespace if path is None else self._policies_of(path):
            found = (found, policy)[policy.name == name]
        return found

    def _roles(self, token: Jwt) -> Right:
        """What the roles of a token stand for; all, if it names none."""
        if token.roles is None:
            return Right.ALL
        rights = Right(0)
        for role in token.roles:
            rights |= _rights(self._trust.roles.get(role, ()))
        return Right.ALL if Right.MANAGE in rights else rights


def _granted(
    path: str,
    policies: Sequence[tuple[Policy, bool]],
    proves: Callable[[Secret], bool],
    expires_ms: Millis,
    most: Right = Right.ALL,
) -> Grant:
    """The rights of those policies whose key is proven; each is asked, whatever the others say."""
    rights = Right(0)
    proofs: list[Proof] = []
    for policy, is_of_entity in policies:
        key = policy.proven_key(proves)
        if key is not None and policy is not _NOBODY:
            rights |= policy.effective & most
            proofs.append(Proof(policy.name, key, is_of_entity, most))
    who = proofs[0].policy if proofs else ""
    return Grant(path, rights, expires_ms, tuple(proofs), who)


def _rights(names: Iterable[AccessRight]) -> Right:
    rights = Right(0)
    for name in names:
        rights |= Right[name.name]
    return rights


def everything() -> Claims:
    """For the broker's own work, and for an open development broker."""
    return Claims({"": Grant("", Right.ALL, NEVER)})


def _reach(resource: str, audience: str) -> str:
    """The path that a token is for. @azure/service-bus leaves the scheme out when it proves that it
    may forward somewhere: `host:port`, which is told from a path by the audience's host."""
    host = urlsplit(audience).netloc if "://" in audience else ""
    first, _, rest = resource.partition("/")
    return path_of(rest if host and first.lower() == host.lower() else resource)


def path_of(resource: str) -> str:
    """The path of a resource, whatever its scheme, host, port and case are; "" is the namespace."""
    rest = urlsplit(resource).path if "://" in resource else resource
    return rest.strip("/").lower()


def right_for(command: c.Command) -> Right | None:
    """What a command takes; None: it concerns a link or a transaction that was allowed before, and
    whose owner the edge has checked."""
    match command:
        case c.Send() | c.CancelScheduled():
            return Right.SEND
        case (
            c.Attach() | c.ReceiveDeferred() | c.Browse() | c.Settle() | c.Renew()
            | c.DeleteMessages() | c.RenewSession() | c.SetSessionState() | c.GetSessionState()
            | c.ListSessions() | c.CountSessions() | c.DeadLetterSession() | c.Reactivate()
            | c.Discard()
            | c.Survey() | c.Advance() | c.Scan() | c.MoveCursor() | c.DropCursor()
            # The rule manager of the SDKs works with a key that may only listen (WIRE.md §2).
            | c.AddRule() | c.UpdateRule() | c.RemoveRule()
        ):  # fmt: skip
            return Right.LISTEN
        case (
            c.CreateQueue() | c.CreateTopic() | c.CreateSubscription() | c.UpdateEntity()
            | c.DeleteEntity() | c.ChangePriority() | c.Remark() | c.OpenTap()
        ):  # fmt: skip
            return Right.MANAGE
        case c.Declare():
            return SOME_RIGHT
        case c.Flow() | c.Detach() | c.Discharge() | c.Loaded():
            return None
        case _:
            assert_never(command)


_known: Final[dict[type[object], Right | None]] = {}
"""`right_for` by the type alone: it is asked for every command."""


def require(claims: Claims, command: c.Command, now: Millis) -> None:
    """Raises UnauthorizedError if the claims do not allow the command."""
    kind = type(command)
    if kind not in _known:
        _known[kind] = right_for(command)
    right = _known[kind]
    if right is None:
        return
    if not right:
        if not claims.is_anybody(now):
            raise UnauthorizedError("Unauthorized access. A token is required for this operation.")
        return
    path = command.topic if isinstance(command, c.CreateSubscription) else command.path  # type: ignore[union-attr]
    require_right(claims, path, right, now)
    if right is Right.MANAGE:
        # Otherwise whoever manages one entity could send to every other one (CVE-2026-67241).
        for target in targets_of(command):
            require_right(claims, target, Right.SEND, now)


def targets_of(command: c.Command) -> list[str]:
    """The entities that a command wants messages to be forwarded to."""
    if not isinstance(command, c.CreateQueue | c.CreateSubscription | c.UpdateEntity):
        return []
    settings = command.settings
    if isinstance(settings, TopicSettings):
        return []
    targets = (settings.forward_to, settings.forward_dead_letters_to)
    return [target for target in targets if target is not None]


def require_right(claims: Claims, path: str, right: Right, now: Millis) -> None:
    """The same for what is no command: opening a link, reading what has no command to read it."""
    if not claims.allows(path_of(path), right, now):
        raise UnauthorizedError(
            f"Unauthorized access. '{(right.name or '').title()}' claim(s) are required to perform "
            f"this operation. Resource: '{path}'."
        )
