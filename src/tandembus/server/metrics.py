"""What a server has to show to Prometheus, in the words of Azure Monitor (docs/operating.md).

Here the numbers that core, engine and listener keep anyway are read and written down, when somebody
asks; nothing is counted here. The form is Prometheus's text exposition format 0.0.4. The rule: the
number of series has a bound (entities beyond it are shown as one), and a long list is put together
in pieces, with a turn for everybody else after each.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from tandembus import __version__
from tandembus.changes import EntityKind, Removal, Return
from tandembus.core.queue import Queue
from tandembus.core.state import State
from tandembus.engine.metrics import COMMIT_MS_BOUNDS, GROUP_BYTES_BOUNDS, NS_PER_MS
from tandembus.errors import ServerBusyError, StoreError
from tandembus.limits import MAX_METRIC_ENTITIES, SECOND_MS
from tandembus.model import Millis
from tandembus.server.broker import Broker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHERS: Final = "-Others-"
"""Stands for all entities beyond the bound."""
_AT_ONCE: Final = 50
"""Entities between two turns: about a millisecond."""

Labels: TypeAlias = Mapping[str, object]
Sample: TypeAlias = tuple[Labels, float]


class Connections:
    """What the listener counts."""

    __slots__ = ("closed", "http", "opened")

    def __init__(self) -> None:
        self.opened = 0
        """AMQP, over TCP or a WebSocket."""
        self.closed = 0
        self.http: Counter[int] = Counter()
        """Requests by status."""


class Page:
    """The text. A family (a name, its help and kind) is written once, with all its samples."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def family(self, name: str, kind: str, help_text: str) -> list[str]:
        return self._families.setdefault(f"tandem_{name}", (kind, help_text, []))[2]

    def add(self, name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> None:
        lines = self.family(name, kind, help_text)
        for labels, value in samples:
            lines.append(f"tandem_{name}{_labels(labels)} {_number(value)}")

    def histogram(
        self, name: str, help_text: str, labels: Labels, row: Histogram, scale: float = 1
    ) -> None:
        """`scale`: what a bound of the buckets is in the unit that is shown."""
        lines = self.family(name, "histogram", help_text)
        bounds, buckets, total = row
        seen = 0
        for bound, count in zip((*bounds, None), buckets, strict=True):
            seen += count
            edge = "+Inf" if bound is None else _number(bound * scale)
            lines.append(f"tandem_{name}_bucket{_labels({**labels, 'le': edge})} {seen}")
        lines.append(f"tandem_{name}_sum{_labels(labels)} {_number(total)}")
        lines.append(f"tandem_{name}_count{_labels(labels)} {seen}")

    def encode(self) -> bytes:
        text: list[str] = []
        for name, (kind, help_text, lines) in self._families.items():
            text.append(f"# HELP {name} {_escaped(help_text)}")
            text.append(f"# TYPE {name} {kind}")
            text += lines
        return ("\n".join(text) + "\n").encode()


Histogram: TypeAlias = tuple[Sequence[float], Sequence[int], float]
"""Upper bounds, how many in each bucket (one more than bounds), the sum of all values."""


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{_escaped(str(v), quote=True)}"' for k, v in labels.items()) + "}"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


# --- an entity ------------------------------------------------------------------------------------

Reading: TypeAlias = tuple[int, ...]


def _read(queue: Queue, now: Millis) -> Reading:
    """In the order of `ENTITY`."""
    counts, tally, dead_letters = queue.counts, queue.tally, queue.its_dead_letters
    dead, not_transferred = queue.dead_letter_counts
    handed_out = tally.outgoing + sum(each.tally.outgoing for each in dead_letters)
    sessions = queue.sessions
    return (
        tally.incoming,
        handed_out,
        tally.removed[Removal.COMPLETED],
        tally.returned[Return.ABANDONED],
        tally.returned[Return.LOCK_EXPIRED] + tally.returned[Return.SESSION_EXPIRED],
        tally.removed[Removal.EXPIRED],
        tally.removed[Removal.DEAD_LETTERED],
        tally.pings,
        sum(counts) + dead + not_transferred,
        queue.active_count,
        dead,
        queue.transfer_count,
        not_transferred,
        counts[State.SCHEDULED],
        counts[State.DEFERRED] + counts[State.DEFERRED_LOCKED],
        counts[State.DELAYED],
        counts[State.LOCKED],
        queue.size_bytes + sum(each.size_bytes for each in dead_letters),
        len(queue.receivers.links),
        0 if sessions is None else len(sessions),
        0 if sessions is None else sessions.available,
        0 if sessions is None else sessions.locked,
    )


