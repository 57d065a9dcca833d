"""Pools of workers that keep priorities, on the official SDK: for Tandem and for Azure.

    class Mailer(Worker):
        async def process_message(self, message):
            await send(str(message))

    levels = (Level("high", queue="mail-high"), Level("low", queue="mail-low"))
    options = PoolOptions("mail", levels, size=4)
    async with ServiceBusClient.from_connection_string(text) as client:
        async with Pool(Mailer(), options, client) as pool:
            await pool.wait()

`pip install tandembus[workers]`; `tandem workers run pools.toml` runs them from a file. See
docs/priority.md.

    options     what can be chosen
    order       who is served next, and who has to make room: pure
    windows     times of the day: pure
    autoscale   how large a pool should be: pure
    targets     attainment and speed: pure
    outcomes    what becomes of a message
    worker      Worker, and what a handler can ask and say
    receiving   one level's queue through the SDK
    wire        the SDK's inside
    pools       the shell: what waits, what runs beside
    processes   a pool whose workers are processes
    depth       length and age of a queue
    tasks       how they end
    running     several pools: looked at, scaled, watched
    status      the view, and the text for Prometheus: pure
    pools_file  the configuration; `tables` reads its TOML
    planning    a load, tried before anything is deployed: `tandem priority simulate`

Nothing is imported before it is used: the command line comes through here, also without the SDK.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandembus.workers.depth import QueueLooker
    from tandembus.workers.options import DailyWindow, Level, PoolOptions, Scale, Target
    from tandembus.workers.outcomes import (
        Abandon,
        Complete,
        DeadLetter,
        Defer,
        GiveBack,
        Outcome,
        PermanentError,
    )
    from tandembus.workers.pools import Pool
    from tandembus.workers.running import Overseer
    from tandembus.workers.targets import Alert, Attainment
    from tandembus.workers.worker import Work, Worker

__all__ = [
    "Abandon",
    "Alert",
    "Attainment",
    "Complete",
    "DailyWindow",
    "DeadLetter",
    "Defer",
    "GiveBack",
    "Level",
    "Outcome",
    "Overseer",
    "PermanentError",
    "Pool",
    "PoolOptions",
    "QueueLooker",
    "Scale",
    "Target",
    "Work",
    "Worker",
]


def __getattr__(name: str) -> Any:
    match name:
        case "DailyWindow" | "Level" | "PoolOptions" | "Scale" | "Target":
            from tandembus.workers import options

            return getattr(options, name)
        case (
            "Abandon" | "Complete" | "DeadLetter" | "Defer" | "GiveBack" | "Outcome"
            | "PermanentError"
        ):  # fmt: skip
            from tandembus.workers import outcomes

            return getattr(outcomes, name)
        case "Work" | "Worker":
            from tandembus.workers import worker

            return getattr(worker, name)
        case "Alert" | "Attainment":
            from tandembus.workers import targets

            return getattr(targets, name)
        case "Pool":
            from tandembus.workers.pools import Pool

            return Pool
        case "Overseer":
            from tandembus.workers.running import Overseer

            return Overseer
        case "QueueLooker":
            from tandembus.workers.depth import QueueLooker

            return QueueLooker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
