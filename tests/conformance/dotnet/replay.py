"""Plays the .NET SDK's side of a recorded connection against a real broker.

Every frame that the client sent is sent again, in its place: after what the broker had answered by
then. What differs from run to run is put in: a fresh token, the broker's own lock tokens, delivery
ids, transaction ids, and times. Every answer in the recording is waited for, and what a client
looks at in it must be the same: conditions, outcomes, messages with the types of their values,
statuses; times as far as the play takes as long. Nothing may come that is not recorded. Flows that
only grant credit, heartbeats, tracking ids and texts of errors may differ.

Long silences of the recording are not slept through: the broker's clock is moved.
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tandembus.amqp import performatives as p
from tandembus.amqp.fast import disposition_frame, encode_state, encode_transfer
from tandembus.amqp.frames import frame, frame_opening
from tandembus.amqp.message import VALUE, sections
from tandembus.amqp.types import Array, Described, Int, Long, decode
from tandembus.core.sas import sign
from tandembus.model import Symbol, Timestamp
from tandembus.testing.broker import ROOT, TestBroker
from tests.conformance.amqp.peer import Disposition, Empty, Flow, Header, Transfer, read
from tests.conformance.dotnet.recording import Frame

PATIENCE_S: Final = 20.0
LONG_MS: Final = 700
"""A silence of the recording from which on the clock is moved instead."""
_SILENCE_S: Final = 0.2
"""So long something may still come that is not recorded."""
_TOKEN: Final = re.compile(rb"SharedAccessSignature sr=[^\x00-\x1f]+?skn=\w+")
_SCHEDULED: Final = b"\xa3\x1cx-opt-scheduled-enqueue-time\x83"
_EXPIRATION: Final = b"\xa1\x0aexpiration\x83"
_TOKEN_MS: Final = 1_800_000
"""So long the client's tokens were good for: so the recording tells when it was made."""

Key = tuple[object, ...]


class DifferenceError(AssertionError):
    """The broker has answered otherwise than the recording has it."""


