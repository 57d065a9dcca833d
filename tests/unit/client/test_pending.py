"""The client's small futures, tasks and timers."""

from __future__ import annotations

import pytest

from tandembus.client.pending import Cancelled, Pending, Task, Timers


def test_decided_once() -> None:
    """Whoever comes later is not heard."""
    pending: Pending[int] = Pending()
    heard: list[int] = []
    pending.on_done(lambda: heard.append(1))
    pending.resolve(5)
    pending.fail(ValueError())
    pending.resolve(6)
    pending.on_done(lambda: heard.append(2))
    assert pending.result() == 5
    assert heard == [1, 2]


def test_a_task_goes_on_as_things_happen() -> None:
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()

    async def add() -> int:
        return await first + await second

    task = Task(add())
    second.resolve(2)
    assert not task.is_done
    first.resolve(1)
    assert task.result() == 3


def test_errors_pass_through() -> None:
    """Of what was waited for, and of the task itself."""
    pending: Pending[int] = Pending()

    async def catch() -> str:
        try:
            await pending
        except ValueError:
            raise KeyError("told") from None
        return "not reached"

    task = Task(catch())
    pending.fail(ValueError())
    with pytest.raises(KeyError, match="told"):
        task.result()


def test_cancelling_cleans_up() -> None:
    """`finally` runs, and what was waited for does nothing any more."""
    pending: Pending[int] = Pending()
    steps: list[str] = []

    async def work() -> None:
        try:
            await pending
            steps.append("done")
        finally:
            steps.append("cleaned")

    task = Task(work())
    task.cancel()
    task.cancel()
    pending.resolve(1)
    assert steps == ["cleaned"]
    with pytest.raises(Cancelled):
        task.result()


def test_timers_go_off_in_order() -> None:
    """Those of the same moment as they were set; cancelled ones never."""
    timers = Timers()
    heard: list[str] = []
    timers.at(20, lambda: heard.append("c"))
    timers.at(10, lambda: heard.append("a"))
    timers.at(10, lambda: heard.append("b"))
    gone = timers.at(5, lambda: heard.append("never"))
    timers.cancel(gone)
    timers.cancel(gone)
    assert timers.next_due() == 10
    timers.run(15)
    assert heard == ["a", "b"]
    timers.run(20)
    assert heard == ["a", "b", "c"]
    assert timers.next_due() is None


def test_cancelled_timers_do_not_pile_up() -> None:
    """Every request sets one, and nearly every one is cancelled."""
    timers = Timers()
    timers.at(10**9, lambda: None)
    for _ in range(10_000):
        timers.cancel(timers.at(10**6, lambda: None))
    assert len(timers) < 1_000
