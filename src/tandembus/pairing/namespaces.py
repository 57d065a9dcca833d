"""How the two namespaces of a pair are reached: with the SDK to send and receive, with HTTP to make
backlog queues and to count what is in them.

A connection string says all of that. Who has only clients (a credential, a web socket, a proxy)
gives a `Namespace` with factories for them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import certifi
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tandembus.client import Client, ConnectionString, Entities
from tandembus.errors import ArgumentError, EntityExistsError, EntityNotFoundError
from tandembus.pairing.options import BACKLOG_SETTINGS, backlog_path

ONE_TRY: Final[Mapping[str, Any]] = {"retry_total": 0}
"""For probes and for the syphon, which have a rhythm of their own for trying again."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What is in a backlog queue."""

    path: str
    waiting: int
    dead_lettered: int


class Administration(Protocol):
    """Entities of a namespace. It blocks; asyncio calls it in a thread."""

    def ensure_queue(self, path: str) -> bool:
        """Make a backlog queue. One that is there is left as it is (N2): then False."""
        ...

    def depth(self, path: str) -> Depth: ...


@dataclass(frozen=True, slots=True)
class Namespace:
    """One side of a pair. Only what is used has to be there: `connect` for the blocking half,
    `connect_async` for asyncio and for the syphon, `administration` to make backlog queues."""

    name: str
    """First part of the names of the backlog queues, if this is the primary."""
    connect: Callable[..., ServiceBusClient] | None = None
    """Makes a client; the arguments are those of `ServiceBusClient`, to lay over one's own."""
    connect_async: Callable[..., AsyncServiceBusClient] | None = None
    administration: Administration | None = None
    """None: the backlog queues are there, made by somebody else."""

    @classmethod
    def of(cls, given: str | Namespace, options: Mapping[str, Any]) -> Namespace:
        """`given` itself, or what a connection string says; `options` are for its clients."""
        if isinstance(given, Namespace):
            return given
        target = ConnectionString.parse(given)
        if target.entity_path is not None:
            raise ArgumentError(
                "A pair is of whole namespaces: take EntityPath out of the connection string."
            )

        ca_file = options.get("connection_verify")

        def settings(more: Mapping[str, Any]) -> dict[str, Any]:
            return {"ssl_context": _tls(ca_file, target.uses_tls), **options, **more}

        def connect(**more: Any) -> ServiceBusClient:
            return ServiceBusClient.from_connection_string(given, **settings(more))

        def connect_async(**more: Any) -> AsyncServiceBusClient:
            return AsyncServiceBusClient.from_connection_string(given, **settings(more))

        name = target.host.partition(".")[0]
        return cls(name, connect, connect_async, _OverHttp(given, ca_file))

    def client(self, **more: Any) -> ServiceBusClient:
        if self.connect is None:
            raise ValueError(f"'{self.name}' has no way to connect without asyncio.")
        return self.connect(**more)

    def async_client(self, **more: Any) -> AsyncServiceBusClient:
        if self.connect_async is None:
            raise ValueError(f"'{self.name}' has no way to connect with asyncio.")
        return self.connect_async(**more)


@cache
def _tls(ca_file: str | None, is_used: bool) -> ssl.SSLContext:
    """One for all connections: the SDK would read all certificates again for each of them, also for
    those without TLS, and nothing else happens in the process meanwhile (some 20 ms)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if is_used:
        context.load_verify_locations(ca_file or certifi.where())
    return context


def ensure_backlog(namespace: Namespace, primary_name: str, count: int) -> list[str]:
    """Make the backlog queues that are not there; their names. It blocks."""
    made: list[str] = []
    if namespace.administration is not None:
        for index in range(count):
            path = backlog_path(primary_name, index)
            if namespace.administration.ensure_queue(path):
                made.append(path)
    return made


class _OverHttp:
    """Tandem's own client: it also speaks plain HTTP, which the SDK's administration does not."""

    def __init__(self, connection_string: str, ca_file: str | None) -> None:
        self._connection_string = connection_string
        self._ca_file = ca_file

    def _entities(self) -> Entities:
        return Client(self._connection_string, ca_file=self._ca_file).entities

    def ensure_queue(self, path: str) -> bool:
        entities = self._entities()
        try:
            entities.get_queue(path)
        except EntityNotFoundError:
            try:
                entities.create_queue(path, **BACKLOG_SETTINGS)
            except EntityExistsError:  # another process of the pair was faster
                return False
            return True
        return False

    def depth(self, path: str) -> Depth:
        counts = self._entities().get_queue(path).counts
        return Depth(
            path, counts.get("ActiveMessageCount", 0), counts.get("DeadLetterMessageCount", 0)
        )


class AzureAdministration:
    """The SDK's administration client, for those who have one with a credential of their own."""

    def __init__(self, client: ServiceBusAdministrationClient) -> None:
        self._client = client

    def ensure_queue(self, path: str) -> bool:
        try:
            self._client.get_queue(path)
        except ResourceNotFoundError:
            try:
                self._client.create_queue(
                    path,
                    lock_duration=str(BACKLOG_SETTINGS["LockDuration"]),
                    max_size_in_megabytes=int(BACKLOG_SETTINGS["MaxSizeInMegabytes"]),
                    default_message_time_to_live=str(BACKLOG_SETTINGS["DefaultMessageTimeToLive"]),
                    dead_lettering_on_message_expiration=True,
                    max_delivery_count=int(BACKLOG_SETTINGS["MaxDeliveryCount"]),
                    enable_batched_operations=True,
                    auto_delete_on_idle=str(BACKLOG_SETTINGS["AutoDeleteOnIdle"]),
                )
            except ResourceExistsError:
                return False
            return True
        return False

    def depth(self, path: str) -> Depth:
        found = self._client.get_queue_runtime_properties(path)
        return Depth(path, found.active_message_count or 0, found.dead_letter_message_count or 0)
