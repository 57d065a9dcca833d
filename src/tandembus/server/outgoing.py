"""A stored message becomes what a receiver gets: what the broker knows is written in front of it.

Here live header, delivery-annotations and message-annotations of a delivery (WIRE §5.3, §5.4),
edits laid over the stored bytes, and the types that azure-servicebus cannot read (WIRE §1.6, §5.8).

The rule: the payload is tidy (`incoming`), so its first bytes say whether the sender had a header
or annotations. Without them, and without edits, a delivery is one packed opening and the stored
bytes as they are; all other sections are always the sender's bytes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from struct import Struct
from typing import Final

from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    SEQUENCE,
    VALUE,
    edited,
    sections,
    with_lifetime,
)
from tandembus.amqp.types import (
    NULL,
    Array,
    compound,
    decode,
    decode_descriptor,
    encode_array,
    encode_decimal,
    encode_described,
    encode_int,
    encode_list,
    encode_map,
    encode_short,
    encode_string,
    encode_symbol,
    encode_uint,
    skip,
)
from tandembus.changes import decode_edits
from tandembus.core.effects import Delivery
from tandembus.core.state import State
from tandembus.errors import ProtocolError
from tandembus.model import NEVER, Edits, Millis, Value

_MAX_UINT: Final = 0xFFFF_FFFF

# --- the usual delivery ---------------------------------------------------------------------------
# After the header come annotations whose numbers all have a fixed width, so one `pack` writes them.
# Numbers are packed without a sign: whatever core counts up to, nothing raises here.

_TOKEN: Final = encode_symbol("x-opt-lock-token") + b"\x98"
_NUMBER: Final = encode_symbol("x-opt-sequence-number") + b"\x81"
_ENQUEUED: Final = encode_symbol("x-opt-enqueued-time") + b"\x83"
_LOCKED: Final = encode_symbol("x-opt-locked-until") + b"\x83"

_TWO_BYTES: Final = len(_NUMBER + _ENQUEUED) + 16
_THREE_BYTES: Final = _TWO_BYTES + len(_LOCKED) + 8


def _map_opening(section: int, pairs: int, size: int) -> bytes:
    """The first bytes of a section that is a small map of `size` bytes."""
    return bytes((0x00, 0x53, section, 0xC1, size + 1, 2 * pairs))


_NO_ANNOTATIONS: Final = _map_opening(DELIVERY_ANNOTATIONS, 0, 0)
_A_TOKEN: Final = _map_opening(DELIVERY_ANNOTATIONS, 1, len(_TOKEN) + 16) + _TOKEN
_OF_THREE: Final = _map_opening(MESSAGE_ANNOTATIONS, 3, _THREE_BYTES) + _NUMBER
_OF_TWO: Final = _map_opening(MESSAGE_ANNOTATIONS, 2, _TWO_BYTES) + _NUMBER
_SETTLED_OF_TWO: Final = _NO_ANNOTATIONS + _OF_TWO

_pack_locked: Final = Struct(
    f">{len(_A_TOKEN)}sIHH8s{len(_OF_THREE)}sQ{len(_ENQUEUED)}sQ{len(_LOCKED)}sQ"
).pack
_pack_settled: Final = Struct(f">{len(_SETTLED_OF_TWO)}sQ{len(_ENQUEUED)}sQ").pack
_pack_shown: Final = Struct(f">{len(_OF_TWO)}sQ{len(_ENQUEUED)}sQ").pack
_guid: Final = Struct("<IHH8s").unpack


def delivery_tag(delivery: Delivery) -> bytes:
    """The tag of the transfer: the lock token, or nothing where there is no lock (WIRE §5.4)."""
    return delivery.token or b""


def render(
    payload: bytes,
    delivery: Delivery,
    *,
    shows_state: bool = False,
    is_settled: bool = False,
    entity_ttl_ms: Millis = NEVER,
    partition_id: int | None = None,
    reads_all_types: bool = False,
) -> list[bytes]:
    """The encoded message of a delivery, in parts to be written in a row. Never raises for a
    payload that came through `incoming`.

    `shows_state` adds the state, for browsing and for deferred messages; `is_settled` says that the
    receiver asked for receive-and-delete. `entity_ttl_ms` is what the entity lets any message live:
    a dead-letter queue NEVER. `partition_id` is for partitioned entities only. `reads_all_types`
    leaves decimals and characters as they were sent, for a peer that is not azure-servicebus.
    """
    number, _, token, locked_until_ms, count, enqueued_ms, _, _, _, edits = delivery
    pairs: list[bytes] = []
    if edits is not None:
        payload = _laid_over(payload, decode_edits(edits), pairs)
    if shows_state:
        if edits is None or not any(pair.startswith(_FIRST_NUMBER) for pair in pairs):
            pairs.append(_FIRST_NUMBER + _u64(number))
        pairs.append(_STATE + _STATES[delivery.state])
        if token is None:
            pairs.append(_NEVER_LOCKED)
    if partition_id is not None:
        pairs.append(_PARTITION + encode_short(partition_id))
    sent = b""
    if payload[2] == HEADER:
        at = 5 + payload[4] if payload[3] == 0xC0 else skip(payload, 3)
        sent, payload = payload[3:at], payload[at:]
    header = _header(sent, entity_ttl_ms, count)
    if entity_ttl_ms < _MAX_UINT and _is_shortened(sent, entity_ttl_ms):
        # .NET reads the time to live from these two.
        payload = with_lifetime(payload, enqueued_ms, enqueued_ms + entity_ttl_ms)
    if pairs or payload[2] <= MESSAGE_ANNOTATIONS:
        return [header, *_merged(payload, delivery, pairs, is_settled, reads_all_types)]
    if not reads_all_types and not _is_readable(payload):
        payload = _readable(payload)
    if token is not None:
        first, second, third, last = _guid(token)
        annotations = _pack_locked(
            _A_TOKEN, first, second, third, last,
            _OF_THREE, number, _ENQUEUED, enqueued_ms, _LOCKED, locked_until_ms,
        )  # fmt: skip
    elif is_settled:
        annotations = _pack_settled(_SETTLED_OF_TWO, number, _ENQUEUED, enqueued_ms)
    else:
        annotations = _pack_shown(_OF_TWO, number, _ENQUEUED, enqueued_ms)
    return [header + annotations, payload]


def encoded(
    payload: bytes,
    delivery: Delivery,
    *,
    shows_state: bool = False,
    is_settled: bool = False,
    entity_ttl_ms: Millis = NEVER,
    partition_id: int | None = None,
    reads_all_types: bool = False,
) -> bytes:
    """`render` in one piece, as the answers of $management carry a message."""
    return b"".join(
        render(
            payload,
            delivery,
            shows_state=shows_state,
            is_settled=is_settled,
            entity_ttl_ms=entity_ttl_ms,
            partition_id=partition_id,
            reads_all_types=reads_all_types,
        )
    )


@lru_cache(maxsize=1024)
def _is_shortened(sent: bytes, entity_ttl_ms: Millis) -> bool:
    """Whether the entity allows a message with this header less than its sender wanted."""
    fields: list[object] = []
    if sent:
        count, at, _ = compound(sent, 0)
        for _ in range(min(count, 3)):
            value, at = decode(sent, at)
            fields.append(value)
    ttl = fields[2] if len(fields) > 2 else None
    return not isinstance(ttl, int) or ttl > entity_ttl_ms


@lru_cache(maxsize=1024)
def _header(sent: bytes, entity_ttl_ms: Millis, delivery_count: int) -> bytes:
    """The header section, when the sender's was the list `sent` (or nothing).

    The ttl is the sender's, not what is left of it, unless the entity allows less. Nearly all
    deliveries of an entity have one of a few headers, so they are kept.
    """
    fields = [NULL] * 4
    if sent:
        count, at, _ = compound(sent, 0)
        for place in range(min(count, 4)):
            start, at = at, skip(sent, at)
            fields[place] = sent[start:at]
    if entity_ttl_ms < _MAX_UINT:  # the header has no room for more, and 49 days are no news
        ttl, _ = decode(fields[2])
        if not isinstance(ttl, int) or ttl > entity_ttl_ms:
            fields[2] = encode_uint(entity_ttl_ms)
    fields.append(encode_uint(min(delivery_count, _MAX_UINT)))
    return encode_described(HEADER, encode_list(fields))


# --- a delivery to which others have contributed --------------------------------------------------

_STATE: Final = encode_symbol("x-opt-message-state")
_PARTITION: Final = encode_symbol("x-opt-partition-id")
_FIRST_NUMBER: Final = encode_symbol("x-opt-enqueue-sequence-number") + b"\x81"
_DIED_IN: Final = encode_symbol("x-opt-deadletter-source")
_NEVER_LOCKED: Final = _LOCKED + (-62_135_596_800_000).to_bytes(8, "big", signed=True)
"""As Azure says it of messages that are peeked at: .NET's first day."""

