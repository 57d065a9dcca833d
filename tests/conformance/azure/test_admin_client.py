"""The official `azure-servicebus` administration client, unmodified, over https (WIRE.md §10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import (
    AccessRights,
    ApiVersion,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tandembus.core.commands import Send
from tests.conformance.azure.admin_server import BEARER, KEY_NAME, AdminServer
from tests.unit.engine.world import Plain

pytestmark = pytest.mark.req("C2")

FOR_EVER = timedelta(days=10675199, seconds=10085, microseconds=477581)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with AdminServer(tmp_path_factory.mktemp("admin")) as server:
        yield server


def connect(server: AdminServer, text: str | None = None, **more: Any) -> Any:
    more.setdefault("connection_verify", str(server.certificate))
    text = text or server.connection_string
    return ServiceBusAdministrationClient.from_connection_string(text, retry_total=0, **more)


@pytest.fixture(params=list(ApiVersion), ids=lambda version: str(version.value))
def client(server: AdminServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """In every version of the API; nothing is left over from the test before."""
    with connect(server, api_version=request.param) as client:
        for queue in client.list_queues():
            client.delete_queue(queue.name)
        for topic in client.list_topics():
            client.delete_topic(topic.name)
        yield client


def test_a_queue_with_azures_defaults(client: Any) -> None:
    """Created, read, in the list, gone."""
    created = client.create_queue("Orders")
    read = client.get_queue("oRDERS")
    for queue in (created, read):
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.max_size_in_megabytes == 1024
        assert queue.max_delivery_count == 10
        assert queue.default_message_time_to_live == FOR_EVER
        assert queue.auto_delete_on_idle == FOR_EVER
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.status == "Active"
        assert queue.availability_status == "Available"
        assert queue.enable_batched_operations is True
        assert queue.requires_session is False
        assert queue.forward_to is None
        assert queue.user_metadata is None
        size = None if "2017" in str(client._api_version) else 256
        assert queue.max_message_size_in_kilobytes == size
    assert [queue.name for queue in client.list_queues()] == ["Orders"]
    client.delete_queue("orders")
    assert list(client.list_queues()) == []
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("orders")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("orders")


def test_everything_that_a_queue_can_be_told(client: Any) -> None:
    """Comes back as it went, after creation and after an update; what is left out is cleared."""
    client.create_queue("target/one")
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        key_name="mine",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND, AccessRights.LISTEN],
        primary_key="one",
        secondary_key="two",
    )
    given: dict[str, Any] = {
        "lock_duration": timedelta(seconds=13),
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "default_message_time_to_live": timedelta(minutes=11, microseconds=5000),
        "dead_lettering_on_message_expiration": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "max_delivery_count": 14,
        "enable_batched_operations": False,
        "user_metadata": '<é & "ü">',
        "auto_delete_on_idle": timedelta(hours=10),
        "enable_partitioning": True,
        "enable_express": True,
    }
    client.create_queue("all", forward_to="target/one", authorization_rules=[rule], **given)
    queue = client.get_queue("all")
    # Nobody receives from what forwards: Azure has it be idle for as long as can be.
    given["auto_delete_on_idle"] = FOR_EVER
    assert {name: getattr(queue, name) for name in given} == given
    assert queue.forward_to.endswith("/target/one")
    (read,) = queue.authorization_rules
    assert (read.key_name, read.primary_key, read.secondary_key) == ("mine", "one", "two")
    assert list(read.rights) == ["Send", "Listen"]
    assert read.created_at_utc == read.modified_at_utc

    client.update_queue(queue)  # what was shown is understood
    again = client.get_queue("all")
    assert {name: getattr(again, name) for name in given} == given

    queue.forward_to = None
    queue.user_metadata = None
    queue.authorization_rules = None
    queue.forward_dead_lettered_messages_to = "target/one"
    queue.status = "SendDisabled"
    queue.lock_duration = "PT2M"
    client.update_queue(queue)
    queue = client.get_queue("all")
    assert queue.forward_to is None
    assert queue.user_metadata is None
    assert not queue.authorization_rules
    assert queue.forward_dead_lettered_messages_to.endswith("/target/one")
    assert queue.status == "SendDisabled"
    assert queue.lock_duration == timedelta(minutes=2)


def test_updates_that_are_refused(client: Any) -> None:
    """With Azure's words, and nothing has changed."""
    queue = client.create_queue("q")
    for name, value, words in [
        ("requires_session", True, "RequiresSession"),
        ("lock_duration", timedelta(days=25), "The supplied lock time exceeds"),
        ("duplicate_detection_history_time_window", timedelta(days=25), "DuplicateDetection"),
        ("max_message_size_in_kilobytes", 1024, "Standard|'2017-04'"),
        ("forward_to", "nowhere", "could not be found"),
        ("name", "other", "could not be found"),
        ("name", "", "could not be found"),
    ]:
        before = getattr(queue, name)
        setattr(queue, name, value)
        with pytest.raises(HttpResponseError, match=words) as caught:
            client.update_queue(queue)
        assert caught.value.status_code in (400, 404)
        assert "TrackingId:" in str(caught.value)
        setattr(queue, name, before)
    assert client.get_queue("q").lock_duration == timedelta(minutes=1)
    with pytest.raises(ResourceExistsError):
        client.create_queue("Q")
    with pytest.raises(ResourceExistsError):
        client.create_topic("Q")
    for name in ("", "a b", "a//b", "../x", "q/$DeadLetterQueue"):
        with pytest.raises(HttpResponseError):
            client.create_queue(name)


