"""What the source asks of a broker, by position and by peeking: the same answers from both."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest

from tandembus.client import Client, OutgoingMessage
from tandembus.errors import ArgumentError, EntityNotFoundError, NotAllowedError, TandemError
from tandembus.spark.brokers import Broker, PeekBroker, TandemBroker, connect
from tandembus.spark.offsets import Offset
from tandembus.spark.options import ReadOptions, Target, parse_read
from tandembus.spark.planning import Range, ending, read_range, spans, starting
from tandembus.testing import BrokerProcess, LocalBroker

World: TypeAlias = tuple[LocalBroker, Client, str]
_count = 0


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[LocalBroker, Client]]:
    with LocalBroker.start() as broker, Client(broker.connection_string) as client:
        yield broker, client


@pytest.fixture
def world(place: tuple[LocalBroker, Client]) -> World:
    """A broker, a client of it, and a queue with the messages 0 to 9."""
    global _count
    _count += 1
    broker, client = place
    name = f"q{_count}"
    broker.create_queue(name)
    fill(client, name, 10)
    return broker, client, name


def fill(client: Client, name: str, count: int, size: int = 100) -> None:
    with client.sender(name) as sender:
        sender.send_all(
            OutgoingMessage(
                f"{at}:".encode().ljust(size), message_id=f"m{at}", properties={"n": at}
            )
            for at in range(count)
        ).check()


def target(broker: LocalBroker, extensions: bool | None = True) -> Target:
    return Target(broker.connection_string, None, extensions, 5_000)


def options(world: World, extensions: bool = True, **said: str) -> ReadOptions:
    broker, _, name = world
    given = {"connectionString": broker.connection_string, "entity": name, **said}
    found = parse_read(given, streams=None)
    return replace(found, target=target(broker, extensions))


@pytest.fixture(params=[True, False], ids=["by position", "by peeking"])
def extensions(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def asked(world: World, extensions: bool) -> Iterator[Broker]:
    broker = connect(target(world[0], extensions), world[2])
    yield broker
    broker.close()


def numbers(broker: Broker, key: str, start: int, end: int, sql: str | None = None) -> list[int]:
    found = broker.pages(key, start, end, "all", sql)
    return [number for page in found for number in page.sequence_numbers]


@pytest.mark.req("D1")
def test_where_messages_lie_and_what_a_range_holds(world: World, asked: Broker) -> None:
    _, client, name = world
    with client.receiver(name) as receiver:
        receiver.complete(receiver.receive(3))
        receiver.defer(receiver.receive(1))
    client.schedule([b"later"], 9_999_999_999_999, name)
    extent = asked.survey([name])[name]
    assert (extent.first, extent.tail >= 11) == (4, True)
    assert numbers(asked, name, 0, extent.tail) == [4, 5, 6, 7, 8, 9, 10]
    assert numbers(asked, name, 6, 8) == [6, 7]
    assert numbers(asked, name, 8, 8) == []


@pytest.mark.req("D1")
def test_a_filter_selects(world: World, asked: Broker) -> None:
    """In the broker, or here with the same code where the broker cannot."""
    _, _, name = world
    assert numbers(asked, name, 0, 11, "n >= 7") == [8, 9, 10]
    assert numbers(asked, name, 0, 11, "n > 'x'") == []
    assert numbers(asked, name, 0, 11, "sys.SequenceNumber = 3") == [3]


@pytest.mark.req("D1")
def test_a_batch_is_as_large_as_it_may_be(world: World, asked: Broker) -> None:
    name = world[2]
    assert asked.advance(name, 1, 11, 4, None).end == 5
    assert asked.advance(name, 1, 11, None, None).end == 11
    assert asked.advance(name, 1, 3, 4, None).end == 3


@pytest.mark.req("D1")
def test_tasks_have_about_the_same_to_do(world: World, extensions: bool, asked: Broker) -> None:
    _, client, name = world
    fill(client, name, 990)
    chosen = options(world, extensions, partitions="4")
    found = spans(chosen, asked, starting(chosen, asked), ending(chosen, asked))
    assert len(found) == 4
    sizes = [len(numbers(asked, each.key, each.start, each.end)) for each in found]
    assert sum(sizes) == 1_000
    assert max(sizes) - min(sizes) <= 10
    assert [each.end for each in found[:-1]] == [each.start for each in found[1:]]


def test_small_reads_are_one_task_and_none_is_none(world: World) -> None:
    chosen = options(world)
    broker = TandemBroker(chosen.target)
    assert len(spans(chosen, broker, {world[2]: 0}, {world[2]: 11})) == 1
    assert spans(chosen, broker, {world[2]: 11}, {world[2]: 11}) == []
    assert spans(chosen, broker, {world[2]: 0}, {world[2]: 1}) == []
    broker.close()


@pytest.mark.req("D1")
def test_where_to_begin_and_end(world: World, extensions: bool, asked: Broker) -> None:
    """By number, by name, by time."""
    broker, client, name = world
    noon = int(broker.clock.advance(hours=1).timestamp() * 1000)
    broker.clock.advance(seconds=1)
    with client.sender(name) as sender:
        sender.send(b"after")

    def begin(**said: str) -> Offset:
        return starting(options(world, extensions, **said), asked)

    assert begin() == {name: 1}
    assert begin(startingPosition="latest") == {name: 12}
    assert begin(startingPosition="5") == {name: 5}
    assert begin(startingPosition=f'{{"{name}": 6}}') == {name: 6}
    assert begin(startingTime=str(noon)) == {name: 11}
    assert ending(options(world, extensions, endingTime=str(noon)), asked) == {name: 11}
    assert ending(options(world, extensions, endingPosition="99"), asked) == {name: 12}
    with pytest.raises(ArgumentError, match="There is no 'x'"):
        begin(startingPosition='{"x": 1}')


@pytest.mark.req("D2")
def test_what_is_committed_is_removed_and_only_that(world: World, asked: Broker) -> None:
    _, client, name = world
    asked.begin("etl", {name: 1}, None)
    asked.commit("etl", {name: 5}, removes=True)
    asked.commit("etl", {name: 5}, removes=True)
    asked.commit("etl", {name: 3}, removes=True)
    assert numbers(asked, name, 0, 11) == [5, 6, 7, 8, 9, 10]
    asked.commit("etl", {name: 11}, removes=True)
    assert client.browse(name) == []


@pytest.mark.req("D2")
def test_what_lies_before_the_beginning_stays(world: World) -> None:
    """By position, because the broker remembers where; by peeking that is refused."""
    broker, client, name = world
    one = TandemBroker(target(broker))
    one.begin("etl", {name: 6}, None)
    one.commit("etl", {name: 8}, removes=True)
    assert [each.sequence_number for each in client.browse(name)] == [1, 2, 3, 4, 5, 8, 9, 10]
    one.begin("etl", {name: 1}, None)  # known already: it does not begin again
    one.commit("etl", {name: 9}, removes=True)
    assert [each.sequence_number for each in client.browse(name)] == [1, 2, 3, 4, 5, 9, 10]
    one.close()
    other = PeekBroker(target(broker, False))
    with pytest.raises(NotAllowedError, match="begins at 'earliest'"):
        other.begin("etl", {name: 6}, None)
    with pytest.raises(NotAllowedError, match="needs a broker with Tandem's extensions"):
        other.begin("etl", {name: 1}, 1_000)
    other.close()


@pytest.mark.req("D2")
def test_a_tap_reads_what_others_completed(world: World) -> None:
    broker, client, name = world
    one = TandemBroker(target(broker))
    one.begin("tap", {name: 1}, 60_000)
    with client.receiver(name) as receiver:
        receiver.complete(receiver.receive(10))
    assert client.browse(name) == []
    assert numbers(one, name, 1, 11) == list(range(1, 11))
    one.commit("tap", {name: 7}, removes=False)
    assert numbers(one, name, 1, 11) == [7, 8, 9, 10]
    broker.clock.advance(minutes=2)
    assert one.survey([name])[name].floor == 11
    one.close()


@pytest.mark.req("D1")
def test_dead_letters_say_why(world: World, extensions: bool) -> None:
    """And are read in the order of their death, by position."""
    _, client, name = world
    with client.receiver(name) as receiver:
        found = receiver.receive(3)
        for message in reversed(found):
            receiver.dead_letter(message, reason="bad", description="very")
    path = f"{name}/$DeadLetterQueue"
    chosen = options(world, extensions, entity=path)
    columns = ("sequence_number", "dead_letter_reason", "dead_letter_description")
    batches = list(read_range(chosen, columns, Range(path, 0, 4)))
    rows = [row for batch in batches for row in batch.to_pylist()]
    order = [3, 2, 1] if extensions else [1, 2, 3]
    assert [row["sequence_number"] for row in rows] == order
    assert {row["dead_letter_reason"] for row in rows} == {"bad"}
    assert {row["dead_letter_description"] for row in rows} == {"very"}


@pytest.mark.req("D1")
def test_partitioned_entities_have_a_key_for_each_partition(world: World) -> None:
    broker, client, name = world
    broker.create_queue(f"{name}p", EnablePartitioning=True)
    fill(client, f"{name}p", 40)
    chosen = options(world, entity=f"{name}p")
    one = connect(chosen.target, f"{name}p")
    begin, end = starting(chosen, one), ending(chosen, one)
    assert len(begin) == 16
    found = [
        number
        for each in spans(chosen, one, begin, end)
        for number in numbers(one, each.key, each.start, each.end)
    ]
    assert len(set(found)) == len(found) == 40
    one.close()
    other = PeekBroker(target(broker, False))
    with pytest.raises(NotAllowedError, match="partitioned"):
        other.survey([f"{name}p"])
    other.close()


def test_which_kind_of_broker_it_is_is_asked(world: World) -> None:
    broker, _, name = world
    one = connect(target(broker, None), name)
    assert isinstance(one, TandemBroker)
    one.close()
    with pytest.raises(EntityNotFoundError):
        connect(target(broker, None), "nothing")
    broker.create_topic(f"{name}t")
    with pytest.raises(TandemError, match="is a topic"):
        connect(target(broker, None), f"{name}t")


def test_only_the_columns_that_are_wanted_travel(world: World) -> None:
    """Without bodies, and without anything of the message."""
    broker, _, name = world
    one = TandemBroker(target(broker))
    (bare,) = one.pages(name, 1, 11, "none", None)
    (head,) = one.pages(name, 1, 11, "properties", None)
    (whole,) = one.pages(name, 1, 11, "all", None)
    assert (len(bare), len(head), len(whole)) == (10, 10, 10)
    assert bare.messages == b""
    assert 0 < len(head.messages) < len(whole.messages) - 1_000
    assert list(bare.sizes) == list(whole.sizes)
    one.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.req("D2")
def test_a_broker_that_is_killed_and_restarted_is_waited_for() -> None:
    """In the middle of a range: it is read on from where it was, nothing twice."""
    arguments = ["--port", str(free_port())]
    with BrokerProcess.start(arguments=arguments) as broker:
        broker.create_queue("q")
        with Client(broker.connection_string) as client:
            fill(client, "q", 3_000, size=1_000)
        one = TandemBroker(Target(broker.connection_string, None, True, 60_000))
        pages = one.pages("q", 0, 3_001, "all", None)
        found = [*next(pages).sequence_numbers]
        broker.kill()
        broker.restart()
        found += [number for page in pages for number in page.sequence_numbers]
        assert found == list(range(1, 3_001))
        one.close()
