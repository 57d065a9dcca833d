"""Azure's descriptions of entities: XML to settings and rules, and back.

Here live the elements of QueueDescription, TopicDescription, SubscriptionDescription and
RuleDescription, their order and their defaults (WIRE.md §10.2, §10.3). XML itself is `atom`; what a
request does with a description is `api`.

The rule: a description replaces the one before as a whole. What it leaves out gets its default,
except what cannot be changed (`kept`). So do the extensions, in the element `Tandem` of a namespace
of its own; but a description without that element leaves them as they are, because it comes from
an SDK that has never heard of them. Elements that only the broker fills in, and unknown ones, are
read over: the SDKs send back what they were shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never
from urllib.parse import unquote, urlsplit

from tandembus import limits
from tandembus.admin.values import read_value, typed
from tandembus.atom import (
    COUNTS,
    INSTANCE,
    SCHEMA,
    SERVICE_BUS,
    Element,
    duration,
    escape,
    extension_element,
    read_boolean,
    read_duration,
    read_extension_element,
    read_integer,
    tag,
    time,
)
from tandembus.core.queue import Queue
from tandembus.core.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleFilter,
    SqlAction,
    SqlFilter,
    TrueFilter,
)
from tandembus.core.state import State
from tandembus.errors import ArgumentError, ProtocolError
from tandembus.model import (
    NEVER,
    Millis,
    Secret,
    Timestamp,
    Value,
)
from tandembus.names import split
from tandembus.settings import (
    AccessRight,
    AuthorizationRule,
    EntityStatus,
    QueueSettings,
    Settings,
    SubscriptionSettings,
    TopicSettings,
    extensions_of,
    with_extensions,
)

PREMIUM_MIN_MESSAGE_KB: Final = 1_024
"""What an entity of a premium namespace has at least, and has if nothing is said."""
SIZE_SINCE: Final = "2021-05"
"""The first api-version that has MaxMessageSizeInKilobytes."""
_COMPATIBILITY_LEVEL: Final = 20

S = TypeVar("S", QueueSettings, TopicSettings, SubscriptionSettings)

# --- settings from XML ----------------------------------------------------------------------------


def _status(text: str) -> EntityStatus:
    try:
        return EntityStatus(text.strip())
    except ValueError:
        raise ProtocolError(f"{text[:40]!a} is not a status.") from None


def _target(text: str) -> str:
    """The entity that is forwarded to: given by name or as `sb://host/name`."""
    try:
        return unquote(urlsplit(text).path).strip("/") if "://" in text else text
    except ValueError:
        raise ProtocolError(f"{text[:40]!a} is not a URI.") from None


_SCHEMES: Final = {
    "forward_to": "forward_to_scheme",
    "forward_dead_letters_to": "forward_dead_letters_scheme",
}


def _scheme(text: str) -> str | None:
    """Of the URI of what is forwarded to, which is shown with it again; None is `sb`."""
    scheme, separator, _ = text.strip().partition("://")
    scheme = scheme.lower()
    if not separator or scheme == "sb":
        return None
    if scheme not in ("amqp", "amqps", "http", "https"):
        raise ArgumentError(f"SubCode=40000. {scheme[:40]!a} is not a scheme of a Service Bus URI.")
    return scheme


_FIELDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "lock_duration_ms": ("LockDuration", read_duration),
    "max_size_mb": ("MaxSizeInMegabytes", read_integer),
    "requires_duplicate_detection": ("RequiresDuplicateDetection", read_boolean),
    "requires_session": ("RequiresSession", read_boolean),
    "default_ttl_ms": ("DefaultMessageTimeToLive", read_duration),
    "dead_letter_on_expiration": ("DeadLetteringOnMessageExpiration", read_boolean),
    "dead_letter_on_filter_error": ("DeadLetteringOnFilterEvaluationExceptions", read_boolean),
    "duplicate_window_ms": ("DuplicateDetectionHistoryTimeWindow", read_duration),
    "max_delivery_count": ("MaxDeliveryCount", read_integer),
    "enable_batched_operations": ("EnableBatchedOperations", read_boolean),
    "status": ("Status", _status),
    "forward_to": ("ForwardTo", _target),
    "user_metadata": ("UserMetadata", str),
    "auto_delete_on_idle_ms": ("AutoDeleteOnIdle", read_duration),
    "enable_partitioning": ("EnablePartitioning", read_boolean),
    "enable_express": ("EnableExpress", read_boolean),
    "support_ordering": ("SupportOrdering", read_boolean),
    "forward_dead_letters_to": ("ForwardDeadLetteredMessagesTo", _target),
    "max_message_size_kb": ("MaxMessageSizeInKilobytes", read_integer),
}
_FIXED: Final = ("requires_duplicate_detection", "requires_session", "enable_partitioning")


def read_settings(
    kind: type[S],
    description: Element,
    kept: S | None,
    now: Millis,
    *,
    is_premium: bool,
    version: str = SIZE_SINCE,
) -> S:
    """The settings that a description asks for. `kept`: those that are there, for an update."""
    values: dict[str, Any] = {}
    for name in kind.__dataclass_fields__:
        if name not in _FIELDS:
            continue
        azure, read = _FIELDS[name]
        text = description.value(azure)
        if text is not None:
            values[name] = read(text)
            if name in _SCHEMES:
                values[_SCHEMES[name]] = _scheme(text)
        elif kept is not None and name in _FIXED:
            values[name] = getattr(kept, name)
    if kind is not SubscriptionSettings:
        if version < SIZE_SINCE and "max_message_size_kb" in values:
            raise ArgumentError(
                f"SubCode=40000. The entity description of type '{description.name}' has "
                f"unsupported properties for api-version '{version:.20}' in the request. Try "
                "including the correct api-version query string in the request."
            )
        _read_size(values, kept, is_premium=is_premium, is_known=version >= SIZE_SINCE)
        before = getattr(kept, "authorization_rules", ())
        values["authorization_rules"] = _read_authorization(description, before, now)
    said = read_extension_element(description)
    if said is not None:
        return with_extensions(kind(**values), said)
    values |= {name: getattr(kept, name) for name in ("priority", "rates") if hasattr(kept, name)}
    return kind(**values)


def _read_size(
    values: dict[str, Any], kept: Settings | None, *, is_premium: bool, is_known: bool
) -> None:
    """The Standard tier shows the size and takes it back, but no other. A description of an
    api-version that does not know it leaves it as it is."""
    name = "max_message_size_kb"
    if not is_premium:
        size = limits.DEFAULT_MESSAGE_KB if kept is None else getattr(kept, name)
        if values.setdefault(name, size) != size:
            raise ArgumentError(
                "SubCode=40000. The property 'MaxMessageSizeInKilobytes' cannot be set for a "
                "namespace of the Standard tier."
            )
        return
    if kept is not None and not is_known:
        values[name] = getattr(kept, name)
        return
    low, high = PREMIUM_MIN_MESSAGE_KB, limits.MAX_MESSAGE_KB
    if not low <= values.setdefault(name, low) <= high:
        raise ArgumentError(
            f"SubCode=40000. The specified value {values[name]} is invalid. The property "
            f"'MaxMessageSizeInKilobytes' must be between {low} and {high}."
        )


def _read_authorization(
    description: Element, before: tuple[AuthorizationRule, ...], now: Millis
) -> tuple[AuthorizationRule, ...]:
    rules = description.find("AuthorizationRules")
    if rules is None:
        return ()
    known = {rule.name: rule for rule in before}
    return tuple(
        _read_authorization_rule(each, known, now) for each in rules.every("AuthorizationRule")
    )


def _read_authorization_rule(
    element: Element, known: Mapping[str, AuthorizationRule], now: Millis
) -> AuthorizationRule:
    listed = element.find("Rights")
    try:
        rights = tuple(
            AccessRight(each.text.strip())
            for each in (() if listed is None else listed.every("AccessRights"))
        )
    except ValueError:
        raise ArgumentError("SubCode=40000. The rights are Manage, Send and Listen.") from None
    primary = Secret(element.value("PrimaryKey") or "")
    secondary = Secret(element.value("SecondaryKey") or primary)
    rule = AuthorizationRule(element.value("KeyName") or "", rights, primary, secondary, now, now)
    old = known.get(rule.name)
    if old is None:
        return rule
    if (old.rights, old.primary_key, old.secondary_key) == (rights, primary, secondary):
        return old
    return AuthorizationRule(rule.name, rights, primary, secondary, old.created_ms, now)


# --- settings to XML ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """How an entity's description is written."""

    host: str
    """For the URIs of what is forwarded to."""
    version: str = SIZE_SINCE
    """The api-version that was asked for."""

    def queue(self, queue: Queue) -> str:
        settings = queue.settings
        assert isinstance(settings, QueueSettings)
        return _description(
            "QueueDescription",
            tag("LockDuration", duration(settings.lock_duration_ms)),
            tag("MaxSizeInMegabytes", settings.max_size_mb),
            tag("RequiresDuplicateDetection", settings.requires_duplicate_detection),
            tag("RequiresSession", settings.requires_session),
            tag("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
            tag("DeadLetteringOnMessageExpiration", settings.dead_letter_on_expiration),
            tag("DuplicateDetectionHistoryTimeWindow", duration(settings.duplicate_window_ms)),
            tag("MaxDeliveryCount", settings.max_delivery_count),
            tag("EnableBatchedOperations", settings.enable_batched_operations),
            tag("SizeInBytes", queue.used_bytes),
            tag("MessageCount", _message_count(queue)),
            tag("IsAnonymousAccessible", False),
            _authorization(settings.authorization_rules),
            tag("Status", settings.status),
            self._forward("ForwardTo", settings.forward_to, settings.forward_to_scheme),
            tag("UserMetadata", settings.user_metadata),
            _times(queue),
            tag("SupportOrdering", True),
            _count_details(queue),
            tag("AutoDeleteOnIdle", duration(_idle_ms(queue))),
            tag("EnablePartitioning", settings.enable_partitioning),
            tag("EntityAvailabilityStatus", "Available"),
            tag("EnableExpress", settings.enable_express),
            self._forward_dead_letters(settings),
            self._message_size(settings.max_message_size_kb),
            _extensions(settings),
        )

    def topic(self, topic: Queue, filters: tuple[int, int]) -> str:
        """`filters`: how many SQL and how many correlation filters its subscriptions have."""
        settings = topic.settings
        assert isinstance(settings, TopicSettings)
        return _description(
            "TopicDescription",
            tag("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
            tag("MaxSizeInMegabytes", settings.max_size_mb),
            tag("RequiresDuplicateDetection", settings.requires_duplicate_detection),
            tag("DuplicateDetectionHistoryTimeWindow", duration(settings.duplicate_window_ms)),
            tag("EnableBatchedOperations", settings.enable_batched_operations),
            tag("SizeInBytes", topic.used_bytes),
            tag("FilteringMessagesBeforePublishing", False),
            tag("IsAnonymousAccessible", False),
            _authorization(settings.authorization_rules),
            tag("Status", settings.status),
            _times(topic),
            tag("SupportOrdering", settings.support_ordering),
            _count_details(topic),
            tag("SubscriptionCount", len(topic.subscriptions)),
            tag("SqlFilterCount", filters[0]),
            tag("CorrelationFilterCount", filters[1]),
            tag("AutoDeleteOnIdle", duration(settings.auto_delete_on_idle_ms)),
            tag("EnablePartitioning", settings.enable_partitioning),
            tag("EntityAvailabilityStatus", "Available"),
            tag("EnableSubscriptionPartitioning", False),
            tag("EnableExpress", settings.enable_express),
            tag("UserMetadata", settings.user_metadata),
            self._message_size(settings.max_message_size_kb),
            _extensions(settings),
        )

    def subscription(self, queue: Queue) -> str:
        settings = queue.settings
        assert isinstance(settings, SubscriptionSettings)
        dead_letter_errors = settings.dead_letter_on_filter_error
        return _description(
            "SubscriptionDescription",
            tag("LockDuration", duration(settings.lock_duration_ms)),
            tag("RequiresSession", settings.requires_session),
            tag("DefaultMessageTimeToLive", duration(settings.default_ttl_ms)),
            tag("DeadLetteringOnMessageExpiration", settings.dead_letter_on_expiration),
            tag("DeadLetteringOnFilterEvaluationExceptions", dead_letter_errors),
            tag("MessageCount", _message_count(queue)),
            tag("MaxDeliveryCount", settings.max_delivery_count),
            tag("EnableBatchedOperations", settings.enable_batched_operations),
            tag("Status", settings.status),
            self._forward("ForwardTo", settings.forward_to, settings.forward_to_scheme),
            _times(queue),
            _count_details(queue),
            tag("UserMetadata", settings.user_metadata),
            self._forward_dead_letters(settings),
            tag("AutoDeleteOnIdle", duration(_idle_ms(queue))),
            tag("EntityAvailabilityStatus", "Available"),
            _extensions(settings),
        )

    def _forward(self, name: str, target: str | None, scheme: str | None) -> str:
        return tag(name, None if target is None else f"{scheme or 'sb'}://{self.host}/{target}")

    def _forward_dead_letters(self, settings: QueueSettings | SubscriptionSettings) -> str:
        target, scheme = settings.forward_dead_letters_to, settings.forward_dead_letters_scheme
        return self._forward("ForwardDeadLetteredMessagesTo", target, scheme)

    def _message_size(self, kilobytes: int) -> str:
        return tag("MaxMessageSizeInKilobytes", kilobytes if self.version >= SIZE_SINCE else None)


def namespace_info(name: str, created_ms: Millis, *, is_premium: bool) -> str:
    return _description(
        "NamespaceInfo",
        tag("CreatedTime", time(created_ms)),
        tag("MessagingSKU", "Premium" if is_premium else "Standard"),
        tag("MessagingUnits", 1 if is_premium else None),
        tag("ModifiedTime", time(created_ms)),
        tag("Name", name),
        tag("NamespaceType", "Messaging"),
    )


def _description(name: str, *parts: str) -> str:
    return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</{name}>'


def _idle_ms(queue: Queue) -> Millis:
    """Of an entity that forwards it is the longest there is, as in Azure: nobody receives from it,
    so it would always look idle. Azure leaves it to an entity that forwards to itself."""
    target = queue.relays_to
    if target is not None and split(target).path != split(queue.path).path:
        return NEVER
    return queue.settings.auto_delete_on_idle_ms


def _extensions(settings: Settings) -> str:
    """Last, and only where there is one: who does not look for it does not meet it."""
    values = extensions_of(settings)
    return extension_element(values) if values else ""


def _message_count(queue: Queue) -> int:
    """Of the queue and of its dead-letter queues."""
    return sum(queue.counts) + sum(sum(each.counts) for each in queue.its_dead_letters)


def _times(queue: Queue) -> str:
    accessed = 0 if queue.accessed_ms <= queue.created_ms else queue.accessed_ms
    return (
        tag("CreatedAt", time(queue.created_ms))
        + tag("UpdatedAt", time(queue.updated_ms))
        + tag("AccessedAt", time(accessed))
    )


def _count_details(queue: Queue) -> str:
    """With one attribute and its prefix on every child: so the JavaScript SDK finds them."""
    counts = queue.counts
    deferred = counts[State.DEFERRED] + counts[State.DEFERRED_LOCKED]
    dead, not_transferred = queue.dead_letter_counts
    return (
        f'<CountDetails xmlns:d2p1="{COUNTS}">'
        + tag("d2p1:ActiveMessageCount", queue.active_count + deferred)
        + tag("d2p1:DeadLetterMessageCount", dead)
        + tag("d2p1:ScheduledMessageCount", counts[State.SCHEDULED] + counts[State.DELAYED])
        + tag("d2p1:TransferMessageCount", queue.transfer_count)
        + tag("d2p1:TransferDeadLetterMessageCount", not_transferred)
        + "</CountDetails>"
    )


def _authorization(rules: tuple[AuthorizationRule, ...]) -> str:
    shown = [
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue><Rights>"
        + "".join(tag("AccessRights", right) for right in rule.rights)
        + "</Rights>"
        + tag("CreatedTime", time(rule.created_ms))
        + tag("ModifiedTime", time(rule.modified_ms))
        + tag("KeyName", rule.name)
        # Shown to the holder of Manage only, whom nothing is hidden from.
        + tag("PrimaryKey", rule.primary_key)
        + tag("SecondaryKey", rule.secondary_key)
        + "</AuthorizationRule>"
        for rule in rules
    ]
    return f"<AuthorizationRules>{''.join(shown)}</AuthorizationRules>"


# --- rules ----------------------------------------------------------------------------------------

_CORRELATION: Final = (
    ("correlation_id", "CorrelationId"),
    ("message_id", "MessageId"),
    ("to", "To"),
    ("reply_to", "ReplyTo"),
    ("label", "Label"),
    ("session_id", "SessionId"),
    ("reply_to_session_id", "ReplyToSessionId"),
    ("content_type", "ContentType"),
)


def read_rule(description: Element, name: str, now: Millis) -> Rule:
    """A RuleDescription. Without a filter it takes every message."""
    written: dict[str, str] = {}
    return Rule(
        name,
        _read_filter(description.find("Filter"), written),
        _read_action(description.find("Action"), written),
        now,
        written,
    )


def _read_filter(element: Element | None, written: dict[str, str]) -> RuleFilter:
    if element is None or element.is_nil:
        return TrueFilter()
    match element.type:
        case "TrueFilter":
            return TrueFilter()
        case "FalseFilter":
            return FalseFilter()
        case "SqlFilter":
            return SqlFilter(*_read_sql(element, written, "filter"))
        case "CorrelationFilter":
            fields: dict[str, str | None] = {}
            for field, azure in _CORRELATION:
                child = element.find(azure)
                fields[field] = None if child is None or child.is_nil else child.text
            values = _read_values(element.find("Properties"), written, "filter")
            return CorrelationFilter(**fields, properties=values)
    raise ArgumentError(f"SubCode=40000. {element.type[:40]!a} is not a filter.")


def _read_action(element: Element | None, written: dict[str, str]) -> SqlAction | None:
    if element is None or element.is_nil or element.type in ("EmptyRuleAction", ""):
        return None
    if element.type != "SqlRuleAction":
        raise ArgumentError(f"SubCode=40000. {element.type[:40]!a} is not an action.")
    return SqlAction(*_read_sql(element, written, "action"))


def _read_sql(
    element: Element, written: dict[str, str], where: str
) -> tuple[str, dict[str, Value]]:
    expression = element.value("SqlExpression")
    if expression is None:
        raise ArgumentError(f"SubCode=40000. The {where} has no SqlExpression.")
    return expression, _read_values(element.find("Parameters"), written, where)


def _read_values(element: Element | None, written: dict[str, str], where: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for pair in () if element is None else element.every("KeyValueOfstringanyType"):
        key, child = pair.find("Key"), pair.find("Value")
        if key is None or child is None or not key.text:
            raise ProtocolError("A property or parameter has no key or no value.")
        value = None if child.is_nil else read_value(child)
        values[key.text] = value
        if isinstance(value, Timestamp):
            written[f"{where}/{key.text}"] = child.text.strip()
    return values


def rule_description(rule: Rule) -> str:
    """Filter and Action are always there: Python's SDK fails without one."""
    return _description(
        "RuleDescription",
        _filter(rule),
        _action(rule),
        tag("CreatedAt", time(rule.created_ms)),
        tag("Name", rule.name),
    )


def _filter(rule: Rule) -> str:
    match rule.filter:
        case TrueFilter():
            return f'<Filter i:type="TrueFilter">{_sql("1=1")}</Filter>'
        case FalseFilter():
            return f'<Filter i:type="FalseFilter">{_sql("1=0")}</Filter>'
        case SqlFilter(expression, parameters):
            values = _values("Parameters", parameters, rule.written, "filter")
            return f'<Filter i:type="SqlFilter">{_sql(expression)}{values}</Filter>'
        case CorrelationFilter() as described:
            fields = "".join(tag(azure, getattr(described, name)) for name, azure in _CORRELATION)
            values = _values("Properties", described.properties, rule.written, "filter")
            return f'<Filter i:type="CorrelationFilter">{fields}{values}</Filter>'
        case _:
            assert_never(rule.filter)


def _action(rule: Rule) -> str:
    if rule.action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    values = _values("Parameters", rule.action.parameters, rule.written, "action")
    return f'<Action i:type="SqlRuleAction">{_sql(rule.action.expression)}{values}</Action>'


def _sql(expression: str) -> str:
    return tag("SqlExpression", expression) + tag("CompatibilityLevel", _COMPATIBILITY_LEVEL)


def _values(name: str, values: Mapping[str, Value], written: Mapping[str, str], where: str) -> str:
    if not values:
        return ""
    pairs = []
    for key, value in values.items():
        kind, text = typed(value)
        text = written.get(f"{where}/{key}", text)
        # Five characters are cut from the type by the JavaScript SDK: a prefix of four and a colon.
        pairs.append(
            f"<KeyValueOfstringanyType>{tag('Key', key)}"
            + (
                '<Value i:nil="true"/>'
                if value is None
                else f'<Value i:type="d6p1:{kind}" xmlns:d6p1="{SCHEMA}">{escape(text)}</Value>'
            )
            + "</KeyValueOfstringanyType>"
        )
    return f"<{name}>{''.join(pairs)}</{name}>"
