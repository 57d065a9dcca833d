"""AMQP 1.0 §2.7, §2.8: performatives as bytes, their defaults, and what is refused in them."""

from __future__ import annotations

import pytest

from tandembus.amqp import performatives as p
from tandembus.amqp.performatives import decode_performative, encode_performative
from tandembus.amqp.types import Described, encode, encode_described, encode_list
from tandembus.errors import ProtocolError
from tandembus.model import Symbol


def fields(code: int, *values: object) -> bytes:
    return encode_described(code, encode_list([encode(value) for value in values]))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x10, p.Open("c")),
        (0x11, p.Begin(None, 0, 1, 1)),
        (0x12, p.Attach("n", 0, True)),
        (0x16, p.Detach(0)),
        (0x17, p.End()),
        (0x18, p.Close()),
        (0x1D, p.Error("amqp:not-found")),
        (0x40, p.SaslMechanisms(("PLAIN",))),
        (0x41, p.SaslInit("PLAIN")),
        (0x42, p.SaslChallenge(b"")),
        (0x43, p.SaslResponse(b"")),
        (0x44, p.SaslOutcome(0)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else hex(value),
)
def test_descriptors(code: int, value: object) -> None:
    """AMQP 1.0 §2.7.1-9, §2.8.14, §5.3.3: the descriptor of each, as a small ulong."""
    raw = encode_performative(value)
    assert raw[:3] == bytes((0x00, 0x53, code))
    assert decode_performative(raw) == (value, len(raw))


def test_error_has_three_fields() -> None:
    """AMQP 1.0 §2.8.14: written with all three fields, because azure-servicebus indexes them."""
    assert encode_performative(p.Error("a:b")) == b"\x00\x53\x1d\xc0\x08\x03\xa3\x03a:b\x40\x40"
    assert b"\x03\xa3\x03a:b\x40\x40" in encode_performative(p.Close(p.Error("a:b")))


def test_condition_is_mandatory() -> None:
    """AMQP 1.0 §2.8.14 condition: mandatory."""
    with pytest.raises(ProtocolError, match="condition"):
        decode_performative(fields(0x1D, None, "text"))


def test_trailing_nulls_are_left_out() -> None:
    """AMQP 1.0 §1.4: fields at the end that are null or default may be omitted."""
    assert encode_performative(p.End()) == b"\x00\x53\x17\x45"
    assert encode_performative(p.Detach(1, True)) == b"\x00\x53\x16\xc0\x04\x02\x52\x01\x41"


def test_null_means_default() -> None:
    """AMQP 1.0 §1.4: a null field has its default."""
    attach, _ = decode_performative(fields(0x12, "n", 1, True, None, None, None, None, None, None))
    assert attach == p.Attach("n", 1, True)
    assert attach.snd_settle_mode == p.MIXED
    assert attach.rcv_settle_mode == p.FIRST


def test_too_many_fields() -> None:
    """AMQP 1.0 §1.4: a list longer than its type is refused."""
    with pytest.raises(ProtocolError, match="too many"):
        decode_performative(fields(0x17, None, None))


def test_wrong_type() -> None:
    """AMQP 1.0 §1.4: a field of another type is refused."""
    for raw in (
        fields(0x10, 5),
        fields(0x16, "handle"),
        fields(0x16, 1, 1),
        fields(0x16, -1),
        fields(0x16, 2**32),
        fields(0x18, "error"),
        fields(0x18, Described(0x28, [])),
        fields(0x10, "c", None, True),
    ):
        with pytest.raises(ProtocolError):
            decode_performative(raw)


def test_not_a_list() -> None:
    """AMQP 1.0 §1.4: a composite type is a described list."""
    with pytest.raises(ProtocolError, match="not a list"):
        decode_performative(encode_described(0x17, encode("x")))
    with pytest.raises(ProtocolError):
        decode_performative(encode([]))


def test_multiple_symbols() -> None:
    """AMQP 1.0 §1.4 multiple: one value, or an array of them."""
    one, _ = decode_performative(fields(0x40, Symbol("PLAIN")))
    assert one.sasl_server_mechanisms == ("PLAIN",)
    many, _ = decode_performative(encode_performative(p.SaslMechanisms(("A", "B"))))
    assert many.sasl_server_mechanisms == ("A", "B")
    with pytest.raises(ProtocolError):
        decode_performative(fields(0x40, [Symbol("A")]))


def test_nested_error_by_symbol() -> None:
    """AMQP 1.0 §1.2: a nested composite may have a symbolic descriptor, too."""
    nested = Described(Symbol("amqp:error:list"), [Symbol("amqp:not-found")])
    close, _ = decode_performative(fields(0x18, nested))
    assert close == p.Close(p.Error("amqp:not-found"))


def test_a_password_is_not_shown() -> None:
    """AMQP 1.0 §5.3.3.2: an initial response may hold a password; no text shows it."""
    assert "secret" not in repr(p.SaslInit("PLAIN", b"\0u\0secret"))
    assert "secret" not in repr(p.SaslResponse(b"\0u\0secret"))
