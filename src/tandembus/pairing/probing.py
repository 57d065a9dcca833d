"""Is the primary back (N8), and is the backlog home? Steps for both shells, as in `sending`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Protocol

from azure.servicebus import ServiceBusMessage

from tandembus.model import PING_CONTENT_TYPE
from tandembus.pairing import aliases, wire
from tandembus.pairing.failures import FAILURES, is_message_refused
from tandembus.pairing.heart import GATE_MS, BacklogQueue, Entity, Heart
from tandembus.pairing.ledger import Ledger
from tandembus.pairing.options import Probe
from tandembus.pairing.sending import Steps

_log: Final = logging.getLogger("tandembus.pairing")

PING_TTL: Final = timedelta(seconds=1)
MIN_PROBE_S: Final = 5.0
"""Less is too little for the SDK to open a link on a busy machine."""
MAX_PROBE_S: Final = 30.0
PEEK: Final = 250
"""The most that Azure shows at once."""
PEEK_S: Final = 15.0
FIRST: Final = 1
"""The first sequence number there can be. To 0 the SDK says "where the last peek ended"."""
FEW: Final = 50
"""So few may still be on their way when the gate is shut for the last of them."""
LOOK_S: Final = 0.05
"""Between two looks behind the gate; then ever longer."""
MAX_LOOK_INTERVAL_S: Final = 60.0
"""Between two looks; each that finds many doubles it."""

_PATH: Final = aliases.PATH.encode()


def ping() -> ServiceBusMessage:
    """Empty, and dropped by the broker: no receiver ever sees it."""
    return ServiceBusMessage(None, content_type=PING_CONTENT_TYPE, time_to_live=PING_TTL)


def probe(client: Any, entity: Entity, heart: Heart, ledger: Ledger) -> Steps[None]:
    """Ask the entity whether it takes sends again, and tell the heart. One try."""
    interval_s = heart.options.ping_primary_interval.total_seconds()
    timeout_s = max(MIN_PROBE_S, min(interval_s, MAX_PROBE_S))
    failure: BaseException | None = None
    sender = wire.in_time(client.get_queue_sender(entity.path))
    try:
        try:
            if heart.options.probe is Probe.PING:
                yield sender.send_messages(ping(), timeout=timeout_s)
                ledger.add("pings")
            else:
                yield wire.open_link(sender, timeout_s)
        except FAILURES as error:
            # Azure's queues with sessions refuse a ping for what it is: they take sends.
            failure = None if is_message_refused(error) else error
        except Exception as error:  # noqa: BLE001 - the SDK trips in many ways
            # The entity stays failed over, and is asked again.
            _log.exception("a probe of %s failed", entity.path)
            failure = error
        heart.probed(entity, failure)
    finally:
        try:
            yield sender.close()
        except Exception:  # noqa: BLE001 - the SDK trips in many ways
            _log.debug("a probe's sender did not close", exc_info=True)


class Look(Protocol):
    """What the shell gives to `look_home`."""

    def receiver(self, queue: BacklogQueue) -> Any:
        """The SDK's, for peeking."""
        ...

    def sleep(self, seconds: float) -> Any: ...


def look_home(
    look: Look, entity: Entity, heart: Heart, ledger: Ledger, interval_s: float
) -> Steps[float | None]:
    """With `ordered_return`: whether all that this pair has put into backlogs for the entity is
    home; then it is healthy. Sends wait only for the last few messages. Returns when to look again
    (None: it is home), `interval_s` after the last look: soon if few are left, else ever later."""
    soon_s = heart.options.return_check_interval.total_seconds()
    later_s = min(2 * interval_s, MAX_LOOK_INTERVAL_S)
    queues = sorted(entity.used)
    try:
        if (yield from _waiting(look, entity, queues, ledger)) > FEW:
            return later_s
        heart.gate(entity, is_shut=True)
        deadline_ms = heart.now_ms() + GATE_MS
        wait_s = LOOK_S
        while heart.now_ms() < deadline_ms:
            if not entity.under_way:
                # Again: what was under way may have chosen another queue.
                queues = sorted(entity.used)
                if not (yield from _waiting(look, entity, queues, ledger)):
                    return None if heart.came_home(entity) else soon_s
            yield look.sleep(wait_s)
            wait_s *= 1.5
        return soon_s
    except FAILURES:
        _log.info("the backlog of %s cannot be looked at", entity.path, exc_info=True)
        return later_s
    finally:
        heart.gate(entity, is_shut=False)


def _waiting(
    look: Look, entity: Entity, queues: Sequence[BacklogQueue], ledger: Ledger
) -> Steps[int]:
    """Messages for the entity in these queues, locked ones too; counting stops above FEW. (Also
    those of other pairs: they cannot be told apart, and to wait for them does no harm.)"""
    found = 0
    path = entity.path.encode()
    for queue in queues:
        receiver = look.receiver(queue)
        number = FIRST
        while found <= FEW:
            ledger.add("peeks")
            messages = yield receiver.peek_messages(
                max_message_count=PEEK, sequence_number=number, timeout=PEEK_S
            )
            if not messages:
                break
            for message in messages:
                if (message.application_properties or {}).get(_PATH) == path:
                    found += 1
            number = messages[-1].sequence_number + 1
    return found
