"""`$management`: the operations beside the links, one function each (WIRE.md §7).

A request is turned into a command, the command's answer into a reply. What a command does is
`core`; how a rule looks on the wire is `rule_maps`; links and frames are the gateway's.

The rule: every request gets exactly one reply. A refusal is the reply, with its status, condition
and a text that leads to the log. Only a failure of the store goes further up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from tandem import limits
from tandem.amqp.message import DATA, SEQUENCE, VALUE, sections
from tandem.amqp.types import Int
from tandem.changes import Mode
from tandem.core import commands as c
from tandem.core.access import Claims, Right, require_right
from tandem.core.commands import Command, Disposition
from tandem.core.effects import Delivery
from tandem.core.namespace import Namespace
from tandem.core.queue import Queue
from tandem.errors import (
    ArgumentError,
    MessageNotFoundError,
    OperationTimeoutError,
    ProtocolError,
    Refused,
)
from tandem.model import NEVER, NO_EDITS, Edits, Message, Millis, Timestamp
from tandem.server.cbs import node_claims
from tandem.server.requests import (
    Arguments,
    Request,
    longs,
    reply,
    strings,
    timestamps,
    tracked,
    tracking_id_of,
)
from tandem.server.rule_maps import described_rule, rule_of

log = logging.getLogger("tandem.server")

_NO_LINK: Final = 0
"""Links are numbered from 1: this one holds no session."""
_NET_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of .NET's last day: from here on, "whenever it was"."""
_MESSAGE_NOT_FOUND: Final = "com.microsoft:message-not-found"
_SESSION_NOT_FOUND: Final = "com.microsoft:session-not-found"


class Broker(Protocol):
    """What the operations need of the broker and of the connection that asks."""

    @property
    def namespace(self) -> Namespace:
        """To be looked at only."""
        ...

    async def execute(self, command: Command, claims: Claims) -> Any:
        """The command's answer, once it is durable; Refused if it, or the claims, are wrong."""
        ...

    def render(self, path: str, delivery: Delivery, *, shows_state: bool) -> bytes:
        """The delivery as an encoded message; locked or not is said by the delivery itself
        (`token`). KeyError if its body is gone."""
        ...

    def incoming(self, payload: bytes, message_format: int) -> list[Message]:
        """The messages that an encoded one, or a batch, holds. Refused or ProtocolError."""
        ...

    def link_named(self, name: str) -> int | None:
        """The receiving link of that name of the connection that asks."""
        ...

    def random_bits(self, count: int) -> int: ...

    def now_ms(self) -> Millis: ...


@dataclass(frozen=True, slots=True)
class _Call:
    """One request on its way."""

    request: Request
    path: str
    """The entity whose node was asked."""
    claims: Claims
    broker: Broker
    transaction: int | None
    arguments: Arguments

    async def execute(self, command: Command) -> Any:
        return await self.broker.execute(command, self.claims)

    def ok(self, body: Mapping[str, object] | None = None) -> bytes:
        return reply(self.request, 200, "OK", body or {})

    def nothing(self, condition: str | None = None) -> bytes:
        """An empty result is a success without a body."""
        return reply(self.request, 204, "NoContent", condition=condition)

    @property
    def link(self) -> int:
        """The receiving link that the request is about."""
        name = self.request.associated_link_name
        link = None if name is None else self.broker.link_named(name)
        return _NO_LINK if link is None else link

    def tokens(self) -> list[bytes]:
        uuids = self.arguments.uuids("lock-tokens", limits.MAX_UNSETTLED)
        # A delivery tag is the .NET form of the GUID that clients see (WIRE.md §5.4).
        return [uuid.bytes_le for uuid in uuids]

    def numbers(self) -> list[int]:
        numbers = self.arguments.integers("sequence-numbers", limits.MAX_BATCH_MESSAGES)
        for number in numbers:
            if number < 0:
                raise MessageNotFoundError(number)
        return numbers


Operation: TypeAlias = Callable[[_Call], Awaitable[bytes]]


