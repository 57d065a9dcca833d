"""`Worker`, whose `process_message` is overridden, and `Work`, what a handler can ask and say.

    class Mailer(Worker):
        async def process_message(self, message):
            await send(str(message))

A worker is one object for all messages of its pool: several may be in `process_message` at once. A
plain `def` runs in a thread and may block; an `async def` runs in the pool's event loop and may
not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Any, ClassVar, Final

from tandembus.workers.outcomes import Abandon, DeadLetter, Outcome, PermanentError

_current: Final[ContextVar[Work]] = ContextVar("tandem_work")

MAX_TEXT: Final = 4_096
"""Azure's limit for the reason and the description of a dead letter."""


class Work:
    """One message in the hands of a handler: `self.work`, as long as it is in `process_message`."""

    def __init__(self, level: str, state: bytes | None, delivery_count: int) -> None:
        self.level = level
        """The name of the level that it came from."""
        self.state = state
        """What an earlier handler of this message left with `GiveBack(state)`; None: nothing."""
        self.delivery_count = delivery_count
        self.is_lock_lost = False
        """Somebody else may have the message: what is done with it now may be done twice."""
        self._is_stop_requested = threading.Event()
        self._waiters: list[asyncio.Event] = []

    @property
    def is_stop_requested(self) -> bool:
        """Higher work waits for this worker, or the pool ends: save what there is, and return
        `GiveBack(state)`. Nobody is forced to."""
        return self._is_stop_requested.is_set()

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Block until a stop is requested; whether one was. For handlers in threads."""
        return self._is_stop_requested.wait(timeout_s)

    async def stop_requested(self, timeout_s: float | None = None) -> bool:
        """The same for asyncio."""
        if self.is_stop_requested:
            return True
        waiter = asyncio.Event()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter.wait(), timeout_s)
        except TimeoutError:
            return self.is_stop_requested
        finally:
            self._waiters.remove(waiter)
        return True

    def request_stop(self) -> None:
        """By the pool, in its event loop."""
        self._is_stop_requested.set()
        for waiter in self._waiters:
            waiter.set()


class Worker:
    """Override `process_message`."""

    is_preemptible: ClassVar[bool] = False
    """Opt in to preemption (P6): `process_message` looks at `self.work.is_stop_requested`, and
    returns `GiveBack(state)` soon after it is set."""

    dead_letter_on: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions that no other try would help."""

    def process_message(self, message: Any) -> Outcome | None | Awaitable[Outcome | None]:
        """Work on one message (a `ServiceBusReceivedMessage`). Its lock is renewed meanwhile, and
        it is settled by what this returns or raises."""
        raise NotImplementedError(f"{type(self).__name__} has to override process_message")

    @property
    def work(self) -> Work:
        """The message that `process_message` is in just now, in this task or thread."""
        return _current.get()

    def outcome_of(self, error: Exception) -> Outcome:
        """What an exception of `process_message` means for its message."""
        if isinstance(error, PermanentError):
            return DeadLetter(error.reason, error.description)
        if isinstance(error, self.dead_letter_on):
            return DeadLetter(type(error).__name__, str(error)[:MAX_TEXT])
        return Abandon()

    async def started(self) -> None:
        """Before the first message: for connections and the like."""

    async def stopped(self) -> None:
        """After the last message."""


def enter(work: Work) -> None:
    """This task, and the threads that it starts with its context, are in `work`."""
    _current.set(work)
