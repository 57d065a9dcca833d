"""What a file says about entities: queues, topics, subscriptions and rules; and how that differs
from what is there.

An entity is declared with the settings that are named, by Azure's names or Tandem's own
(`extensions.KEYS`); a new one gets the defaults for the rest, of one that is there the rest stays
as it is. Settings are data in the store: a declaration is compared with them, and the difference is
a list of changes that can be shown before it is carried out. Who carries it out is `admin.declared`
(in the broker) and the command line (over the wire).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from tandembus import limits
from tandembus.atom import duration as azure_duration
from tandembus.config import values
from tandembus.config.values import Reader, find_name, show_duration, table, wrong
from tandembus.errors import ArgumentError
from tandembus.extensions import KEYS, PRIORITY_KEYS, RATE_KEYS
from tandembus.names import DEFAULT_RULE, canonical, canonical_rule, canonical_subscription
from tandembus.settings import (
    AZURE_NAMES,
    EntityStatus,
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    extensions_of,
    with_extensions,
)


class Kind(StrEnum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


_SETTINGS: Final[Mapping[Kind, type[Settings]]] = {
    Kind.QUEUE: QueueSettings,
    Kind.TOPIC: TopicSettings,
    Kind.SUBSCRIPTION: SubscriptionSettings,
}
_EXTENSIONS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.QUEUE: tuple(KEYS),
    Kind.TOPIC: RATE_KEYS,
    Kind.SUBSCRIPTION: PRIORITY_KEYS,
}
_NOT_SAID: Final = (
    "priority", "rates", "authorization_rules", "forward_to_scheme", "forward_dead_letters_scheme",
)  # fmt: skip
"""The first two are said by extensions; keys have no place in a file of entities, and forwarding is
said by name."""
FIXED: Final = ("RequiresSession", "RequiresDuplicateDetection", "EnablePartitioning")
"""What cannot be changed any more once the entity is there."""
EMULATOR_MIN_WINDOW_MS: Final = 5_000
"""The emulator takes a shorter history of duplicates than Azure does."""


def _status(value: object, where: str) -> EntityStatus:
    for status in EntityStatus:
        if isinstance(value, str) and value.lower() == status.lower():
            return status
    raise wrong(where, value, f"one of {', '.join(EntityStatus)}")


def _window(value: object, where: str) -> int:
    ms = values.duration(value, where)
    is_emulators = EMULATOR_MIN_WINDOW_MS <= ms < limits.DUPLICATE_WINDOW_MIN_MS
    return limits.DUPLICATE_WINDOW_MIN_MS if is_emulators else ms


def _reader(name: str, default: object) -> Reader:
    """A setting is what its default is."""
    if name == "duplicate_window_ms":
        return _window
    if name.endswith("_ms"):
        return values.duration
    match default:
        case EntityStatus():
            return _status
        case bool():
            return values.boolean
        case int():
            return values.integer
    return values.text_or_none


@dataclass(frozen=True, slots=True)
class Setting:
    """One that has a name of Azure's."""

    field: str
    read: Reader

    @property
    def is_duration(self) -> bool:
        return self.field.endswith("_ms")

    @property
    def is_boolean(self) -> bool:
        return self.read is values.boolean


def _settings_of(kind: Kind) -> dict[str, Setting]:
    plain = _SETTINGS[kind]()
    return {
        AZURE_NAMES[field.name]: Setting(
            field.name, _reader(field.name, getattr(plain, field.name))
        )
        for field in fields(plain)
        if field.name not in _NOT_SAID
    }


SETTINGS: Final[Mapping[Kind, Mapping[str, Setting]]] = {kind: _settings_of(kind) for kind in Kind}
"""By Azure's name."""


def names_of(kind: Kind) -> tuple[str, ...]:
    """Every setting that such an entity has."""
    return (*SETTINGS[kind], *_EXTENSIONS[kind])


# --- declared -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeclaredRule:
    name: str
    filter: str | Mapping[str, object] = "1=1"
    """SQL; or what must be equal, by the name of the field in `CORRELATION`, and `properties`."""
    action: str | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    kind: Kind
    path: str
    settings: Settings
    given: frozenset[str] = frozenset()
    """The settings that were named."""
    rules: tuple[DeclaredRule, ...] | None = None
    """Of a subscription; None: not named, so what is there stays, or the default is made."""

    def value(self, name: str) -> object:
        """Of a setting."""
        setting = SETTINGS[self.kind].get(name)
        if setting is None:
            return extensions_of(self.settings).get(name)
        return getattr(self.settings, setting.field)

    def shown(self, name: str) -> str:
        """For people; also what can be read again."""
        value = self.value(name)
        setting = SETTINGS[self.kind].get(name)
        if setting is not None and setting.is_duration:
            return show_duration(int(str(value)))
        return shown(value)

    def wire(self, name: str) -> str | int | bool | None:
        """As Azure's descriptions have it."""
        value = self.value(name)
        setting = SETTINGS[self.kind].get(name)
        if setting is not None and setting.is_duration:
            return azure_duration(int(str(value)))
        if isinstance(value, EntityStatus):
            return value.value
        assert value is None or isinstance(value, str | int)
        return value


def shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
    return str(value)


def declare(
    kind: Kind, path: str, said: Mapping[str, object], where: str = "", rules: object = None
) -> Declared:
    """An entity with the settings that are named. Raises ArgumentError, with the place."""
    known = names_of(kind)
    named: dict[str, object] = {}
    plain: dict[str, Any] = {}
    for each, value in said.items():
        name = find_name(each, known, where or path)
        place = f"{where}.{name}" if where else name
        setting = SETTINGS[kind].get(name)
        if setting is not None:
            plain[setting.field] = setting.read(value, place)
        named[name] = value
    try:
        settings: Any = _SETTINGS[kind](**plain)
        extended = {name: value for name, value in named.items() if name in KEYS}
        if extended:
            settings = with_extensions(settings, extended)
        settings = settings.validate()
    except ArgumentError as error:
        raise ArgumentError(
            f"{where or path}: {str(error).removeprefix('SubCode=40000. ')}"
        ) from None
    return Declared(
        kind,
        path,
        settings,
        frozenset(named),
        None if rules is None else _rules(rules, f"{where}.rules"),
    )


def read_entities(tree: Mapping[str, object], where: str) -> tuple[Declared, ...]:
    """`{queues: {name: {setting: value}}, topics: {name: {setting: value, subscriptions: {…}}}}`,
    with `rules: {name: {filter: …, action: …}}` in a subscription."""
    found: list[Declared] = []
    for key, kind in (("queues", Kind.QUEUE), ("topics", Kind.TOPIC)):
        for name, said in table(tree.get(key, {}), f"{where}.{key}").items():
            place = f"{where}.{key}.{name}"
            settings = dict(table(said, place))
            canonical(name)  # the name itself keeps its case
            below = _taken(settings, "subscriptions") if kind is Kind.TOPIC else None
            found.append(declare(kind, name, settings, place))
            if below is not None:
                found += _subscriptions(found[-1].path, below, f"{place}.subscriptions")
    _check_once(found)
    return tuple(found)


def _subscriptions(topic: str, tree: object, where: str) -> Iterable[Declared]:
    for name, said in table(tree, where).items():
        place = f"{where}.{name}"
        settings = dict(table(said, place))
        rules = _taken(settings, "rules")
        canonical_subscription(name)
        path = f"{topic}/Subscriptions/{name}"
        yield declare(Kind.SUBSCRIPTION, path, settings, place, rules)


def _taken(settings: dict[str, object], word: str) -> object:
    """What stands in a table under a word that is no setting; None: nothing."""
    name = next((each for each in settings if values.plain(each) == word), None)
    return None if name is None else settings.pop(name)


def _check_once(found: Iterable[Declared]) -> None:
    seen: set[str] = set()
    for each in found:
        if each.path.lower() in seen:
            raise ArgumentError(f"'{each.path}' is declared twice.")
        seen.add(each.path.lower())


# --- rules ----------------------------------------------------------------------------------------

CORRELATION: Final = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)
"""The fields that a correlation filter can name, beside `properties`."""


def _rules(tree: object, where: str) -> tuple[DeclaredRule, ...]:
    return tuple(
        read_rule(name, table(said, f"{where}.{name}"), f"{where}.{name}")
        for name, said in table(tree, where).items()
    )


def read_rule(name: str, said: Mapping[str, object], where: str) -> DeclaredRule:
    found: dict[str, object] = {}
    for each, value in said.items():
        found[find_name(each, ("filter", "action"), where, "part of a rule")] = value
    filter_ = found.get("filter", "1=1")
    if not isinstance(filter_, str):
        filter_ = correlation(table(filter_, f"{where}.filter"), f"{where}.filter")
    action = values.text_or_none(found.get("action"), f"{where}.action")
    canonical_rule(name)
    return DeclaredRule(name, filter_, action)