_STATES: Final = {
    State.WAITING: encode_int(0),
    State.LOCKED: encode_int(0),
    State.DEFERRED: encode_int(1),
    State.DEFERRED_LOCKED: encode_int(1),
    State.SCHEDULED: encode_int(2),
    State.DELAYED: encode_int(2),
}
_u32: Final = Struct(">I").unpack_from
_u64: Final = Struct(">Q").pack
_uuid: Final = Struct(">IHH8s").pack


def _laid_over(payload: bytes, edits: Edits, pairs: list[bytes]) -> bytes:
    """The payload with the edits; those that a receiver sees as annotations go into `pairs`."""
    system: dict[str, Value] = dict(edits.system)
    number = system.pop("EnqueuedSequenceNumber", None)
    if isinstance(number, int):
        pairs.append(_FIRST_NUMBER + _u64(number))
    source = system.pop("DeadLetterSource", None)
    if isinstance(source, str):
        pairs.append(_DIED_IN + encode_string(source.lower()))
    rest = Edits(edits.properties, edits.removed, system)
    return edited(payload, rest) if rest else payload


def _merged(
    payload: bytes,
    delivery: Delivery,
    pairs: list[bytes],
    is_settled: bool,
    reads_all_types: bool,
) -> tuple[bytes, bytes]:
    """Annotations, and the sections after them, of a message whose sender had annotations, or with
    more `pairs` in the message-annotations than every delivery has."""
    count, own, start = _annotations(payload, 0, DELIVERY_ANNOTATIONS)
    own_count, own_pairs, at = _annotations(payload, start, MESSAGE_ANNOTATIONS)
    rest = payload[at:]
    if not reads_all_types and (
        (count and _has_unreadable(payload, 3))
        or (own_count and _has_unreadable(payload, start + 3))
        or not _is_readable(rest)
    ):
        return _merged(_readable(payload), delivery, pairs, is_settled, True)
    annotations = b""
    if delivery.token is not None:
        own += _TOKEN + _uuid(*_guid(delivery.token))
        annotations = _annotated(DELIVERY_ANNOTATIONS, count + 2, own)
    elif count or is_settled:
        annotations = _annotated(DELIVERY_ANNOTATIONS, count, own)
    pairs.append(_NUMBER + _u64(delivery.sequence_number))
    pairs.append(_ENQUEUED + _u64(delivery.enqueued_ms))
    if delivery.token is not None:
        pairs.append(_LOCKED + _u64(delivery.locked_until_ms))
    own_pairs += b"".join(pairs)
    annotations += _annotated(MESSAGE_ANNOTATIONS, own_count + 2 * len(pairs), own_pairs)
    return annotations, rest