ENTITY: Final[Sequence[tuple[str, str, str]]] = (
    ("incoming_messages_total", "counter", "IncomingMessages: taken in, sent or forwarded."),
    ("outgoing_messages_total", "counter", "OutgoingMessages: handed out, also again."),
    ("complete_message_total", "counter", "CompleteMessage: completed."),
    ("abandon_message_total", "counter", "AbandonMessage: abandoned."),
    ("locks_lost_total", "counter", "Locks of messages and sessions that ran out."),
    ("expired_messages_total", "counter", "Messages whose time to live was over, and dropped."),
    ("dead_letter_message_total", "counter", "Messages moved to a dead-letter queue."),
    ("pings_total", "counter", "Pings of paired namespaces."),
    ("messages", "gauge", "Messages: in any state, dead-lettered ones too."),
    ("active_messages", "gauge", "ActiveMessages: waiting or locked."),
    ("deadlettered_messages", "gauge", "DeadletteredMessages."),
    ("transfer_messages", "gauge", "TransferMessageCount: waiting to be forwarded."),
    (
        "transfer_deadlettered_messages",
        "gauge",
        "TransferDeadLetterMessageCount: could not be forwarded.",
    ),
    ("scheduled_messages", "gauge", "ScheduledMessages."),
    ("deferred_messages", "gauge", "Deferred messages."),
    ("delayed_messages", "gauge", "Messages abandoned with a delay that is not over."),
    ("locked_messages", "gauge", "Messages that a receiver has locked."),
    ("size_bytes", "gauge", "Size: bytes of all messages, dead-lettered ones too."),
    ("receivers", "gauge", "Receiving links."),
    ("sessions", "gauge", "Sessions with a message, a holder or a state."),
    ("available_sessions", "gauge", "Sessions with a waiting message and without a holder."),
    ("locked_sessions", "gauge", "Sessions that a receiver holds."),
)
"""Name, kind, and what it is: Azure's word first, where Azure has one."""
_AGE: Final = "Since when the oldest active message waits, in seconds; 0: there is none."
_LEVEL: Final = "Waiting messages of each level of a priority queue."


def oldest_age_ms(queue: Queue, now: Millis) -> Millis:
    """How long the oldest active message has been there."""
    oldest = now
    if queue.active_count:
        for part in queue.parts:
            first = part.table.first_in((State.WAITING, State.LOCKED))
            oldest = min(oldest, now if first is None else first)
    return now - oldest


async def _entities(page: Page, broker: Broker) -> None:
    now = broker.now_ms()
    shown = [each for each in broker.namespace.entities if each.kind != EntityKind.DEAD_LETTER]
    rest = [0] * len(ENTITY)
    rest_age = 0
    for place, queue in enumerate(shown):
        if place % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if place >= MAX_METRIC_ENTITIES:
            rest = [a + b for a, b in zip(rest, _read(queue, now), strict=True)]
            rest_age = max(rest_age, oldest_age_ms(queue, now))
            continue
        labels = {"namespace": broker.name, "entity": queue.path}
        _write_entity(page, labels, _read(queue, now), oldest_age_ms(queue, now))
        if queue.levels[0] > 1:
            by_level = Counter[int]()
            for part in queue.parts:
                by_level.update(dict(enumerate(part.table.waiting_by_level(queue.levels[0]))))
            samples = [({**labels, "level": k}, n) for k, n in sorted(by_level.items())]
            page.add("level_messages", "gauge", _LEVEL, samples)
    if len(shown) > MAX_METRIC_ENTITIES:
        _write_entity(page, {"namespace": broker.name, "entity": OTHERS}, rest, rest_age)
    page.add(
        "entities",
        "gauge",
        "Queues, topics and subscriptions.",
        [({"namespace": broker.name}, len(shown))],
    )


def _write_entity(page: Page, labels: Labels, reading: Sequence[int], age_ms: Millis) -> None:
    text = _labels(labels)
    for (name, kind, help_text), value in zip(ENTITY, reading, strict=True):
        page.family(name, kind, help_text).append(f"tandem_{name}{text} {value}")
    page.add("oldest_message_age_seconds", "gauge", _AGE, [(labels, age_ms / SECOND_MS)])


