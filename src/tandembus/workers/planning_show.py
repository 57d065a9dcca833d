"""What a simulation found, as lines for a terminal and as values for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from tandembus.workers.planning import PlannedLevel
from tandembus.workers.planning_run import LevelResult, Simulated
from tandembus.workers.status import duration

_HEAD: Final = (
    f"{'form':<13} {'level':<12} {'messages':>9} {'mean':>8} {'p50':>8} {'p95':>8} {'p99':>8} "
    f"{'max':>8} {'target':>16} {'busy':>5}"
)


def lines(found: Simulated) -> Iterator[str]:
    """The forms below each other, each with its levels."""
    plan = found.plan
    yield (
        f"{plan.rate:g} messages/s keep {plan.load:.2f} of {plan.size} workers busy; simulated are "
        f"{plan.duration_s:,g} s (the first {plan.warm_until_s:,g} left out), seed {plan.seed}."
    )
    yield "Waiting, from arrival to the begin of the work:"
    yield ""
    yield _HEAD
    for each in found.forms:
        for number, (level, planned) in enumerate(zip(each.levels, plan.levels, strict=True)):
            yield (
                f"{each.form if number == 0 else '':<13} {level.name:<12.12} {level.arrived:>9,} "
                f"{duration(level.mean_s):>8} {duration(level.p50_s):>8} "
                f"{duration(level.p95_s):>8} {duration(level.p99_s):>8} "
                f"{duration(level.max_s):>8} {_target(level, planned):>16} "
                f"{level.utilization:>4.0%}{_left(level)}"
            )


def _target(level: LevelResult, planned: PlannedLevel) -> str:
    target, percent = planned.target, level.attained_percent
    if target is None or percent is None:
        return "-"
    return f"{percent:.1f}/{target.percent:g} %{' !' if percent < target.percent else ''}"


def _left(level: LevelResult) -> str:
    """Some are always on their way."""
    return f"  {level.left:,} not begun" if level.left > 0.02 * level.arrived else ""


def values(found: Simulated) -> dict[str, Any]:
    """For JSON."""
    forms = []
    for each in found.forms:
        levels = [asdict(level) for level in each.levels]
        for level in levels:
            del level["waits_s"]
        forms.append({"form": each.form, "levels": levels})
    plan = found.plan
    return {
        "load": plan.load,
        "workers": plan.size,
        "seconds": plan.duration_s,
        "warm_s": plan.warm_until_s,
        "seed": plan.seed,
        "forms": forms,
        "warnings": list(found.warnings),
    }
