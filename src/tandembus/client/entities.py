"""Entities themselves: created, read, listed, changed and deleted over HTTP (WIRE.md §10).

One request, one connection, and it blocks: administration is rare. In asyncio, call it through
`asyncio.to_thread`. Settings have the names of Azure's descriptions (`LockDuration="PT30S"`,
`RequiresSession=True`), so that what is read can be written again. Beside them stand Tandem's own
(`PriorityLevels=3`, `RateLimit="100/s"`, docs/priority.md), which Azure does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, TypeAlias
from urllib.parse import quote

from tandembus import atom
from tandembus.atom import (
    ATOM,
    COUNTS,
    INSTANCE,
    SCHEMA,
    SERVICE_BUS,
    Element,
    description_elements,
    escape,
    read_extension_element,
    tag,
)
from tandembus.client.addresses import ConnectionString, subscription_path
from tandembus.client.failures import status_refusal
from tandembus.client.operations import Correlation, Rule
from tandembus.client.tls import lost, tls_context
from tandembus.clock import Clock
from tandembus.errors import ConnectionLostError, EntityNotFoundError, ProtocolError
from tandembus.limits import MAX_HTTP_BODY
from tandembus.model import Value

API_VERSION: Final = "2021-05"
PAGE: Final = 100
_MOST_NODES: Final = 20_000
"""Of one answer: a page of a hundred descriptions, with room."""

Setting: TypeAlias = str | int | bool | None
"""None: not said. In an update it takes an extension away."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue, a topic or a subscription as the broker describes it."""

    name: str
    settings: Mapping[str, str]
    """The elements of its description that are text: `{"LockDuration": "PT1M", …}`, and its
    extensions."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """`ActiveMessageCount`, `DeadLetterMessageCount`, `ScheduledMessageCount`, …"""


class Entities:
    """The entities of a namespace. Needs a key with Manage."""

    def __init__(
        self,
        target: ConnectionString,
        clock: Clock,
        *,
        timeout_s: float = 60.0,
        ca_file: str | None = None,
    ) -> None:
        self._target = target
        self._clock = clock
        self._timeout_s = timeout_s
        self._ca_file = ca_file

    # --- queues -----------------------------------------------------------------------------------

    def create_queue(self, name: str, **settings: Setting) -> Entity:
        """Raises EntityExistsError if there is one."""
        return self._put(name, "QueueDescription", settings)

    def get_queue(self, name: str) -> Entity:
        return self._get(name, "QueueDescription")

    def update_queue(self, name: str, **settings: Setting) -> Entity:
        """Change these; all others stay."""
        return self._update(name, "QueueDescription", settings)

    def delete_queue(self, name: str) -> None:
        self._request("DELETE", name)

    def list_queues(self) -> list[Entity]:
        return list(self._list("$Resources/queues", "QueueDescription"))

    # --- topics -----------------------------------------------------------------------------------

    def create_topic(self, name: str, **settings: Setting) -> Entity:
        return self._put(name, "TopicDescription", settings)

    def get_topic(self, name: str) -> Entity:
        return self._get(name, "TopicDescription")

    def update_topic(self, name: str, **settings: Setting) -> Entity:
        return self._update(name, "TopicDescription", settings)

    def delete_topic(self, name: str) -> None:
        self._request("DELETE", name)

    def list_topics(self) -> list[Entity]:
        return list(self._list("$Resources/topics", "TopicDescription"))

    # --- subscriptions ----------------------------------------------------------------------------

    def create_subscription(self, topic: str, name: str, **settings: Setting) -> Entity:
        return self._put(subscription_path(topic, name), "SubscriptionDescription", settings)

    def get_subscription(self, topic: str, name: str) -> Entity:
        return self._get(subscription_path(topic, name), "SubscriptionDescription")

    def update_subscription(self, topic: str, name: str, **settings: Setting) -> Entity:
        return self._update(subscription_path(topic, name), "SubscriptionDescription", settings)

    def delete_subscription(self, topic: str, name: str) -> None:
        self._request("DELETE", subscription_path(topic, name))

    def list_subscriptions(self, topic: str) -> list[Entity]:
        return list(self._list(f"{topic}/Subscriptions", "SubscriptionDescription"))

    # --- rules ------------------------------------------------------------------------------------

    def create_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        self._put_rule(topic, subscription, rule, {})

    def update_rule(self, topic: str, subscription: str, rule: Rule) -> None:
        self._put_rule(topic, subscription, rule, {"If-Match": "*"})

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        self._request("DELETE", f"{subscription_path(topic, subscription)}/Rules/{name}")

    def _put_rule(
        self, topic: str, subscription: str, rule: Rule, headers: Mapping[str, str]
    ) -> None:
        path = f"{subscription_path(topic, subscription)}/Rules/{rule.name}"
        self._request("PUT", path, _entry("RuleDescription", _rule(rule)), headers)

    # --- inside -----------------------------------------------------------------------------------

    def _put(
        self,
        path: str,
        kind: str,
        settings: Mapping[str, Setting],
        headers: Mapping[str, str] | None = None,
        *,
        rules: str = "",
    ) -> Entity:
        """`rules`: the element AuthorizationRules."""
        first, last = _in_order(kind, settings)
        elements = description_elements(first) + rules + description_elements(last)
        proofs = {
            header: self._token(_target_of(str(settings[name])))
            for name, header in _PROOFS.items()
            if settings.get(name)
        }
        answer = self._request("PUT", path, _entry(kind, elements), {**(headers or {}), **proofs})
        return _entity(answer, kind)

    def _get(self, path: str, kind: str) -> Entity:
        return self._described(self._request("GET", path), path, kind)

    def _described(self, answer: Element, path: str, kind: str) -> Entity:
        if (answer.namespace, answer.name) != (ATOM, "entry"):
            raise EntityNotFoundError(path)  # Azure answers with an empty feed
        return _entity(answer, kind)

    def _update(self, path: str, kind: str, settings: Mapping[str, Setting]) -> Entity:
        # A description replaces the one before, so what is not named is sent as it was.
        found = self._request("GET", path)
        kept: dict[str, Setting] = dict(self._described(found, path, kind).settings)
        for name in _BROKERS_OWN:
            kept.pop(name, None)
        rules = atom.content_of(found).find("AuthorizationRules")
        return self._put(
            path,
            kind,
            {**kept, **settings},
            {"If-Match": "*"},
            rules="" if rules is None else _written(rules),
        )

    def _list(self, path: str, kind: str) -> Iterator[Entity]:
        skip = 0
        while True:
            feed = self._request("GET", path, query=f"&$skip={skip}&$top={PAGE}")
            entries = list(feed.every("entry", ATOM))
            for entry in entries:
                yield _entity(entry, kind)
            if len(entries) < PAGE:
                return
            skip += len(entries)

    def _token(self, path: str) -> str:
        target = self._target
        scheme = "https" if target.uses_tls else "http"
        return target.token(f"{scheme}://{target.host}/{path}", self._clock.now_ms())[0]

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        query: str = "",
    ) -> Element:
        """The answer's root element; an empty one if it has no body. Raises what it tells."""
        target = self._target
        sent = {
            "Authorization": self._token(path),
            "Content-Type": "application/atom+xml",
            **(headers or {}),
        }
        url = f"/{quote(path, safe='/$')}?api-version={API_VERSION}{query}"
        if target.uses_tls:
            connection: HTTPConnection = HTTPSConnection(
                target.host,
                target.http_port,
                timeout=self._timeout_s,
                context=tls_context(self._ca_file),
            )
        else:
            connection = HTTPConnection(target.host, target.http_port, timeout=self._timeout_s)
        try:
            connection.request(method, url, body, sent)
            response = connection.getresponse()
            data = response.read(MAX_HTTP_BODY + 1)
        except OSError as error:
            raise lost(error, target.host, target.http_port) from None
        except HTTPException as error:
            raise ConnectionLostError(f"{target.host} does not speak HTTP: {error!r}") from None
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise status_refusal(response.status, None, _detail(data, path, response.status))
        return atom.read(data, most_nodes=_MOST_NODES) if data.strip() else Element("", "", {})


