"""What is shown of pools: values, the terminal view, and the text that Prometheus reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandembus.workers.targets import Attainment, Histogram


@dataclass(frozen=True, slots=True)
class LevelStatus:
    """One level, as it is now. None: not known."""

    name: str
    path: str
    is_active: bool
    waiting: int | None
    oldest_s: float | None
    rate: float
    """Messages done in a second."""
    p50_s: float | None
    p99_s: float | None
    """How long messages of the last minute had waited when they were begun."""
    attainment: Attainment | None
    waits: Histogram
    works: Histogram
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PoolStatus:
    name: str
    size: int
    busy: int
    preemptions: int
    levels: Sequence[LevelStatus]
    operations: Mapping[str, int] = field(default_factory=dict)
    """What it has cost (P11)."""


_HEAD: Final = (
    f"{'pool':<12} {'level':<12} {'waiting':>8} {'oldest':>8} {'rate/s':>8} {'p50':>8} {'p99':>8} "
    f"{'target':>18} {'size':>9}"
)


def table(pools: Iterable[PoolStatus]) -> list[str]:
    """The view: a head, and a line a level."""
    lines = [_HEAD]
    for pool in pools:
        for number, level in enumerate(pool.levels):
            size = f"{pool.busy}/{pool.size}" if number == 0 else ""
            lines.append(
                f"{pool.name if number == 0 else '':<12.12} {level.name:<12.12} "
                f"{_count(level.waiting):>8} {duration(level.oldest_s):>8} {level.rate:>8.1f} "
                f"{duration(level.p50_s):>8} {duration(level.p99_s):>8} {_target(level):>18} "
                f"{size:>9}"
            )
    return lines


def lines(pools: Iterable[PoolStatus], clock: str) -> list[str]:
    """The same for a pipe: each line says all of one level."""
    return [
        f"{clock} {pool.name}/{level.name} waiting={_count(level.waiting)} "
        f"oldest={duration(level.oldest_s)} rate={level.rate:.1f}/s p50={duration(level.p50_s)} "
        f"p99={duration(level.p99_s)} target={_target(level).replace(' ', '') or '-'} "
        f"size={pool.size} busy={pool.busy}"
        for pool in pools
        for level in pool.levels
    ]


def on_board(pool: PoolStatus) -> dict[str, object]:
    """The same for the console."""
    return {
        "size": pool.size,
        "busy": pool.busy,
        "preemptions": pool.preemptions,
        "levels": [
            {
                "name": level.name,
                "path": level.path,
                "waiting": level.waiting,
                "oldest_s": level.oldest_s,
                "rate": level.rate,
                "p99_s": level.p99_s,
                "percent": None if level.attainment is None else level.attainment.percent,
                "is_attained": level.attainment is None or level.attainment.is_attained,
            }
            for level in pool.levels
        ],
    }


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value}"


def duration(value: float | None) -> str:
    """In a few letters."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms"
    return f"{value:.1f}s" if value < 600 else f"{value / 60:.0f}min"


def _target(level: LevelStatus) -> str:
    if not level.is_active:
        return "suspended"
    found = level.attainment
    if found is None:
        return ""
    if found.percent is None:
        return "no messages"
    return f"{found.percent:.1f}/{found.target.percent:g} %{' !' if not found.is_attained else ''}"


# --- Prometheus ---------------------------------------------------------------------------------


class _Text:
    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(self, name: str, kind: str, words: str) -> None:
        name = f"tandem_workers_{name}"
        self._families.setdefault(name, [f"# HELP {name} {words}", f"# TYPE {name} {kind}"])

    def add(self, name: str, value: float, *, suffix: str = "", **labels: str) -> None:
        name = f"tandem_workers_{name}"
        shown = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
        self._families[name].append(f"{name}{suffix}{{{shown}}} {value:.10g}")

    def histogram(self, name: str, found: Histogram, **labels: str) -> None:
        for bound, count in found.cumulative():
            self.add(name, count, suffix="_bucket", **labels, le=bound)
        self.add(name, found.sum_s, suffix="_sum", **labels)
        self.add(name, found.count, suffix="_count", **labels)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for family in self._families.values() for line in family)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def prometheus(pools: Iterable[PoolStatus]) -> str:
    """Text exposition format 0.0.4."""
    text = _Text()
    text.family("pool_size", "gauge", "Workers that a pool may have busy at once.")
    text.family("pool_busy", "gauge", "Workers that have a message.")
    text.family("preemptions_total", "counter", "Handlers that were asked to make room.")
    text.family("operations_total", "counter", "Requests to the broker, by kind.")
    text.family("active", "gauge", "1 while a level is served, 0 while it is suspended.")
    text.family("waiting", "gauge", "Messages in the queue that no worker of this process has.")
    text.family("oldest_seconds", "gauge", "Age of the oldest of them.")
    text.family("messages_total", "counter", "Messages by how they ended.")
    text.family("wait_seconds", "histogram", "From arrival in the queue to the begin of the work.")
    text.family("work_seconds", "histogram", "From the begin of the work to its end.")
    text.family("target_seconds", "gauge", "Within which time messages shall be done.")
    text.family("target_ratio", "gauge", "Which part of them is promised.")
    text.family("attainment_ratio", "gauge", "Which part of them was, over the target's window.")
    text.family("alert", "gauge", "1 while the target is missed.")
    for pool in pools:
        text.add("pool_size", pool.size, pool=pool.name)
        text.add("pool_busy", pool.busy, pool=pool.name)
        text.add("preemptions_total", pool.preemptions, pool=pool.name)
        for operation, count in sorted(pool.operations.items()):
            text.add("operations_total", count, pool=pool.name, operation=operation)
        for level in pool.levels:
            _level(text, pool.name, level)
    return str(text)


def _level(text: _Text, pool: str, level: LevelStatus) -> None:
    name = level.name
    text.add("active", level.is_active, pool=pool, level=name)
    if level.waiting is not None:
        text.add("waiting", level.waiting, pool=pool, level=name)
    if level.oldest_s is not None:
        text.add("oldest_seconds", level.oldest_s, pool=pool, level=name)
    for outcome, count in sorted(level.outcomes.items()):
        text.add("messages_total", count, pool=pool, level=name, outcome=outcome)
    text.histogram("wait_seconds", level.waits, pool=pool, level=name)
    text.histogram("work_seconds", level.works, pool=pool, level=name)
    found = level.attainment
    if found is not None:
        text.add("target_seconds", found.target.within_s, pool=pool, level=name)
        text.add("target_ratio", found.target.percent / 100, pool=pool, level=name)
        if found.percent is not None:
            text.add("attainment_ratio", found.percent / 100, pool=pool, level=name)
        text.add("alert", found.is_alert, pool=pool, level=name)
