"""What has not happened yet, and programs that wait for it: the client's own small futures.

Here lives no event loop and no thread. An operation of the client is an `async def` that awaits
`Pending` values; `Task` runs it a step further whenever what it waits for happens. Which bytes make
that happen, and who reads them, is the shells' affair (`blocking`, `aio`): each waits for a
`Pending` in its own way, and so no operation is written twice.

The rule: a `Pending` is decided once; whoever comes later is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

from tandembus.errors import OperationTimeoutError
from tandembus.model import Millis

T = TypeVar("T")


class Pending(Generic[T]):
    """A value that will be there, or an error in its place."""

    __slots__ = ("_callbacks", "_value", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self._value: T
        self._callbacks: list[Callable[[], None]] = []

    def resolve(self, value: T) -> None:
        if not self.is_done:
            self._value = value
            self._decide()

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self.error = error
            self._decide()

    def result(self) -> T:
        """The value; raises the error. Only when it `is_done`."""
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self._value

    def on_done(self, callback: Callable[[], None]) -> None:
        if self.is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        """Nobody waits any more. Raises nothing, whatever has become of it."""
        self.fail(Cancelled())

    def _decide(self) -> None:
        self.is_done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def __await__(self) -> Generator[Pending[T], None, T]:
        if not self.is_done:
            yield self
        return self.result()


class Cancelled(Exception):
    """Whoever waited went away."""


class Task(Pending[T]):
    """An operation under way."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Pending[Any], None, T]) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._step()

    def _step(self) -> None:
        if self.is_done:
            return
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as finished:
            self.resolve(finished.value)
        except Exception as error:  # noqa: BLE001 - it is whoever waits that has to hear it
            self.fail(error)
        else:
            awaited.on_done(self._step)

    def cancel(self) -> None:
        """The operation ends where it is; its `finally` clauses run."""
        if not self.is_done:
            self.is_done = True
            self._coroutine.close()
            self.error = Cancelled()
            self._decide()


class Timer:
    __slots__ = ("call", "due_ms", "number")

    def __init__(self, due_ms: Millis, number: int, call: Callable[[], object] | None) -> None:
        self.due_ms = due_ms
        self.number = number
        self.call = call

    def __lt__(self, other: Timer) -> bool:
        return (self.due_ms, self.number) < (other.due_ms, other.number)


class Timers:
    """What is to be done at a time. Cancelled ones are swept out before they pile up."""

    __slots__ = ("_cancelled", "_heap", "_next")

    _SLACK: Final = 256

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._next = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_ms: Millis, call: Callable[[], object]) -> Timer:
        timer = Timer(due_ms, self._next, call)
        self._next += 1
        heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        if timer.call is not None:
            timer.call = None
            self._cancelled += 1
            if self._cancelled > self._SLACK and 2 * self._cancelled > len(self._heap):
                self._heap = [it for it in self._heap if it.call is not None]
                heapify(self._heap)
                self._cancelled = 0

    def next_due(self) -> Millis | None:
        while self._heap and self._heap[0].call is None:
            heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0].due_ms if self._heap else None

    def run(self, now_ms: Millis) -> None:
        while (due := self.next_due()) is not None and due <= now_ms:
            timer = heappop(self._heap)
            call, timer.call = timer.call, None
            assert call is not None
            call()


def timed_out(what: str, timeout_ms: Millis) -> OperationTimeoutError:
    return OperationTimeoutError(f"{what} took longer than {timeout_ms / 1000:g} s.")
