"""One connection with much on it, as the SDK for .NET uses it: what that costs the broker.

`python -m tests.hostile.crowded [--links 10000] [--unsettled 50000]` opens, each on a connection of
its own:

- 300 session receivers, three links in a session each, and 1,000 senders: every sender sends, and
  every receiver gets what was sent to its session;
- as many sessions and links as there may be, and one more, which is refused;
- one receiver with so many unsettled deliveries, which it then completes.

It prints the broker's resident memory, and what it grew by. Exit code 1: something was refused or
missing, or the growth is over its cap.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from tandembus.amqp import link as link_module
from tandembus.amqp import performatives as p
from tandembus.amqp.events import Dispositions, LinkAttached, LinkDetached, MessageReceived
from tandembus.amqp.link import Link
from tandembus.amqp.message import encode_message
from tandembus.client import Client
from tandembus.limits import MAX_CHANNELS
from tandembus.server.outlet import SESSION_FILTER
from tandembus.testing import BrokerProcess

from .connections import resident_mib
from .wire import Hung, Target, Wire

RECEIVERS = 300
SENDERS = 1_000
CAP_LINK_KIB = 8.0
CAP_UNSETTLED_KIB = 1.0
PATIENCE_S = 120.0
_AT_ONCE = 100
"""Links that are attached before their answers are waited for."""
Work: TypeAlias = Callable[[Target, Callable[[], None]], int]
"""Calls its second argument when it has most, and tells how many that were."""


@dataclass(frozen=True, slots=True)
class Growth:
    what: str
    count: int
    before_mib: float
    after_mib: float
    cap_kib: float

    @property
    def each_kib(self) -> float:
        return (self.after_mib - self.before_mib) * 1_024 / max(1, self.count)

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.after_mib:.0f} MiB resident ({self.before_mib:.0f} before, "
            f"{self.each_kib:.2f} KiB for each of {self.count:,})"
        )


class Attaching:
    """Links on a connection, each on a session of its own if that is asked for."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._unanswered: set[Link] = set()
        self._seen = 0
        self.refused: list[str] = []

    def attach(self, session: object, name: str, source: p.Source, target: p.Target) -> Link:
        is_sender = source.address == "here"
        link: Link = session.attach(  # type: ignore[attr-defined]
            name, is_sender=is_sender, source=source, target=target
        )
        self._unanswered.add(link)
        if len(self._unanswered) >= _AT_ONCE:
            self.wait()
        return link

    def wait(self) -> None:
        """Until all are answered."""
        self._wire.talk(self._are_answered, PATIENCE_S)

    def _are_answered(self) -> bool:
        events = self._wire.events
        for event in events[self._seen :]:
            if isinstance(event, LinkAttached | LinkDetached):
                self._unanswered.discard(event.link)
            if isinstance(event, LinkDetached):
                self.refused.append(str(event.error))
        self._seen = len(events)
        return not self._unanswered


def measured(broker: BrokerProcess, what: str, cap_kib: float, work: Work) -> Growth:
    target = Target(broker.port, broker.key)
    Wire.opened(target).close()
    before = resident_mib(broker.process.pid)
    at_most: list[float] = []
    count = work(target, lambda: at_most.append(resident_mib(broker.process.pid)))
    return Growth(what, count, before, max(at_most), cap_kib)


