"""Shared access signatures: making one, taking one apart, checking it (WIRE.md §2).

The signed text is the resource exactly as it stands in the token, a newline, and the expiry:
nothing is decoded before it is hashed, because every SDK escapes in its own way. Which key is meant
and what it allows is `access`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, unquote_plus

from tandembus.errors import UnauthorizedError
from tandembus.model import Millis

PREFIX: Final = "SharedAccessSignature "
_MAX_TOKEN: Final = 4_096
"""Characters: the longest resource and name make less than half of it."""


@dataclass(frozen=True, slots=True)
class SasToken:
    signed: bytes = field(repr=False)
    """What the signature is made over."""
    signature: bytes = field(repr=False)
    """As long as a digest, whatever the peer sent."""
    key_name: str
    expires_ms: Millis
    resource: str
    """Decoded: `sb://host/path`, in any case."""

    def is_signed_with(self, key: str) -> bool:
        """In constant time, whatever the key and the signature are."""
        return hmac.compare_digest(_sign(self.signed, key), self.signature)


def is_sas(text: str) -> bool:
    """By its text, never by the type that the client says (Python's SDK says `jwt` always)."""
    return text.startswith(PREFIX)


def parse(text: str) -> SasToken:
    """Raises UnauthorizedError for anything that is not a token of this form."""
    if not is_sas(text) or len(text) > _MAX_TOKEN:
        raise UnauthorizedError("The token is not a shared access signature.")
    fields: dict[str, str] = {}
    for part in text[len(PREFIX) :].split("&"):
        name, equals, value = part.partition("=")
        if not equals or name in fields:
            raise UnauthorizedError("The shared access signature is malformed.")
        fields[name] = value
    try:
        resource, expiry = fields["sr"], fields["se"]
        signature = base64.b64decode(unquote(fields["sig"]), validate=True)
        # Twice: Python's SDK encodes the name of the key twice.
        key_name = unquote(unquote(fields["skn"]))
        if not (expiry.isascii() and expiry.isdecimal() and len(expiry) <= 15):
            raise ValueError(expiry)
        if len(signature) != hashlib.sha256().digest_size:
            raise ValueError("no digest")
    except (KeyError, ValueError):
        raise UnauthorizedError("The shared access signature is malformed.") from None
    return SasToken(
        f"{resource}\n{expiry}".encode(),
        signature,
        key_name,
        int(expiry) * 1_000,
        unquote_plus(resource),
    )


def sign(resource: str, key_name: str, key: str, expires_s: int) -> str:
    """A token for `resource` (`sb://host/path`) that is good until `expires_s` (Unix seconds)."""
    escaped = quote(resource, safe="")
    signature = base64.b64encode(_sign(f"{escaped}\n{expires_s}".encode(), key)).decode()
    return (
        f"{PREFIX}sr={escaped}&sig={quote(signature, safe='')}"
        f"&se={expires_s}&skn={quote(key_name, safe='')}"
    )


def _sign(text: bytes, key: str) -> bytes:
    # The key's text is the key: it looks like base64 but is not decoded.
    return hmac.new(key.encode(), text, hashlib.sha256).digest()
