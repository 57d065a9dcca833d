"""`/metrics`, `/health` and `/ready` of a running server, and what they cost (C5)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tandembus.admin.console.entities import counts
from tandembus.app import Server
from tandembus.client import Client, NextSession, OutgoingMessage
from tandembus.config import NamespaceConfig, ServerConfig
from tandembus.core.commands import CreateQueue
from tandembus.errors import ArgumentError, EntityNotFoundError, ServerBusyError, StoreError
from tandembus.server import metrics
from tandembus.server.health import tell_systemd
from tandembus.server.metrics import ENTITY, _read
from tandembus.settings import EntityStatus
from tandembus.store.memory import MemoryStore
from tandembus.testing import LocalBroker
from tests.unit.core.world import World
from tests.unit.server.exposition import Family, parse

ROOT = "RootManageSharedAccessKey"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        yield running


def ask(
    broker: LocalBroker, path: str, key: str | None = None, method: str = "GET", name: str = ROOT
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(broker.address, timeout=30)
    headers = {}
    if key is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def scrape(broker: LocalBroker) -> dict[str, Family]:
    status, headers, body = ask(broker, "/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(body.decode())


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    family = families[f"tandem_{name}"]
    wanted = {"namespace": "default", **labels}
    for (_, found), sample in family.samples.items():
        if wanted.items() <= dict(found).items():
            return sample
    raise KeyError(name, labels)


# --- what is shown --------------------------------------------------------------------------------


@pytest.mark.req("C5")
def test_a_message_leaves_its_marks(broker: LocalBroker) -> None:
    """Each thing that can happen to a message is counted once, where it happened."""
    broker.create_queue("life", MaxDeliveryCount=2, LockDuration="PT1M")
    before = scrape(broker)
    with Client(broker.connection_string) as client:
        with client.sender("life") as sender:
            sender.send_all([b"%d" % number for number in range(6)])
            sender.send(OutgoingMessage(b"short", ttl_ms=60_000))
        now_ms = int(broker.clock.now().timestamp() * 1000)
        client.schedule([b"later"], now_ms + 3_600_000, "life")
        with client.receiver("life") as receiver:
            one, two, three, four = receiver.receive(4)
            receiver.complete(one)
            receiver.abandon(two)
            receiver.defer(three)
            receiver.dead_letter(four)
            (locked,) = receiver.receive()
            assert locked.sequence_number == two.sequence_number
        families = scrape(broker)

        def grown(name: str) -> float:
            was = value(before, name, entity="life")
            return value(families, name, entity="life") - was

        assert grown("incoming_messages_total") == 8
        assert grown("outgoing_messages_total") == 5
        assert grown("complete_message_total") == 1
        assert grown("abandon_message_total") == 1
        assert grown("dead_letter_message_total") == 1
        shown = {
            name: value(families, name, entity="life")
            for name in (
                *("messages", "active_messages", "deadlettered_messages", "scheduled_messages"),
                *("deferred_messages", "locked_messages", "delayed_messages"),
            )
        }
        assert shown == {
            "messages": 7,
            "active_messages": 4,
            "deadlettered_messages": 1,
            "scheduled_messages": 1,
            "deferred_messages": 1,
            "locked_messages": 1,
            "delayed_messages": 0,
        }
        size = value(families, "size_bytes", entity="life")
        broker.clock.advance(minutes=2)
        families = scrape(broker)
        assert grown("expired_messages_total") == 1
        assert grown("locks_lost_total") == 1
        assert grown("dead_letter_message_total") == 2
        assert value(families, "size_bytes", entity="life") < size


@pytest.mark.req("C5")
def test_the_age_of_the_oldest_message(broker: LocalBroker) -> None:
    """Of those that wait or are being worked on; what is set aside does not age."""
    broker.create_queue("age")
    assert value(scrape(broker), "oldest_message_age_seconds", entity="age") == 0
    with Client(broker.connection_string) as client:
        with client.sender("age") as sender:
            sender.send(b"old")
            broker.clock.advance(hours=1)
            sender.send(b"new")
        age = value(scrape(broker), "oldest_message_age_seconds", entity="age")
        assert 3_600 <= age < 3_700
        with client.receiver("age") as receiver:
            receiver.defer(receiver.receive())
    assert value(scrape(broker), "oldest_message_age_seconds", entity="age") < 100


@pytest.mark.req("C5")
def test_sessions_and_levels(broker: LocalBroker) -> None:
    """What an autoscaler asks for and Azure does not show."""
    broker.create_queue("sessions", RequiresSession=True)
    broker.create_queue("levels", PriorityLevels=3)
    with Client(broker.connection_string) as client:
        with client.sender("sessions") as sender:
            for name in ("a", "b", "b"):
                sender.send(OutgoingMessage(b"x", session_id=name))
        with client.sender("levels") as sender:
            for priority in (0, 9, 9):
                sender.send(OutgoingMessage(b"x", priority=priority))
        with client.receiver("sessions", session=NextSession.AVAILABLE):
            families = scrape(broker)
            assert value(families, "sessions", entity="sessions") == 2
            assert value(families, "locked_sessions", entity="sessions") == 1
            assert value(families, "available_sessions", entity="sessions") == 1
        by_level = [
            value(families, "level_messages", entity="levels", level=str(level))
            for level in range(3)
        ]
        assert by_level == [1, 0, 2]


@pytest.mark.req("C5")
def test_commits_connections_and_refusals(broker: LocalBroker) -> None:
    before = scrape(broker)
    broker.create_queue("commits")
    with Client(broker.connection_string) as client:
        with client.sender("commits") as sender:
            sender.send(b"x")
        with pytest.raises(EntityNotFoundError):
            client.sender("nowhere")
        families = scrape(broker)
        opened = families["tandem_connections_opened_total"].samples
        closed = families["tandem_connections_closed_total"].samples
        active = families["tandem_active_connections"].samples
        assert sum(active.values()) == sum(opened.values()) - sum(closed.values()) >= 1
    commits = "tandem_commit_duration_seconds_count"

    def count(families: dict[str, Family]) -> float:
        samples = families["tandem_commit_duration_seconds"].samples
        return next(value for (name, _), value in samples.items() if name == commits)

    assert count(families) >= count(before) + 2
    assert value(families, "user_errors_total", condition="amqp:not-found") >= 1
    assert value(families, "incoming_requests_total") > value(before, "incoming_requests_total")
    assert value(families, "server_errors_total") == 0
    assert "tandem_commit_size_bytes" in families


def test_a_page_of_many_entities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they are one line, and nothing is lost of the sums."""
    monkeypatch.setattr(metrics, "MAX_METRIC_ENTITIES", 5)
    with LocalBroker.start() as broker:
        for number in range(8):
            broker.create_queue(f"q{number}")
            with Client(broker.connection_string) as client, client.sender(f"q{number}") as sender:
                sender.send(b"x")
        samples = scrape(broker)["tandem_incoming_messages_total"].samples
        shown = {dict(labels)["entity"]: count for (_, labels), count in samples.items()}
        assert shown == {**{f"q{number}": 1 for number in range(5)}, metrics.OTHERS: 3}
        assert value(scrape(broker), "entities") == 8