class Player:
    """One connection."""

    def __init__(
        self,
        broker: TestBroker,
        recorded: list[Frame],
        request: bytes = b"",
        *,
        has_key: bool = True,
    ) -> None:
        self.broker = broker
        self.key = broker.key if has_key else "wrong"
        self.recorded = recorded
        self.socket = socket.create_connection(("127.0.0.1", broker.port))
        self.is_websocket = bool(request)
        self._buffer = b""
        self._arrived: dict[Key, deque[Any]] = defaultdict(deque)
        self._links: dict[tuple[bool, int, int], str] = {}
        """Names of links by side (True: the recording's), channel and handle."""
        self._channels: dict[int, int] = {}
        self._partial: dict[tuple[bool, int, int], Transfer] = {}
        self._ids: dict[tuple[int, int], int] = {}
        """Delivery ids of the broker by channel and the recording's."""
        self._same: dict[bytes, bytes] = {}
        """Lock tokens and transaction ids of the broker by the recording's."""
        self._shift_ms = 0
        if request:
            self._upgrade(request)

    # --- the wire ---------------------------------------------------------------------------------

    def _upgrade(self, request: bytes) -> None:
        self.socket.sendall(request)
        while b"\r\n\r\n" not in self._buffer:
            self._read(time.monotonic() + PATIENCE_S, is_raw=True)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise DifferenceError(f"the upgrade was answered with {head!r}")

    def _write(self, data: bytes) -> None:
        if self.is_websocket:
            mask = os.urandom(4)
            masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            data = struct.pack(">BBH", 0x82, 0x80 | 126, len(data)) + mask + masked
        self.socket.sendall(data)

    def _read(self, deadline: float, *, is_raw: bool = False) -> None:
        if not select.select([self.socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise DifferenceError("nothing came")
        data = self.socket.recv(1 << 20)
        if not data:
            raise DifferenceError("the broker has hung up")
        self._buffer += data
        if is_raw:
            return
        for channel, performative in self._frames():
            for key, value in self._sorted(False, channel, performative):
                self._arrived[key].append(value)

    def _frames(self) -> Iterator[tuple[int, Any]]:
        while True:
            if self.is_websocket:
                found = self._unwrapped()
                if found is None:
                    return
                yield from read(found)
                continue
            size = 8 if self._buffer[:4] == b"AMQP" else None
            if size is None and len(self._buffer) >= 8:
                size = frame_opening(self._buffer, 0)[0]
            if size is None or len(self._buffer) < size:
                return
            raw, self._buffer = self._buffer[:size], self._buffer[size:]
            yield from read(raw)

    def _unwrapped(self) -> bytes | None:
        """A binary message of the broker: it begins and ends with a frame of AMQP."""
        data = self._buffer
        if len(data) < 4:
            return None
        length, at = data[1], 2
        if length == 126:
            length, at = int.from_bytes(data[2:4], "big"), 4
        elif length == 127:
            length, at = int.from_bytes(data[2:10], "big"), 10
        if len(data) < at + length:
            return None
        self._buffer = data[at + length :]
        return data[at : at + length]

    # --- what belongs to what ---------------------------------------------------------------------

    def _sorted(self, is_recorded: bool, channel: int, it: Any) -> Iterator[tuple[Key, Any]]:
        """Each answer with what it answers: another order between links is no difference."""
        match it:
            case Header():
                yield ("header",), it.raw
            case Flow() | Empty():
                pass
            case p.Attach():
                self._links[is_recorded, channel, it.handle] = it.name
                yield ("attach", channel, it.name), it
            case p.Detach():
                yield ("detach", channel, self._links[is_recorded, channel, it.handle]), it
            case Transfer():
                where = (is_recorded, channel, it.handle)
                before = self._partial.pop(where, None)
                if before is not None:
                    it = before._replace(payload=before.payload + it.payload, more=it.more)
                if it.more:
                    self._partial[where] = it
                else:
                    yield ("transfer", channel, self._links[where]), it
            case Disposition():
                for number in range(it.first, it.last + 1):
                    mine = number
                    if is_recorded and not it.role:
                        mine = self._ids.get((channel, number), number)
                    yield ("disposition", channel, it.role, mine), it
            case _:
                yield (type(it).__name__, channel), it

    def _next(self, key: Key) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not self._arrived[key]:
            try:
                self._read(deadline)
            except DifferenceError as error:
                waiting = {k: list(v) for k, v in self._arrived.items() if v}
                raise DifferenceError(f"{key}: {error}; beside it there is {waiting}") from None
        return self._arrived[key].popleft()

    # --- the play ---------------------------------------------------------------------------------

    def play(self, before: Callable[[int], None] = lambda place: None) -> None:
        """`before` is called with the place of each frame before it is played."""
        with self.socket:
            self._play(before)

    def _play(self, before: Callable[[int], None]) -> None:
        last_ms = self.recorded[0].at_ms
        for place, each in enumerate(self.recorded):
            before(place)
            if each.at_ms - last_ms > LONG_MS:
                self.broker.clock.advance(seconds=(each.at_ms - last_ms) / 1000)
            last_ms = each.at_ms
            if each.is_client:
                self._write(self._rewritten(each))
            else:
                for key, wanted in self._sorted(True, each.channel, each.performative):
                    self._compare(key, wanted, self._next(key))
        self._read_rest()
        unexpected = {key: list(came) for key, came in self._arrived.items() if came}
        if unexpected:
            raise DifferenceError(f"beside what was recorded there came {unexpected}")

    def _read_rest(self) -> None:
        """What the broker says beyond the recording, up to its end if the recording has that."""
        is_closed = any(type(it.performative) is p.Close for it in self.recorded if it.is_client)
        silence_s = PATIENCE_S if is_closed else _SILENCE_S
        while select.select([self.socket], [], [], silence_s)[0]:
            try:
                self._read(time.monotonic())
            except DifferenceError:
                return  # it has hung up
        if is_closed:
            raise DifferenceError("the connection was closed, and the broker does not hang up")

    def _rewritten(self, each: Frame) -> bytes:
        match each.performative:
            case Disposition() as it if it.role:
                frames: list[bytes] = []
                outcome = encode_state(it.state)
                for number in range(it.first, it.last + 1):
                    mine = self._ids[each.channel, number]
                    frames.append(
                        disposition_frame(each.channel, True, mine, mine, it.settled, outcome)
                    )
                return self._exchanged(b"".join(frames))
            case Transfer() as it:
                payload = self._exchanged(self._timed(it.payload))
                payload, count = _TOKEN.subn(self._token, payload)
                if count:
                    payload = _resized(payload)
                state = it.state
                if isinstance(state, p.TransactionalState):
                    txn_id = self._same.get(state.txn_id, state.txn_id)
                    state = p.TransactionalState(txn_id, state.outcome)
                body = encode_transfer(
                    it.handle, it.delivery_id, it.tag, message_format=it.message_format,
                    settled=it.settled, more=it.more, state=state,
                )  # fmt: skip
                return frame(body + payload, each.channel)
            case _:
                return self._exchanged(each.raw)

    def _exchanged(self, data: bytes) -> bytes:
        for old, new in self._same.items():
            if len(old) == 8:  # a transaction
                old, new = b"\xa0\x08" + old, b"\xa0\x08" + new
            data = data.replace(old, new)
        return data

    def _timed(self, payload: bytes) -> bytes:
        at = payload.find(_EXPIRATION)
        if at >= 0 and not self._shift_ms:
            at += len(_EXPIRATION)
            recorded_ms = int.from_bytes(payload[at : at + 8], "big") - _TOKEN_MS
            self._shift_ms = int(self.broker.clock.now().timestamp() * 1000) - recorded_ms
        parts = payload.split(_SCHEDULED)
        shifted = [
            (int.from_bytes(part[:8], "big") + self._shift_ms).to_bytes(8, "big") + part[8:]
            for part in parts[1:]
        ]
        return _SCHEDULED.join([parts[0], *shifted])

    def _token(self, found: re.Match[bytes]) -> bytes:
        token = sign("amqps://127.0.0.1/", ROOT, self.key, int(time.time()) + 86_400)
        return token.encode()

    # --- what must be the same --------------------------------------------------------------------

    def _compare(self, key: Key, wanted: Any, came: Any) -> None:
        if isinstance(wanted, Disposition):
            _same(key, wanted.settled, came.settled, "settled")
            if isinstance(wanted.state, p.Declared):
                assert isinstance(came.state, p.Declared), came
                self._same[wanted.state.txn_id] = came.state.txn_id
            else:
                _same(key, _outcome(wanted.state), _outcome(came.state), "outcome")
        elif isinstance(wanted, Transfer):
            if isinstance(key[1], int) and wanted.delivery_id is not None:
                self._ids[key[1], wanted.delivery_id] = came.delivery_id
            if wanted.tag and len(wanted.tag) == 16:
                self._same[wanted.tag] = came.tag
                self._same[UUID(bytes_le=wanted.tag).bytes] = UUID(bytes_le=came.tag).bytes
            _same(key, wanted.settled, came.settled, "settled")
            _same(key, bool(wanted.tag), bool(came.tag), "has a tag")
            self._pair(wanted.payload, came.payload)
            found = message(wanted.payload, self._shift_ms), message(came.payload)
            _same(key, *found, "message")
        elif isinstance(wanted, p.Attach):
            _same(key, _link(wanted), _link(came), "attach")
            if wanted.role == p.SENDER and came.max_message_size:
                raise DifferenceError(f"{key}: a limit where the broker sends: {came}")
        elif isinstance(wanted, p.Detach | p.End | p.Close):
            _same(key, _condition(wanted.error), _condition(came.error), "condition")
        elif isinstance(wanted, bytes):
            _same(key, wanted, came, "header")

    def _pair(self, wanted: bytes, came: bytes) -> None:
        """Lock tokens inside an answer of $management."""
        tokens = [[*_tokens(_value(each))] for each in (wanted, came)]
        for old, new in zip(*tokens, strict=True):
            self._same[old.bytes] = new.bytes


def _same(key: Key, wanted: object, came: object, what: str) -> None:
    if wanted != came:
        raise DifferenceError(f"{key}: {what}{_difference(wanted, came)}")


def _difference(wanted: object, came: object) -> str:
    """Where two values differ first, and how."""
    if isinstance(wanted, dict) and isinstance(came, dict) and wanted.keys() == came.keys():
        pairs = [(f"[{key!r}]", wanted[key], came[key]) for key in wanted]
    elif isinstance(wanted, list | tuple) and type(wanted) is type(came):
        assert isinstance(came, list | tuple)
        if len(wanted) != len(came):
            return f": recorded {wanted!r}, came {came!r}"
        pairs = [
            (f"[{at}]", one, two) for at, (one, two) in enumerate(zip(wanted, came, strict=True))
        ]
    else:
        return f": recorded {wanted!r}, came {came!r}"
    return next((where + _difference(one, two) for where, one, two in pairs if one != two), "")


def _condition(error: p.Error | None) -> str | None:
    return None if error is None else error.condition


def _outcome(state: p.DeliveryState | None) -> object:
    if isinstance(state, p.TransactionalState):
        return "in a transaction", _outcome(state.outcome)
    if isinstance(state, p.Rejected):
        return "Rejected", _condition(state.error)
    return type(state).__name__


def _link(attach: p.Attach) -> object:
    addresses = [
        node.address if isinstance(node, p.Source | p.Target) else type(node).__name__
        for node in (attach.source, attach.target)
    ]
    filters = attach.source.filter if isinstance(attach.source, p.Source) else None
    count = attach.initial_delivery_count if attach.role == p.SENDER else None
    return attach.role, addresses, filters, count, sorted(map(str, attach.properties or {}))


def _resized(payload: bytes) -> bytes:
    """A request whose text has another length now: its value is encoded again."""
    for code, start, _ in sections(payload[: payload.rindex(b"\x00\x53\x77")]):
        assert code != VALUE, start
    at = payload.rindex(b"\x00\x53\x77")
    text = payload[payload.index(b"SharedAccessSignature", at) :]
    return payload[: at + 3] + b"\xb1" + len(text).to_bytes(4, "big") + text


_MADE_UP: Final = re.compile(r"[0-9a-f]{32}")
"""The message id of a message that was sent without one."""
_NEAR_MS: Final = 30_000
"""So far a time may be from the recorded one: of silences only the long ones are made up for, and a
machine can be slow."""


def message(payload: bytes, shift_ms: int = 0) -> object:
    """A message as a receiver sees it, without what differs from run to run. Times can have been
    shifted."""
    found = []
    for code, start, _ in sections(payload):
        value, _ = decode(payload, start + 3, typed=True)
        found.append((code, _Shown(shift_ms).plain(value)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Time:
    """As it was said, and when that is now. A time that the client made up comes back as it was;
    one that the broker made is about as late as the recorded one."""

    said_ms: int
    shift_ms: int

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Time):
            return False
        late_ms = other.said_ms - self.said_ms - self.shift_ms
        return self.said_ms == other.said_ms or abs(late_ms) <= _NEAR_MS

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class _Numbers:
    """Sequence numbers of an answer. In a transaction the recorded broker answered zeros, which
    stand for any."""

    kinds: tuple[str, ...]
    numbers: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        """Whether `other`, which came, is as this, which was recorded."""
        if not isinstance(other, _Numbers) or self.kinds != other.kinds:
            return False
        return self.numbers == other.numbers or (not any(self.numbers) and all(other.numbers))

    __hash__ = None  # type: ignore[assignment]


class _Shown:
    """Values as they are compared: with their types, and without what differs from run to run."""

    def __init__(self, shift_ms: int) -> None:
        self._shift_ms = shift_ms

    def plain(self, value: object, key: object = None) -> object:
        if key in ("x-opt-lock-token", "lock-token"):
            return "a lock token"
        if key == "message" and isinstance(value, bytes):
            return message(value, self._shift_ms)
        if key == "sequence-numbers" and isinstance(value, list):
            return _Numbers(tuple(type(it).__name__ for it in value), tuple(value))
        if key == "rule-description":
            return self._numbers(value)  # the recorded broker made longs of integers
        if isinstance(value, str) and _MADE_UP.fullmatch(value) and not isinstance(value, Symbol):
            return "32 hexadecimal digits"
        if key in ("statusDescription", "status-description", "DeadLetterErrorDescription"):
            return "a text"
        if isinstance(value, Described):
            return "described", value.descriptor, self.plain(value.value)
        if isinstance(value, dict):
            return {name: self.plain(inner, name) for name, inner in value.items()}
        if isinstance(value, Array):
            return "array", value.code, [self.plain(inner, key) for inner in value]
        if isinstance(value, list):
            return [self.plain(inner) for inner in value]
        if isinstance(value, Timestamp):
            return _Time(int(value), self._shift_ms)
        if isinstance(value, Symbol):
            return "symbol", str(value)
        return type(value).__name__, value

    def _numbers(self, value: object) -> object:
        if isinstance(value, Described):
            return value.descriptor, self._numbers(value.value)
        if isinstance(value, dict):
            return {name: self._numbers(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._numbers(inner) for inner in value]
        return int(value) if isinstance(value, Int | Long) else self.plain(value)


def _value(payload: bytes) -> object:
    for code, start, _ in sections(payload):
        if code == VALUE:
            return decode(payload, start + 3, typed=True)[0]
    return None


def _tokens(value: object) -> Iterator[UUID]:
    if isinstance(value, UUID):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tokens(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _tokens(inner)
