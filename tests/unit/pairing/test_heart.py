"""States, timers, rotation: the heart of a pair, with a clock that the test moves (N4, N5, N8)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus import exceptions as sdk

from tandembus.clock import ManualClock
from tandembus.model import NEVER
from tandembus.pairing.failures import BacklogUnavailableError
from tandembus.pairing.heart import (
    GATE_MS,
    BacklogChanged,
    BacklogQueue,
    EntityChanged,
    Event,
    Health,
    Heart,
)
from tandembus.pairing.options import PairingOptions

DOWN = sdk.ServiceBusConnectionError()
MINUTE = 60_000


class World:
    def __init__(self, *, secondaries: int = 1, **options: object) -> None:
        self.clock = ManualClock()
        chosen = PairingOptions(**options)  # type: ignore[arg-type]
        self.heart = Heart(chosen, self.clock, secondaries=secondaries)
        self.events: list[Event] = []
        self.heart.subscribe(self.events.append)
        self.entity = self.heart.entity("orders")

    def health(self) -> Health:
        return self.entity.health

    def uses_primary(self) -> bool:
        return self.entity.uses_primary

    def changes(self) -> list[Health]:
        return [event.now for event in self.events if isinstance(event, EntityChanged)]


@pytest.mark.req("N4")
def test_the_timer() -> None:
    """The first failure starts it; without one success it engages after the interval, and a
    failure before that is the caller's to see."""
    world = World()
    assert not world.heart.failed(world.entity, DOWN)
    assert world.health() is Health.TIMING
    assert world.heart.next_due_ms() == world.clock.now_ms() + MINUTE
    world.clock.advance(MINUTE - 1)
    assert not world.heart.failed(world.entity, DOWN)
    assert world.heart.tick() == []
    assert world.heart.entity("orders").uses_primary
    world.clock.advance(1)
    assert world.heart.failed(world.entity, DOWN), "this one goes to the backlog already"
    assert not world.uses_primary()
    assert world.changes() == [Health.TIMING, Health.FAILED_OVER]


@pytest.mark.req("N4")
def test_the_timer_needs_no_send() -> None:
    """It engages when it is over, so that probing begins, even if nobody sends."""
    world = World()
    world.heart.failed(world.entity, DOWN)
    world.clock.advance(MINUTE)
    assert world.heart.tick() == []
    assert world.health() is Health.FAILED_OVER


@pytest.mark.req("N4")
def test_a_success_resets_it() -> None:
    world = World()
    for _ in range(3):
        world.heart.failed(world.entity, DOWN)
        world.clock.advance(MINUTE - 1)
        world.heart.succeeded(world.entity)
        assert world.health() is Health.HEALTHY
        assert world.heart.next_due_ms() == NEVER
    assert Health.FAILED_OVER not in world.changes()


@pytest.mark.req("N4")
def test_interval_zero() -> None:
    """At once: the send that failed is the first that goes to the backlog."""
    world = World(failover_interval=timedelta())
    assert world.heart.failed(world.entity, DOWN)
    assert world.changes() == [Health.FAILED_OVER]


