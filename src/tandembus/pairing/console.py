"""A pair on the console of one of its namespaces: its state is shown, and it can be told what to
do.

    reporter = show_on_console(bus, secondary)    # a connection string
    …
    reporter.stop()
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tandembus.client.board import Reporter
from tandembus.pairing.pair import Pair, PairStatus


class PairedBus(Protocol):
    """Blocking or asyncio."""

    _pair: Pair

    def status(self) -> PairStatus: ...
    def mark_healthy(self, path: str) -> None: ...
    def engage(self, path: str, *, hold: bool = False) -> None: ...


def show_on_console(
    bus: PairedBus, console: str | Sequence[str], name: str | None = None
) -> Reporter:
    """Every two seconds, in a thread of its own; to the namespace of this connection string. From
    a coroutine: what is asked for is done in its loop."""
    connection_string = console if isinstance(console, str) else console[0]
    try:
        run: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        run = _call

    def do(wish: dict[str, Any]) -> None:
        match wish.get("do"):
            case "engage":
                run(_engage, bus, str(wish.get("path")))
            case "mark_healthy":
                run(bus.mark_healthy, str(wish.get("path")))

    called = name or f"{socket.gethostname()} {os.getpid()}"
    return Reporter(connection_string, "pair", called, lambda: _described(bus), do).start()


def _call(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


def _engage(bus: PairedBus, path: str) -> None:
    bus.engage(path, hold=True)


def _described(bus: PairedBus) -> dict[str, Any]:
    pair, status = bus._pair, bus.status()
    now = pair.clock.now_ms()
    return {
        "primary": pair.name,
        "secondaries": [each.name for each in pair.secondaries],
        "entities": [
            {
                "path": each.path,
                "state": each.health.value,
                "since_ms": max(0, now - each.since_ms),
                "backlogged": each.sent_to_backlog,
                "error": each.last_error,
            }
            for each in status.entities
        ],
        "out_of_rotation": list(status.out_of_rotation),
        "cost": {**asdict(status.operations), "billed for pairing": status.operations.total},
    }
