"""`server/management.py`: deferred messages, locks and sessions over $management."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.amqp.message import encode_message
from tandembus.amqp.performatives import TransactionalState
from tandembus.amqp.types import Int, Long, UByte, UInt
from tandembus.core.commands import Disposition, Settle
from tandembus.core.effects import Delivery
from tandembus.model import Timestamp
from tandembus.server import management
from tandembus.server.requests import parse_request
from tests.unit.server.desk import (
    ID,
    Desk,
    Reply,
    encode_request,
    longs,
    messages_of,
    run,
    token_of,
    transport,
    uuids,
)

LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOST = "com.microsoft:session-lock-lost"
NOT_FOUND = "com.microsoft:message-not-found"
BAD = "com.microsoft:argument-error"
NOT_ALLOWED = "amqp:not-allowed"
NET_MAX = Timestamp(253_402_300_800_000)


async def deferred(desk: Desk, *bodies: bytes, path: str = "q", **message: Any) -> list[Delivery]:
    """Messages that were sent, received and deferred."""
    await desk.send(*(encode_message(body=body, **message) for body in bodies), path=path)
    found = await desk.receive(len(bodies), path, link=9, session=message.get("session_id"))
    tokens = [delivery.token or b"" for delivery in found]
    await desk.do(Settle(path, tokens, Disposition.DEFER))
    return found


# --- deferred messages, locks ---------------------------------------------------------------------


def test_receive_by_number_and_settle() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue(lock_duration_ms=10_000)
        await deferred(desk, b"1", b"2")
        pyamqp = transport()
        wanted = pyamqp.AMQP_ARRAY_VALUE([pyamqp.AMQP_LONG_VALUE(n) for n in (1, 2)])
        body = {"sequence-numbers": wanted, "receiver-settle-mode": pyamqp.AMQP_UINT_VALUE(1)}
        found = await desk.ask_as_sdk("receive-by-sequence-number", body)
        received = found.handled("deferred_message_op", receiver=None)
        tokens = [each["lock-token"] for each in found.body["messages"]]
        assert [message.lock_token for message in received] == tokens
        assert [int(message.state) for message in received] == [1, 1]
        until = desk.now_ms() + 10_000
        assert [m.locked_until_utc.timestamp() * 1000 for m in received] == [until, until]

        desk.clock.advance(5_000)
        body = {"lock-tokens": pyamqp.AMQP_ARRAY_VALUE(tokens)}
        found = await desk.ask_as_sdk("renew-lock", body)
        assert found.body["expirations"].code == 0x83
        renewed = found.handled("message_lock_renew_op")
        assert renewed == {b"expirations": [desk.now_ms() + 10_000] * 2}

        status = {"disposition-status": "completed"}
        found = await desk.ask("update-disposition", {**status, "lock-tokens": uuids(tokens[0])})
        assert (found.status, found.handled("default")) == (200, {})
        found = await desk.ask("update-disposition", {**status, "lock-tokens": uuids(*tokens)})
        assert (found.status, found.condition) == (410, LOCK_LOST)
        desk.clock.advance(10_000)
        for operation in ("renew-lock", "update-disposition"):
            found = await desk.ask(operation, {**status, "lock-tokens": uuids(tokens[1])})
            assert (found.status, found.condition) == (410, LOCK_LOST)

    run(scene)


def test_receive_by_number_takes_all_or_none() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        await deferred(desk, b"1")
        await desk.send(encode_message(body=b"2"))
        ask = desk.ask
        for numbers in ((1, 2), (1, 7), (1, -1)):
            found = await ask("receive-by-sequence-number", {"sequence-numbers": longs(*numbers)})
            assert (found.status, found.condition) == (404, NOT_FOUND)
        found = await ask("receive-by-sequence-number", {"sequence-numbers": longs(*range(251))})
        assert found.condition == BAD
        body = {"sequence-numbers": [Long(1)], "receiver-settle-mode": UByte(2)}
        assert (await ask("receive-by-sequence-number", body)).condition == BAD
        body["receiver-settle-mode"] = UByte(0)
        found = await ask("receive-by-sequence-number", body)
        assert [list(each) for each in found.body["messages"]] == [["message"]]
        assert (await ask("receive-by-sequence-number", body)).condition == NOT_FOUND

    run(scene)


@pytest.mark.parametrize(
    ("status", "state", "path"),
    [("abandoned", 0, "q"), ("defered", 1, "q"), ("suspended", 0, "q/$deadletterqueue")],
)
def test_dispositions_with_properties(status: str, state: int, path: str) -> None:
    """`properties-to-modify` become application properties (WIRE.md §6.1)."""

    async def scene(desk: Desk) -> None:
        await desk.queue()
        await desk.send(encode_message(body=b"1", properties={"old": "x", "kept": 1}))
        (delivery,) = await desk.receive(1)
        body = {
            "lock-tokens": uuids(token_of(delivery)),
            "disposition-status": status,
            "deadletter-reason": "why",
            "deadletter-description": "because",
            "properties-to-modify": {
                "old": Int(5), "new": "é", "none": None, "at": Timestamp(7), "id": ID,
            },
        }  # fmt: skip
        assert (await desk.ask("update-disposition", body)).status == 200
        found = await desk.ask("peek-message", {"message-count": Int(1)}, path=path)
        (message,) = messages_of(found)
        expected: dict[str, object] = {
            "old": 5, "kept": 1, "new": "é", "none": None, "at": Timestamp(7), "id": ID,
        }  # fmt: skip
        if status == "suspended":
            expected |= {"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
        assert message.properties == expected
        (shown,) = found.handled("peek_op", receiver=type("Receiver", (), {})())
        assert int(shown.state) == state

    run(scene)


def test_an_empty_reason_is_no_reason() -> None:
    """azure-servicebus writes empty texts where its user gave none (WIRE.md §5.6)."""

    async def scene(desk: Desk) -> None:
        await desk.queue()
        await desk.send(encode_message(body=b"1"))
        (delivery,) = await desk.receive(1)
        pyamqp = transport()
        body = {
            "disposition-status": "suspended",
            "lock-tokens": pyamqp.AMQP_ARRAY_VALUE([token_of(delivery)]),
            "deadletter-reason": "",
            "deadletter-description": "",
        }
        assert (await desk.ask_as_sdk("update-disposition", body)).status == 200
        body = {"message-count": Int(1)}
        found = await desk.ask("peek-message", body, path="q/$DeadLetterQueue")
        assert messages_of(found)[0].properties == {}

    run(scene)


@pytest.mark.parametrize("status", ["released", "COMPLETED", "", "deferred", None, 5])
def test_a_status_that_is_none(status: object) -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue()
        body = {"disposition-status": status, "lock-tokens": uuids(ID)}
        assert (await desk.ask("update-disposition", body)).condition == BAD

    run(scene)


def test_a_settlement_in_a_transaction() -> None:
    """The gateway has read the transaction from the transfer's state (WIRE.md §9)."""

    async def scene(desk: Desk) -> None:
        await desk.queue()
        body = {"messages": [{"message": encode_message()}]}
        request = parse_request(encode_request("com.microsoft:schedule-message", body))
        encoded = await management.answer(
            request, "q", desk.claims, desk, state=TransactionalState(b"\x4d")
        )
        assert Reply(encoded).status >= 400, "there is no such transaction"

    run(scene)


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_over_its_link() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True, lock_duration_ms=10_000)
        await desk.send(encode_message(body=b"1", session_id="s"))
        await desk.receive(1, link=3, session="s")
        desk.links["receiver-link-3"] = 3
        link = {"link": "receiver-link-3"}
        session = {"session-id": "s"}
        desk.clock.advance(4_000)
        found = await desk.ask_as_sdk("renew-session-lock", session, **link)
        assert type(found.body["expiration"]) is Timestamp
        renewed = found.handled("session_lock_renew_op")
        assert renewed == {b"expiration": desk.now_ms() + 10_000}

        found = await desk.ask_as_sdk("get-session-state", session, **link)
        assert found.handled("default") == {b"session-state": None}
        body = {**session, "session-state": bytearray(b"state")}
        assert (await desk.ask_as_sdk("set-session-state", body, **link)).status == 200
        found = await desk.ask_as_sdk("get-session-state", session, **link)
        assert found.body == {"session-state": b"state"}
        body["session-state"] = None  # type: ignore[assignment]
        assert (await desk.ask_as_sdk("set-session-state", body, **link)).status == 200
        found = await desk.ask_as_sdk("get-session-state", session, **link)
        assert found.body == {"session-state": None}
        found = await desk.ask_as_sdk("get-session-state", {"session-id": "other"}, **link)
        assert (found.status, found.condition) == (410, SESSION_LOST)

    run(scene)


