"""One namespace as the edges see it: the engine, who may do what, and which link is whose.

Every command of every connection passes through here, with the claims of its peer. Effects come
back by the number of their link and are handed to the link's owner. The rule: when a key has gone
or an entity's rules are others, every connection looks at its claims again before whoever did it is
told that it is done.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from tandembus.amqp.message import AmqpMessage
from tandembus.clock import NS_PER_MS, Clock, MovableClock, SystemClock
from tandembus.core.access import Authority, Claims, Grant, Policy, everything, path_of
from tandembus.core.commands import Command, CreateQueue, CreateTopic, DeleteEntity, UpdateEntity
from tandembus.core.effects import Deliver, Effect, Load
from tandembus.core.jwt import JwtTrust
from tandembus.core.namespace import Namespace
from tandembus.engine.aio import AsyncEngine
from tandembus.engine.engine import Done, Tuning
from tandembus.errors import Refused, StoreError, TandemError, UnauthorizedError
from tandembus.model import Millis
from tandembus.names import SUBSCRIPTIONS, split
from tandembus.server.cbs import AnyJwt, JwtVerifier
from tandembus.server.moving import PatientAuthority
from tandembus.server.turns import Turns
from tandembus.store.api import Store

log = logging.getLogger("tandembus.server")

BEARER: Final = "Bearer "
_MAKES_RULES: Final = (CreateQueue, CreateTopic, UpdateEntity, DeleteEntity)
"""After these an entity's policies may be others: also a new entity by an old name."""
_MAX_LOGIN_ENTITIES: Final = 1_000
"""Entities whose rules share one name and one key, for which a login with both counts."""


class LinkOwner(Protocol):
    def on_effect(self, effect: Effect) -> None: ...
    def hang_up(self) -> None:
        """End its connection, because it could not be told."""
        ...


class ClaimsHolder(Protocol):
    def review(self) -> None:
        """Let go of what the claims do not allow any more."""
        ...


