"""What an entity can be told that Azure has no word for: priorities and rates.

Here live `PrioritySettings` and `RateSettings` with their ranges, and the one form in which every
road names them, a flat `{key: value}` (`KEYS`): the ATOM element, the lean client, the command line
and a file all call `read_extensions` and `extension_values`. What levels and rates do is `core`.

The rule: every value can be said as a text, and what is shown can be read again. A wrong key or
value is an `ArgumentError` that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.fields import Table, bad, check_range, integer, or_none, read_fields, text
from tandembus.model import Millis

PrioritySource: TypeAlias = Literal["header", "property", "rules"]
PRIORITY_SOURCES: Final[tuple[PrioritySource, ...]] = ("header", "property", "rules")
_AGING_RANGE: Final = (
    f"It must be between {limits.MIN_AGING_MS} ms and {limits.MAX_AGING_MS // limits.DAY_MS} days."
)


@dataclass(frozen=True, slots=True)
class PrioritySettings:
    """Makes a queue or subscription a priority queue.

    Levels are numbered 0, the lowest, to `levels - 1`, which is received first.
    """

    levels: int = 10
    source: PrioritySource = "header"
    """Where a message's level comes from: the AMQP header's priority, an application property, or
    rules over its properties, so that senders need not know the levels."""
    property_name: str | None = None
    """The application property (`source="property"` only)."""
    rules: tuple[tuple[str, int], ...] = ()
    """SQL filter and level, in order, the first match decides (`source="rules"` only). The texts
    are parsed by core when the entity is created."""
    aging_ms_per_level: Millis | None = None
    """A waiting message counts one level higher for each such time; None: never."""
    weights: tuple[int, ...] | None = None
    """Shares of the levels, the lowest level's first; None: a higher level always goes first."""

    def validate(self) -> PrioritySettings:
        """These settings, or `ArgumentError`."""
        low, high = limits.MIN_PRIORITY_LEVELS, limits.MAX_PRIORITY_LEVELS
        check_range("PriorityLevels", self.levels, low, high)
        _source("PrioritySource", self.source)
        if (self.source == "property") != bool(self.property_name):
            why = "It is given with, and only with, the source 'property'."
            raise bad("PriorityProperty", self.property_name, why)
        _check_property("PriorityProperty", self.property_name)
        self._validate_rules()
        aging = self.aging_ms_per_level
        if aging is not None and not limits.MIN_AGING_MS <= aging <= limits.MAX_AGING_MS:
            raise bad("PriorityAgingSeconds", f"{aging} ms", _AGING_RANGE)
        if self.weights is not None:
            if len(self.weights) != self.levels:
                why = f"One weight for each of the {self.levels} levels is needed."
                raise bad("PriorityWeights", list(self.weights), why)
            for weight in self.weights:
                check_range("PriorityWeights", weight, 1, limits.MAX_PRIORITY_WEIGHT)
        return self

    def _validate_rules(self) -> None:
        if (self.source == "rules") != bool(self.rules):
            why = "They are given with, and only with, the source 'rules'."
            raise bad("PriorityRules", len(self.rules), why)
        if len(self.rules) > limits.MAX_PRIORITY_RULES:
            why = f"At most {limits.MAX_PRIORITY_RULES} rules are allowed."
            raise bad("PriorityRules", len(self.rules), why)
        for expression, level in self.rules:
            if not expression.strip() or len(expression) > limits.MAX_SQL_TEXT:
                why = f"An expression has 1 to {limits.MAX_SQL_TEXT} characters."
                raise bad("PriorityRules", len(expression), why)
            if "\n" in expression or "\r" in expression:
                raise bad("PriorityRules", repr(expression), "A rule is one line.")
            check_range("PriorityRules", level, 0, self.levels - 1)

    def to_json(self) -> dict[str, object]:
        return {
            "levels": self.levels,
            "source": self.source,
            "property_name": self.property_name,
            "rules": [[expression, level] for expression, level in self.rules],
            "aging_ms_per_level": self.aging_ms_per_level,
            "weights": None if self.weights is None else list(self.weights),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> PrioritySettings:
        """The inverse of `to_json`; absent keys get their defaults. Ranges are `validate`'s."""
        return cls(**read_fields(cls, _PRIORITY_FIELDS, data, "Priority"))


@dataclass(frozen=True, slots=True)
class Rate:
    """So many messages in such a time, for ever; and `burst` at once by whoever has been quiet."""

    messages: int
    per_ms: Millis = limits.SECOND_MS
    burst: int = 0
    """0: as many as `messages`."""

    @property
    def most_at_once(self) -> int:
        return self.burst or self.messages

    def validate(self, name: str) -> Rate:
        check_range(name, self.messages, 1, limits.MAX_RATE_MESSAGES)
        if self.per_ms not in _UNITS.values():
            raise bad(name, f"{self.per_ms} ms", f"The time must be one of {', '.join(_UNITS)}.")
        check_range(name, self.burst, 0, limits.MAX_RATE_MESSAGES)
        return self

    def to_json(self) -> dict[str, object]:
        return {"messages": self.messages, "per_ms": self.per_ms, "burst": self.burst}

    def __str__(self) -> str:
        unit = next(word for word, ms in _UNITS.items() if ms == self.per_ms)
        return f"{self.messages}/{unit}" + (f" burst {self.burst}" if self.burst else "")


@dataclass(frozen=True, slots=True)
class RateSettings:
    """How much a queue or topic takes: from all together, from each sender, from each tenant."""

    entity: Rate | None = None
    sender: Rate | None = None
    """A sender is whoever shows the same key: a policy's name, or the subject of a token."""
    tenant: Rate | None = None
    tenant_property: str | None = None
    """The application property that names the tenant; messages without it share one rate."""

    def validate(self) -> RateSettings:
        """These settings, or `ArgumentError`."""
        for name, rate in (
            ("RateLimit", self.entity),
            ("SenderRateLimit", self.sender),
            ("TenantRateLimit", self.tenant),
        ):
            if rate is not None:
                rate.validate(name)
        if (self.tenant is None) != (not self.tenant_property):
            why = "TenantRateLimit and TenantProperty are given together."
            raise bad("TenantProperty", self.tenant_property, why)
        _check_property("TenantProperty", self.tenant_property)
        return self

    def to_json(self) -> dict[str, object]:
        return {
            "entity": None if self.entity is None else self.entity.to_json(),
            "sender": None if self.sender is None else self.sender.to_json(),
            "tenant": None if self.tenant is None else self.tenant.to_json(),
            "tenant_property": self.tenant_property,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> RateSettings:
        return cls(**read_fields(cls, _RATES_FIELDS, data))


def _check_property(name: str, value: str | None) -> None:
    if value is not None and len(value) > limits.MAX_PROPERTY_NAME:
        why = f"It exceeds {limits.MAX_PROPERTY_NAME} characters."
        raise bad(name, f"{value[:32]}…", why)


# -------------------------------------------------------------------------------- from JSON


def _source(name: str, value: object) -> PrioritySource:
    for source in PRIORITY_SOURCES:
        if value == source:
            return source
    raise bad(name, repr(value), f"It must be one of: {';'.join(PRIORITY_SOURCES)}.")


def _rules(name: str, value: object) -> tuple[tuple[str, int], ...]:
    why = "It must be a list of [expression, level]."
    if not isinstance(value, list | tuple):
        raise bad(name, repr(value), why)
    rules = []
    for rule in value:
        if not isinstance(rule, list | tuple) or len(rule) != 2 or not isinstance(rule[0], str):
            raise bad(name, repr(rule), why)
        rules.append((rule[0], integer(name, rule[1])))
    return tuple(rules)


def _weights(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise bad(name, repr(value), "It must be a list of integers.")
    return tuple(integer(name, weight) for weight in value)


def _rate(name: str, value: object) -> Rate | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad(name, repr(value), "It must be an object.")
    return Rate(**read_fields(Rate, _RATE_FIELDS, value, name))


_PRIORITY_FIELDS: Final[Table] = {
    "levels": ("Levels", integer),
    "source": ("Source", _source),
    "property_name": ("Property", text),
    "rules": ("Rules", _rules),
    "aging_ms_per_level": ("AgingSeconds", or_none),
    "weights": ("Weights", _weights),
}
_RATE_FIELDS: Final[Table] = {
    "messages": (".Messages", integer),
    "per_ms": (".Per", integer),
    "burst": (".Burst", integer),
}
_RATES_FIELDS: Final[Table] = {
    "entity": ("RateLimit", _rate),
    "sender": ("SenderRateLimit", _rate),
    "tenant": ("TenantRateLimit", _rate),
    "tenant_property": ("TenantProperty", text),
}


# ------------------------------------------------------------------- as people say them

Extension: TypeAlias = str | int
_UNITS: Final = {"s": limits.SECOND_MS, "min": limits.MINUTE_MS, "h": limits.HOUR_MS}
_RATE_FORM: Final = re.compile(r"([0-9]{1,9})(?:\s*/\s*(s|min|h))?(?:\s+burst\s+([0-9]{1,9}))?")
_RULE_FORM: Final = re.compile(r"\s*([0-9]{1,3})\s*:\s*(.*\S)\s*", re.DOTALL)
_NUMBERS: Final = re.compile(r"[\s,;:]+")


def _said_integer(name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        return int(value)
    return integer(name, value)


def _said_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad(name, repr(value), "It must be a text.")
    return value.strip()


def _said_rules(name: str, value: object) -> tuple[tuple[str, int], ...]:
    """Lines of `LEVEL: SQL`; or pairs of both."""
    if not isinstance(value, str):
        return _rules(name, value)
    found = []
    for line in value.replace("\r", "\n").split("\n"):
        if line.strip():
            match = _RULE_FORM.fullmatch(line)
            if match is None:
                raise bad(name, repr(line), "A rule is a level, a colon and a SQL filter.")
            found.append((match[2], int(match[1])))
    return tuple(found)


def _said_aging(name: str, value: object) -> Millis:
    """Seconds, to the millisecond."""
    why = "It must be a number of seconds."
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise bad(name, repr(value), why)
    try:
        ms = Decimal(str(value).strip()) * 1000
    except InvalidOperation:
        raise bad(name, repr(value), why) from None
    low, high = limits.MIN_AGING_MS, limits.MAX_AGING_MS
    if not ms.is_finite() or not low <= ms <= high or ms != int(ms):
        raise bad(name, repr(value), _AGING_RANGE)
    return int(ms)


def _said_weights(name: str, value: object) -> tuple[int, ...]:
    """`1 2 4`, the lowest level's first."""
    if isinstance(value, str):
        value = [_said_integer(name, word) for word in _NUMBERS.split(value.strip())]
    found = _weights(name, value)
    assert found is not None
    return found


def _said_rate(name: str, value: object) -> Rate:
    """`100/s`, `100/s burst 500`, `6/min`, `1000/h`; a number is one a second."""
    if isinstance(value, Rate):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    match = _RATE_FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise bad(name, repr(value), "A rate is like '100/s', '6/min' or '100/s burst 500'.")
    return Rate(int(match[1]), _UNITS[match[2] or "s"], int(match[3] or 0)).validate(name)


_SAID: Final[Mapping[str, tuple[str, Callable[[str, object], object]]]] = {
    "PriorityLevels": ("levels", _said_integer),
    "PrioritySource": ("source", _source),
    "PriorityProperty": ("property_name", _said_text),
    "PriorityRules": ("rules", _said_rules),
    "PriorityAgingSeconds": ("aging_ms_per_level", _said_aging),
    "PriorityWeights": ("weights", _said_weights),
    "RateLimit": ("entity", _said_rate),
    "SenderRateLimit": ("sender", _said_rate),
    "TenantRateLimit": ("tenant", _said_rate),
    "TenantProperty": ("tenant_property", _said_text),
}
PRIORITY_KEYS: Final = tuple(key for key in _SAID if key.startswith("Priority"))
RATE_KEYS: Final = tuple(key for key in _SAID if key not in PRIORITY_KEYS)
KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "PriorityLevels": "2 to 32 levels; 1: no priority queue",
        "PrioritySource": "header, property or rules: where a message's level comes from",
        "PriorityProperty": "the application property that has the level",
        "PriorityRules": "lines of LEVEL: SQL filter; the first that matches decides",
        "PriorityAgingSeconds": "a waiting message counts a level higher after each such time",
        "PriorityWeights": "shares of the levels, the lowest first: 1 2 4",
        "RateLimit": "what the entity takes: 100/s, 6/min, 100/s burst 500",
        "SenderRateLimit": "what it takes from each sender",
        "TenantRateLimit": "what it takes from each tenant",
        "TenantProperty": "the application property that names the tenant",
    }
)
"""Every extension, and what it means, for people."""
_SPELLINGS: Final = {key.lower(): key for key in KEYS}


def key_of(name: str) -> str | None:
    """The key that a name means, however it is spelled: `PriorityLevels`, `priority_levels`,
    `priority-levels`. None: it is no extension."""
    return _SPELLINGS.get(name.replace("-", "").replace("_", "").lower())


def read_extensions(
    values: Mapping[str, object], allowed: tuple[str, ...] = tuple(KEYS)
) -> tuple[PrioritySettings | None, RateSettings | None]:
    """What the values say, checked. None or an empty text says nothing. `allowed`: the keys that
    this kind of entity has."""
    said: dict[str, object] = {}
    for name, value in values.items():
        key = key_of(name)
        if key is None or key not in allowed:
            words = ", ".join(allowed)
            raise ArgumentError(
                f"SubCode=40000. '{name:.64}' is not an extension here. There are: {words}."
            )
        if value is not None and value != "":
            said[key] = _SAID[key][1](key, value)
    priority: PrioritySettings | None = None
    levels = [key for key in PRIORITY_KEYS if key in said]
    if levels and said.get("PriorityLevels") != 1:
        given = {_SAID[key][0]: said[key] for key in levels}
        if "source" not in given:  # what is told of it says which it is
            given["source"] = (
                "rules" if given.get("rules")
                else "property" if "property_name" in given
                else "header"
            )  # fmt: skip
        priority = PrioritySettings(**given).validate()  # type: ignore[arg-type]
    rates: RateSettings | None = None
    if any(key in said for key in RATE_KEYS):
        limited = {_SAID[key][0]: said[key] for key in RATE_KEYS if key in said}
        rates = RateSettings(**limited).validate()  # type: ignore[arg-type]
    return priority, rates


def extension_values(
    priority: PrioritySettings | None, rates: RateSettings | None = None
) -> dict[str, Extension]:
    """What `read_extensions` would read the same from; empty for an entity without any."""
    values: dict[str, Extension] = {}
    if priority is not None:
        values["PriorityLevels"] = priority.levels
        values["PrioritySource"] = priority.source
        if priority.property_name is not None:
            values["PriorityProperty"] = priority.property_name
        if priority.rules:
            lines = (f"{level}: {sql}" for sql, level in priority.rules)
            values["PriorityRules"] = "\n".join(lines)
        if priority.aging_ms_per_level is not None:
            seconds = Decimal(priority.aging_ms_per_level).scaleb(-3).normalize()
            values["PriorityAgingSeconds"] = f"{seconds:f}"
        if priority.weights is not None:
            values["PriorityWeights"] = " ".join(map(str, priority.weights))
    if rates is not None:
        for key in RATE_KEYS:
            value = getattr(rates, _SAID[key][0])
            if value is not None:
                values[key] = str(value)
    return values
