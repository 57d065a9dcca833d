"""Entities: made, changed, disabled, full, idle, and gone (T17). Refusals have their own classes;
that a client library turns each into its own exception (T18) is shown where there is a client."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus import limits
from tandembus.changes import EntityKind
from tandembus.core.commands import (
    NEXT_SESSION,
    Attach,
    Browse,
    CancelScheduled,
    Command,
    CreateQueue,
    CreateSubscription,
    CreateTopic,
    DeleteEntity,
    DeleteMessages,
    ListSessions,
    Remark,
    UpdateEntity,
)
from tandembus.errors import (
    ArgumentError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
)
from tandembus.settings import (
    EntityStatus,
    PrioritySettings,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, heavy, message, rule

ROOMY_KB = 102_400
MB = 1 << 20


# --- made and changed -----------------------------------------------------------------------------


def test_a_path_is_one_entity_in_any_spelling(lived: World) -> None:
    """Case does not matter, nor does the address it is written in; the spelling of its creator is
    kept. A second one is refused, a topic of that name too."""
    lived.queue("Orders/Fast")
    lived.lull()
    for path in ("orders/fast", "ORDERS/FAST", "amqps://host/Orders/Fast"):
        assert lived["orders/fast"] is lived[path]
    assert lived["orders/fast"].path == "Orders/Fast"
    assert lived["orders/fast/$deadletterqueue"].kind is EntityKind.DEAD_LETTER
    error = lived.refused(EntityExistsError, CreateQueue("ORDERS/fast"))
    assert str(error) == "The messaging entity 'ORDERS/fast' already exists."
    lived.refused(EntityExistsError, CreateTopic("orders/FAST"))


def test_an_unknown_entity(world: World) -> None:
    """Every command says so, and names it; a path that cannot be one is not found either."""
    world.queue("q")
    commands: list[Command] = [
        world.sending("nothing", "a"),
        Attach(1, "nothing"),
        Browse("nothing"),
        CancelScheduled("nothing", [1]),
        DeleteMessages("nothing", 1, 0),
        DeleteEntity("nothing"),
        UpdateEntity("nothing", QueueSettings()),
        CreateSubscription("nothing", "s"),
        ListSessions("nothing"),
        Remark("nothing", 0),
    ]
    for command in commands:
        error = world.refused(EntityNotFoundError, command)
        assert str(error) == "The messaging entity 'nothing' could not be found."
    for path in ("q/$deadletterqueue/$deadletterqueue", "", "ü", "q/subscriptions/s", "a//b"):
        world.refused(EntityNotFoundError, Attach(1, path))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LockDuration", {"lock_duration_ms": 5 * MINUTE + 1}),
        ("LockDuration", {"lock_duration_ms": 5 * SECOND - 1}),
        ("MaxDeliveryCount", {"max_delivery_count": 0}),
        ("MaxSizeInMegabytes", {"max_size_mb": 16_384}),
        ("MaxMessageSizeInKilobytes", {"max_message_size_kb": 102_401}),
        ("DuplicateDetectionHistoryTimeWindow", {"duplicate_window_ms": 19 * SECOND}),
        ("DuplicateDetectionHistoryTimeWindow", {"duplicate_window_ms": 8 * 24 * HOUR}),
        ("DefaultMessageTimeToLive", {"default_ttl_ms": 999}),
        ("AutoDeleteOnIdle", {"auto_delete_on_idle_ms": 5 * MINUTE - 1}),
        ("UserMetadata", {"user_metadata": "x" * 1_025}),
        ("ForwardTo", {"forward_to": "no good name"}),
        ("ForwardDeadLetteredMessagesTo", {"forward_dead_letters_to": "no good name"}),
        ("PriorityLevels", {"priority": PrioritySettings(levels=1)}),
        ("PriorityWeights", {"priority": PrioritySettings(levels=2, weights=(1,))}),
        ("PriorityProperty", {"priority": PrioritySettings(source="property")}),
        ("PriorityRules", {"priority": PrioritySettings(source="rules")}),
    ],
)
def test_settings_are_refused_by_name(world: World, name: str, settings: dict[str, Any]) -> None:
    """With Azure's name for it, at creation and at a change; then nothing is there, or changed."""
    world.queue("other")
    world.queue("there")
    world.refused(ArgumentError, CreateQueue("q", QueueSettings(**settings)), name)
    world.refused(ArgumentError, UpdateEntity("there", QueueSettings(**settings)), name)
    assert "q" not in world.namespace


