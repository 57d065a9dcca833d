"""Details of the administration API that .NET's own tests look at (docs/findings.md, FX21)."""

from __future__ import annotations

from typing import Any

import pytest

from tandembus.atom import content_of
from tandembus.changes import Mode
from tandembus.core import commands as c
from tests.unit.admin.test_api import Client, detail
from tests.unit.core.world import HOUR, MINUTE, SECOND, World, message, rule

SIZE = "<MaxMessageSizeInKilobytes>{}</MaxMessageSizeInKilobytes>"
OLD, NEW = "?api-version=2017-04", "?api-version=2021-05"
FOREVER = "P10675199DT2H48M5.4775807S"


def shown(client: Client, target: str, name: str) -> str | None:
    return content_of(client.get(target)).value(name)


@pytest.mark.req("C2")
@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
@pytest.mark.parametrize(("is_premium", "size"), [(False, "256"), (True, "1024")])
def test_fx21_the_message_size_follows_the_api_version(
    kind: str, is_premium: bool, size: str
) -> None:
    """From 2021-05 on it is shown and taken back, on a standard namespace too; in 2017-04 it is
    never shown, refused in Azure's words if it is sent, and an update leaves it as it is."""
    client = Client(is_premium=is_premium)
    assert client.put(f"/q{OLD}", kind).status == 201
    assert shown(client, f"/q{OLD}", "MaxMessageSizeInKilobytes") is None
    for version in (NEW, "?api-version=2024-05", ""):
        assert shown(client, f"/q{version}", "MaxMessageSizeInKilobytes") == size
    assert client.put(f"/q{NEW}", kind, SIZE.format(size), If_Match="*").status == 200
    assert client.put(f"/r{NEW}", kind, SIZE.format(size)).status == 201
    text = detail(client.put(f"/s{OLD}", kind, SIZE.format(1024)), 400)
    assert f"of type '{kind}' has unsupported properties for api-version '2017-04'" in text
    other = client.put(f"/q{NEW}", kind, SIZE.format(2048), If_Match="*")
    if not is_premium:
        assert "Standard" in detail(other, 400)
        return
    assert other.status == 200
    assert client.put(f"/q{OLD}", kind, If_Match="*").status == 200
    assert shown(client, f"/q{NEW}", "MaxMessageSizeInKilobytes") == "2048"
    assert client.put(f"/q{NEW}", kind, If_Match="*").status == 200
    assert shown(client, f"/q{NEW}", "MaxMessageSizeInKilobytes") == "1024"


@pytest.mark.req("C2")
def test_fx21_a_dead_letter_queue_has_no_description() -> None:
    """Azure answers 400 with these words (azure-sdk-for-net issue 36261), 404 without an entity."""
    client = Client()
    client.put("/q", "QueueDescription")
    client.put("/t", "TopicDescription")
    client.put("/t/Subscriptions/s", "SubscriptionDescription")
    for entity in ("/q", "/t/Subscriptions/s"):
        for dead in ("$DeadLetterQueue", "$deadletterqueue", "%24DeadLetterQueue"):
            for method in ("GET", "DELETE"):
                text = detail(client(method, f"{entity}/{dead}"), 400)
                assert f"The specified HTTP verb ({method}) is not valid." in text
        text = detail(client.put(f"{entity}/$DeadLetterQueue", "QueueDescription"), 400)
        assert "The specified HTTP verb (PUT) is not valid." in text
        assert client("GET", entity).status == 200
    for missing in ("/none", "/t", "/t/Subscriptions/x"):
        detail(client("GET", f"{missing}/$DeadLetterQueue"), 404)


@pytest.mark.req("C2")
def test_fx21_a_new_subscription_is_a_use_of_its_topic() -> None:
    """.NET's own test `GetTopicRuntimeInfo`: UpdatedAt is before AccessedAt, with nothing sent."""
    client = Client()
    client.put("/t", "TopicDescription")
    client.broker.now += SECOND
    client.put("/t", "TopicDescription", If_Match="*")
    client.broker.now += SECOND
    assert client.put("/t/Subscriptions/s", "SubscriptionDescription").status == 201
    times = [shown(client, "/t", name) or "" for name in ("CreatedAt", "UpdatedAt", "AccessedAt")]
    assert times == sorted(set(times))


