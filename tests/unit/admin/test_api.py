"""The administration API, request by request: paths, verbs, pages, ETags, errors, who may ask."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tandembus.admin.api import AdminApi
from tandembus.atom import ATOM, SERVICE_BUS, Element, content_of, read
from tandembus.core.access import Authority, Claims, Policy, Right, Secret, require
from tandembus.core.commands import Command
from tandembus.core.namespace import Namespace
from tandembus.core.sas import sign
from tandembus.errors import ServerBusyError, StoreError, UnauthorizedError
from tandembus.http import Headers, Parser, Request, Response, encode

NOW = 1_700_000_000_000
LATER = NOW // 1000 + 3600


class Broker:
    """On a bare namespace: what is asked is done at once."""

    name = "ns"

    def __init__(self) -> None:
        self.namespace = Namespace()
        self.now = NOW
        self.failure: Exception | None = None
        self.tracked = 0
        root = Policy("root", Right.MANAGE, Secret("key"), Secret("key2"))
        listener = Policy("listener", Right.LISTEN | Right.SEND, Secret("key"), Secret("key2"))
        own = Policy("own", Right.ALL, Secret("key"), Secret("key2"))
        self.authority = Authority(
            [root, listener], lambda path: [own] if path.startswith("mine") else []
        )

    async def execute(self, command: Command, claims: Claims) -> Any:
        require(claims, command, self.now)
        if self.failure is not None:
            raise self.failure
        return self.namespace.apply(command, self.now).reply

    def authorize(self, authorization_header: str | None, resource: str) -> Claims:
        if authorization_header is None:
            raise UnauthorizedError("MissingToken: There is none.")
        claims = Claims()
        claims.add(self.authority.grant(authorization_header, resource, self.now))
        return claims

    def now_ms(self) -> int:
        return self.now

    def new_tracking_id(self) -> str:
        self.tracked += 1
        return f"track-{self.tracked}"


class Client:
    def __init__(self, **more: Any) -> None:
        self.broker = Broker()
        self.api = AdminApi(self.broker, **more)
        self.token: str | None = sign("https://h", "root", "key", LATER)

    def __call__(self, method: str, target: str, body: str = "", **headers: str) -> Response:
        """Through the parser, as the bytes would come."""
        lines = {"Host": "h:1", "Content-Length": str(len(body.encode())), **headers}
        if self.token is not None:
            lines["Authorization"] = self.token
        head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in lines.items())
        (request,) = Parser().feed(f"{method} {target} HTTP/1.1\r\n{head}\r\n{body}".encode())
        assert isinstance(request, Request)
        response = asyncio.run(self.api.handle(request))
        assert encode(response)
        return response

    def get(self, target: str) -> Element:
        response = self("GET", target)
        assert response.status == 200, response
        return read(response.body)

    def put(self, target: str, kind: str, inside: str = "", **headers: str) -> Response:
        return self("PUT", target, entry(kind, inside), **headers)

    def names(self, target: str) -> list[str]:
        """Of a list. Its hundred entries are more than our own reader takes."""
        response = self("GET", target)
        assert response.status == 200, response
        return re.findall(r'</id><title type="text">([^<]+)<', response.body.decode())


def entry(kind: str, inside: str = "") -> str:
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}">{inside}</{kind}></content></entry>'
    )


def detail(response: Response, status: int) -> str:
    """The text of an error, whose code is the status."""
    assert response.status == status, response
    error = read(response.body)
    assert (error.name, [child.name for child in error.children]) == ("Error", ["Code", "Detail"])
    assert error.children[0].text == str(status)
    assert dict(response.headers)["Content-Type"] == "application/xml; charset=utf-8"
    return error.children[1].text


@pytest.fixture
def client() -> Client:
    return Client()


def test_create_get_update_delete(client: Client) -> None:
    """With the statuses and content types of WIRE.md §10.1."""
    created = client.put("/Orders?api-version=2024-05", "QueueDescription")
    assert created.status == 201
    headers = dict(created.headers)
    assert headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    assert headers["ETag"] == f'"{NOW}"'
    document = read(created.body)
    found = document.find("id", ATOM)
    assert found is not None
    assert found.text == "https://h:1/Orders?api-version=2024-05"
    updated = client.put(
        "/orders", "QueueDescription", "<MaxDeliveryCount>3</MaxDeliveryCount>", If_Match="*"
    )
    assert updated.status == 200
    assert content_of(read(updated.body)).value("MaxDeliveryCount") == "3"
    document = client.get("/ORDERS")
    assert document.children[1].text == "Orders"
    deleted = client("DELETE", "/orders")
    assert (deleted.status, deleted.body) == (200, b"")
    assert "'orders' could not be found" in detail(client("GET", "/orders"), 404)
    assert "'orders'" in detail(client("DELETE", "/orders"), 404)
    assert "'orders'" in detail(client.put("/orders", "QueueDescription", If_Match="*"), 404)


def test_names_with_slashes_encoded_or_bare(client: Client) -> None:
    """Python encodes them, JavaScript does not; the keywords are read in any case, from the
    right."""
    assert client.put("/a%2Fb", "TopicDescription").status == 201
    assert client.put("/a/b/subscriptions/Rules", "SubscriptionDescription").status == 201
    assert client.put("/A%2fB/Subscriptions/Subscriptions", "SubscriptionDescription").status == 201
    assert client.names("/a/b/SUBSCRIPTIONS") == ["Rules", "Subscriptions"]
    target = "/a%2Fb/subscriptions/rules/rules/Rules"
    assert client.put(target, "RuleDescription").status == 201
    assert client.names("/a/b/subscriptions/rules/RULES") == ["$Default", "Rules"]
    document = client.get("/a/b/Subscriptions/Rules/Rules/%24default")
    assert "/a/b/Subscriptions/Rules/Rules/$Default?" in document.children[0].text
    assert client("DELETE", target).status == 200
    assert client.names("/a/b/subscriptions/rules/rules") == ["$Default"]


def test_a_list_may_end_in_a_slash(client: Client) -> None:
    """@azure/service-bus lists `topic/Subscriptions/` and `…/Rules/`."""
    client.put("/topic", "TopicDescription")
    client.put("/topic/Subscriptions/sub", "SubscriptionDescription")
    assert client.names("/topic/Subscriptions/?$skip=0") == ["sub"]
    assert client.names("/topic/Subscriptions/sub/Rules/") == ["$Default"]


def test_lists_are_in_order_and_in_pages(client: Client) -> None:
    """A page has at most 100; the link to the next says where it begins."""
    for n in range(103):
        name = f"q{n:03}" if n % 2 else f"Q{n:03}"
        client.put(f"/{name}", "QueueDescription")
    client.put("/topic", "TopicDescription")
    names = client.names("/$Resources/queues?$skip=0&$top=500")
    assert [name.lower() for name in names] == [f"q{n:03}" for n in range(100)]
    assert [name.lower() for name in client.names("/$resources/Queues?$skip=100")] == [
        "q100",
        "q101",
        "q102",
    ]
    assert client.names("/$Resources/queues?%24skip=1&%24top=2") == ["q001", "Q002"]
    assert client.names("/$Resources/queues?$skip=103") == []
    assert client.names("/$Resources/queues?$top=0") == []
    assert client.names("/$Resources/topics") == ["topic"]
    first = client("GET", "/$Resources/queues").body.decode()
    links = re.findall(r'<link rel="(\w+)" [^>]*skip=(\d+)&amp;\$top=(\d+)"/>', first)
    assert links == [("self", "0", "100"), ("next", "100", "100")]
    for bad in ("$skip=-1", "$top=x"):
        detail(client("GET", f"/$Resources/queues?{bad}"), 400)
    detail(client("GET", "/$Resources/relays"), 404)


def test_what_is_refused(client: Client) -> None:
    """By Azure's status, with a code, a text and a tracking id, which is never given twice."""
    client.put("/q", "QueueDescription")
    client.put("/t", "TopicDescription")
    client.put("/t/subscriptions/s", "SubscriptionDescription")
    described = "QueueDescription"
    seen = set()
    for status, response in [
        (409, client.put("/Q", described)),
        (409, client.put("/q", "TopicDescription")),
        (409, client.put("/t/subscriptions/S", "SubscriptionDescription")),
        (409, client.put("/t/subscriptions/s/rules/$default", "RuleDescription")),
        (400, client.put("/", described)),
        (400, client.put("/a//b", described)),
        (400, client.put("/a%20b", described)),
        (400, client.put("/x", "RuleDescription")),
        (400, client.put("/t/subscriptions/x", described)),
        (400, client.put("/t/subscriptions/s/rules/x", described)),
        (400, client.put("/q", "TopicDescription", If_Match="*")),
        (400, client("PUT", "/x", "<entry/>")),
        (400, client("PUT", "/x", "")),
        (400, client("PUT", "/x", "<!DOCTYPE x><x/>")),
        (400, client.put("/x", described, "<LockDuration>P25D</LockDuration>")),
        (400, client.put("/q", described, "<RequiresSession>true</RequiresSession>", If_Match="*")),
        (
            400,
            client.put("/x", described, "<MaxMessageSizeInKilobytes>1</MaxMessageSizeInKilobytes>"),
        ),
        (404, client.put("/x", described, "<ForwardTo>sb://h/none</ForwardTo>")),
        (404, client.put("/none/subscriptions/s", "SubscriptionDescription")),
        (404, client.put("/q/subscriptions/s", "SubscriptionDescription")),
        (404, client.put("/t/subscriptions/none/rules/r", "RuleDescription")),
        (404, client.put("/t/subscriptions/s/rules/r", "RuleDescription", If_Match="*")),
        (404, client("GET", "/")),
        (400, client("GET", "/q/$DeadLetterQueue")),
        (404, client("GET", "/q/subscriptions")),
        (404, client("DELETE", "/t/subscriptions/s/rules/r")),
        (405, client("POST", "/q")),
        (405, client("PUT", "/$Resources/queues")),
        (405, client("DELETE", "/$namespaceinfo")),
    ]:
        text = detail(response, status)
        assert text.startswith("SubCode=")
        seen.add(text.partition(" TrackingId:")[2].partition(",")[0])
        assert ", SystemTracker:ns:" in text
        assert ", Timestamp:2023-11-14T22:13:20.000Z" in text
    assert client.names("/$Resources/queues") == ["q"]
    assert len(seen) == client.broker.tracked == 29


