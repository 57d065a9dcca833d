"""Rules of a subscription: which messages it takes, in how many copies, and how they are changed.

Here live the descriptions of filters and actions (what is stored and shown), correlation filters,
and the evaluation of all rules of one subscription. The SQL language is `sql.py`; that a copy is
stored or dead-lettered is the topic's work. The rule: rules without an action are one OR and give
one plain copy; each matching rule with an action gives a copy of its own, which says its rule's
name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never

from tandembus.changes import value_from_json, value_to_json
from tandembus.core.sql import Action, Context, compile_action, compile_filter
from tandembus.core.sql_values import equal
from tandembus.errors import ArgumentError, EntityExistsError, EntityNotFoundError, FilterError
from tandembus.limits import MAX_RULE_NAME
from tandembus.model import NO_EDITS, Edits, Millis, Value, as_compared

DEFAULT_RULE_NAME: Final = "$Default"
RULE_NAME_PROPERTY: Final = "RuleName"
"""The application property that a copy made by an action carries (Service Bus)."""

# --- descriptions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Takes every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Takes none."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """By name, with or without the @."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Every field that is set (not None) must equal the message's, and every property too. One with
    nothing set takes every message."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SqlAction:
    expression: str
    parameters: Mapping[str, Value] = field(default_factory=dict)


RuleFilter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it was asked for. That its SQL can be parsed is found by `RuleSet`."""

    name: str
    filter: RuleFilter
    action: SqlAction | None
    created_ms: Millis
    written: Mapping[str, str] = field(default_factory=dict)
    """How a value was written where that is more than its meaning (a time without a zone): the
    text, by `filter/name` or `action/name`. Only for showing the rule again."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_RULE_NAME:
            raise ArgumentError(f"A rule's name has 1 to {MAX_RULE_NAME} characters.")
        if "/" in self.name or "\\" in self.name:
            raise ArgumentError(f"The rule's name '{self.name}' has a slash.")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "filter": _filter_to_json(self.filter),
            "action": None if self.action is None else _sql_to_json(self.action),
            "created_ms": self.created_ms,
            **({"written": dict(self.written)} if self.written else {}),
        }

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Rule:
        action = tree["action"]
        return Rule(
            tree["name"],
            _filter_from_json(tree["filter"]),
            None if action is None else SqlAction(**_sql_from_json(action)),
            tree["created_ms"],
            tree.get("written", {}),
        )


def default_rule(created_ms: Millis) -> Rule:
    """What a new subscription has if it asks for nothing else."""
    return Rule(DEFAULT_RULE_NAME, TrueFilter(), None, created_ms)


def _filter_to_json(description: RuleFilter) -> dict[str, Any]:
    match description:
        case TrueFilter():
            return {"kind": "true"}
        case FalseFilter():
            return {"kind": "false"}
        case SqlFilter():
            return {"kind": "sql", **_sql_to_json(description)}
        case CorrelationFilter():
            fields = ((name, getattr(description, name)) for name in _CORRELATION_FIELDS)
            return {
                "kind": "correlation",
                **{name: value for name, value in fields if value is not None},
                "properties": _values_to_json(description.properties),
            }
        case _:
            assert_never(description)


def _filter_from_json(tree: Mapping[str, Any]) -> RuleFilter:
    match tree["kind"]:
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "sql":
            return SqlFilter(**_sql_from_json(tree))
        case "correlation":
            fields = {name: tree.get(name) for name in _CORRELATION_FIELDS}
            return CorrelationFilter(**fields, properties=_values_from_json(tree["properties"]))
        case kind:
            raise ArgumentError(f"There is no filter of kind '{kind}'.")


def _sql_to_json(description: SqlFilter | SqlAction) -> dict[str, Any]:
    return {
        "expression": description.expression,
        "parameters": _values_to_json(description.parameters),
    }


def _sql_from_json(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {"expression": tree["expression"], "parameters": _values_from_json(tree["parameters"])}


def _values_to_json(values: Mapping[str, Value]) -> dict[str, Any]:
    return {name: value_to_json(value) for name, value in values.items()}


def _values_from_json(tree: Mapping[str, Any]) -> dict[str, Value]:
    return {name: value_from_json(value) for name, value in tree.items()}


# --- evaluation -----------------------------------------------------------------------------------

_CORRELATION_FIELDS: Final[Mapping[str, str]] = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}
"""The fields of a correlation filter, and the system property that each is compared with."""

_Matches: TypeAlias = Callable[[Context], bool]


@dataclass(frozen=True, slots=True)
class Selection:
    """What one subscription takes of a message."""

    plain: bool
    """Whether a rule without action matched: one copy, as it is."""
    copies: tuple[tuple[str, Edits], ...]
    """One copy more for each matching rule with an action: the rule's name, and what the action
    does,
    `RuleName` included."""
    failed: str | None
    """What the first filter or action that raised has said. Such a rule gives no copy; whether the
    message is dead-lettered is a setting of the subscription."""


NOTHING: Final = Selection(plain=False, copies=(), failed=None)
ONE_PLAIN_COPY: Final = Selection(plain=True, copies=(), failed=None)


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: Rule
    matches: _Matches | None
    """None: every message matches."""
    action: Action | None
    named: Edits
    """What every copy of the rule's action carries on top."""


