"""Performatives and the composite values inside them, to bytes and back.

Here live open … close (AMQP 1.0 §2.7), the SASL frames (§5.3.3), source, target and the delivery
states (§3.4, §3.5), and those of transactions (§4.5): one frozen class each, and one table that
reads and writes them all. Transfer, disposition and flow, of which there are many, are read and
written by hand in `fast`; what any of them causes lives in `connection`, `session` and `link`.

The rule: any bytes give a value or `ProtocolError`. Descriptors are matched whole, numeric and
symbolic; a field of the wrong type or a missing mandatory field is refused; a field left out, or
null, has the default of the standard. Nested values keep their types, so they can be echoed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, TypeAlias

from tandembus.amqp.types import (
    NULL,
    Array,
    Buffer,
    Described,
    decode,
    encode,
    encode_array,
    encode_binary,
    encode_boolean,
    encode_composite,
    encode_described,
    encode_list,
    encode_string,
    encode_symbol,
    encode_ubyte,
    encode_uint,
    encode_ulong,
    encode_ushort,
)
from tandembus.errors import ProtocolError, TandemError
from tandembus.model import Symbol

UINT_MAX: Final = 0xFFFF_FFFF
SENDER: Final = False
RECEIVER: Final = True
"""The role of a link's end. (§2.8.1)"""

UNSETTLED: Final = 0
SETTLED: Final = 1
MIXED: Final = 2
"""snd-settle-mode (§2.8.2). Service Bus: settled means receive-and-delete."""
FIRST: Final = 0
SECOND: Final = 1
"""rcv-settle-mode. (§2.8.3)"""

Properties: TypeAlias = Mapping[Any, object]


RETRY_AFTER: Final = Symbol("x-tandem-retry-after-ms")
"""In the info of an error: how long to wait before it is tried again (docs/wire-extensions.md)."""


@dataclass(frozen=True, slots=True)
class Error:
    """§2.8.14. Always written with all three fields: azure-servicebus indexes them blindly."""

    condition: str
    description: str | None = None
    info: Properties | None = None

    @classmethod
    def of(cls, error: TandemError) -> Error:
        return cls(error.condition, str(error))

    def short(self) -> Error:
        """What fits even the smallest frame."""
        return Error(self.condition[:100], (self.description or "")[:60])


# --- delivery states (§3.4, §4.5) -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    section_number: int
    section_offset: int


@dataclass(frozen=True, slots=True)
class Accepted:
    pass


@dataclass(frozen=True, slots=True)
class Rejected:
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Released:
    pass


@dataclass(frozen=True, slots=True)
class Modified:
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Properties | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    txn_id: bytes


@dataclass(frozen=True, slots=True)
class TransactionalState:
    txn_id: bytes
    outcome: Outcome | None = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Declared
DeliveryState: TypeAlias = Outcome | Received | TransactionalState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


