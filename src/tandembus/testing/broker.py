"""What every broker of a test can be asked: where it is, to make entities, to move its clock.

How it runs is `process` (a process of its own) and `local` (a thread of this one); a test can use
either. What is asked goes over the wire, as a user's would.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from types import TracebackType
from typing import Final, Self

from tandembus.atom import description_elements
from tandembus.core.sas import sign

ROOT: Final = "RootManageSharedAccessKey"
PATIENCE_S: Final = 60
_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{0} '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{1}'
    "</{0}></content></entry>"
)


class BrokerClock:
    """The time of a test's broker: the real one, and what was added to it.

    `advance` returns when all that has become due has happened: locks have run out, messages have
    expired, scheduled ones are there. What the clients measure themselves (time-outs, tokens) goes
    by the real time.
    """

    def __init__(self, move: Callable[[int], int]) -> None:
        self._move = move

    def advance(
        self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> datetime:
        """Let so much time pass at once; the broker's time after that."""
        passed = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
        ms = round(passed / timedelta(milliseconds=1))
        if ms < 0:
            raise ValueError("time does not run backwards")
        return datetime.fromtimestamp(self._move(ms) / 1000, UTC)

    def now(self) -> datetime:
        """The broker's time, with its zone."""
        return self.advance()


class TestBroker(ABC):
    """A running broker on a free port. As a context it stops at the end."""

    __test__ = False  # for pytest, which would take it for a class of tests

    connection_string: str
    """With the right to do everything."""

    @property
    @abstractmethod
    def clock(self) -> BrokerClock:
        """To move its time."""

    @abstractmethod
    def stop(self) -> object:
        """Cleanly; twice does no harm."""

    @abstractmethod
    def restart(self) -> None:
        """Again with what it has kept, after `stop`. The port may be another one."""

    # --- where it is ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """`localhost:PORT`, for AMQP, WebSocket and HTTP alike."""
        return self._field("Endpoint").removeprefix("sb://")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def key(self) -> str:
        return self._field("SharedAccessKey")

    def _field(self, name: str) -> str:
        fields = dict(part.split("=", 1) for part in self.connection_string.strip(";").split(";"))
        return fields[name]

    @abstractmethod
    def reset(self, *, keep_entities: bool = False) -> None:
        """At once as if it were new: no entities, no messages; or with the same entities, all of
        them empty. The clock stays as it is. Clients that have links open are told that their
        entity is gone."""

    # --- its entities -----------------------------------------------------------------------------

    def create_queue(self, name: str, **settings: str | int | bool) -> None:
        """`settings` are the elements of Azure's QueueDescription, and Tandem's own:
        `RequiresSession=True`, `PriorityLevels=3`."""
        self.put(name, "QueueDescription", settings)

    def create_topic(self, name: str, **settings: str | int | bool) -> None:
        self.put(name, "TopicDescription", settings)

    def create_subscription(self, topic: str, name: str, **settings: str | int | bool) -> None:
        self.put(f"{topic}/Subscriptions/{name}", "SubscriptionDescription", settings)

    def put(self, path: str, kind: str, settings: Mapping[str, str | int | bool]) -> None:
        """Over plain HTTP, which the SDK's administration client cannot."""
        body = _ENTRY.format(kind, description_elements(settings)).encode()
        self._request("PUT", f"{path}?api-version=2021-05", body, "application/atom+xml")

    def _request(self, method: str, target: str, body: bytes, content_type: str) -> bytes:
        token = sign(f"http://{self.address}", ROOT, self.key, int(time.time()) + 600)
        headers = {"Authorization": token, "Content-Type": content_type}
        connection = HTTPConnection(self.address, timeout=PATIENCE_S)
        try:
            connection.request(method, f"/{target}", body, headers)
            response = connection.getresponse()
            data = response.read()
            if response.status not in (200, 201):
                raise RuntimeError(f"{target}: {response.status} {data.decode()}")
            return data
        finally:
            connection.close()

    def _move_remotely(self, ms: int) -> int:
        body = json.dumps({"advance_ms": ms}).encode()
        now_ms = json.loads(self._request("POST", "$test/clock", body, "application/json"))
        return int(now_ms["now_ms"])

    def _reset_remotely(self, keep_entities: bool) -> None:
        body = json.dumps({"keep_entities": keep_entities}).encode()
        self._request("POST", "$test/reset", body, "application/json")

    # --- its end ----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Stop, and remove what was its own."""
