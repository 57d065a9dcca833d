"""What the console needs of the namespaces that it shows, and words that its parts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tandembus.core.access import Claims, Grant, Right, path_of
from tandembus.core.commands import Command
from tandembus.core.effects import Delivery
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.engine.aio import AsyncEngine
from tandembus.errors import ArgumentError
from tandembus.model import Millis

Json: TypeAlias = Mapping[str, Any]


class Broker(Protocol):
    name: str
    engine: AsyncEngine

    @property
    def namespace(self) -> Namespace: ...
    def now_ms(self) -> Millis: ...
    async def execute(self, command: Command, claims: Claims) -> Any: ...
    def login(self, name: str, key: str) -> list[Grant]: ...
    def authorize(self, header: str | None, resource: str) -> Claims: ...


Render: TypeAlias = Callable[[Broker, str, Delivery, bool], tuple[bytes, int]]
"""A message of a path as a receiver would get it. Raises KeyError if it has gone."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of somebody who is signed in."""

    broker: Broker
    claims: Claims
    said: Json
    """The body, or the query."""

    async def execute(self, command: Command) -> Any:
        return await self.broker.execute(command, self.claims)

    def may(self, path: str, right: Right) -> bool:
        return self.claims.allows(path_of(path), right, self.broker.now_ms())

    def sees(self, path: str) -> bool:
        return self.claims.allows_some(path_of(path), self.broker.now_ms())

    def text(self, name: str, default: str | None = None) -> str:
        value = self.said.get(name, default)
        if not isinstance(value, str):
            raise ArgumentError(f"'{name}' is missing, or no text.")
        return value

    def integer(self, name: str, default: int, most: int) -> int:
        value = self.said.get(name, default)
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ArgumentError(f"'{name}' is no number.") from None
        return max(0, min(number, most))

    def numbers(self, name: str = "numbers") -> list[int]:
        """Sequence numbers, which come as text: JavaScript has no 64 bits."""
        value = self.said.get(name)
        try:
            if isinstance(value, list):
                return [int(each) for each in value]
        except (TypeError, ValueError):
            pass
        raise ArgumentError(f"'{name}' is a list of sequence numbers.")

    def queue(self, name: str = "path") -> Queue:
        """The entity that is meant. Raises EntityNotFoundError."""
        path = self.text(name)
        if not self.sees(path):
            raise ArgumentError(f"There is no '{path}' here for this key.")
        return self.broker.namespace.find(path)
