"""JSON web tokens: taking one apart, and what its signature and times are worth (RFC 7515-7519).

Two signatures are known: HS256, with a secret or with the key of a policy, and RS256, with a public
key; a JWK set names them. What a token then allows is `access`. Nothing here signs.

The rules: the token says which algorithm, the key says which one it is for, and both must agree, so
a public key is never taken for a secret. Times are whole seconds and nothing else (CVE-2026-67242).
A signature is looked at before any claim.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tandembus.errors import ArgumentError, UnauthorizedError
from tandembus.model import NEVER, Millis
from tandembus.settings import AccessRight

HS256: Final = "HS256"
RS256: Final = "RS256"
MAX_TOKEN: Final = 16 * 1024
"""Characters. Those of a large directory, with hundreds of groups, are half as long."""
SKEW_MS: Final[Millis] = 5 * 60 * 1000
"""How far the issuer's clock may be from ours: the five minutes that directories themselves allow.
A shared access signature has no such grace, as in Azure: the SDK's own tests insist."""
AUDIENCE: Final = "https://servicebus.azure.net"
ROLES: Final[Mapping[str, tuple[AccessRight, ...]]] = MappingProxyType(
    {
        "Azure Service Bus Data Owner": (AccessRight.MANAGE, AccessRight.SEND, AccessRight.LISTEN),
        "Azure Service Bus Data Sender": (AccessRight.SEND,),
        "Azure Service Bus Data Receiver": (AccessRight.LISTEN,),
    }
)
"""Azure's names, unless the file has its own."""

_LATEST_S: Final = NEVER // 1000
_ALPHABET: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_SHA256_PREFIX: Final = bytes.fromhex("3031300d060960864801650304020105000420")
"""How PKCS #1 v1.5 says that a SHA-256 digest follows (RFC 8017 §9.2)."""
_MIN_RSA_BITS, _MAX_RSA_BITS = 2_048, 8_192
_MIN_SECRET_BYTES: Final = 32
"""As long as the digest (RFC 7518 §3.2)."""
_MAX_EXPONENT: Final = 1 << 32
"""65537 is what there is; a giant one would only make every check slow."""


@dataclass(frozen=True, slots=True)
class RsaKey:
    """A public key. It can check, and nothing else."""

    modulus: int
    exponent: int

    def has_signed(self, signed: bytes, signature: bytes) -> bool:
        """RSASSA-PKCS1-v1_5 with SHA-256. The padded digest is made and compared as a whole:
        readers that took the padding apart have been fooled by what they skipped."""
        size = (self.modulus.bit_length() + 7) // 8
        number = int.from_bytes(signature, "big")
        if len(signature) != size or number >= self.modulus:
            return False
        found = pow(number, self.exponent, self.modulus).to_bytes(size, "big")
        tail = b"\0" + _SHA256_PREFIX + hashlib.sha256(signed).digest()
        wanted = b"\0\x01" + b"\xff" * (size - 2 - len(tail)) + tail
        return hmac.compare_digest(found, wanted)


@dataclass(frozen=True, slots=True)
class JwtKey:
    """A key of the set, and the name that a token's `kid` can call it by."""

    name: str | None
    key: RsaKey | bytes = field(repr=False)
    """Bytes are a secret for HS256."""

    def has_signed(self, token: Jwt) -> bool:
        if self.name is not None and token.key_id is not None and self.name != token.key_id:
            return False
        if isinstance(self.key, RsaKey):
            return token.algorithm == RS256 and self.key.has_signed(token.signed, token.signature)
        return token.is_signed_with(self.key)


