"""What a caller can choose, and the rules of N2: the names and the settings of backlog queues.

Here live plain values. A length of time is a `timedelta`, as in the SDK, and milliseconds inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

MAX_FAILOVER_INTERVAL: Final = timedelta(minutes=60)
MAX_BACKLOG_QUEUES: Final = 1_000
"""Each costs a receive link and four receives an hour; more than this is a mistake."""

LONG_POLL: Final = timedelta(minutes=15)
"""How long one receive of the syphon waits (N9): 4 an hour for each backlog queue."""

MAX_TIME: Final = "P10675199DT2H48M5.4775807S"
BACKLOG_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "LockDuration": "PT1M",
    "MaxSizeInMegabytes": 5120,
    "DefaultMessageTimeToLive": MAX_TIME,
    "DeadLetteringOnMessageExpiration": True,
    "MaxDeliveryCount": 0x7FFF_FFFF,
    "EnableBatchedOperations": True,
    "AutoDeleteOnIdle": MAX_TIME,
}
"""Of every backlog queue (N2), in the order in which Azure's QueueDescription wants them; all else
has its default."""


class Probe(StrEnum):
    """How an entity that failed over is asked whether it is back."""

    PING = "ping"
    """A ping message (N8): proves that a send is taken, and is billed as one."""
    ATTACH = "attach"
    """A sender's link that is opened and closed: no message, and no proof that one is taken."""


@dataclass(frozen=True, slots=True)
class PairingOptions:
    """The options of `pair_namespace`."""

    backlog_queue_count: int = 10
    """Backlog queues in each secondary. One keeps the order of each sender (N9)."""
    failover_interval: timedelta = timedelta(minutes=1)
    """From the first failure, without one success, to failover. Zero: at once."""
    ping_primary_interval: timedelta = timedelta(minutes=1)
    """How often an entity that failed over is asked whether it is back."""
    enable_syphon: bool = False
    """Bring backlogs home in this process. Some process has to: `tandem syphon`, a receiver's."""
    ordered_return: bool = False
    """What an entity gets from a sender keeps going to the backlog until all that it has there is
    home, so that nothing overtakes. Costs a few bytes in each backlog message, and peeks."""
    probe: Probe = Probe.PING
    send_timeout: timedelta | None = None
    """For a send whose caller gives none. Without it the SDK's own retries decide how long a caller
    waits for a primary that does not answer."""
    backlog_retry_interval: timedelta = timedelta(minutes=1)
    """After this a backlog queue that left the rotation may be chosen again."""
    return_check_interval: timedelta = timedelta(seconds=5)
    """With `ordered_return`: how often a sender looks whether its backlog is home."""
    close_grace: timedelta = timedelta(seconds=5)
    """After one side was closed or faulted, the other is given this time to follow (N10)."""
    primary_name: str | None = None
    """The first part of the names of the backlog queues; the primary's host name if not given."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the `ServiceBusClient`s that are made from connection strings."""
    syphon_batch: int = 100
    """Messages that the syphon receives at a time."""
    syphon_in_hand: int = 1_000
    """Messages of one backlog queue that the syphon keeps locked while their destinations fail;
    beyond them it does not look for messages to others."""

    def __post_init__(self) -> None:
        if not 1 <= self.backlog_queue_count <= MAX_BACKLOG_QUEUES:
            raise ValueError(f"backlog_queue_count is 1 to {MAX_BACKLOG_QUEUES}")
        if not timedelta() <= self.failover_interval <= MAX_FAILOVER_INTERVAL:
            raise ValueError("failover_interval is 0 to 60 minutes")
        if not 1 <= self.syphon_batch <= self.syphon_in_hand:
            raise ValueError("syphon_batch is at least 1, and not more than syphon_in_hand")
        for name in (
            "ping_primary_interval",
            "backlog_retry_interval",
            "return_check_interval",
            "send_timeout",
        ):
            value = getattr(self, name)
            if value is not None and value <= timedelta():
                raise ValueError(f"{name} is a length of time above zero")

    @property
    def send_timeout_s(self) -> float | None:
        return None if self.send_timeout is None else self.send_timeout.total_seconds()


def backlog_path(primary_name: str, index: int) -> str:
    """Of a backlog queue, in the secondary namespace."""
    return f"{primary_name}/x-servicebus-transfer/{index}"


def millis(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)
