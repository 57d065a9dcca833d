"""Messages that are stored in pieces: what joins them, what frees them, what a restart finds."""

from __future__ import annotations

from array import array

import pytest

from tandembus.core.commands import Disposition, Send, Settle
from tandembus.engine import index
from tandembus.engine.bodies import Bodies
from tandembus.engine.engine import LATE_READ_MS, Tuning
from tandembus.limits import KIB
from tandembus.model import LargePayload
from tests.unit.engine.world import Plain, World

pytestmark = pytest.mark.req("T19")

PARTS = [bytes((n,)) * 1_000 for n in range(1, 6)]


def stored(world: World, parts: list[bytes]) -> LargePayload:
    """Pieces whose message has not been sent; 10 bytes of the first are no body."""
    pieces = [(world.engine.store_piece(part, lambda _: None), len(part)) for part in parts]
    return LargePayload(b"head", pieces, 10, sum(map(len, parts)) - 10)


def send(world: World, payload: LargePayload) -> int:
    (number,) = world.execute(Send("q", [Plain(payload)]))  # type: ignore[arg-type]
    assert isinstance(number, int)
    return number


def whole(parts: list[bytes]) -> bytes:
    return b"head" + b"".join(parts)[10:]


def test_fw1_a_message_in_pieces_is_one_message() -> None:
    """Its size is that of all; it is read piece by piece, or as a whole; also in the next life."""
    world = World()
    world.queue()
    send(world, stored(world, PARTS))
    assert world.namespace.find("q").size_bytes == len(whole(PARTS))
    for number in range(2):
        life = World(world.store, world.clock) if number else world
        life.attach(7)
        (delivery,) = life.receive(7, 1)
        (payload,) = life.engine.bodies([delivery.body])
        assert isinstance(payload, LargePayload)
        assert payload.head == b"head"
        assert [life.engine.piece(number) for number, _ in payload.pieces] == PARTS
        assert life.engine.body(delivery.body) == whole(PARTS)
        life.execute(Settle("q", (delivery.token or b"",), Disposition.ABANDON))


def test_fw1_pieces_end_with_their_message() -> None:
    world = World()
    world.queue()
    before = world.recovered.bodies.count
    send(world, stored(world, PARTS))
    assert world.recovered.bodies.count == before + 6
    world.attach(7)
    world.complete(world.receive(7, 1))
    world.clock.advance(LATE_READ_MS + 1)
    world.send(b"another")
    assert world.recovered.bodies.count == before + 1
    again = World(world.store, world.clock)
    assert again.recovered.bodies.count == before + 1


@pytest.mark.parametrize("has_index", [False, True])
def test_fw1_pieces_without_a_message_end_with_the_broker(has_index: bool) -> None:
    """A connection was lost, or the broker was killed, in the middle of a message."""
    world = World()
    world.queue()
    stored(world, PARTS)
    world.settle()
    if has_index:
        world.stop()
    again = World(world.store, world.clock)
    assert again.recovered.bodies.count == 0
    payload = stored(again, PARTS)
    again.settle()
    assert send(again, payload) == 1, "numbers of pieces are not used again"


def test_fw1_dropped_pieces_are_gone_at_once() -> None:
    world = World()
    world.queue()
    payload = stored(world, PARTS)
    world.settle()
    world.engine.drop_pieces(payload.pieces)
    assert world.recovered.bodies.count == 0


def test_fw1_what_is_being_read_stays() -> None:
    """A message that is received and deleted is read after its end."""
    world = World()
    world.queue()
    send(world, stored(world, PARTS))
    world.attach(7)
    (delivery,) = world.receive(7, 1)
    world.engine.pin(delivery.body)
    world.complete([delivery])
    for _ in range(3):
        world.clock.advance(LATE_READ_MS + 1)
        world.send(b"another")
    assert world.engine.body(delivery.body) == whole(PARTS)
    kept = index.pack(world.namespace, world.recovered.bodies, world.engine._freed_numbers(), 0)
    assert index.unpack(b"".join(kept)).bodies.count == 3, "the next life does not read it"
    world.engine.unpin(delivery.body)
    with pytest.raises(KeyError):
        world.engine.body(delivery.body)


def test_fw1_pieces_are_moved_when_the_log_is_made_shorter() -> None:
    """Compaction writes them again like any other body, and a restart finds them."""
    tuning = Tuning(segment_bytes=32 * KIB, move_bytes=4 * KIB)
    world = World(tuning=tuning)
    world.queue()
    send(world, stored(world, PARTS))
    world.attach(7)
    (delivery,) = world.receive(7, 1)
    world.execute(Settle("q", (delivery.token or b"",), Disposition.DEFER))
    for _ in range(60):
        world.send(bytes(8_000))
        world.complete(world.receive(7, 1))
        world.clock.advance(LATE_READ_MS + 1)
    assert world.store.start > 0
    assert world.engine.metrics.bodies_moved
    assert world.engine.body(delivery.body) == whole(PARTS)
    again = World(world.store, world.clock, tuning=tuning)
    assert again.engine.body(delivery.body) == whole(PARTS)


def test_fw1_an_index_of_before_has_no_pieces() -> None:
    """It is read as ever."""
    bodies = Bodies()
    bodies.put(1, 100, 10)
    (data,) = bodies.dump()
    old = data[: -len(array("Q", (0, 0)).tobytes())]
    again = Bodies.load(memoryview(old))
    assert (again.count, again.large) == (1, {})
    assert again.next_piece == bodies.next_piece
