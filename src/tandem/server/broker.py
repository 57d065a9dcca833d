"""One namespace as the edges see it: the engine, who may do what, and which link is whose.

Every command of every connection passes through here, with the claims of its peer. Effects come
back by the number of their link and are handed to the link's owner.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any, Protocol

from tandem.amqp.message import AmqpMessage
from tandem.clock import Clock, SystemClock
from tandem.core.access import Authority, Claims, Policy, everything
from tandem.core.commands import Command
from tandem.core.effects import Deliver, Effect, Load
from tandem.core.namespace import Namespace
from tandem.engine.aio import AsyncEngine
from tandem.engine.engine import Done, Tuning
from tandem.errors import Refused, StoreError, UnauthorizedError
from tandem.model import Millis
from tandem.names import split
from tandem.server.cbs import AnyJwt, JwtVerifier
from tandem.store.api import Store

log = logging.getLogger("tandem.server")


class LinkOwner(Protocol):
    def on_effect(self, effect: Effect) -> None: ...


class Broker:
    """Use `open`."""

    def __init__(self, name: str, policies: tuple[Policy, ...], clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.is_open = not policies
        """Whether everybody may do everything: a development broker that was asked to be so."""
        self.authority = Authority(policies, self._policies_of)
        self.jwt: JwtVerifier | None = AnyJwt() if self.is_open else None
        self._owners: dict[int, LinkOwner] = {}
        self._next_link = 1
        self.engine: AsyncEngine

    @classmethod
    async def open(
        cls,
        name: str,
        store: Store,
        *,
        policies: tuple[Policy, ...] = (),
        on_failure: Callable[[StoreError], None],
        clock: Clock | None = None,
        tuning: Tuning | None = None,
    ) -> Broker:
        """Recover the namespace and be ready. Without policies everybody may do everything."""
        broker = cls(name, policies, clock or SystemClock())
        broker.engine = await AsyncEngine.open(
            store,
            decode=AmqpMessage,
            on_effect=broker._on_effect,
            on_failure=on_failure,
            clock=broker.clock,
            tuning=tuning,
        )
        return broker

    async def close(self) -> None:
        await self.engine.close()

    @property
    def namespace(self) -> Namespace:
        return self.engine.engine.namespace

    def now_ms(self) -> Millis:
        return self.clock.now_ms()

    def new_claims(self) -> Claims:
        """What a peer has before it has proven anything."""
        return everything() if self.is_open else Claims()

    def new_tracking_id(self) -> str:
        return str(uuid.UUID(int=self.clock.random_bits(128)))

    def submit(self, command: Command, claims: Claims, done: Done) -> None:
        self.engine.submit(command, done, claims)

    async def execute(self, command: Command, claims: Claims) -> Any:
        return await self.engine.execute(command, claims)

    def authorize(self, header: str | None, resource: str) -> Claims:
        """The claims of an HTTP request. Raises UnauthorizedError."""
        claims = self.new_claims()
        if self.is_open:
            return claims
        if header is None:
            raise UnauthorizedError("MissingToken: The authorization header was not found.")
        claims.add(self.authority.grant(header, resource, self.now_ms()))
        return claims

    def _policies_of(self, path: str) -> list[Policy]:
        """The policies of the queue or topic that a path belongs to."""
        try:
            entity = split(path).entity
            settings = self.namespace.find(entity).settings
        except Refused:
            return []
        rules = getattr(settings, "authorization_rules", ())
        return [Policy.of(rule) for rule in rules]

    # --- links ------------------------------------------------------------------------------------

    def register(self, owner: LinkOwner) -> int:
        """A number for a new link, unique in this life of the broker."""
        number = self._next_link
        self._next_link += 1
        self._owners[number] = owner
        return number

    def unregister(self, number: int) -> None:
        self._owners.pop(number, None)

    def _on_effect(self, effect: Effect) -> None:
        assert not isinstance(effect, Load), "the engine answers these itself"
        owner = self._owners.get(effect.link)
        if owner is not None:
            owner.on_effect(effect)
        elif isinstance(effect, Deliver):
            # Its connection went in this very turn. The locks run out by themselves.
            log.debug("%d messages for a link that is gone", len(effect.deliveries))
