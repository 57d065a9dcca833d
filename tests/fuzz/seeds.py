"""What mutants are made of: values, frames and messages as our encoder and the SDK write them, and
the attacks that brokers have suffered (RELIABILITY.md S1-S5), written by hand."""

from __future__ import annotations

from struct import pack
from typing import Final
from uuid import UUID

from tandembus.amqp import performatives as p
from tandembus.amqp.fast import disposition_frame, encode_flow, encode_state, encode_transfer
from tandembus.amqp.frames import AMQP_FRAME, EMPTY_FRAME, SASL_FRAME, frame
from tandembus.amqp.message import encode_message
from tandembus.amqp.types import (
    Array,
    Described,
    ZeroWidthArray,
    encode,
    encode_array,
    encode_described,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
)
from tandembus.model import Duration, Symbol, Timestamp
from tests.fuzz.record import recorded

ID: Final = UUID("00112233-4455-6677-8899-aabbccddeeff")
BATCH: Final = 0x8001_3700


# --- attacks --------------------------------------------------------------------------------------


def zero_width(count: int, code: int = 0x40) -> bytes:
    """An array that claims elements which take no bytes (CVE-2026-66079)."""
    return pack(">BIIB", 0xF0, 5, count, code)


def nested(depth: int, *, described: bool = False) -> bytes:
    """Lists in lists, or descriptions of descriptions."""
    if described:
        return b"\x00\x53\x70" * depth + b"\x40"
    body = b"\x40"
    for _ in range(depth):
        body = pack(">BII", 0xD0, len(body) + 4, 1) + body
    return body


def attacks() -> list[bytes]:
    return [
        *(zero_width(count, code) for count in (0, 1, 2**32 - 1) for code in (0x40, 0x41, 0x45)),
        b"\xd0" + pack(">II", 4 + 60, 4) + zero_width(2**32 - 1) * 4,
        pack(">BIIB", 0xF0, 5 + 9, 2**31, 0xF0) + pack(">IIB", 5, 2**32 - 1, 0x40),
        *(nested(depth) for depth in (1, 15, 16, 17, 200, 2_000)),
        *(nested(depth, described=True) for depth in (1, 15, 16, 17, 5_000)),
        b"\x00\x00\x53\x10\x40\x40",  # a described descriptor
        b"\x00" * 3_000,
        b"\xc1\x02\x01\x40",  # a map with a key and no value
        b"\xc1\x05\x04\x43\x43\x43\x43",  # a key twice
        b"\xc1\x04\x02\x45\x40",  # a list for a key
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xc0\x01\xff",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\xf0\x00\x00\x00\x05\x00\x00\x00\x00\x00",
        b"\xe0\x05\x01\x00\x53\x01\x00",
        b"\xb0\xff\xff\xff\xff",
        b"\xb1\x7f\xff\xff\xffabc",
        b"\xa3\x02\xc3\xa9",
        b"\x73\x00\x00\xd8\x00",
        b"\x56\x02",
        b"\x74\x7f\xff\xff\xff\x94" + b"\xff" * 16,
        pack(">BII", 0xD0, 4 + 9_999, 9_999) + b"\x45" * 9_999,
        pack(">BII", 0xD0, 4 + 10_001, 10_001) + b"\x40" * 10_001,
        pack(">BII", 0xD1, 4 + 5_998, 5_998) + b"\xa1\x00" * 0 + b"\x43" * 5_998,
    ]


# --- values, messages, frames ---------------------------------------------------------------------


def values() -> list[bytes]:
    """Values of every type, and the attacks."""
    plain: list[object] = [
        None, True, 0, 2**63 - 1, -(2**63), 1.5, float("nan"), "text", "é" * 200, b"bytes" * 80,
        Symbol("symbol"), Timestamp(1_700_000_000_000), Duration(36_000_000_000), ID,
        [1, "two", None, [b"three"]], {"a": 1, Symbol("b"): [2], 3: {"c": None}},
        Array([1, 2, 3], 0x81), Array(["a", "b"], 0xA1), Array([ID], 0x98),
        Array([[1], [2]], 0xD0), Array([Symbol("x")], 0xA3, Symbol("d")),
        ZeroWidthArray(0x40, 7), Described(0x70, [1, 2]), Described(Symbol("amqp:x"), {"k": "v"}),
    ]  # fmt: skip
    fixed = [
        b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x45", b"\x50\x01", b"\x51\xff",
        b"\x52\x01", b"\x53\x01", b"\x54\x01", b"\x55\x01", b"\x56\x01", b"\x60\x01\x02",
        b"\x61\xff\x00", b"\x70" + b"\x01" * 4, b"\x71" + b"\xff" * 4, b"\x72\x3f\x80\x00\x00",
        b"\x73\x00\x00\x00\x41", b"\x74\x32\x00\x00\x01", b"\x80" + b"\x01" * 8,
        b"\x84\x31\xc0" + b"\x00" * 5 + b"\x01", b"\x94\x30\x40" + b"\x00" * 13 + b"\x01",
    ]  # fmt: skip
    return [*map(encode, plain), *fixed, *attacks()]


