"""What an entity can be told, with Azure's names, defaults, ranges and texts.

Here live `QueueSettings`, `TopicSettings`, `SubscriptionSettings` and `AuthorizationRule`. What a
setting does is in `core/`; the numbers of the ranges are in `limits.py`. What Azure has no word for
is in `extensions.py`, and how an entity is named in `names.py`: their words can be had from here
too.

The rule: a settings object is a plain value and may be wrong. `validate()` returns what is to be
kept or raises `ArgumentError` naming the property; nothing else in the broker checks a range again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.extensions import (
    KEYS,
    PRIORITY_KEYS,
    RATE_KEYS,
    Extension,
    extension_values,
    read_extensions,
)
from tandembus.extensions import PrioritySettings as PrioritySettings
from tandembus.extensions import Rate as Rate
from tandembus.extensions import RateSettings as RateSettings
from tandembus.fields import (
    Table,
    bad,
    boolean,
    check_range,
    integer,
    kind_of,
    or_never,
    read_fields,
    required,
    text,
)
from tandembus.model import NEVER, Millis, Secret
from tandembus.names import DEAD_LETTER as DEAD_LETTER
from tandembus.names import DEFAULT_RULE as DEFAULT_RULE
from tandembus.names import MANAGEMENT as MANAGEMENT
from tandembus.names import SUBSCRIPTIONS as SUBSCRIPTIONS
from tandembus.names import TRANSFER as TRANSFER
from tandembus.names import Address as Address
from tandembus.names import canonical as canonical
from tandembus.names import canonical_rule as canonical_rule
from tandembus.names import canonical_subscription as canonical_subscription
from tandembus.names import split as split


class EntityStatus(StrEnum):
    """Who may use an entity. A disabled one keeps its messages, its timers and its rules."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def allows_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def allows_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class AccessRight(StrEnum):
    """What a key may do. Manage stands together with the other two (Service Bus)."""

    MANAGE = "Manage"
    SEND = "Send"
    LISTEN = "Listen"


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A named key with rights on one queue or topic."""

    name: str
    rights: tuple[AccessRight, ...]
    primary_key: Secret
    secondary_key: Secret
    created_ms: Millis = 0
    modified_ms: Millis = 0

    def validate(self) -> AuthorizationRule:
        """This rule, or `ArgumentError`, which never shows a key."""
        if not 1 <= len(self.name) <= limits.MAX_KEY_NAME:
            why = f"A key's name has 1 to {limits.MAX_KEY_NAME} characters."
            raise bad("KeyName", f"{len(self.name)} characters long", why)
        for key in (self.primary_key, self.secondary_key):
            if not 1 <= len(key) <= limits.MAX_KEY:
                why = f"A key has 1 to {limits.MAX_KEY} characters."
                raise bad("PrimaryKey, SecondaryKey", f"{len(key)} characters long", why)
        if not self.rights or len(set(self.rights)) != len(self.rights):
            raise bad("Rights", list(self.rights), "Each right is named once, and one at least.")
        if AccessRight.MANAGE in self.rights and len(self.rights) != len(AccessRight):
            why = "Manage permission should also include Send and Listen."
            raise bad("Rights", ", ".join(self.rights), why)
        return self

    def to_json(self) -> dict[str, object]:
        """With the keys: this is what is stored."""
        plain = {name: getattr(self, name) for name in _AUTHORIZATION_FIELDS}
        return {**plain, "rights": [right.value for right in self.rights]}

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> AuthorizationRule:
        """The inverse of `to_json`. Ranges are `validate`'s."""
        return cls(**read_fields(cls, _AUTHORIZATION_FIELDS, data, "AuthorizationRule."))


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's description."""

    lock_duration_ms: Millis = limits.DEFAULT_LOCK_MS
    max_size_mb: int = limits.DEFAULT_SIZE_MB
    requires_duplicate_detection: bool = False
    duplicate_window_ms: Millis = limits.DUPLICATE_WINDOW_DEFAULT_MS
    requires_session: bool = False
    default_ttl_ms: Millis = NEVER
    dead_letter_on_expiration: bool = False
    max_delivery_count: int = limits.DEFAULT_MAX_DELIVERY_COUNT
    enable_partitioning: bool = False
    auto_delete_on_idle_ms: Millis = NEVER
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    max_message_size_kb: int = limits.DEFAULT_MESSAGE_KB
    enable_batched_operations: bool = True
    user_metadata: str | None = None
    priority: PrioritySettings | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    enable_express: bool = False
    """Kept and shown, without effect: every message is on disk before it is accepted."""
    rates: RateSettings | None = None
    forward_to_scheme: str | None = None
    """Of the URI that ForwardTo was given as; None: it was given by name, or as `sb://`."""
    forward_dead_letters_scheme: str | None = None

    def validate(self) -> QueueSettings:
        """What is to be kept of these settings, or `ArgumentError`."""
        _check_lock(self.lock_duration_ms)
        check_range("MaxDeliveryCount", self.max_delivery_count, 1, limits.MAX_DELIVERY_COUNT)
        _check_size(self.max_size_mb)
        check_range("MaxMessageSizeInKilobytes", self.max_message_size_kb, 1, limits.MAX_MESSAGE_KB)
        _check_window(self.duplicate_window_ms)
        _check_metadata(self.user_metadata)
        _check_forwarding(self)
        _check_authorization(self.authorization_rules)
        if self.priority is not None:
            self.priority.validate()
        if self.rates is not None:
            self.rates.validate()
        return replace(
            self,
            default_ttl_ms=_checked_ttl(self.default_ttl_ms),
            auto_delete_on_idle_ms=_checked_idle(self.auto_delete_on_idle_ms),
        )

    def to_json(self) -> dict[str, object]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> QueueSettings:
        """The inverse of `to_json`; absent keys get their defaults. Ranges are `validate`'s."""
        return cls(**read_fields(cls, _ENTITY_FIELDS, data))


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's description. What concerns receiving is in each subscription's."""

    max_size_mb: int = limits.DEFAULT_SIZE_MB
    requires_duplicate_detection: bool = False
    duplicate_window_ms: Millis = limits.DUPLICATE_WINDOW_DEFAULT_MS
    default_ttl_ms: Millis = NEVER
    enable_partitioning: bool = False
    auto_delete_on_idle_ms: Millis = NEVER
    status: EntityStatus = EntityStatus.ACTIVE
    max_message_size_kb: int = limits.DEFAULT_MESSAGE_KB
    enable_batched_operations: bool = True
    user_metadata: str | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    enable_express: bool = False
    """Kept and shown, without effect."""
    support_ordering: bool = True
    """Kept and shown: messages are always in order."""
    rates: RateSettings | None = None

    def validate(self) -> TopicSettings:
        """What is to be kept of these settings, or `ArgumentError`."""
        _check_size(self.max_size_mb)
        check_range("MaxMessageSizeInKilobytes", self.max_message_size_kb, 1, limits.MAX_MESSAGE_KB)
        _check_window(self.duplicate_window_ms)
        _check_metadata(self.user_metadata)
        _check_authorization(self.authorization_rules)
        if self.status is EntityStatus.RECEIVE_DISABLED:
            raise bad("Status", self.status, "A Topic can't be ReceiveDisabled.")
        if self.rates is not None:
            self.rates.validate()
        return replace(
            self,
            default_ttl_ms=_checked_ttl(self.default_ttl_ms),
            auto_delete_on_idle_ms=_checked_idle(self.auto_delete_on_idle_ms),
        )

    def to_json(self) -> dict[str, object]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> TopicSettings:
        """The inverse of `to_json`; absent keys get their defaults. Ranges are `validate`'s."""
        return cls(**read_fields(cls, _ENTITY_FIELDS, data))


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """A subscription's description. Size, duplicates and partitions are its topic's."""

    lock_duration_ms: Millis = limits.DEFAULT_LOCK_MS
    requires_session: bool = False
    default_ttl_ms: Millis = NEVER
    dead_letter_on_expiration: bool = False
    dead_letter_on_filter_error: bool = True
    max_delivery_count: int = limits.DEFAULT_MAX_DELIVERY_COUNT
    auto_delete_on_idle_ms: Millis = NEVER
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    status: EntityStatus = EntityStatus.ACTIVE
    enable_batched_operations: bool = True
    user_metadata: str | None = None
    priority: PrioritySettings | None = None
    forward_to_scheme: str | None = None
    forward_dead_letters_scheme: str | None = None

    def validate(self) -> SubscriptionSettings:
        """What is to be kept of these settings, or `ArgumentError`."""
        _check_lock(self.lock_duration_ms)
        check_range("MaxDeliveryCount", self.max_delivery_count, 1, limits.MAX_DELIVERY_COUNT)
        _check_metadata(self.user_metadata)
        _check_forwarding(self)
        if self.status is EntityStatus.SEND_DISABLED:
            raise bad("Status", self.status, "A Subscription can't be SendDisabled.")
        if self.priority is not None:
            self.priority.validate()
        return replace(
            self,
            default_ttl_ms=_checked_ttl(self.default_ttl_ms),
            auto_delete_on_idle_ms=_checked_idle(self.auto_delete_on_idle_ms),
        )

    def to_json(self) -> dict[str, object]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> SubscriptionSettings:
        """The inverse of `to_json`; absent keys get their defaults. Ranges are `validate`'s."""
        return cls(**read_fields(cls, _ENTITY_FIELDS, data))


