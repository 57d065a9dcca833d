"""Requests to `$cbs` and to the `$management` of an entity, and their replies (WIRE.md §2, §7).

A pair of links, one to ask on and one to be answered on. What is asked is `operations`; here
requests wait for credit, and replies find whoever asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery, MessageReceived
from tandembus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, VALUE, sections
from tandembus.amqp.types import (
    NULL,
    decode,
    decode_descriptor,
    encode,
    encode_composite,
    encode_described,
    encode_string,
)
from tandembus.client.failures import failure, status_refusal, unknown
from tandembus.client.pending import Pending
from tandembus.errors import ProtocolError, TandemError
from tandembus.model import Millis

if TYPE_CHECKING:
    from tandembus.client.conversation import Conversation

CBS: Final = "$cbs"
_CREDIT: Final = 100


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    description: str
    condition: str | None
    body: Mapping[str, object]
    said: Mapping[str, object] = field(default_factory=dict)
    """Its application properties."""

    def check(self) -> Reply:
        """This reply, or the error that it tells."""
        if not 200 <= self.status < 300:
            raise status_refusal(self.status, self.condition, self.description, self.said)
        return self


class Node:
    """The pair of links to one node."""

    def __init__(self, conversation: Conversation, address: str) -> None:
        self.address = address
        self.is_gone = False
        self._conversation = conversation
        self._opened: Pending[None] = Pending()
        self._asked: dict[str, Pending[Reply]] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._sent: dict[bytes, str] = {}
        """Requests that the broker has not settled, by their tag."""
        name = conversation.new_name(address)
        session = conversation.session
        self._out = session.attach(
            f"{name}-out",
            is_sender=True,
            source=p.Source(name),
            target=p.Target(address),
            snd_settle_mode=p.MIXED,
        )
        # The reply-to of a request: the broker finds the link by its target, or by its name.
        self._reply_to = f"{name}-in"
        self._in = session.attach(
            self._reply_to,
            is_sender=False,
            source=p.Source(address),
            target=p.Target(self._reply_to),
            snd_settle_mode=p.MIXED,
        )
        self._out.context = self._in.context = self
        self._attached = 0

    async def ask(
        self, properties: Mapping[str, object], body: object, timeout_ms: Millis, what: str
    ) -> Reply:
        """One request. Raises OperationTimeoutError, or why the node cannot be asked."""
        await self._conversation.within(self._opened, timeout_ms, what)
        number = self._conversation.new_number()
        pending = self._asked[number] = Pending()
        fields = [encode_string(number), NULL, encode_string(self.address), NULL]
        fields.append(encode_string(self._reply_to))
        payload = (
            encode_composite(PROPERTIES, fields)
            + encode_described(APPLICATION_PROPERTIES, encode(dict(properties)))
            + encode_described(VALUE, encode(body))
        )
        self._waiting.append((number, payload))
        self._pump()
        try:
            return await self._conversation.within(pending, timeout_ms, what)
        finally:
            self._asked.pop(number, None)

    def _pump(self) -> None:
        while self._waiting and self._out.credit > 0:
            tag = self._conversation.new_tag()
            number, payload = self._waiting.popleft()
            self._sent[tag] = number
            self._out.deliver(tag, [payload])

    # --- what the conversation calls --------------------------------------------------------------

    def on_attached(self) -> None:
        self._attached += 1
        if self._attached == 2:
            self._in.grant(_CREDIT)
            self._opened.resolve(None)

    def on_flow(self) -> None:
        self._pump()

    def on_message(self, event: MessageReceived) -> None:
        if not event.settled:
            event.link.settle([event.delivery_id], p.ACCEPTED)
        if event.link.credit < _CREDIT // 2:
            event.link.grant(_CREDIT)
        number, reply = read_reply(event.payload)
        pending = self._asked.get(number)
        if pending is not None:  # else it came too late
            pending.resolve(reply)

    def on_dispositions(
        self, deliveries: list[Delivery], state: p.DeliveryState | None, is_settled: bool
    ) -> None:
        """Accepted says nothing, the reply will; rejected is all that comes."""
        for delivery in deliveries:
            pending = self._asked.get(self._sent.pop(delivery.tag, ""))
            if pending is not None and isinstance(state, p.Rejected):
                pending.fail(failure(state.error, f"A request to {self.address}"))

    def on_gone(self, error: p.Error | None) -> None:
        if not self.is_gone:
            cause = failure(error, f"The link to {self.address}")
            for link in (self._out, self._in):
                link.detach()
            self.fail(cause)

    def fail(self, cause: TandemError) -> None:
        self.is_gone = True
        self._opened.fail(cause)
        for pending in list(self._asked.values()):
            pending.fail(unknown(cause))


def read_reply(payload: bytes) -> tuple[str, Reply]:
    """The request that is answered, and the answer. Raises ProtocolError."""
    found: dict[int, object] = {}
    for code, start, _ in sections(payload):
        if code in (PROPERTIES, APPLICATION_PROPERTIES, VALUE):
            _, value_at = decode_descriptor(payload, start + 1)
            found[code] = decode(payload, value_at)[0]
    fields = cast("list[object]", found.get(PROPERTIES, []))
    said = cast("dict[str, object]", found.get(APPLICATION_PROPERTIES, {}))
    body = found.get(VALUE)
    # $cbs writes its names with hyphens, $management in camel case; each broker its own.
    status = said.get("statusCode", said.get("status-code"))
    if not isinstance(status, int) or len(fields) < 6:
        raise ProtocolError("A reply has no status, or does not say what it answers.")
    condition = said.get("errorCondition", said.get("error-condition"))
    text = said.get("statusDescription", said.get("status-description"))
    return str(fields[5]), Reply(
        int(status),
        "" if text is None else str(text),
        None if condition is None else str(condition),
        body if isinstance(body, dict) else {},
        said,
    )