@pytest.mark.req("C2")
@pytest.mark.parametrize("target", ["/q", "/t/Subscriptions/s"])
def test_fx21_what_forwards_is_never_idle_and_says_so(target: str) -> None:
    """As soon as forwarding is on; not if only dead letters go on, nor forwarding to itself."""
    client = Client()
    client.put("/to", "QueueDescription")
    client.put("/t", "TopicDescription")
    kind = "QueueDescription" if target == "/q" else "SubscriptionDescription"
    idle = "<AutoDeleteOnIdle>PT10M</AutoDeleteOnIdle>"

    def after(forwarding: str) -> str | None:
        is_new = client("GET", target).status == 404
        headers = {} if is_new else {"If_Match": "*"}
        body = f"<ForwardTo>{forwarding}</ForwardTo>{idle}" if forwarding else idle
        assert client.put(target, kind, body, **headers).status in (200, 201)
        return shown(client, target, "AutoDeleteOnIdle")

    assert after("") == "PT10M"
    assert after("to") == FOREVER
    assert after("") == "PT10M"
    dead = f"{idle}<ForwardDeadLetteredMessagesTo>to</ForwardDeadLetteredMessagesTo>"
    client.put(target, kind, dead, If_Match="*")
    assert shown(client, target, "AutoDeleteOnIdle") == "PT10M"
    if target == "/q":
        assert after("sb://h:1/q") == "PT10M"


@pytest.mark.req("C2")
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("to/there", "sb://h:1/to/there"),
        ("sb://h:1/to/there", "sb://h:1/to/there"),
        ("http://h/to%2Fthere", "http://h:1/to/there"),
        ("HTTPS://h:443/to/there", "https://h:1/to/there"),
        ("amqps://h/to/there/", "amqps://h:1/to/there"),
    ],
)
def test_fx21_forwarding_keeps_the_scheme_that_came(sent: str, told: str) -> None:
    """Told as an absolute URI; each of the two has its own, and what is told can be sent back."""
    client = Client()
    client.put("/to/there", "QueueDescription")
    names = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
    for name, other in (names, names[::-1]):
        body = f"<{name}>{sent}</{name}><{other}>to/there</{other}>"
        assert client.put(f"/{name}", "QueueDescription", body).status == 201
        for _ in range(2):
            assert shown(client, f"/{name}", name) == told
            assert shown(client, f"/{name}", other) == "sb://h:1/to/there"
            again = f"<{name}>{told}</{name}><{other}>sb://h:1/to/there</{other}>"
            client.put(f"/{name}", "QueueDescription", again, If_Match="*")
    detail(client.put("/x", "QueueDescription", "<ForwardTo>file://h/to</ForwardTo>"), 400)


USES: dict[str, Any] = {
    "send": lambda world: world.send("q", "a"),
    "batch": lambda world: world.send("q", "a", "b", "c"),
    "duplicate": lambda world: [world.do(c.Send("once", [message(message_id="m")])) for _ in "ab"],
    "to a topic": lambda world: world.send("t", "a"),
    "schedule": lambda world: world.schedule("q", "a", after_ms=HOUR),
    "cancel": lambda world: world.do(
        c.CancelScheduled("q", world.schedule("q", "a", after_ms=MINUTE))
    ),
    "activation": lambda world: (world.schedule("q", "a", after_ms=SECOND), world.wait(2 * SECOND)),
    "receive": lambda world: world.receive_one("full"),
    "receive and delete": lambda world: world.take(world.attach("full", Mode.RECEIVE_AND_DELETE)),
    "an empty receive": lambda world: world.detach(_polled(world)),
    "deferred": lambda world: (
        world.defer("full", world.receive_one("full")), world.receive_deferred("full", 1)
    ),
    "browse": lambda world: world.browse("full"),
    "update": lambda world: world.update("q", user_metadata="new"),
    "a rule": lambda world: world.do(c.AddRule("t/subscriptions/s", rule("r", "n = 1"))),
    "a subscription": lambda world: world.subscription("t", "new"),
    "purge": lambda world: world.do(c.DeleteMessages("full", 10, world.now + 1)),
    "a relay": lambda world: (world.send("t", "a"), world.settle_down(), world.wait(SECOND)),
    "a forward": lambda world: (world.send("forwards", "a"), world.settle_down()),
}  # fmt: skip


def _polled(world: World) -> int:
    link = world.attach("q")
    world.take(link)
    return link


@pytest.mark.req("C2")
@pytest.mark.parametrize("use", USES)
def test_fx21_after_a_restart_accessed_at_is_what_it_was(use: str) -> None:
    """From the log alone, and from a snapshot with what came after it; and the time until an idle
    entity is deleted begins with the broker, not before it was there."""
    for steps in range(5):  # the snapshot is taken each four commands
        world = World()
        world.queue("q")
        world.queue("once", requires_duplicate_detection=True)
        world.queue("full")
        world.queue("forwards", forward_to="once")
        world.topic("t")
        world.subscription("t", "s", auto_delete_on_idle_ms=5 * MINUTE)
        world.send("full", "x", "y")
        for _ in range(steps):
            world.wait(SECOND)
            world.browse("once")
        world.wait(MINUTE)
        USES[use](world)
        before = {queue.path: queue.accessed_ms for queue in world.namespace.entities}
        world.wait(2 * MINUTE)
        world.restart()
        after = {queue.path: queue.accessed_ms for queue in world.namespace.entities}
        assert after == before
        world.wait(4 * MINUTE)
        assert "t/Subscriptions/s" in world.namespace
        world.wait(2 * MINUTE)
        assert "t/Subscriptions/s" not in world.namespace