def messages() -> list[bytes]:
    """Encoded messages and batches."""
    rich = encode_message(
        body=b"body" * 30, message_id="id", correlation_id=ID, session_id="s",
        reply_to_session_id="r", content_type="text/plain", label="label", to="to",
        reply_to="reply", ttl_ms=60_000, priority=7, durable=True,
        scheduled_ms=1_700_000_000_000, partition_key="p", via_partition_key="v",
        annotations={"x-opt-sequence-number": 5, "mine": [1]},
        properties={
            "text": "x", "number": 5, "is": True, "at": Timestamp(5), "span": Duration(5),
            "none": None, "real": 1.5, "id": ID, "raw": b"raw", "symbol": Symbol("s"),
        },
    )  # fmt: skip
    small = encode_message(body=b"x")
    batch = b"".join(encode_described(0x75, encode(part)) for part in (small, rich, small))
    odd_properties = [
        encode({Symbol("k"): 1}), encode({"n": [1, {"x": 2}]}), encode({"d": Described(5, 1)}),
        encode_map([encode_string("c"), b"\x73\x00\x00\x00\x41"]),
        encode_map([encode_string("d"), b"\x74\x32\x00\x00\x01"]),
        encode_map(
            [encode_string("u"), b"\x00" + encode_symbol("com.microsoft:uri") + b"\xa1\x01u"]
        ),
        encode_map([encode_string("f"), b"\x72\x3f\x80\x00\x00"]),
        encode({f"k{n}": n for n in range(60)}),
    ]  # fmt: skip
    return [
        small, rich, batch,
        encode_message(body=None), encode_message(body=b"", properties={"a": 1}),
        encode_message(body=b"z" * 300, message_id=5), encode_message(message_id=b"raw"),
        *(small + encode_described(0x74, each) for each in odd_properties),
        *(encode_described(0x74, each) + small for each in odd_properties),
        b"".join(encode_described(0x76, encode_list([encode(n)])) for n in range(3)),
        *(encode_described(0x77, encode(each)) for each in (None, "v", {"k": [1]}, 5.5)),
        b"\x00\x80" + (0x75).to_bytes(8, "big") + encode(b"long descriptor"),
        b"\x00" + encode_symbol("amqp:data:binary") + encode(b"symbolic descriptor"),
        small + encode_described(0x71, encode({Symbol("x-opt-lock-token"): ID})),
        small + encode_described(0x78, encode({Symbol("footer"): 1})),
        encode_described(0x72, encode({Symbol("x-opt-partition-key"): b"bytes"})) + small,
        encode_described(0x72, encode({Symbol("x-opt-scheduled-enqueue-time"): 5})) + small,
        encode_described(0x70, b"\xc0\x0b\x05\x41\x50\x04\x70\x00\x00\x00\x05\x42\x43\x40") + small,
        encode_described(0x73, b"\xd0\x00\x00\x00\x07\x00\x00\x00\x02\xa1\x00\x40") + small,
        encode_described(0x75, b"\xa0\x00") * 1_001,
        *(payload for payload in recorded_payloads() if payload),
    ]  # fmt: skip


def recorded_payloads() -> list[bytes]:
    """What the SDK's transfers carry, found with the decoder that is under test: any bytes do."""
    from tandembus.amqp.fast import decode_transfer

    found = []
    for one in (*recorded()[0], *recorded()[1]):
        if one[8:11] == b"\x00\x53\x14":
            found.append(one[decode_transfer(one, 11, len(one))[8] :])
    return found


STATES: Final[tuple[p.DeliveryState, ...]] = (
    p.ACCEPTED, p.RELEASED, p.Rejected(), p.Rejected(p.Error("com.microsoft:dead-letter", "why")),
    p.Rejected(p.Error("amqp:x", "t", {Symbol("DeadLetterReason"): "r", "k": 1})),
    p.Modified(True, True, {"k": "v"}), p.Modified(False, False), p.Received(1, 2),
    p.TransactionalState(b"\0" * 8, p.ACCEPTED), p.TransactionalState(b"txn"), p.Declared(b"1"),
)  # fmt: skip