def test_topics_subscriptions_and_their_lists(client: Any) -> None:
    """With slashes in the topic's name; the names of the lists are those of creation, in order."""
    client.create_topic("txt/.-_123", support_ordering=True, user_metadata="t")
    topic = client.get_topic("txt/.-_123")
    assert topic.name == "txt/.-_123"
    topic.support_ordering = False
    topic.default_message_time_to_live = timedelta(hours=1)
    client.update_topic(topic)
    topic = client.get_topic("txt/.-_123")
    assert (topic.support_ordering, topic.user_metadata) == (False, "t")
    assert topic.default_message_time_to_live == timedelta(hours=1)

    for name in ("b", "A", "rules"):
        client.create_subscription("txt/.-_123", name)
    assert [each.name for each in client.list_subscriptions("txt/.-_123")] == ["A", "b", "rules"]
    subscription = client.get_subscription("txt/.-_123", "B")
    subscription.max_delivery_count = 3
    subscription.requires_session = False
    client.update_subscription("txt/.-_123", subscription)
    assert client.get_subscription("txt/.-_123", "b").max_delivery_count == 3
    with pytest.raises(ResourceExistsError):
        client.create_subscription("txt/.-_123", "B")
    for topic_name, name in (("nothing", "s"), ("txt/.-_123", "none")):
        with pytest.raises(ResourceNotFoundError):
            client.get_subscription(topic_name, name)
    client.delete_subscription("txt/.-_123", "b")
    infos = list(client.list_subscriptions_runtime_properties("txt/.-_123"))
    assert [info.name for info in infos] == ["A", "rules"]
    client.delete_topic("txt/.-_123")
    assert list(client.list_topics()) == []


