"""Where a namespace is and what proves who asks: connection strings, and the paths of entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tandembus.core import sas
from tandembus.errors import ArgumentError
from tandembus.model import Millis, Secret
from tandembus.names import dead_letter_path as dead_letter_path
from tandembus.names import transfer_dead_letter_path as transfer_dead_letter_path

AMQP_PORT: Final = 5672
AMQPS_PORT: Final = 5671
HTTPS_PORT: Final = 443
TOKEN_LIFE_MS: Final = 3_600_000
"""Of a token that we sign: an hour, as in the SDKs."""

_KNOWN: Final = {
    "endpoint",
    "sharedaccesskeyname",
    "sharedaccesskey",
    "sharedaccesssignature",
    "entitypath",
    "usedevelopmentemulator",
}


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """`Endpoint=sb://host[:port];SharedAccessKeyName=…;SharedAccessKey=…`, taken apart.

    Instead of name and key it may have a `SharedAccessSignature`, which is used as it is until it
    expires. `EntityPath` is the entity that is meant where none is named.
    `UseDevelopmentEmulator=true` says that there is no TLS: AMQP and HTTP on the same plain port.
    """

    host: str
    port: int | None = None
    key_name: str | None = None
    key: Secret | None = None
    signature: Secret | None = None
    entity_path: str | None = None
    is_emulator: bool = False

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Raises ArgumentError, which never repeats a key."""
        fields: dict[str, str] = {}
        for part in text.strip().strip(";").split(";"):
            name, equals, value = part.partition("=")
            name = name.strip().lower()
            if not equals or name in fields:
                raise ArgumentError("A connection string is made of Name=value parts, each once.")
            if name not in _KNOWN:
                raise ArgumentError(f"{name[:40]!a} is not a part of a connection string.")
            fields[name] = value.strip()
        host, port = _endpoint(fields.get("endpoint", ""))
        key_name = fields.get("sharedaccesskeyname") or None
        key = fields.get("sharedaccesskey") or None
        signature = fields.get("sharedaccesssignature") or None
        if signature is None and (key_name is None or key is None):
            raise ArgumentError(
                "A connection string has SharedAccessKeyName and SharedAccessKey, "
                "or a SharedAccessSignature."
            )
        return cls(
            host,
            port,
            key_name,
            None if key is None else Secret(key),
            None if signature is None else Secret(signature),
            fields.get("entitypath", "").strip("/") or None,
            # Exactly so in the SDKs; a flag that turns TLS off is not guessed at.
            fields.get("usedevelopmentemulator") == "true",
        )

    @property
    def uses_tls(self) -> bool:
        return not self.is_emulator

    @property
    def amqp_port(self) -> int:
        return self.port or (AMQPS_PORT if self.uses_tls else AMQP_PORT)

    @property
    def http_port(self) -> int:
        return self.port or (HTTPS_PORT if self.uses_tls else AMQP_PORT)

    def audience(self, path: str) -> str:
        """What a token for the entity at `path` is for."""
        return f"sb://{self.host}/{path}"

    def entity(self, path: str | None) -> str:
        """`path`, or the entity that the connection string names."""
        found = path if path is not None else self.entity_path
        if not found:
            raise ArgumentError("No entity is named, and the connection string has no EntityPath.")
        return found

    def token(self, audience: str, now_ms: Millis) -> tuple[str, Millis]:
        """A token for `audience`, and when it expires."""
        if self.signature is not None:
            text = str.__str__(self.signature)
            return text, sas.parse(text).expires_ms
        assert self.key_name is not None
        assert self.key is not None
        expires_s = (now_ms + TOKEN_LIFE_MS) // 1000
        return sas.sign(audience, self.key_name, str.__str__(self.key), expires_s), expires_s * 1000


def _endpoint(text: str) -> tuple[str, int | None]:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ArgumentError("The Endpoint of a connection string is sb://host or sb://host:port.")
    return host, port


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/Subscriptions/{name}"
