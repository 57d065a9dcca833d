"""Every kind of credential that the official SDK takes, against a real server process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

sdk = pytest.importorskip("azure.servicebus")
core = pytest.importorskip("azure.core.credentials")
from tandembus.core.sas import sign  # noqa: E402 - after the SDK was found
from tandembus.testing import BrokerProcess  # noqa: E402
from tests.unit.server.access_world import signed_jwt  # noqa: E402

ROOT = "RootManageSharedAccessKey"


class Token:
    """A credential as azure-identity has them: it gives a JWT, signed with `key`."""

    def __init__(self, key: str, **claims: Any) -> None:
        now = int(time.time())
        self._claims = {"aud": "https://servicebus.azure.net", "iss": "me", "exp": now + 3_600}
        self._claims |= claims
        self._key = key

    def get_token(self, *scopes: str, **options: Any) -> Any:
        return core.AccessToken(signed_jwt(self._key, self._claims), self._claims["exp"])


@pytest.fixture(scope="module")
def server() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as started:
        started.create_queue("orders")
        yield started


def client_of(server: BrokerProcess, credential: Any, key: str = "x") -> Any:
    """The SDK leaves TLS out only for a connection string of an emulator."""
    made = sdk.ServiceBusClient.from_connection_string(
        f"Endpoint=sb://{server.address};SharedAccessKeyName=x;SharedAccessKey={key};"
        "UseDevelopmentEmulator=true;"
    )
    made._credential = credential
    return made


@pytest.mark.req("C3")
@pytest.mark.parametrize("kind", ["JWT", "SAS token", "named key"])
def test_credentials(server: BrokerProcess, kind: str) -> None:
    """A token of a directory, a SAS token made before, a name and a key."""
    if kind == "JWT":
        client = client_of(server, Token(server.key))
    elif kind == "SAS token":
        token = sign(f"sb://{server.address}/", ROOT, server.key, int(time.time()) + 600)
        text = f"Endpoint=sb://{server.address};SharedAccessSignature={token};"
        client = sdk.ServiceBusClient.from_connection_string(f"{text}UseDevelopmentEmulator=true;")
    else:
        client = sdk.ServiceBusClient.from_connection_string(server.connection_string)
    with client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage(kind))
        with client.get_queue_receiver("orders", max_wait_time=5) as receiver:
            (message,) = receiver.receive_messages(max_wait_time=5)
            assert str(message) == kind
            receiver.complete_message(message)


def test_a_role_is_what_it_says(server: BrokerProcess) -> None:
    """A token for sending only sends; the SDK has its own words for the rest."""
    credential = Token(server.key, roles=["Azure Service Bus Data Sender"])
    with client_of(server, credential) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("sent"))
        receiver = client.get_queue_receiver("orders", max_wait_time=5)
        with pytest.raises(sdk.exceptions.ServiceBusAuthorizationError):
            receiver.receive_messages(max_wait_time=5)
