"""C4: the console, by hand of a browser."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Page, expect

from tandembus.client import Client, OutgoingMessage
from tandembus.client.board import Reporter
from tandembus.pairing import PairingOptions, pair_namespace
from tandembus.pairing.console import show_on_console
from tandembus.testing import BrokerProcess
from tandembus.workers.options import Target
from tandembus.workers.status import LevelStatus, PoolStatus, on_board
from tandembus.workers.targets import Attainment, Histogram

from .conftest import address, pictures

NASTY = """<img src=x onerror="alert('x')"><script>alert(1)</script>"'&"""
pytestmark = [
    pytest.mark.req("C4"),
    pytest.mark.xdist_group("browser"),
    # A socket that the SDK forgot when its broker was killed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def go(page: Page, broker: BrokerProcess, where: str) -> None:
    page.goto(f"{address(broker)}#/{where}")


def entity(page: Page, broker: BrokerProcess, path: str, tab: str = "") -> None:
    go(page, broker, f"entity/{quote(path, safe='')}" + (f"/{tab}" if tab else ""))
    page.wait_for_selector("[role=tabpanel] *")


def test_an_entity_is_made_filled_and_seen_to_change(
    page: Page, broker: BrokerProcess, client: Client
) -> None:
    """Create with a validation error first, send by the form, the counts move by themselves."""
    go(page, broker, "entities")
    page.click("text=New entity")
    page.fill("dialog input", "bought")
    page.fill("dialog textarea", "LockDuration = 9m")
    page.click("text=Make it")
    expect(page.locator("dialog [role=alert]")).to_contain_text("LockDuration")
    page.fill("dialog textarea", "LockDuration = 2m")
    page.click("text=Make it")
    row = page.locator("tr[data-key=bought]")
    expect(row).to_be_visible()
    with client.sender("bought") as sender:
        sender.send_all([OutgoingMessage(b"one", message_id="m-1"), OutgoingMessage(b"two")])
    expect(row.locator("td[data-name=active]")).to_have_text("2")

    entity(page, broker, "bought")
    page.click("button.main:has-text('Send')")
    page.fill("dialog textarea[aria-label=Body]", '{"a": [1, 2]}')
    page.fill("dialog textarea[aria-label='Properties as JSON']", '{"tier": "gold"}')
    page.click("dialog button.main")
    expect(page.locator("#messages tbody tr")).to_have_count(3)
    page.fill("input[aria-label='SQL filter']", "tier = 'gold'")
    page.click("button:has-text('Look')")
    expect(page.locator("#messages tbody tr")).to_have_count(1)
    page.click("#messages tbody button")
    page.select_option("dialog select", "JSON")
    expect(page.locator("dialog pre")).to_contain_text('"a": [')
    page.select_option("dialog select", "hex")
    expect(page.locator("dialog pre")).to_contain_text("7b 22 61 22")


def test_dead_letters_are_sent_again(page: Page, broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("broken")
    with client.sender("broken") as sender:
        sender.send_all([OutgoingMessage(f"{n}".encode(), message_id=f"d-{n}") for n in range(3)])
    with client.receiver("broken") as receiver:
        for message in receiver.receive(3, wait_s=10):
            receiver.dead_letter(message, reason="NotNow", description="later")
    entity(page, broker, "broken", "dead")
    expect(page.locator("#messages tbody tr")).to_have_count(3)
    expect(page.locator("#messages tbody tr").first).to_contain_text("NotNow")
    page.locator("#messages tbody input").nth(0).check()
    page.locator("#messages tbody input").nth(1).check()
    page.click("[data-act=resubmit]")
    expect(page.locator("#messages tbody tr")).to_have_count(1)
    page.click("#messages tbody button")
    page.click("text=Edit and resubmit")
    page.fill("dialog textarea", "mended")
    page.click("dialog button.main")
    expect(page.locator("#messages")).to_contain_text("No message")
    with client.receiver("broken") as receiver:
        again = receiver.receive(3, wait_s=10)
        assert sorted(str(each.message_id) for each in again) == ["d-0", "d-1", "d-2"]
        assert {each.body for each in again} == {b"0", b"1", b"mended"}


def test_messages_are_scheduled_cancelled_deferred_moved_and_purged(
    page: Page, broker: BrokerProcess, client: Client
) -> None:
    broker.create_queue("ways")
    broker.create_queue("elsewhere")
    entity(page, broker, "ways")
    page.click("button.main:has-text('Send')")
    page.fill("dialog label:has-text('Scheduled') input", "1h")
    page.click("dialog button.main")
    expect(page.locator("#messages tbody tr")).to_contain_text("scheduled")
    page.locator("#messages tbody input").check()
    page.click("[data-act=delete]")
    page.click("dialog button:has-text('Delete')")
    expect(page.locator("#messages")).to_contain_text("No message")
    with client.sender("ways") as sender:
        sender.send_all([OutgoingMessage(f"{n}".encode()) for n in range(4)])
    with client.receiver("ways") as receiver:
        receiver.defer(receiver.receive(1, wait_s=10)[0])
    page.click("button:has-text('Look')")
    expect(page.locator("#messages tbody tr")).to_have_count(4)
    row = page.locator("#messages tbody tr:has-text('deferred')")
    row.locator("input").check()
    page.click("[data-act=reactivate]")
    expect(page.locator("#messages tbody tr:has-text('deferred')")).to_have_count(0)
    page.locator("#messages tbody input").first.check()
    page.click("[data-act=move]")
    page.fill("dialog input", "elsewhere")
    page.click("dialog button.main")
    expect(page.locator("#messages tbody tr")).to_have_count(3)
    page.click("button:has-text('Purge')")
    page.click("dialog button:has-text('Purge')")
    expect(page.locator("#messages")).to_contain_text("No message")
    entity(page, broker, "elsewhere")
    expect(page.locator("#messages tbody tr")).to_have_count(1)


def test_rules_can_be_tried(page: Page, broker: BrokerProcess) -> None:
    broker.create_topic("news")
    broker.create_subscription("news", "some")
    entity(page, broker, "news/Subscriptions/some", "rules")
    page.fill("label:has-text('Name') input", "gold")
    page.fill("label:has-text('SQL filter') input", "tier = 'gold' AND amount > 10")
    page.click("form button.main")
    expect(page.locator("[role=tabpanel] table").first).to_contain_text("amount > 10")
    page.click("#try")
    expect(page.locator("#result tr:has-text('gold') .tag")).to_have_text("yes")
    page.fill("#sample", json.dumps({"properties": {"tier": "gold", "amount": 3}}))
    page.click("#try")
    expect(page.locator("#result tr:has-text('gold') .tag")).to_have_text("no")
    page.fill("input[aria-label='Filter on trial']", "amount +")
    page.click("#try")
    expect(page.locator("#result")).to_contain_text("not valid")


def test_sessions_show_their_holder(page: Page, broker: BrokerProcess, client: Client) -> None:
    broker.create_queue("baskets", RequiresSession=True)
    with client.sender("baskets") as sender:
        sender.send_all([OutgoingMessage(b"x", session_id=f"s{n}") for n in range(3)])
    with client.receiver("baskets", session="s1") as receiver:
        receiver.receive(1, wait_s=10)
        entity(page, broker, "baskets", "sessions")
        expect(page.locator("#sessions tr:has-text('s1')")).to_contain_text("link")
        expect(page.locator("#sessions tr:has-text('s2')")).to_contain_text("nobody")


def test_priorities_are_seen_live(page: Page, broker: BrokerProcess, client: Client) -> None:
    client.entities.create_queue("jobs", PriorityLevels=3)
    with client.sender("jobs") as sender:
        sender.send_all([OutgoingMessage(b"x", priority=n % 3) for n in range(9)])
    go(page, broker, "priorities")
    strip = page.locator(".card:has-text('jobs') .heat")
    expect(strip).to_contain_text("3")
    level = LevelStatus(
        "high", "jobs", True, 7, 1.5, 2.5, 0.1, 0.4,
        Attainment(Target(10.0, 99.0), 97.0, 100, False, True), Histogram(), Histogram(), {},
    )  # fmt: skip
    said = on_board(PoolStatus("high", 4, 2, 0, [level]))
    reporter = Reporter(broker.connection_string, "pool", "high", lambda: said).start()
    expect(page.locator("#pools")).to_contain_text("97.0 %")
    reporter.stop()


def test_a_pair_is_seen_to_fail_over_and_is_told_what_to_do(
    page: Page, broker: BrokerProcess
) -> None:
    """The primary is killed under a real pair; the console of the secondary shows what happens, and
    a button of it has an effect."""
    options = PairingOptions(
        backlog_queue_count=1,
        failover_interval=timedelta(),
        ping_primary_interval=timedelta(seconds=1),
        primary_name="contoso",
        client_options={"retry_total": 0},
    )
    go(page, broker, "pairing")
    state = page.locator("#pairs tr:has-text('shop') .tag")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with BrokerProcess.start(arguments=["--emulator", "--port", port]) as primary:
        primary.create_queue("shop")
        bus = pair_namespace(primary.connection_string, broker.connection_string, options)
        reporter = show_on_console(bus, broker.connection_string, "the shop")
        try:
            with bus.get_queue_sender("shop") as sender:
                sender.send_messages(ServiceBusMessage("one"))
                expect(state).to_have_text("healthy")
                primary.kill()
                sender.send_messages(ServiceBusMessage("two"))
                expect(state).to_have_text("failed over")
                expect(page.locator("#backlog tr:has-text('contoso')")).to_contain_text("1")
                primary.restart()
                expect(state).to_have_text("healthy")
                page.click("#pairs tr:has-text('shop') button:has-text('Engage')")
                expect(state).to_have_text("failed over")
                page.click("#pairs tr:has-text('shop') button:has-text('Mark healthy')")
                expect(state).to_have_text("healthy")
        finally:
            reporter.stop()
            bus.close()


def test_nothing_that_somebody_named_runs(
    page: Page, broker: BrokerProcess, client: Client
) -> None:
    """W1: names, bodies, properties, reasons, sessions with scripts in them are text."""
    broker.create_queue("xss")
    broker.create_queue("xss-sessions", RequiresSession=True)
    with client.sender("xss") as sender:
        sender.send_all(
            [
                OutgoingMessage(
                    NASTY,
                    message_id=NASTY[:120],
                    subject=NASTY,
                    content_type="text/html",
                    properties={NASTY[:60]: NASTY},
                )
            ]
        )
    with client.sender("xss-sessions") as sender:
        sender.send_all([OutgoingMessage(NASTY, session_id=NASTY[:100])])
    with client.receiver("xss") as receiver:
        message = receiver.receive(1, wait_s=10)[0]
        receiver.dead_letter(message, reason=NASTY, description=NASTY)
    said = {"primary": NASTY, "entities": [{"path": NASTY, "state": NASTY}], "cost": {NASTY: 1}}
    reporter = Reporter(broker.connection_string, "pair", NASTY, lambda: said).start()
    entity(page, broker, "xss", "dead")
    page.click("#messages tbody button")
    expect(page.locator("dialog")).to_contain_text("<script>alert(1)</script>")
    entity(page, broker, "xss-sessions", "sessions")
    expect(page.locator("#sessions")).to_contain_text("<img src=x")
    go(page, broker, "pairing")
    expect(page.locator("#pairs")).to_contain_text("<img src=x")
    reporter.stop()
    go(page, broker, "entities")
    page.fill("input[type=search]", NASTY)
    expect(page.locator("text=Nothing has such a name.")).to_be_visible()
    assert page.locator('#root img:not([src="icon.svg"])').count() == 0


PAGES: tuple[tuple[str, str], ...] = (
    ("overview", "overview"),
    ("entities", "entities"),
    ("messages", "entity/orders"),
    ("dead-letters", "entity/orders/dead"),
    ("settings", "entity/orders/settings"),
    ("rules", "entity/updates%2FSubscriptions%2Fgold/rules"),
    ("sessions", "entity/carts/sessions"),
    ("priorities", "priorities"),
    ("pairing", "pairing"),
    ("pipelines", "pipelines"),
)


@pytest.fixture(scope="module")
def story(broker: BrokerProcess) -> None:
    """Something to see on every page."""
    with Client(broker.connection_string) as client:
        broker.create_queue("orders")
        broker.create_queue("carts", RequiresSession=True)
        broker.create_topic("updates")
        broker.create_subscription("updates", "gold")
        client.entities.create_queue("work", PriorityLevels=5)
        client.entities.create_queue("fabrikam/x-servicebus-transfer/0")
        with client.sender("orders") as sender:
            sender.send_all(
                [OutgoingMessage(f'{{"order": {n}}}'.encode(), subject="order") for n in range(30)]
            )
        with client.receiver("orders") as receiver:
            for message in receiver.receive(6, wait_s=10):
                receiver.dead_letter(message, reason="CardRefused", description="the bank said no")
        with client.sender("carts") as sender:
            sender.send_all([OutgoingMessage(b"x", session_id=f"cart-{n % 7}") for n in range(20)])
        with client.sender("work") as sender:
            sender.send_all([OutgoingMessage(b"x", priority=n % 5) for n in range(60)])
        with client.sender("fabrikam/x-servicebus-transfer/0") as sender:
            sender.send_all([OutgoingMessage(b"x") for _ in range(12)])
    entities = [
        {"path": "orders", "state": "failed over", "since_ms": 65_000, "backlogged": 12},
        {"path": "updates", "state": "healthy", "since_ms": 4_000_000},
    ]
    pair = {"primary": "contoso", "secondaries": ["fabrikam"], "entities": entities}
    run = {"state": "running", "share": 0.4, "text": "batch 12", "rows": 412_000}
    Reporter(broker.connection_string, "pair", "shop-1", lambda: pair).start()
    Reporter(broker.connection_string, "pipeline", "capture", lambda: run).start()
    findings = ["412,000 messages came in, 0 were lost.", "level 3 misses its target."]
    report = {"state": "done", "share": 1, "text": "1.2 M events", "rows": 1_200_000}
    report |= {"report": "reports/monday/report.html", "findings": findings}
    Reporter(broker.connection_string, "pipeline", "report", lambda: report).start().stop()


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1280),
        ("dark", 390),
        pytest.param("light", 390, marks=pytest.mark.long),
        pytest.param("dark", 1280, marks=pytest.mark.long),
    ],
)
def test_everybody_can_use_it(
    page: Page, broker: BrokerProcess, story: None, theme: str, width: int
) -> None:
    """axe-core finds nothing serious on any page, in either theme, on a desk and on a phone."""
    if page.evaluate("document.documentElement.dataset.theme") != theme:
        page.click("text=Theme")
    found: list[str] = []
    folder = pictures()
    page.set_viewport_size({"width": width, "height": 860})
    for name, where in PAGES:
        go(page, broker, where)
        page.wait_for_selector("main h1, main h2, main .card, main table")
        page.wait_for_timeout(400)
        if folder is not None:
            page.screenshot(path=folder / f"{name}-{theme}-{width}.png")
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
        if wide:
            found.append(f"{name} at {width}: wider than the screen")
        for each in Axe().run(page).response["violations"]:
            if each["impact"] in ("serious", "critical"):
                nodes = [str(node["html"])[:120] for node in each["nodes"][:2]]
                found.append(f"{name} {theme} {width}: {each['id']} {nodes}")
    assert not found, "\n".join(found)
