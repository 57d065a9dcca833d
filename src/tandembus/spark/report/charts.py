"""The charts of the report, as plain data for plotly.js: rows in, a figure out; no third party.

Colours are names with an @ in front; the page puts in those of its theme, light or dark. The rule:
one message a chart, units on every axis, no second y axis, nothing that only decorates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, TypeAlias

Row: TypeAlias = Mapping[str, Any]
Figure: TypeAlias = dict[str, Any]

SERIES: Final = ("@blue", "@orange", "@green", "@pink", "@sky", "@yellow")
PAIRING: Final = ("@red", "@pink", "@yellow", "@grey")
STATES: Final = {
    "scheduled": ("Scheduled", "@sky"),
    "waiting": ("Waiting", "@blue"),
    "worked_on": ("Worked on", "@green"),
    "in_vain": ("In vain", "@orange"),
    "given_up": ("Given up", "@red"),
}
_WAYS: Final = ("sent_straight", "sent_around", "brought_home")
_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
_MS_TEXT: Final = ("1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "1 day")


def figure(data: list[Figure], *, height: int, **layout: Any) -> Figure:
    return {"data": data, "layout": {"height": height, **layout}}


def _time_axis(**more: Any) -> Figure:
    return {"type": "date", "showgrid": False, **more}


def _span(begin: datetime, end: datetime) -> Figure:
    """The time of an outage, behind the lines."""
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": _iso(begin), "x1": _iso(end),
        "y0": 0, "y1": 1, "fillcolor": "@red", "opacity": 0.08, "line": {"width": 0},
        "layer": "below",
    }  # fmt: skip


def _iso(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")


def _line(rows: Sequence[Row], of: str, name: str, color: str, **more: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_iso(row["window"]) for row in rows],
        "y": [row[of] for row in rows],
        "line": {"color": color, "width": 2},
        **more,
    }


def with_quiet(rows: Sequence[Row], window_s: int, quiet: Row) -> list[Row]:
    """Windows without any event have no row: a line must not run over them as if it knew. `quiet`
    is what is so in them; the rest is as it was before."""
    step = timedelta(seconds=window_s)
    shown: list[Row] = list(rows[:1])
    for before, row in pairwise(rows):
        if row["window"] - before["window"] > step:
            shown.append({**before, **quiet, "window": before["window"] + step})
        if row["window"] - before["window"] > 2 * step:
            shown.append({**before, **quiet, "window": row["window"] - step})
        shown.append(row)
    return shown


def throughput(
    rows: Sequence[Row], window_s: int, outage: tuple[datetime, datetime] | None = None
) -> Figure:
    """Arrived and completed a second; below, on the same time, what waits."""
    rows = with_quiet(rows, window_s, {"arrived_per_s": 0, "completed_per_s": 0})
    return figure(
        [
            _line(rows, "arrived_per_s", "Arrived", "@blue", hovertemplate="%{y:,.1f}/s"),
            _line(rows, "completed_per_s", "Completed", "@green", hovertemplate="%{y:,.1f}/s"),
            _line(
                rows, "waiting", "Waiting", "@orange", yaxis="y2", fill="tozeroy",
                fillcolor="@orange-soft", hovertemplate="%{y:,.0f}",
            ),
        ],
        height=380,
        hovermode="x unified",
        xaxis=_time_axis(anchor="y2"),
        yaxis={"title": {"text": "messages a second"}, "domain": [0.45, 1], "rangemode": "tozero"},
        yaxis2={"title": {"text": "messages waiting"}, "domain": [0, 0.35], "rangemode": "tozero"},
        shapes=[_span(*outage)] if outage else [],
    )  # fmt: skip


def waits(rows: Sequence[Row], targets: Mapping[tuple[str, int | None], float]) -> Figure:
    """From the median to the 99th percentile of each level's wait, and the time that was promised.
    `rows` have `label`, `entity`, `level`, `wait_p50_ms`, `wait_p90_ms`, `wait_p99_ms`."""
    labels = [row["label"] for row in rows]
    data: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", "showlegend": False, "hoverinfo": "skip",
            "x": [_at_least(row["wait_p50_ms"]), _at_least(row["wait_p99_ms"])],
            "y": [row["label"]] * 2, "line": {"color": "@grey", "width": 3},
        }
        for row in rows
    ]  # fmt: skip
    for of, name, color in (
        ("wait_p50_ms", "Half waited at most", "@sky"),
        ("wait_p90_ms", "9 of 10", "@blue"),
        ("wait_p99_ms", "99 of 100", "@navy"),
    ):
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "y": labels,
                "x": [_at_least(row[of]) for row in rows],
                "customdata": [row[of] for row in rows],
                "marker": {"color": color, "size": 12},
                "hovertemplate": "%{y}: %{customdata:,.0f} ms",
            }
        )  # fmt: skip
    promised = [(row["label"], _target(targets, row)) for row in rows]
    if any(ms is not None for _, ms in promised):
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": "Promised",
                "y": [label for label, ms in promised if ms is not None],
                "x": [ms for _, ms in promised if ms is not None],
                "marker": {
                    "color": "@red", "size": 20, "symbol": "line-ns",
                    "line": {"width": 3, "color": "@red"},
                },
                "hovertemplate": "%{y}: promised within %{x:,.0f} ms",
            }
        )  # fmt: skip
    return figure(
        data,
        height=max(190, 110 + 34 * len(rows)),
        xaxis={
            "type": "log", "tickvals": list(_MS), "ticktext": list(_MS_TEXT),
            "title": {"text": "wait from arrival to first delivery (logarithmic)"},
        },
        yaxis={"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
    )  # fmt: skip


def _at_least(ms: float | None) -> float | None:
    """A logarithm has no place for 0."""
    return None if ms is None else max(1, ms)


def _target(targets: Mapping[tuple[str, int | None], float], row: Row) -> float | None:
    exact = targets.get((row["entity"], row["level"]))
    return exact if exact is not None else targets.get((row["entity"], None))


def waits_over_time(levels: Mapping[str, Sequence[Row]], window_s: int) -> Figure:
    """The 99th percentile of the wait of each level."""
    data = [
        _line(
            with_quiet(rows, window_s, {"wait_p99_ms": None}), "wait_p99_ms", label,
            SERIES[number % len(SERIES)], mode="lines+markers", hovertemplate="%{y:,.0f} ms",
            connectgaps=False,
        )
        for number, (label, rows) in enumerate(levels.items())
    ]  # fmt: skip
    for line in data:
        line["y"] = [_at_least(value) for value in line["y"]]
    return figure(
        data,
        height=300,
        hovermode="x unified",
        xaxis=_time_axis(),
        yaxis={
            "type": "log", "tickvals": list(_MS), "ticktext": list(_MS_TEXT),
            "title": {"text": "wait of 99 of 100"},
        },
    )  # fmt: skip


def states(rows: Sequence[Row]) -> Figure:
    """Shares of the time of messages, one bar for each entity. `rows` have `entity`, `state`,
    `share`, `text`."""
    data = []
    for state, (name, color) in STATES.items():
        of = [row for row in rows if row["state"] == state]
        if of:
            data.append(
                {
                    "type": "bar", "orientation": "h", "name": name,
                    "y": [row["entity"] for row in of],
                    "x": [100 * (row["share"] or 0) for row in of],
                    "customdata": [row["text"] for row in of],
                    "marker": {"color": color},
                    "hovertemplate": "%{y}: %{x:.1f} % (%{customdata})",
                }
            )  # fmt: skip
    entities = list(dict.fromkeys(row["entity"] for row in rows))
    return figure(
        data,
        height=max(180, 110 + 36 * len(entities)),
        barmode="stack",
        bargap=0.35,
        xaxis={"title": {"text": "share of the time of its messages, %"}, "range": [0, 100]},
        yaxis={
            "type": "category", "automargin": True, "showgrid": False,
            "categoryorder": "array", "categoryarray": entities[::-1],
        },
    )  # fmt: skip


def costs(rows: Sequence[Row]) -> Figure:
    """Billed operations by entity, the kinds stacked; those of pairing in colours of their own."""
    data: list[Figure] = []
    entities = list(dict.fromkeys(row["entity"] for row in rows))
    kinds = sorted({(bool(row["is_pairing"]), row["operation"]) for row in rows}, key=_rank)
    colors = {False: iter(SERIES), True: iter(PAIRING)}
    for is_pairing, operation in kinds:
        of = [
            row for row in rows if (row["is_pairing"], row["operation"]) == (is_pairing, operation)
        ]
        data.append(
            {
                "type": "bar", "orientation": "h",
                "name": f"{operation} (pairing)" if is_pairing else operation,
                "y": [row["entity"] for row in of],
                "x": [row["operations"] for row in of],
                "marker": {"color": next(colors[is_pairing], "@grey")},
                "hovertemplate": "%{y}: %{x:,.0f} operations",
            }
        )  # fmt: skip
    return figure(
        data,
        height=max(180, 110 + 34 * len(entities)),
        barmode="stack",
        bargap=0.35,
        xaxis={"title": {"text": "billed operations"}, "rangemode": "tozero"},
        yaxis={
            "type": "category", "automargin": True, "showgrid": False,
            "categoryorder": "array", "categoryarray": entities[::-1],
        },
    )  # fmt: skip


def _rank(kind: tuple[bool, str]) -> tuple[bool, int, str]:
    """Pairing last; the usual operations in their usual order."""
    is_pairing, operation = kind
    usual = ("send", "receive", "empty receive", "peek")
    return is_pairing, usual.index(operation) if operation in usual else len(usual), operation


def outage(rows: Sequence[Row], window_s: int, span: tuple[datetime, datetime] | None) -> Figure:
    """What went straight, around and home a second; below, what is left in the backlog."""
    per_s = [
        {
            "window": row["window"],
            "in_backlog": row["in_backlog"],
            **{name: row[name] / window_s for name in _WAYS},
        }
        for row in rows
    ]  # fmt: skip
    pings = [row for row in rows if row["pings"]]
    return figure(
        [
            _line(per_s, "sent_straight", "Sent straight", "@blue", hovertemplate="%{y:,.1f}/s"),
            _line(per_s, "sent_around", "Sent to the backlog", "@red", hovertemplate="%{y:,.1f}/s"),
            _line(per_s, "brought_home", "Brought home", "@green", hovertemplate="%{y:,.1f}/s"),
            _line(
                per_s, "in_backlog", "In the backlog", "@orange", yaxis="y2", fill="tozeroy",
                fillcolor="@orange-soft", hovertemplate="%{y:,.0f}",
            ),
            {
                "type": "scatter", "mode": "markers", "name": "Pings", "yaxis": "y2",
                "x": [_iso(row["window"]) for row in pings], "y": [0] * len(pings),
                "marker": {"color": "@pink", "symbol": "triangle-up", "size": 9},
                "customdata": [row["pings"] for row in pings],
                "hovertemplate": "%{customdata} pings",
            },
        ],
        height=380,
        hovermode="x unified",
        xaxis=_time_axis(anchor="y2"),
        yaxis={"title": {"text": "messages a second"}, "domain": [0.45, 1], "rangemode": "tozero"},
        yaxis2={"title": {"text": "in the backlog"}, "domain": [0, 0.35], "rangemode": "tozero"},
        shapes=[_span(*span)] if span else [],
    )  # fmt: skip


def workers(pools: Mapping[str, Sequence[Row]]) -> Figure:
    """The size that each pool would have had."""
    data = [
        _line(rows, "size", pool, SERIES[number % len(SERIES)], hovertemplate="%{y} workers")
        for number, (pool, rows) in enumerate(pools.items())
    ]
    for line in data:
        line["line"]["shape"] = "hv"
    return figure(
        data,
        height=260,
        hovermode="x unified",
        xaxis=_time_axis(),
        yaxis={"title": {"text": "workers"}, "rangemode": "tozero"},
    )
