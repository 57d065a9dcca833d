"""Frames that came together, as few commands as make no difference.

The rule: the effect is that of one frame after the other, over all links and sessions of the
connection. Neighbours on one entity are one row: messages of one link, or deliveries of one link
that were decided alike. Frames for different entities change places, so that neighbours become more
(a read has frames of a hundred queues), but only where the entities have nothing to do with each
other: none of them forwards, neither messages nor dead letters. What is part of a transaction, a
request, a flow or anything that changes a link is never taken here, nor what is sent by way of
another entity; all that came before it is done first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tandembus.amqp.events import Delivery, Dispositions, Event, MessageReceived
from tandembus.amqp.performatives import Error, Rejected, TransactionalState
from tandembus.amqp.unsettled import MASK
from tandembus.core.namespace import Namespace
from tandembus.server.links import Handler, Inlet
from tandembus.server.outlet import Outlet


class Rows:
    """The rows of one read, in the order in which they began: that of each entity."""

    __slots__ = ("_alone", "_generation", "_last", "_namespace", "_rows")

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._rows: list[Row] = []
        self._last: dict[str, Row] = {}
        """The last row of each entity, which the next frame may continue."""
        self._alone: dict[str, bool] = {}
        """Whether an entity has nothing to do with others; kept from read to read."""
        self._generation = -1

    def of(self, namespace: Namespace) -> None:
        """It is another namespace from now on."""
        self._namespace = namespace
        self._generation = -1

    def act(self, events: Sequence[Event], alone: Callable[[Event], None]) -> None:
        """Do what came in one read. `alone` is called with what is in no row."""
        if len(events) == 1:
            alone(events[0])
            return
        row: list[MessageReceived | Delivery] = []
        link = None  # whose messages continue the row, without another look
        for event in events:
            if type(event) is MessageReceived and event[0] is link and event[6] is None:
                row.append(event)
            elif self._take(event):
                link = None
                if type(event) is MessageReceived:
                    link, row = event.link, self._last[event.link.context.entity].items
            else:
                self._run()
                alone(event)
                link = None
        self._run()

    def _take(self, event: Event) -> bool:
        """Add it to a row. False: it belongs in none."""
        if type(event) is MessageReceived:
            handler = event.link.context
            if event.state is not None or type(handler) is not Inlet:
                return False
            row = self._last.get(handler.entity)
            if row is None or row.handler is not handler or row.event is not None:
                if handler.via is not None or not (row or self._stands_alone(handler.entity)):
                    return False
                row = self._begin(handler, None)
            row.items.append(event)
            return True
        if type(event) is not Dispositions:
            return False
        _, deliveries, state, is_settled, as_receiver, first, last = event
        if not as_receiver or not deliveries or type(state) is TransactionalState:
            return False
        if not is_settled and len(deliveries) <= (last - first & MASK):
            return False  # some are not known, and the peer is told so by `decide`
        parts: list[tuple[Outlet, int]] = []
        link = None
        for place, delivery in enumerate(deliveries):
            if delivery.link is not link:
                link = delivery.link
                handler = link.context
                if type(handler) is not Outlet or not (
                    handler.entity in self._last or self._stands_alone(handler.entity)
                ):
                    return False
                parts.append((handler, place))
        ends = [place for _, place in parts[1:]]
        ends.append(len(deliveries))
        for (handler, place), end in zip(parts, ends, strict=True):
            row = self._last.get(handler.entity)
            if (
                row is None
                or row.handler is not handler
                or (said := row.event) is None
                or said.state is not state
                or said.settled is not is_settled
            ):
                row = self._begin(handler, event)
            row.items += deliveries[place:end]
        return True

    def _run(self) -> None:
        """Do all that was taken."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._last.clear()
            for row in rows:
                row.run()

    def _stands_alone(self, entity: str) -> bool:
        namespace = self._namespace
        if namespace.generation != self._generation:
            self._generation = namespace.generation
            self._alone.clear()
        alone = self._alone.get(entity)
        if alone is None:
            alone = entity in namespace and namespace.find(entity).stands_alone
            self._alone[entity] = alone
        return alone

    def _begin(self, handler: Inlet | Outlet, event: Dispositions | None) -> Row:
        row = self._last[handler.entity] = Row(handler, event)
        self._rows.append(row)
        return row


class Row:
    """What is one command."""

    __slots__ = ("event", "handler", "items")

    def __init__(self, handler: Inlet | Outlet, event: Dispositions | None) -> None:
        self.handler = handler
        self.event = event
        """The first that decided about these deliveries; None: they are messages."""
        self.items: list[MessageReceived | Delivery] = []

    def run(self) -> None:
        if self.event is None:
            self.handler.on_messages(self.items)  # type: ignore[arg-type]
        else:
            self.handler.on_dispositions(self.items, self.event.state, self.event.settled)  # type: ignore[arg-type]


def _between(found: list[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """The ranges of first … last without those that were found, which are in their order: at most
    one more than these, however wide the range. Ids are serial numbers, and wrap."""
    begin = first
    for it in found:
        if it != begin:
            yield begin, it - 1 & MASK
        begin = it + 1 & MASK
    if begin != last + 1 & MASK:
        yield begin, last


def decide(event: Dispositions) -> bool:
    """What the peer has decided about deliveries, by itself: those of one link are one row. Whether
    all of them are known."""
    _, deliveries, state, is_settled, as_receiver, first, last = event
    if not as_receiver:
        return True  # the peer settles what it sent: nothing to do
    is_known = len(deliveries) > (last - first & MASK)
    if not is_settled and not is_known:
        # Settled before, or never ours: say so, or the peer waits a minute.
        text = "The delivery is not unsettled any more."
        lost = Rejected(Error("com.microsoft:message-lock-lost", text))
        for begin, end in _between([delivery.id for delivery in deliveries], first, last):
            event.session.answer(begin, end, lost, as_receiver=False)
    rows: dict[Handler, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.link.context is not None:
            rows.setdefault(delivery.link.context, []).append(delivery)
    for handler, row in rows.items():
        handler.on_dispositions(row, state, is_settled)
    return is_known
