"""Every way to ask something of the broker, as a row of the access matrix.

A row does one thing as well as the role that tries it can. It ends, or raises the `Refusal` that
the broker gave; and it names the kinds of commands that have reached the engine by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from tandembus.amqp import performatives as p
from tandembus.amqp.message import encode_message
from tandembus.core import commands as c
from tandembus.core.rules import Rule, TrueFilter
from tandembus.errors import Refused, UnauthorizedError
from tandembus.model import Symbol, Timestamp
from tandembus.settings import PrioritySettings, QueueSettings, SubscriptionSettings, TopicSettings
from tests.unit.server.access_world import OF_SESSION, OTHER, PAYLOAD, Role, World
from tests.unit.server.desk import encode_request, longs, uuids
from tests.unit.server.visitor import UNAUTHORIZED, Refusal, Visitor

Try: TypeAlias = Callable[[World, Role], Awaitable[None]]
SESSION_FILTER = Symbol("com.microsoft:session-filter")
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@dataclass(frozen=True)
class Row:
    road: str
    what: str
    commands: tuple[type[object], ...]
    """What reaches the engine when it is allowed."""
    attempt: Try


ROWS: list[Row] = []


def _row(road: str, what: str, *commands: type[object]) -> Callable[[Try], Try]:
    def add(attempt: Try) -> Try:
        ROWS.append(Row(road, what, commands, attempt))
        return attempt

    return add


# --- links ----------------------------------------------------------------------------------------


async def send(world: World, role: Role, by: str = "sas") -> None:
    queue = await world.queue()
    visitor = await world.visit(role, queue, by=by)
    link = await visitor.attach(queue, sends=True)
    await visitor.deliver(link, PAYLOAD)


async def receive(world: World, role: Role, by: str = "sas") -> None:
    queue = await world.queue()
    await world.fill(queue)
    await _receive(await world.visit(role, queue, by=by), queue)


async def _receive(visitor: Visitor, path: str) -> None:
    link = await visitor.attach(path, sends=False)
    message = await visitor.receive(link)
    await visitor.settle(link, message.delivery_id, p.ACCEPTED)


_row("link", "send to a queue", c.Send)(send)
_row("link", "receive from a queue, complete", c.Attach, c.Flow, c.Settle)(receive)


@_row("link", "send to a topic", c.Send)
async def _publish(world: World, role: Role) -> None:
    topic, _ = await world.topic()
    visitor = await world.visit(role, topic)
    await visitor.deliver(await visitor.attach(topic, sends=True), PAYLOAD)


@_row("link", "receive from a subscription, complete", c.Attach, c.Flow, c.Settle)
async def _subscribe(world: World, role: Role) -> None:
    topic, subscription = await world.topic()
    await world.fill(topic)
    await _receive(await world.visit(role, subscription), subscription)


@_row("link", "receive dead letters", c.Attach, c.Flow, c.Settle)
async def _dead_letters(world: World, role: Role) -> None:
    queue = await world.queue()
    token = await world.locked(queue)
    await world.do(c.Settle(queue, (token,), c.Disposition.DEAD_LETTER))
    await _receive(await world.visit(role, queue), f"{queue}/$DeadLetterQueue")


@_row("link", "attach, detach", c.Attach, c.Detach)
async def _detach(world: World, role: Role) -> None:
    queue = await world.queue()
    visitor = await world.visit(role, queue)
    link = await visitor.attach(queue, sends=False)
    link.detach()
    await visitor.detached(link)


# --- $cbs -----------------------------------------------------------------------------------------


@_row("$cbs", "attach")
async def _attach_cbs(world: World, role: Role) -> None:
    visitor = await world.come()
    await visitor.node("$cbs")


@_row("$cbs", "put-token for the entity")
async def _put_token(world: World, role: Role) -> None:
    queue = await world.queue()
    token = "" if role.policy is None else world.token(role, "")
    world.expire(role)
    visitor = await world.come()
    await visitor.put_token(token, f"sb://localhost/{queue}")


@_row("$cbs", "then a link, without a token for it")
async def _no_token(world: World, role: Role) -> None:
    visitor = await world.come()
    await visitor.node("$cbs")
    await visitor.attach(await world.queue(), sends=True)


# --- $management ----------------------------------------------------------------------------------


def full_name(operation: str) -> str:
    """Azure's are called by their last word, others in full."""
    return operation if ":" in operation else f"com.microsoft:{operation}"


