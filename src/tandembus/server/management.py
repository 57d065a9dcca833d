"""`$management`: the operations beside the links, one function each (WIRE.md §7).

A request is turned into a command, the command's answer into a reply. What a command does is
`core`; how a rule looks on the wire is `rule_maps`; links and frames are the gateway's; the
operations that Azure does not have are `beyond`.

The rule: every request gets exactly one reply. A refusal is the reply, with its status, condition
and a text that leads to the log. Only a failure of the store goes further up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from tandembus import limits
from tandembus.amqp.performatives import DeliveryState
from tandembus.amqp.types import Int
from tandembus.changes import Mode, Note
from tandembus.core import commands as c
from tandembus.core.access import Claims, Right, everything, require_right
from tandembus.core.commands import Disposition
from tandembus.core.effects import Delivery
from tandembus.core.queue import Queue
from tandembus.errors import (
    ArgumentError,
    MessageNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    OperationTimeoutError,
    ProtocolError,
    Refused,
)
from tandembus.model import NO_EDITS, Edits, Message, Timestamp
from tandembus.server import beyond, positions
from tandembus.server.calls import Broker, Operation, page_bytes
from tandembus.server.calls import Call as Call
from tandembus.server.cbs import node_claims
from tandembus.server.logs import about, trace_of
from tandembus.server.requests import (
    Arguments,
    Request,
    longs,
    reply,
    strings,
    timestamps,
    tracked,
    tracking_id_of,
)
from tandembus.server.rule_maps import described_rule, rule_of
from tandembus.server.stored import Stream

log = logging.getLogger("tandembus.server")

_NET_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of .NET's last day: from here on, "whenever it was"."""
_MESSAGE_NOT_FOUND: Final = "com.microsoft:message-not-found"
_SESSION_NOT_FOUND: Final = "com.microsoft:session-not-found"


async def answer(
    request: Request,
    path: str,
    claims: Claims,
    broker: Broker,
    *,
    state: DeliveryState | None = None,
    tracker: str = "tandem",
) -> bytes | Stream:
    """The encoded reply to a request to the `$management` node of the entity at `path`."""
    operation = OPERATIONS.get(request.operation)
    status, condition, retry_after_ms = 501, "amqp:not-implemented", None
    text = f"There is no operation '{request.operation:.64}'."
    if operation is None:
        broker.spoil(state, NotAllowedError(text))
    else:
        try:
            allowed = node_claims(claims, broker.now_ms())
            transaction = broker.transaction_of(state)
            call = Call(request, path, allowed, broker, transaction, request.arguments)
            async with asyncio.timeout(request.timeout_ms / 1000):
                return await operation(call)
        except TimeoutError:
            # The command goes on; the client has to look what has become of it.
            status, condition = OperationTimeoutError.status, OperationTimeoutError.condition
            text = f"The operation did not complete within {request.timeout_ms} ms."
            if request.operation not in _CHANGES_NOTHING:
                broker.spoil(state, OperationTimeoutError(text))
        except (Refused, ProtocolError) as error:
            status, condition, text = error.status, error.condition, str(error)
            retry_after_ms = getattr(error, "retry_after_ms", None)
            if request.operation not in _CHANGES_NOTHING:
                broker.spoil(state, error)
    tracking_id = tracking_id_of(request, broker.random_bits)
    broker.refused(condition)
    log.info(
        "%.64r on %r refused: %.500r (%s) TrackingId:%s",
        request.operation,
        path,
        text,
        condition,
        tracking_id,
        extra=about(tracking_id=tracking_id, trace=trace_of(request.properties)),
    )
    text = tracked(text, tracking_id, f"{tracker}:{path}", broker.now_ms())
    return reply(request, status, text, condition=condition, retry_after_ms=retry_after_ms)


# --- messages -------------------------------------------------------------------------------------


async def _peek(call: Call) -> bytes | Stream:
    said = call.arguments
    wanted = c.Browse(
        call.path,
        max(0, said.integer("from-sequence-number", 0)),
        said.integer("message-count", 1),
        said.optional_text("session-id"),
    )
    is_short = said.flag("omit-message-body")
    deliveries = await call.execute(wanted)
    room = page_bytes(call.broker.namespace.find(call.path))
    messages: list[dict[str, object]] = []
    for delivery in deliveries:
        try:
            message = call.broker.render(call.path, delivery, is_whole=not is_short)
        except KeyError:
            continue  # consumed since, and its body forgotten: it is not there any more
        room -= len(message)
        if room < 0 and messages:
            if isinstance(message, Stream):
                message.close()
            break
        messages.append({"message": message})
    return call.ok({"messages": messages}) if messages else call.nothing(_MESSAGE_NOT_FOUND)


async def _receive_by_number(call: Call) -> bytes | Stream:
    mode = call.arguments.integer("receiver-settle-mode", 1)
    if mode not in (0, 1):
        raise ArgumentError("'receiver-settle-mode' is neither 0 nor 1.")
    if mode == 0:
        _not_in_transactions(call)
    numbers = call.numbers()
    require_right(call.claims, call.path, Right.LISTEN, call.broker.now_ms())
    _check_size(call.broker.namespace.find(call.path), numbers)
    deliveries = await call.execute(
        c.ReceiveDeferred(
            call.path,
            numbers,
            call.broker.random_bits(64),
            Mode.PEEK_LOCK if mode == 1 else Mode.RECEIVE_AND_DELETE,
            call.arguments.optional_text("session-id"),
            call.link,
        )
    )
    messages: list[dict[str, object]] = []
    try:
        for delivery in deliveries:
            messages.append(_received(call, delivery))
    except KeyError:  # it was consumed or expired since, and its body is forgotten
        for each in messages:
            if isinstance(each["message"], Stream):
                each["message"].close()
        raise MessageNotFoundError(delivery.sequence_number) from None
    return call.ok({"messages": messages})