def performatives() -> list[bytes]:
    """Bodies of frames."""
    error = p.Error("amqp:internal-error", "text", {Symbol("k"): [1]})
    source = p.Source(
        "orders", filter={Symbol("com.microsoft:session-filter"): "s"}, capabilities=("a", "b"),
        default_outcome=Described(0x26, []), outcomes=("amqp:accepted:list",),
    )  # fmt: skip
    some: list[object] = [
        p.Open("c", "host", 65_536, 255, 60_000, properties={Symbol("product"): "x"}),
        p.Begin(None, 0, 2_048, 2_048, 255), p.Begin(3, 1, 1, 1, properties={Symbol("k"): 1}),
        p.Attach("link", 0, p.SENDER, 2, 0, source, p.Target("orders"), initial_delivery_count=0),
        p.Attach("in", 1, p.RECEIVER, 0, 1, source, p.Target("here"), max_message_size=1_000),
        p.Attach("tx", 2, p.SENDER, 0, 0, p.Source(), p.Coordinator(("amqp:local-transactions",)),
                 initial_delivery_count=0),
        p.Attach("old", 3, p.SENDER, source=source, target=p.Target("q"),
                 unsettled={b"tag": None}, properties={Symbol("com.microsoft:timeout"): 5}),
        p.Detach(0, True, error), p.Detach(1), p.End(error), p.End(), p.Close(error), p.Close(),
    ]  # fmt: skip
    transfers = [
        encode_transfer(0, 0, b"tag1", message_format=0, settled=False) + b"\x00\x53\x75\xa0\x00",
        encode_transfer(1, 300, b"t" * 32, message_format=BATCH, settled=True, more=True),
        encode_transfer(0, None, None, more=True) + b"payload",
        encode_transfer(0, None, None, aborted=True),
        *(encode_transfer(0, 7, b"t", settled=False, state=state) for state in STATES),
        b"\x00\x53\x14\xc0\x0f\x0b\x43\x52\x01\xa0\x01t\x43\x42\x42\x40\x40\x42\x42\x42",
        b"\x00\x53\x14\xd0\x00\x00\x00\x0a\x00\x00\x00\x04\x43\x43\xa0\x00\x43",
        b"\x00\x53\x14\xd0\x00\x00\x00\x0e\x00\x00\x00\x03\x43\x43\xb0\x00\x00\x00\x01t",
        b"\x00\x53\x14\xc0\x07\x05\x43\x52\x01\xa0\x00\x43\x56\x01",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14\x45",
        b"\x00\xa3\x12amqp:transfer:list\xc0\x02\x01\x43",
    ]  # fmt: skip
    dispositions = [
        *(disposition_frame(0, role, 0, 5, settled, encode_state(state))[8:]
          for state in (None, *STATES) for role in (True, False) for settled in (True, False)),
        b"\x00\x53\x15\xc0\x0b\x05\x41\x52\x01\x40\x41\x00\x53\x24\xc0\x01\x00",
        b"\x00\x53\x15\xc0\x06\x04\x41\x52\x01\x52\x02\x42",
        b"\x00\x53\x15\xc0\x03\x02\x41\x43",
    ]  # fmt: skip
    flows = [
        encode_flow(0, 2_048, 0, 2_048), encode_flow(None, 1, 0, 0, 0, 0, 100, drain=True),
        encode_flow(5, 2**32 - 1, 2**32 - 1, 1, 2**32 - 1, 2**32 - 1, 2**32 - 1, echo=True),
    ]  # fmt: skip
    return [*map(p.encode_performative, some), *transfers, *dispositions, *flows]


def sasl() -> list[bytes]:
    some = [
        p.SaslMechanisms(("MSSBCBS", "PLAIN", "ANONYMOUS")), p.SaslInit("ANONYMOUS", b"", "host"),
        p.SaslInit("PLAIN", b"\0user\0password"), p.SaslInit("MSSBCBS"), p.SaslChallenge(b"c"),
        p.SaslResponse(b"\0user\0password"), p.SaslOutcome(0), p.SaslOutcome(1, b"why"),
    ]  # fmt: skip
    return [frame(p.encode_performative(each), 0, SASL_FRAME) for each in some]


def frames() -> list[bytes]:
    """Whole frames, of both types."""
    own = [frame(body, channel, AMQP_FRAME) for body in performatives() for channel in (0, 1)]
    attacked = [frame(body) for body in attacks() if len(body) < 9_000]
    client, server = recorded()
    return [*own, *sasl(), *attacked, EMPTY_FRAME, *client, *server]


def array_bomb(count: int) -> bytes:
    """The right number of bytes for its elements: it is allowed, and must stay cheap."""
    return encode_array([0] * count, 0x50)