Settings: TypeAlias = QueueSettings | TopicSettings | SubscriptionSettings
S = TypeVar("S", QueueSettings, TopicSettings, SubscriptionSettings)

_FIXED: Final = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


def check_update(old: S, new: S) -> None:
    """Raises `ArgumentError` when `new` changes what is fixed at creation."""
    assert type(old) is type(new), "an entity keeps its kind"
    for name in _FIXED:
        if getattr(old, name, None) == getattr(new, name, None):
            continue
        kind = kind_of(type(new))
        if name == "enable_partitioning":
            why = f"Partitioning can't be changed for {kind}."
        else:
            azure = AZURE_NAMES[name]
            why = f"The value for {azure} property of an existing {kind} can't be changed."
        raise bad(AZURE_NAMES[name], getattr(new, name), why)


# ------------------------------------------------------------------------------ extensions

_EXTENSIONS: Final[Mapping[type, tuple[str, ...]]] = {
    QueueSettings: tuple(KEYS),
    TopicSettings: RATE_KEYS,  # what is received first is a matter of each subscription,
    SubscriptionSettings: PRIORITY_KEYS,  # and what is taken one of its topic
}


def extensions_of(settings: Settings) -> dict[str, Extension]:
    """What there is beyond Azure, by `extensions.KEYS`; empty: nothing."""
    return extension_values(getattr(settings, "priority", None), getattr(settings, "rates", None))


