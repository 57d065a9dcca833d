"""Time on a connection: the handshake's, and the idle time-outs of both sides (AMQP 1.0 §2.4.5).

Here live deadlines as numbers. Who reads the clock, and what a missed deadline causes, do not.

The rule: silence is looked at only when a deadline passes, so the hot path notes "something came"
and "something went" and never a time. A peer is given up after one to two of our idle time-outs,
and hears from us at least every half of its own.
"""

from __future__ import annotations

from tandembus.amqp.states import ConnectionState
from tandembus.limits import OPEN_TIMEOUT_MS, SASL_TIMEOUT_MS
from tandembus.model import Millis


class Deadlines:
    """When something has to happen next. All times are of the caller's clock."""

    __slots__ = ("_incoming_ms", "_outgoing_ms", "_started_ms", "has_heard", "has_sent")

    def __init__(self) -> None:
        self._started_ms: Millis | None = None
        self._incoming_ms: Millis | None = None
        self._outgoing_ms: Millis | None = None
        self.has_heard = False
        self.has_sent = False

    def handshake(self, now_ms: Millis, state: ConnectionState) -> Millis:
        """By when SASL, or the open, must be there; counted from the first call."""
        if self._started_ms is None:
            self._started_ms = now_ms
        is_open_next = state is ConnectionState.OPEN
        return self._started_ms + (OPEN_TIMEOUT_MS if is_open_next else SASL_TIMEOUT_MS)

    def idle(
        self, now_ms: Millis, ours_ms: Millis | None, theirs_ms: Millis | None
    ) -> Millis | None:
        """When to look next at an open connection; None if neither side has a time-out."""
        if self._incoming_ms is None and ours_ms:
            self._incoming_ms = now_ms + ours_ms
            self.has_heard = True
        if self._outgoing_ms is None and theirs_ms:
            self._outgoing_ms = now_ms + max(1, theirs_ms // 4)
        due = [it for it in (self._incoming_ms, self._outgoing_ms) if it is not None]
        return min(due, default=None)

    def is_peer_silent(self, now_ms: Millis, ours_ms: Millis | None) -> bool:
        """Whether nothing came for a whole time-out of ours."""
        if self._incoming_ms is None or now_ms < self._incoming_ms or not ours_ms:
            return False
        if not self.has_heard:
            return True
        self.has_heard = False
        self._incoming_ms = now_ms + ours_ms
        return False

    def is_heartbeat_due(self, now_ms: Millis, theirs_ms: Millis | None) -> bool:
        """Whether nothing went for a quarter of the peer's time-out."""
        if self._outgoing_ms is None or now_ms < self._outgoing_ms or not theirs_ms:
            return False
        self._outgoing_ms = now_ms + max(1, theirs_ms // 4)
        is_due = not self.has_sent
        self.has_sent = False
        return is_due
