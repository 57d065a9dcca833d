"""A broker in memory: the server's half of our AMQP code, and answers that a test chooses.

Bytes pass between it and a `Conversation` in `exchange`, and time only in `pass_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from tandembus.amqp import performatives as p
from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import (
    Dispositions,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    MessageReceived,
)
from tandembus.amqp.link import Link
from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    PROPERTIES,
    VALUE,
    encode_message,
    sections,
)
from tandembus.amqp.types import (
    NULL,
    Int,
    decode,
    encode,
    encode_composite,
    encode_described,
)
from tandembus.client.addresses import ConnectionString
from tandembus.client.conversation import Conversation
from tandembus.client.pending import Pending, Task
from tandembus.clock import ManualClock
from tandembus.model import Symbol

T = TypeVar("T")

CONNECTION_STRING = (
    "Endpoint=sb://broker.test;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;"
    "UseDevelopmentEmulator=true"
)


class Request:
    """What a client has asked of a node."""

    def __init__(self, payload: bytes) -> None:
        found: dict[int, Any] = {}
        for code, start, _ in sections(payload):
            found[code], _ = decode(payload, start + 3, typed=True)
        self.fields: list[Any] = found[PROPERTIES]
        self.properties: dict[str, Any] = found[APPLICATION_PROPERTIES]
        self.body: Any = found.get(VALUE)

    def reply(
        self,
        status: int,
        body: Mapping[str, object] | None = None,
        condition: str | None = None,
        description: str = "said so",
    ) -> bytes:
        fields = [NULL] * 6
        fields[5] = encode(self.fields[0])
        is_token = self.properties["operation"] == "put-token"
        names = (
            ("status-code", "status-description")
            if is_token
            else ("statusCode", "statusDescription")
        )
        said: dict[str, object] = {names[0]: Int(status), names[1]: description}
        if condition is not None:
            said["errorCondition"] = Symbol(condition)
        payload = encode_composite(PROPERTIES, fields)
        payload += encode_described(APPLICATION_PROPERTIES, encode(said))
        return payload if body is None else payload + encode_described(VALUE, encode(body))


class FakeBroker:
    """`heart` talks to it. What it does can be changed by setting `on_send`, `on_request`, …"""

    def __init__(self, timeout_ms: int = 60_000, target: str = CONNECTION_STRING) -> None:
        self.clock = ManualClock()
        self.heart = Conversation(ConnectionString.parse(target), self.clock, timeout_ms=timeout_ms)
        self.connection = Connection(Role.SERVER, container_id="fake")
        self.credit = 100
        self.renews_credit = True
        self.links: dict[str, Link] = {}
        """By address; of a node, the one that replies go to."""
        self.tokens: list[Request] = []
        self.requests: list[Request] = []
        self.sent: list[MessageReceived] = []
        """What has come on links to entities."""
        self.dispositions: list[Dispositions] = []
        self.flows: list[tuple[int, bool]] = []
        """Credit that receivers gave, and whether they drain."""
        self.on_send: Callable[[MessageReceived], p.DeliveryState | None] = lambda _: p.ACCEPTED
        self.on_token: Callable[[Request], bytes | None] = lambda it: it.reply(202)
        self.on_request: Callable[[Request], bytes | None] = lambda it: it.reply(200, {})
        self.rejects_requests: p.Error | None = None
        self.on_attach: Callable[[Link], p.Error | bool | None] = lambda _: None
        """An error: it is refused; True: it is not answered."""
        self.on_settle: Callable[[int], p.DeliveryState | None] | None = None
        """The answer to a settlement; without, the same outcome."""
        self.queue: list[bytes] = []
        """Encoded messages that wait for credit of a receiver."""

    # --- bytes ------------------------------------------------------------------------------------

    def exchange(self) -> None:
        """Let bytes flow both ways until nobody has any to send."""
        while True:
            out = b"".join(bytes(chunk) for chunk in self.heart.data_to_send())
            for event in self.connection.receive_data(out):
                self._on_event(event)
            back = b"".join(bytes(chunk) for chunk in self.connection.data_to_send())
            if back:
                self.heart.receive_data(back)
            if not out and not back:
                return

    def start(self, operation: Coroutine[Pending[Any], None, T]) -> Task[T]:
        task = self.heart.run(operation)
        self.exchange()
        return task

    def run(self, operation: Coroutine[Pending[Any], None, T]) -> T:
        task = self.start(operation)
        assert task.is_done, "it still waits for something"
        return task.result()

    def opened(self) -> FakeBroker:
        self.run(self.heart.open())
        return self

    def pass_ms(self, ms: int) -> None:
        """Let time pass; whatever is due meanwhile happens when it is due."""
        end = self.clock.now_ms() + ms
        while True:
            now = self.clock.now_ms()
            dues = (self.heart.next_deadline(), self.connection.next_deadline(now))
            due = min((each for each in dues if each is not None), default=end + 1)
            if due > end:
                break
            self.clock.advance(max(0, due - now))
            self._tick()
        self.clock.advance(end - self.clock.now_ms())
        self._tick()

    def _tick(self) -> None:
        self.heart.tick()
        self.connection.tick(self.clock.now_ms())
        self.exchange()

    # --- what it does -----------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        match event:
            case LinkAttached(link):
                self._attach(link)
            case MessageReceived():
                self._take(event)
            case LinkFlow(link, credit, drain):
                if link in self.links.values() and "$" not in str(link.remote):
                    self.flows.append((credit, drain))
                self.deliver()
                if drain:
                    link.drained()
            case Dispositions():
                self._decide(event)
            case LinkDetached(link):
                self.links = {name: it for name, it in self.links.items() if it is not link}
            case _:
                pass

    def _attach(self, link: Link) -> None:
        verdict = self.on_attach(link)
        if isinstance(verdict, p.Error):
            link.refuse(verdict)
        elif not verdict:
            self.accept(link)

    def accept(self, link: Link, **fields: Any) -> None:
        assert link.remote is not None
        node = link.remote.source if link.is_sender else link.remote.target
        assert isinstance(node, p.Source | p.Target)
        assert node.address is not None
        link.accept(max_message_size=1024 * 1024, **fields)
        if link.is_sender or "$" not in node.address:
            self.links[node.address] = link
        if not link.is_sender:
            link.grant(self.credit)

    def _take(self, event: MessageReceived) -> None:
        assert event.link.remote is not None
        target = event.link.remote.target
        assert isinstance(target, p.Target)
        address = target.address or ""
        if address == "$cbs":
            event.link.settle([event.delivery_id], p.ACCEPTED)
            self.tokens.append(Request(event.payload))
            self._reply(address, self.on_token(self.tokens[-1]))
        elif address.endswith("/$management") and self.rejects_requests is not None:
            event.link.settle([event.delivery_id], p.Rejected(self.rejects_requests))
        elif address.endswith("/$management"):
            event.link.settle([event.delivery_id], p.ACCEPTED)
            self.requests.append(Request(event.payload))
            self._reply(address, self.on_request(self.requests[-1]))
        else:
            self.sent.append(event)
            outcome = self.on_send(event)
            if outcome is not None:
                event.link.settle([event.delivery_id], outcome)
            if event.link.credit == 0 and self.renews_credit:
                event.link.grant(self.credit)

    def _reply(self, address: str, reply: bytes | None) -> None:
        if reply is not None:
            self.links[address].deliver(b"", [reply], settled=True)

    def _decide(self, event: Dispositions) -> None:
        self.dispositions.append(event)
        if not event.settled:
            for delivery in event.deliveries:
                answer = event.state
                if isinstance(answer, p.Rejected):
                    answer = p.Rejected()
                if self.on_settle is not None:
                    answer = self.on_settle(delivery.id)
                    if answer is None:
                        continue
                delivery.link.settle([delivery.id], answer)

    def deliver(self) -> None:
        for address, link in self.links.items():
            if "$" not in address and link.is_sender:
                is_settled = link.remote is not None and link.remote.snd_settle_mode == p.SETTLED
                while self.queue and link.credit > 0:
                    tag = b"" if is_settled else len(self.queue).to_bytes(16, "big")
                    link.deliver(tag, [self.queue.pop(0)], settled=is_settled)

    def enqueue(self, *bodies: bytes) -> None:
        """Messages arrive at the broker."""
        self.queue += [encode_message(body=body) for body in bodies]
        self.deliver()
        self.exchange()