def _annotations(payload: bytes, at: int, section: int) -> tuple[int, bytes, int]:
    """The annotations at `at`, if they are that section: elements, their bytes, where they end."""
    if payload[at + 2] != section:
        return 0, b"", at
    if payload[at + 3] == 0xC1:
        end = at + 5 + payload[at + 4]
        return payload[at + 5], payload[at + 6 : end], end
    count, start, end = compound(payload, at + 3)
    return count, payload[start:end], end


def _annotated(section: int, count: int, body: bytes) -> bytes:
    size = len(body)
    if size < 255 and count < 256:
        return bytes((0x00, 0x53, section, 0xC1, size + 1, count)) + body
    return bytes((0x00, 0x53, section, 0xD1)) + _sizes(size + 4, count) + body


_sizes: Final = Struct(">II").pack


# --- what azure-servicebus cannot read ------------------------------------------------------------
# Its decoder does not know characters, decimal32 and decimal64, and expects decimal128 in the
# layout of Microsoft's .NET library, which is not the standard's. Each ends its receiver, and the
# message comes back: it is poison. All other clients get such values as they were sent.
#
# Every delivery to it is looked at: where its application properties are, whether bytes in them can
# be one of these types, and whether its body is bytes. The rare message that fails is walked.

# A narrow decimal has few bytes and no mark of its own, but what follows it is a key, or the end.
_among_texts: Final = re.compile(  # each way begins with a literal: that is searched for in C
    rb"\x94|s\x00[\x00-\x10]|t.{4}(?:[\xa1\xa3\xb1\xb3]|\Z)|\x84.{8}(?:[\xa1\xa3\xb1\xb3]|\Z)",
    re.DOTALL,
).search
"""What may be such a value in application properties: their keys are texts."""
_anywhere: Final = re.compile(
    rb"[\x84\x94\xc0\xc1\xd0\xd1\xe0\xf0]|s\x00[\x00-\x10]"
    rb"|t.{4}(?:[\x40-\x44\x50-\x56\x60\x61\x70-\x73\x80-\x83\xa0\xa1\xa3\xb0\xb1\xb3]|\Z)",
    re.DOTALL,
).search
"""The same in annotations, which have keys of all types, and values within values."""
_MAPS: Final = (DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES, FOOTER)
_TEXTS: Final = (0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3)
_DECIMALS: Final = (0x74, 0x84, 0x94)
_UNREADABLE: Final = (0x73, *_DECIMALS)
_SHORT: Final = (0xA1, 0xA3)
_BIAS: Final = 6176
_LEAST: Final = -32
_MOST: Final = 95
"""Exponents that the layout has room for: it lacks two bits in the middle."""
_WORD: Final = 1 << 32
_GROUP: Final = 10**8
_pack_decimal: Final = Struct(">BBBHIII").pack


