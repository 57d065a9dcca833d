"""What polling and messages cost is counted, to the last one, in the log (P11): a receive that was
in vain, a browse, and what is only looked at leave a record, as everything else does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

sdk = pytest.importorskip("azure.servicebus")

from tandembus.changes import Delivered, Enqueued, LevelChanged, Note, Noted, Removed  # noqa: E402
from tandembus.client import (  # noqa: E402
    Client,
    NextSession,
    ReceiveMode,
)
from tandembus.errors import OperationTimeoutError  # noqa: E402
from tandembus.store.memory import MemoryStore  # noqa: E402
from tandembus.store.records import decode_group  # noqa: E402
from tandembus.testing import LocalBroker  # noqa: E402

pytestmark = pytest.mark.req("P11")


class Counted:
    """A broker, and what its log says of one queue."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.broker = LocalBroker.start(store=self.store)

    def costs(self, path: str) -> Counter[str]:
        """What is in the log by now; what rides along is written within a moment."""
        assert self.broker.server is not None
        entity = self.broker.server.broker.namespace.find(path).id
        self.broker.stop()
        found: Counter[str] = Counter()
        for group in self.store.reopened().replay(0):
            for change, _ in decode_group(group.body):
                if getattr(change, "entity", 0) != entity:
                    continue
                match change:
                    case Noted(note=note):
                        found[Note(note).name] += 1
                    case Delivered(rows=rows):
                        found["received"] += len(rows) // 25
                    case Enqueued():
                        found["sent"] += 1
                    case LevelChanged():
                        found["levels changed"] += 1
                    case Removed():
                        found["settled"] += 1
        return found


@pytest.fixture
def counted() -> Iterator[Counted]:
    one = Counted()
    with one.broker:
        yield one


def test_the_lean_client(counted: Counted) -> None:
    """Three receives in vain, one that brings ten messages of several levels; two pages browsed,
    one of them empty; two looks at the description."""
    with Client(counted.broker.connection_string) as client:
        client.entities.create_queue("q", PriorityLevels=3, PriorityProperty="level")
        with client.receiver("q") as receiver:
            for _ in range(3):
                assert receiver.receive(10, wait_s=0) == []
        with client.sender("q") as sender:
            for _ in range(10):
                sender.send(b"a")
        client.change_priority(7, 2, "q")
        assert len(client.browse("q")) == 10
        assert client.browse("q", from_sequence_number=11) == []
        with client.receiver("q") as receiver:
            received = receiver.receive(10)
            receiver.complete(received)
        for _ in range(2):
            client.entities.get_queue("q")
    assert [message.sequence_number for message in received][:2] == [7, 1]
    assert counted.costs("q") == {
        "POLLED": 3,
        "sent": 10,
        "levels changed": 1,
        "BROWSED": 2,
        "received": 10,
        "settled": 1,
        "MANAGED": 2,
    }


def test_the_official_sdk(counted: Counted) -> None:
    """Its receives in vain are as many as its user has made: asking anew, and closing, end one."""
    with Client(counted.broker.connection_string) as lean:
        lean.entities.create_queue("q", PriorityLevels=3)
        with (
            sdk.ServiceBusClient.from_connection_string(counted.broker.connection_string) as client,
            client.get_queue_receiver("q") as receiver,
        ):
            for _ in range(3):
                assert receiver.receive_messages(5, max_wait_time=0.1) == []
            assert receiver.peek_messages(5) == []
    assert counted.costs("q") == {"POLLED": 3, "BROWSED": 1}


def test_sessions(counted: Counted) -> None:
    """A wait for a session that does not come is a poll, too; a look at a state, or at the list, is
    noted."""
    with Client(counted.broker.connection_string) as client:
        client.entities.create_queue("q", RequiresSession=True, PriorityLevels=2)
        with pytest.raises(OperationTimeoutError):
            client.receiver("q", session=NextSession.AVAILABLE, session_wait_s=0.05)
        assert client.list_sessions("q") == []
        with client.receiver("q", session="one", mode=ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            assert receiver.get_session_state() is None
            assert receiver.receive(wait_s=0) == []
    found = counted.costs("q")
    assert (found["POLLED"], found["MANAGED"]) == (2, 2)
