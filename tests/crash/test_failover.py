"""`tests/crash/failover.py`: a slice of `make test-postgres`, and its long run."""

from __future__ import annotations

import gc
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.crash.failover import QUEUE, WAYS, Books, Pair, create_queues, run
from tests.postgresql import cluster, needs_postgresql, new_database

pytestmark = [needs_postgresql, pytest.mark.req("C6"), pytest.mark.xdist_group("postgresql")]


def _judge(books: Books) -> None:
    assert books.is_clean, (books.lost, books.resurrected, books.strange)
    assert len(books.acknowledged) > 50
    assert len(books.completing) <= 10 * len(books.gaps_s) + 10, "ten at a time, when one failed"


def test_another_broker_goes_on(tmp_path: Path) -> None:
    """The one that serves is killed under load, then the next one is stopped until it is taken over
    from, and resumed: nothing that was acknowledged is lost, nothing that was completed comes back,
    and the resumed one hands out nothing, says why, and ends. Ctrl-C ends one that stands by."""
    books = run(["kill", "pause"], tmp_path, new_database(), between_s=0.3)
    _judge(books)
    assert len(books.gaps_s) == 2
    print(books)


def test_the_books_know_a_loss_and_a_ghost() -> None:
    """The canary: what is wrong is seen."""
    books = Books(acknowledged={"1", "2"}, completed={"1"})
    assert books.lost == {"2"}
    assert not books.is_clean
    assert not Books(completed={"3"}).is_clean
    assert Books(perhaps={"3"}, completed={"3"}).is_clean
    assert Books(acknowledged={"4"}, completing={"4"}).is_clean
    assert not Books(resurrected=["5"]).is_clean


@pytest.mark.long
def test_failures_of_every_kind(tmp_path: Path) -> None:
    chance = random.Random(6)
    ways = [*WAYS, *(chance.choice(WAYS) for _ in range(17))]
    books = run(ways, tmp_path, new_database())
    print(books)
    _judge(books)


@pytest.mark.long
def test_the_database_itself_fails(tmp_path: Path) -> None:
    """Both brokers live through a crash of the database: the one that serves ends and says so, the
    other waits until it is back, and goes on with all that was acknowledged."""
    made = cluster()
    pair = Pair(tmp_path, new_database())
    try:
        create_queues(pair.active.connection_string)
        pair.begin()
        time.sleep(0.5)
        made.stop()
        assert pair.active.ended() == 1
        made.start()
        pair.standby.wait(pair.standby.is_serving)
        pair.active, pair.standby = pair.standby, pair.active
        time.sleep(0.5)
        pair.end()
    finally:
        pair.close()
    _judge(pair.books)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the SDK leaves lost sockets open
def test_the_sdk_goes_on_by_itself(tmp_path: Path) -> None:
    """Both brokers have the same address, of which the one that stands by takes nothing until it
    serves. A client of the official SDK that was made once sends and receives through three kills:
    its own retries are all that it needs."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = Pair(tmp_path, new_database(), port)
    try:
        create_queues(pair.active.connection_string)
        sent, received = _through_kills(pair, 3)
    finally:
        pair.close()
        gc.collect()  # while the warnings of the SDK's sockets are let pass
    assert sorted(received, key=int) == sent
    assert not pair.books.strange


def _through_kills(pair: Pair, count: int) -> tuple[list[str], list[str]]:
    """What one client of the SDK has sent, and what it has received and completed."""
    sdk = pytest.importorskip("azure.servicebus")
    sent: list[str] = []
    received: list[str] = []

    def take(receiver: Any, most: int, wait_s: int) -> int:
        messages = receiver.receive_messages(most, max_wait_time=wait_s)
        for message in messages:
            receiver.complete_message(message)
            received.append(str(message))
        return len(messages)

    with (
        sdk.ServiceBusClient.from_connection_string(
            pair.active.connection_string, retry_total=10, retry_backoff_factor=0.2
        ) as client,
        client.get_queue_sender(QUEUE) as sender,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        for _ in range(count):
            pair.fail("kill")
            for _ in range(20):
                sender.send_messages(sdk.ServiceBusMessage(str(len(sent))))
                sent.append(str(len(sent)))
            take(receiver, 10, 5)  # the others live through the next kill
        while take(receiver, 20, 2):
            pass
    return sent, received