def with_extensions(settings: S, values: Mapping[str, object]) -> S:
    """The settings with these extensions and no others. To change some, give all:
    `{**extensions_of(settings), **changes}`, with None for one that is to go."""
    priority, rates = read_extensions(values, _EXTENSIONS[type(settings)])
    found: dict[str, Any] = {"priority": priority, "rates": rates}
    return replace(settings, **{name: found[name] for name in found if hasattr(settings, name)})


# ------------------------------------------------------------------------------ the ranges


def _check_lock(value: Millis) -> None:
    if value > limits.MAX_LOCK_MS:
        minutes = limits.MAX_LOCK_MS // limits.MINUTE_MS
        why = f"The supplied lock time exceeds the allowed maximum of '{minutes}' minutes."
        raise bad("LockDuration", _shown(value), why)
    if value < limits.MIN_LOCK_MS:
        seconds = limits.MIN_LOCK_MS // limits.SECOND_MS
        why = f"The supplied lock time is below the allowed minimum of '{seconds}' seconds."
        raise bad("LockDuration", _shown(value), why)


def _check_size(value: int) -> None:
    if value not in limits.ALLOWED_SIZES_MB:
        allowed = ";".join(str(size) for size in limits.ALLOWED_SIZES_MB)
        raise ArgumentError(
            f"SubCode=40000. The specified value {value} is invalid. The property "
            f"'MaxSizeInMegabytes', must be one of the following values: {allowed}."
        )


def _check_window(value: Millis) -> None:
    if not limits.DUPLICATE_WINDOW_MIN_MS <= value <= limits.DUPLICATE_WINDOW_MAX_MS:
        why = "The duplicate detection history must be between 20 seconds and 7 days."
        raise bad("DuplicateDetectionHistoryTimeWindow", _shown(value), why)


def _check_metadata(value: str | None) -> None:
    if value is not None and len(value) > limits.MAX_USER_METADATA:
        why = f"It exceeds the allowed maximum of {limits.MAX_USER_METADATA} characters."
        raise bad("UserMetadata", f"{len(value)} characters long", why)


def _check_forwarding(settings: QueueSettings | SubscriptionSettings) -> None:
    for name in ("forward_to", "forward_dead_letters_to"):
        target: str | None = getattr(settings, name)
        if target is not None:
            try:
                canonical(target)
            except ArgumentError as error:
                raise ArgumentError(f"{error} Parameter name: {AZURE_NAMES[name]}.") from None


def _check_authorization(rules: tuple[AuthorizationRule, ...]) -> None:
    if len(rules) > limits.MAX_AUTHORIZATION_RULES:
        why = f"At most {limits.MAX_AUTHORIZATION_RULES} authorization rules are allowed."
        raise bad("AuthorizationRules", len(rules), why)
    if len({rule.validate().name for rule in rules}) != len(rules):
        why = "Two authorization rules have the same name."
        raise bad("AuthorizationRules", [rule.name for rule in rules], why)


def _checked_ttl(value: Millis) -> Millis:
    if value < limits.MIN_TTL_MS:
        why = "The supplied time to live is below the allowed minimum of '1' second."
        raise bad("DefaultMessageTimeToLive", _shown(value), why)
    return NEVER if value >= limits.MAX_DURATION_MS else value


