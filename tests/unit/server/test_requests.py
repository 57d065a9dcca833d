"""`server/requests.py`: any bytes are a request or an ArgumentError; replies have exact types."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandembus import limits
from tandembus.amqp.message import DATA, VALUE, encode_message
from tandembus.amqp.types import (
    Array,
    Char,
    Described,
    Float,
    Int,
    Long,
    Short,
    UInt,
    ULong,
    decode,
    encode,
    encode_described,
    encode_map,
    encode_string,
    encode_symbol,
)
from tandembus.errors import ArgumentError, MessageSizeExceededError
from tandembus.model import Duration, Symbol, Timestamp, as_compared
from tandembus.server.requests import (
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    Arguments,
    longs,
    parse_request,
    reply,
    strings,
    timestamps,
    token_reply,
    tracked,
    tracking_id_of,
)
from tandembus.server.stored import as_bytes
from tests.unit.server.desk import ID, Desk, Reply, encode_request, run, sdk_request


def test_a_request_of_azure_servicebus() -> None:
    """WIRE.md §7: message id a uuid, reply-to the node, a timeout, a map with arrays."""
    transport = pytest.importorskip("azure.servicebus._transport._pyamqp_transport")
    pyamqp = transport.PyamqpTransport
    body = {
        "lock-tokens": pyamqp.AMQP_ARRAY_VALUE([ID]),
        "sequence-numbers": pyamqp.AMQP_ARRAY_VALUE([pyamqp.AMQP_LONG_VALUE(7)]),
        "message-count": 5,
    }
    request = parse_request(sdk_request("com.microsoft:x", body, link="receiver-link-1")[0])
    assert request.operation == "com.microsoft:x"
    assert request.message_id == ID
    assert request.reply_to == "q/$management"
    assert request.timeout_ms == 60_000
    assert request.associated_link_name == "receiver-link-1"
    assert request.properties["type"] == "entity-mgmt"
    said = request.arguments
    assert said.uuids("lock-tokens", 10) == [ID]
    assert said.integers("sequence-numbers", 10) == [7]
    assert said.integer("message-count") == 5


@pytest.mark.parametrize("message_id", ["text", ULong(7), ULong(0), ID, b"\x00\xff", None])
def test_the_correlation_id_is_the_message_id_in_value_and_type(message_id: object) -> None:
    request = parse_request(encode_request("x", message_id=message_id))
    for encoded in (reply(request, 200, "OK"), token_reply(request, 200, "OK")):
        found = Reply(encoded).correlation_id
        assert found == message_id
        assert type(found) is type(message_id)


def test_what_a_client_may_leave_out() -> None:
    request = parse_request(encode_request(None, reply_to=None))
    assert request.operation == ""
    assert request.reply_to is None
    assert request.timeout_ms == DEFAULT_TIMEOUT_MS
    assert request.associated_link_name is None
    assert request.tracking_id is None
    with pytest.raises(ArgumentError, match="not a map"):
        _ = request.arguments


def test_a_correlation_id_stands_in_for_a_message_id() -> None:
    request = parse_request(encode_message(body=None, correlation_id="mine"))
    assert request.message_id == "mine"


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (UInt(5), 5),
        (UInt(0), DEFAULT_TIMEOUT_MS),
        (Int(-1), DEFAULT_TIMEOUT_MS),
        (ULong(2**64 - 1), MAX_TIMEOUT_MS),
    ],
)
def test_timeout_is_bounded(asked: Any, given: int) -> None:
    request = parse_request(encode_request("x", **{"com.microsoft:server-timeout": asked}))
    assert request.timeout_ms == given


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("1f2e-33:a", "1f2e-33:a"),
        (ID, str(ID)),
        ("with\nnewline", None),
        ("x" * 65, None),
        ("", None),
        ("ä", None),
        (7, None),
    ],
)
def test_a_tracking_id_is_a_harmless_word(said: Any, kept: str | None) -> None:
    """It stands in the log: a newline there would be a line of the client's own."""
    request = parse_request(encode_request("x", **{"com.microsoft:tracking-id": said}))
    assert request.tracking_id == kept
    assert tracking_id_of(request, lambda bits: 5) == (kept or str(UUID(int=5)))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"\xff" * 40,
        b"\x00\x53\x73\xc0\x03\x01\xe0\x00",
        encode_described(0x73, encode([None] * 14)),
        encode_request("x", message_id=Int(7)),
        encode_request("x", message_id=[1]),
        encode_request("x", message_id=Char("c")),
        encode_request("x", associated_link_name=5),
        encode_request("x", **{"com.microsoft:server-timeout": "soon"}),
        encode_described(0x74, encode({"operation": 5})),
        encode_described(0x74, encode({"operation": b"\xff"})),
    ],
)
def test_nonsense_is_refused(payload: bytes) -> None:
    with pytest.raises(ArgumentError):
        parse_request(payload)


