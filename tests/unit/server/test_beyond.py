"""`server/beyond.py` over the wire, with the lean client: what Service Bus users ask Azure for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tandembus import limits
from tandembus.client import (
    AsyncClient,
    Client,
    NextSession,
    OutgoingMessage,
    SessionCounts,
    Settlement,
)
from tandembus.errors import (
    ArgumentError,
    FilterError,
    MessageNotFoundError,
    NotAllowedError,
    Refused,
    SessionCannotBeLockedError,
)
from tandembus.server import beyond
from tandembus.testing import LocalBroker, LocalNamespace


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        yield running


@pytest.fixture
def namespace(broker: LocalBroker) -> Iterator[LocalNamespace]:
    with broker.namespace() as fresh:
        fresh.create_queue("q")
        fresh.create_queue("s", RequiresSession=True)
        yield fresh


@pytest.fixture
def client(namespace: LocalNamespace) -> Iterator[Client]:
    with Client(namespace.connection_string) as connected:
        yield connected


def send(client: Client, path: str, *bodies: str, **fields: object) -> None:
    with client.sender(path) as sender:
        for body in bodies:
            sender.send(OutgoingMessage(body.encode(), **fields))  # type: ignore[arg-type]


# --- abandon with a delay -------------------------------------------------------------------------


def test_abandon_with_a_delay(namespace: LocalNamespace, client: Client) -> None:
    """By the disposition on its link: back in its place when the time is over, one delivery
    older; until then it looks like a scheduled message."""
    send(client, "q", "a", "b")
    with client.receiver("q") as receiver:
        (first,) = receiver.receive()
        receiver.abandon(first, delay_ms=60_000, properties={"tried": 1})
        (second,) = receiver.receive()
        assert second.body == b"b"
        (waiting,) = client.search("q", states=["delayed"])
        assert (waiting.sequence_number, waiting.body) == (first.sequence_number, b"a")
        assert client.entities.get_queue("q").counts["ScheduledMessageCount"] == 1
        namespace.clock.advance(seconds=59)
        assert receiver.receive(wait_s=0) == []
        namespace.clock.advance(seconds=1)
        (again,) = receiver.receive()
        assert (again.sequence_number, again.delivery_count) == (first.sequence_number, 1)
        assert again.properties == {"tried": 1}, "the delay itself is no property of the message"


def test_a_delay_survives_a_restart(namespace: LocalNamespace) -> None:
    with Client(namespace.connection_string) as client:
        send(client, "q", "a")
        with client.receiver("q") as receiver:
            receiver.abandon(receiver.receive(), delay_ms=3_600_000)
    namespace.stop()
    namespace.restart()
    with Client(namespace.connection_string) as client, client.receiver("q") as receiver:
        assert receiver.receive(wait_s=0) == []
        namespace.clock.advance(hours=1)
        assert receiver.receive()[0].body == b"a"


def test_a_message_of_the_official_sdk_can_be_delayed(namespace: LocalNamespace) -> None:
    """Its Python client cannot say more than "abandon"; by the lock token anybody can."""
    sdk = pytest.importorskip("azure.servicebus")
    with sdk.ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(sdk.ServiceBusMessage("x"))
        with client.get_queue_receiver("q", max_wait_time=10) as receiver:
            (message,) = receiver.receive_messages()
            with Client(namespace.connection_string) as lean:
                token = message.lock_token
                lean.settle([token], Settlement.ABANDON, "q", delay_ms=30_000)
            (peeked,) = receiver.peek_messages(sequence_number=1)
            assert peeked.state == sdk.ServiceBusMessageState.SCHEDULED
            namespace.clock.advance(seconds=30)
            (again,) = receiver.receive_messages()
            assert again.delivery_count == 1


@pytest.mark.parametrize("delay", [-1, "soon", True, 1.5, limits.MAX_ABANDON_DELAY_MS + 1])
def test_a_delay_that_is_none(client: Client, delay: object) -> None:
    """Refused, and the lock is as it was."""
    send(client, "q", "a")
    with client.receiver("q") as receiver:
        (message,) = receiver.receive()
        with pytest.raises(Refused):
            receiver.abandon(message, properties={beyond.DELAY: delay})  # type: ignore[dict-item]
        assert message.lock_token is not None
        client.settle([message.lock_token], Settlement.COMPLETE, "q")


def test_only_what_comes_back_can_come_back_later(client: Client) -> None:
    send(client, "q", "a")
    with client.receiver("q") as receiver:
        (message,) = receiver.receive()
        with pytest.raises(Refused):
            receiver.defer(message, properties={beyond.DELAY: 1_000})
        assert [each.state for each in client.browse("q")] == [0]


# --- deferred messages return to active -----------------------------------------------------------


def test_deferred_messages_become_active_again(client: Client) -> None:
    """Those that are named, in their places; all or none."""
    send(client, "q", "a", "b", "c")
    with client.receiver("q") as receiver:
        receiver.defer(receiver.receive(2))
        numbers = [each.sequence_number for each in client.search("q", states=["deferred"])]
        assert numbers == [1, 2]
        with pytest.raises(MessageNotFoundError):
            client.reactivate([2, 3], "q")
        client.reactivate([2], "q")
        assert [each.body for each in receiver.receive(5)] == [b"b", b"c"]
        with pytest.raises(MessageNotFoundError):
            client.reactivate([2], "q")


# --- a whole session ------------------------------------------------------------------------------


def test_a_session_that_nobody_holds_is_dead_lettered(client: Client) -> None:
    send(client, "s", "a1", "a2", session_id="a")
    send(client, "s", "b1", session_id="b")
    assert client.dead_letter_session("a", "s", reason="poison", description="all of it") == 2
    dead = client.browse("s/$DeadLetterQueue")
    assert [each.body for each in dead] == [b"a1", b"a2"]
    assert {each.properties["DeadLetterReason"] for each in dead} == {"poison"}
    assert [each.body for each in client.browse("s")] == [b"b1"]
    assert client.dead_letter_session("a", "s") == 0
    with pytest.raises(NotAllowedError):
        client.dead_letter_session("a", "q")


def test_its_holder_dead_letters_a_session(client: Client) -> None:
    """With what it has locked; nobody else can meanwhile."""
    send(client, "s", "a1", "a2", session_id="a")
    with client.receiver("s", session=NextSession.AVAILABLE) as receiver:
        receiver.receive()
        with pytest.raises(SessionCannotBeLockedError):
            client.dead_letter_session("a", "s")
        assert receiver.dead_letter_session(reason="poison") == 2
    assert client.browse("s") == []
    assert client.count_sessions("s") == SessionCounts(0, 0, 0, 0)


def test_a_session_longer_than_a_command(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BATCH_DELETE", 3)
    send(client, "s", *"abcdefg", session_id="a")
    assert client.dead_letter_session("a", "s") == 7


def test_sessions_are_counted_and_listed(client: Client) -> None:
    send(client, "s", "x", session_id="a")
    send(client, "s", "x", session_id="b")
    with client.receiver("s", session="a") as receiver:
        receiver.set_session_state(b"so far")
        assert client.count_sessions("s") == SessionCounts(2, 1, 1, 1)
        assert client.list_sessions("s") == ["a", "b"]
    with pytest.raises(NotAllowedError):
        client.count_sessions("q")


# --- browsing by a filter -------------------------------------------------------------------------


def test_browsing_by_a_sql_filter(client: Client) -> None:
    """Over application properties, system properties and what the broker knows; removes nothing."""
    for number in range(30):
        colour = ("red", "blue")[number % 2]
        send(client, "q", str(number), properties={"colour": colour, "n": number})
    found = list(client.search("q", filter="colour = 'red' AND n >= 20"))
    assert [each.body for each in found] == [b"20", b"22", b"24", b"26", b"28"]
    assert [each.sequence_number for each in found] == [21, 23, 25, 27, 29]
    late = client.search("q", filter="sys.SequenceNumber > 28")
    assert [each.body for each in late] == [b"28", b"29"]
    assert list(client.search("q", filter="missing = 1")) == []
    assert len(client.browse("q")) == 30


def test_a_filter_sees_what_was_changed(client: Client) -> None:
    """Edits of an abandon and the reason of a dead letter are properties like others."""
    send(client, "q", "a", "b")
    with client.receiver("q") as receiver:
        one, two = receiver.receive(2)
        receiver.abandon(one, properties={"tried": 1})
        receiver.dead_letter(two, reason="late")
    assert [each.body for each in client.search("q", filter="tried = 1")] == [b"a"]
    dead = client.search("q/$DeadLetterQueue", filter="DeadLetterReason = 'late'")
    assert [each.body for each in dead] == [b"b"]


def test_a_long_search_goes_on_page_by_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request looks at so many; pages may be empty and not the last."""
    monkeypatch.setattr(limits, "MAX_FILTERED_BROWSE", 10)
    monkeypatch.setattr(beyond, "_HANDFUL", 4)
    with client.sender("q") as sender:
        sender.send_all([OutgoingMessage(b"%d" % n, properties={"n": n}) for n in range(60)])
    found = client.search("q", filter="n = 3 OR n = 58")
    assert [each.body for each in found] == [b"3", b"58"]
    assert len(list(client.search("q"))) == 60


