"""A broker with policies of every kind, and the roles that come to it.

One real listener on a free port, a real engine in memory, a clock that stands still unless it is
moved. Entities are made for each try, with rules of their own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tandembus.admin.api import AdminApi
from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.clock import ManualClock
from tandembus.core import commands as c
from tandembus.core.access import Claims, Policy, Right, Secret
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.core.sas import sign
from tandembus.server.broker import Broker
from tandembus.server.listener import Listener
from tandembus.server.namespaces import Directory
from tandembus.settings import AccessRight, AuthorizationRule, QueueSettings, TopicSettings
from tandembus.store.memory import MemoryStore
from tests.unit.server.visitor import Refusal, Visitor

LIFE_S = 30
PAYLOAD = encode_message(body=b"x", message_id="m")
OF_SESSION = encode_message(body=b"x", message_id="m", session_id="one")
OTHER = "other"


def key_of(policy: str) -> str:
    return f"the key of {policy}".ljust(32, ".")


NAMESPACE = {
    "send": Right.SEND,
    "listen": Right.LISTEN,
    "both": Right.SEND | Right.LISTEN,
    "manage": Right.MANAGE,
    "root": Right.ALL,
}
ENTITY = {
    "here-send": (AccessRight.SEND,),
    "here-listen": (AccessRight.LISTEN,),
    "here-manage": (AccessRight.MANAGE, AccessRight.SEND, AccessRight.LISTEN),
}


@dataclass(frozen=True)
class Role:
    """Somebody with the key of a policy, or with none."""

    name: str
    policy: str | None = None
    is_expired: bool = False
    is_elsewhere: bool = False
    """Its policy is one of another entity."""


ROLES = (
    Role("nobody"),
    Role("expired", "root", is_expired=True),
    Role("Send", "send"),
    Role("Listen", "listen"),
    Role("Send+Listen", "both"),
    Role("Manage", "manage"),
    Role("root", "root"),
    Role("Send here", "here-send"),
    Role("Listen here", "here-listen"),
    Role("Manage here", "here-manage"),
    Role("Manage elsewhere", "elsewhere-manage", is_elsewhere=True),
)
"""*here*: by a rule of the entity that the command is about; *elsewhere*: of another one."""


class _Holder:
    """A link of the broker's own."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def on_effect(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self.deliveries += effect.deliveries

    def hang_up(self) -> None: ...


