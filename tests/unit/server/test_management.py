"""`server/management.py`: what all operations share; peek and schedule."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tandembus.amqp.message import encode_message
from tandembus.amqp.types import Int, Long, UInt, ULong
from tandembus.core.access import Claims, Grant, Right
from tandembus.core.commands import CreateTopic
from tandembus.core.effects import Delivery
from tandembus.model import NEVER, Timestamp
from tandembus.server import management
from tandembus.server.stored import Stream
from tests.unit.server.desk import (
    ID,
    Desk,
    Reply,
    encode_request,
    full_name,
    longs,
    messages_of,
    run,
    transport,
    uuids,
)

NOT_FOUND = "com.microsoft:message-not-found"
BAD = "com.microsoft:argument-error"
NOT_ALLOWED = "amqp:not-allowed"


# --- every reply ----------------------------------------------------------------------------------


def test_an_unknown_operation_is_a_501() -> None:
    async def scene(desk: Desk) -> None:
        for operation in ("com.microsoft:dance", ""):
            found = await desk.raw(encode_request(operation, {}))
            assert (found.status, found.condition) == (501, "amqp:not-implemented")
            assert not found.has_body

    run(scene)


def test_a_refusal_leads_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """T1: the tracking id, the client's own if it has one, is in the reply and in the log."""

    async def scene(desk: Desk) -> None:
        said = {"com.microsoft:tracking-id": "mine-1"}
        found = await desk.ask("peek-message", {"message-count": Int(1)}, path="nowhere", **said)
        assert (found.status, found.condition) == (404, "amqp:not-found")
        assert "The messaging entity 'nowhere' could not be found." in found.description
        assert "TrackingId:mine-1, SystemTracker:tandem:nowhere, Timestamp:20" in found.description
        found = await desk.ask("peek-message", {"message-count": Int(1)}, path="nowhere")
        tracking_id = found.description.partition("TrackingId:")[2].partition(",")[0]
        assert str(UUID(tracking_id)) == tracking_id
        assert tracking_id in caplog.text

    caplog.set_level("INFO", "tandembus.server")
    run(scene)
    assert "TrackingId:mine-1" in caplog.text


@pytest.mark.parametrize("operation", sorted(management.OPERATIONS))
@pytest.mark.parametrize(
    "body",
    [
        None,
        "text",
        {},
        dict.fromkeys(("message-count", "lock-tokens", "sequence-numbers", "top"), "text"),
        {"lock-tokens": [], "sequence-numbers": longs(), "messages": [], "rule-name": "/"},
        {"messages": ["x"], "session-id": 5, "skip": Int(-1), "message-count": Int(-1)},
        {"messages": [{"message": b"\x00"}], "sequence-numbers": longs(-1), "session-id": "s"},
        {"lock-tokens": uuids(ID), "disposition-status": "released", "session-state": "text"},
        {"sequence-numbers": [ULong(2**64 - 1)], "from-sequence-number": ULong(2**64 - 1)},
    ],
)
def test_no_request_does_harm(operation: str, body: object) -> None:
    """S21: an odd request gets a reply, and the engine lives on."""

    async def scene(desk: Desk) -> None:
        await desk.queue("q")
        await desk.queue("s", requires_session=True)
        await desk.queue("p", enable_partitioning=True)
        await desk.do(CreateTopic("t"))
        for path in ("q", "s", "p", "t", "q/$deadletterqueue"):
            found = await desk.raw(encode_request(operation, body), path=path)
            assert 200 <= found.status < 500
            assert (found.condition is not None) == (found.status != 200)
        assert await desk.send(encode_message(body=b"x")) == [1]

    run(scene)


def test_nobody_waits_longer_than_the_client() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        desk.stalls = True
        said: dict[str, Any] = {"com.microsoft:server-timeout": UInt(5)}
        found = await desk.ask("peek-message", {"message-count": Int(1)}, **said)
        assert (found.status, found.condition) == (408, "com.microsoft:timeout")

    run(scene)


