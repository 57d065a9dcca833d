"""Turns: who has more to do than a turn allows goes on behind the others."""

from __future__ import annotations

import asyncio

from tandembus.limits import BURST_MS, CPU_SHARE, CROWDED_FRAMES_AT_ONCE, FRAMES_AT_ONCE
from tandembus.server.turns import Share, Turns


class Storm:
    """Has `left` turns of work."""

    def __init__(self, turns: Turns, name: str, left: int, log: list[str]) -> None:
        self._turns, self._name, self._left, self._log = turns, name, left, log

    def go_on(self) -> None:
        self._log.append(self._name)
        self._left -= 1
        if self._left:
            self._turns.add(self)


def test_all_are_served_in_their_order() -> None:
    """Each again behind the others, until all is done; then nothing runs any more."""

    async def scene() -> list[str]:
        turns, log = Turns(), list[str]()
        for name, left in (("a", 3), ("b", 1), ("c", 2)):
            turns.add(Storm(turns, name, left, log))
        while turns.has_waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert not turns._is_running
        return log

    assert asyncio.run(scene()) == ["a", "b", "c", "a", "c", "a"]


def test_a_task_waits_for_its_turn() -> None:
    """Tasks stand in the same queue, one in a turn; one that was cancelled is passed over."""

    async def scene() -> list[str]:
        turns, log = Turns(), list[str]()

        async def work(name: str) -> None:
            await turns.turn()
            log.append(name)

        tasks = [asyncio.create_task(work(name)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        tasks[1].cancel()
        turns.add(Storm(turns, "storm", 1, log))
        await asyncio.gather(*tasks, return_exceptions=True)
        return log

    assert asyncio.run(scene()) == ["a", "c", "storm"]


def test_others_get_turns_in_between() -> None:
    """While somebody is there who asks for little, two turns of three are free of storms."""

    async def scene() -> tuple[int, bool]:
        turns, log = Turns(), list[str]()
        turns.note_light(float("inf"))
        assert turns.pace(0.0)[0] == CROWDED_FRAMES_AT_ONCE
        turns.add(Storm(turns, "storm", 100, log))
        await asyncio.sleep(0)
        for _ in range(30):
            await asyncio.sleep(0)
        return len(log), turns.has_waiting

    served, left = asyncio.run(scene())
    assert 9 <= served <= 11
    assert left


def test_the_pace_of_one_that_is_alone() -> None:
    turns = Turns()
    turns.note_light(5.0)
    assert turns.pace(5.05)[0] == CROWDED_FRAMES_AT_ONCE
    assert turns.pace(5.2)[0] == FRAMES_AT_ONCE


def test_a_share_fills_up() -> None:
    """As fast as the share says, and no further than a burst."""
    share = Share(10.0)
    assert share.at(20.0) == BURST_MS / 1_000
    share.left -= 0.010
    assert share.at(20.0) < 0
    assert abs(share.at(20.1) - (BURST_MS / 1_000 - 0.010 + 0.1 * CPU_SHARE)) < 1e-9
    assert share.at(30.0) == BURST_MS / 1_000


def test_one_that_fails_does_not_stop_the_others() -> None:
    async def scene() -> list[str]:
        class Broken:
            def go_on(self) -> None:
                raise ValueError("a bug")

        failed: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        turns, log = Turns(), list[str]()
        turns.add(Broken())
        turns.add(Storm(turns, "a", 2, log))
        while turns.has_waiting:
            await asyncio.sleep(0)
        assert [type(error) for error in failed] == [ValueError]
        return log

    assert asyncio.run(scene()) == ["a", "a"]