def _operation(name: str, *commands: type[object]) -> Callable[[Any], Any]:
    """A row for an operation: the function makes ready, and gives the entity and the request. The
    node is attached while an expired token still holds, so that the request itself is judged."""

    def add(prepare: Callable[[World], Awaitable[tuple[str, object]]]) -> None:
        async def attempt(world: World, role: Role) -> None:
            path, body = await prepare(world)
            visitor = await world.visit(role, path, is_expired=False)
            node = await visitor.node(f"{path}/$management")
            world.expire(role)
            await visitor.ask(node, encode_request(full_name(name), body))

        ROWS.append(Row("$management", name, commands, attempt))

    return add


@_operation("peek-message", c.Browse)
async def _peek(world: World) -> tuple[str, object]:
    path = await world.queue()
    await world.fill(path)
    return path, {"from-sequence-number": 0, "message-count": 1}


@_operation("renew-lock", c.Renew)
async def _renew(world: World) -> tuple[str, object]:
    path = await world.queue()
    token = await world.locked(path)
    return path, {"lock-tokens": uuids(UUID(bytes_le=token))}


@_operation("schedule-message", c.Send)
async def _schedule(world: World) -> tuple[str, object]:
    return await world.queue(), {"messages": [{"message": PAYLOAD, "message-id": "m"}]}


@_operation("cancel-scheduled-message", c.CancelScheduled)
async def _cancel(world: World) -> tuple[str, object]:
    path = await world.queue()
    due = encode_message(body=b"x", scheduled_ms=world.clock.now_ms() + 3_600_000)
    return path, {"sequence-numbers": longs(await world.fill(path, due))}


@_operation("receive-by-sequence-number", c.ReceiveDeferred)
async def _by_number(world: World) -> tuple[str, object]:
    path = await world.queue()
    number = await world.deferred(path)
    return path, {"sequence-numbers": longs(number), "receiver-settle-mode": 1}


@_operation("update-disposition", c.Settle)
async def _dispose(world: World) -> tuple[str, object]:
    path = await world.queue()
    token = await world.locked(path)
    return path, {
        "disposition-status": "completed",
        "lock-tokens": uuids(UUID(bytes_le=token)),
    }


@_operation("batch-delete-messages", c.DeleteMessages)
async def _delete(world: World) -> tuple[str, object]:
    path = await world.queue()
    await world.fill(path)
    now = Timestamp(world.clock.now_ms() + 1)
    return path, {"message-count": 10, "enqueued-time-utc": now}


@_operation("tandem:survey", c.Survey)
async def _survey(world: World) -> tuple[str, object]:
    return await world.queue(), {}


@_operation("tandem:advance", c.Advance)
async def _advance(world: World) -> tuple[str, object]:
    return await world.queue(), {}


@_operation("tandem:split", c.Advance)
async def _split(world: World) -> tuple[str, object]:
    return await world.queue(), {"parts": 2}


@_operation("tandem:scan", c.Scan)
async def _scan(world: World) -> tuple[str, object]:
    path = await world.queue()
    await world.fill(path)
    return path, {}


@_operation("tandem:move-cursor", c.MoveCursor)
async def _move_cursor(world: World) -> tuple[str, object]:
    return await world.queue(), {"name": "reader", "position": 1}


@_operation("tandem:open-tap", c.OpenTap)
async def _open_tap(world: World) -> tuple[str, object]:
    return await world.queue(), {"name": "reader", "retention": 1_000}


@_operation("tandem:drop-cursor", c.DropCursor)
async def _drop_cursor(world: World) -> tuple[str, object]:
    return await world.queue(), {"name": "reader"}