_BROKERS_OWN: Final = (
    "SizeInBytes",
    "MessageCount",
    "SubscriptionCount",
    "SqlFilterCount",
    "CorrelationFilterCount",
    "CreatedAt",
    "UpdatedAt",
    "AccessedAt",
    "EntityAvailabilityStatus",
)


_PROOFS: Final = {
    "ForwardTo": "ServiceBusSupplementaryAuthorization",
    "ForwardDeadLetteredMessagesTo": "ServiceBusDlqSupplementaryAuthorization",
}
"""Where messages are forwarded to, and the header that shows that we may send there."""

_ORDER: Final = (
    "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession",
    "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions", "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount", "EnableBatchedOperations", "IsAnonymousAccessible", "Status", "ForwardTo",
    "UserMetadata", "SupportOrdering", "AutoDeleteOnIdle", "EnablePartitioning", "EnableExpress",
    "ForwardDeadLetteredMessagesTo", "MaxMessageSizeInKilobytes",
)  # fmt: skip
"""Azure reads a description in the order of its schema, and passes over what comes too late."""
_ORDER_OF_TOPICS: Final = (
    "DefaultMessageTimeToLive", *(name for name in _ORDER if name != "DefaultMessageTimeToLive"),
)  # fmt: skip


def _in_order(
    kind: str, settings: Mapping[str, Setting]
) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """What comes before the authorization rules, and what after them."""
    order = _ORDER_OF_TOPICS if kind == "TopicDescription" else _ORDER
    places = {name: place for place, name in enumerate(order)}
    border = places["Status"]
    named = sorted(settings, key=lambda name: places.get(name, len(order)))
    return (
        {name: settings[name] for name in named if places.get(name, len(order)) < border},
        {name: settings[name] for name in named if places.get(name, len(order)) >= border},
    )