# --- nodes and transactions -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    address: str | None = None
    durable: int = 0
    expiry_policy: str = Symbol("session-end")
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Properties | None = None
    distribution_mode: str | None = None
    filter: Properties | None = None
    default_outcome: object = None
    outcomes: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    address: str | None = None
    durable: int = 0
    expiry_policy: str = Symbol("session-end")
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Properties | None = None
    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The target of a link on which transactions are declared and discharged."""

    capabilities: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Declare:
    global_id: object = None


@dataclass(frozen=True, slots=True)
class Discharge:
    txn_id: bytes
    fail: bool = False


# --- performatives --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    container_id: str
    hostname: str | None = None
    max_frame_size: int = UINT_MAX
    channel_max: int = 65535
    idle_time_out: int | None = None
    outgoing_locales: tuple[str, ...] | None = None
    incoming_locales: tuple[str, ...] | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = UINT_MAX
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    name: str
    handle: int
    role: bool
    snd_settle_mode: int = MIXED
    rcv_settle_mode: int = FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Properties | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: tuple[str, ...] | None = None
    desired_capabilities: tuple[str, ...] | None = None
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Detach:
    handle: int
    closed: bool = False
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class End:
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Close:
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class SaslMechanisms:
    sasl_server_mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaslInit:
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None

    def __repr__(self) -> str:
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"  # no password


@dataclass(frozen=True, slots=True)
class SaslChallenge:
    challenge: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SaslResponse:
    response: bytes


@dataclass(frozen=True, slots=True)
class SaslOutcome:
    code: int
    additional_data: bytes | None = None


OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
ERROR: Final = 0x1D
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

# Descriptor, class, symbolic name, and the kind of each field in order; `!` marks mandatory ones.
_NODE: Final = "string uint symbol uint boolean map"
_TABLE: Final[tuple[tuple[int, type[Any], str, str], ...]] = (
    (OPEN, Open, "open", "string! string uint ushort uint symbols symbols symbols symbols map"),
    (BEGIN, Begin, "begin", "ushort uint! uint! uint! uint symbols symbols map"),
    (ATTACH, Attach, "attach",
     "string! uint! boolean! ubyte ubyte source target map boolean uint ulong symbols symbols map"),
    (DETACH, Detach, "detach", "uint! boolean error"),
    (END, End, "end", "error"),
    (CLOSE, Close, "close", "error"),
    (ERROR, Error, "error", "symbol! string map"),
    (0x23, Received, "received", "uint! ulong!"),
    (0x24, Accepted, "accepted", ""),
    (0x25, Rejected, "rejected", "error"),
    (0x26, Released, "released", ""),
    (0x27, Modified, "modified", "boolean boolean map"),
    (0x28, Source, "source", f"{_NODE} symbol map any symbols symbols"),
    (0x29, Target, "target", f"{_NODE} symbols"),
    (0x30, Coordinator, "coordinator", "symbols"),
    (0x31, Declare, "declare", "any"),
    (0x32, Discharge, "discharge", "binary! boolean"),
    (0x33, Declared, "declared", "binary!"),
    (0x34, TransactionalState, "transactional-state", "binary! outcome"),
    (SASL_MECHANISMS, SaslMechanisms, "sasl-mechanisms", "symbols!"),
    (SASL_INIT, SaslInit, "sasl-init", "symbol! binary string"),
    (SASL_CHALLENGE, SaslChallenge, "sasl-challenge", "binary!"),
    (SASL_RESPONSE, SaslResponse, "sasl-response", "binary!"),
    (SASL_OUTCOME, SaslOutcome, "sasl-outcome", "ubyte! binary"),
)  # fmt: skip

SYMBOLIC: Final = {f"amqp:{name}:list": code for code, _, name, _ in _TABLE} | {
    "amqp:flow:list": FLOW, "amqp:transfer:list": TRANSFER, "amqp:disposition:list": DISPOSITION,
}  # fmt: skip

_NAMES: Final = {code: name for code, _, name, _ in _TABLE}
_OUTCOMES: Final = (0x24, 0x25, 0x26, 0x27, 0x33)
_NESTED: Final = {
    "error": (ERROR,),
    "source": (0x28,),
    "target": (0x29, 0x30),
    "outcome": _OUTCOMES,
    "state": (0x23, 0x34, *_OUTCOMES),
}


# --- reading --------------------------------------------------------------------------------------


def _integer(most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, int) and type(value) is not bool and 0 <= value <= most


_ACCEPTS: Final[dict[str, Callable[[object], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "symbol": lambda value: isinstance(value, str),
    "binary": lambda value: isinstance(value, bytes),
    "boolean": lambda value: type(value) is bool,
    "ubyte": _integer(0xFF),
    "ushort": _integer(0xFFFF),
    "uint": _integer(UINT_MAX),
    "ulong": _integer(0xFFFF_FFFF_FFFF_FFFF),
    "map": lambda value: isinstance(value, dict),
    "any": lambda _: True,
}


def _read(kind: str, value: object) -> object:
    if kind in _NESTED:
        if isinstance(value, Described):
            code = code_of(value.descriptor)
            if code in _NESTED[kind]:
                return _build(code, value.value)
    elif kind == "symbols":  # multiple="true": one value, or an array of them (§1.4)
        items = value if isinstance(value, Array) else [value]
        if all(isinstance(item, str) for item in items):
            return tuple(str(item) for item in items)
    elif _ACCEPTS[kind](value):
        return value
    raise ProtocolError(f"A field that holds a {kind} holds something else.")


def _build(code: int, items: object) -> Any:
    made, layout = _LAYOUTS[code]
    if not isinstance(items, list):
        raise ProtocolError(f"{_NAMES[code]} is not a list.")
    if len(items) > len(layout):
        raise ProtocolError(f"{_NAMES[code]} has too many fields.")
    given = {}
    for (name, kind, is_mandatory), value in zip(
        layout, items + [None] * (len(layout) - len(items)), strict=True
    ):
        if value is not None:
            given[name] = _read(kind, value)
        elif is_mandatory:
            raise ProtocolError(f"{_NAMES[code]} lacks its {name.replace('_', '-')}.")
    if code == BEGIN:
        given.setdefault("remote_channel", None)
    return made(**given)


def code_of(descriptor: int | str) -> int:
    """The number of a descriptor, also of a symbolic one; 0 if it is not known here."""
    if isinstance(descriptor, str):
        return SYMBOLIC.get(descriptor, 0)
    return descriptor


def decode_performative(buffer: Buffer, at: int = 0) -> tuple[Any, int]:
    """The performative or other composite value at `at`, and where it ends.

    Transfer, disposition and flow are not read here, but in `fast`.
    """
    value, end = decode(buffer, at, typed=True)
    if not isinstance(value, Described):
        raise ProtocolError("A frame does not begin with a performative.")
    code = code_of(value.descriptor)
    if code not in _LAYOUTS:
        raise ProtocolError("A performative is not known.")
    return _build(code, value.value), end


def decode_whole(buffer: bytes, at: int, end: int) -> Any:
    """The performative that must fill `buffer` from `at` to `end`."""
    performative, size = decode_performative(buffer[at:end])
    if size != end - at:
        raise ProtocolError("Bytes follow a performative.")
    return performative


def state_of(value: object) -> DeliveryState:
    """A decoded value as a delivery state."""
    state: DeliveryState = _read("state", value)  # type: ignore[assignment]
    return state


# --- writing --------------------------------------------------------------------------------------


def encode_error(error: Error) -> bytes:
    """All three fields, nulls included. (WIRE: point 10)"""
    parts = [
        encode_symbol(error.condition.encode("ascii", "replace").decode()),
        NULL if error.description is None else encode_string(error.description),
        NULL if error.info is None else encode(dict(error.info)),
    ]
    return encode_described(ERROR, encode_list(parts))


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "string": encode_string,
    "symbol": encode_symbol,
    "binary": encode_binary,
    "boolean": encode_boolean,
    "ubyte": encode_ubyte,
    "ushort": encode_ushort,
    "uint": encode_uint,
    "ulong": encode_ulong,
    "map": lambda value: encode(dict(value)),
    "any": encode,
    "symbols": lambda items: encode_array(tuple(Symbol(item) for item in items), 0xA3),
    "error": encode_error,
    **dict.fromkeys(
        ("source", "target", "outcome", "state"), lambda value: encode_performative(value)
    ),
}


def encode_performative(value: Any) -> bytes:
    """Any value of this module. Fields that have their default at the end of the list are left
    out, as the standard allows for all but errors."""
    if type(value) is Error:
        return encode_error(value)
    code, layout = _WRITE_LAYOUTS[type(value)]
    parts = []
    used = 0
    for place, (name, write, default) in enumerate(layout, 1):
        field = getattr(value, name)
        if field is None:
            parts.append(NULL)
        else:
            parts.append(write(field))
            if field != default:
                used = place
    return encode_composite(code, parts[:used])


def _layouts() -> tuple[
    dict[int, tuple[type[Any], list[tuple[str, str, bool]]]],
    dict[type[Any], tuple[int, list[tuple[str, Callable[[Any], bytes], object]]]],
]:
    reading = {}
    writing = {}
    for code, made, _, kinds in _TABLE:
        names = [(field.name, field.default) for field in fields(made)]
        plain = [kind.rstrip("!") for kind in kinds.split()]
        reading[code] = (
            made,
            [
                (name, kind, given.endswith("!"))
                for (name, _), kind, given in zip(names, plain, kinds.split(), strict=True)
            ],
        )
        writing[made] = (
            code,
            [
                (name, _WRITERS[kind], MISSING if default is MISSING else default)
                for (name, default), kind in zip(names, plain, strict=True)
            ],
        )
    return reading, writing


_LAYOUTS, _WRITE_LAYOUTS = _layouts()