def test_an_unreadable_body_still_has_someone_to_tell() -> None:
    """More values than a frame may hold: the request can be answered, its body cannot be read."""
    body = encode_described(VALUE, encode([None] * (limits.MAX_NODES_PER_FRAME + 1)))
    request = parse_request(encode_request("x") + body)
    assert request.message_id == ID
    with pytest.raises(ArgumentError, match="cannot be read"):
        _ = request.arguments


def test_what_can_be_sent_can_be_scheduled() -> None:
    """As many messages as are allowed, and one that fills the default size of a premium entity."""

    async def scene(desk: Desk) -> None:
        await desk.queue("q", max_message_size_kb=1_024)
        for bodies in ([b"x"] * limits.MAX_REQUEST_MESSAGES, [bytes(1_048_500)]):
            messages = [
                {
                    "message-id": str(number),
                    "message": encode_message(body=body, message_id=str(number)),
                    "partition-key": "k",
                }
                for number, body in enumerate(bodies)
            ]
            found = await desk.ask("schedule-message", {"messages": messages})
            assert found.status == 200, found.description
            assert len(found.body["sequence-numbers"]) == len(bodies)

    run(scene)


def schedule(messages: object, **more: object) -> bytes:
    return encode_request("com.microsoft:schedule-message", {"messages": messages, **more})


FULL = {
    "message-id": "m", "message": b"x" * 40, "session-id": "s", "partition-key": "k",
    "via-partition-key": "v", "more": 7,
}  # fmt: skip


@pytest.mark.parametrize("fields", [1, 2, 4, 6])
def test_as_many_messages_as_are_allowed_can_be_read(fields: int) -> None:
    """Not fewer because their maps have more values together than a frame may have."""
    one = dict(list(FULL.items())[:fields])
    said = parse_request(schedule([one] * limits.MAX_REQUEST_MESSAGES, other=5)).arguments
    found = said.items("messages", limits.MAX_REQUEST_MESSAGES)
    assert len(found) == limits.MAX_REQUEST_MESSAGES
    assert found[0] == found[-1] == one
    assert said.integer("other") == 5


@pytest.mark.parametrize("more", [1, 5_501, 60_000])
def test_one_message_more_is_told_how_many_are_allowed(more: int) -> None:
    request = parse_request(schedule([{"message": b"x"}] * (limits.MAX_REQUEST_MESSAGES + more)))
    assert request.message_id == ID
    with pytest.raises(ArgumentError, match=f"{4_500 + more} messages; at most 4500 are allowed"):
        _ = request.arguments


@pytest.mark.parametrize(
    "value",
    [
        [None] * 9_000,
        Array([1] * 9_000, 0x50),
        dict.fromkeys(range(2_000)),
        Described(Symbol("x"), [None] * 9_000),
    ],
)
def test_the_values_of_all_messages_together_are_bounded(value: object) -> None:
    """Values within values count by their bytes, so that a few megabytes are no second's work."""
    for key in ("message", "any"):
        request = parse_request(schedule([{key: value}] * 100))
        with pytest.raises(ArgumentError, match="too many fields"):
            _ = request.arguments
    said = parse_request(schedule([{"any": value}])).arguments
    assert said.values["messages"] == [{"any": value}]