def _target_of(said: str) -> str:
    """Of what is forwarded to: given by name, or as `sb://host/name`."""
    return said.partition("://")[2].partition("/")[2] if "://" in said else said


def _written(element: Element) -> str:
    """Authorization rules as they were read."""
    kind = f' i:type="{element.type}"' if element.type else ""
    inside = "".join(map(_written, element.children)) or escape(element.text.strip())
    return f"<{element.name}{kind}>{inside}</{element.name}>"


def _entry(kind: str, elements: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}" xmlns:d6p1="{SCHEMA}">{elements}'
        f"</{kind}></content></entry>"
    ).encode()


def _entity(entry: Element, kind: str) -> Entity:
    description = atom.content_of(entry)
    if description.name != kind:
        raise ProtocolError(f"A {kind} was expected, and a {description.name:.40} came.")
    title = entry.find("title", ATOM)
    settings = {
        each.name: each.text.strip()
        for each in description.children
        if not each.children and not each.is_nil and each.text.strip()
    } | (read_extension_element(description) or {})
    counts: dict[str, int] = {}
    details = description.find("CountDetails")
    for each in [] if details is None else details.children:
        if each.namespace == COUNTS:
            counts[each.name] = atom.read_integer(each.text)
    return Entity("" if title is None else title.text.strip(), settings, counts)


def _detail(data: bytes, path: str, status: int) -> str:
    """The text of an error, if its body has one."""
    try:
        root = atom.read(data)
    except ProtocolError:
        return f"{path}: HTTP status {status}"
    found = next((each.text for each in root.children if each.name == "Detail"), "")
    return found.strip() or f"{path}: HTTP status {status}"


# --- rules ----------------------------------------------------------------------------------------

_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "boolean"),
    (int, "long"),
    (float, "double"),
    (str, "string"),
)


def _rule(rule: Rule) -> str:
    if isinstance(rule.filter, str):
        filter_ = f'<Filter i:type="SqlFilter">{tag("SqlExpression", rule.filter)}</Filter>'
    else:
        filter_ = f'<Filter i:type="CorrelationFilter">{_correlation(rule.filter)}</Filter>'
    action = '<Action i:type="EmptyRuleAction"/>'
    if rule.action is not None:
        action = f'<Action i:type="SqlRuleAction">{tag("SqlExpression", rule.action)}</Action>'
    return filter_ + action + tag("Name", rule.name)


def _correlation(wanted: Correlation) -> str:
    texts = (
        ("CorrelationId", wanted.correlation_id),
        ("MessageId", wanted.message_id),
        ("To", wanted.to),
        ("ReplyTo", wanted.reply_to),
        ("Label", wanted.subject),
        ("SessionId", wanted.session_id),
        ("ReplyToSessionId", wanted.reply_to_session_id),
        ("ContentType", wanted.content_type),
    )
    pairs = "".join(_pair(name, value) for name, value in wanted.properties.items())
    properties = f"<Properties>{pairs}</Properties>" if pairs else ""
    return "".join(tag(name, value) for name, value in texts) + properties


def _pair(name: str, value: Value) -> str:
    kind = next((word for cls, word in _TYPES if isinstance(value, cls)), "string")
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return (
        f"<KeyValueOfstringanyType>{tag('Key', name)}"
        f'<Value i:type="d6p1:{kind}">{escape(text)}</Value></KeyValueOfstringanyType>'
    )