def test_names_cannot_break_the_page() -> None:
    """Whatever a namespace or an entity is called, a line is a line."""
    page = metrics.Page()
    page.add("x", "gauge", 'a "help"\\\nof two lines', [({"entity": 'a"b\\c\nd'}, 1.5)])
    (family,) = parse(page.encode().decode()).values()
    ((_, labels),) = family.samples
    assert dict(labels) == {"entity": 'a"b\\c\nd'}


# --- who may see it -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Two namespaces with keys of their own, as in production."""
    folder = tmp_path_factory.mktemp("data")
    one = NamespaceConfig("one", folder / "one")
    other = NamespaceConfig("other", folder / "other")
    config = ServerConfig(folder, ports=(0,), namespaces=(one, other))
    broker = LocalBroker(config, None, None)
    with broker:
        yield broker


@pytest.mark.req("C5")
def test_figures_need_a_key_and_show_its_namespace_alone(closed: LocalBroker) -> None:
    """RELIABILITY S9, S12: no address is trusted, also not the machine's own."""
    assert closed.server is not None
    assert ask(closed, "/metrics")[0] == 401
    assert "Basic" in ask(closed, "/metrics")[1]["WWW-Authenticate"]
    assert ask(closed, "/metrics", "wrong-wrong-wrong-wrong")[0] == 401
    for served in closed.server.namespaces:
        key = str.__str__(served.policies[0].primary_key)
        status, _, body = ask(closed, "/metrics", key)
        assert status == 200
        samples = parse(body.decode())["tandem_commits_total"].samples
        assert [dict(labels) for _, labels in samples] == [{"namespace": served.config.name}]
        assert ask(closed, "/metrics", key, name="Nobody")[0] == 401