def test_a_list_of_messages_that_is_cut_is_refused() -> None:
    """Whatever its count and its size say, at the end of the request and before other values."""
    one = encode({"message": b"x"})
    for size in range(30):
        for count in (1, 2, 3):
            for rest in (b"", encode("z") + b"\x40"):
                messages = bytes((0xC0, size, count)) + one
                pairs = encode("messages") + messages + rest
                body = bytes((0xC1, len(pairs) + 1, 4 if rest else 2)) + pairs
                request = encode_request("x") + encode_described(VALUE, body)
                is_right = (size, count) == (len(one) + 1, 1)
                with nullcontext() if is_right else pytest.raises(ArgumentError):
                    _ = parse_request(request).arguments


def test_a_key_that_is_repeated_hides_no_values() -> None:
    one = b"\xd1" + (4 + 4 * 4_000).to_bytes(4, "big") + (8_000).to_bytes(4, "big")
    one += (encode("a") + b"\x40") * 4_000
    inner = b"".join([one] * 50)
    messages = b"\xd0" + (4 + len(inner)).to_bytes(4, "big") + (50).to_bytes(4, "big") + inner
    body = encode_described(VALUE, encode_map([encode("messages"), messages]))
    with pytest.raises(ArgumentError, match="too many fields"):
        _ = parse_request(encode_request("x") + body).arguments


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=3),
            st.none() | st.binary(max_size=9) | st.lists(st.integers(0, 9), max_size=3),
            max_size=4,
        ),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["messages", "a", "b"]), st.text(max_size=3), max_size=3),
    st.booleans(),
)
def test_messages_are_read_as_all_else(
    messages: list[Any], others: dict[str, str], is_last: bool
) -> None:
    """The very value that a decoder of the whole body gives, types and all."""
    pairs = [(encode("messages"), encode(messages))]
    rest = [(encode_symbol(key), encode(value)) for key, value in others.items()]
    flat = [part for pair in (rest + pairs if is_last else pairs + rest) for part in pair]
    body = encode_map(flat)
    request = parse_request(encode_request("x") + encode_described(VALUE, body))
    assert repr(request.body) == repr(decode(body, typed=True)[0])


def test_a_request_is_bounded() -> None:
    with pytest.raises(MessageSizeExceededError):
        parse_request(encode_described(DATA, encode(bytes(limits.MAX_MANAGEMENT_REQUEST))))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.integers(0, 200), st.binary(max_size=3))
def test_any_bytes(noise: bytes, at: int, patch: bytes) -> None:
    """A Request or an ArgumentError, for noise and for requests with a few bytes changed."""
    whole = encode_request("x", {"a": [1, ID], "b": Array([1, 2], 0x81)})
    for payload in (noise, whole[:at] + patch + whole[at + len(patch) :], whole[:at]):
        with suppress(ArgumentError):
            parse_request(payload)


# --- arguments ------------------------------------------------------------------------------------

SAID = Arguments(
    {
        "text": "a",
        "symbol": Symbol("b"),
        "binary": b"c",
        "bad": b"\xff",
        "number": Int(-3),
        "true": True,
        "null": None,
        "map": {"x": 1, 5: 2},
        "list": [1, 2],
        "empty": [],
        "ids": Array([ID], 0x98),
        "mixed": [ID, 5],
    }
)


def test_arguments() -> None:
    assert [SAID.text(name) for name in ("text", "symbol", "binary")] == ["a", "b", "c"]
    assert type(SAID.text("symbol")) is str
    assert SAID.optional_text("null") is None
    assert SAID.text("null", "z") == "z"
    assert SAID.integer("number") == -3
    assert SAID.integer("absent", 9) == 9
    assert SAID.optional_integer("null") is None
    assert SAID.flag("true")
    assert not SAID.flag("null")
    assert SAID.binary("binary") == b"c"
    assert SAID.map("map").values == {"x": 1}
    assert SAID.optional_map("null") is None
    assert SAID.integers("list", 2) == [1, 2]
    assert SAID.uuids("ids", 1) == [ID]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("text", ("null",)),
        ("text", ("number",)),
        ("text", ("bad",)),
        ("integer", ("absent",)),
        ("integer", ("text",)),
        ("integer", ("true",)),
        ("count", ("number",)),
        ("flag", ("number",)),
        ("binary", ("text",)),
        ("binary", ("absent",)),
        ("map", ("text",)),
        ("map", ("absent",)),
        ("items", ("absent", 5)),
        ("items", ("text", 5)),
        ("items", ("empty", 5)),
        ("items", ("list", 1)),
        ("integers", ("mixed", 5)),
        ("uuids", ("mixed", 5)),
        ("simple_values", ("list",)),
    ],
)
def test_a_wrong_argument_is_named(method: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ArgumentError, match=arguments[0]):
        getattr(SAID, method)(*arguments)