def correlation(said: Mapping[str, object], where: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for each, value in said.items():
        name = find_name(each, (*CORRELATION, "subject", "properties"), where, "field of a message")
        if name == "properties":
            found[name] = {**table(value, f"{where}.{name}")}
        else:
            found["label" if name == "subject" else name] = values.text(value, f"{where}.{name}")
    if not found:
        raise ArgumentError(f"{where}: a correlation filter names one field at least")
    return found


# --- differences ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """One step from what is there to what is declared."""

    verb: str
    """create, update, delete; cannot: it is fixed at creation."""
    what: str
    """queue, topic, subscription, rule."""
    path: str
    details: tuple[tuple[str, str, str], ...] = ()
    """Setting, what it is, what it shall be."""
    entity: Declared | None = None
    rule: DeclaredRule | None = None

    @property
    def is_safe(self) -> bool:
        """Whether it only adds."""
        return self.verb == "create"

    def __str__(self) -> str:
        lines = [f"{self.verb} {self.what} {self.path}"]
        for name, old, new in self.details:
            lines.append(f"    {name}: {new}" if not old else f"    {name}: {old} → {new}")
        return "\n".join(lines)


def changes(
    there: Iterable[Declared], wanted: Iterable[Declared], *, deletes: bool = False
) -> list[Change]:
    """From what is there to what is wanted, in an order that works. `deletes`: also what is there
    and not declared."""
    by_path = {each.path.lower(): each for each in there}
    found: list[Change] = []
    named: set[str] = set()
    for each in wanted:
        named.add(each.path.lower())
        old = by_path.get(each.path.lower())
        if old is None:
            details = tuple((name, "", each.shown(name)) for name in sorted(each.given))
            found.append(Change("create", each.kind, each.path, details, each))
            found += [_rule_change("create", each, rule) for rule in each.rules or ()]
        elif old.kind is not each.kind:
            raise ArgumentError(f"'{each.path}' is a {old.kind}, and declared as a {each.kind}.")
        else:
            found += _updates(old, each, deletes=deletes)
    if deletes:
        gone = [each for path, each in by_path.items() if path not in named]
        topics = {each.path.lower() for each in gone if each.kind is Kind.TOPIC}
        found += [
            Change("delete", each.kind, each.path)
            for each in gone
            if each.kind is not Kind.SUBSCRIPTION
            or each.path.lower().rpartition("/subscriptions/")[0] not in topics
        ]
    return found


def _updates(old: Declared, new: Declared, *, deletes: bool) -> list[Change]:
    differing = [
        (name, old.shown(name), new.shown(name))
        for name in sorted(new.given)
        if old.value(name) != new.value(name)
    ]
    fixed = tuple(each for each in differing if each[0] in FIXED)
    loose = tuple(each for each in differing if each[0] not in FIXED)
    found = []
    if fixed:
        found.append(Change("cannot", new.kind, new.path, fixed, new))
    if loose:
        found.append(Change("update", new.kind, new.path, loose, merged(old, new)))
    if new.rules is not None:
        found += _rule_changes(old, new, deletes=deletes)
    return found


def merged(old: Declared, new: Declared) -> Declared:
    """What is there, with what is named changed; but nothing that is fixed."""
    loose = [name for name in new.given if name not in FIXED]
    plain = {
        SETTINGS[new.kind][name].field: new.value(name)
        for name in loose
        if name in SETTINGS[new.kind]
    }
    settings: Any = replace(old.settings, **plain)  # type: ignore[arg-type]
    named = {name: new.value(name) for name in loose if name in KEYS}
    if named:
        settings = with_extensions(settings, {**extensions_of(old.settings), **named})
    return replace(new, path=old.path, settings=settings, given=frozenset(loose))


def _rule_change(verb: str, entity: Declared, rule: DeclaredRule, old: str = "") -> Change:
    details = (("filter", old, _shown_rule(rule)),)
    return Change(verb, "rule", f"{entity.path}/Rules/{rule.name}", details, entity, rule)


def _rule_changes(old: Declared, new: Declared, *, deletes: bool) -> list[Change]:
    there = {rule.name.lower(): rule for rule in old.rules or ()}
    found = []
    for rule in new.rules or ():
        before = there.pop(rule.name.lower(), None)
        if before is None:
            found.append(_rule_change("create", new, rule))
        elif (before.filter, before.action) != (rule.filter, rule.action):
            found.append(_rule_change("update", new, rule, _shown_rule(before)))
    for rule in there.values():
        if deletes:
            path = f"{old.path}/Rules/{rule.name}"
            found.append(Change("delete", "rule", path, (), old, rule))
    return found


def _shown_rule(rule: DeclaredRule) -> str:
    if isinstance(rule.filter, str):
        text = rule.filter
    else:
        pairs = [(name, value) for name, value in rule.filter.items() if name != "properties"]
        properties = rule.filter.get("properties")
        if isinstance(properties, Mapping):
            pairs += properties.items()
        text = " AND ".join(f"{name} = {value!r}" for name, value in pairs)
    return text if rule.action is None else f"{text} | {rule.action}"


def has_default_rule(entity: Declared) -> bool:
    """Whether a new subscription keeps the rule that takes everything."""
    rules = entity.rules
    return rules is None or any(rule.name.lower() == DEFAULT_RULE for rule in rules)
