"""A broker behind a desk: a real engine in memory, and requests and replies as the SDKs write and
read them. Links and frames are not part of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    VALUE,
    AmqpMessage,
    edited,
    sections,
    without_body,
)
from tandembus.amqp.performatives import DeliveryState, TransactionalState
from tandembus.amqp.types import (
    NULL,
    Array,
    Int,
    Long,
    decode,
    encode,
    encode_composite,
    encode_described,
    encode_map,
    encode_symbol,
)
from tandembus.changes import Mode, decode_edits
from tandembus.clock import ManualClock
from tandembus.core.access import Claims, everything
from tandembus.core.commands import Attach, Command, CreateQueue, Flow, Send
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.core.namespace import Namespace
from tandembus.core.state import State
from tandembus.engine.aio import AsyncEngine
from tandembus.errors import TandemError
from tandembus.model import LargePayload, Message, Millis, Payload, Timestamp
from tandembus.server import management
from tandembus.server.requests import parse_request
from tandembus.server.stored import PieceReader, Stream, as_bytes
from tandembus.server.turns import Turns
from tandembus.settings import QueueSettings
from tandembus.store.memory import MemoryStore

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
_SHOWN = {State.DEFERRED: 1, State.DEFERRED_LOCKED: 1, State.SCHEDULED: 2}


def encode_request(
    operation: str | None,
    body: object = None,
    *,
    message_id: object = ID,
    reply_to: str | None = "q/$management",
    **properties: Any,
) -> bytes:
    """A request as rhea writes it; names of properties are given with _ for -."""
    fields = [NULL] * 5
    fields[0] = encode(message_id)
    fields[4] = encode(reply_to)
    said = {"operation": operation, **{k.replace("_", "-"): v for k, v in properties.items()}}
    message = encode_composite(PROPERTIES, fields)
    message += encode_described(APPLICATION_PROPERTIES, encode(said))
    return message if body is None else message + encode_described(VALUE, encode(body))


def sdk_request(
    operation: str, body: Mapping[str, object], *, link: str | None = None
) -> tuple[bytes, UUID]:
    """A request as azure-servicebus writes it, and its message id."""
    transport = pytest.importorskip("azure.servicebus._transport._pyamqp_transport")
    encoder = pytest.importorskip("azure.servicebus._pyamqp._encode")
    utils = pytest.importorskip("azure.servicebus._pyamqp.utils")
    pyamqp = transport.PyamqpTransport
    properties = {"com.microsoft:server-timeout": pyamqp.AMQP_UINT_VALUE(60_000)}
    if link is not None:
        properties["associated-link-name"] = link
    message = pyamqp.create_mgmt_msg(
        message=body, application_properties=properties, config=None, reply_to="q/$management"
    )
    message.application_properties["operation"] = utils.amqp_string_value(operation)
    message.application_properties["type"] = utils.amqp_string_value(b"entity-mgmt")
    message = message._replace(properties=message.properties._replace(message_id=ID))
    return bytes(encoder.encode_payload(bytearray(), message)), ID


class Reply:
    """A reply, taken apart by our decoder, with every AMQP type as it was."""

    def __init__(self, reply: bytes | Stream) -> None:
        self.payload = payload = as_bytes(reply)
        found: dict[int, Any] = {}
        for code, start, _ in sections(payload):
            assert payload[start : start + 3] == bytes((0, 0x53, code)), (
                "the only form Python reads"
            )
            found[code], _ = decode(payload, start + 3, typed=True)
        self.fields = found[PROPERTIES]
        self.said = found[APPLICATION_PROPERTIES]
        self.has_body = VALUE in found
        self.body: Any = found.get(VALUE)
        self.correlation_id = (self.fields + [None] * 6)[5]

    @property
    def status(self) -> int:
        status = self.said.get("statusCode", self.said.get("status-code"))
        assert type(status) is Int
        return int(status)

    @property
    def condition(self) -> str | None:
        found = self.said.get("errorCondition")
        return None if found is None else str(found)

    @property
    def description(self) -> str:
        return str(self.said.get("statusDescription", self.said.get("status-description")))

    @property
    def sdk(self) -> Any:
        """The same, decoded by azure-servicebus."""
        decoder = pytest.importorskip("azure.servicebus._pyamqp._decode")
        return decoder.decode_payload(memoryview(self.payload))

    def handled(self, name: str, **more: Any) -> Any:
        """What azure-servicebus makes of it."""
        handlers = pytest.importorskip("azure.servicebus._common.mgmt_handlers")
        transport = pytest.importorskip("azure.servicebus._transport._pyamqp_transport")
        message = self.sdk
        return getattr(handlers, name)(
            message.application_properties[b"statusCode"],
            message,
            message.application_properties[b"statusDescription"],
            amqp_transport=transport.PyamqpTransport,
            **more,
        )


def full_name(operation: str) -> str:
    """Azure's operations are named without their prefix; Tandem's own with it."""
    return operation if ":" in operation else f"com.microsoft:{operation}"


class Desk:
    """The broker of `management`, for one connection."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.claims = everything()
        self.effects: list[Effect] = []
        self.links: dict[str, int] = {}
        self.stalls = False
        self.refusals: list[str] = []
        self.turns = Turns()
        self.engine: AsyncEngine

    async def open(self) -> Desk:
        self.engine = await AsyncEngine.open(
            MemoryStore(),
            decode=AmqpMessage,
            on_effect=self.effects.append,
            on_failure=lambda error: pytest.fail(str(error)),
            clock=self.clock,
        )
        return self

    # --- what management asks for -----------------------------------------------------------------

    @property
    def namespace(self) -> Namespace:
        return self.engine.engine.namespace

    async def execute(self, command: Command, claims: Claims) -> Any:
        if self.stalls:
            await asyncio.Event().wait()
        return await self.engine.execute(command, claims)

    def render(self, path: str, delivery: Delivery, *, is_whole: bool = True) -> bytes | Stream:
        payload = edited(self.engine.body(delivery.body), decode_edits(delivery.edits))
        marks: dict[str, object] = {
            "x-opt-sequence-number": Long(delivery.sequence_number),
            "x-opt-enqueued-time": Timestamp(delivery.enqueued_ms),
        }
        if delivery.token is not None:
            marks["x-opt-locked-until"] = Timestamp(delivery.locked_until_ms)
        marks["x-opt-message-state"] = Int(_SHOWN.get(delivery.state, 0))
        pairs = [part for k, v in marks.items() for part in (encode_symbol(k), encode(v))]
        rest = [
            payload[start:end]
            for code, start, end in sections(payload)
            if code != MESSAGE_ANNOTATIONS
        ]
        message = encode_described(MESSAGE_ANNOTATIONS, encode_map(pairs)) + b"".join(rest)
        return message if is_whole else without_body(message)

    def incoming(self, payload: bytes, message_format: int) -> list[Message]:
        assert message_format == 0
        message = AmqpMessage(payload)
        message.check()
        return [message]

    def link_named(self, name: str) -> int | None:
        return self.links.get(name)

    def transaction_of(self, state: DeliveryState | None) -> int | None:
        """Every number is taken for one of this connection's."""
        if isinstance(state, TransactionalState):
            return int.from_bytes(state.txn_id, "big")
        return None

    def spoil(self, state: DeliveryState | None, refusal: TandemError) -> None:
        """Nobody here asks whether a transaction can be committed."""

    def sender_of(self, path: str, claims: Claims) -> str:
        return "somebody"

    def stored(self, numbers: Sequence[int]) -> dict[int, Payload]:
        return self.engine.engine.stored(numbers)

    def stream_of(self, body: int, payload: LargePayload, head: Sequence[bytes]) -> Stream:
        return Stream([*head, PieceReader(self.engine.engine, body, payload)])

    def refused(self, condition: str) -> None:
        self.refusals.append(condition)

    def random_bits(self, count: int) -> int:
        return self.clock.random_bits(count)

    def now_ms(self) -> Millis:
        return self.clock.now_ms()

    # --- what a test does -------------------------------------------------------------------------

    async def do(self, command: Command) -> Any:
        return await self.engine.execute(command, everything())

    async def queue(self, path: str = "q", **settings: Any) -> None:
        await self.do(CreateQueue(path, QueueSettings(**settings)))

    async def send(self, *payloads: bytes, path: str = "q") -> Sequence[int]:
        messages = [AmqpMessage(payload) for payload in payloads]
        return [int(number) for number in await self.do(Send(path, messages))]

    async def receive(
        self, count: int, path: str = "q", *, link: int = 1, session: str | None = None
    ) -> list[Delivery]:
        """Locked deliveries, over a link that is opened for it."""
        await self.do(Attach(link, path, Mode.PEEK_LOCK, session))
        await self.do(Flow(link, count, self.random_bits(64)))
        while (found := sum(len(e.deliveries) for e in self.effects if isinstance(e, Deliver))) < (
            count
        ):
            await asyncio.sleep(0)
        assert found == count
        taken = [d for e in self.effects if isinstance(e, Deliver) for d in e.deliveries]
        self.effects.clear()
        return taken

    async def ask(
        self, operation: str, body: object = None, *, path: str = "q", **properties: Any
    ) -> Reply:
        """By a request as rhea writes it."""
        return await self.raw(encode_request(full_name(operation), body, **properties), path=path)

    async def ask_as_sdk(
        self,
        operation: str,
        body: Mapping[str, object],
        *,
        path: str = "q",
        link: str | None = None,
    ) -> Reply:
        """By a request as azure-servicebus writes it."""
        payload, _ = sdk_request(f"com.microsoft:{operation}", body, link=link)
        return await self.raw(payload, path=path)

    async def raw(self, payload: bytes, *, path: str = "q") -> Reply:
        request = parse_request(payload)
        reply = Reply(await management.answer(request, path, self.claims, self))
        assert reply.correlation_id == request.message_id
        assert type(reply.correlation_id) is type(request.message_id)
        return reply


def run(scene: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        desk = await Desk().open()
        await asyncio.wait_for(scene(desk), 30)
        await desk.engine.close()

    asyncio.run(main())


def messages_of(reply: Reply) -> list[AmqpMessage]:
    return [AmqpMessage(each["message"]) for each in reply.body["messages"]]


def transport() -> Any:
    """How azure-servicebus makes the values of a request."""
    module = pytest.importorskip("azure.servicebus._transport._pyamqp_transport")
    return module.PyamqpTransport


def uuids(*items: UUID) -> Array:
    return Array(items, 0x98)


def longs(*items: int) -> Array:
    return Array(items, 0x81)


def token_of(delivery: Delivery) -> UUID:
    """As the client sees it."""
    assert delivery.token is not None
    return UUID(bytes_le=delivery.token)