def test_a_priority_rule_must_be_sql(world: World) -> None:
    """It is parsed when the queue is made."""
    broken = PrioritySettings(source="rules", rules=(("tier = = 1", 1),))
    world.refused(ArgumentError, CreateQueue("q", QueueSettings(priority=broken)))


def test_statuses_that_an_entity_cannot_have(world: World) -> None:
    """A topic has no receivers to disable, a subscription no senders."""
    receive, send = EntityStatus.RECEIVE_DISABLED, EntityStatus.SEND_DISABLED
    world.topic("t")
    world.refused(ArgumentError, CreateTopic("u", TopicSettings(status=receive)), "Status")
    settings = SubscriptionSettings(status=send)
    world.refused(ArgumentError, CreateSubscription("t", "s", settings), "Status")


@pytest.mark.parametrize(
    "path", ["", "a//b", "a b", "ü", "x" * 261, "a/../b", "$cbs", "t/subscriptions/s"]
)
def test_names_that_cannot_be(world: World, path: str) -> None:
    """Letters, digits and . - _ / only."""
    world.topic("t")
    world.refused(ArgumentError, CreateQueue(path))
    world.refused(ArgumentError, CreateTopic(path))


@pytest.mark.req("T17")
def test_an_update_is_kept(lived: World) -> None:
    """Through restarts; what is fixed at creation is not changed."""
    lived.queue("q", requires_session=True)
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.wait(SECOND)
    lived.update("q", lock_duration_ms=10 * SECOND, user_metadata="mine")
    lived.update(path, max_delivery_count=3)
    lived.lull()
    assert lived["q"].settings == QueueSettings(
        requires_session=True, lock_duration_ms=10 * SECOND, user_metadata="mine"
    )
    assert lived["q"].updated_ms == lived["q"].created_ms + SECOND
    assert lived[path].settings == SubscriptionSettings(max_delivery_count=3)
    for changed in (
        QueueSettings(),
        QueueSettings(requires_session=True, requires_duplicate_detection=True),
        QueueSettings(requires_session=True, enable_partitioning=True),
    ):
        lived.refused(ArgumentError, UpdateEntity("q", changed), "can't be changed")
    lived.refused(ArgumentError, UpdateEntity("q", TopicSettings()))
    lived.refused(ArgumentError, UpdateEntity("q/$DeadLetterQueue", QueueSettings()))


def test_the_number_of_entities_is_bounded(world: World) -> None:
    """10,000 queues and topics together, or fewer; subscriptions do not count."""
    assert limits.MAX_ENTITIES == 10_000
    world.namespace.limit_entities(3)
    world.queue("a")
    world.topic("b")
    world.subscription("b", "s")
    world.queue("c")
    world.refused(QuotaExceededError, CreateQueue("d"))
    world.refused(QuotaExceededError, CreateTopic("d"))
    world.delete("a")
    world.queue("d")


# --- gone -----------------------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_deleting_a_queue(lived: World) -> None:
    """Its messages in every state, its dead letters and their bodies are gone; its links are closed
    with not-found; what is made under its name afterwards is new."""
    lived.queue("q")
    lived.send("q", *"abcde")
    dead, deferred, _ = lived.receive("q", 3)
    lived.dead_letter("q", dead)
    lived.defer("q", deferred)
    lived.schedule("q", "later", after_ms=HOUR)
    links = [lived.attach("q"), lived.attach("q/$DeadLetterQueue")]
    lived.delete("q")
    assert lived.freed == set(lived.payloads)
    assert {closed.link for closed in lived.closed} >= set(links)
    assert all(isinstance(closed.error, EntityNotFoundError) for closed in lived.closed)
    for path in ("q", "q/$DeadLetterQueue"):
        lived.refused(EntityNotFoundError, Attach(99, path))
    lived.lull()
    assert "q" not in lived.namespace
    lived.queue("q")
    assert lived.send("q", "new") == [1]
    lived.lull()
    lived.wait(2 * HOUR)
    assert lived.waiting("q") == ["new"]


