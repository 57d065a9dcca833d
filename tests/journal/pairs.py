"""The two logs of a pair through an outage: a backlog in `away`, brought home to `home`.

Real engines, real messages; the syphon's part (receive, send with the same id, complete) is done
here in the same order.
"""

from __future__ import annotations

from pathlib import Path

from tandembus.amqp.message import AmqpMessage, encode_message
from tandembus.clock import ManualClock
from tandembus.core.commands import CreateQueue, Disposition, Send, Settle
from tandembus.engine.blocking import open_engine
from tandembus.pairing.aliases import aliased
from tandembus.settings import QueueSettings

BACKLOG = "home/x-servicebus-transfer/0"
DESTINATION = "Orders"


def write_pair(folder: Path, count: int) -> None:
    """Data folders `home` and `away` in `folder`. One message in three goes straight."""
    clock = ManualClock(1_790_000_000_000)
    settings = QueueSettings()
    with (
        open_engine(folder / "home" / "log", decode=AmqpMessage, clock=clock) as home,
        open_engine(folder / "away" / "log", decode=AmqpMessage, clock=clock) as away,
    ):
        home.execute(CreateQueue(DESTINATION, settings))
        away.execute(CreateQueue(BACKLOG, settings))
        for number in range(count):
            payload = encode_message(body=b"x" * 50, message_id=f"order-{number}")
            clock.advance(3)
            if number % 3 == 0:
                home.execute(Send(DESTINATION, [AmqpMessage(payload)]))
                continue
            around = aliased(payload, DESTINATION, lambda: "fresh")
            away.execute(Send(BACKLOG, [AmqpMessage(around)]))
            if number > count - 10:
                continue  # still in the backlog
            (delivery,) = away.receive(BACKLOG)
            clock.advance(5)
            home.execute(Send(DESTINATION, [AmqpMessage(payload)]))
            assert delivery.token is not None
            away.execute(Settle(BACKLOG, [delivery.token], Disposition.COMPLETE))
