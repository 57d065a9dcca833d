"""The console's requests, without a browser: who is let in, and what every answer says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tandembus.admin.console
from tandembus.client import Client, OutgoingMessage
from tandembus.testing import BrokerProcess
from tests.unit.admin.console.visits import Visit

pytestmark = pytest.mark.req("C4")
ASSETS = Path(tandembus.admin.console.__file__).parent / "assets"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        broker.create_queue("q")
        yield broker


@pytest.fixture
def visit(broker: BrokerProcess) -> Visit:
    visit = Visit(broker)
    assert visit.sign_in(broker.key).status == 200
    return visit


def test_nobody_comes_in_without_a_key(broker: BrokerProcess) -> None:
    stranger = Visit(broker)
    for name in ("me", "entities", "messages?path=q", "history", "board", "events"):
        assert stranger.ask("GET", f"api/{name}")[0].status == 401, name
    assert stranger.ask("POST", "api/send", {"path": "q"})[0].status == 401
    assert stranger.sign_in("wrong").status == 401
    assert stranger.ask("GET", "api/nothing")[0].status == 404


def test_guesses_are_slowed_down() -> None:
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        stranger = Visit(broker)
        seen = [stranger.sign_in(f"guess {n}").status for n in range(12)]
        assert seen == [401] * 10 + [503] * 2


def test_the_cookie_and_the_answers_are_safe(broker: BrokerProcess, visit: Visit) -> None:
    answer = Visit(broker).sign_in(broker.key)
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/$console"} <= set(cookie.split("; "))
    assert broker.key not in cookie
    for name in ("", "app.js", "api/me", "api/entities"):
        answer, _ = visit.ask("GET", name)
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Access-Control-Allow-Origin"] is None


def test_what_changes_anything_needs_the_token_and_the_origin(
    broker: BrokerProcess, visit: Visit
) -> None:
    message = {"path": "q", "messages": [{"body": "x"}]}
    assert visit.ask("POST", "api/send", message, X_Tandem_Token="other")[0].status == 401
    assert visit.ask("POST", "api/send", message, Origin="http://evil.example")[0].status == 401
    assert visit.ask("POST", "api/send", message, Content_Type="text/plain")[0].status == 400
    assert visit.ask("GET", "api/send")[0].status == 404
    here = f"http://127.0.0.1:{broker.port}"
    assert visit.ask("POST", "api/send", message, Origin=here)[0].status == 200
    with Client(broker.connection_string) as client, client.receiver("q") as receiver:
        assert [each.body for each in receiver.receive(5, wait_s=10)] == [b"x"]


def test_who_signs_out_is_out(visit: Visit) -> None:
    assert visit.ask("POST", "api/sign-out", {})[0].status == 200
    assert visit.ask("GET", "api/me")[0].status == 401


def test_only_files_of_the_console_are_served(visit: Visit) -> None:
    for name in ("..", "../routes.py", "%2e%2e/routes.py", "views", "views/..%2fapp.js", "x.js"):
        assert visit.ask("GET", name)[0].status in (400, 404), name


def test_bad_requests_get_words(visit: Visit) -> None:
    for method, name, body, word in (
        ("GET", "api/entity?path=none", None, "none"),
        ("GET", "api/messages?path=q&filter=a%20%3D", None, "SQL"),
        ("POST", "api/put-entity", {"kind": "queue", "path": "z", "settings": {"Lock": 1}}, "Lock"),
        ("POST", "api/put-entity", {"kind": "pond", "path": "z"}, "pond"),
        ("POST", "api/discard", {"path": "q", "numbers": ["x"]}, "numbers"),
        ("POST", "api/discard", {"path": "q", "numbers": ["99"]}, "99"),
        ("POST", "api/resubmit", {"path": "q", "numbers": ["1"]}, "to"),
        ("POST", "api/send", {"path": "q", "messages": [{"colour": 1}]}, "colour"),
    ):
        answer, said = visit.ask(method, name, body)
        assert 400 <= answer.status < 500, (name, said)
        assert word in said["error"], (name, said)


def test_a_message_is_sent_again_and_only_then_gone(broker: BrokerProcess, visit: Visit) -> None:
    broker.create_queue("from")
    broker.create_queue("to")
    with Client(broker.connection_string) as client:
        with client.sender("from") as sender:
            sender.send(OutgoingMessage(b"x" * 5_000, message_id="m", properties={"a": 1}))
        _, page = visit.ask("GET", "api/messages?path=from")
        (row,) = page["rows"]
        assert row["is_cut"]
        wrong = {"path": "from", "numbers": [row["sequence_number"]], "to": "nowhere"}
        assert visit.ask("POST", "api/resubmit", wrong)[0].status == 404
        assert len(visit.ask("GET", "api/messages?path=from")[1]["rows"]) == 1
        answer, _ = visit.ask("POST", "api/resubmit", {**wrong, "to": "to"})
        assert answer.status == 200
        assert visit.ask("GET", "api/messages?path=from")[1]["rows"] == []
        with client.receiver("to") as receiver:
            (message,) = receiver.receive(1, wait_s=10)
            assert (message.body, message.message_id) == (b"x" * 5_000, "m")
            assert dict(message.properties) == {"a": 1}


def test_no_asset_makes_markup_of_text() -> None:
    """S13: text nodes only."""
    for file in ASSETS.rglob("*"):
        if file.suffix in (".js", ".html"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
                r"|javascript:|https?://(?!www\.w3\.org/2000/svg)",
                text,
            ), file