@pytest.mark.req("N4")
@pytest.mark.parametrize(
    "error",
    [
        sdk.ServiceBusAuthenticationError(),
        sdk.ServiceBusAuthorizationError(),
        sdk.MessageSizeExceededError(),
        sdk.ServiceBusServerBusyError(),
        sdk.MessagingEntityNotFoundError(),
        sdk.ServiceBusError("no session id", condition="amqp:not-allowed"),
        sdk.ServiceBusError("bad", condition="com.microsoft:argument-error"),
        ValueError("closed"),
        TypeError("not a message"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_never_starts_it(error: Exception) -> None:
    """Authorisation, size, throttling, not found, and what is wrong with the message."""
    world = World(failover_interval=timedelta())
    assert not world.heart.failed(world.entity, error)
    assert world.health() is Health.HEALTHY


@pytest.mark.req("N4")
@pytest.mark.parametrize(
    "error",
    [
        sdk.ServiceBusConnectionError(),
        sdk.ServiceBusCommunicationError(),
        sdk.OperationTimeoutError(),
        sdk.MessagingEntityDisabledError(),
        sdk.ServiceBusQuotaExceededError(),
        sdk.ServiceBusError("the service failed", condition="amqp:internal-error"),
        sdk.ServiceBusError("unknown"),
        ConnectionRefusedError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_starts_it(error: Exception) -> None:
    """Non-transient failures and time-outs."""
    world = World(failover_interval=timedelta())
    assert world.heart.failed(world.entity, error)


@pytest.mark.req("N4")
def test_entities_are_on_their_own() -> None:
    """One that fails takes no other with it; names are told apart without regard to case."""
    world = World(failover_interval=timedelta())
    world.heart.failed(world.entity, DOWN)
    assert world.heart.entity("ORDERS") is world.entity
    assert world.heart.entity("bills").uses_primary


@pytest.mark.req("N8")
def test_probes_are_due_once_an_interval() -> None:
    """Once per entity and interval, not a second time while one is under way, and not while the
    entity is healthy or its timer runs."""
    world = World(failover_interval=timedelta(), ping_primary_interval=timedelta(seconds=30))
    world.heart.failed(world.entity, DOWN)
    world.heart.entity("bills")
    due = []
    for _ in range(3):
        world.clock.advance(29_999)
        assert world.heart.tick() == []
        world.clock.advance(1)
        due += world.heart.tick()
        world.heart.probed(world.entity, DOWN)
    assert due == [world.entity] * 3
    world.clock.advance(30_000)
    assert world.heart.tick() == [world.entity]
    world.clock.advance(30_000)
    assert world.heart.tick() == [], "the last one has not been answered"
    world.clock.advance(90_000)
    assert world.heart.tick() == [world.entity], "and never will be"


@pytest.mark.req("N8")
def test_the_first_that_succeeds_brings_all_back() -> None:
    """At once, and no more are due."""
    world = World(failover_interval=timedelta())
    world.heart.failed(world.entity, DOWN)
    world.clock.advance(MINUTE)
    (due,) = world.heart.tick()
    world.heart.probed(due, None)
    assert world.heart.entity("orders").uses_primary
    assert world.heart.next_due_ms() == NEVER
    assert world.heart.changes[Health.FAILED_OVER, Health.HEALTHY] == 1


@pytest.mark.req("N5")
def test_one_queue_for_each_sender() -> None:
    """At random, so that many spread; a sender stays with its own."""
    world = World(backlog_queue_count=10)
    chosen = [world.heart.choose(None) for _ in range(2_000)]
    assert {queue.place for queue in chosen} == set(range(10))
    assert min(chosen.count(BacklogQueue(0, place)) for place in range(10)) > 100
    assert all(world.heart.choose(queue) == queue for queue in chosen)


@pytest.mark.req("N5")
def test_a_queue_that_fails_leaves_for_all() -> None:
    """Every sender learns it; when none is left the caller gets an error that says so; after a
    while it may be chosen again."""
    world = World(backlog_queue_count=3)
    first = world.heart.choose(None)
    world.heart.left(first, DOWN)
    assert {world.heart.choose(first) for _ in range(100)} == {
        BacklogQueue(0, place) for place in range(3)
    } - {first}
    for place in range(3):
        world.heart.left(BacklogQueue(0, place), DOWN)
    with pytest.raises(BacklogUnavailableError, match="none of the 3 backlog queues"):
        world.heart.choose(first)
    gone = [event for event in world.events if isinstance(event, BacklogChanged)]
    assert [event.is_in_rotation for event in gone] == [False] * 3, "each once"
    world.clock.advance(MINUTE)
    world.heart.tick()
    assert world.heart.choose(first) == first
    assert world.heart.out_of_rotation() == []


@pytest.mark.req("N5")
def test_several_secondaries_in_order() -> None:
    """The next is used only while the one before has no queue."""
    world = World(secondaries=2, backlog_queue_count=2)
    assert {world.heart.choose(None).secondary for _ in range(50)} == {0}
    for place in range(2):
        world.heart.left(BacklogQueue(0, place), DOWN)
    assert {world.heart.choose(None).secondary for _ in range(50)} == {1}


def test_by_hand() -> None:
    """`engage` and `mark_healthy`; held, no answer to a probe ends it."""
    world = World()
    world.heart.engage("orders")
    assert world.health() is Health.FAILED_OVER
    world.heart.mark_healthy("orders")
    assert world.health() is Health.HEALTHY
    world.heart.engage("orders", hold=True)
    world.clock.advance(10 * MINUTE)
    assert world.heart.tick() == []
    world.heart.probed(world.entity, None)
    assert world.health() is Health.FAILED_OVER
    world.heart.mark_healthy("orders")
    assert world.uses_primary()


def test_ordered_return() -> None:
    """After the answer it still goes to the backlog, until that is home with nothing under way."""
    world = World(failover_interval=timedelta(), ordered_return=True)
    queue = BacklogQueue(0, 0)
    world.heart.failed(world.entity, DOWN)
    assert world.heart.goes_to(world.entity, queue)
    world.heart.probed(world.entity, None)
    assert world.health() is Health.RETURNING
    assert not world.uses_primary()
    world.heart.gate(world.entity, is_shut=True)
    assert not world.heart.came_home(world.entity), "one is under way"
    assert not world.heart.goes_to(world.entity, queue), "the gate is shut"
    world.heart.went(world.entity, 1)
    assert world.heart.came_home(world.entity)
    assert world.uses_primary()
    assert not world.heart.goes_to(world.entity, queue), "it is for the primary now"


def test_the_gate_is_shut_for_a_moment_only() -> None:
    """Whatever becomes of the look (a secondary that hangs), no sender waits for long; and what
    went through meanwhile has to be looked for again."""
    world = World(failover_interval=timedelta(), ordered_return=True)
    queue = BacklogQueue(0, 0)
    world.heart.failed(world.entity, DOWN)
    world.heart.goes_to(world.entity, queue)
    world.heart.went(world.entity, 1)
    world.heart.probed(world.entity, None)
    world.heart.gate(world.entity, is_shut=True)
    world.clock.advance(GATE_MS - 1)
    assert not world.heart.goes_to(world.entity, queue)
    world.clock.advance(1)
    assert world.heart.goes_to(world.entity, queue)
    world.heart.went(world.entity, 1)
    assert not world.heart.came_home(world.entity)
    assert world.health() is Health.RETURNING


def test_ordered_return_of_what_sent_nothing() -> None:
    """Needs no look: there is nothing to wait for."""
    world = World(failover_interval=timedelta(), ordered_return=True)
    world.heart.failed(world.entity, DOWN)
    world.heart.probed(world.entity, None)
    assert world.health() is Health.HEALTHY


def test_a_listener_that_fails_hurts_nobody() -> None:
    world = World(failover_interval=timedelta())

    def broken(event: Event) -> None:
        raise RuntimeError(event)

    forget = world.heart.subscribe(broken)
    world.heart.failed(world.entity, DOWN)
    assert world.changes() == [Health.FAILED_OVER]
    forget()
    world.heart.mark_healthy("orders")


@pytest.mark.req("N1")
def test_options() -> None:
    """Defaults, and the limits of the intervals."""
    options = PairingOptions()
    assert options.backlog_queue_count == 10
    assert options.failover_interval == options.ping_primary_interval == timedelta(minutes=1)
    assert not options.enable_syphon
    for wrong in (
        {"backlog_queue_count": 0},
        {"failover_interval": timedelta(seconds=-1)},
        {"failover_interval": timedelta(minutes=61)},
        {"ping_primary_interval": timedelta()},
        {"syphon_batch": 0},
    ):
        with pytest.raises(ValueError):
            PairingOptions(**wrong)
    PairingOptions(failover_interval=timedelta(minutes=60))
