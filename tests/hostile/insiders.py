"""H4 and H9: with good credentials, and no good intentions."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from http.client import HTTPConnection, HTTPException

from tandembus.amqp.events import Dispositions
from tandembus.amqp.link import Link
from tandembus.amqp.message import encode_message
from tandembus.amqp.performatives import Rejected, Source
from tandembus.amqp.performatives import Target as Node
from tandembus.core.sas import sign
from tandembus.testing.process import ROOT

from .attack import Plan, attack
from .wire import Hung, Wire

_RULE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<RuleDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Filter i:type="SqlFilter">'
    "<SqlExpression>{0}</SqlExpression></Filter></RuleDescription></content></entry>"
)
FILTERS = {
    "1,024 × %a": "a LIKE '" + "%a" * 500 + "'",
    "parentheses": "(" * 400 + "1=1" + ")" * 400,
    "long IN": "a IN (" + ",".join(map(str, range(180))) + ")",
    "huge exponent": "1e999999999 > 1e999999998",
    "many LIKEs": " OR ".join(f"a LIKE '%{'ab' * 20}{n}'" for n in range(20)),
    "deep NOT": "NOT " * 190 + "1=1",
    "arithmetic": "+".join(["99999999999999999"] * 90) + " > 1",
}


class _Admin:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        host = f"localhost:{plan.target.port}"
        self._token = sign(f"http://{host}", ROOT, plan.target.key, int(time.time()) + 3_600)
        self._connection = HTTPConnection(plan.target.host, plan.target.port, timeout=20)
        plan.held.append(self._connection)

    def put(self, path: str, body: str) -> int:
        headers = {"Authorization": self._token, "Content-Type": "application/atom+xml"}
        try:
            self._connection.request("PUT", f"/{path}?api-version=2021-05", body, headers)
            response = self._connection.getresponse()
            response.read()
            return response.status
        except (OSError, HTTPException):
            self._connection.close()
            return 0


@attack("H4-filters")
def filters(plan: Plan) -> None:
    """1,024 x %a, nested parentheses, long IN lists, huge exponents; and messages to run them on"""
    admin = _Admin(plan)
    for number, text in enumerate(FILTERS.values()):
        status = admin.put(f"filtered/subscriptions/s/rules/r{number}", _RULE.format(escape(text)))
        plan.deed.count(f"rules: {status}")
        plan.deed.expect(status in (200, 201, 400), f"a filter got the answer {status}")
    payload = encode_message(body=b"x", message_id="f", properties={"a": "ab" * 1_000})
    with Wire.opened(plan.target) as wire:
        link = wire.attach("filtered", is_sender=True)
        _send_while_time(plan, wire, link, lambda number: payload, in_flight=100)


@attack("H9-sessions")
def many_sessions(plan: Plan) -> None:
    """a new session with each message, as many as go in (aim: a million)"""
    with Wire.opened(plan.target) as wire:
        link = wire.attach("sessions", is_sender=True)
        _send_while_time(
            plan, wire, link,
            lambda n: encode_message(body=b"s", message_id=f"s{n}", session_id=f"session-{n}"),
        )  # fmt: skip


@attack("H9-scheduled")
def many_scheduled(plan: Plan) -> None:
    """messages scheduled for next year, as many as go in (aim: a million)"""
    year_ms = int(time.time() * 1_000) + 365 * 86_400_000
    with Wire.opened(plan.target) as wire:
        link = wire.attach("scheduled", is_sender=True)
        _send_while_time(
            plan, wire, link,
            lambda n: encode_message(body=b"s", message_id=f"s{n}", scheduled_ms=year_ms + n),
        )  # fmt: skip


@attack("H9-duplicates")
def duplicate_ids(plan: Plan) -> None:
    """the same message id again and again, and new ones as fast as they go in"""
    with Wire.opened(plan.target) as wire:
        link = wire.attach("duplicates", is_sender=True)
        _send_while_time(
            plan, wire, link,
            lambda n: encode_message(body=b"d", message_id="same" if n % 2 else f"{n:0>120}"),
        )  # fmt: skip


@attack("H9-unsettled")
def unsettled_held(plan: Plan) -> None:
    """take 5,000 messages on each of 4 links and settle none; then ask for more"""
    with Wire.opened(plan.target) as wire:
        link = wire.attach("unsettled", is_sender=True)
        payload = encode_message(body=b"u" * 200, message_id="u")
        for _ in range(plan.many(12_000)):
            if not plan.has_time():
                break
            while not link.capacity:
                wire.hear()
            link.deliver(b"u", [payload], settled=True)
            if len(wire.connection.out) > 200:
                wire.flush()
        wire.flush()
        session = wire.connection.begin()
        source = Source("unsettled")
        receivers = [
            session.attach(f"u{n}", is_sender=False, source=source, target=Node("here"))
            for n in range(4)
        ]
        wire.talk(lambda: all(it.local is not None and it.remote is not None for it in receivers))
        while plan.has_time():
            for receiver in receivers:
                if receiver.credit < 2_500:
                    receiver.grant(5_000)
            try:
                wire.hear(1.0)
            except TimeoutError:
                continue
            wire.events.clear()
        held = sum(len(it.incoming.entries) for it in wire.connection.sessions)
        plan.deed.count("held", held)
        plan.deed.expect(held <= 4 * 5_000 + 1_000, f"{held} unsettled on four links")


@attack("H9-loops")
def loops(plan: Plan) -> None:
    """forward loops A to B to A, and dead letters of dead letters"""
    with Wire.opened(plan.target) as wire:
        try:
            wire.attach("victim/$deadletterqueue/$deadletterqueue", is_sender=False)
            plan.deed.expect(False, "the dead letters of a dead-letter queue were attached to")
        except (Hung, TimeoutError):
            plan.deed.count("refused")
    with Wire.opened(plan.target) as wire:
        link = wire.attach("loop-a", is_sender=True)
        _send_while_time(
            plan, wire, link, lambda n: encode_message(body=b"l", message_id=f"l{n}"), in_flight=50
        )


def _send_while_time(
    plan: Plan, wire: Wire, link: Link, message: Callable[[int], bytes], *, in_flight: int = 500
) -> None:
    """Send as fast as it is accepted; count what was, and what was refused."""
    number = refused = 0
    while plan.has_time():
        while link.capacity and link.unsettled < in_flight:
            link.deliver(number.to_bytes(4, "big"), [message(number)])
            number += 1
        try:
            wire.hear(2.0)
        except TimeoutError:
            plan.deed.count("waits of 2 s")
        for event in wire.events:
            if isinstance(event, Dispositions) and isinstance(event.state, Rejected):
                refused += len(event.deliveries)
        wire.events.clear()
    plan.deed.count("messages", number)
    if refused:
        plan.deed.count("of them refused", refused)