# --- a namespace ----------------------------------------------------------------------------------

_BUSY: Final = ServerBusyError.condition
_OURS: Final = StoreError.condition


def _requests(page: Page, broker: Broker) -> None:
    labels = {"namespace": broker.name}
    refused = broker.refusals
    counted = broker.engine.metrics
    throttled, ours = refused[_BUSY], refused[_OURS]
    theirs = {each: n for each, n in refused.items() if each not in (_BUSY, _OURS)}
    for name, help_text, value in (
        ("incoming_requests_total", "IncomingRequests: commands of clients.", counted.commands),
        (
            "successful_requests_total",
            "SuccessfulRequests: commands that were not refused.",
            counted.commands - counted.refused.total(),
        ),
        ("throttled_requests_total", "ThrottledRequests: told to come back later.", throttled),
        ("server_errors_total", "ServerErrors: failed for a reason of ours.", ours),
    ):
        page.add(name, "counter", help_text, [(labels, value)])
    page.add(
        "user_errors_total",
        "counter",
        "UserErrors: refused for a reason of the client's, by AMQP condition.",
        [({**labels, "condition": each}, n) for each, n in sorted(theirs.items())]
        or [({**labels, "condition": ""}, 0)],
    )


def _engine(page: Page, broker: Broker) -> None:
    labels = {"namespace": broker.name}
    engine, counted = broker.engine.engine, broker.engine.metrics
    for name, kind, help_text, value in (
        ("commits_total", "counter", "Groups written to the log.", counted.commits),
        ("commit_records_total", "counter", "Records written to the log.", counted.records),
        ("bodies_read_total", "counter", "Bodies that had to be read again.", counted.bodies_read),
        ("bodies_moved_total", "counter", "Bodies copied by compaction.", counted.bodies_moved),
        ("staged_bytes", "gauge", "Bytes that wait for the disk.", engine.staged_bytes),
        ("disk_free_bytes", "gauge", "Free space where the log is.", engine.free_bytes()),
    ):
        page.add(name, kind, help_text, [(labels, value)])
    page.histogram(
        "commit_duration_seconds",
        "How long a group took to be on disk.",
        labels,
        (COMMIT_MS_BOUNDS, counted.commit_ms, counted.commit_ns / NS_PER_MS / SECOND_MS),
        scale=1 / SECOND_MS,
    )
    page.histogram(
        "commit_size_bytes",
        "Bytes of a group.",
        labels,
        (GROUP_BYTES_BOUNDS, counted.group_bytes, counted.committed_bytes),
    )


# --- the server -----------------------------------------------------------------------------------


def _server(page: Page, connections: Connections, certificate_ends: datetime | None) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    counted = connections
    for name, kind, help_text, value in (
        ("active_connections", "gauge", "ActiveConnections.", counted.opened - counted.closed),
        ("connections_opened_total", "counter", "ConnectionsOpened.", counted.opened),
        ("connections_closed_total", "counter", "ConnectionsClosed.", counted.closed),
        ("cpu_seconds_total", "counter", "CPU of the process.", usage.ru_utime + usage.ru_stime),
        ("resident_memory_bytes", "gauge", "Memory of the process.", _resident_bytes()),
    ):
        page.add(name, kind, help_text, [({}, value)])
    page.add(
        "http_requests_total",
        "counter",
        "HTTP requests by status.",
        [({"status": status}, n) for status, n in sorted(counted.http.items())],
    )
    if certificate_ends is not None:
        help_text = "When the server's certificate expires, in seconds since 1970."
        samples: list[Sample] = [({}, int(certificate_ends.timestamp()))]
        page.add("certificate_expiry_timestamp_seconds", "gauge", help_text, samples)
    page.add("build_info", "gauge", "The version.", [({"version": __version__}, 1)])


def _resident_bytes() -> int:
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:  # no Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(pages) * resource.getpagesize()


async def render(
    brokers: Sequence[Broker],
    connections: Connections,
    certificate_ends: datetime | None = None,
) -> bytes:
    """All of these namespaces, and the server itself."""
    page = Page()
    _server(page, connections, certificate_ends)
    for broker in brokers:
        _requests(page, broker)
        _engine(page, broker)
        await _entities(page, broker)
    return page.encode()