@dataclass(frozen=True, slots=True)
class Jwt:
    """A token taken apart. Nothing of it is believed yet."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, object] = field(repr=False)
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    def is_signed_with(self, secret: bytes) -> bool:
        """By HS256, in constant time; never by a token that says another algorithm."""
        digest = hmac.new(secret, self.signed, hashlib.sha256).digest()
        return self.algorithm == HS256 and hmac.compare_digest(digest, self.signature)

    def expires_ms(self, now: Millis) -> Millis:
        """When it ends, with the grace for clocks. Raises UnauthorizedError if it has ended, has
        not begun, or does not say."""
        expires = self._seconds("exp")
        if expires is None:
            raise UnauthorizedError("MalformedToken: The token does not say when it expires.")
        begins = self._seconds("nbf")
        if begins is not None and begins - SKEW_MS > now:
            raise UnauthorizedError("InvalidToken: The token is not valid yet.")
        if expires + SKEW_MS <= now:
            raise UnauthorizedError("ExpiredToken: The token is expired.")
        return expires + SKEW_MS

    def _seconds(self, name: str) -> Millis | None:
        value = self.claims.get(name)
        if value is None:
            return None
        # Not a bool, which is an int; not a float, a text, or a number beyond all time (S10).
        if type(value) is not int or not 0 <= value <= _LATEST_S:
            raise UnauthorizedError(f"MalformedToken: '{name}' is not a time in seconds.")
        return value * 1000

    @property
    def audiences(self) -> set[str]:
        return {each.rstrip("/") for each in self._texts("aud")}

    @property
    def roles(self) -> tuple[str, ...] | None:
        """None: it has no such claim."""
        return self._texts("roles") if "roles" in self.claims else None

    @property
    def subject(self) -> str:
        """Whose it is: the application, if it names one (as directories do), else the subject."""
        return next((said for name in ("appid", "azp", "sub") for said in self._texts(name)), "")

    def _texts(self, name: str) -> tuple[str, ...]:
        value = self.claims.get(name)
        every = value if isinstance(value, list) else [value]
        return tuple(each for each in every if isinstance(each, str))


def is_jwt(text: str) -> bool:
    """Whether it has the form of one; told by the text, not by what the client calls it."""
    parts = text.split(".") if len(text) <= MAX_TOKEN else ()
    return len(parts) == 3 and all(part and _ALPHABET.issuperset(part) for part in parts)


def parse(text: str) -> Jwt:
    """Raises UnauthorizedError for anything that is not a signed token of this form."""
    if not is_jwt(text):
        raise UnauthorizedError("MalformedToken: The token is not a JWT.")
    signed, _, signature = text.rpartition(".")
    head, _, body = signed.partition(".")
    try:
        header, claims = json.loads(_bytes(head)), json.loads(_bytes(body))
        raw = _bytes(signature)
    except (ValueError, RecursionError):
        raise UnauthorizedError("MalformedToken: The token cannot be read.") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise UnauthorizedError("MalformedToken: The token cannot be read.")
    algorithm, key_id = header.get("alg"), header.get("kid")
    # `none` among them. What is critical to its issuer and unknown to us cannot be ignored.
    if algorithm not in (HS256, RS256) or "crit" in header:
        raise UnauthorizedError("InvalidToken: The token is not signed in a way that is known.")
    return Jwt(algorithm, key_id if isinstance(key_id, str) else None, claims, signed.encode(), raw)


@dataclass(frozen=True, slots=True)
class JwtTrust:
    """Whose tokens are believed, beside those that a policy's key has signed."""

    keys: tuple[JwtKey, ...] = ()
    issuers: frozenset[str] = frozenset()
    audiences: frozenset[str] = frozenset({AUDIENCE})
    roles: Mapping[str, tuple[AccessRight, ...]] = field(default_factory=lambda: ROLES)

    @classmethod
    def from_json(cls, tree: object) -> JwtTrust:
        """A JWK set with `issuers` beside its `keys`, and if wanted `audiences` and `roles`. Raises
        ArgumentError naming what cannot work; the text has no secret in it."""
        known = ("keys", "issuers", "audiences", "roles")
        if not isinstance(tree, dict) or not set(tree) <= set(known):
            raise ArgumentError(f"an object with {', '.join(known)} is wanted, and nothing else")
        keys = tree.get("keys")
        found = [_key(each) for each in keys] if isinstance(keys, list) else []
        usable = tuple(key for key in found if key is not None)
        if not usable:
            raise ArgumentError("'keys' has no key for HS256 or RS256")
        issuers = _names(tree, "issuers")
        if not issuers:
            # One directory signs for all its tenants with the same keys.
            raise ArgumentError("'issuers' is missing: a key alone does not say whose token it is")
        audiences = frozenset(each.rstrip("/") for each in _names(tree, "audiences"))
        return cls(
            usable,
            issuers,
            audiences or frozenset({AUDIENCE}),
            _roles(tree["roles"]) if "roles" in tree else ROLES,
        )


def _key(member: object) -> JwtKey | None:
    """A member of a JWK set (RFC 7517); None: it is for something else."""
    if not isinstance(member, dict):
        raise ArgumentError("a member of 'keys' is not an object")
    if member.get("use", "sig") != "sig" or member.get("alg", HS256) not in (HS256, RS256):
        return None
    name = member.get("kid")
    name = name if isinstance(name, str) else None
    match member.get("kty"):
        case "RSA" if member.get("alg", RS256) == RS256:
            return JwtKey(name, _rsa(member))
        case "oct" if member.get("alg", HS256) == HS256:
            secret = _member(member, "k")
            if len(secret) < _MIN_SECRET_BYTES:
                raise ArgumentError(f"a secret in 'keys' has less than {_MIN_SECRET_BYTES} bytes")
            return JwtKey(name, secret)
    return None


def _rsa(member: Mapping[str, object]) -> RsaKey:
    modulus = int.from_bytes(_member(member, "n"), "big")
    exponent = int.from_bytes(_member(member, "e"), "big")
    if not _MIN_RSA_BITS <= modulus.bit_length() <= _MAX_RSA_BITS or not modulus & 1:
        raise ArgumentError(f"an RSA key in 'keys' has not {_MIN_RSA_BITS} to {_MAX_RSA_BITS} bits")
    if not 3 <= exponent < _MAX_EXPONENT or not exponent & 1:
        raise ArgumentError("an RSA key in 'keys' has an exponent that nobody uses")
    return RsaKey(modulus, exponent)


def _member(member: Mapping[str, object], name: str) -> bytes:
    text = member.get(name)
    try:
        if not isinstance(text, str):
            raise ValueError
        return _bytes(text)
    except ValueError:
        raise ArgumentError(f"a key in 'keys' has no '{name}' in base64url") from None


def _names(tree: Mapping[str, object], name: str) -> frozenset[str]:
    names = tree.get(name, [])
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise ArgumentError(f"'{name}' is not a list of texts")
    return frozenset(names)


def _roles(tree: object) -> Mapping[str, tuple[AccessRight, ...]]:
    try:
        if not isinstance(tree, dict):
            raise TypeError
        return MappingProxyType(
            {str(name): tuple(map(AccessRight, rights)) for name, rights in tree.items()}
        )
    except (TypeError, ValueError):
        raise ArgumentError("'roles' does not map roles to Manage, Send and Listen") from None


def _bytes(text: str) -> bytes:
    """From base64url without padding, and nothing looser. Raises ValueError."""
    if not _ALPHABET.issuperset(text):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