def test_rules_of_every_kind(client: Any) -> None:
    """Filters and actions with values of every type; `$Default` is first in the list."""
    client.create_topic("t")
    client.create_subscription("t", "s")
    values: dict[str, Any] = {
        "string": "<text>",
        "int": 2,
        "long": 2**31 + 3,
        "bool": False,
        "double": 1.5,
        "naive": datetime(2020, 7, 5, 11, 12, 13),
        "aware": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
        "duration": timedelta(days=1, hours=2, minutes=3),
    }
    correlation = CorrelationRuleFilter(correlation_id="c", label="l", properties=values)
    action = SqlRuleAction("SET a = @x", parameters={"@x": datetime(2020, 7, 5)})
    client.create_rule("t", "s", "one", filter=correlation, action=action)
    rule = client.get_rule("t", "s", "ONE")
    assert type(rule.filter) is CorrelationRuleFilter
    assert (rule.filter.correlation_id, rule.filter.label) == ("c", "l")
    assert rule.filter.properties == values
    assert rule.action.sql_expression == "SET a = @x"
    assert rule.action.parameters == {"@x": datetime(2020, 7, 5)}
    assert rule.created_at_utc is not None

    sql = SqlRuleFilter("n = @n AND s = 'x'", parameters={"@n": 1})
    client.create_rule("t", "s", "two", filter=sql)
    rule = client.get_rule("t", "s", "two")
    assert type(rule.filter) is SqlRuleFilter
    assert rule.filter.sql_expression == "n = @n AND s = 'x'"
    assert rule.filter.parameters == {"@n": 1}
    assert rule.action is None
    client.create_rule("t", "s", "three", filter=FalseRuleFilter())
    assert type(client.get_rule("t", "s", "three").filter) is FalseRuleFilter
    rules = list(client.list_rules("t", "s"))
    assert [rule.name for rule in rules] == ["$Default", "one", "three", "two"]
    assert type(rules[0].filter) is TrueRuleFilter
    assert rules[1].filter.properties == values

    rule.filter = TrueRuleFilter()
    rule.action = SqlRuleAction("REMOVE s")
    client.update_rule("t", "s", rule)
    rule = client.get_rule("t", "s", "two")
    assert type(rule.filter) is TrueRuleFilter
    assert rule.action.sql_expression == "REMOVE s"

    with pytest.raises(ResourceExistsError):
        client.create_rule("t", "s", "Two")
    with pytest.raises(HttpResponseError) as caught:
        client.create_rule("t", "s", "bad", filter=SqlRuleFilter("n = = 1"))
    assert caught.value.status_code == 400
    client.delete_rule("t", "s", "two")
    for do in (client.delete_rule, client.get_rule):
        with pytest.raises(ResourceNotFoundError):
            do("t", "s", "two")
    runtime = client.get_topic_runtime_properties("t")
    assert runtime.subscription_count == 1


def test_filters_are_counted(client: Any) -> None:
    """`$Default` and one of SQL are two; one correlation filter."""
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.create_rule("t", "s", "sql", filter=SqlRuleFilter("n = 1"))
    client.create_rule("t", "s", "same", filter=CorrelationRuleFilter(label="x"))
    runtime = client.get_topic_runtime_properties("t")
    assert (runtime.sql_filter_count, runtime.correlation_filter_count) == (2, 1)


def test_runtime_counts(server: AdminServer, client: Any) -> None:
    """Of messages that came by another road."""
    client.create_queue("q")
    info = client.get_queue_runtime_properties("q")
    assert info.total_message_count == info.size_in_bytes == 0
    assert info.accessed_at_utc.year == 1
    assert abs(info.created_at_utc - datetime.now(UTC)) < timedelta(minutes=5)
    later = int(datetime.now(UTC).timestamp() * 1000) + 3_600_000
    server.execute(Send("q", [Plain(b"abc"), Plain(b"d", scheduled_ms=later)]))
    info = client.get_queue_runtime_properties("q")
    assert (info.active_message_count, info.scheduled_message_count) == (1, 1)
    assert (info.dead_letter_message_count, info.transfer_message_count) == (0, 0)
    assert info.total_message_count == 2
    assert info.size_in_bytes == 4
    assert info.accessed_at_utc.year > 2000

    client.create_topic("t")
    client.create_subscription("t", "s")
    server.execute(Send("t", [Plain(b"abc")]))
    info = client.get_subscription_runtime_properties("t", "s")
    assert info.active_message_count == info.total_message_count == 1


def test_pages(server: AdminServer) -> None:
    """More than a page holds: the SDK follows the links and finds each once."""
    with connect(server) as client:
        names = {f"page-{n:03}" for n in range(205)}
        for name in names:
            client.create_topic(name)
        found = [topic.name for topic in client.list_topics() if topic.name in names]
        assert found == sorted(names)
        assert len(list(client.list_topics_runtime_properties())) >= 205
        for name in names:
            client.delete_topic(name)


def test_the_namespace(server: AdminServer) -> None:
    with connect(server) as client:
        info = client.get_namespace_properties()
    assert (info.name, info.messaging_sku, info.namespace_type) == (
        "tests",
        "Standard",
        "Messaging",
    )


