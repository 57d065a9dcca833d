"""The end of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

AGAIN_S: Final = 0.2


async def ended(
    tasks: Collection[asyncio.Task[Any]], *, again_s: float = AGAIN_S, times: int | None = None
) -> bool:
    """Cancel tasks, and wait until they have ended; at most so many times, then whether they have.

    Once is not enough: `asyncio.wait_for` of Python 3.11, in which the SDK mostly is, forgets a
    cancellation that comes together with its result.
    """
    left = {task for task in tasks if not task.done()}
    while left and times != 0:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
        times = None if times is None else times - 1
    return not left
