"""One attack, as a process of its own: `python -m tests.hostile.attack H3-flow --port … --key …`.

It makes itself nice, so that what is measured is the broker's fairness and not the kernel's; and it
says at its end, as one line of JSON, what it did and what of it the broker should have stopped and
did not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from .wire import Target

NICE = 10


class Closing(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class Deed:
    """What an attack did, and what went wrong with the broker's answer."""

    done: dict[str, int] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    def count(self, what: str, by: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + by

    def expect(self, is_so: bool, what: str) -> None:
        if not is_so and what not in self.wrongs:
            self.wrongs.append(what)


@dataclass(slots=True)
class Plan:
    """Against whom, how long, and how much: `scale` below 1 is a smoke test."""

    target: Target
    seconds: float
    scale: float = 1.0
    deed: Deed = field(default_factory=Deed)
    until: float = 0.0
    held: list[Closing] = field(default_factory=list)
    """Connections that are kept until the end."""

    def begin(self) -> None:
        self.until = time.monotonic() + self.seconds

    def has_time(self) -> bool:
        return time.monotonic() < self.until

    def end(self) -> None:
        for each in self.held:
            each.close()
        self.held.clear()

    def many(self, count: int) -> int:
        """So many at full scale; a few in a smoke test."""
        return max(2, int(count * self.scale))


Attack = Callable[[Plan], None]
ATTACKS: dict[str, Attack] = {}
"""By scenario; the docstring's first line is what the table prints."""


def attack(name: str) -> Callable[[Attack], Attack]:
    def register(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return register


def load() -> dict[str, Attack]:
    """All of them, in the order of RELIABILITY.md §3.1."""
    from . import edges, frames, insiders, slow  # noqa: F401 - they register

    return dict(sorted(ATTACKS.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("scenario")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE), encoding="ascii")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = Target(options.port, options.key, options.tls)
    plan = Plan(target, options.seconds, options.scale)
    plan.begin()
    try:
        load()[options.scenario](plan)
    finally:
        plan.end()
    print(json.dumps(asdict(plan.deed)), flush=True)
    return 0


if __name__ == "__main__":
    # The attacks register with the module that is imported, not with the one that is run.
    from tests.hostile.attack import main as run

    sys.exit(run())
