"""AMQP 1.0 part 3, §3.4-3.5: outcomes, sources and targets, as they travel."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.performatives import decode_performative, encode_performative
from tandembus.amqp.types import Described, UInt
from tandembus.errors import ProtocolError
from tandembus.model import Symbol, Timestamp
from tests.conformance.amqp.peer import Peer


def there_and_back(value: object) -> object:
    raw = encode_performative(value)
    back, end = decode_performative(raw)
    assert end == len(raw)
    return back


def echoed(state: p.DeliveryState) -> Any:
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"])
    (event,) = peer.disposition(0, state=state)
    return event.state  # type: ignore[union-attr]


def test_received() -> None:
    """AMQP 1.0 §3.4.1 received: section-number and section-offset, both mandatory."""
    assert there_and_back(p.Received(1, 2)) == p.Received(1, 2)
    with pytest.raises(ProtocolError):
        decode_performative(b"\x00\x53\x23\x45")


def test_accepted() -> None:
    """AMQP 1.0 §3.4.2 accepted: descriptor 0x24 and no fields."""
    assert encode_performative(p.ACCEPTED) == b"\x00\x53\x24\x45"
    assert echoed(p.ACCEPTED) is p.ACCEPTED


def test_rejected() -> None:
    """AMQP 1.0 §3.4.3 rejected: with an error, as Service Bus dead-letters, or without."""
    error = p.Error("com.microsoft:dead-letter", "why", {Symbol("DeadLetterReason"): "r"})
    assert echoed(p.Rejected(error)) == p.Rejected(error)
    assert encode_performative(p.Rejected()) == b"\x00\x53\x25\x45"


def test_released() -> None:
    """AMQP 1.0 §3.4.4 released: descriptor 0x26 and no fields; not the same as accepted."""
    assert encode_performative(p.RELEASED) == b"\x00\x53\x26\x45"
    assert echoed(p.RELEASED) == p.RELEASED
    assert encode_performative(p.RELEASED) != encode_performative(p.ACCEPTED)
    assert len({p.ACCEPTED, p.RELEASED}) == 2


def test_modified() -> None:
    """AMQP 1.0 §3.4.5 modified: null, false and true are told apart; annotations keep types."""
    annotations = {Symbol("a"): UInt(5), "b": Timestamp(7), "c": UUID(int=1)}
    state = echoed(p.Modified(None, True, annotations))
    assert (state.delivery_failed, state.undeliverable_here) == (None, True)
    assert {key: type(value) for key, value in state.message_annotations.items()} == {
        "a": UInt, "b": Timestamp, "c": UUID,
    }  # fmt: skip
    assert echoed(p.Modified(True, False)) == p.Modified(True, False)


@pytest.mark.parametrize(
    "raw", ["005324c00100", "005324d00000000400000000", "0080000000000000002445"]
)
def test_accepted_in_other_forms(raw: str) -> None:
    """AMQP 1.0 §1.2, §3.4.2: list0, list8 and list32, short and long descriptors are the same."""
    peer = Peer().begun()
    peer.sending().deliver(b"t", [b"m"])
    state = bytes.fromhex(raw)
    body = b"\x41\x52\x00\x52\x00\x42" + state
    body = b"\x00\x53\x15\xc0" + bytes((len(body) + 1, 5)) + body
    (event,) = peer.raw((8 + len(body)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body)
    assert event.state == p.ACCEPTED  # type: ignore[union-attr]


def test_accepted_by_symbol() -> None:
    """AMQP 1.0 §3.4.2: amqp:accepted:list is the symbolic descriptor."""
    assert p.state_of(Described(Symbol("amqp:accepted:list"), [])) == p.ACCEPTED


def test_unknown_state() -> None:
    """AMQP 1.0 §3.4: a state that is none of these is refused."""
    with pytest.raises(ProtocolError):
        p.state_of(Described(0x29, []))
    with pytest.raises(ProtocolError):
        p.state_of(Described(Symbol("amqp:accepted:listx"), []))


def test_source() -> None:
    """AMQP 1.0 §3.5.3 source: all its fields."""
    source = p.Source(
        "queue",
        2,
        Symbol("never"),
        30,
        True,
        {Symbol("lifetime-policy"): Described(0x2B, [])},
        Symbol("move"),
        {Symbol("com.microsoft:session-filter"): None},
        Described(0x24, []),
        ("amqp:accepted:list", "amqp:rejected:list"),
        ("queue",),
    )
    assert there_and_back(source) == source


def test_source_defaults() -> None:
    """AMQP 1.0 §3.5.3: durable 0, expiry-policy session-end, timeout 0, dynamic false."""
    source, _ = decode_performative(b"\x00\x53\x28\x45")
    assert source == p.Source(None, 0, Symbol("session-end"), 0, False)


def test_filter_is_echoed() -> None:
    """AMQP 1.0 §3.5.8 filter-set: kept as it came, described or not."""
    peer = Peer().begun()
    filters = {
        Symbol("com.microsoft:session-filter"): Described(
            Symbol("com.microsoft:session-filter"), "s"
        ),
        Symbol("other"): UInt(3),
    }
    link = peer.attach(is_sender=False, source=p.Source("q", filter=filters))
    link.accept()
    answer = peer.answer()
    assert answer.source.filter == filters
    assert type(answer.source.filter["other"]) is UInt


def test_source_can_be_replaced() -> None:
    """AMQP 1.0 §3.5.3: the answer's source is the one that was attached to, filter included."""
    peer = Peer().begun()
    link = peer.attach(is_sender=False, source=p.Source("q"))
    link.accept(source=p.Source("q", filter={Symbol("f"): "session-1"}))
    assert peer.answer().source.filter == {"f": "session-1"}


def test_target() -> None:
    """AMQP 1.0 §3.5.4 target: all its fields, and their defaults."""
    target = p.Target("t", 1, Symbol("link-detach"), 5, True, {Symbol("k"): 1}, ("topic",))
    assert there_and_back(target) == target
    assert decode_performative(b"\x00\x53\x29\x45")[0] == p.Target()


def test_address_is_text() -> None:
    """AMQP 1.0 §3.5.3 address: a string; nothing else is one here."""
    with pytest.raises(ProtocolError):
        decode_performative(b"\x00\x53\x28\xc0\x04\x01\xa0\x01q")


def test_settle_modes() -> None:
    """AMQP 1.0 §2.8.2-3: unsettled 0, settled 1, mixed 2; first 0, second 1; both are echoed."""
    for snd, rcv in ((0, 1), (1, 0), (2, 0)):
        peer = Peer().begun()
        link = peer.attach(is_sender=False, snd_settle_mode=snd, rcv_settle_mode=rcv)
        link.accept()
        answer = peer.answer()
        assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (snd, rcv)


def test_payload_is_left_alone() -> None:
    """AMQP 1.0 §3.2: the sections of a message are the payload, byte for byte."""
    peer = Peer().begun()
    peer.receiving()
    payload = b"\x00\x53\x75\xa0\x03abc\x00\x53\x71\xc1\x01\x00"
    (event,) = peer.transfer(0, payload)
    assert event.payload == payload  # type: ignore[union-attr]