@_operation("tandem:change-priority", c.ChangePriority)
async def _change_priority(world: World) -> tuple[str, object]:
    path = await world.queue(priority=PrioritySettings())
    numbers = await world.fill(path)
    return path, {"sequence-number": numbers, "level": 9}


@_operation("tandem:browse", c.Browse)
async def _search(world: World) -> tuple[str, object]:
    path = await world.queue()
    await world.fill(path)
    return path, {"filter": "1=1"}


@_operation("tandem:discard", c.Discard)
async def _discard(world: World) -> tuple[str, object]:
    path = await world.queue()
    return path, {"sequence-numbers": longs(await world.deferred(path))}


@_operation("tandem:reactivate", c.Reactivate)
async def _reactivate(world: World) -> tuple[str, object]:
    path = await world.queue()
    return path, {"sequence-numbers": longs(await world.deferred(path))}


@_operation("tandem:dead-letter-session", c.DeadLetterSession)
async def _dead_letter_session(world: World) -> tuple[str, object]:
    path = await world.queue(requires_session=True)
    await world.fill(path, OF_SESSION)
    return path, {"session-id": "one"}


@_operation("tandem:count-sessions", c.CountSessions)
async def _count_sessions(world: World) -> tuple[str, object]:
    return await world.queue(requires_session=True), {}


@_operation("get-message-sessions", c.ListSessions)
async def _sessions(world: World) -> tuple[str, object]:
    path = await world.queue(requires_session=True)
    await world.fill(path, OF_SESSION)
    last = Timestamp(253_402_300_799_999)
    return path, {"last-updated-time": last, "skip": 0, "top": 10}


@_operation("add-rule", c.AddRule)
async def _add_rule(world: World) -> tuple[str, object]:
    _, path = await world.topic()
    rule = {"sql-filter": {"expression": "1=1"}}
    return path, {"rule-name": "all", "rule-description": rule}


@_operation("remove-rule", c.RemoveRule)
async def _remove_rule(world: World) -> tuple[str, object]:
    _, path = await world.topic()
    return path, {"rule-name": "$Default"}


@_operation("enumerate-rules", c.Remark)
async def _rules(world: World) -> tuple[str, object]:
    _, path = await world.topic()
    return path, {"top": 10, "skip": 0}


def _session_operation(name: str, command: type[object], **more: object) -> None:
    async def attempt(world: World, role: Role) -> None:
        path = await world.queue(requires_session=True)
        await world.fill(path, OF_SESSION)
        visitor = await world.visit(role, path, is_expired=False)
        name_of_link = "none"
        try:
            link = await visitor.attach(path, sends=False, filter={SESSION_FILTER: "one"})
            name_of_link = link.name
        except Refusal as refusal:
            if refusal.condition != UNAUTHORIZED:
                raise
            # The request is judged all the same.
        node = await visitor.node(f"{path}/$management")
        world.expire(role)
        request = encode_request(
            f"com.microsoft:{name}",
            {"session-id": "one", **more},
            associated_link_name=name_of_link,
        )
        await visitor.ask(node, request)

    ROWS.append(Row("$management", name, (command,), attempt))


_session_operation("renew-session-lock", c.RenewSession)
_session_operation("get-session-state", c.GetSessionState)
_session_operation("set-session-state", c.SetSessionState, **{"session-state": b"state"})


# --- transactions ---------------------------------------------------------------------------------


@_row("transaction", "declare", c.Declare)
async def _declare(world: World, role: Role) -> None:
    visitor = await world.visit(role, await world.queue())
    await visitor.declare()


@_row("transaction", "send, discharge", c.Declare, c.Send, c.Discharge)
async def _send_in(world: World, role: Role) -> None:
    queue = await world.queue()
    visitor = await world.visit(role, queue)
    coordinator, txn_id = await visitor.declare()
    link = await visitor.attach(queue, sends=True)
    await visitor.deliver(link, PAYLOAD, p.TransactionalState(txn_id))
    await visitor.discharge(coordinator, txn_id)