def work_as_net(target: Target, look: Callable[[], None]) -> int:
    """300 session receivers with their `$management`, and 1,000 senders."""
    with Wire.opened(target) as wire:
        links = Attaching(wire)
        receivers = []
        for number in range(RECEIVERS):
            session = wire.connection.begin()
            filters = {SESSION_FILTER: f"s{number}"}
            source = p.Source("sessions", filter=filters)
            receivers.append(links.attach(session, f"r{number}", source, p.Target("here")))
            node = "sessions/$management"
            links.attach(session, f"q{number}", p.Source("here"), p.Target(node))
            links.attach(session, f"a{number}", p.Source(node), p.Target("there"))
        senders = [
            links.attach(
                wire.connection.begin(), f"s{number}", p.Source("here"), p.Target("sessions")
            )
            for number in range(SENDERS)
        ]
        links.wait()
        if links.refused:
            raise Hung(f"{len(links.refused)} links were refused: {links.refused[0]}")
        wire.talk(lambda: all(link.credit for link in senders), PATIENCE_S)
        for link in receivers:
            link.grant(10)
        for number, link in enumerate(senders):
            to = f"s{number % RECEIVERS}"
            link.deliver(b"t", [encode_message(body=b"x", message_id=to, session_id=to)])
        wire.talk(lambda: count_of(wire, MessageReceived) == SENDERS, PATIENCE_S)
        look()
        return 3 * RECEIVERS + SENDERS


def work_to_the_limit(target: Target, look: Callable[[], None], *, most: int) -> int:
    with Wire.opened(target) as wire:
        links = Attaching(wire)
        sessions = [wire.connection.begin() for _ in range(min(MAX_CHANNELS, most))]
        for number in range(most):
            session = sessions[number % len(sessions)]
            links.attach(session, f"l{number}", p.Source("here"), p.Target("plain"))
        links.wait()
        if links.refused:
            raise Hung(f"{len(links.refused)} links were refused: {links.refused[0]}")
        look()
        return most


def work_unsettled(
    target: Target, look: Callable[[], None], *, most: int, connection_string: str
) -> int:
    with Client(connection_string) as client, client.sender("plain") as sender:
        sender.send_all(b"x" for _ in range(most)).check()
    vars(link_module)["_HARD_UNSETTLED"] = most  # of our own end
    with Wire.opened(target) as wire:
        link = wire.attach("plain", is_sender=False)
        link.grant(most)
        wire.talk(lambda: count_of(wire, MessageReceived) == most, PATIENCE_S)
        look()
        ids = [it.delivery_id for it in wire.events if isinstance(it, MessageReceived)]
        link.settle(ids, p.ACCEPTED, settled=False)

        def settled() -> int:
            answers = [it for it in wire.events if isinstance(it, Dispositions)]
            return sum(len(it.deliveries) for it in answers)

        wire.talk(lambda: link.unsettled == 0 or settled() == most, PATIENCE_S)
    with Client(connection_string) as client:
        if left := client.entities.get_queue("plain").counts["ActiveMessageCount"]:
            raise Hung(f"{left} messages are still there")
    return most


def count_of(wire: Wire, kind: type) -> int:
    return sum(isinstance(event, kind) for event in wire.events)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--links", type=int, default=10_000, help="on one connection")
    parser.add_argument("--unsettled", type=int, default=50_000, help="deliveries on one link")
    options = parser.parse_args(arguments)
    failed = False
    with BrokerProcess.start() as broker:
        broker.create_queue("sessions", RequiresSession=True)
        broker.create_queue("plain", LockDuration="PT5M")
        for what, cap, work in (
            (
                f"{RECEIVERS} session receivers and {SENDERS:,} senders on one connection",
                CAP_LINK_KIB,
                work_as_net,
            ),
            (
                f"{options.links:,} links on one connection",
                CAP_LINK_KIB,
                partial(work_to_the_limit, most=options.links),
            ),
            (
                f"{options.unsettled:,} unsettled deliveries on one link",
                CAP_UNSETTLED_KIB,
                partial(
                    work_unsettled,
                    most=options.unsettled,
                    connection_string=broker.connection_string,
                ),
            ),
        ):
            try:
                growth = measured(broker, what, cap, work)
            except (Hung, TimeoutError) as error:
                failed = True
                print(f"{what}: FAILED: {error}", flush=True)
                continue
            print(growth, flush=True)
            if growth.each_kib > growth.cap_kib:
                failed = True
                print(f"  - {growth.each_kib:.2f} KiB each; the cap is {growth.cap_kib:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
