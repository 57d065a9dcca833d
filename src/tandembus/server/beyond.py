"""`$management` beyond Azure, for whoever looks after messages (docs/wire-extensions.md).

Browsing by state and by a SQL filter, deferred messages back to active, another level for one that
waits, a whole session to the dead-letter queue, sessions counted; and the name of the delay that an
abandoned message can be given. What a command does is `core`; reading an entity by position is
`positions`.

The rule: a browse looks at a bounded number of messages, says where it stopped, and gives everybody
else a turn after each handful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from uuid import UUID

from tandembus import limits
from tandembus.amqp.message import AmqpMessage
from tandembus.amqp.types import Int, Long
from tandembus.core import commands as c
from tandembus.core.effects import Delivery, SessionCounts
from tandembus.core.sql import Context, Filter, compile_filter
from tandembus.core.state import State
from tandembus.errors import ArgumentError, FilterError
from tandembus.model import NO_EDITS, Timestamp
from tandembus.server.calls import Call, Operation, page_bytes
from tandembus.server.stored import Stream

DELAY: Final = "x-tandem-delay-ms"
"""Among the properties to modify: the abandoned message stays away for so long, and then is in its
old place."""
STATES: Final[Mapping[str, tuple[State, ...]]] = {
    "active": (State.WAITING, State.LOCKED),
    "deferred": (State.DEFERRED, State.DEFERRED_LOCKED),
    "scheduled": (State.SCHEDULED,),
    "delayed": (State.DELAYED,),
}
"""What a state is called on the wire."""
_HANDFUL: Final = 100


def take_delay(properties: MutableMapping[Any, Any]) -> int:
    """The delay that the properties to modify ask for, taken out of them; 0: none."""
    value = properties.pop(DELAY, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(f"'{DELAY}' is a number of milliseconds.")
    return int(value)


async def _browse(call: Call) -> bytes | Stream:
    said = call.arguments
    number = max(0, said.integer("from-sequence-number", 0))
    count = min(said.integer("message-count", 1), limits.MAX_BROWSE)
    if count < 1:
        raise ArgumentError("'message-count' is at least 1.")
    text = said.optional_text("filter")
    chosen = None if text is None else compile_filter(text)
    states = _states(call)
    session = said.optional_text("session-id")
    is_short = said.flag("omit-message-body")
    room: int | None = None
    found: list[dict[str, object]] = []
    looked_at = 0
    while looked_at < limits.MAX_FILTERED_BROWSE:
        handful = await call.execute(c.Browse(call.path, number, _HANDFUL, session, states))
        if room is None:  # now it is known that it may be asked
            room = page_bytes(call.broker.namespace.find(call.path))
        if not handful:
            return call.ok({"messages": found})
        for delivery in handful:
            looked_at += 1
            message = _chosen(call, delivery, chosen, is_whole=not is_short)
            if message is not None:
                room -= len(message)
                if len(found) >= count or (room < 0 and found):
                    if isinstance(message, Stream):
                        message.close()
                    return _page(call, found, delivery.sequence_number)
                found.append({"message": message})
            number = delivery.sequence_number + 1
        await asyncio.sleep(0)
    return _page(call, found, number)


def _page(call: Call, found: list[dict[str, object]], number: int) -> bytes | Stream:
    """`next-sequence-number` is where to go on; without it, that was all."""
    return call.ok({"messages": found, "next-sequence-number": Long(number)})


def _states(call: Call) -> tuple[State, ...]:
    wanted: list[State] = []
    if call.arguments.values.get("states") is None:
        return ()
    for word in call.arguments.items("states", len(STATES)):
        if not isinstance(word, str) or str(word) not in STATES:
            raise ArgumentError(f"'states' has {', '.join(STATES)}, not {word!s:.32}.")
        wanted += STATES[str(word)]
    return tuple(wanted)


def _chosen(
    call: Call, delivery: Delivery, chosen: Filter | None, *, is_whole: bool
) -> bytes | Stream | None:
    """The message as a peek shows it; None if it has gone since, or is not selected."""
    try:
        message = call.broker.render(call.path, delivery, is_whole=is_whole)
    except KeyError:
        return None
    if chosen is None:
        return message
    head = message.head if isinstance(message, Stream) else message
    facts = {
        "SequenceNumber": delivery.sequence_number,
        "EnqueuedTimeUtc": Timestamp(delivery.enqueued_ms),
        "DeliveryCount": delivery.delivery_count,
        "Size": len(message),
    }
    try:
        context = Context(AmqpMessage(head), facts, NO_EDITS, lambda: UUID(int=0))
        if chosen.matches(context):
            return message
    except FilterError:
        pass  # as for a subscription: what cannot be judged is not selected
    if isinstance(message, Stream):
        message.close()
    return None


async def _discard(call: Call) -> bytes | Stream:
    await call.execute(c.Discard(call.path, call.numbers()))
    return call.ok({})


async def _reactivate(call: Call) -> bytes | Stream:
    await call.execute(c.Reactivate(call.path, call.numbers()))
    return call.ok()


async def _change_priority(call: Call) -> bytes | Stream:
    said = call.arguments
    number, level = said.count("sequence-number"), said.integer("level")
    await call.execute(c.ChangePriority(call.path, number, level))
    return call.ok()


async def _dead_letter_session(call: Call) -> bytes | Stream:
    said = call.arguments
    moved = await call.execute(
        c.DeadLetterSession(
            call.path,
            said.text("session-id"),
            call.link,
            said.optional_text("deadletter-reason"),
            said.optional_text("deadletter-description"),
            said.integer("message-count", limits.MAX_BATCH_DELETE),
        )
    )
    return call.ok({"message-count": Int(moved)})


async def _count_sessions(call: Call) -> bytes | Stream:
    counts: SessionCounts = await call.execute(c.CountSessions(call.path))
    return call.ok(
        {
            "sessions": Int(counts.sessions),
            "available": Int(counts.available),
            "locked": Int(counts.locked),
            "with-state": Int(counts.with_state),
        }
    )


OPERATIONS: Final[Mapping[str, Operation]] = {
    "tandem:browse": _browse,
    "tandem:discard": _discard,
    "tandem:reactivate": _reactivate,
    "tandem:change-priority": _change_priority,
    "tandem:dead-letter-session": _dead_letter_session,
    "tandem:count-sessions": _count_sessions,
}
