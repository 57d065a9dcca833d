"""The engine for a program without an event loop: the tour, tools, tests.

The thread that calls is the owner. Nothing happens between two calls: what has become due meanwhile
(a lock that ran out) is done at the beginning of the next one, or by `poll`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from tandembus.changes import Mode
from tandembus.clock import Clock, SystemClock
from tandembus.core.commands import Attach, Command, Detach, Flow, NextSession
from tandembus.core.effects import Deliver, Delivery, Effect
from tandembus.engine.committer import ThreadLane
from tandembus.engine.engine import Engine, Reply, Tuning
from tandembus.engine.recovery import recover
from tandembus.errors import StoreError, TandemError
from tandembus.model import Message
from tandembus.store.api import Store
from tandembus.store.files import FileStore


def open_engine(
    folder: str | os.PathLike[str],
    *,
    decode: Callable[[bytes], Message],
    clock: Clock | None = None,
    tuning: Tuning | None = None,
    on_effect: Callable[[Effect], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BlockingEngine:
    """Open or create the log in `folder`, recover, and serve."""
    return BlockingEngine(
        FileStore(folder),
        decode=decode,
        clock=clock,
        tuning=tuning,
        on_effect=on_effect,
        progress=progress,
    )


class BlockingEngine:
    """`execute` returns when the answer is durable. Owns the store: closes it at the end."""

    def __init__(
        self,
        store: Store,
        *,
        decode: Callable[[bytes], Message],
        clock: Clock | None = None,
        tuning: Tuning | None = None,
        on_effect: Callable[[Effect], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._on_effect = on_effect
        self._received: dict[int, list[Delivery]] = {}
        self._next_link = 1 << 31  # the upper half, so that a caller's own links do not meet ours
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lanes = [
            ThreadLane(
                self._calls.put,
                name="tandem-commit",
                when_idle=store.mark_idle,
            ),
            ThreadLane(self._calls.put, name="tandem-index"),
        ]
        try:
            self.recovered = recover(store, progress)
            self.engine = Engine(
                self.recovered,
                store,
                clock=self._clock,
                decode=decode,
                on_effect=self._effect,
                on_failure=self._failed,
                commit_lane=self._lanes[0],
                side_lane=self._lanes[1],
                tuning=tuning,
            )
            self.drain()
            if self.engine.failure is not None:
                raise self.engine.failure
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> BlockingEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- commands ---------------------------------------------------------------------------------

    def execute(self, command: Command) -> Any:
        """The reply to a command, when it is durable. Raises Refused or StoreError."""
        (reply,) = self.execute_all([command])
        if isinstance(reply, TandemError):
            raise reply
        return reply

    def execute_all(self, commands: Iterable[Command]) -> list[Reply]:
        """The replies to several commands, which share groups; a refusal is a reply here."""
        self.poll()
        replies: list[Reply] = []
        count = 0
        for count, command in enumerate(commands, 1):  # noqa: B007 - counted, and used below
            self.engine.submit(command, replies.append)
            self._relieve()
        self.engine.flush()
        while len(replies) < count:
            self._calls.get()()
        return replies

    def receive(
        self,
        path: str,
        count: int = 1,
        mode: Mode = Mode.PEEK_LOCK,
        *,
        session: str | NextSession | None = None,
    ) -> list[Delivery]:
        """Up to `count` messages that are there now, over a link of its own. With a session, the
        link (and with it the session's lock) ends before this returns."""
        link = self._next_link
        self._next_link += 1
        self._received[link] = []
        self.execute(Attach(link, path, mode, session))
        self.execute(Flow(link, count, self._clock.random_bits(64), drain=True))
        self.execute(Detach(link))
        return self._received.pop(link)

    def body(self, number: int) -> bytes:
        return self.engine.body(number)

    def poll(self) -> None:
        """Do what is due, and let out what has become durable, without waiting."""
        while True:
            try:
                self._calls.get_nowait()()
            except Empty:
                break
        while self.engine.next_deadline() <= self._clock.now_ms():
            self.engine.tick()

    def drain(self) -> None:
        """Wait until everything is durable and let out."""
        self.engine.flush()
        while self.engine.staged_bytes and self.engine.failure is None:
            self._calls.get()()

    def _relieve(self) -> None:
        """Wait for the disk, if it has too much to do."""
        while self.engine.failure is None and self.engine.is_congested:
            self.engine.flush()
            self._calls.get()()

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Clean stop: everything and an index are written. Raises StoreError if that fails."""
        if self.engine.failure is None:
            ended: list[None] = []
            self.engine.close(lambda: ended.append(None))
            while not ended and self.engine.failure is None:
                self._calls.get()()
        self.abandon()
        if self.engine.failure is not None:
            raise self.engine.failure

    def abandon(self) -> None:
        """Stop here and now, as a crash would. What was durable stays."""
        for lane in self._lanes:
            lane.close()
        self._store.close()

    def _effect(self, effect: Effect) -> None:
        if isinstance(effect, Deliver) and effect.link in self._received:
            self._received[effect.link] += effect.deliveries
        elif self._on_effect is not None:
            self._on_effect(effect)

    def _failed(self, error: StoreError) -> None:
        """Whoever waits gets the error; whoever comes later, too."""
