"""Azure's administration API: a request in, a response out (WIRE.md §10).

Here live the paths, the verbs, who may ask, pages, ETags and the errors as Azure words them. HTTP
itself is `tandembus.http`, XML is `atom`, descriptions are `descriptions`, and what an entity can
be told is core's.

The rule: every request needs Manage on the very resource that it names, looked at or changed; then
the command it stands for is carried out in the name of that right.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from tandembus import limits
from tandembus.admin.descriptions import (
    SIZE_SINCE,
    Shown,
    namespace_info,
    read_rule,
    read_settings,
    rule_description,
)
from tandembus.atom import (
    ENTRY_TYPE,
    ERROR_TYPE,
    FEED_TYPE,
    Element,
    Entry,
    Origin,
    content_of,
    read,
    read_integer,
    time,
    write_entry,
    write_error,
    write_feed,
)
from tandembus.changes import EntityKind, Note
from tandembus.core.access import (
    Claims,
    Grant,
    Right,
    everything,
    path_of,
    require_right,
    targets_of,
)
from tandembus.core.commands import (
    AddRule,
    Command,
    CreateQueue,
    CreateSubscription,
    CreateTopic,
    DeleteEntity,
    Remark,
    RemoveRule,
    UpdateEntity,
    UpdateRule,
)
from tandembus.core.namespace import Namespace
from tandembus.core.queue import Queue
from tandembus.core.rules import Rule
from tandembus.errors import (
    ArgumentError,
    EntityNotFoundError,
    ProtocolError,
    Refused,
    ServerBusyError,
    StoreError,
    UnauthorizedError,
)
from tandembus.http import Request, Response
from tandembus.model import NEVER, Millis
from tandembus.names import SUBSCRIPTIONS
from tandembus.settings import QueueSettings, SubscriptionSettings, TopicSettings

log = logging.getLogger("tandembus.admin")

RULES: Final = "rules"
RESOURCES: Final = "$resources"
NAMESPACE_INFO: Final = "$namespaceinfo"
_TOKENS: Final = (
    "authorization",
    "servicebussupplementaryauthorization",
    "servicebusdlqsupplementaryauthorization",
)
_KINDS: Final = {"queues": EntityKind.QUEUE, "topics": EntityKind.TOPIC}
_DESCRIPTIONS: Final[dict[str, type[QueueSettings] | type[TopicSettings]]] = {
    "QueueDescription": QueueSettings,
    "TopicDescription": TopicSettings,
}


_Change: TypeAlias = (
    CreateQueue
    | CreateTopic
    | CreateSubscription
    | UpdateEntity
    | DeleteEntity
    | AddRule
    | UpdateRule
    | RemoveRule
)


class Broker(Protocol):
    """What the API needs of the broker that it administers."""

    @property
    def name(self) -> str:
        """The namespace's name."""
        ...

    @property
    def namespace(self) -> Namespace:
        """To look at; it is changed by `execute` only."""
        ...

    async def execute(self, command: Command, claims: Claims) -> Any:
        """The reply, when it is durable. Raises Refused or StoreError."""
        ...

    def authorize(self, authorization_header: str | None, resource: str) -> Claims:
        """What the header proves for a path. Raises UnauthorizedError."""
        ...

    def now_ms(self) -> Millis: ...

    def new_tracking_id(self) -> str:
        """An id that stands in the error and in the broker's log (T1)."""
        ...


@dataclass(frozen=True, slots=True)
class _Place:
    """What a path names."""

    entity: str = ""
    subscription: str | None = None
    rule: str | None = None
    listing: str | None = None
    """`queues`, `topics`, `subscriptions` or `rules`: all of them, and not one."""

    @property
    def path(self) -> str:
        """The queue, topic or subscription."""
        if self.subscription is None:
            return self.entity
        return f"{self.entity}/Subscriptions/{self.subscription}"


class _Denied(Exception):
    """What only HTTP has a word for."""

    def __init__(self, status: int, words: str, *headers: tuple[str, str]) -> None:
        super().__init__(words)
        self.status = status
        self.headers = headers