RIGHTS = {
    "peek-message": Right.LISTEN,
    "renew-lock": Right.LISTEN,
    "schedule-message": Right.SEND,
    "cancel-scheduled-message": Right.SEND,
    "receive-by-sequence-number": Right.LISTEN,
    "update-disposition": Right.LISTEN,
    "renew-session-lock": Right.LISTEN,
    "get-session-state": Right.LISTEN,
    "set-session-state": Right.LISTEN,
    "get-message-sessions": Right.LISTEN,
    "add-rule": Right.LISTEN,
    "remove-rule": Right.LISTEN,
    "enumerate-rules": Right.LISTEN,
    "batch-delete-messages": Right.LISTEN,
    "tandem:survey": Right.LISTEN,
    "tandem:advance": Right.LISTEN,
    "tandem:split": Right.LISTEN,
    "tandem:scan": Right.LISTEN,
    "tandem:move-cursor": Right.LISTEN,
    "tandem:open-tap": Right.MANAGE,
    "tandem:drop-cursor": Right.LISTEN,
    "tandem:change-priority": Right.MANAGE,
    "tandem:browse": Right.LISTEN,
    "tandem:discard": Right.LISTEN,
    "tandem:reactivate": Right.LISTEN,
    "tandem:dead-letter-session": Right.LISTEN,
    "tandem:count-sessions": Right.LISTEN,
}
WELL_FORMED: dict[str, object] = {
    "from-sequence-number": Long(1),
    "message-count": Int(1),
    "lock-tokens": uuids(ID),
    "sequence-numbers": longs(1),
    "messages": [{"message": encode_message(body=b"x")}],
    "disposition-status": "completed",
    "session-id": "s",
    "rule-name": "r",
    "rule-description": {},
    "parts": Int(2),
    "name": "reader",
    "position": Int(1),
    "retention": Int(1_000),
    "level": Int(0),
    "sequence-number": Long(1),
}


@pytest.mark.parametrize("operation", sorted(RIGHTS))
def test_who_may_ask(operation: str) -> None:
    """S9: each operation takes its right, on its entity or on the node, and no other will do; who
    has none does not learn whether there is such an entity."""

    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)
        needed = RIGHTS[operation]
        for path in ("q", "nowhere"):
            for granted in ("", "q", "nowhere", "q/$management", "q/$deadletterqueue", "other"):
                for right in (Right.LISTEN, Right.SEND, Right.ALL):
                    desk.claims = Claims({granted: Grant(granted, right, NEVER)})
                    found = await desk.ask(operation, WELL_FORMED, path=path)
                    may = needed in right and granted.removesuffix("/$management") in ("", path)
                    assert (found.status != 401) == may, (path, granted, right)
                    assert (found.condition == "amqp:unauthorized-access") != may
        desk.claims = Claims({"": Grant("", Right.ALL, desk.now_ms())})
        assert (await desk.ask(operation, WELL_FORMED)).status == 401, "expired"

    assert {full_name(name) for name in RIGHTS} == set(management.OPERATIONS)
    run(scene)


# --- peek -----------------------------------------------------------------------------------------


def test_peek() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        pyamqp = transport()

        def wanted(number: int, count: int) -> dict[str, Any]:
            return {
                "from-sequence-number": pyamqp.AMQP_LONG_VALUE(number),
                "message-count": count,
            }

        found = await desk.ask_as_sdk("peek-message", wanted(1, 5))
        assert (found.status, found.condition, found.has_body) == (204, NOT_FOUND, False)
        assert found.handled("peek_op", receiver=None) == []
        await desk.send(*(encode_message(body=b"%d" % n, message_id=f"m{n}") for n in range(5)))
        found = await desk.ask_as_sdk("peek-message", wanted(1, 3))
        assert found.status == 200
        assert [list(each) for each in found.body["messages"]] == [["message"]] * 3
        assert type(found.body["messages"]) is list
        receiver = type("Receiver", (), {})()
        shown = found.handled("peek_op", receiver=receiver)
        assert [message.sequence_number for message in shown] == [1, 2, 3]
        assert [message.message_id for message in shown] == ["m0", "m1", "m2"]
        assert receiver._last_received_sequenced_number == 3
        found = await desk.ask_as_sdk("peek-message", wanted(4, 250))
        assert [message.message_id for message in messages_of(found)] == ["m3", "m4"]
        assert (await desk.ask_as_sdk("peek-message", wanted(6, 1))).status == 204
        assert (await desk.ask("peek-message", {"message-count": Int(0)})).condition == BAD
        # From before the beginning, as a client that starts at zero asks.
        found = await desk.ask(
            "peek-message", {"from-sequence-number": Long(-1), "message-count": Int(9)}
        )
        assert len(messages_of(found)) == 5

    run(scene)


def test_peek_shows_all_states_and_one_session() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)
        later = desk.now_ms() + 60_000
        await desk.send(
            encode_message(body=b"1", session_id="a"),
            encode_message(body=b"2", session_id="b"),
            encode_message(body=b"3", session_id="a", scheduled_ms=later),
        )
        found = await desk.ask("peek-message", {"message-count": Int(10)})
        assert len(messages_of(found)) == 3
        body = {"message-count": Int(10), "session-id": "a", "from-sequence-number": Long(1)}
        found = await desk.ask("peek-message", body)
        shown = found.handled("peek_op", receiver=type("Receiver", (), {})())
        assert [(m.session_id, int(m.state)) for m in shown] == [("a", 0), ("a", 2)]
        body["session-id"] = "nobody"
        assert (await desk.ask("peek-message", body)).status == 204

    run(scene)