def _compile(rule: Rule) -> _Compiled:
    action = rule.action
    return _Compiled(
        rule,
        _matcher(rule.filter),
        None if action is None else compile_action(action.expression, _compared(action.parameters)),
        NO_EDITS if action is None else Edits({RULE_NAME_PROPERTY: rule.name}),
    )


def _matcher(description: RuleFilter) -> _Matches | None:
    match description:
        case TrueFilter():
            return None
        case FalseFilter():
            return lambda context: False
        case SqlFilter(expression, parameters):
            return compile_filter(expression, _compared(parameters)).matches
        case CorrelationFilter():
            return _correlation(description)
        case _:
            assert_never(description)


def _correlation(description: CorrelationFilter) -> _Matches | None:
    fields = tuple(
        (system_name, getattr(description, name))
        for name, system_name in _CORRELATION_FIELDS.items()
        if getattr(description, name) is not None
    )
    properties = tuple(
        (name, name.casefold(), as_compared(value))
        for name, value in description.properties.items()
    )
    if not fields and not properties:
        return None

    def matches(context: Context) -> bool:
        for system_name, wanted in fields:
            if context.system(system_name) != wanted:
                return False
        for name, folded, value in properties:
            found = context.find(name, folded)
            if found is None or not _is_same(context.properties[found], value):
                return False
        return True

    return matches


def _compared(parameters: Mapping[str, Value]) -> dict[str, Value]:
    return {name: as_compared(value) for name, value in parameters.items()}


def _is_same(found: Value, wanted: Value) -> bool:
    """Equal and of one kind: a number 3 is any number 3, but neither '3' nor true. JavaScript sends
    a message's 3 as an integer and a rule's 3 as a double, and means the same."""
    return found is wanted if found is None or wanted is None else equal(found, wanted)


class RuleSet:
    """The compiled rules of one subscription, in their order. It never changes: adding or removing
    a
    rule gives another set, which shares what was compiled."""

    __slots__ = ("_acting", "_compiled", "_kinds", "_plain", "_takes_all")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        """`FilterError` if a filter or an action cannot be parsed."""
        compiled: dict[str, _Compiled] = {}
        for rule in rules:
            if rule.name.casefold() in compiled:
                raise EntityExistsError(rule.name)
            compiled[rule.name.casefold()] = _compile(rule)
        self._arrange(compiled)

    def _arrange(self, compiled: dict[str, _Compiled]) -> None:
        self._compiled = compiled
        self._kinds = Counter(type(one.rule.filter) for one in compiled.values())
        wanted = [one for one in compiled.values() if not isinstance(one.rule.filter, FalseFilter)]
        plain = [one.matches for one in wanted if one.action is None]
        # A rule that takes everything decides the OR: the others need not be asked.
        self._takes_all = None in plain
        self._plain = () if None in plain else tuple(one for one in plain if one is not None)
        self._acting = tuple((one, one.action) for one in wanted if one.action is not None)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(one.rule for one in self._compiled.values())

    def __len__(self) -> int:
        return len(self._compiled)

    def count(self, kind: type[RuleFilter]) -> int:
        """How many rules have such a filter."""
        return self._kinds.get(kind, 0)

    def __getitem__(self, name: str) -> Rule:
        """`EntityNotFoundError` if there is none of that name."""
        if name not in self:
            raise EntityNotFoundError(name)
        return self._compiled[name.casefold()].rule

    def __contains__(self, name: str) -> bool:
        """Rules' names, like all names of entities, are the same in any case."""
        return name.casefold() in self._compiled

    def adding(self, rule: Rule) -> RuleSet:
        """`EntityExistsError` if there is one of that name."""
        if rule.name in self:
            raise EntityExistsError(rule.name)
        return self._arranged({**self._compiled, rule.name.casefold(): _compile(rule)})

    def replacing(self, rule: Rule) -> RuleSet:
        """The rule of that name as `rule`, in the same place."""
        if rule.name not in self:
            raise EntityNotFoundError(rule.name)
        return self._arranged({**self._compiled, rule.name.casefold(): _compile(rule)})

    def removing(self, name: str) -> RuleSet:
        if name not in self:
            raise EntityNotFoundError(name)
        folded = name.casefold()
        return self._arranged({key: one for key, one in self._compiled.items() if key != folded})

    def _arranged(self, compiled: dict[str, _Compiled]) -> RuleSet:
        rules = RuleSet()
        rules._arrange(compiled)
        return rules

    def evaluate(self, context: Context) -> Selection:
        """What the subscription takes of the message. The OR of the rules without action stops at
        its
        first match, so a filter behind it cannot fail; rules with an action are all evaluated."""
        if not self._acting and self._takes_all:
            return ONE_PLAIN_COPY
        failed: str | None = None
        is_plain = self._takes_all
        for matches in self._plain:
            try:
                if matches(context):
                    is_plain = True
                    break
            except FilterError as error:
                failed = failed or str(error)
        if not self._acting and failed is None:
            return ONE_PLAIN_COPY if is_plain else NOTHING
        copies: list[tuple[str, Edits]] = []
        for one, action in self._acting:
            try:
                if one.matches is None or one.matches(context):
                    copies.append((one.rule.name, action.apply(context).then(one.named)))
            except FilterError as error:
                failed = failed or str(error)
        return Selection(is_plain, tuple(copies), failed)
