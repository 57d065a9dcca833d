"""Who may do what: the one function that every command on every road passes through.

A *policy* is a named key with rights, of the namespace or of one entity. A peer proves that it has
one (`sas`), for a path; what it has proven are its *claims*. `require` compares a command with
them. The rule: every kind of command has a right, and one without does not type-check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Flag
from typing import Final, assert_never
from urllib.parse import urlsplit

from tandem.core import commands as c
from tandem.core import sas
from tandem.core.sas import SasToken
from tandem.errors import UnauthorizedError
from tandem.model import NEVER, Millis
from tandem.model import Secret as Secret
from tandem.settings import AuthorizationRule

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


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    rights: Right
    primary_key: Secret
    secondary_key: Secret

    @classmethod
    def of(cls, rule: AuthorizationRule) -> Policy:
        """What a rule of an entity's description allows its holder there."""
        rights = Right(0)
        for right in rule.rights:
            rights |= Right[right.name]
        return cls(rule.name, rights, rule.primary_key, rule.secondary_key)

    def has_signed(self, token: SasToken) -> bool:
        # Both are compared always: which key it was takes the same time.
        primary = token.is_signed_with(self.primary_key)
        secondary = token.is_signed_with(self.secondary_key)
        return primary or secondary

    @property
    def effective(self) -> Right:
        """Manage includes the others."""
        return Right.ALL if Right.MANAGE in self.rights else self.rights


_NOBODY: Final = Policy("", Right(0), Secret(_NOBODY_KEY), Secret(_NOBODY_KEY))
"""Stands where no policy has the name, so that looking for one takes as long as finding one."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on a path and all below it, until a time."""

    path: str
    rights: Right
    expires_ms: Millis

    def covers(self, path: str) -> bool:
        return not self.path or path == self.path or path.startswith(f"{self.path}/")


@dataclass(slots=True)
class Claims:
    """What one peer has proven so far."""

    grants: dict[str, Grant] = field(default_factory=dict)

    def add(self, grant: Grant) -> None:
        """A new token for the same path replaces the one before."""
        if grant.path not in self.grants and len(self.grants) >= _MAX_GRANTS:
            raise UnauthorizedError(f"A connection can hold {_MAX_GRANTS} tokens.")
        self.grants[grant.path] = grant

    def allows(self, path: str, right: Right, now: Millis) -> bool:
        return any(
            right in grant.rights and now < grant.expires_ms and grant.covers(path)
            for grant in self.grants.values()
        )

    def next_expiry(self) -> Millis:
        return min((grant.expires_ms for grant in self.grants.values()), default=NEVER)


class Authority:
    """Turns tokens into grants. `policies_of` gives the policies of the entity at a path, and of
    the topic of a subscription; unknown paths have none."""

    __slots__ = ("_namespace", "_policies_of")

    def __init__(
        self,
        namespace: Sequence[Policy],
        policies_of: Callable[[str], Sequence[Policy]] = lambda path: (),
    ) -> None:
        self._namespace = {policy.name: policy for policy in namespace}
        self._policies_of = policies_of

    def grant(self, text: str, audience: str, now: Millis) -> Grant:
        """What a SAS token allows on `audience` (`sb://host/path`). Raises UnauthorizedError, with
        the same words and after the same work for an unknown name as for a wrong key."""
        token = sas.parse(text)
        path = path_of(audience)
        policies = [self._namespace.get(token.key_name, _NOBODY)]
        policies += [p for p in self._policies_of(path) if p.name == token.key_name]
        rights = Right(0)
        for policy in policies:
            if policy.has_signed(token):
                rights |= policy.effective
        reach = Grant(path_of(token.resource), Right.ALL, NEVER)
        if not rights or not reach.covers(path):
            raise UnauthorizedError("InvalidSignature: The token has an invalid signature.")
        if token.expires_ms <= now:
            raise UnauthorizedError("ExpiredToken: The token is expired.")
        return Grant(path, rights, token.expires_ms)


def everything() -> Claims:
    """For the broker's own work, and for an open development broker."""
    return Claims({"": Grant("", Right.ALL, NEVER)})


def path_of(resource: str) -> str:
    """The path of a resource, whatever its scheme, host, port and case are; "" is the namespace."""
    rest = urlsplit(resource).path if "://" in resource else resource
    return rest.strip("/").lower()


def right_for(command: c.Command) -> Right | None:
    """What a command takes; None: it concerns a link or a transaction that was allowed before."""
    match command:
        case c.Send() | c.CancelScheduled():
            return Right.SEND
        case (
            c.Attach() | c.ReceiveDeferred() | c.Browse() | c.Settle() | c.Renew()
            | c.DeleteMessages() | c.RenewSession() | c.SetSessionState() | c.GetSessionState()
            | c.ListSessions()
            # The rule manager of the SDKs works with a key that may only listen (WIRE.md §2).
            | c.AddRule() | c.UpdateRule() | c.RemoveRule()
        ):  # fmt: skip
            return Right.LISTEN
        case (
            c.CreateQueue() | c.CreateTopic() | c.CreateSubscription() | c.UpdateEntity()
            | c.DeleteEntity() | c.ChangePriority() | c.Remark()
        ):  # fmt: skip
            return Right.MANAGE
        case c.Flow() | c.Detach() | c.Declare() | c.Discharge() | c.Loaded():
            return None
        case _:
            assert_never(command)


def require(claims: Claims, command: c.Command, now: Millis) -> None:
    """Raises UnauthorizedError if the claims do not allow the command."""
    right = right_for(command)
    if right is None:
        return
    path = command.topic if isinstance(command, c.CreateSubscription) else command.path  # type: ignore[union-attr]
    require_right(claims, path, right, now)


def require_right(claims: Claims, path: str, right: Right, now: Millis) -> None:
    """The same for what is no command: opening a link, reading what has no command to read it."""
    if not claims.allows(path_of(path), right, now):
        raise UnauthorizedError(
            f"Unauthorized access. '{(right.name or '').title()}' claim(s) are required to perform "
            f"this operation. Resource: '{path}'."
        )
