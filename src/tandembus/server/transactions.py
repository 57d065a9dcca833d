"""Transactions on a connection (AMQP 1.0 §4): declared and discharged on the link to a coordinator.

What is asked in one is remembered in core until its discharge. Here is what the peer has declared,
and the deliveries that it has decided about in each: they are settled when it is committed, and
after a rollback they are as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tandembus.amqp import performatives as p
from tandembus.amqp.events import Delivery as Unsettled
from tandembus.amqp.events import LinkFlow, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import VALUE, sections
from tandembus.amqp.types import decode_descriptor
from tandembus.core import commands as c
from tandembus.core.access import everything
from tandembus.errors import (
    NotAllowedError,
    ProtocolError,
    QuotaExceededError,
    ServerBusyError,
    TandemError,
    TransactionUnknownError,
)
from tandembus.limits import (
    MAX_TRANSACTIONS_PER_CONNECTION,
    MAX_UNPROVEN_PER_CONNECTION,
    MAX_UNPROVEN_TRANSACTIONS,
    SECOND_MS,
    TRANSACTION_TIMEOUT_MS,
)
from tandembus.model import Millis
from tandembus.names import Address
from tandembus.server.arrival import Arrival

if TYPE_CHECKING:
    from tandembus.server.gateway import Gateway

_CREDIT: Final = 1_000
_ID_BYTES: Final = 8
_NO_GROUP: Final = object()


@dataclass(slots=True, eq=False)
class Joined:
    """Deliveries that the peer has decided about in a transaction."""

    link: Link
    ids: list[int]
    """Empty after a refusal."""
    answer: p.TransactionalState


class OpenTransactions:
    """Those that a connection has declared and not discharged."""

    def __init__(self) -> None:
        self._joined: dict[int, list[Joined]] = {}
        self._arrivals: dict[int, list[Arrival]] = {}
        """Large messages that were sent in each."""
        self.owner = 0
        """The number by which core knows whose they are."""
        self.asked = 0
        """Declares that core has not answered."""
        self.unproven = 0
        """Those that were declared, or asked for, before any token was shown."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._joined)

    def __len__(self) -> int:
        return len(self._joined) + self.asked

    def begin(self, number: int) -> None:
        self._joined[number] = []

    def number_of(self, txn_id: bytes) -> int:
        """Only a transaction of the same connection: nobody puts anything into somebody else's."""
        number = _number(txn_id)
        if number not in self._joined:
            raise TransactionUnknownError("The transaction does not exist, or is over.")
        return number

    def join(self, joined: Joined) -> None:
        """These deliveries are settled when their transaction is committed."""
        self._joined[_number(joined.answer.txn_id)].append(joined)

    def leave(self, joined: Joined) -> None:
        """They were refused: nothing is to be settled, and nothing is kept for them."""
        joined.ids = []  # the discharge may have taken it already
        with suppress(KeyError, ValueError):
            self._joined[_number(joined.answer.txn_id)].remove(joined)

    def keep(self, txn_id: bytes, arrival: Arrival) -> None:
        """A large message was sent: what is on disk of it is dropped after a rollback."""
        if _number(txn_id) in self._joined:
            self._arrivals.setdefault(_number(txn_id), []).append(arrival)
        else:  # it has ended meanwhile
            arrival.release()

    def is_over(self, number: int) -> None:
        """It was committed or rolled back."""
        for arrival in self._arrivals.pop(number, ()):
            arrival.release()

    def end(self, number: int) -> list[Joined]:
        """It is discharged, or its time is over; what was to be settled with it."""
        return self._joined.pop(number, [])


def _number(txn_id: bytes) -> int:
    """0, which no transaction has, for what is no id of ours."""
    return int.from_bytes(txn_id, "big") if len(txn_id) == _ID_BYTES else 0


class Group:
    """A session whose first link is to the coordinator, as in Azure: its transactions reach several
    entities by way of one, the root, which is the first that a link of the session is for. So the
    peer can send to all of them, but receive from the root only."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: str | None = None

    def check_receiver(self, address: Address) -> None:
        """Raises if the peer cannot receive from there. It has been shown to have the right."""
        if self.root not in (None, address.entity):
            raise NotAllowedError(
                f"Messages of '{address.path}' cannot be received here: this session is a "
                f"transaction group, and its root is '{self.root}'. Use another session."
            )

    def take(self, address: Address) -> None:
        """A link to or from an entity has been accepted."""
        if self.root is None:
            self.root = address.entity


def group_of(link: Link) -> Group | None:
    """The group that the session of a link is. The session's first link decides whether it is."""
    session = link.session
    if session.context is None:
        is_coordinator = link.remote is not None and isinstance(link.remote.target, p.Coordinator)
        session.context = Group() if is_coordinator else _NO_GROUP
    return session.context if isinstance(session.context, Group) else None