def test_etags(client: Client) -> None:
    """One that is out of date is refused; without If-Match nothing is compared."""
    client.put("/q", "QueueDescription")
    client.broker.now += 5
    good, old = f'"{NOW + 5}"', f'"{NOW}"'
    assert client.put("/q", "QueueDescription", If_Match=old).status == 200
    detail(client.put("/q", "QueueDescription", If_Match=old), 412)
    detail(client("DELETE", "/q", If_Match=old), 412)
    assert client.put("/q", "QueueDescription", If_Match=good).status == 200
    assert client("DELETE", "/q", If_Match=f"{old}, {good}").status == 200


def test_a_rule_is_updated(client: Client) -> None:
    client.put("/t", "TopicDescription")
    client.put(
        "/t/subscriptions/s",
        "SubscriptionDescription",
        '<DefaultRuleDescription xmlns:p="http://www.w3.org/2001/XMLSchema-instance">'
        '<Filter p:type="SqlFilter"><SqlExpression>n = 1</SqlExpression></Filter>'
        "<Name>first</Name></DefaultRuleDescription>",
    )
    assert client.names("/t/subscriptions/s/rules") == ["first"]
    target = "/t/subscriptions/s/rules/FIRST"
    assert client.put(target, "RuleDescription", If_Match="*").status == 200
    document = content_of(client.get("/t/subscriptions/s/rules/first"))
    found = document.find("Filter")
    assert found is not None
    assert found.type == "TrueFilter"