@pytest.mark.req("T17")
def test_deleting_a_topic(lived: World) -> None:
    """Its subscriptions go with it."""
    lived.topic("t")
    paths = [lived.subscription("t", name) for name in ("one", "two")]
    lived.send("t", "a")
    lived.dead_letter(paths[0], lived.receive_one(paths[0]))
    lived.schedule("t", "later", after_ms=HOUR)
    lived.lull()
    link = lived.attach(paths[1])
    lived.delete("t")
    assert [closed.link for closed in lived.closed][-1:] == [link]
    assert lived.freed == set(lived.payloads)
    lived.lull()
    for path in ("t", *paths, f"{paths[0]}/$DeadLetterQueue"):
        assert path not in lived.namespace
    lived.wait(2 * HOUR)


@pytest.mark.req("T17")
def test_deleting_a_subscription(lived: World) -> None:
    """The others go on; its name is free."""
    lived.topic("t")
    one = lived.subscription("t", "one", rule("red", "colour = 'red'"))
    two = lived.subscription("t", "two")
    lived.delete(one)
    lived.lull()
    lived.send("t", "a")
    assert list(lived.namespace.subscriptions("t")) == ["two"]
    assert lived.waiting(two) == ["a"]
    lived.subscription("t", "one")
    assert [each.name for each in lived.namespace.rules(one)] == ["$Default"]
    assert lived.waiting(one) == []


def test_what_cannot_be_deleted(world: World) -> None:
    """A dead-letter queue lives as long as its queue."""
    world.queue("q")
    world.refused(NotAllowedError, DeleteEntity("q/$DeadLetterQueue"))


def test_a_waiter_for_a_session_is_told(world: World) -> None:
    """When the queue is deleted under it."""
    world.queue("q", requires_session=True)
    link = world.attach("q", session=NEXT_SESSION)
    world.delete("q")
    assert [closed.link for closed in world.closed] == [link]
    world.detach(link)


# --- disabled -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_send_disabled(lived: World, status: EntityStatus) -> None:
    """Sends and schedules are refused; what is there stays, and comes due, and expires."""
    lived.queue("q")
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.send("q", "a", ttl_ms=MINUTE)
    lived.send("t", "a")
    lived.schedule("q", "b", after_ms=MINUTE)
    lived.update("q", status=status)
    lived.update("t", status=status)
    lived.lull()
    for entity in ("q", "t"):
        error = lived.refused(EntityDisabledError, lived.sending(entity, "x"))
        assert str(error) == f"The messaging entity '{entity}' is currently disabled."
        later = lived.sending(entity, "x", scheduled_ms=lived.now + HOUR)
        lived.refused(EntityDisabledError, later)
    assert lived.texts(lived.receive(path)) == ["a"]
    lived.wait(MINUTE)
    assert lived.waiting("q") == ["b"]
    lived.update("q", status=EntityStatus.ACTIVE)
    lived.send("q", "c")
    assert lived.consume("q") == ["b", "c"]


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
def test_receive_disabled(lived: World, status: EntityStatus) -> None:
    """Links are closed, and no new ones opened; nothing is received by number either. What was
    locked can be settled; sends are taken, if those are not disabled too."""
    lived.queue("q")
    lived.send("q", *"abc")
    deferred, completed = lived.receive("q", 2)
    lived.defer("q", deferred)
    lived.update("q", status=status)
    (closed,) = lived.closed
    assert isinstance(closed.error, EntityDisabledError)
    lived.complete("q", completed)
    lived.lull()
    lived.refused(EntityDisabledError, Attach(99, "q"))
    lived.refused(EntityDisabledError, lived.receiving_deferred("q", 1))
    if status is EntityStatus.RECEIVE_DISABLED:
        lived.send("q", "d")
    lived.update("q", status=EntityStatus.ACTIVE)
    assert lived.texts(lived.receive_deferred("q", 1)) == ["a"]
    assert lived.consume("q")[0] == "c"


@pytest.mark.req("T11")
def test_disabling_ends_session_locks(lived: World) -> None:
    """A session's lock ends with its link, also if the broker closes it: after the queue is active
    again it can be had at once, without a penalty for its messages."""
    lived.queue("q", requires_session=True)
    lived.send("q", "a", session_id="s")
    lived.take(lived.accept_session("q", "s").link)
    lived.update("q", status=EntityStatus.DISABLED)
    lived.update("q", status=EntityStatus.ACTIVE)
    accepted = lived.accept_session("q", "s")
    (delivery,) = lived.take(accepted.link)
    assert delivery.delivery_count == 0