@_row("transaction", "complete, discharge", c.Declare, c.Settle, c.Discharge)
async def _settle_in(world: World, role: Role) -> None:
    queue = await world.queue()
    await world.fill(queue)
    visitor = await world.visit(role, queue)
    coordinator, txn_id = await visitor.declare()
    link = await visitor.attach(queue, sends=False)
    message = await visitor.receive(link)
    state = p.TransactionalState(txn_id, p.ACCEPTED)
    await visitor.settle(link, message.delivery_id, state)
    await visitor.discharge(coordinator, txn_id)


# --- ATOM -----------------------------------------------------------------------------------------


def _description(kind: str, inside: str = "") -> str:
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
    )


FILTER = (
    '<Filter i:type="TrueFilter" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    "<SqlExpression>1=1</SqlExpression></Filter>"
)


@_row("ATOM", "PUT a queue", c.CreateQueue)
async def _put_queue(world: World, role: Role) -> None:
    await world.http(role, "PUT", world.new_name("new"), _description("QueueDescription"))


@_row("ATOM", "PUT a topic", c.CreateTopic)
async def _put_topic(world: World, role: Role) -> None:
    await world.http(role, "PUT", world.new_name("new"), _description("TopicDescription"))


@_row("ATOM", "PUT a subscription", c.CreateSubscription)
async def _put_subscription(world: World, role: Role) -> None:
    topic, _ = await world.topic()
    description = _description("SubscriptionDescription")
    await world.http(role, "PUT", f"{topic}/Subscriptions/more", description)


@_row("ATOM", "PUT a queue again (If-Match)", c.UpdateEntity)
async def _update(world: World, role: Role) -> None:
    queue = await world.queue()
    await world.http(role, "PUT", queue, _description("QueueDescription"), If_Match="*")


@_row("ATOM", "PUT a queue that forwards to another one", c.UpdateEntity)
async def _forward(world: World, role: Role) -> None:
    queue = await world.queue()
    description = _description("QueueDescription", f"<ForwardTo>{OTHER}</ForwardTo>")
    await world.http(role, "PUT", queue, description, If_Match="*")


@_row("ATOM", "DELETE a queue", c.DeleteEntity)
async def _delete_queue(world: World, role: Role) -> None:
    await world.http(role, "DELETE", await world.queue())


@_row("ATOM", "DELETE a subscription", c.DeleteEntity)
async def _delete_subscription(world: World, role: Role) -> None:
    _, subscription = await world.topic()
    await world.http(role, "DELETE", subscription)


@_row("ATOM", "PUT a rule", c.AddRule)
async def _put_rule(world: World, role: Role) -> None:
    _, subscription = await world.topic()
    description = _description("RuleDescription", f"{FILTER}<Name>more</Name>")
    await world.http(role, "PUT", f"{subscription}/Rules/more", description)


@_row("ATOM", "PUT a rule again (If-Match)", c.UpdateRule)
async def _update_rule(world: World, role: Role) -> None:
    _, subscription = await world.topic()
    description = _description("RuleDescription", f"{FILTER}<Name>$Default</Name>")
    await world.http(role, "PUT", f"{subscription}/Rules/$Default", description, If_Match="*")


@_row("ATOM", "DELETE a rule", c.RemoveRule)
async def _delete_rule(world: World, role: Role) -> None:
    _, subscription = await world.topic()
    await world.http(role, "DELETE", f"{subscription}/Rules/$Default")


def _look(what: str, path: str) -> None:
    async def attempt(world: World, role: Role) -> None:
        queue = await world.queue()
        topic, subscription = await world.topic()
        where = path.format(queue=queue, topic=topic, subscription=subscription)
        await world.http(role, "GET", where)

    ROWS.append(Row("ATOM", what, (), attempt))