def test_the_namespace(client: Client) -> None:
    info = content_of(client.get("/$NamespaceInfo?api-version=2021-05"))
    assert (info.value("Name"), info.value("MessagingSKU")) == ("ns", "Standard")
    assert info.value("CreatedTime") == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize(
    ("resource", "name", "key", "expires"),
    [
        ("https://h", "root", "wrong", LATER),
        ("https://h", "nobody", "key", LATER),
        ("https://h", "listener", "key", LATER),
        ("https://h", "own", "key", LATER),
        ("https://h", "root", "key", NOW // 1000),
        ("https://h/other", "root", "key", LATER),
    ],
)
def test_who_may_not(client: Client, resource: str, name: str, key: str, expires: int) -> None:
    """Look, list or change: with no right to manage this very thing."""
    client.put("/q", "QueueDescription")
    for token in (None, "Basic abc", "", sign(resource, name, key, expires)):
        client.token = token
        for response in (
            client("GET", "/q"),
            client("GET", "/none"),
            client("GET", "/$Resources/queues"),
            client("GET", "/$namespaceinfo"),
            client("DELETE", "/q"),
            client.put("/new", "QueueDescription"),
        ):
            assert "TrackingId" in detail(response, 401)
    assert [each.path for each in client.broker.namespace.entities if not each.owner] == ["q"]


def test_a_token_for_one_resource(client: Client) -> None:
    """As JavaScript makes them: for the whole URL, in lower case, the query included."""

    def token(target: str) -> str:
        return sign(f"https://h:1{target}".lower(), "root", "key", LATER)

    client.token = token("/T?api-version=2021-05")
    assert client.put("/T?api-version=2021-05", "TopicDescription").status == 201
    for target, kind in (
        ("/T/Subscriptions/S", "SubscriptionDescription"),
        ("/T/Subscriptions/S/Rules/R", "RuleDescription"),
    ):
        client.token = token(target)
        assert client.put(target, kind).status == 201
        detail(client("GET", "/T"), 401)
    client.token = token("/$Resources/topics?$skip=0")
    assert client.names("/$Resources/topics?$skip=0") == ["T"]


def test_an_entitys_own_key(client: Client) -> None:
    """Manages that entity and what is below, nothing else."""
    client.token = sign("https://h", "own", "key", LATER)
    assert client.put("/mine", "TopicDescription").status == 201
    assert client.put("/mine/subscriptions/s", "SubscriptionDescription").status == 201
    detail(client("GET", "/$Resources/topics"), 401)


def test_a_broker_that_cannot(client: Client) -> None:
    """Busy: try again, and when. A broken disk: nothing about it to whoever asked."""
    client.broker.failure = ServerBusyError("Too much at once.", retry_after_ms=2_500)
    response = client.put("/q", "QueueDescription")
    assert "Too much at once" in detail(response, 503)
    assert dict(response.headers)["Retry-After"] == "3"
    client.broker.failure = StoreError("/var/secret/path is full")
    assert "secret" not in detail(client.put("/q", "QueueDescription"), 500)


def test_a_premium_namespace() -> None:
    client = Client(is_premium=True, created_ms=1)
    size = "<MaxMessageSizeInKilobytes>2048</MaxMessageSizeInKilobytes>"
    document = read(client.put("/q", "QueueDescription", size).body)
    assert content_of(document).value("MaxMessageSizeInKilobytes") == "2048"
    detail(client.put("/r", "QueueDescription", size.replace("2048", "1023")), 400)
    info = content_of(client.get("/$namespaceinfo"))
    assert info.value("MessagingSKU") == "Premium"
    assert info.value("CreatedTime") == "1970-01-01T00:00:00.001Z"


def test_a_request_without_a_host() -> None:
    """HTTP/1.0: the namespace's own name stands in the links."""
    client = Client()
    client.put("/q", "QueueDescription")
    assert client.token is not None
    request = Request("GET", "/q", ("q",), {}, Headers([("authorization", client.token)]))
    response = asyncio.run(client.api.handle(request))
    assert b"<id>https://ns/q?api-version=2021-05</id>" in response.body
