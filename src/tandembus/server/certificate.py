"""The server's certificate: read from its files, and again whenever they change.

New connections get the new one; those that are there keep what they have. The rule: what cannot be
read changes nothing but the log. Renewals write two files one after the other, and between the two
they do not fit: the old certificate stays until they do.

When a certificate ends is read from its bytes (RFC 5280 §4.1), because Python's `ssl` does not tell
a server its own.
"""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

from tandembus.errors import ArgumentError

log = logging.getLogger("tandembus.server")

SOON: Final = timedelta(days=14)
"""Before its end a certificate is complained about for so long."""
_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"

Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Certificate:
    """A PEM file with the server's certificate (and those that lead to its CA), and its key."""

    def __init__(self, chain: Path, private_key: Path) -> None:
        self.chain = chain
        self.private_key = private_key
        self.ends: datetime | None = None
        """When the one that is in use ends."""
        self._stamp: Stamp | None = None

    def load(self) -> ssl.SSLContext:
        """A context with what the files hold now. Raises ArgumentError."""
        self._stamp = self._stamped()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.chain, self.private_key)
            self.ends = expiry(self.chain)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ArgumentError(
                f"--certificate {self.chain} --private-key {self.private_key}: {why}."
            ) from None
        left = self.ends - datetime.now(UTC)
        if left < SOON:
            state = "has expired" if left < timedelta() else "expires"
            log.warning("the certificate %s %s on %s", self.chain, state, self.ends.date())
        return context

    def refresh(self) -> ssl.SSLContext | None:
        """The same, if the files have changed since and can be read; None otherwise."""
        stamp = self._stamped()
        if stamp is None or stamp == self._stamp:
            return None
        ends = self.ends
        try:
            context = self.load()
        except ArgumentError as error:
            self.ends = ends
            log.error("the certificate stays as it is: %s", error)
            return None
        log.warning("the certificate was read again: good until %s", self.ends)
        return context

    def _stamped(self) -> Stamp | None:
        """What changes when a file does, also by a link that leads elsewhere."""
        try:
            stats = [path.stat() for path in (self.chain, self.private_key)]
        except OSError:
            return None  # between two versions, perhaps
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in stats)


def expiry(path: Path) -> datetime:
    """When the first certificate of a PEM file ends. Raises OSError or ValueError."""
    text = path.read_text(encoding="ascii", errors="replace")
    begin, end = text.find(_PEM_BEGIN), text.find(_PEM_END)
    if not 0 <= begin < end:
        raise ValueError("it has no certificate")
    der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_PEM_END)])
    _, inside = _element(der, 0)  # Certificate
    _, inside = _element(der, inside[0])  # tbsCertificate
    at = inside[0]
    for _ in range(4 if der[at] == 0xA0 else 3):  # version, serial, signature, issuer
        _, (_, at) = _element(der, at)
    _, validity = _element(der, at)
    _, (_, not_after) = _element(der, validity[0])
    tag, (start, stop) = _element(der, not_after)
    digits = der[start:stop].decode("ascii").removesuffix("Z")
    if tag == 0x17:  # UTCTime: two digits of the year
        digits = ("19" if digits[:2] >= "50" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=UTC)


def _element(data: bytes, at: int) -> tuple[int, tuple[int, int]]:
    """The tag of the DER element at a place, and where its content begins and ends."""
    try:
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count])
            at += count
        if at + size > len(data):
            raise IndexError
    except IndexError:
        raise ValueError("it is not a certificate") from None
    return tag, (at, at + size)
