"""Points the SDK at the broker's ports; its tests and its protocol code stay as they are.

Most tests build their clients as `ServiceBusClient("<namespace>.servicebus.windows.net", login)`,
for which the SDK insists on TLS at 5671 and 443. Only that is changed, and for our host only.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import certifi
import websocket
from azure.servicebus._pyamqp import _connection
from azure.servicebus._pyamqp.aio import _connection_async
from azure.servicebus.aio.management import _management_client_async
from azure.servicebus.management import _management_client

from tests.conformance.azure.sdk_suite.target import HOST, Target, is_broker, target


def apply() -> None:
    here = target()
    if here.is_tls:
        _trust(here.ca_file)
    connections: list[Any] = [_connection, _connection_async]
    for connection in connections:
        connection.SECURE_PORT = connection.WEBSOCKET_PORT = here.port
    _route_websocket(here)
    for management in (_management_client, _management_client_async):
        _route_admin(management.ServiceBusManagementClientImpl, here)
    if not here.is_tls:
        for client in (azure.servicebus.ServiceBusClient, azure.servicebus.aio.ServiceBusClient):
            _route_plain(client, here)


def _route_plain(client: Any, here: Target) -> None:
    original = client.__init__

    @functools.wraps(original)
    def routed(self: Any, fully_qualified_namespace: str, credential: Any, **options: Any) -> None:
        if is_broker(fully_qualified_namespace):
            fully_qualified_namespace = f"{HOST}:{here.port}"
            options["use_tls"] = False
        original(self, fully_qualified_namespace, credential, **options)

    client.__init__ = routed


def _route_admin(client: Any, here: Target) -> None:
    """The administration client can only do `https://<host>`."""
    original = client.__init__

    @functools.wraps(original)
    def routed(self: Any, endpoint: str, *arguments: Any, **options: Any) -> None:
        original(self, endpoint, *arguments, **options)
        if is_broker(endpoint):
            self._client._base_url = here.admin_url

    client.__init__ = routed


def _route_websocket(here: Target) -> None:
    """The blocking transport writes no port into its URL."""
    original = websocket.create_connection

    @functools.wraps(original)
    def routed(url: str, *arguments: Any, **options: Any) -> Any:
        scheme, _, rest = url.partition("://")
        place, slash, path = rest.partition("/")
        if ":" not in place and is_broker(place):
            url = f"{scheme}://{place}:{here.port}{slash}{path}"
        return original(url, *arguments, **options)

    websocket.create_connection = routed


def _trust(ca_file: str) -> None:
    """certifi's authorities and ours: for the SDK's AMQP (certifi), requests and aiohttp."""
    ours = Path(ca_file)
    both = ours.with_name(f"trusted-by-{os.getpid()}.pem")
    both.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + ours.read_bytes())
    certifi.where = lambda: str(both)
    os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = str(both)