def _has_unreadable(payload: bytes, at: int) -> bool:
    """Whether the map at `at`, of annotations or a footer, has a value that is to be changed."""
    if payload[at] == 0xC1:
        first, end = at + 3, at + 2 + payload[at + 1]
    else:
        first, end = at + 9, at + 5 + _u32(payload, at + 1)[0]
    return _anywhere(payload, first, end) is not None and _walk_finds(payload, first, end)


def _walk_finds(payload: bytes, at: int, end: int) -> bool:
    """Whether a value of these pairs has such a type, or can have one inside."""
    while at < end:
        at = at + 2 + payload[at + 1] if payload[at] in _SHORT else skip(payload, at)
        code = payload[at]
        if code in _SHORT:
            at += 2 + payload[at + 1]
            continue
        if code == 0x00:  # described; twice, it has something inside
            code = payload[decode_descriptor(payload, at + 1)[1]] or 0xC0
        if code in _UNREADABLE or code >= 0xC0:
            return True
        at = skip(payload, at)
    return False


def _is_readable(payload: bytes) -> bool:
    """Whether a message that starts with its properties certainly has no such value. Says False for
    all but the usual shapes: properties, application properties or none, a body of bytes.
    (What a footer holds after such a body is not looked at.)"""
    code = payload[3]
    if code == 0xC0:
        at = 5 + payload[4]
    elif code == 0xD0:
        at = 8 + _u32(payload, 4)[0]
    else:
        return False
    opening = payload[at + 2 : at + 4]
    if opening == b"\x74\xc1":
        first, end = at + 6, at + 5 + payload[at + 4]
    elif opening == b"\x74\xd1":
        first, end = at + 12, at + 8 + _u32(payload, at + 4)[0]
    else:
        return opening[:1] == b"\x75"
    return payload[end + 2 : end + 3] == b"\x75" and (
        _among_texts(payload, first, end) is None or not _walk_finds(payload, first, end)
    )


