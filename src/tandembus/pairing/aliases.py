"""A message on its way through a backlog queue: what is put aside going in, and put back (N6).

`aliased` and `restored` work on the encoded message, so whatever is not named here keeps its bytes
and thereby its AMQP types, of which the SDK's own values lose many (a short, a symbol, a ulong).

| field | where it is | alias among the application properties |
|---|---|---|
| SessionId | properties, group-id | `x-ms-sessionid` |
| TimeToLive | header, ttl | `x-ms-timetolive` |
| ScheduledEnqueueTimeUtc | annotation | `x-ms-scheduledenqueuetimeutc` |
| the destination | – | `x-ms-path` |

An alias has the very bytes of its field: a uint of milliseconds, a timestamp. What other writers
may use, a timespan or a long, is understood too. The rule: whatever is understood is restored
exactly, and anything else is `Unreadable`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tandembus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SCHEDULED,
    sections,
)
from tandembus.amqp.types import (
    NULL,
    compound,
    decode,
    decode_descriptor,
    encode_described,
    encode_list,
    encode_long,
    encode_map,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_uint,
    skip,
)
from tandembus.errors import ProtocolError
from tandembus.model import Duration, Timestamp

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_TIME: Final = "x-ms-scheduledenqueuetimeutc"
SENDER: Final = "x-tandem-sender"
NUMBER: Final = "x-tandem-number"
AFTER: Final = "x-tandem-after"
"""The last three only with `ordered_return`: see `Stamp`."""
ALIASES: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME, SENDER, NUMBER, AFTER})

_TTL: Final = 2
_DELIVERY_COUNT: Final = 4
_MESSAGE_ID: Final = 0
_GROUP_ID: Final = 10

_BROKERS_OWN: Final = frozenset(
    {
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-lock-token",
        "x-opt-message-state",
        "x-opt-enqueue-sequence-number",
        "x-opt-deadletter-source",
        "x-opt-partition-id",
    }
)
"""Annotations that the secondary wrote on delivery; the primary writes its own."""

MAX_TTL_MS: Final = 0xFFFF_FFFF


class Unreadable(ValueError):
    """A message in a backlog queue that is not one of ours, or is damaged: why."""


class Stamp(NamedTuple):
    """The place of a message in what its sender has put into backlogs, for `ordered_return`."""

    sender: str
    number: int
    after: tuple[str, ...] = ()
    """Other backlog queues (`secondary.index`) that may still have earlier messages of it."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A message as its sender meant it, and where it goes."""

    path: str
    payload: bytes
    session_id: str | None
    sequence_number: int
    """Its number in the backlog queue."""
    locked_until_ms: int
    stamp: Stamp | None = None

    @property
    def group(self) -> tuple[str, str | None]:
        """Messages of one group keep their order (N9)."""
        return self.path, self.session_id


# --- in -------------------------------------------------------------------------------------------


def aliased(
    payload: bytes, path: str, fresh_id: Callable[[], str], stamp: Stamp | None = None
) -> bytes:
    """`payload` for a backlog queue. A message without an id gets one, so that the primary can tell
    when the syphon brings it twice. Raises ValueError if it already has one of the aliases."""
    message = _Sections(payload)
    added: dict[str, bytes] = {PATH: encode_string(path)}
    header = message.fields(HEADER)
    if len(header) > _TTL and header[_TTL] != NULL:
        added[TIME_TO_LIVE] = header[_TTL]
        header[_TTL] = NULL
        message.put_fields(HEADER, header)
    annotations = message.pairs(MESSAGE_ANNOTATIONS)
    if SCHEDULED in annotations:
        added[SCHEDULED_TIME] = annotations.pop(SCHEDULED)[1]
        message.put_pairs(MESSAGE_ANNOTATIONS, annotations)
    fields = message.fields(PROPERTIES)
    was = list(fields)
    if len(fields) > _GROUP_ID and fields[_GROUP_ID] != NULL:
        added[SESSION_ID] = fields[_GROUP_ID]
        fields[_GROUP_ID] = NULL
    if not fields or fields[_MESSAGE_ID] == NULL:
        fields[:1] = [encode_string(fresh_id())]
    if fields != was:
        message.put_fields(PROPERTIES, fields)
    if stamp is not None:
        added[SENDER] = encode_string(stamp.sender)
        added[NUMBER] = encode_long(stamp.number)
        if stamp.after:
            added[AFTER] = encode_string(",".join(stamp.after))
    properties = message.pairs(APPLICATION_PROPERTIES)
    if clash := ALIASES.intersection(properties):
        raise ValueError(f"The application property '{min(clash)}' is reserved for backlogs.")
    for name, value in added.items():
        properties[name] = (encode_string(name), value)
    message.put_pairs(APPLICATION_PROPERTIES, properties)
    return message.joined()


# --- out ------------------------------------------------------------------------------------------


def restored(payload: bytes) -> Restored:
    """What a backlog queue delivered, as it was before `aliased`. Raises `Unreadable`."""
    try:
        return _restored(_Sections(payload))
    except ProtocolError as error:
        raise Unreadable(f"it is not an AMQP message: {error}") from error


