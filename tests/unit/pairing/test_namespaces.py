"""How a namespace is reached: what clients are made with."""

from __future__ import annotations

import ssl

import pytest

from tandembus.errors import ArgumentError
from tandembus.pairing.namespaces import Namespace

PLAIN = "Endpoint=sb://here;SharedAccessKeyName=a;SharedAccessKey=b"


@pytest.mark.parametrize("kind", ["", ";UseDevelopmentEmulator=true"])
def test_certificates_are_read_once(kind: str) -> None:
    """All clients share a context, which checks what it should; a caller's own comes first."""
    first, second = (Namespace.of(PLAIN + kind, {}).client() for _ in range(2))
    assert first._ssl_context is second._ssl_context
    context = first._ssl_context
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert bool(context.get_ca_certs()) is not bool(kind), "where there is no TLS, none is needed"
    mine = ssl.create_default_context()
    assert Namespace.of(PLAIN, {"ssl_context": mine}).client()._ssl_context is mine


def test_what_is_not_there_is_said() -> None:
    """A namespace has only what its maker gave it."""
    bare = Namespace("bare")
    with pytest.raises(ValueError, match="without asyncio"):
        bare.client()
    with pytest.raises(ValueError, match="with asyncio"):
        bare.async_client()
    assert Namespace.of(bare, {}) is bare
    with pytest.raises(ArgumentError, match="EntityPath"):
        Namespace.of(f"{PLAIN};EntityPath=orders", {})