class World:
    def __init__(self, broker: Broker, clock: ManualClock, port: int) -> None:
        self.broker = broker
        self.clock = clock
        self.port = port
        self.seen: set[type[object]] = set()
        """Kinds of commands that the engine was given in somebody's name."""
        self._count = 0
        self._visitors: list[Visitor] = []
        engine = broker.engine
        submit = engine.submit

        def recording(command: c.Command, done: Any, claims: Claims | None = None) -> None:
            if claims is not None:
                self.seen.add(type(command))
            submit(command, done, claims)

        engine.submit = recording  # type: ignore[method-assign]

    # --- entities ---------------------------------------------------------------------------------

    async def do(self, command: c.Command) -> Any:
        """By the broker itself, which asks nobody."""
        return await self.broker.engine.execute(command)

    def new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    async def queue(self, **settings: Any) -> str:
        path = self.new_name("q")
        await self.do(
            c.CreateQueue(path, QueueSettings(authorization_rules=entity_rules(), **settings))
        )
        return path

    async def topic(self) -> tuple[str, str]:
        """A topic, and its subscription."""
        path = self.new_name("t")
        await self.do(c.CreateTopic(path, TopicSettings(authorization_rules=entity_rules())))
        await self.do(c.CreateSubscription(path, "s"))
        return path, f"{path}/Subscriptions/s"

    async def fill(self, path: str, payload: bytes = PAYLOAD) -> int:
        """One message; its number."""
        (number,) = await self.do(c.Send(path, [AmqpMessage(payload)]))
        return int(number)

    async def locked(self, path: str) -> bytes:
        """One message, locked by somebody; its token."""
        await self.fill(path)
        holder = _Holder()
        link = self.broker.register(holder)
        await self.do(c.Attach(link, path))
        await self.do(c.Flow(link, 1, self.clock.random_bits(64)))
        while not holder.deliveries:
            await asyncio.sleep(0)
        token = holder.deliveries[0].token
        assert token is not None
        return token

    async def deferred(self, path: str) -> int:
        token = await self.locked(path)
        await self.do(c.Settle(path, (token,), c.Disposition.DEFER))
        (found,) = await self.do(c.Browse(path))
        return int(found.sequence_number)

    # --- roles ------------------------------------------------------------------------------------

    def token(self, role: Role, path: str) -> str:
        assert role.policy is not None
        expires_s = self.clock.now_ms() // 1000 + LIFE_S
        return sign(f"sb://localhost/{path}", role.policy, key_of(role.policy), expires_s)

    def jwt(self, role: Role) -> str:
        assert role.policy is not None
        return signed_jwt(
            key_of(role.policy),
            {"aud": "https://servicebus.azure.net", "exp": self.clock.now_ms() // 1000 + LIFE_S},
            kid=role.policy,
        )

    def claims(self, role: Role, path: str) -> Claims:
        """What the role can prove at best."""
        claims = Claims()
        if role.policy is not None:
            where = OTHER if role.is_elsewhere else path
            text = self.token(role, where)
            claims.add(
                self.broker.authority.grant(text, f"sb://localhost/{where}", self.clock.now_ms())
            )
        self.expire(role)
        return claims

    async def visit(
        self, role: Role, path: str, *, by: str = "sas", is_expired: bool = True
    ) -> Visitor:
        """The role's connection, with its token put for `path`; an expired one runs out now, unless
        `is_expired` is False: then by `expire`."""
        if by == "plain":
            assert role.policy is not None
            return await self.come(role.policy, key_of(role.policy))
        visitor = await self.come()
        if role.policy is not None:
            where = OTHER if role.is_elsewhere else path
            token = self.jwt(role) if by == "jwt" else self.token(role, where)
            await visitor.put_token(token, f"sb://localhost/{where}")
        if is_expired:
            self.expire(role)
        return visitor

    async def come(self, username: str | None = None, password: str = "") -> Visitor:
        visitor = Visitor(self.port, username, password)
        self._visitors.append(visitor)
        return await visitor.come()

    async def see_off(self) -> None:
        """Whoever has come leaves."""
        for visitor in self._visitors:
            await visitor.leave()
        self._visitors.clear()

    def expire(self, role: Role) -> None:
        if role.is_expired:
            self.clock.advance(LIFE_S * 1000)

    async def http(self, role: Role, method: str, path: str, body: str = "", **headers: str) -> str:
        """The body of the response; Refusal if it is none of success."""
        lines = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}
        lines |= {name.replace("_", "-"): text for name, text in headers.items()}
        if role.policy is not None:
            lines["Authorization"] = self.token(role, "")
        self.expire(role)
        head = "".join(f"{name}: {text}\r\n" for name, text in lines.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} /{path} HTTP/1.1\r\n{head}\r\n{body}".encode())
        answer = (await reader.read()).decode()
        writer.close()
        await writer.wait_closed()
        status = answer.split(" ", 2)[1]
        if not status.startswith("2"):
            raise Refusal(status, answer)
        return answer


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    failures: list[Exception] = []
    clock = ManualClock()
    policies = tuple(
        Policy(name, rights, Secret(key_of(name)), Secret(key_of(f"{name}, the second")))
        for name, rights in NAMESPACE.items()
    )
    broker = await Broker.open(
        "tests", MemoryStore(), policies=policies, on_failure=failures.append, clock=clock
    )
    await broker.engine.execute(
        c.CreateQueue(OTHER, QueueSettings(authorization_rules=entity_rules("elsewhere")))
    )
    listener = Listener(Directory.of(broker, AdminApi(broker).handle))
    port = await listener.bind("127.0.0.1", 0)
    try:
        yield World(broker, clock, port)
    finally:
        await listener.close()
        await broker.close()
    assert not failures


def entity_rules(where: str = "here") -> tuple[AuthorizationRule, ...]:
    return tuple(
        entity_rule(name.replace("here", where), rights) for name, rights in ENTITY.items()
    )


def entity_rule(
    name: str, rights: Sequence[AccessRight], key: str | None = None
) -> AuthorizationRule:
    second = Secret(key_of(f"{name}, the second"))
    return AuthorizationRule(name, tuple(rights), Secret(key or key_of(name)), second)


def signed_jwt(secret: str, claims: dict[str, Any], **header: Any) -> str:
    """A token signed with HS256."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", **header}, claims)]
    text = ".".join(encoded(part) for part in parts)
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{encoded(digest)}"


def encoded(data: bytes) -> str:
    """In base64url, as JWTs are."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