_look("GET a queue", "{queue}")
_look("GET a subscription", "{subscription}")
_look("GET a rule", "{subscription}/Rules/$Default")
_look("list queues", "$Resources/queues?$top=1")
_look("list topics", "$Resources/topics?$top=1")
_look("list subscriptions", "{topic}/Subscriptions")
_look("list rules", "{subscription}/Rules")
_look("$namespaceinfo", "$namespaceinfo")


@_row("ATOM", "GET /health")
async def _health(world: World, role: Role) -> None:
    await world.http(Role("nobody"), "GET", "health")


# --- the engine itself ----------------------------------------------------------------------------

TOKEN = bytes(16)
RULE = Rule("r", TrueFilter(), None, 0)
COMMANDS: dict[type[object], Callable[[str], c.Command]] = {
    c.CreateQueue: lambda path: c.CreateQueue(path, QueueSettings()),
    c.CreateTopic: lambda path: c.CreateTopic(path, TopicSettings()),
    c.CreateSubscription: lambda path: c.CreateSubscription(path, "s", SubscriptionSettings()),
    c.UpdateEntity: lambda path: c.UpdateEntity(path, QueueSettings()),
    c.DeleteEntity: c.DeleteEntity,
    c.AddRule: lambda path: c.AddRule(path, RULE),
    c.UpdateRule: lambda path: c.UpdateRule(path, RULE),
    c.RemoveRule: lambda path: c.RemoveRule(path, "r"),
    c.Send: lambda path: c.Send(path, []),
    c.CancelScheduled: lambda path: c.CancelScheduled(path, [1]),
    c.Attach: lambda path: c.Attach(1_000_000, path),
    c.Flow: lambda path: c.Flow(1_000_000, 0, 0),
    c.Detach: lambda path: c.Detach(1_000_000),
    c.ReceiveDeferred: lambda path: c.ReceiveDeferred(path, [1], 1),
    c.Browse: c.Browse,
    c.Survey: c.Survey,
    c.Advance: lambda path: c.Advance(path, 0, 0, 1),
    c.Scan: lambda path: c.Scan(path, 0, 0, 1, 1, 1),
    c.MoveCursor: lambda path: c.MoveCursor(path, "reader", 0, 1),
    c.OpenTap: lambda path: c.OpenTap(path, "reader", 1_000),
    c.DropCursor: lambda path: c.DropCursor(path, "reader"),
    c.Settle: lambda path: c.Settle(path, [TOKEN], c.Disposition.COMPLETE),
    c.Renew: lambda path: c.Renew(path, [TOKEN]),
    c.DeleteMessages: lambda path: c.DeleteMessages(path, 1, 1),
    c.ChangePriority: lambda path: c.ChangePriority(path, 1, 1),
    c.RenewSession: lambda path: c.RenewSession(path, "one", 1),
    c.SetSessionState: lambda path: c.SetSessionState(path, "one", None, 1),
    c.GetSessionState: lambda path: c.GetSessionState(path, "one", 1),
    c.ListSessions: c.ListSessions,
    c.CountSessions: c.CountSessions,
    c.DeadLetterSession: lambda path: c.DeadLetterSession(path, "one"),
    c.Discard: lambda path: c.Discard(path, [1]),
    c.Reactivate: lambda path: c.Reactivate(path, [1]),
    c.Declare: lambda path: c.Declare(),
    c.Discharge: lambda path: c.Discharge(1_000_000),
    c.Loaded: lambda path: c.Loaded(1_000_000, {}),
    c.Remark: lambda path: c.Remark(path, 1),
}
"""Each kind of command, about an entity. Whether it makes sense is not asked here."""

INSIDE = {c.Loaded}
"""Commands that no road leads to: the engine's own, and those of roads that are not built yet."""


def engine_row(kind: type[object]) -> Row:
    async def attempt(world: World, role: Role) -> None:
        path = await world.queue()
        try:
            claims = world.claims(role, path)
            await world.broker.engine.execute(COMMANDS[kind](path), claims)
        except UnauthorizedError as error:
            raise Refusal(error.condition, str(error)) from None
        except Refused:
            pass  # it was allowed to ask

    return Row("engine", kind.__name__, (), attempt)