@pytest.mark.parametrize(
    "operation", ["renew-session-lock", "get-session-state", "set-session-state"]
)
def test_a_session_is_its_holders(operation: str) -> None:
    """Without the link, or with one of another connection, the lock is not the caller's."""

    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)
        await desk.queue("plain")
        await desk.send(encode_message(body=b"1", session_id="s"))
        await desk.receive(1, link=3, session="s")
        desk.links["another"] = 4
        for name in (None, "unknown", "another"):
            said = {} if name is None else {"associated_link_name": name}
            found = await desk.ask(operation, {"session-id": "s"}, **said)
            assert (found.status, found.condition) == (410, SESSION_LOST)
        found = await desk.ask(operation, {"session-id": "s"}, path="plain")
        assert found.condition == NOT_ALLOWED

    run(scene)


def test_deferred_messages_of_a_session() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)
        await deferred(desk, b"1", session_id="s")
        desk.links["mine"] = 9
        body = {"sequence-numbers": longs(1), "receiver-settle-mode": UInt(1), "session-id": "s"}
        found = await desk.ask("receive-by-sequence-number", body)
        assert found.condition == SESSION_LOST
        found = await desk.ask("receive-by-sequence-number", body, associated_link_name="mine")
        token = found.body["messages"][0]["lock-token"]
        settle = {"lock-tokens": uuids(token), "disposition-status": "completed"}
        found = await desk.ask("update-disposition", {**settle, "session-id": "s"})
        assert found.status == 200

    run(scene)


