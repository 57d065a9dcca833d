"""Messages in the console: looked at by page and filter, sent, and moved about by their numbers.

The rule: what is sent again is first stored in its new place, and only then deleted from the old
one; whoever stops in between finds it twice, never not at all, and with the same id.
"""

from __future__ import annotations

from typing import Any, Final

from tandembus.admin.console.site import Render, Visit
from tandembus.amqp.message import AmqpMessage
from tandembus.changes import EntityKind
from tandembus.client.messages import ReceivedMessage
from tandembus.client.written import as_json, from_json, matcher
from tandembus.core import commands as c
from tandembus.core.state import State
from tandembus.errors import ArgumentError, MessageNotFoundError
from tandembus.limits import CONSOLE_PAGE, MAX_CONSOLE_PAGE, MAX_CONSOLE_SCAN

_STATES: Final = {
    "active": (State.WAITING, State.LOCKED),
    "scheduled": (State.SCHEDULED,),
    "deferred": (State.DEFERRED, State.DEFERRED_LOCKED),
    "delayed": (State.DELAYED,),
}
_SHORT: Final = 2_000
"""Characters of a body in a list."""


async def browse(visit: Visit, render: Render) -> dict[str, Any]:
    """A page of messages from a number on, in one state or all, and by a SQL filter."""
    queue = visit.queue()
    first = visit.integer("from", 0, 1 << 64)
    top = visit.integer("top", CONSOLE_PAGE, MAX_CONSOLE_PAGE) or CONSOLE_PAGE
    session = visit.said.get("session") or None
    states = _STATES.get(visit.text("state", ""), ())
    matches = matcher(visit.said.get("filter") or None)
    found: list[dict[str, Any]] = []
    looked, following = 0, first
    while len(found) < top and looked < MAX_CONSOLE_SCAN:
        page = await visit.execute(c.Browse(queue.path, following, 250, session, states=states))
        if not page:
            return {"rows": found, "next": None, "looked": looked}
        for delivery in page:
            following = delivery.sequence_number + 1
            looked += 1
            rendered = _rendered(visit, render, queue.path, delivery, is_whole=False)
            if rendered is not None and matches(rendered[0]):
                found.append(_described(*rendered, delivery))
                if len(found) == top:
                    break
    return {"rows": found, "next": str(following), "looked": looked}


def _rendered(
    visit: Visit, render: Render, path: str, delivery: Any, *, is_whole: bool
) -> tuple[ReceivedMessage, int] | None:
    """The message, and its size; if it is large and not wanted as a whole, without its body."""
    try:
        payload, size = render(visit.broker, path, delivery, is_whole)
    except KeyError:
        return None  # it has gone meanwhile
    return ReceivedMessage(payload, 0, b"", None), size


def _described(
    message: ReceivedMessage, size: int, delivery: Any, *, is_whole: bool = False
) -> Any:
    tree = as_json(message)
    tree["sequence_number"] = str(message.sequence_number)
    tree["state"] = State(delivery.state).name.lower().replace("_", " ")
    tree["level"] = delivery.level
    tree["size"] = size
    if size > len(message.payload):
        tree["is_cut"] = True
    for name in ("body", "body_base64"):
        text = tree.get(name)
        if isinstance(text, str) and len(text) > _SHORT and not is_whole:
            tree[name] = text[:_SHORT]
            tree["is_cut"] = True
    return tree


async def show(visit: Visit, render: Render) -> dict[str, Any]:
    """One message, with its whole body."""
    queue, number = visit.queue(), visit.integer("number", 0, 1 << 64)
    return {"message": await _one(visit, render, queue.path, number)}


async def _one(visit: Visit, render: Render, path: str, number: int) -> Any:
    for delivery in await visit.execute(c.Browse(path, number, 1, None)):
        rendered = _rendered(visit, render, path, delivery, is_whole=True)
        if delivery.sequence_number == number and rendered is not None:
            return _described(*rendered, delivery, is_whole=True)
    raise MessageNotFoundError(number)


async def send(visit: Visit) -> dict[str, Any]:
    """One or several messages, now or at their time; the numbers of those that are scheduled."""
    said = visit.said.get("messages")
    if not isinstance(said, list) or not said:
        raise ArgumentError("'messages' is a list of messages.")
    now = visit.broker.now_ms()
    written = [from_json(each, f"message {at + 1}", now) for at, each in enumerate(said)]
    numbers = await visit.execute(c.Send(visit.queue().path, [_message(each) for each in written]))
    return {"numbers": [str(number) for number in numbers or ()]}


def _message(message: Any) -> AmqpMessage:
    return AmqpMessage(message.encoded())


async def resubmit(visit: Visit, render: Render) -> dict[str, Any]:
    """Messages again to where they were sent first, or elsewhere, as they were or as edited."""
    queue = visit.queue()
    target = visit.text("to", "") or _home(queue)
    edits = visit.said.get("edits") or {}
    if not isinstance(edits, dict):
        raise ArgumentError("'edits' is an object.")
    done = 0
    for number in visit.numbers():
        tree = {**await _one(visit, render, queue.path, number), **edits}
        for name in ("is_cut", "size", "level", "scheduled_enqueue_time"):
            tree.pop(name, None)
        again = from_json(tree, f"message {number}", visit.broker.now_ms())
        await visit.execute(c.Send(target, [_message(again)]))
        await visit.execute(c.Discard(queue.path, [number]))
        done += 1
    return {"done": done, "to": target}


def _home(queue: Any) -> str:
    """Where a dead letter came from: a subscription's goes to its topic again."""
    if queue.kind is not EntityKind.DEAD_LETTER:
        raise ArgumentError("Say where to: 'to' is a queue or a topic.")
    owner: str = queue.owner.path
    return owner.partition("/Subscriptions/")[0]


async def discard(visit: Visit) -> dict[str, Any]:
    numbers = visit.numbers()
    await visit.execute(c.Discard(visit.queue().path, numbers))
    return {"done": len(numbers)}


async def reactivate(visit: Visit) -> dict[str, Any]:
    numbers = visit.numbers()
    await visit.execute(c.Reactivate(visit.queue().path, numbers))
    return {"done": len(numbers)}


async def purge(visit: Visit) -> dict[str, Any]:
    """Some of what waits; asked again until nothing is left."""
    queue = visit.queue()
    command = c.DeleteMessages(queue.path, 4_000, visit.broker.now_ms() + 1)
    return {"done": await visit.execute(command)}