def test_who_may_not(server: AdminServer) -> None:
    """A wrong key, an unknown name, a key that may only listen, an entity's key for another one."""
    root = server.connection_string
    for text in (
        root.replace(KEY_NAME, "nobody"),
        root.replace(KEY_NAME, "reader"),
        root + "x",
    ):
        with connect(server, text) as client, pytest.raises(ClientAuthenticationError):
            list(client.list_queues())
    manage: list[Any] = [AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN]
    rule = AuthorizationRule(key_name="own", rights=manage, primary_key="k1", secondary_key="k2")
    with connect(server) as client:
        client.create_queue("mine", authorization_rules=[rule])
        client.create_queue("yours")
    own = f"Endpoint=sb://{server.host}/;SharedAccessKeyName=own;SharedAccessKey=k2"
    with connect(server, own) as client:
        assert client.get_queue("mine").name == "mine"
        for refused in (
            lambda: client.get_queue("yours"),
            lambda: client.create_queue("third"),
            lambda: list(client.list_queues()),
        ):
            with pytest.raises(ClientAuthenticationError):
                refused()
        client.delete_queue("mine")
    with connect(server) as client:
        client.delete_queue("yours")


class Bearer:
    """A credential of Entra ID, as far as the client is concerned."""

    def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        return AccessToken(BEARER, 2**31)


def test_a_bearer_token(server: AdminServer) -> None:
    with ServiceBusAdministrationClient(
        server.host, Bearer(), connection_verify=str(server.certificate)
    ) as client:
        assert client.create_queue("borne").name == "borne"
        client.delete_queue("borne")


def test_a_premium_namespace(tmp_path: Path) -> None:
    """Knows the size of messages: 1 MB if nothing is said, from there to 100."""
    with AdminServer(tmp_path, is_premium=True) as server, connect(server) as client:
        assert client.get_namespace_properties().messaging_sku == "Premium"
        assert client.create_queue("a").max_message_size_in_kilobytes == 1024
        queue = client.create_queue("b", max_message_size_in_kilobytes=12345)
        assert queue.max_message_size_in_kilobytes == 12345
        for size in (1023, 102401):
            with pytest.raises(HttpResponseError):
                client.create_queue("c", max_message_size_in_kilobytes=size)


def test_what_was_made_is_there_after_a_restart(tmp_path: Path) -> None:
    """Descriptions, keys and rules come back from the log as they were shown."""
    with AdminServer(tmp_path) as server, connect(server) as client:
        rights: list[Any] = [AccessRights.LISTEN]
        rule = AuthorizationRule(
            key_name="k", rights=rights, primary_key="one", secondary_key="two"
        )
        client.create_queue("q", authorization_rules=[rule], enable_express=True)
        client.create_topic("t")
        client.create_subscription("t", "s")
        naive: dict[str, Any] = {"when": datetime(2020, 7, 5, 11, 12, 13)}
        client.create_rule("t", "s", "r", filter=CorrelationRuleFilter(properties=naive))
        queue, rule = dict(client.get_queue("q")), client.get_rule("t", "s", "r")
    with AdminServer(tmp_path) as server, connect(server) as client:
        again = dict(client.get_queue("q"))
        assert again.pop("authorization_rules")[0].primary_key == "one"
        queue.pop("authorization_rules")
        assert again == queue
        assert client.get_rule("t", "s", "r").filter.properties == naive
        assert client.get_rule("t", "s", "r").created_at_utc == rule.created_at_utc


def test_the_asynchronous_client(server: AdminServer) -> None:
    """The other half of the SDK, with its own transport."""

    async def scene() -> None:
        async with AsyncClient.from_connection_string(
            server.connection_string, connection_verify=str(server.certificate)
        ) as client:
            await client.create_topic("async/t")
            await client.create_subscription("async/t", "s")
            await client.create_rule("async/t", "s", "r", filter=SqlRuleFilter("n = 1"))
            rules = [rule.name async for rule in client.list_rules("async/t", "s")]
            assert rules == ["$Default", "r"]
            topic = await client.get_topic("async/t")
            topic.user_metadata = "changed"
            await client.update_topic(topic)
            assert (await client.get_topic("async/t")).user_metadata == "changed"
            with pytest.raises(ResourceNotFoundError):
                await client.get_queue("none")
            await client.delete_topic("async/t")

    asyncio.run(scene())
