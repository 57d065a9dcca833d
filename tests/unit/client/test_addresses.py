"""Connection strings: every form that the SDKs take, and no key in any error."""

from __future__ import annotations

import pytest

from tandembus.client.addresses import ConnectionString, dead_letter_path, subscription_path
from tandembus.core import sas
from tandembus.errors import ArgumentError

KEYS = "SharedAccessKeyName=root;SharedAccessKey=top/secret+="


def test_azures_own() -> None:
    """TLS on 5671 and 443, the entity if it names one."""
    found = ConnectionString.parse(
        f"Endpoint=sb://ns.servicebus.windows.net/;{KEYS};EntityPath=orders"
    )
    assert found.host == "ns.servicebus.windows.net"
    assert (found.uses_tls, found.amqp_port, found.http_port) == (True, 5671, 443)
    assert found.entity(None) == "orders"
    assert found.entity("others") == "others"
    assert str.__str__(found.key or "") == "top/secret+="


def test_a_development_broker() -> None:
    """No TLS, and one port for all; only the exact word counts."""
    found = ConnectionString.parse(
        f"endpoint=sb://localhost:1234;{KEYS};UseDevelopmentEmulator=true;"
    )
    assert (found.uses_tls, found.amqp_port, found.http_port) == (False, 1234, 1234)
    found = ConnectionString.parse(f"Endpoint=sb://localhost;{KEYS};UseDevelopmentEmulator=true")
    assert (found.amqp_port, found.http_port) == (5672, 5672)
    found = ConnectionString.parse(
        f"Endpoint=sb://localhost:1234;{KEYS};UseDevelopmentEmulator=True"
    )
    assert (found.uses_tls, found.amqp_port, found.http_port) == (True, 1234, 1234)


def test_a_signature_instead_of_a_key() -> None:
    """It is used as it is, until it expires."""
    signed = sas.sign("sb://h/q", "root", "key", 1_800_000_000)
    found = ConnectionString.parse(f"Endpoint=sb://h;SharedAccessSignature={signed}")
    assert found.token("sb://h/q", 0) == (signed, 1_800_000_000_000)


def test_a_token_is_signed() -> None:
    found = ConnectionString.parse(f"Endpoint=sb://h;{KEYS}")
    text, expires_ms = found.token(found.audience("q"), 1_700_000_000_000)
    token = sas.parse(text)
    assert token.is_signed_with("top/secret+=")
    assert token.expires_ms == expires_ms == 1_700_003_600_000
    assert token.resource == "sb://h/q"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Endpoint=sb://h",
        f"{KEYS}",
        f"Endpoint=;{KEYS}",
        f"Endpoint=sb://h:port;{KEYS}",
        "Endpoint=sb://h;SharedAccessKeyName=root",
        f"Endpoint=sb://h;Endpoint=sb://h;{KEYS}",
        f"Endpoint=sb://h;{KEYS};Colour=blue",
        f"Endpoint=sb://h;{KEYS};nonsense",
    ],
)
def test_what_is_no_connection_string(text: str) -> None:
    """It says what is wrong with it, and repeats no key."""
    with pytest.raises(ArgumentError) as caught:
        ConnectionString.parse(text)
    assert "secret" not in str(caught.value)


def test_no_entity() -> None:
    with pytest.raises(ArgumentError, match="EntityPath"):
        ConnectionString.parse(f"Endpoint=sb://h;{KEYS}").entity(None)


def test_a_key_is_not_shown() -> None:
    """Not by a log that prints the whole thing."""
    assert "secret" not in repr(ConnectionString.parse(f"Endpoint=sb://h;{KEYS}"))


def test_paths() -> None:
    assert dead_letter_path(subscription_path("t", "s")) == "t/Subscriptions/s/$DeadLetterQueue"