class Broker:
    """Use `open`."""

    def __init__(
        self,
        name: str,
        policies: tuple[Policy, ...] | None,
        trust: JwtTrust | None,
        clock: Clock,
        turns: Turns | None = None,
    ) -> None:
        self.name = name
        self.clock = clock
        self.is_open = policies is None
        """Whether everybody may do everything: a development broker that was asked to be so."""
        if isinstance(clock, MovableClock):
            self.authority: Authority = PatientAuthority(
                policies or (), self._policies_of, trust, clock=clock
            )
        else:
            self.authority = Authority(policies or (), self._policies_of, trust)
        self.jwt: JwtVerifier = AnyJwt() if self.is_open else self.authority
        self.holders: set[ClaimsHolder] = set()
        """Connections that have claims."""
        self.turns = turns or Turns(lambda: self.engine.engine.is_writing)
        self._loop = asyncio.get_running_loop()
        self._writers: list[Callable[[], None]] = []
        self._is_answering = False
        self._owners: dict[int, LinkOwner] = {}
        self._next_link = 0
        self.unfinished_bytes = 0
        """Of large messages that have not come as a whole, over all connections."""
        self.unproven_transactions = 0
        """Those that are open, and were declared by connections that had shown no token."""
        self.refusals: Counter[str] = Counter()
        """What peers were refused, by AMQP condition."""
        self.engine: AsyncEngine

    @classmethod
    async def open(
        cls,
        name: str,
        store: Store,
        *,
        policies: tuple[Policy, ...] | None = None,
        trust: JwtTrust | None = None,
        on_failure: Callable[[StoreError], None],
        clock: Clock | None = None,
        tuning: Tuning | None = None,
        turns: Turns | None = None,
    ) -> Broker:
        """Recover the namespace and be ready. `policies` None: everybody may do everything; an
        empty tuple: nobody anything. `trust`: whose JWTs count beside those of the policies.
        `turns`: shared with the other namespaces of the loop."""
        broker = cls(name, policies, trust, clock or SystemClock(), turns)
        broker.engine = await AsyncEngine.open(
            store,
            decode=AmqpMessage,
            on_effect=broker._on_effect,
            on_failure=on_failure,
            on_fault=broker._on_fault,
            clock=broker.clock,
            tuning=tuning,
        )
        broker.engine.answering = broker._answering
        return broker

    async def close(self) -> None:
        await self.engine.close()

    @property
    def namespace(self) -> Namespace:
        return self.engine.engine.namespace

    def now_ms(self) -> Millis:
        return self.clock.now_ms()

    def steady_ms(self) -> Millis:
        """For the time-outs of connections: no test, and no time server, moves this one."""
        return self.clock.stopwatch_ns() // NS_PER_MS

    def new_claims(self) -> Claims:
        """What a peer has before it has proven anything."""
        return everything() if self.is_open else Claims()

    def new_tracking_id(self) -> str:
        return str(uuid.UUID(int=self.clock.random_bits(128)))

    def submit(self, command: Command, claims: Claims, done: Done) -> None:
        self.engine.submit(command, done, claims)

    async def execute(self, command: Command, claims: Claims) -> Any:
        if not isinstance(command, _MAKES_RULES):
            return await self.engine.execute(command, claims)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(reply: Any) -> None:
            # Here, and not after the wait below: whoever asked may have gone meanwhile.
            if not isinstance(reply, TandemError):
                self.review()
            if not answered.done():
                answered.set_result(reply)

        self.engine.submit(command, done, claims)
        reply = await answered
        if isinstance(reply, TandemError):
            raise reply
        return reply

    # --- who may do what --------------------------------------------------------------------------

    def authorize(self, header: str | None, resource: str) -> Claims:
        """The claims of an HTTP request. Raises UnauthorizedError."""
        claims = self.new_claims()
        if self.is_open:
            return claims
        if header is None:
            raise UnauthorizedError("MissingToken: The authorization header was not found.")
        now = self.now_ms()
        if header[: len(BEARER)].lower() == BEARER.lower():
            claims.add(self.jwt.verify(header[len(BEARER) :].strip(), path_of(resource), now))
        else:
            claims.add(self.authority.grant(header, resource, now))
        return claims

    def login(self, name: str, key: str) -> list[Grant]:
        """What the name and key of a policy allow (SASL PLAIN); empty: they prove nothing."""
        return self.authority.login(name, key, self._entities_with(name))

    def replace_policies(self, policies: tuple[Policy, ...], trust: JwtTrust | None) -> None:
        """Other keys of the namespace from now on; what rested on the old ones ends."""
        assert not self.is_open, "an open broker has no keys"
        self.authority.replace(policies, trust)
        self.review()

    def review(self) -> None:
        """Every connection looks at its claims again."""
        for holder in list(self.holders):
            holder.review()

    def _entities_with(self, policy_name: str) -> Iterator[str]:
        found = 0
        for entity in self.namespace.entities:
            rules = getattr(entity.settings, "authorization_rules", ())
            if found < _MAX_LOGIN_ENTITIES and any(rule.name == policy_name for rule in rules):
                found += 1
                yield entity.path

    def _policies_of(self, path: str) -> list[Policy]:
        """The policies of the queue or topic that a path belongs to, down to a topic's rules."""
        # No entity has the word in its own name, but as the first segment (`names`).
        above = f"{path}/".partition(f"/{SUBSCRIPTIONS}/")[0].rstrip("/")
        try:
            entity = split(above).entity
            settings = self.namespace.find(entity).settings
        except Refused:
            return []
        rules = getattr(settings, "authorization_rules", ())
        return [Policy.of(rule) for rule in rules]

    # --- writing ----------------------------------------------------------------------------------

    def write_soon(self, write: Callable[[], None]) -> None:
        """Once what is being answered is answered: what piles up meanwhile is written at once."""
        self._writers.append(write)
        if not self._is_answering and len(self._writers) == 1:
            self._loop.call_soon(self._write)

    def _answering(self, is_answering: bool) -> None:
        self._is_answering = is_answering
        if not is_answering:
            self._write()

    def _write(self) -> None:
        writers, self._writers = self._writers, []
        for write in writers:
            write()

    # --- links ------------------------------------------------------------------------------------

    def register(self, owner: LinkOwner) -> int:
        """A number for a new link."""
        number = self.new_number()
        self._owners[number] = owner
        return number

    def new_number(self) -> int:
        """Unique in this life of the broker."""
        self._next_link += 1
        return self._next_link

    def unregister(self, number: int) -> None:
        self._owners.pop(number, None)

    def _on_fault(self, fault: Exception) -> None:
        """An answer or a delivery of one peer failed: a bug, which is no reason to stop here."""
        log.error("An answer or a delivery failed: %r", fault, exc_info=fault)

    def _on_effect(self, effect: Effect) -> None:
        assert not isinstance(effect, Load), "the engine answers these itself"
        owner = self._owners.get(effect.link)
        if owner is not None:
            try:
                owner.on_effect(effect)
            except Exception:
                owner.hang_up()  # its peer could not be told: it connects again, and is
                raise
        elif isinstance(effect, Deliver):
            # Its connection went in this very turn. The locks run out by themselves.
            log.debug("%d messages for a link that is gone", len(effect.deliveries))
