"""The tree of a parsed SQL filter or action, and the names of the system properties.

Here live values only. `sql_parser.py` makes them, `sql_compile.py` and `sql.py` say what they mean.
The rule: a tree that exists is valid. What can be refused was refused when it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tandembus.model import Value

_SYSTEM_NAMES: Final = (
    "MessageId",
    "CorrelationId",
    "ContentType",
    "Label",
    "To",
    "ReplyTo",
    "SessionId",
    "ReplyToSessionId",
    "PartitionKey",
    "ViaPartitionKey",
    "TimeToLive",
    "EnqueuedTimeUtc",
    "ScheduledEnqueueTimeUtc",
    "ExpiresAtUtc",
    "SequenceNumber",
    "EnqueuedSequenceNumber",
    "DeliveryCount",
    "DeadLetterSource",
    "LockedUntilUtc",
    "LockToken",
    "State",
    "Size",
)
SYSTEM_PROPERTIES: Final[Mapping[str, str]] = {
    **{name.casefold(): name for name in _SYSTEM_NAMES},
    "subject": "Label",
}
"""Service Bus's name of each system property, by its case-folded name."""

WRITABLE_PROPERTIES: Final = frozenset(
    (
        "MessageId",
        "CorrelationId",
        "ContentType",
        "Label",
        "To",
        "ReplyTo",
        "SessionId",
        "ReplyToSessionId",
        "TimeToLive",
        "PartitionKey",
        "ScheduledEnqueueTimeUtc",
    )
)
"""What an action may set."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of the text or the value of a parameter."""

    value: Value


@dataclass(frozen=True, slots=True)
class UserProperty:
    name: str


@dataclass(frozen=True, slots=True)
class SystemProperty:
    name: str
    """As Service Bus spells it."""


@dataclass(frozen=True, slots=True)
class PropertyByName:
    """`property(expression)`."""

    name: Expression


@dataclass(frozen=True, slots=True)
class NewId:
    """`newid()`."""


@dataclass(frozen=True, slots=True)
class Signed:
    sign: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operators of one precedence, from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


Expression: TypeAlias = (
    Constant | UserProperty | SystemProperty | PropertyByName | NewId | Signed | Arithmetic
)


@dataclass(frozen=True, slots=True)
class Comparison:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Expression


@dataclass(frozen=True, slots=True)
class In:
    left: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Like:
    left: Expression
    pattern: Expression
    escape: Expression | None


@dataclass(frozen=True, slots=True)
class Exists:
    operand: UserProperty | SystemProperty


@dataclass(frozen=True, slots=True)
class Not:
    operand: Condition


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


Predicate: TypeAlias = Comparison | IsNull | In | Like | Exists | Not | And | Or
Condition: TypeAlias = Predicate | Expression
"""A predicate, or a value that may be a boolean."""


@dataclass(frozen=True, slots=True)
class SetStatement:
    target: UserProperty | SystemProperty
    expression: Expression


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    target: UserProperty


Statement: TypeAlias = SetStatement | RemoveStatement
