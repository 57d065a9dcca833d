"""Every AMQP type on every road (T22): what comes back has the type and the value that were sent.

A real broker, killed and started again between writing and reading: so the log, its snapshot and
the rules on disk are roads, too. Roads that change properties are in each of their two forms, over
the link and over `$management`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tandembus import atom
from tandembus.amqp import types as t
from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    SCHEDULED,
    VALUE,
    AmqpMessage,
    encode_message,
)
from tandembus.client import (
    Client,
    Correlation,
    EncodedMessage,
    OutgoingMessage,
    Rule,
    Settlement,
    nodes,
)
from tandembus.model import Duration, Timestamp
from tandembus.testing import BrokerProcess
from tests.conformance.dotnet.test_findings import ALL_TYPES

MORE: dict[str, object] = {
    "ubyte-most": t.UByte(255), "ulong-most": t.ULong(2**64 - 1), "uint-zero": t.UInt(0),
    "long-least": t.Long(-(2**63)), "int-least": t.Int(-(2**31)), "false": False,
    "infinite": float("inf"), "text-long": "ü" * 300, "binary-long": bytes(range(256)) * 2,
    "decimal-small": Decimal("-0.0000000001"), "span": Duration(-5),
    "empty": "", "empty-binary": b"", "late": Timestamp(-1),
}  # fmt: skip
EVERY: dict[str, Any] = {**ALL_TYPES, **MORE}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess.start(tmp_path_factory.mktemp("types")) as started:
        yield started


@pytest.fixture
def queue(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = "q-" + "".join(it if it.isalnum() else "-" for it in request.node.name)[-60:]
    broker.create_queue(name)
    return name


def client_of(broker: BrokerProcess) -> Client:
    return Client(broker.connection_string)


def after_a_kill(broker: BrokerProcess) -> Client:
    broker.kill()
    broker.restart()
    return client_of(broker)


def properties_of(payload: bytes) -> dict[object, object]:
    """The application properties with the types that they have on the wire."""
    found, _ = t.decode(payload, AmqpMessage(payload)._starts[4], typed=True)
    assert isinstance(found, dict)
    return found


def assert_same(found: dict[object, object], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        assert found[name] == value, name
        kind = t.Long if type(value) is int else type(value)
        assert type(found[name]) is kind, f"{name}: {type(found[name]).__name__}"
        if isinstance(value, t.Described):
            assert type(found[name].value) is type(value.value), name  # type: ignore[attr-defined]


@pytest.mark.req("T22")
def test_what_is_sent_comes_back(broker: BrokerProcess, queue: str) -> None:
    """Received, and browsed."""
    with client_of(broker) as client, client.sender(queue) as sender:
        sender.send(OutgoingMessage(b"x", properties=EVERY))
    with after_a_kill(broker) as client:
        assert_same(properties_of(client.browse(queue)[0].payload), EVERY)
        with client.receiver(queue) as receiver:
            (received,) = receiver.receive()
            assert_same(properties_of(received.payload), EVERY)


@pytest.mark.req("T22")
@pytest.mark.parametrize("road", ["link", "management"])
@pytest.mark.parametrize("how", [Settlement.ABANDON, Settlement.DEFER, Settlement.DEAD_LETTER])
def test_properties_to_modify_come_back(
    broker: BrokerProcess, queue: str, how: Settlement, road: str
) -> None:
    """Beside one that the sender set, and in the place of one that it set with another type."""
    with client_of(broker) as client:
        with client.sender(queue) as sender:
            sent: dict[str, Any] = {"sender": t.Short(3), "int": "another type"}
            sender.send(OutgoingMessage(b"x", properties=sent))
        with client.receiver(queue) as receiver:
            (received,) = receiver.receive()
            if road == "management":
                token = received.lock_token
                client.settle([token], how, queue, properties=EVERY)
            elif how is Settlement.ABANDON:
                receiver.abandon(received, properties=EVERY)
            elif how is Settlement.DEFER:
                receiver.defer(received, properties=EVERY)
            else:
                receiver.dead_letter(received, properties=EVERY)
    path = f"{queue}/$DeadLetterQueue" if how is Settlement.DEAD_LETTER else queue
    with after_a_kill(broker) as client:
        assert_same(properties_of(client.browse(path)[0].payload), {"sender": t.Short(3), **EVERY})
        with client.receiver(path) as receiver:
            if how is Settlement.DEFER:
                (again,) = receiver.receive_deferred([received.sequence_number])
            else:
                (again,) = receiver.receive()
            assert_same(properties_of(again.payload), {"sender": t.Short(3), **EVERY})
            receiver.complete(again)


NARROW = {
    "decimal32": bytes.fromhex("74 32800007"),
    "decimal32-scaled": bytes.fromhex("74 b2000019"),
    "decimal32-many-digits": bytes.fromhex("74 6cb8967f"),
    "decimal64": bytes.fromhex("84 3180000000003039"),
    "decimal64-infinite": bytes.fromhex("84 7800000000000000"),
    "decimal128-of-net": bytes.fromhex("94 0c38 000000000000 000000000000 3039"),
}
"""Decimals that a typed decode does not tell from each other: their bytes are compared."""


def narrow_message(*, scheduled_ms: int | None = None, **more: Any) -> EncodedMessage:
    """With each of them as a property, an annotation, and in its body."""
    pairs = [part for name, value in NARROW.items() for part in (t.encode(name), value)]
    marks = [part for name, value in NARROW.items() for part in (t.encode_symbol(name), value)]
    if scheduled_ms is not None:
        marks += [t.encode_symbol(SCHEDULED), t.encode_timestamp(scheduled_ms)]
    return EncodedMessage(
        t.encode_described(MESSAGE_ANNOTATIONS, t.encode_map(marks))
        + encode_message(body=None, message_id="m", **more)
        + t.encode_described(APPLICATION_PROPERTIES, t.encode_map(pairs))
        + t.encode_described(VALUE, t.encode_list(list(NARROW.values())))
    )


def assert_narrow(payload: bytes, changed: frozenset[str] = frozenset()) -> None:
    for code in (MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES):
        at = AmqpMessage(payload)._starts[2 if code == MESSAGE_ANNOTATIONS else 4]
        found: dict[str, bytes] = {}
        count, at, _ = t.compound(payload, at)
        for _ in range(count // 2):
            value_at = t.skip(payload, at)
            end = t.skip(payload, value_at)
            found[str(t.decode(payload, at)[0])] = payload[value_at:end]
            at = end
        for name, value in NARROW.items():
            if code == MESSAGE_ANNOTATIONS or name not in changed:
                assert found[name] == value, f"{code:x} {name}: {found[name].hex()}"
    assert payload.endswith(t.encode_list(list(NARROW.values())))


@pytest.mark.req("T22")
def test_fx13_every_decimal_keeps_its_bytes(broker: BrokerProcess, queue: str) -> None:
    """Sent alone, in a batch and scheduled; received, browsed, and received in a session; after a
    restart, too."""
    sessions = f"{queue}-s"
    broker.create_queue(sessions, RequiresSession=True)
    with client_of(broker) as client:
        with client.sender(queue) as sender:
            sender.send(narrow_message())
            sender.send_all([narrow_message(), narrow_message()]).check()
            sender.send(narrow_message(scheduled_ms=1_000))
        with client.sender(sessions) as sender:
            sender.send(narrow_message(session_id="s"))
    with after_a_kill(broker) as client:
        browsed = client.browse(queue)
        assert len(browsed) == 4
        with client.receiver(queue) as receiver:
            received = receiver.receive(4, wait_s=10)
            received += receiver.receive(4 - len(received)) if len(received) < 4 else []
        with client.receiver(sessions, session="s") as receiver:
            received += receiver.receive()
        assert len(received) == 5
        for message in [*browsed, *received]:
            assert_narrow(message.payload)


@pytest.mark.req("T22")
@pytest.mark.parametrize("road", ["link", "management"])
@pytest.mark.parametrize("how", [Settlement.ABANDON, Settlement.DEFER, Settlement.DEAD_LETTER])
def test_fx13_decimals_beside_properties_to_modify(
    broker: BrokerProcess, queue: str, how: Settlement, road: str
) -> None:
    """Those that are not modified keep their bytes beside those that are."""
    changes: dict[str, Any] = {"decimal32": "text", "new": Decimal(5)}
    with client_of(broker) as client:
        with client.sender(queue) as sender:
            sender.send(narrow_message())
        with client.receiver(queue) as receiver:
            (received,) = receiver.receive()
            if road == "management":
                client.settle([received.lock_token], how, queue, properties=changes)
            elif how is Settlement.ABANDON:
                receiver.abandon(received, properties=changes)
            elif how is Settlement.DEFER:
                receiver.defer(received, properties=changes)
            else:
                receiver.dead_letter(received, properties=changes)
    path = f"{queue}/$DeadLetterQueue" if how is Settlement.DEAD_LETTER else queue
    with after_a_kill(broker) as client:
        assert_narrow(client.browse(path)[0].payload, frozenset(changes))
        with client.receiver(path) as receiver:
            if how is Settlement.DEFER:
                (again,) = receiver.receive_deferred([received.sequence_number])
            else:
                (again,) = receiver.receive()
            assert_narrow(again.payload, frozenset(changes))
            assert properties_of(again.payload)["new"] == Decimal(5)
            receiver.complete(again)


@pytest.mark.req("T22")
def test_fx13_decimals_match_a_rule_and_keep_their_bytes(broker: BrokerProcess) -> None:
    """A filter compares numbers, whatever their width; an action changes what it names."""
    path = topic(broker, "narrow")
    rules = {
        "correlation": Rule("c", Correlation(properties={"decimal32": Decimal(7)})),
        "filter": Rule("f", 'decimal64 = 123.45 AND "decimal32-scaled" < 0'),
        "action": Rule("a", "decimal32 = 7", "SET seen = decimal64"),
    }
    with client_of(broker) as client:
        client.remove_rule(path, "$Default")
        for rule in rules.values():
            client.add_rule(path, rule)
        with client.sender("narrow") as sender:
            sender.send(narrow_message())
    with after_a_kill(broker) as client:
        found = client.browse(path)
        assert len(found) == 2, "the filters without an action share a copy"
        for message in found:
            assert_narrow(message.payload)
        assert [properties_of(it.payload).get("seen") for it in found].count(None) == 1


XML: dict[str, tuple[str, str, object]] = {
    "string": ("string", "é", "é"),
    "int": ("int", "1", t.Int(1)),
    "long": ("long", "2", t.Long(2)),
    "short": ("short", "-3", t.Short(-3)),
    "byte": ("byte", "-4", t.Byte(-4)),
    "ubyte": ("unsignedByte", "250", t.UByte(250)),
    "ushort": ("unsignedShort", "5", t.UShort(5)),
    "uint": ("unsignedInt", "6", t.UInt(6)),
    "ulong": ("unsignedLong", "18446744073709551615", t.ULong(2**64 - 1)),
    "float": ("float", "1.5", t.Float(1.5)),
    "double": ("double", "2.5", 2.5),
    "decimal": ("decimal", "19.99", Decimal("19.99")),
    "boolean": ("boolean", "true", True),
    "char": ("char", "120", t.Char("x")),
    "guid": ("guid", str(UUID(int=5)), UUID(int=5)),
    "time": ("dateTime", "2023-11-14T22:13:20.5Z", Timestamp(1_700_000_000_500)),
    "duration": ("duration", "PT1M", Duration(600_000_000)),
    "binary": ("base64Binary", "AQI=", b"\x01\x02"),
}
"""What a rule's values are in XML, and in AMQP."""