def _restored(message: _Sections) -> Restored:
    properties = message.pairs(APPLICATION_PROPERTIES)
    found = {name: properties.pop(name)[1] for name in ALIASES.intersection(properties)}
    kept = {name: found.pop(name) for name in _KEEPS_BYTES.intersection(found)}
    values = {name: decode(element)[0] for name, element in found.items()}
    path = values.get(PATH)
    if not isinstance(path, str) or not path:
        raise Unreadable(f"{PATH} is {'missing' if path is None else 'not a text'}")
    session = kept.get(SESSION_ID, NULL)
    session_id = _session_text(session)
    header = message.fields(HEADER)
    header += [NULL] * (_DELIVERY_COUNT + 1 - len(header))
    header[_DELIVERY_COUNT] = NULL
    header[_TTL] = _ttl(kept.get(TIME_TO_LIVE, NULL))
    message.put_fields(HEADER, header if any(field != NULL for field in header) else [])

    lock = message.pairs(DELIVERY_ANNOTATIONS)
    message.put_pairs(DELIVERY_ANNOTATIONS, _without_brokers(lock))
    annotations = message.pairs(MESSAGE_ANNOTATIONS)
    number = _whole(annotations, "x-opt-sequence-number")
    locked_until_ms = _whole(annotations, "x-opt-locked-until")
    annotations = _without_brokers(annotations)
    if SCHEDULED_TIME in kept:
        annotations[SCHEDULED] = (encode_symbol(SCHEDULED), _time(kept[SCHEDULED_TIME]))
    message.put_pairs(MESSAGE_ANNOTATIONS, annotations)

    fields = message.fields(PROPERTIES)
    if session != NULL:
        fields += [NULL] * (_GROUP_ID + 1 - len(fields))
        fields[_GROUP_ID] = session
        message.put_fields(PROPERTIES, fields)
    message.put_pairs(APPLICATION_PROPERTIES, properties)
    return Restored(
        str(path), message.joined(), session_id, number, locked_until_ms, _stamp(values)
    )


_KEEPS_BYTES: Final = frozenset({SESSION_ID, TIME_TO_LIVE, SCHEDULED_TIME})


def _session_text(element: bytes) -> str | None:
    value = decode(element)[0]
    if isinstance(value, bytes):  # so the SDK writes a session id that it has received
        value = value.decode(errors="replace")
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"{SESSION_ID} is not a text")
    return value


def _ttl(element: bytes) -> bytes:
    if element == NULL:
        return NULL
    value, _ = decode(element)
    if isinstance(value, bool | Timestamp) or not isinstance(value, int) or value < 0:
        raise Unreadable(f"{TIME_TO_LIVE} is not a length of time")
    if isinstance(value, Duration):
        value //= 10_000
    elif element[0] in (0x43, 0x52, 0x70):
        return element
    return encode_uint(min(int(value), MAX_TTL_MS))


def _time(element: bytes) -> bytes:
    value, _ = decode(element)
    if isinstance(value, Timestamp):
        return element
    if isinstance(value, bool | Duration) or not isinstance(value, int):
        raise Unreadable(f"{SCHEDULED_TIME} is not a time")
    return encode_timestamp(value)


def _stamp(values: Mapping[str, object]) -> Stamp | None:
    sender, number, after = values.get(SENDER), values.get(NUMBER), values.get(AFTER, "")
    if sender is None and number is None:
        return None
    if not isinstance(sender, str) or not isinstance(number, int) or not isinstance(after, str):
        raise Unreadable(f"{SENDER}, {NUMBER} or {AFTER} is of the wrong type")
    return Stamp(str(sender), int(number), tuple(filter(None, after.split(","))))


_Pairs = dict[str, tuple[bytes, bytes]]


def _whole(annotations: _Pairs, name: str) -> int:
    value = decode(annotations[name][1])[0] if name in annotations else 0
    return int(value) if isinstance(value, int) else 0


def _without_brokers(annotations: _Pairs) -> _Pairs:
    return {name: pair for name, pair in annotations.items() if name not in _BROKERS_OWN}


class _Sections:
    """The sections of a message, some of which are taken apart and put together again."""

    def __init__(self, payload: bytes) -> None:
        self._parts = {}
        body: list[bytes] = []
        for code, start, end in sections(payload):
            if code in _TAKEN_APART:
                self._parts[code] = payload[start:end]
            else:
                body.append(payload[start:end])
        self._body = b"".join(body)

    def _value(self, code: int) -> bytes:
        part = self._parts.get(code)
        return b"" if part is None else part[decode_descriptor(part, 1)[1] :]

    def fields(self, code: int) -> list[bytes]:
        """The elements of a list, encoded."""
        value = self._value(code)
        found: list[bytes] = []
        if value:
            count, at, _ = compound(value, 0)
            for _ in range(count):
                start, at = at, skip(value, at)
                found.append(value[start:at])
        return found

    def put_fields(self, code: int, fields: list[bytes]) -> None:
        self._put(code, encode_list(fields) if fields else b"")

    def pairs(self, code: int) -> _Pairs:
        """The elements of a map, encoded, by their key."""
        value = self._value(code)
        found: _Pairs = {}
        if value:
            count, at, _ = compound(value, 0)
            for _ in range(count // 2):
                key, value_at = decode(value, at)
                end = skip(value, value_at)
                found[str(key)] = (value[at:value_at], value[value_at:end])
                at = end
        return found

    def put_pairs(self, code: int, pairs: _Pairs) -> None:
        elements = [element for pair in pairs.values() for element in pair]
        self._put(code, encode_map(elements) if elements else b"")

    def _put(self, code: int, value: bytes) -> None:
        if value:
            self._parts[code] = encode_described(code, value)
        else:
            self._parts.pop(code, None)

    def joined(self) -> bytes:
        parts = [self._parts[code] for code in _TAKEN_APART if code in self._parts]
        return b"".join(parts) + self._body


_TAKEN_APART: Final = (
    HEADER,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    APPLICATION_PROPERTIES,
)
"""In the order in which the standard wants them (AMQP 1.0 §3.2); body and footer stay as they
are."""
