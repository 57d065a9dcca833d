"""Transfer, disposition and flow: the performatives that come with every message, by hand.

Here live their readers and writers, without the general decoder and without an object for each.
The other performatives, and all the values that can be nested in these, live in `performatives`.

The rule: as everywhere, any bytes give a value or `ProtocolError`. The readers take the list at
`at`, whose frame ends at `end`; the writers give a whole frame, or its beginning.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, TypeAlias

from tandembus.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    UINT_MAX,
    Accepted,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
    encode_performative,
    state_of,
)
from tandembus.amqp.types import (
    NULL,
    decode,
    encode_binary,
    encode_boolean,
    encode_composite,
    encode_uint,
)
from tandembus.errors import ProtocolError
from tandembus.limits import MAX_DELIVERY_TAG

_u32: Final = Struct(">I").unpack_from

_ACCEPTED0: Final = b"\x00\x53\x24\x45"

_STATE_TYPES: Final = frozenset(
    (Accepted, Declared, Modified, Received, Rejected, Released, TransactionalState)
)
_TRANSFER_FIELDS: Final = 11
_DISPOSITION_FIELDS: Final = 6
_FLOW_FIELDS: Final = 11

Transfer: TypeAlias = tuple[
    int, int | None, bytes | None, int | None, bool, bool, DeliveryState | None, bool, int
]
"""Handle, delivery id, tag, message format, settled, more, state, aborted, start of the payload."""
Disposition: TypeAlias = tuple[bool, int, int, bool, DeliveryState | None]
"""Role (True: from a receiver), first, last, settled, state."""
Flow: TypeAlias = tuple[int | None, int, int, int, int | None, int | None, int | None, bool, bool]
"""Next incoming id, incoming window, next outgoing id, outgoing window, then handle (None: of the
session), delivery count, link credit, drain, echo."""


def _bad(what: str) -> ProtocolError:
    return ProtocolError(f"A {what} lacks a field, or has one of the wrong type.")


def _fields(buffer: bytes, most: int) -> tuple[list[object], int]:
    """The fields of the list that `buffer` begins with, padded with None; and where it ends."""
    fields: list[object] = [None] * most
    at = 0
    try:
        code = buffer[at]
        if code == 0xC0:
            stop = at + 2 + buffer[at + 1]
            count = buffer[at + 2]
            at += 3
        elif code == 0xD0:
            stop = at + 5 + _u32(buffer, at + 1)[0]
            count = _u32(buffer, at + 5)[0]
            at += 9
        elif code == 0x45:
            return fields, 1
        else:
            raise ProtocolError("A performative is not a list.")
        if stop > len(buffer) or count > most:
            raise ProtocolError("A performative is longer than its frame, or has too many fields.")
        for place in range(count):
            code = buffer[at]
            if code == 0x52:
                fields[place] = buffer[at + 1]
                at += 2
            elif code == 0x70:
                fields[place] = _u32(buffer, at + 1)[0]
                at += 5
            elif code == 0x42:
                fields[place] = False
                at += 1
            elif code == 0x41:
                fields[place] = True
                at += 1
            elif code == 0x40:
                at += 1
            elif code == 0x43:
                fields[place] = 0
                at += 1
            elif code == 0xA0:
                start = at + 2
                at = start + buffer[at + 1]
                fields[place] = buffer[start:at]
            elif code == 0x00:
                if buffer[at : at + 4] == _ACCEPTED0:
                    fields[place] = ACCEPTED
                    at += 4
                else:
                    value, at = decode(buffer, at, typed=True)
                    fields[place] = state_of(value)
            else:
                fields[place], at = decode(buffer, at, typed=code not in (0x56, 0xB0))
    except (IndexError, StructError):
        raise ProtocolError("A performative ends inside a field.") from None
    if at != stop:
        raise ProtocolError("The size of a performative differs from its contents.")
    return fields, stop


# What nearly every client writes behind the delivery tag, and behind the range of a disposition:
# found whole in a table, so that no field is looked at. All else goes field by field.


def _transfer_tails() -> dict[bytes, tuple[int, int | None, bool, bool]]:
    """Format, settled, more, then nulls or false → number of fields, format, settled, more."""
    formats = ((b"\x43", 0), (b"\x40", None), (b"\x70\x80\x01\x37\x00", 0x80013700))
    rests = [b""]
    for optional in (b"\x40", b"\x40", b"\x40\x42", b"\x40\x42", b"\x40\x41\x42"):
        longest = max(map(len, rests))
        rests += [
            rest + bytes((code,)) for rest in rests if len(rest) == longest for code in optional
        ]
    tails: dict[bytes, tuple[int, int | None, bool, bool]] = {b"": (3, None, False, False)}
    for text, message_format in formats:
        tails[text] = (4, message_format, False, False)
        for settled in b"\x40\x41\x42":
            tail = text + bytes((settled,))
            tails[tail] = (5, message_format, settled == 0x41, False)
            for more in b"\x40\x41\x42":
                for rest in rests:
                    tails[tail + bytes((more,)) + rest] = (
                        6 + len(rest), message_format, settled == 0x41, more == 0x41,
                    )  # fmt: skip
    return tails


def _disposition_tails() -> dict[bytes, tuple[int, bool, DeliveryState | None]]:
    """Settled, state, batchable → number of fields, settled, state."""
    tails: dict[bytes, tuple[int, bool, DeliveryState | None]] = {}
    for code in b"\x40\x41\x42":
        settled = bytes((code,))
        for text in (b"", b"\x40", b"\x41", b"\x42"):
            count = 5 + len(text)
            for empty in (b"\x45", b"\xc0\x01\x00"):
                for state, number in ((ACCEPTED, b"\x24"), (RELEASED, b"\x26")):
                    tail = settled + b"\x00\x53" + number + empty + text
                    tails[tail] = (count, code == 0x41, state)
            tails[settled + b"\x40" + text] = (count, code == 0x41, None)
        tails[settled] = (4, code == 0x41, None)
    return tails


_transfer_tail: Final = _transfer_tails().get
_disposition_tail: Final = _disposition_tails().get


def decode_transfer(buffer: bytes, at: int, end: int) -> Transfer:
    """The transfer whose list is at `at`, in a frame that ends at `end`. (§2.7.5)"""
    try:
        if buffer[at] == 0xC0:
            stop = at + 2 + buffer[at + 1]
            here = at + 5
            code = buffer[at + 3]
            handle = 0
            if code == 0x52:
                handle = buffer[at + 4]
            elif code == 0x43:
                here = at + 4
            elif code == 0x70:
                handle = _u32(buffer, at + 4)[0]
                here = at + 8
            else:
                return _any_transfer(buffer, at, end)
            code = buffer[here]
            if code == 0x70:
                delivery_id = _u32(buffer, here + 1)[0]
                here += 5
            elif code == 0x52:
                delivery_id = buffer[here + 1]
                here += 2
            elif code == 0x43:
                delivery_id = 0
                here += 1
            else:
                return _any_transfer(buffer, at, end)
            if buffer[here] == 0xA0:
                start = here + 2
                here = start + buffer[here + 1]
                tail = _transfer_tail(buffer[here:stop])
                if tail is not None and here - start <= MAX_DELIVERY_TAG and stop <= end:
                    count, message_format, settled, more = tail
                    if count == buffer[at + 2]:
                        return (
                            handle, delivery_id, buffer[start:here], message_format,
                            settled, more, None, False, stop,
                        )  # fmt: skip
    except (IndexError, StructError):
        pass
    return _any_transfer(buffer, at, end)


def _any_transfer(buffer: bytes, at: int, end: int) -> Transfer:
    buffer = buffer[at:end]  # so that an error never depends on what follows the frame
    (
        handle, delivery_id, tag, message_format, settled, more, _, state, _, aborted, _
    ), payload = _fields(buffer, _TRANSFER_FIELDS)  # fmt: skip
    if (
        type(handle) is not int
        or (delivery_id is not None and type(delivery_id) is not int)
        or (tag is not None and type(tag) is not bytes)
        or (message_format is not None and type(message_format) is not int)
        or (settled is not None and type(settled) is not bool)
        or (more is not None and type(more) is not bool)
        or (aborted is not None and type(aborted) is not bool)
        or (state is not None and type(state) not in _STATE_TYPES)
    ):
        raise _bad("transfer")
    if tag is not None and len(tag) > MAX_DELIVERY_TAG:
        raise ProtocolError(
            f"A delivery tag has {len(tag)} bytes; at most {MAX_DELIVERY_TAG} are allowed."
        )
    return (
        handle, delivery_id, tag, message_format, settled is True, more is True,
        state, aborted is True, at + payload,  # type: ignore[return-value]
    )  # fmt: skip


def decode_disposition(buffer: bytes, at: int, end: int) -> Disposition:
    """The disposition whose list is at `at`; `last` is `first` if it was left out. (§2.7.6)"""
    try:
        role = buffer[at + 3]
        if buffer[at] == 0xC0 and (role == 0x41 or role == 0x42):
            stop = at + 2 + buffer[at + 1]
            here = at + 4
            code = buffer[here]
            if code == 0x70:
                first = _u32(buffer, here + 1)[0]
                here += 5
            elif code == 0x52:
                first = buffer[here + 1]
                here += 2
            else:
                return _any_disposition(buffer, at, end)
            code = buffer[here]
            if code == 0x40:
                last = first
                here += 1
            elif code == 0x70:
                last = _u32(buffer, here + 1)[0]
                here += 5
            elif code == 0x52:
                last = buffer[here + 1]
                here += 2
            else:
                return _any_disposition(buffer, at, end)
            tail = _disposition_tail(buffer[here:stop])
            if tail is not None and tail[0] == buffer[at + 2] and stop == end:
                return role == 0x41, first, last, tail[1], tail[2]
    except (IndexError, StructError):
        pass
    return _any_disposition(buffer, at, end)


def _any_disposition(buffer: bytes, at: int, end: int) -> Disposition:
    buffer = buffer[at:end]
    (role, first, last, settled, state, _), stop = _fields(buffer, _DISPOSITION_FIELDS)
    if last is None:
        last = first
    if (
        stop != len(buffer)
        or type(role) is not bool
        or type(first) is not int
        or type(last) is not int
        or (settled is not None and type(settled) is not bool)
        or (state is not None and type(state) not in _STATE_TYPES)
    ):
        raise _bad("disposition")
    return role, first, last, settled is True, state  # type: ignore[return-value]


def decode_flow(buffer: bytes, at: int, end: int) -> Flow:
    """The flow whose list is at `at`. (§2.7.4)"""
    buffer = buffer[at:end]
    fields, stop = _fields(buffer, _FLOW_FIELDS)
    if stop != len(buffer):
        raise _bad("flow")
    for place in range(8):
        value = fields[place]
        if type(value) is not int and (value is not None or 1 <= place <= 3):
            raise _bad("flow")
    incoming, window, outgoing, outgoing_window, handle, count, credit, _, drain, echo, _ = fields
    if type(drain) is bool or drain is None:
        if type(echo) is bool or echo is None:
            return (
                incoming, window, outgoing, outgoing_window, handle, count, credit,
                drain is True, echo is True,
            )  # type: ignore[return-value]  # fmt: skip
    raise _bad("flow")


# --- writing --------------------------------------------------------------------------------------

_transfer_opening: Final = Struct(">IHHIBBBIBIBB").pack
TRANSFER_BYTES: Final = 28
"""Of the opening of a transfer frame without its tag."""
_SETTLED: Final = b"\x43\x41"
_UNSETTLED: Final = b"\x43\x42"


def transfer_opening(
    channel: int, handle: int, delivery_id: int, tag: bytes, settled: bool, payload_size: int
) -> bytes:
    """A frame that holds a whole message of format 0, up to where its payload starts."""
    tag_size = len(tag)
    return (
        _transfer_opening(
            TRANSFER_BYTES + tag_size + payload_size, 0x0200, channel,
            0x005314C0, 15 + tag_size, 5, 0x70, handle, 0x70, delivery_id, 0xA0, tag_size,
        )
        + tag
        + (_SETTLED if settled else _UNSETTLED)
    )  # fmt: skip


def encode_transfer(
    handle: int,
    delivery_id: int | None,
    tag: bytes | None,
    *,
    message_format: int | None = None,
    settled: bool | None = None,
    more: bool = False,
    state: DeliveryState | None = None,
    aborted: bool = False,
) -> bytes:
    """Any other transfer, without its payload."""
    return encode_composite(
        0x14,
        [
            encode_uint(handle),
            NULL if delivery_id is None else encode_uint(delivery_id),
            NULL if tag is None else encode_binary(tag),
            NULL if message_format is None else encode_uint(message_format),
            NULL if settled is None else encode_boolean(settled),
            encode_boolean(True) if more else NULL,
            NULL,
            NULL if state is None else encode_state(state),
            NULL,
            encode_boolean(True) if aborted else NULL,
        ],
    )


def encode_state(state: DeliveryState | None, limit: int = UINT_MAX) -> bytes:
    """A state, or null. One that is too long for frames of `limit` bytes gives way to what fits:
    only the text or the info of an error can be that long."""
    if state is ACCEPTED:
        return _ACCEPTED0
    if state is None:
        return NULL
    encoded = encode_performative(state)
    if len(encoded) + 64 > limit:
        error = state.error if isinstance(state, Rejected) else None
        return encode_performative(Rejected(None if error is None else error.short()))
    return encoded


_disposition_opening: Final = Struct(">IHHIBBBBIBIB").pack
_DISPOSITION_OPENING: Final = 26


def disposition_frame(
    channel: int, role: bool, first: int, last: int, settled: bool, state: bytes
) -> bytes:
    """A disposition with an encoded state (`NULL` for none), as a whole frame."""
    if len(state) > 200:
        return _long_disposition(channel, role, first, last, settled, state)
    return (
        _disposition_opening(
            _DISPOSITION_OPENING + len(state), 0x0200, channel,
            0x005315C0, 13 + len(state), 5, 0x41 if role else 0x42, 0x70, first, 0x70, last,
            0x41 if settled else 0x42,
        )
        + state
    )  # fmt: skip


def _long_disposition(
    channel: int, role: bool, first: int, last: int, settled: bool, state: bytes
) -> bytes:
    body = encode_composite(
        0x15,
        [
            encode_boolean(role),
            encode_uint(first),
            encode_uint(last),
            encode_boolean(settled),
            state,
        ],
    )
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


def encode_flow(
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None = None,
    delivery_count: int | None = None,
    link_credit: int | None = None,
    *,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    return encode_composite(
        0x13,
        [
            *(
                NULL if value is None else encode_uint(value)
                for value in (
                    next_incoming_id, incoming_window, next_outgoing_id, outgoing_window,
                    handle, delivery_count, link_credit,
                )
            ),
            NULL,
            encode_boolean(True) if drain else NULL,
            encode_boolean(True) if echo else NULL,
        ],
    )  # fmt: skip