def _checked_idle(value: Millis) -> Millis:
    if value < limits.MIN_AUTO_DELETE_MS:
        why = "The supplied idle time is below the allowed minimum of '5' minutes."
        raise bad("AutoDeleteOnIdle", _shown(value), why)
    return NEVER if value >= limits.MAX_DURATION_MS else value


def _shown(value: Millis) -> str:
    return "infinite" if value >= limits.MAX_DURATION_MS else f"{value} ms"


# ---------------------------------------------------------------------------- plain dicts


def _status(name: str, value: object) -> EntityStatus:
    try:
        return EntityStatus(cast(str, value))
    except ValueError:
        allowed = ";".join(EntityStatus)
        raise bad(name, repr(value), f"It must be one of: {allowed}.") from None


def _priority(name: str, value: object) -> PrioritySettings | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad(name, repr(value), "It must be an object.")
    return PrioritySettings.from_json(value)


def _rates(name: str, value: object) -> RateSettings | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise bad(name, repr(value), "It must be an object.")
    return RateSettings.from_json(value)


def _rights(name: str, value: object) -> tuple[AccessRight, ...]:
    try:
        return tuple(AccessRight(right) for right in cast(list[str], value))
    except (TypeError, ValueError):
        why = f"It must be a list of: {';'.join(AccessRight)}."
        raise bad(name, repr(value), why) from None


def _authorization_rules(name: str, value: object) -> tuple[AuthorizationRule, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(rule, Mapping) for rule in value):
        raise bad(name, type(value).__name__, "It must be a list of objects.")
    return tuple(AuthorizationRule.from_json(rule) for rule in value)


_ENTITY_FIELDS: Final[Table] = {
    "lock_duration_ms": ("LockDuration", integer),
    "max_size_mb": ("MaxSizeInMegabytes", integer),
    "requires_duplicate_detection": ("RequiresDuplicateDetection", boolean),
    "duplicate_window_ms": ("DuplicateDetectionHistoryTimeWindow", integer),
    "requires_session": ("RequiresSession", boolean),
    "default_ttl_ms": ("DefaultMessageTimeToLive", or_never),
    "dead_letter_on_expiration": ("DeadLetteringOnMessageExpiration", boolean),
    "dead_letter_on_filter_error": ("DeadLetteringOnFilterEvaluationExceptions", boolean),
    "max_delivery_count": ("MaxDeliveryCount", integer),
    "enable_partitioning": ("EnablePartitioning", boolean),
    "auto_delete_on_idle_ms": ("AutoDeleteOnIdle", or_never),
    "forward_to": ("ForwardTo", text),
    "forward_dead_letters_to": ("ForwardDeadLetteredMessagesTo", text),
    "status": ("Status", _status),
    "max_message_size_kb": ("MaxMessageSizeInKilobytes", integer),
    "enable_batched_operations": ("EnableBatchedOperations", boolean),
    "user_metadata": ("UserMetadata", text),
    "priority": ("Priority", _priority),
    "rates": ("Rates", _rates),
    "authorization_rules": ("AuthorizationRules", _authorization_rules),
    "enable_express": ("EnableExpress", boolean),
    "support_ordering": ("SupportOrdering", boolean),
    "forward_to_scheme": ("ForwardTo", text),
    "forward_dead_letters_scheme": ("ForwardDeadLetteredMessagesTo", text),
}
_AUTHORIZATION_FIELDS: Final[Table] = {
    "name": ("KeyName", required),
    "rights": ("Rights", _rights),
    "primary_key": ("PrimaryKey", lambda name, value: Secret(required(name, value))),
    "secondary_key": ("SecondaryKey", lambda name, value: Secret(required(name, value))),
    "created_ms": ("CreatedTime", integer),
    "modified_ms": ("ModifiedTime", integer),
}

AZURE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {name: azure for name, (azure, _) in _ENTITY_FIELDS.items()}
)
"""Our name of a property → the name that Azure's descriptions and error texts have for it."""


def _to_json(settings: Settings) -> dict[str, object]:
    """Every property by name, defaults too, so that what is stored does not change its meaning when
    a later version changes a default. NEVER becomes None."""
    plain: dict[str, object] = {}
    for field in fields(settings):
        value: object = getattr(settings, field.name)
        if value is None and field.name.endswith("_scheme"):
            continue  # so that an earlier version reads what it has always read
        if isinstance(value, PrioritySettings | RateSettings):
            value = value.to_json()
        elif field.name == "authorization_rules":
            value = [rule.to_json() for rule in cast(tuple[AuthorizationRule, ...], value)]
        elif isinstance(value, EntityStatus):
            value = value.value
        elif _ENTITY_FIELDS[field.name][1] is or_never and value == NEVER:
            value = None
        plain[field.name] = value
    return plain
