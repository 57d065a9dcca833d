"""An engine that a test drives by hand: stepped lanes, a clock that stands still, a log in
memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandembus.changes import Mode
from tandembus.clock import ManualClock
from tandembus.core.commands import (
    Attach,
    Command,
    CreateQueue,
    Disposition,
    Flow,
    Send,
    Settle,
)
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.engine.committer import SteppedLane
from tandembus.engine.engine import Engine, Reply, Tuning
from tandembus.engine.recovery import Recovered, recover
from tandembus.errors import Refused, StoreError
from tandembus.model import MessageId, Millis, Value
from tandembus.settings import QueueSettings
from tandembus.store.api import Buffer, Store
from tandembus.store.memory import MemoryStore


@dataclass(frozen=True)
class Plain:
    """A message that is its payload and little else."""

    payload: bytes
    ttl_ms: Millis | None = None
    scheduled_ms: Millis | None = None
    content_type: str | None = None
    message_id: MessageId | None = None
    session_id: str | None = None
    partition_key: str | None = None
    priority: int | None = None
    correlation_id: MessageId | None = None
    label: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    via_partition_key: str | None = None
    is_ping: bool = False
    properties: Mapping[str, Value] = field(default_factory=dict)


class FaultyStore(MemoryStore):
    """Fails the n-th append."""

    def __init__(self, *, fails_at: int) -> None:
        super().__init__()
        self.left = fails_at

    def append(self, body: Sequence[Buffer]) -> int:
        self.left -= 1
        if not self.left:
            raise StoreError("the disk is gone")
        return super().append(body)


class World:
    """One life of an engine on a store."""

    def __init__(
        self,
        store: Store | None = None,
        clock: ManualClock | None = None,
        *,
        tuning: Tuning | None = None,
    ) -> None:
        self.store: Store = MemoryStore() if store is None else store
        self.clock = clock or ManualClock()
        self.commits = SteppedLane()
        self.side = SteppedLane()
        self.effects: list[Effect] = []
        self.failures: list[StoreError] = []
        self.happened: list[object] = []
        """Replies and effects in the order in which they came out."""
        self.recovered: Recovered = recover(self.store)
        self.engine = Engine(
            self.recovered,
            self.store,
            clock=self.clock,
            decode=Plain,
            on_effect=self._effect,
            on_failure=self.failures.append,
            commit_lane=self.commits,
            side_lane=self.side,
            tuning=tuning or Tuning(),
        )

    def _effect(self, effect: Effect) -> None:
        self.effects.append(effect)
        self.happened.append(effect)

    @property
    def namespace(self) -> Any:
        return self.recovered.namespace

    def submit(self, command: Command) -> list[Reply]:
        """The list that the reply will be in, once it has come out."""
        replies: list[Reply] = []

        def done(reply: Reply) -> None:
            replies.append(reply)
            self.happened.append(reply)

        self.engine.submit(command, done)
        return replies

    def commit(self) -> None:
        """One group, if anyone waits for it."""
        self.engine.flush()
        self.commits.step()

    def settle(self) -> None:
        """Until nothing is left to be done."""
        self.engine.flush()
        while self.commits.step() or self.side.step():
            pass

    def execute(self, command: Command) -> Any:
        replies = self.submit(command)
        self.settle()
        (reply,) = replies
        if isinstance(reply, Refused | StoreError):
            raise reply
        return reply

    def queue(self, path: str = "q", **settings: Any) -> None:
        self.execute(CreateQueue(path, QueueSettings(**settings)))

    def send(self, *payloads: bytes, path: str = "q") -> list[int]:
        return list(self.execute(Send(path, [Plain(p) for p in payloads])))

    def attach(self, link: int, path: str = "q", mode: Mode = Mode.PEEK_LOCK) -> None:
        self.execute(Attach(link, path, mode))

    def flow(self, link: int, credit: int) -> list[Reply]:
        return self.submit(Flow(link, credit, self.clock.random_bits(64)))

    def delivered(self) -> list[Delivery]:
        """What was delivered since the last question."""
        found = [d for e in self.effects if isinstance(e, Deliver) for d in e.deliveries]
        self.effects.clear()
        return found

    def receive(self, link: int, credit: int) -> list[Delivery]:
        self.flow(link, credit)
        self.settle()
        return self.delivered()

    def submit_payload(self, payload: bytes, path: str = "q") -> None:
        self.submit(Send(path, [Plain(payload)]))

    def submit_complete(self, deliveries: Sequence[Delivery], path: str = "q") -> None:
        tokens = [d.token for d in deliveries if d.token is not None]
        self.submit(Settle(path, tokens, Disposition.COMPLETE))

    def complete(self, deliveries: Sequence[Delivery], path: str = "q") -> None:
        tokens = [d.token for d in deliveries if d.token is not None]
        self.execute(Settle(path, tokens, Disposition.COMPLETE))

    def stop(self) -> None:
        """Clean stop."""
        ended: list[None] = []
        self.engine.close(lambda: ended.append(None))
        self.settle()
        assert ended