@pytest.mark.parametrize("header", ["Basic", "Basic ???", "Basic eA==", "Bearer x", "x" * 9_000])
def test_a_key_that_is_none(closed: LocalBroker, header: str) -> None:
    connection = HTTPConnection(closed.address, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Authorization": header})
        assert connection.getresponse().status in (400, 401)


@pytest.mark.req("C5")
def test_health_and_readiness_are_for_everybody(closed: LocalBroker) -> None:
    """A load balancer has no key; and it learns nothing but yes or no."""
    status, _, body = ask(closed, "/health")
    assert (status, json.loads(body)["status"]) == (200, "healthy")
    status, _, body = ask(closed, "/ready")
    assert (status, json.loads(body)) == (200, {"status": "ready"})
    assert ask(closed, "/health", method="POST")[0] == 401, "that is for the administration"
    assert ask(closed, "/health?api-version=2021-05")[0] == 401
    assert ask(closed, "/ready", method="HEAD")[2] == b""
    assert ask(closed, "/nothing")[0] == 401


def test_an_entity_may_be_called_health(broker: LocalBroker) -> None:
    """Its administration says an api-version, as every SDK does."""
    for name in ("health", "ready", "metrics"):
        broker.create_queue(name)
    with Client(broker.connection_string) as client:
        assert client.entities.get_queue("health").name == "health"
        assert client.entities.get_queue("metrics").counts["ActiveMessageCount"] == 0


def test_health_makes_nobody_known(broker: LocalBroker) -> None:
    """RELIABILITY S16: strangers are counted until they prove something."""
    assert broker.server is not None
    listener = broker.server._listener
    with socket.create_connection(("localhost", broker.port), timeout=30) as stranger:
        stranger.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert stranger.recv(100).startswith(b"HTTP/1.1 200")
        assert broker.run(_strangers(listener)) >= 1


async def _strangers(listener: object) -> int:
    return len(listener._strangers)  # type: ignore[attr-defined]


# --- when it is not well --------------------------------------------------------------------------


@pytest.mark.req("C5")
def test_not_ready_says_why(tmp_path: Path) -> None:
    """A full disk, a failed log, a stop: no more work should be sent here, and /health only says so
    when the log has failed."""

    async def run() -> None:
        store = MemoryStore()
        config = ServerConfig(tmp_path, ports=(0,))
        server = await Server.start(config, store=store)
        oversight = server._listener.oversight
        assert oversight.why_not_ready() == []
        free, store.free = store.free, 1_000
        assert oversight.why_not_ready() == ["The disk is nearly full."]
        store.free = free
        oversight.is_draining = True
        assert oversight.why_not_ready() == ["The server is stopping."]
        oversight.is_draining = False
        assert oversight._health().status == 200
        server.broker.engine.engine.fail(StoreError("a fault of the test"))
        assert oversight.why_not_ready() == ["The log cannot be written."]
        assert oversight._health().status == 503
        assert oversight._ready().status == 503
        with contextlib.suppress(StoreError):
            await server.stop()

    asyncio.run(run())


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A datagram where NOTIFY_SOCKET says; nothing without it, and nothing breaks."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    tell_systemd("READY=1")
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(path)
        notified.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        tell_systemd("READY=1")
        assert notified.recv(100) == b"READY=1"
    os.unlink(path)
    tell_systemd("STOPPING=1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("drain_seconds", -1),
        ("drain_seconds", 3_601),
        ("max_entities", 0),
        ("max_entities", 10_001),
        ("disk_free_mb", -1),
        ("cache_mb", 0),
        ("staged_mb", 0),
        ("log_format", "xml"),
    ],
)
def test_a_limit_that_cannot_work_is_refused_by_its_name(field: str, value: Any) -> None:
    config = replace(ServerConfig(Path("x")), **{field: value})
    with pytest.raises(ArgumentError, match="--" + field.replace("_", "-")):
        config.validate()


@pytest.mark.req("T18")
def test_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    """--disk-free-mb: sends are told to come back, /ready says why, and settling goes on."""
    store = MemoryStore()
    config = ServerConfig(tmp_path, ports=(0,), is_emulator=True, disk_free_mb=500)
    with LocalBroker(config, store, None) as broker:
        broker.create_queue("q")
        with Client(broker.connection_string) as client, client.sender("q") as sender:
            sender.send(b"x")
            store.free = 400 * 1024 * 1024
            broker.clock.advance(seconds=2)
            with pytest.raises(ServerBusyError, match="nearly full"):
                sender.send(b"y")
            status, _, body = ask(broker, "/ready")
            assert (status, json.loads(body)["reasons"]) == (503, ["The disk is nearly full."])
            with client.receiver("q") as receiver:
                receiver.complete(receiver.receive())
        assert value(scrape(broker), "throttled_requests_total") == 1


@pytest.mark.req("T18")
def test_a_quota_of_entities(tmp_path: Path) -> None:
    """--max-entities: the SDK's own error, and nothing is lost."""

    async def run() -> None:
        config = ServerConfig(tmp_path, ports=(0,), max_entities=2)
        server = await Server.start(config, store=MemoryStore())
        try:
            for name in ("a", "b"):
                await server.broker.engine.execute(CreateQueue(name))
            with pytest.raises(Exception, match="the most it can"):
                await server.broker.engine.execute(CreateQueue("c"))
        finally:
            await server.stop()

    asyncio.run(run())


@pytest.mark.req("T20", "C5")
def test_fw7_what_could_not_be_forwarded_has_a_metric_and_a_figure_of_its_own() -> None:
    """In the metrics and in the console; the sums and the bytes have it, too."""
    world = World()
    world.queue("target", status=EntityStatus.SEND_DISABLED)
    world.queue("q", forward_to="target")
    world.send("q", "a", "b")
    queue = world["q"]
    shown = dict(zip((name for name, *_ in ENTITY), _read(queue, world.now), strict=True))
    names = ("messages", "active_messages", "deadlettered_messages", "transfer_messages")
    assert [shown[name] for name in names] == [2, 0, 0, 0]
    assert shown["transfer_deadlettered_messages"] == shown["dead_letter_message_total"] == 2
    figures = counts(queue)
    assert (figures["dead"], figures["transfer"], figures["transfer_dead"]) == (0, 0, 2)
    assert figures["bytes"] == shown["size_bytes"] == queue.used_bytes > 0
