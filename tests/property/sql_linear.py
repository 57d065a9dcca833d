"""Filters that were made to be slow, at a size n and at 2n: evaluation must grow like the size.

`python -m tests.property.sql_linear` prints times; `test_sql_linear.py` holds the steps, which are
the same on every machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandembus.core.sql import Context, Filter, compile_filter
from tandembus.model import Value
from tests.unit.core.sql_sample import context_of


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    size: int
    """n; 2n is as large as the bounds on a text allow, or nearly."""
    make: Callable[[int], tuple[str, Value]]
    """The filter of a size, and the value of the message's property `x`."""

    def at(self, size: int) -> tuple[Filter, Context, str]:
        text, value = self.make(size)
        return compile_filter(text), context_of(x=value), text


def like(unit: str, end: str, characters: int = 1) -> Callable[[int], tuple[str, Value]]:
    """A pattern of n characters made of `unit`s, against a text of as many (or more) letters a."""

    def make(size: int) -> tuple[str, Value]:
        pattern = unit * (size // len(unit)) + end
        return f"x LIKE '{pattern}'", "a" * (size * characters)

    return make


def long_run(size: int) -> tuple[str, Value]:
    """One literal of n characters, which nearly fits at every place."""
    return f"x LIKE '%{'a' * (size // 2)}b{'a' * (size // 2)}%'", "a" * (2 * size)


FAMILIES = [
    Family("LIKE '%a%a…%b%'", 500, like("%a", "%b%", 2)),
    Family("LIKE '%a%a…%b%', long text", 500, like("%a", "%b%", 16)),
    Family("LIKE '%aa%aa…%'", 500, like("%aa", "%", 2)),
    Family("LIKE '____…%b%'", 500, like("_", "%b%", 2)),
    Family("LIKE '%_%_…%b%'", 500, like("%_", "%b%", 2)),
    Family("LIKE '%_a%_a…%b%'", 500, like("%_a", "%b%", 4)),
    Family("LIKE 'a_a_…b%'", 500, like("a_", "b%", 4)),
    Family("LIKE '%a_a%a_a…%b%'", 500, like("%a_a", "%b%", 2)),
    Family("LIKE '%a_a_…b%'", 500, lambda n: (f"x LIKE '%{'a_' * (n // 2)}b%'", "a" * 4 * n)),
    Family(
        "LIKE '%aaa…b…aaa%'", 500, lambda n: (f"x LIKE '%{'a' * n}%'", ("a" * (n - 1) + "b") * 2)
    ),
    Family("LIKE '%a_a_b%', text of n", 4_000, lambda n: ("x LIKE '%a_a_b%'", "a" * n)),
    Family("LIKE x, a pattern of n", 500, lambda n: ("'aaaa' LIKE x", "%a" * (n // 2))),
    Family("x IN (…) of numbers", 45, lambda n: (f"x IN ({','.join(['2'] * n)})", 1)),
    Family("x IN (…) of strings", 45, lambda n: (f"x IN ({','.join([repr('b')] * n)})", "a")),
    Family("x IN (…) of properties", 45, lambda n: (f"x IN ({','.join(['y'] * n)})", 1)),
    Family("((((…x = 1))))", 15, lambda n: ("(" * n + "x = 1" + ")" * n, 1)),
    Family("NOT NOT … x = 1", 15, lambda n: ("NOT " * n + "x = 1", 1)),
    Family("x = 1 AND x = 1 …", 24, lambda n: (" AND ".join(["x = 1"] * n), 1)),
    Family("x = 2 OR x = 2 …", 24, lambda n: (" OR ".join(["x = 2"] * n), 1)),
    Family("x + x + … = ''", 45, lambda n: (" + ".join(["x"] * n) + " = ''", "abc")),
    Family("x + x + … of a long x", 45, lambda n: (" + ".join(["x"] * n) + " = ''", "a" * 300)),
    Family("1 + 1 * 1 - …", 45, lambda n: ("+".join(["x*1"] * (n // 2)) + " = 1", 1)),
]


MOST = 2.5
"""Times the steps at 2n against those at n. (Times say the same, but for a busy machine.)"""


def best(action: Callable[[], object], repeats: int = 9) -> float:
    """Microseconds of one call: the best of several rounds, without what other processes took."""
    calls = 1
    while True:
        begin = time.process_time()
        for _ in range(calls):
            action()
        spent = time.process_time() - begin
        if spent > 0.004:
            break
        calls *= 2
    rounds = [spent]
    for _ in range(repeats - 1):
        begin = time.process_time()
        for _ in range(calls):
            action()
        rounds.append(time.process_time() - begin)
    return min(rounds) / calls * 1e6


def main() -> int:
    print(f"{'family':27} {'n':>5} {'steps n':>8} {'2n':>6} {'ratio':>6}", end="")
    print(f" {'µs n':>8} {'2n':>8} {'ratio':>6} {'parse µs':>9} {'2n':>8} {'ratio':>6}")
    worst = 0.0
    grown: list[float] = []
    for family in FAMILIES:
        steps, times, parses = [], [], []
        for size in (family.size, 2 * family.size):
            program, context, text = family.at(size)
            program.matches(context)
            steps.append(program.steps)
            times.append(best(lambda p=program, c=context: p.matches(c)))  # type: ignore[misc]
            parses.append(best(lambda t=text: compile_filter(t), 5))  # type: ignore[misc]
        grown.append(steps[1] / steps[0])
        ratio = times[1] / times[0]
        worst = max(worst, ratio)
        print(f"{family.name:27} {family.size:5} {steps[0]:8} {steps[1]:6}", end="")
        print(f" {steps[1] / steps[0]:6.2f} {times[0]:8.1f} {times[1]:8.1f} {ratio:6.2f}", end="")
        print(f" {parses[0]:9.1f} {parses[1]:8.1f} {parses[1] / parses[0]:6.2f}")
    print(f"largest ratio of times: {worst:.2f}, of steps: {max(grown):.2f} ({MOST:g} is allowed)")
    return int(max(grown) > MOST)


if __name__ == "__main__":
    sys.exit(main())
