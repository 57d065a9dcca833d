"""What a handler can ask, and what its end means."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tandembus.workers import Abandon, DeadLetter, PermanentError, Work, Worker
from tandembus.workers.worker import enter


class Picky(Worker):
    dead_letter_on = (KeyError,)

    def process_message(self, message: Any) -> None:
        raise KeyError(message)


@pytest.mark.req("P9")
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PermanentError("Unreadable", "no JSON"), DeadLetter("Unreadable", "no JSON")),
        (KeyError("id"), DeadLetter("KeyError", "'id'")),
        (LookupError("id"), Abandon()),
        (OSError(), Abandon()),
    ],
)
def test_an_exception_has_an_outcome_by_its_kind(error: Exception, outcome: object) -> None:
    """What no other try helps goes to the dead-letter queue, all else is tried again."""
    assert Picky().outcome_of(error) == outcome


def test_process_message_has_to_be_overridden() -> None:
    with pytest.raises(NotImplementedError, match="Worker has to override process_message"):
        Worker().process_message(None)


@pytest.mark.req("P6")
def test_a_stop_wakes_a_thread() -> None:
    """A blocking handler sleeps until it is asked to stop."""
    work = Work("low", b"state", 0)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(work.wait_for_stop(60)))
    thread.start()
    assert not work.is_stop_requested
    work.request_stop()
    thread.join(60)
    assert answers == [True]
    assert not Work("low", None, 0).wait_for_stop(0)


async def _wait(work: Work) -> list[bool]:
    waits = [asyncio.create_task(work.stop_requested(60)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await work.stop_requested(0)
    work.request_stop()
    return [*await asyncio.gather(*waits), await work.stop_requested()]


@pytest.mark.req("P6")
def test_a_stop_wakes_tasks() -> None:
    assert asyncio.run(_wait(Work("low", None, 0))) == [True, True, True]


def test_each_task_has_its_own_work() -> None:
    """One worker object, several messages at once."""
    worker = Picky()

    async def one(name: str) -> str:
        enter(Work(name, None, 0))
        await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: worker.work.level)

    async def both() -> list[str]:
        return [*await asyncio.gather(one("a"), one("b"))]

    assert asyncio.run(both()) == ["a", "b"]
