"""A namespace for each test, and a reset: nothing of one test is there in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tandembus.client import Client, Rule
from tandembus.errors import EntityNotFoundError, UnauthorizedError
from tandembus.testing import BrokerProcess, LocalBroker, LocalNamespace, TestBroker


def _process() -> TestBroker:
    return BrokerProcess.start(arguments=["--emulator", "--test-clock"])


@pytest.fixture(scope="module")
def local() -> Iterator[LocalBroker]:
    with LocalBroker.start() as broker:
        yield broker


@pytest.fixture(
    scope="module",
    params=[LocalBroker.start, _process, lambda: LocalBroker.start().namespace()],
    ids=["local", "process", "namespace"],
)
def broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    start: Callable[[], TestBroker] = request.param
    running = start()
    with running:
        yield running
    if isinstance(running, LocalNamespace):
        running._broker.close()


# --- a namespace for each test --------------------------------------------------------------------


def test_namespaces_have_nothing_in_common(local: LocalBroker) -> None:
    """The same name is another queue; the key of one does not open the other; and they share a
    port."""
    with local.namespace() as one, local.namespace() as other:
        assert one.port == other.port == local.port
        one.create_queue("orders")
        other.create_queue("orders", RequiresSession=True)
        with Client(one.connection_string) as client, client.sender("orders") as sender:
            sender.send(b"x")
            assert len(client.browse("orders")) == 1
        with Client(other.connection_string) as client:
            assert client.browse("orders") == []
            assert client.entities.get_queue("orders").settings["RequiresSession"] == "true"
        with Client(local.connection_string) as client, pytest.raises(EntityNotFoundError):
            client.entities.get_queue("orders")
        stranger = one.connection_string.replace(one.key, "c29tZWJvZHkgZWxzZQ==")
        with Client(stranger) as client, pytest.raises(UnauthorizedError):
            client.browse("orders")


def test_each_namespace_has_a_clock_of_its_own(local: LocalBroker) -> None:
    with local.namespace() as one, local.namespace() as other:
        for each in (one, other):
            each.create_queue("q", DefaultMessageTimeToLive="PT1H")
            with Client(each.connection_string) as client, client.sender("q") as sender:
                sender.send(b"x")
        one.clock.advance(days=1)
        for each, left in ((one, 0), (other, 1)):
            with Client(each.connection_string) as client:
                assert len(client.browse("q")) == left
        assert one.clock.now() - other.clock.now() > timedelta(hours=23)


def test_a_namespace_goes_with_its_test_and_the_others_stay(local: LocalBroker) -> None:
    assert local.server is not None
    before = len(local.server.namespaces)
    with local.namespace() as stays:
        stays.create_queue("q")
        with local.namespace() as goes:
            goes.create_queue("q")
            assert len(local.server.namespaces) == before + 2
        with Client(stays.connection_string) as client:
            assert client.browse("q") == []
    assert len(local.server.namespaces) == before
    stays.close()  # twice does no harm


def test_a_namespace_survives_its_own_restart(local: LocalBroker) -> None:
    with local.namespace() as one:
        one.create_queue("q")
        with Client(one.connection_string) as client, client.sender("q") as sender:
            sender.send(b"x")
        one.stop()
        one.restart()
        with Client(one.connection_string) as client:
            assert [message.body for message in client.browse("q")] == [b"x"]


# --- reset ----------------------------------------------------------------------------------------


def test_reset_leaves_nothing(broker: TestBroker) -> None:
    """No entity is left, whatever it held; the same name can be used at once."""
    broker.create_queue("q", RequiresSession=True)
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    with Client(broker.connection_string) as client, client.sender("t") as sender:
        sender.send(b"x")
    broker.reset()
    with Client(broker.connection_string) as client:
        assert client.entities.list_queues() == client.entities.list_topics() == []
        broker.create_queue("q")
        assert client.entities.get_queue("q").settings["RequiresSession"] == "false"
        assert client.browse("q") == []
    broker.reset()


def test_reset_can_keep_the_entities(broker: TestBroker) -> None:
    """With their settings and rules, and empty; sequence numbers begin anew."""
    broker.create_queue("target")
    broker.create_queue("q", LockDuration="PT7S", ForwardDeadLetteredMessagesTo="target")
    broker.create_topic("t")
    broker.create_subscription("t", "s", MaxDeliveryCount=3)
    with Client(broker.connection_string) as client:
        client.add_rule("t/Subscriptions/s", Rule("red", "colour = 'red'"))
        client.remove_rule("t/Subscriptions/s", "$Default")
        for path in ("q", "q", "t"):
            with client.sender(path) as sender:
                sender.send(b"x")
        broker.reset(keep_entities=True)
    with Client(broker.connection_string) as client:
        assert client.browse("q") == client.browse("t/Subscriptions/s") == []
        assert client.entities.get_queue("q").settings["LockDuration"] == "PT7S"
        assert [rule.name for rule in client.list_rules("t/Subscriptions/s")] == ["red"]
        with client.sender("q") as sender:
            sender.send(b"y")
        assert [message.sequence_number for message in client.browse("q")] == [1]
    broker.reset()


def test_a_process_can_be_reset_in_test_mode_only() -> None:
    """And by whoever may manage the namespace."""
    with BrokerProcess.start(arguments=["--emulator"]) as plain:
        with pytest.raises(RuntimeError, match="--test-clock"):
            plain.reset()
        with pytest.raises(RuntimeError, match=r"404|405"):
            plain._reset_remotely(False)


def test_the_reset_needs_the_right_to_manage() -> None:
    with BrokerProcess.start(arguments=["--emulator", "--test-clock"]) as broker:
        right = broker.connection_string
        broker.connection_string = right.replace(broker.key, "d3Jvbmc=")
        with pytest.raises(RuntimeError, match="401"):
            broker.reset()
        broker.connection_string = right
        for body in (b"[]", b'{"keep_entities": 1}', b"{"):
            with pytest.raises(RuntimeError, match="400"):
                broker._request("POST", "$test/reset", body, "application/json")
        with pytest.raises(RuntimeError, match="405"):
            broker._request("GET", "$test/reset", b"", "application/json")