class AdminApi:
    """`is_premium`: the namespace takes MaxMessageSizeInKilobytes and calls itself so."""

    __slots__ = ("_broker", "_created_ms", "_is_premium")

    def __init__(
        self, broker: Broker, *, is_premium: bool = False, created_ms: Millis | None = None
    ) -> None:
        self._broker = broker
        self._is_premium = is_premium
        self._created_ms = broker.now_ms() if created_ms is None else created_ms

    async def handle(self, request: Request) -> Response:
        """The answer to any request; what is refused is an answer, too."""
        try:
            return await self._answer(request)
        except _Denied as denied:
            return self._refusal(request, denied.status, str(denied), *denied.headers)
        except ServerBusyError as error:
            retry = ("Retry-After", str(-(-error.retry_after_ms // 1_000)))
            return self._refusal(request, error.status, str(error), retry)
        except (Refused, ProtocolError) as error:
            return self._refusal(request, error.status, str(error))
        except StoreError as error:
            # What went wrong with the disk is for the log, not for whoever asked.
            words = "The broker cannot store anything any more."
            return self._refusal(request, error.status, words)

    async def _answer(self, request: Request) -> Response:
        segments = "/".join(request.path).split("/")
        if len(segments) > 1 and not segments[-1]:
            segments.pop()  # @azure/service-bus lists `topic/Subscriptions/`
        resource = "/".join(segments)
        claims = self._broker.authorize(request.headers.get("authorization"), resource)
        require_right(claims, resource, Right.MANAGE, self._broker.now_ms())
        if len(segments) == 1 and segments[0].lower() == NAMESPACE_INFO:
            _only(request, "GET")
            return self._namespace_info(request)
        place = _place(segments)
        if place.listing is not None:
            _only(request, "GET")
            return self._list(request, place)
        _only(request, "GET", "PUT", "DELETE")
        self._check_described(request, place)
        if "if-match" in request.headers:
            self._check_etag(request, place)
        match request.method:
            case "GET":
                shown = self._show(request, place, 200)
                await self._broker.execute(Remark(place.path, Note.MANAGED), everything())
                return shown
            case "PUT":
                await self._put(request, place)
                return self._show(request, place, 200 if "if-match" in request.headers else 201)
            case _:
                await self._delete(request, place)
                return Response(200)

    # --- changing ---------------------------------------------------------------------------------

    async def _put(self, request: Request, place: _Place) -> None:
        description = content_of(read(request.body))
        is_update, version = "if-match" in request.headers, _version(request)
        if place.rule is not None:
            await self._do(request, self._rule(description, place, is_update=is_update))
        elif place.subscription is not None:
            await self._do(request, self._subscription(description, place, is_update=is_update))
        else:
            entity = self._entity(description, place, is_update=is_update, version=version)
            await self._do(request, entity)

    async def _delete(self, request: Request, place: _Place) -> None:
        self._find(place)
        if place.rule is not None:
            await self._do(request, RemoveRule(place.path, place.rule))
        else:
            await self._do(request, DeleteEntity(place.path))

    async def _do(self, request: Request, command: _Change) -> None:
        # Manage was shown for what the path names, which is below what some commands name.
        whole = path_of(command.topic if isinstance(command, CreateSubscription) else command.path)
        claims = Claims({whole: Grant(whole, Right.ALL, NEVER)})
        for target in targets_of(command):
            self._prove(request, target, claims)
        await self._broker.execute(command, claims)

    def _prove(self, request: Request, target: str, claims: Claims) -> None:
        """What the request shows for an entity that messages shall be forwarded to: the token that
        it came with, or those that the SDKs put beside it."""
        audience = f"https://{request.headers.get('host') or ''}/{target}"
        for header in _TOKENS:
            if header not in request.headers and header != _TOKENS[0]:
                continue
            try:
                shown = self._broker.authorize(request.headers.get(header), audience)
            except UnauthorizedError:
                continue
            if shown.allows(path_of(target), Right.SEND, self._broker.now_ms()):
                claims.grants.setdefault(path_of(target), Grant(path_of(target), Right.SEND, NEVER))

    def _entity(
        self, description: Element, place: _Place, *, is_update: bool, version: str
    ) -> CreateQueue | CreateTopic | UpdateEntity:
        kind = _DESCRIPTIONS.get(description.name)
        if kind is None:
            raise ArgumentError("SubCode=40000. A queue or a topic has to be described.")
        kept = self._queue(place.entity).settings if is_update else None
        if kept is not None and not isinstance(kept, kind):
            raise ArgumentError(
                f"SubCode=40000. '{place.entity}' is not described by a {description.name}."
            )
        now, premium = self._broker.now_ms(), self._is_premium
        settings: QueueSettings | TopicSettings
        if kind is QueueSettings:
            assert kept is None or isinstance(kept, QueueSettings)
            queue = read_settings(
                QueueSettings, description, kept, now, is_premium=premium, version=version
            )
            if not is_update:
                return CreateQueue(place.entity, queue)
            settings = queue
        else:
            assert kept is None or isinstance(kept, TopicSettings)
            topic = read_settings(
                TopicSettings, description, kept, now, is_premium=premium, version=version
            )
            if not is_update:
                return CreateTopic(place.entity, topic)
            settings = topic
        return UpdateEntity(place.entity, settings)

    def _subscription(
        self, description: Element, place: _Place, *, is_update: bool
    ) -> CreateSubscription | UpdateEntity:
        if description.name != "SubscriptionDescription":
            raise ArgumentError("SubCode=40000. A subscription has to be described.")
        assert place.subscription is not None
        now = self._broker.now_ms()
        kept = self._queue(place.path).settings if is_update else None
        assert kept is None or isinstance(kept, SubscriptionSettings)
        settings = read_settings(
            SubscriptionSettings, description, kept, now, is_premium=self._is_premium
        )
        if is_update:
            return UpdateEntity(place.path, settings)
        self._topic(place.entity)
        first = description.find("DefaultRuleDescription")
        rule = None
        if first is not None and not first.is_nil:
            rule = read_rule(first, first.value("Name") or "$Default", now)
        return CreateSubscription(place.entity, place.subscription, settings, rule)

    def _rule(
        self, description: Element, place: _Place, *, is_update: bool
    ) -> AddRule | UpdateRule:
        if description.name != "RuleDescription":
            raise ArgumentError("SubCode=40000. A rule has to be described.")
        assert place.rule is not None
        self._subscribed(place)
        rule = read_rule(description, place.rule, self._broker.now_ms())
        return UpdateRule(place.path, rule) if is_update else AddRule(place.path, rule)

    # --- looking ----------------------------------------------------------------------------------

    def _show(self, request: Request, place: _Place, status: int) -> Response:
        origin = self._origin(request)
        found = self._find(place)
        entry = self._entry(origin, found)
        headers = (("Content-Type", ENTRY_TYPE), ("ETag", _etag(found)))
        return Response(status, headers, write_entry(entry, origin))

    def _list(self, request: Request, place: _Place) -> Response:
        found: Sequence[Queue | tuple[Queue, Rule]]
        if place.listing == RULES:
            subscription = self._subscribed(place)
            rules = self._broker.namespace.rules(subscription.path)
            found = [(subscription, rule) for rule in sorted(rules, key=lambda r: r.name.lower())]
            path, title = f"{subscription.path}/Rules", "Rules"
        elif place.listing == SUBSCRIPTIONS:
            topic = self._topic(place.entity)
            found = [queue for _, queue in sorted(topic.subscriptions.items())]
            path, title = f"{topic.path}/Subscriptions", "Subscriptions"
        else:
            assert place.listing is not None
            kind = _KINDS[place.listing]
            every = [each for each in self._broker.namespace.entities if each.kind is kind]
            every.sort(key=lambda queue: queue.path.lower())
            found = every
            path, title = f"$Resources/{place.listing}", place.listing.title()
        skip = _count(request, "$skip", 0)
        top = min(_count(request, "$top", limits.MAX_ADMIN_PAGE), limits.MAX_ADMIN_PAGE)
        origin = self._origin(request)
        page = [self._entry(origin, each) for each in found[skip : skip + top]]
        body = write_feed(
            path,
            title,
            page,
            origin,
            self._broker.now_ms(),
            skip=skip,
            top=top,
            has_more=bool(page) and skip + len(page) < len(found),
        )
        return Response(200, (("Content-Type", FEED_TYPE),), body)

    def _namespace_info(self, request: Request) -> Response:
        name, created = self._broker.name, self._created_ms
        content = namespace_info(name, created, is_premium=self._is_premium)
        entry = Entry("$namespaceinfo", name, created, created, content)
        headers = (("Content-Type", ENTRY_TYPE),)
        return Response(200, headers, write_entry(entry, self._origin(request)))

    def _entry(self, origin: Origin, found: Queue | tuple[Queue, Rule]) -> Entry:
        if isinstance(found, tuple):
            queue, rule = found
            path = f"{queue.path}/Rules/{rule.name}"
            created = rule.created_ms
            return Entry(path, rule.name, created, created, rule_description(rule))
        queue, shown = found, Shown(origin.host, origin.api_version)
        title = queue.path
        if queue.kind is EntityKind.QUEUE:
            content = shown.queue(queue)
        elif queue.kind is EntityKind.TOPIC:
            content = shown.topic(queue, self._broker.namespace.filter_counts(queue.path))
        else:
            content = shown.subscription(queue)
            title = queue.path.rpartition("/")[2]
        return Entry(queue.path, title, queue.created_ms, queue.updated_ms, content)

    def _origin(self, request: Request) -> Origin:
        host = request.headers.get("host") or self._broker.name
        return Origin(host, self._broker.name, _version(request))

    # --- finding ----------------------------------------------------------------------------------

    def _find(self, place: _Place) -> Queue | tuple[Queue, Rule]:
        if place.rule is None:
            return self._queue(place.path)
        subscription = self._subscribed(place)
        for rule in self._broker.namespace.rules(subscription.path):
            if rule.name.casefold() == place.rule.casefold():
                return subscription, rule
        raise EntityNotFoundError(f"{subscription.path}/Rules/{place.rule}")

    def _queue(self, path: str) -> Queue:
        """Not a dead-letter queue: it has no description of its own."""
        queue = self._broker.namespace.find(path)
        if queue.kind is EntityKind.DEAD_LETTER:
            raise EntityNotFoundError(path)
        return queue

    def _topic(self, path: str) -> Queue:
        queue = self._broker.namespace.find(path)
        if queue.kind is not EntityKind.TOPIC:
            raise EntityNotFoundError(path)
        return queue

    def _subscribed(self, place: _Place) -> Queue:
        self._topic(place.entity)
        return self._queue(place.path)

    def _check_described(self, request: Request, place: _Place) -> None:
        """A dead-letter queue has no description: its entity tells of it. Azure's answer is 400
        with these words, whether it is looked at or changed, and 404 where there is no entity."""
        found = self._broker.namespace
        if place.path in found and found.find(place.path).kind is EntityKind.DEAD_LETTER:
            raise _Denied(400, f"The specified HTTP verb ({request.method}) is not valid.")

    def _check_etag(self, request: Request, place: _Place) -> None:
        """`If-Match: *` only says that it must be there, which every request with it does."""
        etag = _etag(self._find(place))
        if not request.headers.words("if-match") & {"*", etag}:
            raise _Denied(412, "The entity was changed in the meantime.")

    # --- refusing ---------------------------------------------------------------------------------

    def _refusal(
        self, request: Request, status: int, words: str, *headers: tuple[str, str]
    ) -> Response:
        if "SubCode=" not in words:
            words = f"SubCode={status}00. {words}"
        path = "/".join(request.path)
        tracking_id = self._broker.new_tracking_id()
        log.info(
            "%s %.200r refused: %.500r (%d) TrackingId:%s",
            request.method,
            path,
            words,
            status,
            tracking_id,
        )
        detail = (
            f"{words} TrackingId:{tracking_id}, "
            f"SystemTracker:{self._broker.name}:{path}, Timestamp:{time(self._broker.now_ms())}"
        )
        content_type = ("Content-Type", ERROR_TYPE)
        return Response(status, (content_type, *headers), write_error(status, detail))


def _place(segments: list[str]) -> _Place:
    """From the right, in any case: an entity's name has slashes, encoded (Python) or bare (JS)."""
    words = ["", "", "", *(segment.lower() for segment in segments)]
    if words[-2] == RESOURCES and len(segments) == 2:
        if words[-1] not in _KINDS:
            raise EntityNotFoundError("/".join(segments))
        return _Place(listing=words[-1])
    if words[-1] == RULES and words[-3] == SUBSCRIPTIONS and len(segments) > 3:
        return _Place("/".join(segments[:-3]), segments[-2], listing=RULES)
    if words[-2] == RULES and words[-4] == SUBSCRIPTIONS and len(segments) > 4:
        return _Place("/".join(segments[:-4]), segments[-3], segments[-1])
    if words[-2] == SUBSCRIPTIONS and len(segments) > 2:
        return _Place("/".join(segments[:-2]), segments[-1])
    if words[-1] == SUBSCRIPTIONS and len(segments) > 1:
        return _Place("/".join(segments[:-1]), listing=SUBSCRIPTIONS)
    return _Place("/".join(segments))


def _version(request: Request) -> str:
    return request.query.get("api-version", SIZE_SINCE)


def _only(request: Request, *methods: str) -> None:
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise _Denied(405, f"Only {allowed} can be done here.", ("Allow", allowed))


def _count(request: Request, name: str, default: int) -> int:
    given = request.query.get(name)
    count = default if given is None else read_integer(given)
    if count < 0:
        raise ArgumentError(f"SubCode=40000. {name} is negative.")
    return count


def _etag(found: Queue | tuple[Queue, Rule]) -> str:
    changed = found[1].created_ms if isinstance(found, tuple) else found.updated_ms
    return f'"{changed}"'