def test_peek_is_bounded_by_size() -> None:
    """A page is about one largest message; the client asks for the next. One always fits."""

    async def scene(desk: Desk) -> None:
        await desk.queue(max_message_size_kb=64)
        await desk.send(*(encode_message(body=bytes(20_000)) for _ in range(10)))
        body = {"from-sequence-number": Long(1), "message-count": Int(250)}
        found = await desk.ask("peek-message", body)
        assert len(messages_of(found)) == 3
        found = await desk.ask("peek-message", {**body, "omit-message-body": True})
        assert len(messages_of(found)) == 10
        assert all(len(message.payload) < 200 for message in messages_of(found))
        await desk.queue("big", max_message_size_kb=4_096)
        await desk.send(encode_message(body=bytes(2_000_000)), encode_message(), path="big")
        found = await desk.ask("peek-message", body, path="big")
        assert [len(message.payload) > 2_000_000 for message in messages_of(found)] == [True]

    run(scene)


def test_peek_leaves_out_what_is_gone_meanwhile() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        await desk.send(encode_message(body=b"1"), encode_message(body=b"2"))
        render = desk.render

        def render_late(path: str, delivery: Delivery, *, is_whole: bool = True) -> bytes | Stream:
            if delivery.sequence_number == 1:
                raise KeyError(delivery.body)
            return render(path, delivery, is_whole=is_whole)

        desk.render = render_late  # type: ignore[method-assign]
        found = await desk.ask("peek-message", {"message-count": Int(5)})
        assert len(messages_of(found)) == 1

    run(scene)


# --- schedule -------------------------------------------------------------------------------------


def test_schedule_and_cancel_as_azure_servicebus_does() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        module = pytest.importorskip("azure.servicebus._servicebus_sender")
        servicebus = pytest.importorskip("azure.servicebus")
        datetime = pytest.importorskip("datetime")
        due = datetime.datetime.fromtimestamp(desk.now_ms() / 1000 + 60, datetime.UTC)
        messages = [
            servicebus.ServiceBusMessage(text, message_id=str(n), session_id="s")
            for n, text in enumerate(("one", "two"))
        ]
        body, _ = module.SenderMixin._build_schedule_request(due, transport(), {}, *messages)
        found = await desk.ask_as_sdk("schedule-message", body)
        assert found.body["sequence-numbers"].code == 0x81
        numbers = found.handled("schedule_op")
        assert numbers == [1, 2]
        shown = await desk.ask("peek-message", {"message-count": Int(9)})
        states = shown.handled("peek_op", receiver=type("Receiver", (), {})())
        assert [int(message.state) for message in states] == [2, 2]

        pyamqp = transport()
        wanted = pyamqp.AMQP_ARRAY_VALUE([pyamqp.AMQP_LONG_VALUE(n) for n in numbers])
        found = await desk.ask_as_sdk("cancel-scheduled-message", {"sequence-numbers": wanted})
        assert found.status == 200
        assert found.handled("default") == {}
        found = await desk.ask("cancel-scheduled-message", {"sequence-numbers": longs(1)})
        assert (found.status, found.condition) == (404, NOT_FOUND)
        assert (await desk.ask("peek-message", {"message-count": Int(9)})).status == 204

    run(scene)


def test_schedule_is_refused_as_a_send_is() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)

        async def schedule(message: bytes, path: str = "q") -> Reply:
            body = {"messages": [{"message-id": "x", "message": message}]}
            return await desk.ask("schedule-message", body, path=path)

        assert (await schedule(encode_message())).condition == NOT_ALLOWED
        found = await schedule(encode_message(body=bytes(300_000), session_id="s"))
        assert found.condition == "amqp:link:message-size-exceeded"
        found = await schedule(b"\x00\x53\x99\x40")
        assert (found.status, found.condition) == (400, "amqp:decode-error")
        found = await schedule(encode_message(session_id="s"), "q/$DeadLetterQueue")
        assert found.condition == NOT_ALLOWED
        assert (await schedule(encode_message(session_id="s"))).body["sequence-numbers"] == [1]

    run(scene)


# --- batch delete ---------------------------------------------------------------------------------


def test_batch_delete() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        await desk.send(*(encode_message(body=b"%d" % n) for n in range(5)))
        desk.clock.advance(10)
        body = {"message-count": Int(3), "enqueued-time-utc": Timestamp(desk.now_ms())}
        found = await desk.ask("batch-delete-messages", body)
        assert (found.status, found.body) == (200, {"message-count": 3})
        assert type(found.body["message-count"]) is Int
        await desk.send(encode_message(body=b"new"))
        body["message-count"] = Int(4_000)
        assert (await desk.ask("batch-delete-messages", body)).body == {"message-count": 2}
        found = await desk.ask("batch-delete-messages", body)
        assert (found.status, found.condition, found.has_body) == (204, NOT_FOUND, False)

    run(scene)