def _readable(payload: bytes) -> bytes:
    """The sections with characters as strings and decimals in the layout of WIRE §5.8."""
    parts = []
    for code, start, end in sections(payload):
        part = payload[start:end]
        is_body = code in (SEQUENCE, VALUE) and part[3] not in _TEXTS
        if is_body or (code in _MAPS and _has_unreadable(part, 3)):
            try:
                decode(part, 3)
            except ProtocolError:
                pass  # a body that is no AMQP, or too much of it: not ours to judge or to change
            else:
                part = part[:3] + _readable_value(part, 3)[0]
        parts.append(part)
    return b"".join(parts)


def _readable_value(raw: bytes, at: int) -> tuple[bytes, int]:
    """The value at `at`, and where it ends. `decode` has checked it, nesting and all."""
    code = raw[at]
    if code == 0x73 or code in _DECIMALS:
        value, end = decode(raw, at)
        # So small a number is none: a .NET sender has written it in its own layout already.
        is_dotnet = code == 0x94 and raw[at + 1] & 0x7F == _BIAS >> 9
        return raw[at:end] if is_dotnet else _readable_scalar(value), end
    if code == 0x00:
        _, value_at = decode_descriptor(raw, at + 1)
        inner, end = _readable_value(raw, value_at)
        return raw[at:value_at] + inner, end
    if code in (0xC0, 0xC1, 0xD0, 0xD1):
        count, at, end = compound(raw, at)
        items = []
        for _ in range(count):
            item, at = _readable_value(raw, at)
            items.append(item)
        return encode_map(items) if code & 1 else encode_list(items), end
    end = skip(raw, at)
    if code in (0xE0, 0xF0):
        array, _ = decode(raw, at)
        if isinstance(array, Array) and (array.code == 0x73 or array.code in _DECIMALS):
            return _readable_array(array), end
    return raw[at:end], end


def _readable_scalar(value: object) -> bytes:
    if isinstance(value, Decimal):
        return _readable_decimal(value)
    assert isinstance(value, str)
    return encode_string(value)


def _readable_array(array: Array) -> bytes:
    """Arrays of lists or maps are left alone: nobody sends decimals in these."""
    items = [_readable_scalar(item) for item in array]
    if any(item[0] != 0x94 for item in items):
        return encode_array([str(item) for item in array], 0xA1, array.descriptor)
    opening = encode_array([], 0x94, array.descriptor)
    assert opening[0] == 0xE0
    body = opening[3:] + b"".join(item[1:] for item in items)
    return b"\xf0" + _sizes(len(body) + 4, len(items)) + body


def _readable_decimal(value: Decimal) -> bytes:
    """A decimal128 that azure-servicebus reads as the same number; as text if there is none.

    Up to 32 bits of coefficient this is the layout of .NET, as on Azure. Beyond that the decoder
    takes the last three words for groups of eight decimal digits each, so that is what they are.
    """
    sign, digits, power = value.as_tuple()
    if isinstance(power, str):
        return encode_decimal(value)  # read as NaN in any layout
    exponent = power
    number = int("".join(map(str, digits)))
    if number == 0:
        exponent = max(_LEAST, min(_MOST, exponent))
    while exponent < _LEAST and number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    while exponent > _MOST and number < _WORD * _GROUP:
        number, exponent = number * 10, exponent - 1
    if not _LEAST <= exponent <= _MOST or number >= _WORD * _GROUP**2:
        return encode_string(str(value))
    words = (0, 0, number)
    if number >= _WORD:
        words = (number // _GROUP**2, number // _GROUP % _GROUP, number % _GROUP)
    biased = exponent + _BIAS
    return _pack_decimal(0x94, sign << 7 | biased >> 9, (biased & 0x7F) << 1, 0, *words)