def test_a_disabled_subscription_still_collects(lived: World) -> None:
    """Its receivers are shut out, its messages are kept for them."""
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.update(path, status=EntityStatus.RECEIVE_DISABLED)
    lived.send("t", "a")
    lived.lull()
    lived.refused(EntityDisabledError, Attach(99, path))
    lived.update(path, status=EntityStatus.ACTIVE)
    assert lived.consume(path) == ["a"]


# --- full -----------------------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_a_full_queue(lived: World) -> None:
    """A send that does not fit is refused with the sizes; dead letters count; what leaves makes
    room."""
    lived.queue("q", max_message_size_kb=ROOMY_KB)
    piece = heavy(100 * MB)
    lived.send("q", *[piece] * 10)
    lived.dead_letter("q", lived.receive_one("q"))
    lived.lull()
    error = lived.refused(QuotaExceededError, lived.sending("q", piece))
    assert "The maximum entity size has been reached or exceeded for Queue: 'q'" in str(error)
    assert f"Size of entity in bytes:{1_000 * MB}, Max entity size in bytes:{1_024 * MB}" in str(
        error
    )
    lived.refused(QuotaExceededError, lived.sending("q", heavy(20 * MB), heavy(20 * MB)))
    lived.send("q", heavy(24 * MB))
    lived.refused(QuotaExceededError, lived.sending("q", "a"))
    lived.complete("q", lived.receive_one("q"))
    lived.lull()
    lived.send("q", piece)
    lived.update("q", max_size_mb=2_048)
    lived.send("q", piece)


@pytest.mark.req("T17")
def test_a_topic_has_a_quota(world: World) -> None:
    """What its subscriptions hold counts, so that a topic without readers does not fill the disk;
    when they have read, it takes messages again."""
    world.topic("t", max_message_size_kb=ROOMY_KB)
    path = world.subscription("t", "s")
    piece = heavy(100 * MB)
    for _ in range(10):
        world.send("t", piece)
    world.refused(QuotaExceededError, world.sending("t", piece), "Topic: 't'")
    world.consume(path)
    world.send("t", piece)


@pytest.mark.req("T17")
def test_a_deleted_subscription_makes_room(lived: World) -> None:
    """What it held counts no longer against its topic's quota, dead letters included."""
    lived.topic("t")
    path = lived.subscription("t", "s")
    lived.send("t", "a", "b")
    lived.dead_letter(path, lived.receive_one(path))
    lived.lull()
    assert lived["t"].used_bytes > 0
    lived.delete(path)
    assert lived["t"].used_bytes == 0
    lived.lull()
    assert lived["t"].used_bytes == 0


@pytest.mark.req("T17")
def test_the_size_of_a_message(world: World) -> None:
    """256 KB by default, up to 100 MB where the entity says so."""
    world.queue("q")
    world.topic("t")
    world.queue("large", max_message_size_kb=ROOMY_KB)
    assert limits.DEFAULT_MESSAGE_KB == 256
    assert limits.MAX_MESSAGE_KB == ROOMY_KB
    for path in ("q", "t"):
        world.send(path, heavy(256 * 1024))
        error = world.refused(MessageSizeExceededError, world.sending(path, heavy(256 * 1024 + 1)))
        assert "262145 bytes" in str(error)
    world.send("large", heavy(100 * MB))
    world.refused(MessageSizeExceededError, world.sending("large", heavy(100 * MB + 1)))


@pytest.mark.req("T17")
def test_a_batch(lived: World) -> None:
    """All or none; of any number of messages."""
    lived.queue("q")
    assert lived.send("q", *"abc") == [1, 2, 3]
    each = message("x")
    lived.refused(MessageSizeExceededError, lived.sending("q", each, heavy(MB)))
    lived.lull()
    assert lived.consume("q") == ["a", "b", "c"]


# --- idle -----------------------------------------------------------------------------------------


@pytest.mark.req("T17")
def test_an_idle_queue_is_deleted(lived: World) -> None:
    """Five minutes after the last use, with what is in it; the settings say how long."""
    lived.queue("q", auto_delete_on_idle_ms=5 * MINUTE)
    lived.wait(4 * MINUTE)
    lived.send("q", "a")
    lived.wait(5 * MINUTE - 1)
    assert "q" in lived.namespace
    lived.wait(1)
    assert "q" not in lived.namespace
    assert lived.freed == set(lived.payloads)
    lived.lull()
    assert "q" not in lived.namespace
    lived.queue("q")


