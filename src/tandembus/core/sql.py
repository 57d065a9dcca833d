"""SQL filters and actions of subscription rules, as the broker uses them.

Here live the two compiled forms and what the statements of an action do. The words are in
`sql_lexer.py`, the grammar in `sql_parser.py`, the meaning in `sql_compile.py`, the types in
`sql_values.py`, LIKE in `sql_like.py`; which copies a subscription gets is `rules.py`. The rule: an
evaluation returns or raises `FilterError`, within `MAX_SQL_STEPS` steps, and touches nothing
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, TypeAlias

from tandembus.core.sql_compile import Compiler, Test
from tandembus.core.sql_context import Context
from tandembus.core.sql_like import Meter
from tandembus.core.sql_parser import parse_action, parse_filter
from tandembus.core.sql_tree import (
    RemoveStatement,
    SetStatement,
    Statement,
    SystemProperty,
    UserProperty,
)
from tandembus.core.sql_values import Family, double, family_of
from tandembus.errors import FilterError
from tandembus.limits import MAX_MESSAGE_ID, MAX_PARTITION_KEY, MAX_SESSION_ID
from tandembus.model import Edits, Symbol, Value

__all__ = ["Action", "Context", "Filter", "compile_action", "compile_filter"]


class Filter:
    """A compiled SQL filter."""

    __slots__ = ("_meter", "_size", "_test")

    def __init__(self, test: Test, size: int, meter: Meter) -> None:
        self._test = test
        self._size = size
        self._meter = meter

    def matches(self, context: Context) -> bool:
        """Whether the message is selected: only if the filter is true, neither false nor
        unknown."""
        self._meter.steps = self._size
        return self._test(context) is True

    def evaluate(self, context: Context) -> bool | None:
        """The three-valued result; None: unknown."""
        self._meter.steps = self._size
        return self._test(context)

    @property
    def steps(self) -> int:
        """What the last evaluation cost, at most `MAX_SQL_STEPS` unless it raised."""
        return self._meter.steps


class Action:
    """A compiled SQL action."""

    __slots__ = ("_meter", "_size", "_statements")

    def __init__(self, statements: tuple[_Run, ...], size: int, meter: Meter) -> None:
        self._statements = statements
        self._size = size
        self._meter = meter

    def apply(self, context: Context) -> Edits:
        """What the action does to the message, to be laid over `context.edits`. The context itself
        stays as it is."""
        self._meter.steps = self._size
        work = _Work(context)
        for run in self._statements:
            run(work)
        return work.edits()

    @property
    def steps(self) -> int:
        """What the last application cost."""
        return self._meter.steps


def compile_filter(text: str, parameters: Mapping[str, Value] | None = None) -> Filter:
    """The filter that `text` writes; `FilterError` if it cannot be one."""
    parsed = parse_filter(text, parameters or {})
    meter = Meter()
    return Filter(Compiler(meter).test(parsed.condition), parsed.tokens, meter)


def compile_action(text: str, parameters: Mapping[str, Value] | None = None) -> Action:
    """The action that `text` writes; `FilterError` if it cannot be one."""
    parsed = parse_action(text, parameters or {})
    meter = Meter()
    compiler = Compiler(meter)
    statements = tuple(_statement(compiler, statement) for statement in parsed.statements)
    return Action(statements, parsed.tokens, meter)


# --- actions --------------------------------------------------------------------------------------

_TEXT_LIMITS: Final[Mapping[str, int]] = {
    "MessageId": MAX_MESSAGE_ID,
    "SessionId": MAX_SESSION_ID,
    "ReplyToSessionId": MAX_SESSION_ID,
    "PartitionKey": MAX_PARTITION_KEY,
}


class _Work:
    """A message while an action runs: what the statements so far have made of it."""

    __slots__ = ("_laid", "_original", "_properties", "_set", "_system", "context")

    def __init__(self, context: Context) -> None:
        self._original = context.properties
        self._properties = dict(self._original)
        self._laid = dict(context.edits.system)
        self._set: dict[str, Value] = {}
        self._system: dict[str, Value] = {}
        # The context reads these two while the statements write them.
        edits = Edits(system=self._laid)
        self.context = Context(context.message, context.facts, edits, context.new_id)
        self.context._properties = self._properties

    def set_user(self, name: str, value: Value) -> None:
        found = self.context.find(name, name.casefold())
        spelled = name if found is None else found
        if found is None:
            self.context._folded = None
        else:
            value = _converted(value, self._properties[found])
        self._properties[spelled] = self._set[spelled] = value

    def remove_user(self, name: str) -> None:
        found = self.context.find(name, name.casefold())
        if found is not None:
            del self._properties[found]
            self._set.pop(found, None)
            self.context._folded = None

    def set_system(self, name: str, value: Value) -> None:
        self._laid[name] = self._system[name] = _system_value(name, value)

    def edits(self) -> Edits:
        removed = frozenset(name for name in self._original if name not in self._properties)
        return Edits(self._set, removed, self._system)


_Run: TypeAlias = Callable[[_Work], None]


def _statement(compiler: Compiler, statement: Statement) -> _Run:
    match statement:
        case SetStatement(UserProperty(name), expression):
            read = compiler.read(expression)
            return lambda work: work.set_user(name, read(work.context))
        case SetStatement(SystemProperty(name), expression):
            read = compiler.read(expression)
            return lambda work: work.set_system(name, read(work.context))
        case RemoveStatement(UserProperty(name)):
            return lambda work: work.remove_user(name)
        case _:
            raise AssertionError(statement)


def _converted(value: Value, existing: Value) -> Value:
    """`value` in the type of the property that it replaces, where the conversion is implicit (an
    integer widens, strings and symbols are one); otherwise as it is."""
    match family_of(existing), family_of(value):
        case Family.DOUBLE, Family.INTEGER | Family.DECIMAL:
            return double(value)
        case Family.DECIMAL, Family.INTEGER:
            assert isinstance(value, int)
            return Decimal(value)
        case Family.TEXT, Family.TEXT:
            assert isinstance(value, str)
            return Symbol(value) if isinstance(existing, Symbol) else str(value)
        case _:
            return value


def _system_value(name: str, value: Value) -> Value:
    """`value` as system property `name` takes it; None clears."""
    if value is None:
        return None
    family = family_of(value)
    match name:
        case "TimeToLive" if family is Family.DURATION:
            return value
        case "ScheduledEnqueueTimeUtc" if family is Family.DATE:
            return value
        case "TimeToLive" | "ScheduledEnqueueTimeUtc":
            raise FilterError(f"System property {name} does not take a value of that type.")
    if family not in (Family.TEXT, Family.INTEGER, Family.UUID):
        raise FilterError(f"System property {name} takes a string.")
    text = str(value)
    limit = _TEXT_LIMITS.get(name)
    if limit is not None and len(text) > limit:
        raise FilterError(f"System property {name} is longer than {limit} characters.")
    return text
