"""The blocking client and a real broker: every operation, over plain TCP and over TLS."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tandembus.client import (
    Client,
    Correlation,
    NextSession,
    OutgoingMessage,
    ReceiveMode,
    Rule,
    Settlement,
    dead_letter_path,
    subscription_path,
)
from tandembus.errors import (
    ConnectionLostError,
    EntityExistsError,
    EntityNotFoundError,
    MessageLockLostError,
    MessageNotFoundError,
    NotAllowedError,
    SessionCannotBeLockedError,
    UnauthorizedError,
)
from tandembus.testing import BrokerProcess, LocalBroker
from tests.client import certificates


def test_send_and_receive(client: Client, queue: str) -> None:
    """What was sent arrives, once, with the broker's number and times."""
    with client.sender(queue) as sender:
        sender.send(b"first")
        sender.send(OutgoingMessage(b"second", message_id="m", properties={"n": 1}, priority=4))
    with client.receiver(queue) as receiver:
        first, second = receiver.receive(10)
        assert (first.body, second.body) == (b"first", b"second")
        assert (first.sequence_number, second.sequence_number) == (1, 2)
        assert (second.message_id, second.properties, second.priority) == ("m", {"n": 1}, 4)
        assert first.message_id, "the broker has made one up"
        assert first.enqueued_ms <= second.enqueued_ms < (second.locked_until_ms or 0)
        receiver.complete([first, second])
        assert receiver.receive(1, wait_s=0) == []


@pytest.mark.req("T3")
def test_many(client: Client, queue: str) -> None:
    """In batches there and by pages back; nothing is lost, doubled or out of order."""
    bodies = [b"%d" % number for number in range(5_000)]
    with client.sender(queue) as sender:
        assert sender.send_all(iter(bodies)).check().accepted == 5_000
    got: list[bytes] = []
    with client.receiver(queue, prefetch=1_000) as receiver:
        while len(got) < 5_000:
            page = receiver.receive(1_000)
            got += [message.body for message in page]
            receiver.complete(page)
        assert receiver.receive(1, wait_s=0) == []
    assert got == bodies