@pytest.mark.req("T17")
@pytest.mark.parametrize("use", ["send", "receive", "browse", "update", "schedule", "restart"])
def test_uses_of_a_queue(world: World, use: str) -> None:
    """Each starts the time anew (PRODUCT.md B.1)."""
    world.queue("q", auto_delete_on_idle_ms=5 * MINUTE)
    for _ in range(3):
        world.wait(4 * MINUTE)
        match use:
            case "send":
                world.send("q", "a")
            case "receive":
                link = world.attach("q")
                world.take(link)
                world.detach(link)
            case "browse":
                world.browse("q")
            case "update":
                world.update("q", user_metadata="again")
            case "schedule":
                world.schedule("q", "a", after_ms=MINUTE)
            case "restart":
                world.restart()
    assert "q" in world.namespace
    world.wait(6 * MINUTE)
    assert "q" not in world.namespace


@pytest.mark.req("T17")
def test_a_queue_in_use_is_not_idle(world: World) -> None:
    """While a receiver is attached, or a message is scheduled."""
    world.queue("received", auto_delete_on_idle_ms=5 * MINUTE)
    world.queue("scheduled", auto_delete_on_idle_ms=5 * MINUTE)
    link = world.attach("received")
    world.schedule("scheduled", "a", after_ms=HOUR)
    world.wait(HOUR)
    assert {"received" in world.namespace, "scheduled" in world.namespace} == {True}
    world.detach(link)
    world.wait(11 * MINUTE)
    assert {"received" in world.namespace, "scheduled" in world.namespace} == {False}


@pytest.mark.req("T17", "S8")
@pytest.mark.parametrize("minutes", [57, 60, 62])
def test_an_activation_is_a_use(lived: World, minutes: int) -> None:
    """A message that comes due is as if sent then: it has the whole time to be received."""
    lived.queue("q", auto_delete_on_idle_ms=5 * MINUTE)
    lived.schedule("q", "a", after_ms=minutes * MINUTE)
    lived.lull()
    lived.wait(minutes * MINUTE)
    lived.wait(5 * MINUTE - 1)
    assert lived.consume("q") == ["a"]


@pytest.mark.req("T17")
def test_idle_topics_and_subscriptions(lived: World) -> None:
    """A subscription is idle without receivers, whatever is sent; a topic without senders."""
    lived.topic("t")
    lived.subscription("t", "s", auto_delete_on_idle_ms=5 * MINUTE)
    lived.topic("idle", auto_delete_on_idle_ms=5 * MINUTE)
    for _ in range(5):
        lived.wait(MINUTE)
        lived.send("t", "a")
    lived.settle_down()
    lived.lull()
    assert "t/Subscriptions/s" not in lived.namespace
    assert "idle" not in lived.namespace
    assert lived.freed == set(lived.payloads)


def test_a_source_of_forwarding_is_never_idle(world: World) -> None:
    """Nobody receives from it, so it would always look so (PRODUCT.md B.1)."""
    world.queue("target")
    world.queue("q", forward_to="target", auto_delete_on_idle_ms=5 * MINUTE)
    world.wait(HOUR)
    assert "q" in world.namespace
    world.update("q", forward_to=None, auto_delete_on_idle_ms=5 * MINUTE)
    world.wait(6 * MINUTE)
    assert "q" not in world.namespace


# --- counts ---------------------------------------------------------------------------------------


def test_counts_and_sizes(lived: World) -> None:
    """Bytes and messages by state are what the administration shows."""
    lived.queue("q")
    size = len(message("a").payload)
    lived.send("q", *"abcd")
    dead, deferred = lived.receive("q", 2)
    lived.dead_letter("q", dead)
    lived.defer("q", deferred)
    lived.schedule("q", "e", after_ms=HOUR)
    lived.lull()
    queue = lived["q"]
    assert queue.active_count == 2
    assert queue.counts == [2, 0, 1, 1, 0, 0, 0]
    assert lived["q/$DeadLetterQueue"].active_count == 1
    scheduled = queue.size_bytes - 3 * size
    assert scheduled > size
    assert queue.used_bytes == queue.size_bytes + size


def test_remarks_are_only_noted(world: World) -> None:
    """A management call changes nothing but the journal."""
    world.queue("q")
    before = len(world.changes)
    world.do(Remark("q", 4, 7))
    assert len(world.changes) == before + 1