async def answer(
    request: Request,
    path: str,
    claims: Claims,
    broker: Broker,
    *,
    transaction: int | None = None,
    tracker: str = "tandem",
) -> bytes:
    """The encoded reply to a request to the `$management` node of the entity at `path`."""
    operation = OPERATIONS.get(request.operation)
    status, condition = 501, "amqp:not-implemented"
    text = f"There is no operation '{request.operation:.64}'."
    if operation is not None:
        try:
            allowed = node_claims(claims, broker.now_ms())
            call = _Call(request, path, allowed, broker, transaction, request.arguments)
            async with asyncio.timeout(request.timeout_ms / 1000):
                return await operation(call)
        except TimeoutError:
            # The command goes on; the client has to look what has become of it.
            status, condition = OperationTimeoutError.status, OperationTimeoutError.condition
            text = f"The operation did not complete within {request.timeout_ms} ms."
        except (Refused, ProtocolError) as error:
            status, condition, text = error.status, error.condition, str(error)
    tracking_id = tracking_id_of(request, broker.random_bits)
    log.info(
        "%.64r on %r refused: %.500r (%s) TrackingId:%s",
        request.operation,
        path,
        text,
        condition,
        tracking_id,
    )
    text = tracked(text, tracking_id, f"{tracker}:{path}", broker.now_ms())
    return reply(request, status, text, condition=condition)


# --- messages -------------------------------------------------------------------------------------


async def _peek(call: _Call) -> bytes:
    said = call.arguments
    wanted = c.Browse(
        call.path,
        max(0, said.integer("from-sequence-number", 0)),
        said.integer("message-count", 1),
        said.optional_text("session-id"),
    )
    is_short = said.flag("omit-message-body")
    deliveries = await call.execute(wanted)
    room = _page_bytes(call.broker.namespace.find(call.path))
    messages: list[dict[str, object]] = []
    for delivery in deliveries:
        try:
            message = call.broker.render(call.path, delivery, shows_state=True)
        except KeyError:
            continue  # consumed since, and its body forgotten: it is not there any more
        message = _without_body(message) if is_short else message
        room -= len(message)
        if room < 0 and messages:
            break
        messages.append({"message": message})
    return call.ok({"messages": messages}) if messages else call.nothing(_MESSAGE_NOT_FOUND)


def _page_bytes(queue: Queue) -> int:
    """A page is as large as the largest message, but not beyond a batch; clients ask for the next
    one."""
    while queue.max_message_bytes == NEVER and queue.owner is not None:
        queue = queue.owner
    return min(queue.max_message_bytes, limits.MAX_BATCH_BYTES)


def _without_body(message: bytes) -> bytes:
    return b"".join(
        message[start:end]
        for code, start, end in sections(message)
        if code not in (DATA, SEQUENCE, VALUE)
    )


async def _receive_by_number(call: _Call) -> bytes:
    mode = call.arguments.integer("receiver-settle-mode", 1)
    if mode not in (0, 1):
        raise ArgumentError("'receiver-settle-mode' is neither 0 nor 1.")
    deliveries = await call.execute(
        c.ReceiveDeferred(
            call.path,
            call.numbers(),
            call.broker.random_bits(64),
            Mode.PEEK_LOCK if mode == 1 else Mode.RECEIVE_AND_DELETE,
            call.arguments.optional_text("session-id"),
            call.link,
        )
    )
    return call.ok({"messages": [_received(call, delivery) for delivery in deliveries]})


def _received(call: _Call, delivery: Delivery) -> dict[str, object]:
    message = call.broker.render(call.path, delivery, shows_state=True)
    if delivery.token is None:
        return {"message": message}
    return {"message": message, "lock-token": UUID(bytes_le=delivery.token)}


async def _schedule(call: _Call) -> bytes:
    messages: list[Message] = []
    for item in call.arguments.items("messages", limits.MAX_BATCH_MESSAGES):
        payload = Arguments.of(item, "An element of 'messages'").binary("message")
        messages += call.broker.incoming(payload, 0)
    numbers = await call.execute(c.Send(call.path, messages, transaction=call.transaction))
    return call.ok({"sequence-numbers": longs(numbers)})


async def _cancel(call: _Call) -> bytes:
    await call.execute(c.CancelScheduled(call.path, call.numbers()))
    return call.ok()


async def _batch_delete(call: _Call) -> bytes:
    said = call.arguments
    deleted = await call.execute(
        c.DeleteMessages(
            call.path,
            said.integer("message-count"),
            said.integer("enqueued-time-utc", call.broker.now_ms()),
            said.optional_text("session-id"),
        )
    )
    return call.ok({"message-count": Int(deleted)}) if deleted else call.nothing(_MESSAGE_NOT_FOUND)