def test_a_page_is_no_larger_than_a_message_may_be(client: Client) -> None:
    """Eight messages of 100 KB come in several answers, and all of them."""
    send(client, "q", *("x" * 100_000 for _ in range(8)))
    assert len(list(client.search("q", filter="1=1"))) == 8


def test_a_search_in_a_session(client: Client) -> None:
    send(client, "s", "a1", session_id="a")
    send(client, "s", "b1", "b2", session_id="b")
    assert [each.body for each in client.search("s", session_id="b")] == [b"b1", b"b2"]


def test_what_cannot_be_searched_for(client: Client) -> None:
    with pytest.raises((FilterError, ArgumentError)):
        list(client.search("q", filter="n >"))
    with pytest.raises(ArgumentError, match="states"):
        list(client.search("q", states=["lost"]))


def test_the_same_with_asyncio(namespace: LocalNamespace) -> None:
    async def run() -> None:
        async with AsyncClient(namespace.connection_string) as client:
            async with await client.sender("q") as sender:
                await sender.send_all([b"a", b"b"])
            async with await client.receiver("q") as receiver:
                one, two = await receiver.receive(2)
                await receiver.defer(one)
                await receiver.abandon(two, delay_ms=1_000)
                found = [each async for each in client.search("q", states=["deferred", "delayed"])]
                assert len(found) == 2
                await client.reactivate([each.sequence_number for each in found], "q")
                assert len(await receiver.receive(5)) == 2
            async with await client.sender("s") as sender:
                await sender.send(OutgoingMessage(b"x", session_id="a"))
            assert await client.count_sessions("s") == SessionCounts(1, 1, 0, 0)
            assert await client.dead_letter_session("a", "s") == 1

    asyncio.run(run())