def test_simple_values_keep_their_type() -> None:
    values = {"a": Int(1), "b": Long(2), "c": "x", "d": None, "e": Timestamp(5), "f": b"\x00"}
    found = Arguments({"p": values}).simple_values("p")
    assert found == values
    assert [type(value) for value in found.values()] == [type(value) for value in values.values()]
    assert Arguments({}).simple_values("p") == {}


@pytest.mark.parametrize(
    "values",
    [
        {"a": []},
        {"a": {}},
        {"a": Array([1], 0x81)},
        {"a": Described(5, 5)},
        {"a": "x" * (limits.MAX_PROPERTY_VALUE + 1)},
        {str(n): "x" * 30_000 for n in range(3)},
        {str(n): None for n in range(limits.MAX_PROPERTY_COUNT + 1)},
    ],
)
def test_values_that_no_property_can_have(values: dict[str, object]) -> None:
    """They would be kept in the log as edits: a nested one could not be read back (S21)."""
    with pytest.raises(ArgumentError):
        Arguments({"p": values}).simple_values("p")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Int(5), int),
        (Short(5), int),
        (5, int),
        (True, bool),
        (Float(1.5), float),
        (Char("x"), str),
        ("x", str),
        (Symbol("x"), Symbol),
        (Timestamp(5), Timestamp),
        (Duration(5), Duration),
        (Decimal(5), Decimal),
        (None, type(None)),
        (ID, UUID),
    ],
)
def test_plain_values(value: Any, kind: type) -> None:
    assert as_compared(value) == value
    assert type(as_compared(value)) is kind


# --- replies --------------------------------------------------------------------------------------


def test_the_types_of_a_reply() -> None:
    """WIRE.md §7: an int for the status, strings, a symbol, arrays of long, timestamp, string."""
    request = parse_request(encode_request("x"))
    body = {
        "numbers": longs([1, 2**40]),
        "times": timestamps([5]),
        "names": strings(["", "é"]),
        "none": None,
    }
    found = Reply(reply(request, 404, "text", body, "com.microsoft:message-not-found"))
    assert found.status == 404
    assert type(found.said["statusDescription"]) is str
    assert type(found.said["errorCondition"]) is Symbol
    assert list(found.said) == ["statusCode", "statusDescription", "errorCondition"]
    assert [found.body[name].code for name in ("numbers", "times", "names")] == [0x81, 0x83, 0xB1]
    assert found.body["numbers"] == [1, 2**40]
    assert found.body["names"] == ["", "é"]
    assert found.body["none"] is None
    sdk = found.sdk
    assert sdk.properties.correlation_id == ID
    assert sdk.value[b"numbers"] == [1, 2**40]
    assert sdk.value[b"names"] == [b"", "é".encode()]
    assert sdk.application_properties[b"errorCondition"] == b"com.microsoft:message-not-found"


def test_the_types_of_a_token_reply() -> None:
    """WIRE.md §2: hyphens here, and no condition, not even on failure."""
    found = Reply(token_reply(parse_request(encode_request("put-token")), 401, "no"))
    assert found.said == {"status-code": 401, "status-description": "no"}
    assert not found.has_body
    assert found.sdk.application_properties[b"status-code"] == 401


def test_a_tracked_text() -> None:
    text = tracked("It is so.", "id", "tandem:q", 1_700_000_000_123)
    assert text == (
        "It is so. TrackingId:id, SystemTracker:tandem:q, Timestamp:2023-11-14T22:13:20"
    )
    assert len(tracked("x" * 100_000, "id", "t", 0)) < 3_000


def test_strings_are_not_symbols() -> None:
    """rhea tells them apart: the keys of a body are strings."""
    encoded = reply(parse_request(encode_request("x")), 200, "OK", {"skip": Int(1)})
    assert encode_string("skip") in as_bytes(encoded)