# --- locks ----------------------------------------------------------------------------------------

_DISPOSITIONS: Final = {each.value: each for each in Disposition if each is not Disposition.RELEASE}


async def _update_disposition(call: _Call) -> bytes:
    said = call.arguments
    status = said.text("disposition-status")
    disposition = _DISPOSITIONS.get(status)
    if disposition is None:
        raise ArgumentError(f"'{status:.64}' is not a status that a message can be given.")
    is_dead = disposition is Disposition.DEAD_LETTER
    properties = said.simple_values("properties-to-modify")
    await call.execute(
        c.Settle(
            call.path,
            call.tokens(),
            disposition,
            Edits(properties) if properties else NO_EDITS,
            # azure-servicebus writes an empty text where its user gave none.
            said.text("deadletter-reason", "") or None if is_dead else None,
            said.text("deadletter-description", "") or None if is_dead else None,
            call.transaction,
        )
    )
    return call.ok()


async def _renew_lock(call: _Call) -> bytes:
    ends = await call.execute(c.Renew(call.path, call.tokens()))
    return call.ok({"expirations": timestamps(ends)})


# --- sessions -------------------------------------------------------------------------------------


async def _renew_session_lock(call: _Call) -> bytes:
    session = call.arguments.text("session-id")
    end = await call.execute(c.RenewSession(call.path, session, call.link))
    return call.ok({"expiration": Timestamp(end)})


async def _get_session_state(call: _Call) -> bytes:
    session = call.arguments.text("session-id")
    state = await call.execute(c.GetSessionState(call.path, session, call.link))
    return call.ok({"session-state": state})


async def _set_session_state(call: _Call) -> bytes:
    said = call.arguments
    session = said.text("session-id")
    state = None if said.values.get("session-state") is None else said.binary("session-state")
    await call.execute(c.SetSessionState(call.path, session, state, call.link))
    return call.ok()


async def _get_message_sessions(call: _Call) -> bytes:
    said = call.arguments
    after = said.integer("last-updated-time", _NET_MAX_MS)
    skip = said.count("skip", 0)
    found: Sequence[str] = await call.execute(
        c.ListSessions(
            call.path,
            None if after >= _NET_MAX_MS else after,
            skip,
            said.count("top", limits.MAX_SESSIONS_LISTED),
        )
    )
    if not found:
        return call.nothing(_SESSION_NOT_FOUND)
    return call.ok({"skip": Int(skip), "sessions-ids": strings(found)})


# --- rules ----------------------------------------------------------------------------------------


async def _add_rule(call: _Call) -> bytes:
    said = call.arguments
    rule = rule_of(said.text("rule-name"), said.map("rule-description"), call.broker.now_ms())
    await call.execute(c.AddRule(call.path, rule))
    return call.ok()


async def _remove_rule(call: _Call) -> bytes:
    await call.execute(c.RemoveRule(call.path, call.arguments.text("rule-name")))
    return call.ok()


async def _enumerate_rules(call: _Call) -> bytes:
    # No command reads rules, so nobody else asks whether this peer may (S9).
    require_right(call.claims, call.path, Right.LISTEN, call.broker.now_ms())
    skip = call.arguments.count("skip", 0)
    top = min(call.arguments.count("top", limits.MAX_ADMIN_PAGE), limits.MAX_ADMIN_PAGE)
    rules = call.broker.namespace.rules(call.path)[skip : skip + top]
    if not rules:
        return call.nothing()
    return call.ok({"rules": [{"rule-description": described_rule(rule)} for rule in rules]})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:schedule-message": _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:receive-by-sequence-number": _receive_by_number,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:renew-session-lock": _renew_session_lock,
    "com.microsoft:get-session-state": _get_session_state,
    "com.microsoft:set-session-state": _set_session_state,
    "com.microsoft:get-message-sessions": _get_message_sessions,
    "com.microsoft:add-rule": _add_rule,
    "com.microsoft:remove-rule": _remove_rule,
    "com.microsoft:enumerate-rules": _enumerate_rules,
    "com.microsoft:batch-delete-messages": _batch_delete,
}
"""Every operation that there is; all others are refused with 501."""