def pairs(values: dict[str, tuple[str, str, object]]) -> str:
    schema = 'xmlns:d6p1="http://www.w3.org/2001/XMLSchema"'
    return "".join(
        f"<KeyValueOfstringanyType><Key>{key}</Key>"
        f'<Value i:type="d6p1:{kind}" {schema}>{text}</Value></KeyValueOfstringanyType>'
        for key, (kind, text, _) in values.items()
    )


def shown_over_http(client: Client, path: str, where: str) -> dict[str, tuple[str, str]]:
    """The values of the rule there, with their XML types."""
    entry = client.entities._request("GET", path)
    found: dict[str, tuple[str, str]] = {}

    def walk(element: atom.Element) -> None:
        for child in element.children:
            if child.name == "KeyValueOfstringanyType":
                key, value = child.find("Key"), child.find("Value")
                assert key is not None
                assert value is not None
                found[key.text] = (value.type, value.text)
            else:
                walk(child)

    walk(entry)
    return found


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads replies with the types of the wire."""
    monkeypatch.setattr(nodes, "decode", partial(t.decode, typed=True))


def topic(broker: BrokerProcess, name: str) -> str:
    broker.create_topic(name)
    broker.create_subscription(name, "s")
    return f"{name}/Subscriptions/s"


@pytest.mark.req("T22")
@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("kind", ["correlation", "filter", "action"])
def test_values_of_a_rule_over_http_come_back(broker: BrokerProcess, kind: str) -> None:
    """Over HTTP as they were written there, over AMQP with the types that belong to them."""
    path = topic(broker, f"http-{kind}")
    sql = "<SqlExpression>{}</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>{}"
    values = f"<Parameters>{pairs(XML)}</Parameters>"
    everything = '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression></Filter>'
    nothing = '<Action i:type="EmptyRuleAction"/>'
    of_kind = {
        "correlation": '<Filter i:type="CorrelationFilter"><Properties>'
        f"{pairs(XML)}</Properties></Filter>{nothing}",
        "filter": f'<Filter i:type="SqlFilter">{sql.format("a = @int", values)}</Filter>{nothing}',
        "action": f'{everything}<Action i:type="SqlRuleAction">'
        f"{sql.format('SET a = @int', values)}</Action>",
    }
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<RuleDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
        ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f"{of_kind[kind]}<Name>r</Name></RuleDescription></content></entry>"
    )
    with client_of(broker) as client:
        client.entities._request("PUT", f"{path}/Rules/r", body.encode())
    with after_a_kill(broker) as client:
        shown = shown_over_http(client, f"{path}/Rules/r", kind)
        assert shown == {key: (name, text) for key, (name, text, _) in XML.items()}
        if kind == "correlation":  # the parameters of SQL are not on AMQP
            (rule,) = (it for it in client.list_rules(path) if it.name == "r")
            assert isinstance(rule.filter, Correlation)
            wanted = {key: value for key, (_, _, value) in XML.items()}
            assert rule.filter.properties == wanted
            kinds = {key: type(value) for key, value in rule.filter.properties.items()}
            expected = {key: type(value) for key, value in wanted.items()}
            # A duration is a number of ticks on AMQP, as Microsoft's libraries write it.
            expected["duration"] = kinds["duration"]
            assert kinds == expected


@pytest.mark.req("T22")
@pytest.mark.usefixtures("typed")
def test_values_of_a_rule_over_amqp_come_back(broker: BrokerProcess) -> None:
    """And they match a message that has them."""
    path = topic(broker, "amqp")
    with client_of(broker) as client:
        client.remove_rule(path, "$Default")
        for name, value in EVERY.items():
            if value is not None:
                client.add_rule(path, Rule(name, Correlation(properties={name: value})))
    with after_a_kill(broker) as client:
        rules = {it.name: it for it in client.list_rules(path)}
        found: dict[object, object] = {}
        for rule in rules.values():
            assert isinstance(rule.filter, Correlation)
            found.update(rule.filter.properties)
        wanted = {name: value for name, value in EVERY.items() if value is not None}
        assert_same(found, wanted)
        with client.sender("amqp") as sender:
            sender.send_all(
                [OutgoingMessage(b"x", properties={name: value}) for name, value in wanted.items()]
            )
        got = {str(next(iter(properties_of(it.payload)))) for it in client.browse(path)}
        assert got == set(wanted), "each is matched by its own rule"


IDS = {"text": "a", "ulong": 2**64 - 1, "uuid": UUID(int=7), "binary": b"\x00\xff"}


@pytest.mark.req("T22")
@pytest.mark.parametrize("kind", IDS)
def test_ids_keep_their_type(broker: BrokerProcess, queue: str, kind: str) -> None:
    """The id of a message and its correlation id, for which AMQP has four types."""
    wanted: Any = IDS[kind]
    with client_of(broker) as client, client.sender(queue) as sender:
        sender.send(OutgoingMessage(b"x", message_id=wanted, correlation_id=wanted))
    with after_a_kill(broker) as client:
        (found,) = client.browse(queue)
        assert (found.message_id, found.correlation_id) == (wanted, wanted)
        assert type(found.message_id) is type(wanted)
