"""What a peer is told that is refused: an error for the wire, with a tracking id of the log."""

from __future__ import annotations

import logging
from dataclasses import replace

from tandembus.amqp import performatives as p
from tandembus.amqp.types import UInt
from tandembus.errors import ProtocolError, ServerBusyError, TandemError
from tandembus.server.broker import Broker
from tandembus.server.logs import about

log = logging.getLogger("tandembus.server")


def told(broker: Broker, peer: str, error: TandemError, trace: str | None = None) -> p.Error:
    """The log has the reason beside the tracking id (T1), and the trace context of what was
    refused, if it had one."""
    tracking = broker.new_tracking_id()
    broker.refusals[error.condition] += 1
    level = logging.WARNING if isinstance(error, ProtocolError) else logging.INFO
    log.log(
        level,
        "%s: refused: %s (%s) TrackingId:%s",
        peer,
        error,
        error.condition,
        tracking,
        extra=about(peer=peer, tracking_id=tracking, trace=trace),
    )
    info = None
    if isinstance(error, ServerBusyError):
        info = {p.RETRY_AFTER: UInt(error.retry_after_ms)}
    return p.Error(error.condition, f"{error} TrackingId:{tracking}", info)


def tracked(broker: Broker, peer: str, error: p.Error) -> p.Error:
    """The same for what the protocol itself refuses: a message too large, a broken frame."""
    tracking = broker.new_tracking_id()
    condition = error.condition
    said = error.description or condition
    broker.refusals[condition] += 1
    facts = about(peer=peer, tracking_id=tracking)
    log.info("%s: %s (%s) TrackingId:%s", peer, said, condition, tracking, extra=facts)
    return replace(error, description=f"{said} TrackingId:{tracking}")