class Transactor:
    """The peer declares and discharges transactions. What it leaves open is rolled back."""

    def __init__(self, gateway: Gateway, link: Link) -> None:
        self.gateway = gateway
        self.link = link
        if not gateway.transactions.owner:
            gateway.transactions.owner = gateway.broker.new_number()
        self._open: dict[int, Millis] = {}
        """When each was declared, oldest first."""
        self._unproven: set[int] = set()
        """Those that were declared before any token was shown."""
        self._timer: asyncio.TimerHandle | None = None

    def on_messages(self, events: list[MessageReceived]) -> None:
        for event in events:
            self._on_request(event)

    def _on_request(self, event: MessageReceived) -> None:
        try:
            request = _request(event.payload)
            if isinstance(request, p.Declare):
                self._declare(event.delivery_id)
            else:
                self._discharge(event.delivery_id, request)
        except TandemError as error:
            self._answer(event.delivery_id, p.Rejected(self.gateway.error_of(error)))

    def _declare(self, delivery_id: int) -> None:
        """.NET declares before it puts any token, if a transaction is the first thing it does. What
        is then asked in it is judged by the tokens that are there."""
        gateway = self.gateway
        if len(gateway.transactions) >= MAX_TRANSACTIONS_PER_CONNECTION:
            raise QuotaExceededError(
                f"{len(gateway.transactions)} transactions of this connection are open, the most "
                "there can be."
            )
        is_unproven = not gateway.claims.is_anybody(gateway.now_ms())
        if is_unproven and (
            gateway.transactions.unproven >= MAX_UNPROVEN_PER_CONNECTION
            or gateway.broker.unproven_transactions >= MAX_UNPROVEN_TRANSACTIONS
        ):
            raise ServerBusyError("Too many transactions were declared without a token.")
        gateway.transactions.asked += 1
        self._count_unproven(is_unproven)
        claims = everything() if is_unproven else gateway.claims
        done = partial(self._declared, delivery_id, is_unproven)
        gateway.broker.submit(c.Declare(gateway.transactions.owner), claims, done)

    def _declared(self, delivery_id: int, is_unproven: bool, reply: Any) -> None:
        self.gateway.transactions.asked -= 1
        if isinstance(reply, TandemError):
            self._count_unproven(-is_unproven)
            self._answer(delivery_id, p.Rejected(self.gateway.error_of(reply)))
            return
        self._open[reply] = self.gateway.now_ms()
        if is_unproven:
            self._unproven.add(reply)
        if self.link.context is not self:  # it has gone meanwhile
            self.on_gone()
            return
        self.gateway.transactions.begin(reply)
        self._watch()
        self._answer(delivery_id, p.Declared(reply.to_bytes(_ID_BYTES, "big")))

    def _watch(self) -> None:
        """The oldest is looked at when its time is over."""
        if self._timer is None and self._open:
            declared_ms = next(iter(self._open.values()))
            left = declared_ms + TRANSACTION_TIMEOUT_MS - self.gateway.now_ms()
            self._timer = self.gateway.call_later(max(left, 0) + SECOND_MS, self._end_overdue)

    def _end_overdue(self) -> None:
        """Core has dropped those whose time is over: nothing here waits for them any more."""
        self._timer = None
        now = self.gateway.now_ms()
        for number, declared_ms in list(self._open.items()):
            if now - declared_ms < TRANSACTION_TIMEOUT_MS:
                break
            self._end(number)
            self.gateway.transactions.end(number)
            self.gateway.transactions.is_over(number)
        self._watch()

    def _discharge(self, delivery_id: int, request: p.Discharge) -> None:
        transactions = self.gateway.transactions
        number = transactions.number_of(request.txn_id)
        if number not in self._open:
            raise TransactionUnknownError("The transaction was declared on another link.")
        self._end(number)
        joined = transactions.end(number)
        done = partial(self._discharged, number, delivery_id, [] if request.fail else joined)
        command = c.Discharge(number, request.fail)
        self.gateway.broker.submit(command, self.gateway.claims, done)

    def _discharged(self, number: int, delivery_id: int, joined: list[Joined], reply: Any) -> None:
        self.gateway.transactions.is_over(number)
        if isinstance(reply, TandemError):
            error = self.gateway.error_of(reply)
            if not isinstance(reply, TransactionUnknownError):
                error = p.Error("amqp:transaction:rollback", error.description)
            self._answer(delivery_id, p.Rejected(error))
            return
        for each in joined:
            each.link.settle(each.ids, each.answer)
        self._answer(delivery_id, p.ACCEPTED)

    def _end(self, number: int) -> None:
        self._open.pop(number, None)
        if number in self._unproven:
            self._unproven.discard(number)
            self._count_unproven(-1)

    def _count_unproven(self, more: int) -> None:
        self.gateway.transactions.unproven += more
        self.gateway.broker.unproven_transactions += more

    def _answer(self, delivery_id: int, outcome: p.Outcome) -> None:
        self.link.settle([delivery_id], outcome)
        if self.link.credit < _CREDIT // 2:
            self.link.grant(_CREDIT)
        self.gateway.write_soon()

    def on_flow(self, event: LinkFlow) -> None: ...

    def on_dispositions(
        self, deliveries: list[Unsettled], state: p.DeliveryState | None, is_settled: bool
    ) -> None: ...

    def on_gone(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number in list(self._open):
            self._end(number)
            self.gateway.transactions.end(number)
            command = c.Discharge(number, fail=True)
            done = partial(self._rolled_back, number)
            self.gateway.broker.submit(command, self.gateway.claims, done)

    def _rolled_back(self, number: int, reply: Any) -> None:
        self.gateway.transactions.is_over(number)


def _request(payload: bytes) -> p.Declare | p.Discharge:
    """What the body of a message to the coordinator asks (AMQP 1.0 §4.5)."""
    for code, start, _ in sections(payload):
        if code == VALUE:
            _, at = decode_descriptor(payload, start + 1)
            request, _ = p.decode_performative(payload, at)
            if isinstance(request, p.Declare | p.Discharge):
                return request
    raise ProtocolError("The coordinator takes a declare or a discharge.")