def test_get_message_sessions() -> None:
    async def scene(desk: Desk) -> None:
        await desk.queue("q", requires_session=True)
        module = pytest.importorskip("azure.servicebus._session_browser")

        async def sessions(after: int, skip: int = 0) -> Reply:
            body = module._page_request_body(transport(), after, skip)
            return await desk.ask_as_sdk("get-message-sessions", body)

        found = await sessions(NET_MAX)
        assert (found.status, found.condition) == (204, "com.microsoft:session-not-found")
        assert found.handled("list_sessions_op") == []
        names = [f"s{n:03}" for n in range(120)]
        await desk.send(*(encode_message(body=b"x", session_id=name) for name in names))
        found = await sessions(NET_MAX)
        assert found.body["sessions-ids"].code == 0xB1
        assert type(found.body["skip"]) is Int
        assert found.handled("list_sessions_op") == names[:100]
        assert (await sessions(NET_MAX - 1, 100)).handled("list_sessions_op") == names[100:]
        assert (await sessions(NET_MAX, 120)).status == 204
        # Any other time asks for states that were set after it.
        assert (await sessions(0)).status == 204
        await desk.receive(1, link=3, session="s005")
        desk.links["mine"] = 3
        body = {"session-id": "s005", "session-state": b"x"}
        await desk.ask("set-session-state", body, associated_link_name="mine")
        assert (await sessions(desk.now_ms() - 1)).handled("list_sessions_op") == ["s005"]
        assert (await sessions(desk.now_ms())).status == 204

    run(scene)