def test_large_messages(client: Client, broker: LocalBroker, queue: str) -> None:
    """In many frames, both ways."""
    body = bytes(range(256)) * 900
    with client.sender(queue) as sender:
        assert sender.send_all([body] * 5).check().accepted == 5
    with client.receiver(queue, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert [message.body for message in receiver.receive(5)] == [body] * 5


@pytest.mark.req("T9", "T10")
def test_settlements(client: Client, queue: str) -> None:
    """Abandon, defer, dead-letter with reason and properties, release; all read back."""
    with client.sender(queue) as sender:
        sender.send_all([b"abandon", b"defer", b"dead", b"release"]).check()
    with client.receiver(queue) as receiver:
        abandoned, deferred, dead, released = receiver.receive(4)
        receiver.abandon(abandoned, properties={"seen": "once"})
        receiver.defer(deferred)
        receiver.dead_letter(dead, reason="bad", description="very bad", properties={"by": "me"})
        receiver.release(released)
        back = {message.body: message for message in receiver.receive(10)}
        assert set(back) == {b"abandon", b"release"}
        assert back[b"abandon"].delivery_count == 1
        assert back[b"abandon"].properties == {"seen": "once"}
        assert back[b"release"].delivery_count == 0
        receiver.complete(list(back.values()))
        (again,) = receiver.receive_deferred([deferred.sequence_number])
        assert (again.body, again.state) == (b"defer", 1)
        receiver.complete(again)
        with pytest.raises(MessageNotFoundError):
            receiver.receive_deferred([deferred.sequence_number])
    with client.receiver(dead_letter_path(queue), mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        (letter,) = receiver.receive(10)
        assert (letter.dead_letter_reason, letter.dead_letter_description) == ("bad", "very bad")
        assert letter.properties["by"] == "me"


@pytest.mark.req("T6", "T11")
def test_locks(client: Client, broker: LocalBroker, queue: str) -> None:
    """Renewed while held; lost when time has passed; settled by the token alone."""
    with client.sender(queue) as sender:
        sender.send_all([b"a", b"b"]).check()
    receiver = client.receiver(queue)
    first, second = receiver.receive(2)
    broker.clock.advance(seconds=50)
    (renewed,) = receiver.renew(first)
    assert renewed > (first.locked_until_ms or 0)
    broker.clock.advance(seconds=50)
    with pytest.raises(MessageLockLostError):
        receiver.complete(second)
    client.settle([first.lock_token], Settlement.COMPLETE, queue)
    with pytest.raises(MessageLockLostError):
        client.settle([first.lock_token], Settlement.COMPLETE, queue)
    (again,) = receiver.receive(2)
    assert (again.body, again.delivery_count) == (b"b", 1)
    assert client.renew_locks([again.lock_token], queue)


@pytest.mark.req("S6", "S7")
def test_schedule_and_cancel(client: Client, broker: LocalBroker, queue: str) -> None:
    """Numbers at once, messages at their time, none that was cancelled."""
    due_ms = int(broker.clock.now().timestamp() * 1000) + 3_600_000
    kept, cancelled = client.schedule([b"kept", OutgoingMessage(b"gone")], due_ms, queue)
    assert [message.state for message in client.browse(queue)] == [2, 2]
    client.cancel_scheduled([cancelled], queue)
    with client.receiver(queue) as receiver:
        assert receiver.receive(5, wait_s=0) == []
        broker.clock.advance(hours=1)
        (came,) = receiver.receive(5)
        assert came.body == b"kept"
        assert came.sequence_number != kept
        receiver.complete(came)


@pytest.mark.req("T15")
def test_browse(client: Client, broker: LocalBroker, queue: str) -> None:
    """Page by page, from any number, without locking; and purge."""
    with client.sender(queue) as sender:
        sender.send_all(b"%d" % number for number in range(250)).check()
    assert [each.sequence_number for each in client.browse_all(queue)] == list(range(1, 251))
    page = client.browse(queue, from_sequence_number=200, count=3)
    assert [each.body for each in page] == [b"199", b"200", b"201"]
    assert client.browse(queue, from_sequence_number=251) == []
    now_ms = int(broker.clock.now().timestamp() * 1000) + 1
    deleted = [client.delete_messages(200, queue, before_ms=now_ms) for _ in range(3)]
    assert deleted == [200, 50, 0]


@pytest.mark.req("T14")
def test_sessions(client: Client, broker: LocalBroker, queue: str) -> None:
    """By name and next available; one holder at a time; state and renewal."""
    talks = f"{queue}-talks"
    broker.create_queue(talks, RequiresSession=True)
    with client.sender(talks) as sender:
        with pytest.raises(NotAllowedError):
            sender.send(b"without")
        messages = [OutgoingMessage(b"%d" % n, session_id=f"s{n % 2}") for n in range(6)]
        sender.send_all(messages).check()
    with client.receiver(talks, session="s1") as receiver:
        assert receiver.session_id == "s1"
        got = receiver.receive(10)
        assert [message.body for message in got] == [b"1", b"3", b"5"]
        with pytest.raises(SessionCannotBeLockedError):
            client.receiver(talks, session="s1")
        assert receiver.get_session_state() is None
        receiver.set_session_state(b"half way")
        assert receiver.renew_session() >= (receiver.session_locked_until_ms or 0)
        receiver.complete(got)
        with client.receiver(talks, session=NextSession.AVAILABLE) as other:
            assert other.session_id == "s0"
    assert client.list_sessions(talks) == ["s0", "s1"]
    with client.receiver(talks, session="s1") as receiver:
        assert receiver.get_session_state() == b"half way"
        receiver.set_session_state(None)


@pytest.mark.req("T16")
def test_topics_and_rules(client: Client, broker: LocalBroker, queue: str) -> None:
    """Rules over $management and over HTTP; what they select arrives."""
    topic = f"{queue}-topic"
    entities = client.entities
    entities.create_topic(topic)
    entities.create_subscription(topic, "gold")
    path = subscription_path(topic, "gold")
    client.remove_rule(path, "$Default")
    client.add_rule(path, Rule("sql", "tier = 'gold'", "SET by = 'sql'"))
    wanted = Correlation(subject="vip", properties={"n": 3})
    entities.create_rule(topic, "gold", Rule("same", wanted))
    rules = {rule.name: rule for rule in client.list_rules(path)}
    assert rules == {
        "same": Rule("same", wanted),
        "sql": Rule("sql", "tier = 'gold'", "SET by = 'sql'"),
    }
    with client.sender(topic) as sender:
        sender.send_all(
            [
                OutgoingMessage(b"a", properties={"tier": "gold"}),
                OutgoingMessage(b"b", properties={"tier": "lead"}),
                OutgoingMessage(b"c", subject="vip", properties={"n": 3}),
            ]
        ).check()
    with client.receiver(path, mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        got = receiver.receive(10)
        assert [message.body for message in got] == [b"a", b"c"]
        assert got[0].properties["by"] == "sql"
    entities.update_rule(topic, "gold", Rule("same", "1=0"))
    entities.delete_rule(topic, "gold", "sql")
    assert [rule.name for rule in client.list_rules(path)] == ["same"]


@pytest.mark.req("C2")
def test_entities(client: Client, queue: str) -> None:
    """Made, read, listed, changed and deleted."""
    entities = client.entities
    name = f"{queue}-made"
    assert entities.create_queue(name, LockDuration="PT30S").settings["LockDuration"] == "PT30S"
    with pytest.raises(EntityExistsError):
        entities.create_queue(name)
    with client.sender(name) as sender:
        sender.send_all([b"x"] * 3).check()
    assert entities.get_queue(name).counts["ActiveMessageCount"] == 3
    changed = entities.update_queue(name, MaxDeliveryCount=3)
    assert (changed.settings["MaxDeliveryCount"], changed.settings["LockDuration"]) == (
        "3",
        "PT30S",
    )
    assert name in [each.name for each in entities.list_queues()]
    entities.delete_queue(name)
    with pytest.raises(EntityNotFoundError):
        entities.get_queue(name)
    topic = f"{queue}-news"
    entities.create_topic(topic)
    entities.update_topic(topic, UserMetadata="x")
    assert entities.get_topic(topic).settings["UserMetadata"] == "x"
    assert topic in [each.name for each in entities.list_topics()]
    entities.create_subscription(topic, "all")
    entities.update_subscription(topic, "all", MaxDeliveryCount=7)
    assert entities.get_subscription(topic, "all").settings["MaxDeliveryCount"] == "7"
    assert [each.name for each in entities.list_subscriptions(topic)] == ["all"]
    entities.delete_subscription(topic, "all")
    entities.delete_topic(topic)


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_unknown_entity(client: Client) -> None:
    """Said by every road, and the client lives on."""
    for call in (
        lambda: client.sender("nowhere"),
        lambda: client.receiver("nowhere"),
        lambda: client.browse("nowhere"),
        lambda: client.entities.get_queue("nowhere"),
    ):
        with pytest.raises(EntityNotFoundError, match="could not be found"):
            call()


def test_a_wrong_key(broker: LocalBroker, queue: str) -> None:
    bad = broker.connection_string.replace(broker.key, "d3Jvbmc=")
    with Client(bad, timeout_s=20) as client:
        with pytest.raises(UnauthorizedError):
            client.sender(queue)
        with pytest.raises(UnauthorizedError):
            client.entities.create_queue("x")


def test_a_certificate_that_nobody_trusts(broker: LocalBroker, tmp_path: Path, queue: str) -> None:
    """Neither the system's authorities nor another one: refused before a key is sent."""
    direct = broker.connection_string.replace("UseDevelopmentEmulator=true", "")
    other, _ = certificates.make(tmp_path, "localhost")
    for ca_file in (None, str(other)):
        with Client(direct, ca_file=ca_file, timeout_s=20) as client:
            with pytest.raises(UnauthorizedError, match="certificate"):
                client.sender(queue)
            with pytest.raises(UnauthorizedError, match="certificate"):
                client.entities.get_queue(queue)


def test_a_certificate_of_another_host(tmp_path: Path) -> None:
    """The name is checked, too."""
    certificate, key = certificates.make(tmp_path, "elsewhere.test")
    with LocalBroker.start(certificate=certificate, private_key=key) as broker:
        direct = broker.connection_string.replace("UseDevelopmentEmulator=true", "")
        with (
            Client(direct, ca_file=str(certificate), timeout_s=20) as client,
            pytest.raises(UnauthorizedError, match="certificate"),
        ):
            client.connect()


def test_nobody_listens() -> None:
    with LocalBroker.start() as broker:
        gone = broker.connection_string
    with pytest.raises(ConnectionLostError, match="localhost"):
        Client(gone, timeout_s=5).connect()


def test_a_broker_that_stops_and_comes_back(tmp_path: Path) -> None:
    """Links are dead and say so; the client connects again by itself; nothing is lost."""
    with LocalBroker.start(tmp_path) as broker:
        broker.create_queue("q")
        client = Client(broker.connection_string, timeout_s=20)
        sender = client.sender("q")
        receiver = client.receiver("q")
        sender.send(b"kept")
        waiting: list[Exception] = []

        def wait() -> None:
            try:
                receiver.receive(1, wait_s=60)
            except ConnectionLostError as error:
                waiting.append(error)

        taken = client.receiver("q").receive(1)
        assert taken[0].body == b"kept"
        thread = threading.Thread(target=wait)
        thread.start()
        broker.stop()
        thread.join(30)
        assert len(waiting) == 1
        with pytest.raises(ConnectionLostError):
            sender.send(b"lost")
        client.close()
        broker.restart()
        # A broker that a test restarts has another port; one that an operator restarts has not.
        client = Client(broker.connection_string, timeout_s=20)
        with client.receiver("q") as again:
            assert [message.body for message in again.receive(5)] == [b"kept"]
        client.close()


def test_it_connects_again(broker: LocalBroker, queue: str) -> None:
    """After a loss the next call of the client has a new connection."""
    client = Client(broker.connection_string, timeout_s=20)
    sender = client.sender(queue)
    assert client._line is not None
    client._line._socket.shutdown(2)
    with pytest.raises(ConnectionLostError):
        sender.send(b"x")
    with client.sender(queue) as sender:
        sender.send(b"y")
    client.close()


def test_a_killed_broker(tmp_path: Path) -> None:
    """SIGKILL in the middle: every post hears what became of it, and what was accepted is there."""
    with BrokerProcess.start(tmp_path, ["--emulator"]) as broker:
        broker.create_queue("q")
        client = Client(broker.connection_string, timeout_s=20)
        sender = client.sender("q", max_in_flight=50)
        accepted = failed = 0
        posted = []
        for number in range(2_000):
            try:
                posted.append(sender.post(b"%d" % number))
            except ConnectionLostError:
                break
            if number == 500:
                posted[0].wait()
                broker.kill()
        for each in posted:
            try:
                each.wait()
                accepted += 1
            except ConnectionLostError:
                failed += 1
        assert accepted + failed == len(posted)
        assert failed <= 50
        client.close()
        broker.restart()
        with Client(broker.connection_string, timeout_s=20) as client:
            there = {int(message.body) for message in client.browse_all("q")}
        assert there >= set(range(accepted))


# --- threads --------------------------------------------------------------------------------------


def test_threads_share_a_client(client: Client, queue: str) -> None:
    """Ten threads send over one link while two receive: all arrive, once."""
    sender = client.sender(queue, max_in_flight=20)
    got: list[bytes] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def send(first: int) -> None:
        try:
            for number in range(first, first + 20):
                sender.send(b"%d" % number)
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    def receive() -> None:
        try:
            with client.receiver(queue) as receiver:
                while not done.is_set():
                    page = receiver.receive(10, wait_s=0.1)
                    receiver.complete(page)
                    got.extend(message.body for message in page)
        except BaseException as error:  # noqa: BLE001 - told to the test below
            errors.append(error)

    senders = [threading.Thread(target=send, args=(first,)) for first in range(0, 200, 20)]
    receivers = [threading.Thread(target=receive) for _ in range(2)]
    for thread in senders + receivers:
        thread.start()
    for thread in senders:
        thread.join(60)
    until = time.monotonic() + 60
    while len(got) < 200 and not errors and time.monotonic() < until:
        time.sleep(0.01)
    done.set()
    for thread in receivers:
        thread.join(60)
    assert not errors
    assert sorted(map(int, got)) == list(range(200))


def test_a_failed_post_is_not_forgotten(client: Client, broker: LocalBroker, queue: str) -> None:
    """`flush` raises it, if nobody has asked for it (T3)."""
    talks = f"{queue}-posts"
    broker.create_queue(talks, RequiresSession=True)
    sender = client.sender(talks)
    asked = sender.post(b"without a session")
    with pytest.raises(NotAllowedError):
        asked.wait()
    sender.flush()
    sender.post(b"without a session")
    with pytest.raises(NotAllowedError):
        sender.flush()
    sender.post(OutgoingMessage(b"with", session_id="s"))
    sender.close()
