"""F1: frames, values, performatives and messages. Any bytes give a value or `ProtocolError`, and
every way to read the same bytes gives the same.

The ways: the fast reader and the general one; bytes and a view of them; alone and between other
bytes; with types and without; read, written and read again; as a message that arrives and as one
that has been stored.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tandembus.amqp import fast, frames, message, performatives, sasl, types
from tandembus.core.effects import Delivery
from tandembus.core.state import State
from tandembus.errors import ArgumentError, ProtocolError, Refused
from tandembus.limits import DEFAULT_FRAME_BYTES
from tandembus.model import NO_EDITS, Duration, Edits, Symbol
from tandembus.server import incoming, outgoing, requests
from tests.fuzz import seeds
from tests.fuzz.judge import Violation
from tests.fuzz.mutate import Mutator, mend_frame, value

_BEFORE: Final = b"\x00\x53\x14\xc0\xff\xa0"
_AFTER: Final = b"\x40\x41\xa0\x20" + b"\x00" * 40
_REFUSED: Final = object()
_TOO_DEEP: Final = "nested too deep"


def same(one: object, other: object) -> bool:
    """Equal, where not-a-number equals itself."""
    return one == other or repr(one) == repr(other)


def outcome(read: Callable[[], object]) -> object:
    """What a reader gives, or `_REFUSED`. Anything but `ProtocolError` goes through."""
    try:
        return read()
    except ProtocolError as error:
        if _TOO_DEEP in str(error):
            raise _Deep from None
        return _REFUSED


class _Deep(Exception):
    """A limit that the ways count differently by one or two: nothing to compare."""


def agree(what: str, one: object, other: object) -> None:
    if one is not other and not same(one, other):
        shown = ["refused" if each is _REFUSED else f"{each!r:.120}" for each in (one, other)]
        raise Violation(f"{what} disagree: {shown[0]} / {shown[1]}")


# --- values ---------------------------------------------------------------------------------------


def check_value(data: bytes) -> None:
    try:
        _check_value(data)
    except _Deep:
        for typed in (False, True):
            _value_or_refusal(data, typed)


def _value_or_refusal(data: bytes, typed: bool) -> None:
    with suppress(ProtocolError):
        types.decode(data, typed=typed)


def _check_value(data: bytes) -> None:
    read = outcome(lambda: types.decode(data))
    typed: Any = outcome(lambda: types.decode(data, typed=True))
    agree("types and no types", read, typed)
    agree("bytes and a view", read, outcome(lambda: types.decode(memoryview(data))))
    skipped = outcome(lambda: types.skip(data, 0))
    if typed is _REFUSED:
        return
    found, end = typed
    agree("decode and skip", end, skipped)
    framed = outcome(lambda: types.decode(_BEFORE + data + _AFTER, len(_BEFORE), typed=True))
    agree("alone and between others", (found, end + len(_BEFORE)), framed)
    again, _ = types.decode(types.encode(found), typed=True)
    agree("read and written again", found, again)


# --- frames ---------------------------------------------------------------------------------------


def check_frame(data: bytes) -> None:
    if len(data) < frames.HEADER_BYTES:
        with suppress(ProtocolError):
            frames.ReceiveBuffer().keep(data, DEFAULT_FRAME_BYTES)
        return
    size, offset, kind, _ = frames.frame_opening(data)
    with suppress(ProtocolError):
        frames.check_opening(size, offset, kind, DEFAULT_FRAME_BYTES)
        frames.ReceiveBuffer().keep(data, DEFAULT_FRAME_BYTES)
    body = data[4 * offset : size] if offset >= 2 else data[8:]
    if kind == frames.SASL_FRAME:
        check_sasl(body)
    elif body:
        check_performative(body)


def check_sasl(body: bytes) -> None:
    """Every machine, in every step, answers or refuses."""
    try:
        performative, _ = performatives.decode_performative(body)
    except ProtocolError:
        return
    server = sasl.SaslServer(("PLAIN", "ANONYMOUS"), lambda user, word: user == word)
    waiting = sasl.SaslServer(("PLAIN",), lambda user, word: user == word)
    waiting.receive(performatives.SaslInit("PLAIN"))
    client = sasl.SaslClient("user", "word", "host")
    asked = sasl.SaslClient(None, "", None)
    asked.receive(performatives.SaslMechanisms(("ANONYMOUS",)))
    for machine in (server, waiting, client, asked):
        try:
            answer = machine.receive(performative)
        except ProtocolError:
            continue
        if answer is not None:
            performatives.encode_performative(answer)


def check_performative(body: bytes) -> None:
    try:
        if body[0] != 0:
            raise ProtocolError("no descriptor")
        descriptor, at = types.decode_descriptor(body, 1)
    except ProtocolError:
        _value_or_refusal(body, True)
        return
    code = performatives.code_of(descriptor)
    if code in _FAST:
        name, reference = _FAST[code]
        check_fast(name, reference, body, at)
        return
    try:
        read, _ = performatives.decode_performative(body)
    except ProtocolError:
        return
    try:
        again, _ = performatives.decode_performative(performatives.encode_performative(read))
    except ArgumentError:
        return  # text that is not ASCII where a symbol belongs: it is taken, but not given on
    if code != performatives.ERROR and not _has_odd_condition(read):
        agree("a performative, read and written again", read, again)


def _has_odd_condition(read: Any) -> bool:
    """The condition of an error is written in ASCII, whatever it was."""
    error = getattr(read, "error", None)
    return error is not None and not str(error.condition).isascii()


def check_fast(
    name: str, reference: Callable[[bytes], tuple[object, ...]], body: bytes, at: int
) -> None:
    """The reader by hand, alone and between other bytes, and the general decoder."""
    read = getattr(fast, name)
    try:
        quick = outcome(lambda: read(body, at, len(body)))
        before, after = len(_BEFORE), len(_BEFORE) + len(body)
        framed: Any = outcome(lambda: read(_BEFORE + body + _AFTER, before + at, after))
        slow: Any = outcome(lambda: reference(body[at:]))
    except _Deep:
        return
    if name == "decode_transfer":
        if framed is not _REFUSED:
            framed = (*framed[:-1], framed[-1] - before)
        if slow is not _REFUSED:
            slow = (*slow[:-1], slow[-1] + at)
    agree(f"{name} alone and between others", quick, framed)
    agree(f"{name} and the general decoder", quick, slow)


def _list_of(body: bytes, most: int) -> tuple[list[Any], int]:
    found, end = types.decode(body, typed=True)
    if type(found) is not list or len(found) > most:
        raise ProtocolError("not a list, or too long")
    fields: list[Any] = []
    for item in found:
        if isinstance(item, types.Described | Duration):
            item = performatives.state_of(item)
        fields.append(item)
    return fields + [None] * (most - len(fields)), end


def _require(is_right: bool) -> None:
    if not is_right:
        raise ProtocolError("a field is missing, or of the wrong type")


def _is_uint(item: object) -> bool:
    return type(item) is types.UInt


def _is_state(item: object) -> bool:
    return item is None or isinstance(item, performatives.DeliveryState)


def reference_transfer(body: bytes) -> tuple[object, ...]:
    """§2.7.5, by the general decoder alone."""
    fields, end = _list_of(body, 11)
    handle, number, tag, form, settled, more, _, state, _, aborted, _ = fields
    _require(_is_uint(handle) and (number is None or _is_uint(number)))
    _require(tag is None or (type(tag) is bytes and len(tag) <= 32))
    _require(form is None or _is_uint(form))
    _require(all(flag is None or type(flag) is bool for flag in (settled, more, aborted)))
    _require(_is_state(state))
    return (handle, number, tag, form, settled is True, more is True, state, aborted is True, end)


def reference_disposition(body: bytes) -> tuple[object, ...]:
    """§2.7.6."""
    (role, first, last, settled, state, _), end = _list_of(body, 6)
    last = first if last is None else last
    _require(end == len(body) and type(role) is bool and _is_uint(first) and _is_uint(last))
    _require((settled is None or type(settled) is bool) and _is_state(state))
    return (role, first, last, settled is True, state)


def reference_flow(body: bytes) -> tuple[object, ...]:
    """§2.7.4."""
    fields, end = _list_of(body, 11)
    _require(end == len(body) and all(map(_is_uint, fields[1:4])))
    _require(all(each is None or _is_uint(each) for each in fields[:8]))
    drain, echo = fields[8:10]
    _require(all(each is None or type(each) is bool for each in (drain, echo)))
    return (*fields[:7], drain is True, echo is True)


_FAST: Final = {
    performatives.TRANSFER: ("decode_transfer", reference_transfer),
    performatives.DISPOSITION: ("decode_disposition", reference_disposition),
    performatives.FLOW: ("decode_flow", reference_flow),
}


# --- messages -------------------------------------------------------------------------------------

_NAMES: Final = (
    "ttl_ms", "priority", "scheduled_ms", "partition_key", "via_partition_key", "message_id",
    "correlation_id", "session_id", "reply_to_session_id", "content_type", "label", "to",
    "reply_to", "properties",
)  # fmt: skip
_EDITS: Final = Edits(
    properties={"text": "new", "k": 5},
    removed=frozenset({"number"}),
    system={"Label": "new", "TimeToLive": Duration(50_000_000), "SessionId": "new"},
)


def _attributes(one: Any) -> dict[str, object]:
    return {name: getattr(one, name) for name in _NAMES}


def _read_message(data: bytes) -> dict[str, object]:
    read = message.AmqpMessage(data)
    read.check()
    return _attributes(read)


def _bits(count: int) -> int:
    return 0x1234_5678 << count - 32


def check_message(data: bytes) -> None:
    try:
        agree(
            "sections and AmqpMessage",
            outcome(lambda: bool(message.sections(data)) or True),
            outcome(lambda: bool(message.AmqpMessage(data)) or True),
        )
        read: Any = outcome(lambda: _read_message(data))
        if read is not _REFUSED:
            slow = outcome(lambda: reference_message(data))
            for name in () if slow is _REFUSED else slow:  # type: ignore[attr-defined]
                agree(f"{name} and the general decoder", read[name], slow[name])  # type: ignore[index]
            if slow is _REFUSED:
                raise Violation("AmqpMessage takes what the general decoder refuses")
    except _Deep:
        read = None
    check_incoming(data, read)
    with suppress(ProtocolError, Refused):
        incoming.messages_of(data, incoming.BATCH, _bits)
    with suppress(Refused):
        requests.parse_request(data)


def reference_message(data: bytes) -> dict[str, object]:
    """Some attributes, by the general decoder alone."""
    found: dict[int, Any] = {}
    for code, start, _ in message.sections(data):
        if code in (message.HEADER, message.PROPERTIES) and code not in found:
            _, at = types.decode_descriptor(data, start + 1)
            found[code], _ = types.decode(data, at)
    header = found.get(message.HEADER, [])
    fields = found.get(message.PROPERTIES, [])
    _require(len(header) <= 5 and len(fields) <= 13)
    header = header + [None] * (5 - len(header))
    fields = fields + [None] * (13 - len(fields))
    names = ("to", "label", "reply_to", "content_type", "session_id", "reply_to_session_id")
    read: dict[str, object] = {"priority": header[1], "ttl_ms": header[2]}
    for name, place in zip(names, (2, 3, 4, 6, 10, 12), strict=True):
        text = fields[place]
        read[name] = text.decode() if isinstance(text, bytes) else text
    read["message_id"] = str(fields[0]) if type(fields[0]) is Symbol else fields[0]
    read["correlation_id"] = str(fields[5]) if type(fields[5]) is Symbol else fields[5]
    return read


def check_incoming(data: bytes, read: Any) -> None:
    """A message that is taken says what it said, is tidy, and can be given on for ever."""
    try:
        (taken,) = incoming.messages_of(data, incoming.SINGLE, _bits)
    except (ProtocolError, Refused):
        return
    stored = _read_message(taken.payload)
    agree("a message taken and stored", _attributes(taken), stored)
    if read is _REFUSED:
        raise Violation("a message is taken that AmqpMessage refuses")
    if read is not None:
        for name in _NAMES:
            if name != "message_id" or read[name] is not None:
                agree(f"{name} sent and taken", read[name], stored[name])
    # The same again, and with another body: what is remembered of the first must not show.
    (twin,) = incoming.messages_of(data, incoming.SINGLE, _bits)
    agree("a message and its twin", taken.payload, twin.payload)
    agree("a message and its twin", stored, _attributes(twin))
    (again,) = incoming.messages_of(taken.payload, incoming.SINGLE, _bits)
    agree("a tidy message, taken again", taken.payload, again.payload)
    for edits in (NO_EDITS, _EDITS):
        message.AmqpMessage(message.edited(taken.payload, edits)).check()
    for token in (b"t" * 16, None):
        for reads_all in (False, True):
            given = outgoing.encoded(
                taken.payload, _delivery(token), shows_state=token is None,
                entity_ttl_ms=1_000, reads_all_types=reads_all,
            )  # fmt: skip
            for code, start, _ in message.sections(given):
                if code in (message.HEADER, message.PROPERTIES, message.MESSAGE_ANNOTATIONS):
                    types.decode(given, start + 3)


def _delivery(token: bytes | None) -> Delivery:
    return Delivery(1, 1, token, 5, 0, 7, State.WAITING, 0, None, None)


# --- the stream of inputs -------------------------------------------------------------------------


def _generated_frame(mutator: Mutator) -> bytes:
    """A performative whose fields are each right or any value at all."""
    chance = mutator.chance
    rand = chance.random
    fields = [
        value(chance) if rand() < 0.2 else _USUAL[int(rand() * len(_USUAL))]
        for _ in range(int(rand() * 13))
    ]
    body = types.encode_list(fields)
    if rand() < 0.2:
        raw = b"".join(fields)
        body = b"\xd0" + (len(raw) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + raw
    code = _CODES[int(rand() * len(_CODES))]
    return frames.frame(b"\x00\x53" + bytes((code,)) + body + b"payload", int(rand() * 3))


_CODES: Final = bytes.fromhex("101112131313141414141515151516171840414243441d242526272829303334")
_USUAL: Final = (
    b"\x40", b"\x40", b"\x41", b"\x42", b"\x43", b"\x43", b"\x52\x01", b"\x52\xff", b"\x70\0\0\1\0",
    b"\x70\xff\xff\xff\xff", b"\xa0\x04tag1", b"\xa1\x01a", b"\xa3\x01s", b"\x00\x53\x24\x45",
    b"\x00\x53\x25\xc0\x01\x00", b"\x00\x53\x26\x45", b"\x50\x00", b"\x60\0\1", b"\x53\x05",
    b"\xc1\x01\x00", b"\x70\x80\x01\x37\x00", b"\x56\x00", b"\x44",
)  # fmt: skip

CHECKS: Final = {"frame": check_frame, "message": check_message, "value": check_value}
READS: Final[dict[str, tuple[Callable[[bytes], object], ...]]] = {
    "frame": (
        lambda data: performatives.decode_performative(data, 8),
        lambda data: fast.decode_transfer(data, 11, len(data)),
        lambda data: fast.decode_disposition(data, 11, len(data)),
        lambda data: fast.decode_flow(data, 11, len(data)),
    ),
    "message": (
        lambda data: message.AmqpMessage(data).check(),
        lambda data: incoming.messages_of(data, incoming.SINGLE, _bits),
        lambda data: incoming.messages_of(data, incoming.BATCH, _bits),
        requests.parse_request,
    ),
    "value": (types.decode, lambda data: types.decode(data, typed=True)),
}
"""What the limits of time are for: one reading of the bytes, as the broker does it."""


class Stream:
    """Frames, messages and values, in this proportion: 9, 7, 4."""

    def __init__(self, seed: int) -> None:
        self._frames = Mutator(seeds.frames(), seed, mend_frame)
        self._messages = Mutator(seeds.messages(), seed + 1)
        self._values = Mutator(seeds.values(), seed + 2)
        self._random = self._frames.chance.random

    def seeds(self) -> dict[str, list[bytes]]:
        mutators = {"frame": self._frames, "message": self._messages, "value": self._values}
        return {name: mutator.seeds for name, mutator in mutators.items()}

    def next(self) -> tuple[str, bytes]:
        """The name of the check, and the input."""
        what = self._random()
        if what < 0.45:
            return "frame", _generated_frame(self._frames) if what < 0.09 else self._frames.mutant()
        if what < 0.80:
            return "message", self._messages.mutant()
        return "value", value(self._values.chance) if what > 0.98 else self._values.mutant()
