"""What a simulation found, as a picture: for each level, which part of its messages waited for how
long, a line a form."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from tandembus.workers.planning_run import Simulated

LEAST_S: Final = 0.001
"""The axis is logarithmic; who waited less, waited so long."""
POINTS: Final = 1_000
"""Of a line."""
STYLES: Final = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def plot(found: Simulated, path: Path) -> None:
    """PNG or SVG, by the name."""
    plan = found.plan
    count = len(plan.levels)
    figure = Figure(figsize=(10, 1.4 + 2.2 * count), layout="constrained")
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(
        f"{plan.rate:g} messages/s keep {plan.load:.2f} of {plan.size} workers busy", fontsize=12
    )
    for index, (panel, level) in enumerate(zip(panels, plan.levels, strict=True)):
        for form, style in zip(found.forms, STYLES, strict=False):
            waits = form.levels[index].waits_s
            step = max(1, len(waits) // POINTS)
            numbers = [*range(0, len(waits), step), len(waits) - 1] if waits else []
            panel.plot(
                [max(LEAST_S, waits[each]) for each in numbers],
                [100 * (each + 1) / len(waits) for each in numbers],
                linestyle=style,
                linewidth=1.6,
                label=form.form,
            )
        target = level.target
        if target is not None:
            panel.axvline(target.within_s, color="0.5", linewidth=0.8)
            panel.axhline(target.percent, color="0.5", linewidth=0.8)
            words = f"{target.percent:g} % done within {target.within_s:g} s"
            panel.annotate(
                words,
                (target.within_s, target.percent),
                xytext=(4, -4),
                textcoords="offset points",
                verticalalignment="top",
                color="0.4",
                fontsize=8,
            )
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(_time)
        panel.set_ylim(0, 101)
        panel.set_ylabel("% of messages")
        panel.set_title(f"{level.name}: {level.rate:g}/s", loc="left", fontsize=10)
        panel.grid(alpha=0.25)
    longest_s = max(level.max_s for form in found.forms for level in form.levels)
    panels[-1].set_xlim(LEAST_S, max(1.0, 1.1 * longest_s))
    panels[-1].set_xlabel("waited at most, from arrival to the begin of the work")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
    )
    figure.savefig(path, dpi=130)


def _time(seconds: float, _position: int | None) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"