def _not_in_transactions(call: Call) -> None:
    """What cannot be undone is refused in a transaction: a rollback must leave no trace."""
    if call.transaction is not None:
        raise NotAllowedError(f"{call.request.operation} cannot be part of a transaction.")


def _alone(operation: Operation) -> Operation:
    """The operation, which cannot be part of a transaction."""

    async def alone(call: Call) -> bytes | Stream:
        _not_in_transactions(call)
        return await operation(call)

    return alone


def _check_size(queue: Queue, numbers: Sequence[int]) -> None:
    """Nothing is locked that could not be sent."""
    found = (queue.find(number) for number in numbers)
    sizes = [it.chunk.sizes[it.row] for it in found if it is not None]
    small = sum(size for size in sizes if size <= limits.PIECE_BYTES)
    for size, most in (
        (sum(sizes), limits.MAX_REPLY_BYTES),
        (small, limits.MAX_REPLY_IN_MEMORY),
    ):
        if size > most:
            raise MessageSizeExceededError(
                f"These messages have {size} bytes together; at most {most} can be received at "
                "once. Ask for fewer."
            )


def _received(call: Call, delivery: Delivery) -> dict[str, object]:
    message = call.broker.render(call.path, delivery)
    if delivery.token is None:
        return {"message": message}
    return {"message": message, "lock-token": UUID(bytes_le=delivery.token)}


async def _schedule(call: Call) -> bytes | Stream:
    messages: list[Message] = []
    for item in call.arguments.items("messages", limits.MAX_REQUEST_MESSAGES):
        payload = Arguments.of(item, "An element of 'messages'").binary("message")
        messages += call.broker.incoming(payload, 0)
    sender = call.broker.sender_of(call.path, call.claims)
    is_numbered = call.transaction is not None
    command = c.Send(
        call.path, messages, transaction=call.transaction, sender=sender, is_numbered=is_numbered
    )
    numbers = await call.execute(command)
    return call.ok({"sequence-numbers": longs(numbers)})


async def _cancel(call: Call) -> bytes | Stream:
    await call.execute(c.CancelScheduled(call.path, call.numbers(), call.transaction))
    return call.ok()


async def _batch_delete(call: Call) -> bytes | Stream:
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


async def _update_disposition(call: Call) -> bytes | Stream:
    said = call.arguments
    status = said.text("disposition-status")
    disposition = _DISPOSITIONS.get(status)
    if disposition is None:
        raise ArgumentError(f"'{status:.64}' is not a status that a message can be given.")
    is_dead = disposition is Disposition.DEAD_LETTER
    properties = said.simple_values("properties-to-modify")
    delay_ms = beyond.take_delay(properties)
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
            delay_ms=delay_ms,
        )
    )
    return call.ok()


async def _renew_lock(call: Call) -> bytes | Stream:
    ends = await call.execute(c.Renew(call.path, call.tokens()))
    return call.ok({"expirations": timestamps(ends)})


# --- sessions -------------------------------------------------------------------------------------


async def _renew_session_lock(call: Call) -> bytes | Stream:
    session = call.arguments.text("session-id")
    end = await call.execute(c.RenewSession(call.path, session, call.link))
    return call.ok({"expiration": Timestamp(end)})


async def _get_session_state(call: Call) -> bytes | Stream:
    session = call.arguments.text("session-id")
    state = await call.execute(c.GetSessionState(call.path, session, call.link))
    return call.ok({"session-state": state})


async def _set_session_state(call: Call) -> bytes | Stream:
    said = call.arguments
    session = said.text("session-id")
    state = None if said.values.get("session-state") is None else said.binary("session-state")
    await call.execute(c.SetSessionState(call.path, session, state, call.link, call.transaction))
    return call.ok()


async def _get_message_sessions(call: Call) -> bytes | Stream:
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


async def _add_rule(call: Call) -> bytes | Stream:
    said = call.arguments
    rule = rule_of(said.text("rule-name"), said.map("rule-description"), call.broker.now_ms())
    await call.execute(c.AddRule(call.path, rule))
    return call.ok()


async def _remove_rule(call: Call) -> bytes | Stream:
    await call.execute(c.RemoveRule(call.path, call.arguments.text("rule-name")))
    return call.ok()


async def _enumerate_rules(call: Call) -> bytes | Stream:
    # No command reads rules, so nobody else asks whether this peer may (S9).
    require_right(call.claims, call.path, Right.LISTEN, call.broker.now_ms())
    await call.broker.execute(c.Remark(call.path, Note.MANAGED), everything())
    skip = call.arguments.count("skip", 0)
    top = min(call.arguments.count("top", limits.MAX_ADMIN_PAGE), limits.MAX_ADMIN_PAGE)
    rules = sorted(call.broker.namespace.rules(call.path), key=lambda rule: rule.name.casefold())
    rules = rules[skip : skip + top]
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
    "com.microsoft:add-rule": _alone(_add_rule),
    "com.microsoft:remove-rule": _alone(_remove_rule),
    "com.microsoft:enumerate-rules": _enumerate_rules,
    "com.microsoft:batch-delete-messages": _alone(_batch_delete),
    **{name: _alone(operation) for name, operation in beyond.OPERATIONS.items()},
    **{name: _alone(operation) for name, operation in positions.OPERATIONS.items()},
}
"""Every operation that there is; all others are refused with 501."""
_CHANGES_NOTHING: Final = frozenset(
    f"com.microsoft:{name}"
    for name in (
        "peek-message", "renew-lock", "renew-session-lock", "get-session-state",
        "get-message-sessions", "enumerate-rules",
    )
)  # fmt: skip
"""Refusing one of these does not spoil its transaction."""
